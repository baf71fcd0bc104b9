//! Evaluating a few outermost indices only.

use super::*;

/// `T[b, i] = A[b, i] + 1; S[b] = sum over i of T[b, i]; R[b] = S[b] + sum over c of S[c]`
fn program() -> (Graph, UfId, TensorId, [TensorId; 3]) {
    let mut g = Graph::default();
    let e = &mut g.env;
    let (_, m) = param(e, "M");
    let lens = extent_fn(e, "lens", &[m]);
    let a0 = e.pool.arg(0);
    let len = e.pool.call(lens, [a0]);
    let a = tensor(e, "A", ScalarType::F64, Role::Input, &[m, len]);
    let t = tensor(e, "T", ScalarType::F64, Role::Output, &[m, len]);
    let s = tensor(e, "S", ScalarType::F64, Role::Temp, &[m]);
    let u = tensor(e, "U", ScalarType::F64, Role::Output, &[m]);
    let (db, vb) = dim(e, "b", m);
    let len_b = e.pool.call(lens, [vb]);
    let (di, vi) = dim(e, "i", len_b);
    let one = e.pool.lit(crate::types::Literal::float(ScalarType::F64, 1.0));
    let av = e.load(a, [vb, vi]);
    let plus = e.pool.add(av, one);
    let tv = e.load(t, [vb, vi]);
    let sv = e.load(s, [vb]);
    let doubled = e.pool.add(sv, sv);
    op(&mut g, t, &[db, di], &[], None, plus);
    op(&mut g, s, &[db], &[di], Some(Combiner::Sum), tv);
    op(&mut g, u, &[db], &[], None, doubled);
    g.outputs = vec![t, u];
    (g, lens, a, [t, s, u])
}

#[test]
fn slices_agree_with_the_whole() {
    let (g, lens, a, [t, _, u]) = program();
    let lengths: Vec<i64> = (0..50).map(|b| (b * 7) % 11).collect();
    let n: i64 = lengths.iter().sum();
    let b = batch(&[50], &[(lens, &lengths)], &[(a, floats(n as usize, |i| (i % 13) as f64))]);
    let whole = run_both(&g, &b);
    for rows in [1, 3, 7, 50, 60] {
        for threads in [1, 2] {
            let part = run_graph(&g, &b, &Options { only_outer: Some(rows), threads, ..Options::default() }).unwrap();
            for out in [t, u] {
                let (all, some) = (values(&whole, out), part.output(out).unwrap());
                assert_eq!(some.outer.as_ref().map(Vec::len), Some(rows.min(50)));
                let picked: Vec<f64> = some.ranges.iter().flat_map(|r| all[r.clone()].to_vec()).collect();
                assert_eq!(values(&part, out), picked);
            }
        }
    }
}

#[test]
fn an_index_of_another_kind_needs_all() {
    let (mut g, lens, a, [t, s, _]) = program();
    let e = &mut g.env;
    let m = e.tensors[s].dims[0].extent;
    let r = tensor(e, "R", ScalarType::F64, Role::Output, &[m]);
    let (dx, vx) = dim(e, "x", m);
    let (dc, vc) = dim(e, "c", m);
    let (sx, sc) = (e.load(s, [vx]), e.load(s, [vc]));
    let both = e.pool.add(sx, sc);
    op(&mut g, r, &[dx], &[dc], Some(Combiner::Sum), both);
    g.outputs = vec![r, t];
    let b = batch(&[4], &[(lens, &[1, 0, 2, 3])], &[(a, floats(6, |i| i as f64))]);
    let whole = run_both(&g, &b);
    let part = run_graph(&g, &b, &Options { only_outer: Some(2), ..serial() }).unwrap();
    let all = values(&whole, r);
    assert_eq!(values(&part, r), [all[0], all[3]]);
    // T is needed whole by S, which R needs whole, so all of it is at hand.
    assert_eq!((part.output(t).unwrap().outer.clone(), values(&part, t)), (None, values(&whole, t)));
}
