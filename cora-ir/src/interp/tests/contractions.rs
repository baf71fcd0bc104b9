//! Contractions over ragged dimensions, whole and in part.

use super::*;

struct Contractions {
    g: Graph,
    lens: UfId,
    inputs: [TensorId; 3],
    outputs: [TensorId; 3],
}

/// `S[b, h, q, k] = sum(d) Q K; O[b, q, h, d] = sum(k) S V; T = sum over everything of O`, where
/// Q is f16 and is widened.
fn contractions() -> Contractions {
    let mut g = Graph::default();
    let e = &mut g.env;
    let (_, m) = param(e, "M");
    let lens = extent_fn(e, "lens", &[m]);
    let a0 = e.pool.arg(0);
    let len = e.pool.call(lens, [a0]);
    let (h, d) = (e.pool.int(2), e.pool.int(5));
    let q = tensor(e, "Q", ScalarType::F16, Role::Input, &[m, len, h, d]);
    let k = tensor(e, "K", ScalarType::F32, Role::Input, &[m, len, h, d]);
    let v = tensor(e, "V", ScalarType::F32, Role::Input, &[m, len, h, d]);
    let s = tensor(e, "S", ScalarType::F64, Role::Output, &[m, h, len, len]);
    let o = tensor(e, "O", ScalarType::F64, Role::Output, &[m, len, h, d]);
    let t = tensor(e, "T", ScalarType::F64, Role::Output, &[]);
    let (db, vb) = dim(e, "b", m);
    let len = e.pool.call(lens, [vb]);
    let ((dq, vq), (dk, vk)) = (dim(e, "q", len), dim(e, "k", len));
    let ((dh, vh), (dd, vd)) = (dim(e, "h", h), dim(e, "d", d));
    let qv = e.load(q, [vb, vq, vh, vd]);
    let qv = e.pool.cast(ScalarType::F32, qv);
    let kv = e.load(k, [vb, vk, vh, vd]);
    let product = e.pool.mul(qv, kv);
    let sv = e.load(s, [vb, vh, vq, vk]);
    let vv = e.load(v, [vb, vk, vh, vd]);
    let vv = e.pool.cast(ScalarType::F64, vv);
    let mixed = e.pool.mul(sv, vv);
    let ov = e.load(o, [vb, vq, vh, vd]);
    op(&mut g, s, &[db, dh, dq, dk], &[dd], Some(Combiner::Sum), product);
    op(&mut g, o, &[db, dq, dh, dd], &[dk], Some(Combiner::Sum), mixed);
    op(&mut g, t, &[], &[db, dq, dh, dd], Some(Combiner::Sum), ov);
    g.outputs = vec![s, o, t];
    Contractions { g, lens, inputs: [q, k, v], outputs: [s, o, t] }
}

#[test]
fn contractions_agree_with_plain_loops() {
    let Contractions { g, lens, inputs, outputs } = contractions();
    let lengths = [0usize, 3, 270, 0, 1, 31];
    let total: usize = lengths.iter().sum();
    let data: Vec<Vec<f64>> =
        (0..3).map(|t| (0..total * 10).map(|i| ((i * (t + 3)) % 7) as f64 - 3.0).collect()).collect();
    let extents: Vec<i64> = lengths.iter().map(|&l| l as i64).collect();
    let given: Vec<_> = inputs.iter().zip(&data).map(|(&t, v)| (t, Data::F64(v.clone()))).collect();
    let b = batch(&[6], &[(lens, &extents)], &given);
    let whole = run_both(&g, &b);

    let (mut s, mut o) = (Vec::new(), Vec::new());
    let mut first = 0;
    for n in lengths {
        let at = |t: usize, i: usize, h: usize, d: usize| data[t][((first + i) * 2 + h) * 5 + d];
        let score = |h, q, k| (0..5).map(|d| at(0, q, h, d) * at(1, k, h, d)).sum::<f64>();
        for h in 0..2 {
            s.extend((0..n).flat_map(|q| (0..n).map(move |k| (q, k))).map(|(q, k)| score(h, q, k)));
        }
        for (q, h, d) in (0..n).flat_map(|q| (0..2).flat_map(move |h| (0..5).map(move |d| (q, h, d)))) {
            o.push((0..n).map(|k| score(h, q, k) * at(2, k, h, d)).sum::<f64>());
        }
        first += n;
    }
    let sum: f64 = o.iter().sum();
    assert!(values(&whole, outputs[0]) == s && values(&whole, outputs[1]) == o);
    assert_eq!(values(&whole, outputs[2]), [sum]);

    let mut part_graph = g;
    part_graph.outputs.truncate(2);
    let part = run_graph(&part_graph, &b, &Options { only_outer: Some(4), ..Options::default() }).unwrap();
    for (t, all) in [(outputs[0], &s), (outputs[1], &o)] {
        let some = part.output(t).unwrap();
        assert_eq!(some.outer, Some(vec![0, 1, 3, 5]));
        let picked: Vec<f64> = some.ranges.iter().flat_map(|r| all[r.clone()].to_vec()).collect();
        assert!(values(&part, t) == picked);
    }
}
