//! The op graph: meanings of operators on ragged tensors.

use super::*;
use crate::types::{BinOp, Literal, UnOp};

#[test]
fn elementwise_and_reduction_over_ragged_rows() {
    let mut g = Graph::default();
    let e = &mut g.env;
    let (_, m) = param(e, "M");
    let lens = extent_fn(e, "lens", &[m]);
    let a0 = e.pool.arg(0);
    let len = e.pool.call(lens, [a0]);
    let a = tensor(e, "A", ScalarType::F32, Role::Input, &[m, len]);
    let b = tensor(e, "B", ScalarType::F32, Role::Output, &[m, len]);
    let s = tensor(e, "S", ScalarType::F32, Role::Output, &[m]);
    let x = tensor(e, "X", ScalarType::F32, Role::Output, &[m]);
    let (db, vb) = dim(e, "b", m);
    let len_b = e.pool.call(lens, [vb]);
    let (di, vi) = dim(e, "i", len_b);
    let two = e.pool.lit(Literal::float(ScalarType::F32, 2.0));
    let ai = e.load(a, [vb, vi]);
    let twice = e.pool.mul(two, ai);
    let bi = e.load(b, [vb, vi]);
    op(&mut g, b, &[db, di], &[], None, twice);
    op(&mut g, s, &[db], &[di], Some(Combiner::Sum), bi);
    op(&mut g, x, &[db], &[di], Some(Combiner::Max), bi);
    g.outputs = vec![b, s, x];
    let lengths = [0, 300, 0, 2, 1, 0];
    let input = floats(303, |i| i as f64 * 0.5 - 20.0);
    let r = run_both(&g, &batch(&[6], &[(lens, &lengths)], &[(a, input.clone())]));
    let Data::F64(v) = input else { unreachable!() };
    let doubled: Vec<f64> = v.iter().map(|x| 2.0 * x).collect();
    assert_eq!(values(&r, b), doubled);
    let row = |i: usize| -> &[f64] { [&[], &doubled[..300], &[], &doubled[300..302], &doubled[302..], &[]][i] };
    assert_eq!(values(&r, s), (0..6).map(|i| row(i).iter().sum()).collect::<Vec<f64>>());
    let max = |i: usize| row(i).iter().copied().fold(f64::NEG_INFINITY, f64::max);
    assert_eq!(values(&r, x), (0..6).map(max).collect::<Vec<f64>>());

    // An empty batch, and a batch that does not fit.
    let r = run_both(&g, &batch(&[0], &[(lens, &[])], &[(a, floats(0, |_| 0.0))]));
    assert_eq!(values(&r, s), []);
    let wrong = run_graph(&g, &batch(&[6], &[(lens, &lengths)], &[(a, floats(302, |_| 0.0))]), &serial());
    assert_eq!(wrong, Err(InterpError::Count { name: "A".into(), expected: 303, found: 302 }));
    let wrong = run_graph(&g, &batch(&[1], &[(lens, &[-1])], &[]), &serial());
    assert!(matches!(wrong, Err(InterpError::Range { .. })), "{wrong:?}");
}

#[test]
fn max_and_min_propagate_nan_and_have_identities() {
    let mut g = Graph::default();
    let e = &mut g.env;
    let (_, m) = param(e, "M");
    let lens = extent_fn(e, "lens", &[m]);
    let a0 = e.pool.arg(0);
    let len = e.pool.call(lens, [a0]);
    let a = tensor(e, "A", ScalarType::F64, Role::Input, &[m, len]);
    let outs: Vec<_> =
        Combiner::ALL.into_iter().map(|c| (c, tensor(e, c.name(), ScalarType::F64, Role::Output, &[m]))).collect();
    let (db, vb) = dim(e, "b", m);
    let len_b = e.pool.call(lens, [vb]);
    let (di, vi) = dim(e, "i", len_b);
    let ai = e.load(a, [vb, vi]);
    for &(c, t) in &outs {
        op(&mut g, t, &[db], &[di], Some(c), ai);
        g.outputs.push(t);
    }
    let input = Data::F64(vec![1.0, f64::NAN, 3.0, 4.0, -5.0]);
    let r = run_both(&g, &batch(&[3], &[(lens, &[3, 0, 2])], &[(a, input)]));
    let got: Vec<Vec<f64>> = outs.iter().map(|&(_, t)| values(&r, t)).collect();
    assert!(got.iter().all(|v| v[0].is_nan()));
    let rest: Vec<&[f64]> = got.iter().map(|v| &v[1..]).collect();
    assert_eq!(rest, [&[0.0, -1.0], &[1.0, -20.0], &[f64::NEG_INFINITY, 4.0], &[f64::INFINITY, -5.0]]);
}

#[test]
fn triangular_extents_and_matmul() {
    // L[i, j<=i]; Y[i, n] = sum over j <= i of L[i, j] * X[j, n]
    let mut g = Graph::default();
    let e = &mut g.env;
    let (_, m) = param(e, "M");
    let (_, n) = param(e, "N");
    let one = e.pool.int(1);
    let a0 = e.pool.arg(0);
    let tri = e.pool.add(a0, one);
    let l = tensor(e, "L", ScalarType::F64, Role::Input, &[m, tri]);
    let x = tensor(e, "X", ScalarType::F64, Role::Input, &[m, n]);
    let y = tensor(e, "Y", ScalarType::F64, Role::Output, &[m, n]);
    let z = tensor(e, "Z", ScalarType::F64, Role::Output, &[m]);
    let (di, vi) = dim(e, "i", m);
    let (dn, vn) = dim(e, "n", n);
    let upto = e.pool.add(vi, one);
    let (dj, vj) = dim(e, "j", upto);
    let lij = e.load(l, [vi, vj]);
    let xjn = e.load(x, [vj, vn]);
    let term = e.pool.mul(lij, xjn);
    op(&mut g, y, &[di, dn], &[dj], Some(Combiner::Sum), term);
    op(&mut g, z, &[di], &[dj], Some(Combiner::Sum), lij);
    g.outputs = vec![y, z];
    let (rows, cols) = (37usize, 270usize);
    let at = |i: usize, j: usize| (i * (i + 1) / 2 + j) as f64 % 7.0 - 3.0;
    let xs = |j: usize, n: usize| (j * cols + n) as f64 % 5.0 - 2.0;
    let ls = Data::F64((0..rows).flat_map(|i| (0..=i).map(move |j| at(i, j))).collect());
    let b = batch(&[rows as i64, cols as i64], &[], &[(l, ls), (x, floats(rows * cols, |k| xs(k / cols, k % cols)))]);
    let r = run_both(&g, &b);
    let want: Vec<f64> =
        (0..rows).flat_map(|i| (0..cols).map(move |n| (0..=i).map(|j| at(i, j) * xs(j, n)).sum())).collect();
    assert_eq!(values(&r, y), want);
    assert_eq!(values(&r, z), (0..rows).map(|i| (0..=i).map(|j| at(i, j)).sum()).collect::<Vec<f64>>());
}

#[test]
fn two_level_nests() {
    // words(doc, sent): T[doc, sent, word]; N[doc] = sum over sent, word
    let mut g = Graph::default();
    let e = &mut g.env;
    let (_, m) = param(e, "D");
    let sents = extent_fn(e, "sents", &[m]);
    let (a0, a1) = (e.pool.arg(0), e.pool.arg(1));
    let ns = e.pool.call(sents, [a0]);
    let words = extent_fn(e, "words", &[m, ns]);
    let nw = e.pool.call(words, [a0, a1]);
    let t = tensor(e, "T", ScalarType::F32, Role::Input, &[m, ns, nw]);
    let n = tensor(e, "N", ScalarType::F32, Role::Output, &[m]);
    let w = tensor(e, "W", ScalarType::F32, Role::Output, &[m, ns]);
    let (dd, vd) = dim(e, "doc", m);
    let ns = e.pool.call(sents, [vd]);
    let (ds, vs) = dim(e, "sent", ns);
    let nw = e.pool.call(words, [vd, vs]);
    let (dw, vw) = dim(e, "word", nw);
    let tv = e.load(t, [vd, vs, vw]);
    op(&mut g, n, &[dd], &[ds, dw], Some(Combiner::Sum), tv);
    op(&mut g, w, &[dd, ds], &[dw], Some(Combiner::Sum), tv);
    g.outputs = vec![n, w];
    let b =
        batch(&[4], &[(sents, &[2, 0, 3, 1]), (words, &[1, 2, 0, 4, 0, 3])], &[(t, floats(10, |i| i as f64 + 1.0))]);
    let r = run_both(&g, &b);
    assert_eq!(values(&r, n), [6.0, 0.0, 22.0, 27.0]);
    assert_eq!(values(&r, w), [1.0, 5.0, 0.0, 22.0, 0.0, 27.0]);
}

#[test]
fn gathers_borders_casts_and_integer_widths() {
    let mut g = Graph::default();
    let e = &mut g.env;
    let (_, m) = param(e, "M");
    let v = e.pool.int(5);
    let ids = tensor(e, "ids", ScalarType::I32, Role::Input, &[m]);
    let zero = e.pool.int(0);
    e.tensors[ids].range = Some((zero, v));
    let table = tensor(e, "table", ScalarType::F32, Role::Input, &[v]);
    let picked = tensor(e, "picked", ScalarType::F32, Role::Output, &[m]);
    let shifted = tensor(e, "shifted", ScalarType::F32, Role::Output, &[m]);
    let narrow = tensor(e, "narrow", ScalarType::I8, Role::Output, &[m]);
    let (di, vi) = dim(e, "i", m);
    let id = e.load(ids, [vi]);
    let at = e.pool.cast(ScalarType::Index, id);
    let gathered = e.load(table, [at]);
    op(&mut g, picked, &[di], &[], None, gathered);
    // picked[i - 1], else -1 at the border
    let e = &mut g.env;
    let one = e.pool.int(1);
    let before = e.pool.sub(vi, one);
    let inside = e.pool.lt(zero, vi);
    let border = e.pool.lit(Literal::float(ScalarType::F32, -1.0));
    let guarded = e.pool.load_guarded((picked, 0), ScalarType::F32, [before], Some((inside, border)));
    op(&mut g, shifted, &[di], &[], None, guarded);
    // i8: (ids * 100) wraps
    let e = &mut g.env;
    let small = e.pool.cast(ScalarType::I8, id);
    let hundred = e.pool.lit(Literal::int(ScalarType::I8, 100));
    let wrapped = e.pool.mul(small, hundred);
    op(&mut g, narrow, &[di], &[], None, wrapped);
    g.outputs = vec![picked, shifted, narrow];
    let inputs =
        |ids_: &[i64]| vec![(ids, Data::I64(ids_.to_vec())), (table, Data::F64(vec![0.5, 1.5, 2.5, 3.5, 4.5]))];
    let r = run_both(&g, &batch(&[4], &[], &inputs(&[4, 0, 2, 2])));
    assert_eq!(values(&r, picked), [4.5, 0.5, 2.5, 2.5]);
    assert_eq!(values(&r, shifted), [-1.0, 4.5, 0.5, 2.5]);
    assert_eq!(values(&r, narrow), [f64::from(400i32 as i8), 0.0, f64::from(200i32 as i8), f64::from(200i32 as i8)]);
    let bad = run_graph(&g, &batch(&[2], &[], &inputs(&[1, 5])), &serial());
    assert_eq!(bad, Err(InterpError::Range { name: "ids".into(), index: vec![1], value: 5, lo: 0, hi: 4 }));
    g.env.tensors[ids].range = None;
    let bad = run_graph(&g, &batch(&[2], &[], &inputs(&[1, 5])), &serial());
    assert!(
        matches!(&bad, Err(InterpError::OutOfBounds { tensor, index, write: false, .. }) if tensor == "table" && index == &[5]),
        "{bad:?}"
    );
}

#[test]
fn functions_in_low_precision_and_logic() {
    let mut g = Graph::default();
    let e = &mut g.env;
    let (_, m) = param(e, "M");
    let a = tensor(e, "A", ScalarType::F16, Role::Input, &[m]);
    let b = tensor(e, "B", ScalarType::BF16, Role::Output, &[m]);
    let c = tensor(e, "C", ScalarType::Bool, Role::Output, &[m]);
    let (di, vi) = dim(e, "i", m);
    let x = e.load(a, [vi]);
    let ex = e.pool.un(UnOp::Exp, x);
    let y = e.pool.cast(ScalarType::BF16, ex);
    let zero = e.pool.lit(Literal::float(ScalarType::F16, 0.0));
    let pos = e.pool.lt(zero, x);
    let even = e.pool.int(2);
    let even = e.pool.modulo(vi, even);
    let none = e.pool.int(0);
    let even = e.pool.bin(BinOp::Eq, even, none);
    let both = e.pool.and(pos, even);
    op(&mut g, b, &[di], &[], None, y);
    op(&mut g, c, &[di], &[], None, both);
    g.outputs = vec![b, c];
    let r = run_both(&g, &batch(&[4], &[], &[(a, Data::F64(vec![1.0, 2.0, -1.0, 0.5]))]));
    let want: Vec<f64> = [1.0f64, 2.0, -1.0, 0.5].iter().map(|x| half::bf16::from_f64(x.exp()).to_f64()).collect();
    assert_eq!((values(&r, b), values(&r, c)), (want, vec![1.0, 0.0, 0.0, 0.0]));
}

#[test]
fn a_memory_limit_is_a_typed_error() {
    let mut g = Graph::default();
    let e = &mut g.env;
    let (_, m) = param(e, "M");
    let a = tensor(e, "A", ScalarType::F32, Role::Output, &[m, m]);
    let (di, _) = dim(e, "i", m);
    let (dj, _) = dim(e, "j", m);
    let v = e.pool.lit(Literal::float(ScalarType::F32, 1.0));
    op(&mut g, a, &[di, dj], &[], None, v);
    g.outputs = vec![a];
    let options = Options { max_bytes: 1 << 20, ..serial() };
    let r = run_graph(&g, &batch(&[1 << 20], &[], &[]), &options);
    assert_eq!(r, Err(InterpError::TooLarge { what: "A".into(), limit: 1 << 20 }));
    assert_eq!(values(&run_both(&g, &batch(&[2], &[], &[])), a), [1.0; 4]);
}
