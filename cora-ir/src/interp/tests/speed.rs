//! How fast the reference is, on a matrix product; in a debug build only that it is right.

use super::*;
use crate::interp::run_loops;
use crate::loops::{Block, BlockRole, For, LoopKind, LoopModule, Stmt};
use std::time::Instant;

/// `C[i, j] = sum over k of A[i, k] * B[k, j]`, or `B[j, k]` if `transposed`.
fn matmul(transposed: bool) -> (Graph, [TensorId; 3]) {
    let mut g = Graph::default();
    let e = &mut g.env;
    let (m, n, k) = (param(e, "M").1, param(e, "N").1, param(e, "K").1);
    let a = tensor(e, "A", ScalarType::F32, Role::Input, &[m, k]);
    let b = tensor(e, "B", ScalarType::F32, Role::Input, &if transposed { [n, k] } else { [k, n] });
    let c = tensor(e, "C", ScalarType::F32, Role::Output, &[m, n]);
    let ((di, vi), (dj, vj), (dk, vk)) = (dim(e, "i", m), dim(e, "j", n), dim(e, "k", k));
    let x = e.load(a, [vi, vk]);
    let y = e.load(b, if transposed { [vj, vk] } else { [vk, vj] });
    let term = e.pool.mul(x, y);
    op(&mut g, c, &[di, dj], &[dk], Some(Combiner::Sum), term);
    g.outputs = vec![c];
    (g, [a, b, c])
}

#[test]
fn matmul_speed() {
    let (m, n, k) = if cfg!(debug_assertions) { (40, 300, 70) } else { (1000, 2000, 500) };
    for (transposed, threads) in [(false, 1), (false, 2), (true, 1), (true, 2)] {
        let (g, [a, b, c]) = matmul(transposed);
        let input = |rows: usize, cols: usize| floats(rows * cols, |i| ((i * 7 + i / 3) % 11) as f64 - 5.0);
        let (x, y) = (input(m, k), if transposed { input(n, k) } else { input(k, n) });
        let data = batch(&[m as i64, n as i64, k as i64], &[], &[(a, x.clone()), (b, y.clone())]);
        let start = Instant::now();
        let r = run_graph(&g, &data, &Options { threads, ..Options::default() }).unwrap();
        let ns = start.elapsed().as_nanos() as f64 / (m * n * k) as f64;
        eprintln!("matmul {m}x{n}x{k} transposed={transposed} threads={threads}: {ns:.3} ns/MAC");
        let got = values(&r, c);
        let (Data::F64(x), Data::F64(y)) = (&x, &y) else { unreachable!() };
        for (i, j) in [(0, 0), (m - 1, n - 1), (m / 2, n / 3)] {
            let yv = |l: usize| if transposed { y[j * k + l] } else { y[l * n + j] };
            assert_eq!(got[i * n + j], (0..k).map(|l| x[i * k + l] * yv(l)).sum::<f64>());
        }
    }
}

#[test]
fn loop_dialect_speed() {
    // The naive nest of the same product: the reduction in strips, B with a stride.
    let n: usize = if cfg!(debug_assertions) { 30 } else { 400 };
    for spatial_inside in [false, true] {
        let mut m = LoopModule::default();
        let e = &mut m.env;
        let size = e.pool.int(n as i64);
        let [a, b] = ["A", "B"].map(|s| tensor(e, s, ScalarType::F32, Role::Input, &[size, size]));
        let c = tensor(e, "C", ScalarType::F32, Role::Output, &[size, size]);
        let [i, j, k] = ["i", "j", "k"].map(|s| e.new_var(s));
        let [vi, vj, vk] = [i, j, k].map(|v| e.pool.var(v));
        let (x, y) = (e.load(a, [vi, vk]), e.load(b, [vk, vj]));
        let term = e.pool.mul(x, y);
        let zero = e.identity(Combiner::Sum, ScalarType::F32);
        let block = |role, value| {
            let (iters, predicate, index) = (Vec::new(), Vec::new(), vec![vi, vj]);
            Stmt::Block(Block {
                stage: c,
                role,
                continues: false,
                atomic: false,
                iters,
                predicate,
                tensor: c,
                index,
                value,
            })
        };
        let nest = |var, body| {
            Stmt::For(For {
                var,
                stage: c,
                extent: size,
                kind: LoopKind::Serial,
                prefetch: vec![],
                init: false,
                body: vec![body].into(),
            })
        };
        let (init, update) =
            (block(BlockRole::Init, zero), block(BlockRole::Update(crate::Reduction::Op(Combiner::Sum)), term));
        let order = if spatial_inside { [i, k, j] } else { [i, j, k] };
        m.body = vec![nest(i, nest(j, init)), order.into_iter().rev().fold(update, |body, v| nest(v, body))].into();
        let input = |p: usize| floats(n * n, |i| ((i * p) % 11) as f64 - 5.0);
        let data = batch(&[], &[], &[(a, input(3)), (b, input(5))]);
        let start = Instant::now();
        let r = run_loops(&m, &data, &Options::default()).unwrap();
        let ns = start.elapsed().as_nanos() as f64 / (n * n * n) as f64;
        eprintln!("loop dialect matmul {n}, spatial loop inside = {spatial_inside}: {ns:.3} ns/MAC");
        let (Data::F64(x), Data::F64(y)) = (input(3), input(5)) else { unreachable!() };
        let want = (0..n).map(|k| x[2 * n + k] * y[k * n + 7]).sum::<f64>();
        assert_eq!(values(&r, c)[2 * n + 7], want);
    }
}
