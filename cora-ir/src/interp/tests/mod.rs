//! Tests of the interpreters, on programs built by hand.

mod atomics;
mod beside;
mod boxes;
mod contractions;
mod copies;
mod graph;
mod grids;
mod loops;
mod oracle;
mod partial;
mod speed;
mod storage;

use crate::env::{Dim, Env, Param, Role, Scope, Tensor, TensorDim, UfDef};
use crate::graph::{Graph, Op};
use crate::ids::{DimId, ExprId, ParamId, TensorId, UfId};
use crate::interp::{Batch, Data, InterpError, Options, Results, run_graph};
use crate::types::{Combiner, ScalarType};
use rustc_hash::FxHashMap;

/// A parameter in `0..=1 << 20`.
fn param(env: &mut Env, name: &str) -> (ParamId, ExprId) {
    let p = env.params.push(Param { name: name.into(), lo: 0, hi: 1 << 20 });
    (p, env.pool.param(p))
}

/// An extent function with values in `0..=1 << 20`.
fn extent_fn(env: &mut Env, name: &str, domain: &[ExprId]) -> UfId {
    let (lo, hi) = (env.pool.int(0), env.pool.int(1 << 20));
    env.uf(name, domain.to_vec(), UfDef::Extent { lo, hi })
}

/// A dimension and the expression of its variable.
fn dim(env: &mut Env, name: &str, extent: ExprId) -> (DimId, ExprId) {
    let var = env.new_var(name);
    let d = env.dims.push(Dim { name: name.into(), extent, var });
    (d, env.pool.var(var))
}

/// A tensor without padding whose dimension sizes are over `Arg`s.
fn tensor(env: &mut Env, name: &str, ty: ScalarType, role: Role, sizes: &[ExprId]) -> TensorId {
    let dims = sizes.iter().map(|&e| TensorDim::new("d", e)).collect();
    env.tensors.push(Tensor { role, ..Tensor::temp(name, ty, dims) })
}

fn op(g: &mut Graph, t: TensorId, spatial: &[DimId], reduce: &[DimId], combiner: Option<Combiner>, value: ExprId) {
    let combiner = combiner.map(crate::Reduction::Op);
    g.ops.push(Op { tensor: t, spatial: spatial.to_vec(), reduce: reduce.to_vec(), combiner, value });
}

fn batch(params: &[i64], extents: &[(UfId, &[i64])], inputs: &[(TensorId, Data)]) -> Batch {
    Batch {
        params: params.to_vec(),
        extents: extents.iter().map(|(f, v)| (*f, v.to_vec())).collect(),
        inputs: inputs.iter().cloned().collect::<FxHashMap<_, _>>(),
    }
}

fn floats(n: usize, f: impl Fn(usize) -> f64) -> Data {
    Data::F64((0..n).map(f).collect())
}

fn serial() -> Options {
    Options { threads: 1, ..Options::default() }
}

/// Runs on one thread and on two; both must agree.
fn run_both(g: &Graph, b: &Batch) -> Results {
    let one = run_graph(g, b, &serial()).unwrap_or_else(|e| panic!("{e}"));
    let two = run_graph(g, b, &Options { threads: 2, ..Options::default() }).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
    one
}

fn values(r: &Results, t: TensorId) -> Vec<f64> {
    match r.output(t).map(|o| &o.data) {
        Some(Data::F64(v)) => v.clone(),
        Some(Data::I64(v)) => v.iter().map(|&x| x as f64).collect(),
        None => panic!("no such output"),
    }
}

#[test]
fn levels_find_every_index_of_a_ragged_box() {
    use crate::interp::levels::{LevelExtent, Levels};
    let mut levels = Levels::scalar();
    let push = |l: &mut Levels, depends, at: &mut dyn FnMut(&[i64]) -> Result<i64, InterpError>| {
        assert_eq!(l.push(LevelExtent { at, depends }, 1000), Ok(Some(())));
    };
    push(&mut levels, 0, &mut |_| Ok(4));
    push(&mut levels, 1, &mut |i| Ok([3, 0, -2, 1][i[0] as usize]));
    push(&mut levels, 0, &mut |_| Ok(2));
    push(&mut levels, 2, &mut |i| Ok(i[0] + i[1]));
    let mut seen = 0;
    let visited = levels.visit(4, &mut |index, at| {
        assert_eq!((levels.position(index), levels.index_of(at)), (Some(seen), index.to_vec()));
        seen += 1;
        Ok(())
    });
    assert_eq!((visited, seen), (Ok(()), levels.total));
    assert_eq!(levels.position(&[1, 0, 0, 0]), None);
    assert_eq!(levels.outer_start(3) - levels.outer_start(0), 2 * (1 + 2));
}

#[test]
fn functions_follow_their_definitions() {
    use crate::interp::context::Context;
    use crate::interp::error::Stage;
    let mut env = Env::default();
    let (_, m) = param(&mut env, "M");
    let lens = extent_fn(&mut env, "lens", &[m]);
    let a0 = env.pool.arg(0);
    let body = env.pool.call(lens, [a0]);
    let row = env.uf("row", vec![m], UfDef::PrefixSum { body });
    let total = env.pool.call(row, [m]);
    let outer = env.uf("outer", vec![total], UfDef::Search { sum: row });
    let longest = env.uf("longest", vec![m], UfDef::Max { body });
    let order = env.uf("order", vec![m], UfDef::SortDesc { key: body });
    let b = batch(&[5], &[(lens, &[0, 3, 0, 2, 0])], &[]);
    let mut c = Context::new(&env, &b, &serial(), Stage::Graph).unwrap();
    for f in [row, outer, longest, order] {
        c.ready(f).unwrap();
    }
    let all = |f, n: i64| (0..n).map(|i| c.functions.get(f, &[i])).collect::<Vec<_>>();
    let some = |v: &[i64]| v.iter().map(|&x| Some(x)).collect::<Vec<_>>();
    assert_eq!(all(row, 6), some(&[0, 0, 3, 3, 5, 5]));
    assert_eq!(all(outer, 5), some(&[1, 1, 1, 3, 3]));
    assert_eq!(all(order, 5), some(&[1, 3, 0, 2, 4]));
    assert_eq!(c.functions.get(longest, &[]), Some(3));
    assert_eq!([c.functions.get(outer, &[5]), c.functions.get(row, &[6]), c.functions.get(outer, &[-1])], [None; 3]);
}

#[test]
fn erf_is_accurate() {
    use crate::interp::ops::erf;
    for (x, y) in
        [(0.0, 0.0), (0.5, 0.520_499_877_813_046_5), (1.0, 0.842_700_792_949_714_9), (-2.5, -0.999_593_047_982_555)]
    {
        assert!((erf(x) - y).abs() < 1e-15, "{x}");
    }
    assert!(erf(f64::NAN).is_nan() && erf(9.0) == 1.0);
}
