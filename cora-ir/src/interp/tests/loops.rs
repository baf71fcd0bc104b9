//! The loop dialect: blocks, predicates, padding, attached tensors, errors.

use super::*;
use crate::ids::VarId;
use crate::interp::{Stage, Use, run_loops};
use crate::loops::{Block, BlockRole, For, Iter, IterKind, LoopKind, LoopModule, Stmt};
use crate::tuple::Reduction;
use crate::types::{BinOp, Literal};

fn for_loop(env: &Env, stage: TensorId, var: ExprId, extent: ExprId, body: Vec<Stmt>) -> Stmt {
    let var = env.pool.as_var(var).unwrap();
    Stmt::For(For { var, stage, extent, kind: LoopKind::Serial, prefetch: vec![], init: false, body: body.into() })
}

fn block(t: TensorId, role: BlockRole, index: &[ExprId], value: ExprId, predicate: &[ExprId]) -> Stmt {
    Stmt::Block(Block {
        stage: t,
        role,
        continues: false,
        atomic: false,
        iters: Vec::new(),
        predicate: predicate.to_vec(),
        tensor: t,
        index: index.to_vec(),
        value,
    })
}

fn new_var(env: &mut Env, name: &str) -> ExprId {
    let v = env.new_var(name);
    env.pool.var(v)
}

fn iter(env: &mut Env, kind: IterKind, extent: ExprId, binding: ExprId) -> (Iter, ExprId) {
    let var: VarId = env.new_var("it");
    (Iter { var, kind, extent, binding }, env.pool.var(var))
}

/// `A[M, lens(b)]`, both sizes' storage rounded up by `pad`; the parts that tests share.
struct Ragged {
    m: LoopModule,
    lens: UfId,
    rows: ExprId,
    a: TensorId,
    b: TensorId,
}

fn ragged(pad: i64) -> Ragged {
    let mut m = LoopModule::default();
    let e = &mut m.env;
    let (_, rows) = param(e, "M");
    let lens = extent_fn(e, "lens", &[rows]);
    let a0 = e.pool.arg(0);
    let len = e.pool.call(lens, [a0]);
    let padded = e.pool.round_up(len, pad);
    let a = tensor(e, "A", ScalarType::F32, Role::Input, &[rows, len]);
    let b = tensor(e, "B", ScalarType::F32, Role::Output, &[rows, len]);
    e.tensors[a].dims[1].storage = padded;
    e.tensors[b].dims[1].storage = padded;
    Ragged { m, lens, rows, a, b }
}

fn run(m: &LoopModule, b: &Batch) -> Result<Results, InterpError> {
    run_loops(m, b, &Options::default())
}

const LENGTHS: [i64; 6] = [0, 5, 0, 600, 1, 0];

fn input() -> Data {
    floats(606, |i| i as f64 - 100.0)
}

fn doubled() -> Vec<f64> {
    (0..606).map(|i| 2.0 * (f64::from(i) - 100.0)).collect()
}

#[test]
fn a_fused_loop_with_a_search() {
    for pad in [1, 4] {
        let Ragged { mut m, lens, rows, a, b } = ragged(pad);
        let e = &mut m.env;
        let a0 = e.pool.arg(0);
        let body = e.pool.call(lens, [a0]);
        let row = e.uf("row", vec![rows], crate::env::UfDef::PrefixSum { body });
        let total = e.pool.call(row, [rows]);
        let outer = e.uf("outer", vec![total], crate::env::UfDef::Search { sum: row });
        let f = new_var(e, "f");
        let o = e.pool.call(outer, [f]);
        let start = e.pool.call(row, [o]);
        let i = e.pool.sub(f, start);
        let (it_b, vb) = iter(e, IterKind::Spatial, rows, o);
        let len = e.pool.call(lens, [vb]);
        let (it_i, vi) = iter(e, IterKind::Spatial, len, i);
        let x = e.load(a, [vb, vi]);
        let two = e.pool.lit(Literal::float(ScalarType::F32, 2.0));
        let y = e.pool.mul(two, x);
        let Stmt::Block(mut leaf) = block(b, BlockRole::Compute, &[vb, vi], y, &[]) else { unreachable!() };
        leaf.iters = vec![it_b, it_i];
        m.body = vec![for_loop(&m.env, b, f, total, vec![Stmt::Block(leaf)])].into();
        let data = batch(&[6], &[(lens, &LENGTHS)], &[(a, input())]);
        assert_eq!(values(&run(&m, &data).unwrap(), b), doubled());
        let empty = batch(&[0], &[(lens, &[])], &[(a, floats(0, |_| 0.0))]);
        assert_eq!(values(&run(&m, &empty).unwrap(), b), []);
    }
}

/// `B[b, o * 8 + i] = 2 * A[b, o * 8 + i]` for `i` in `0..8`, with or without the tail's predicate.
fn tiled(masked: bool, pad: i64) -> Ragged {
    let mut r = ragged(pad);
    let e = &mut r.m.env;
    let (vb, o, i) = (new_var(e, "b"), new_var(e, "o"), new_var(e, "i"));
    let len = e.pool.call(r.lens, [vb]);
    let tiles = e.pool.ceil_div(len, 8);
    let eight = e.pool.int(8);
    let at = e.pool.mul(o, eight);
    let at = e.pool.add(at, i);
    let inside = e.pool.lt(at, len);
    let x = e.load(r.a, [vb, at]);
    let y = e.pool.add(x, x);
    let predicate = if masked { vec![inside] } else { vec![] };
    let leaf = block(r.b, BlockRole::Compute, &[vb, at], y, &predicate);
    let e = &r.m.env;
    let inner = for_loop(e, r.b, i, eight, vec![leaf]);
    let tile = for_loop(e, r.b, o, tiles, vec![inner]);
    r.m.body = vec![for_loop(e, r.b, vb, r.rows, vec![tile])].into();
    r
}

#[test]
fn masks_and_padding() {
    for (masked, pad) in [(true, 1), (true, 8), (false, 8), (false, 16)] {
        let r = tiled(masked, pad);
        let data = batch(&[6], &[(r.lens, &LENGTHS)], &[(r.a, input())]);
        assert_eq!(values(&run(&r.m, &data).unwrap(), r.b), doubled(), "masked {masked} pad {pad}");
    }
    let r = tiled(false, 2);
    let data = batch(&[6], &[(r.lens, &LENGTHS)], &[(r.a, input())]);
    let want = InterpError::OutOfBounds { stage: Stage::Loop, tensor: "A".into(), index: vec![1, 6], write: false };
    assert_eq!(run(&r.m, &data), Err(want));
}

/// `S[b] = sum over i of A[b, i]` as init and update, over a loop padded to a multiple of 4.
fn summed(masked: bool) -> (Ragged, TensorId) {
    let mut r = ragged(4);
    let e = &mut r.m.env;
    let s = tensor(e, "S", ScalarType::F32, Role::Output, &[r.rows]);
    e.tensors[r.b].role = Role::Temp;
    let (vb, i) = (new_var(e, "b"), new_var(e, "i"));
    let len = e.pool.call(r.lens, [vb]);
    let padded = e.pool.round_up(len, 4);
    let zero = e.identity(Combiner::Sum, ScalarType::F32);
    let x = e.load(r.a, [vb, i]);
    let inside = e.pool.lt(i, len);
    let init = block(s, BlockRole::Init, &[vb], zero, &[]);
    let predicate = if masked { vec![inside] } else { vec![] };
    let update = block(s, BlockRole::Update(Reduction::Op(Combiner::Sum)), &[vb], x, &predicate);
    let e = &r.m.env;
    let inner = for_loop(e, s, i, padded, vec![update]);
    r.m.body = vec![for_loop(e, s, vb, r.rows, vec![init, inner])].into();
    (r, s)
}

#[test]
fn reductions_must_not_observe_padding() {
    let (r, s) = summed(true);
    let data = batch(&[6], &[(r.lens, &LENGTHS)], &[(r.a, input())]);
    let v: Vec<f64> = (0..606).map(|i| f64::from(i) - 100.0).collect();
    let want = [0.0, v[..5].iter().sum(), 0.0, v[5..605].iter().sum(), v[605], 0.0];
    assert_eq!(values(&run(&r.m, &data).unwrap(), s), want);
    let (r, _) = summed(false);
    let data = batch(&[6], &[(r.lens, &LENGTHS)], &[(r.a, input())]);
    let error = run(&r.m, &data).unwrap_err();
    assert!(
        matches!(&error, InterpError::Undefined { usage: Use::Output, name, index, .. } if name == "S" && index == &[1]),
        "{error}"
    );
}

/// Per row: `T[i] = A[b, i]` in a local tensor of just that row's size, then `B[b, i] = T[i] + T[0]`.
/// With `stale`, T is filled in the first row only.
#[test]
fn attached_tensors_are_new_in_each_iteration() {
    for stale in [false, true] {
        let Ragged { mut m, lens, rows, a, b } = ragged(1);
        let e = &mut m.env;
        let (vb, i, j) = (new_var(e, "b"), new_var(e, "i"), new_var(e, "j"));
        let len = e.pool.call(lens, [vb]);
        let t = tensor(e, "T", ScalarType::F32, Role::Temp, &[len]);
        e.tensors[t].scope = Scope::Local;
        let x = e.load(a, [vb, i]);
        let zero = e.pool.int(0);
        let (tj, t0) = (e.load(t, [j]), e.load(t, [zero]));
        let y = e.pool.add(tj, t0);
        let one = e.pool.int(1);
        let first = e.pool.bin(BinOp::Eq, vb, one);
        let fill = block(t, BlockRole::Compute, &[i], x, if stale { std::slice::from_ref(&first) } else { &[] });
        let read = block(b, BlockRole::Compute, &[vb, j], y, &[]);
        let e = &m.env;
        let body = vec![for_loop(e, t, i, len, vec![fill]), for_loop(e, b, j, len, vec![read])];
        m.body = vec![for_loop(e, b, vb, rows, body)].into();
        let data = batch(&[6], &[(lens, &[0, 2, 0, 300, 1, 0])], &[(a, floats(303, |i| i as f64))]);
        let got = run(&m, &data);
        if stale {
            assert!(
                matches!(&got, Err(InterpError::Undefined { usage: Use::Output, index, .. }) if index == &[3, 0]),
                "{got:?}"
            );
        } else {
            let row = |lo: i32, hi: i32| (lo..hi).map(move |i| f64::from(i + lo));
            let want: Vec<f64> = row(0, 2).chain(row(2, 302)).chain(row(302, 303)).collect();
            assert_eq!(values(&got.unwrap(), b), want);
        }
    }
}

#[test]
fn undefined_values_decide_nothing() {
    // K[i] (i32) is written only for even i, then used as a condition, an index or a guarded value.
    for usage in [Some(Use::Condition), Some(Use::Index), None] {
        let mut m = LoopModule::default();
        let e = &mut m.env;
        let (_, n) = param(e, "N");
        let k = tensor(e, "K", ScalarType::I32, Role::Temp, &[n]);
        let b = tensor(e, "B", ScalarType::I32, Role::Output, &[n]);
        let (i, j) = (new_var(e, "i"), new_var(e, "j"));
        let two = e.pool.int(2);
        let parity = e.pool.modulo(i, two);
        let zero = e.pool.int(0);
        let even = e.pool.bin(BinOp::Eq, parity, zero);
        let value = e.pool.cast(ScalarType::I32, i);
        let fill = block(k, BlockRole::Compute, &[i], value, &[even]);
        let kj = e.load(k, [j]);
        let none = e.pool.lit(Literal::int(ScalarType::I32, 0));
        let nothing = e.pool.lit(Literal::int(ScalarType::I32, -1));
        let read = match usage {
            Some(Use::Condition) => {
                let positive = e.pool.lt(none, kj);
                block(b, BlockRole::Compute, &[j], kj, &[positive])
            }
            Some(_) => {
                let at = e.pool.cast(ScalarType::Index, kj);
                block(b, BlockRole::Compute, &[at], kj, &[])
            }
            None => {
                let parity = e.pool.modulo(j, two);
                let odd = e.pool.bin(BinOp::Ne, parity, zero);
                let even = e.pool.bin(BinOp::Eq, parity, zero);
                let chosen = e.pool.select(odd, nothing, kj);
                let guarded = e.pool.load_guarded((k, 0), ScalarType::I32, [j], Some((even, nothing)));
                let sum = e.pool.add(chosen, guarded);
                block(b, BlockRole::Compute, &[j], sum, &[])
            }
        };
        let e = &m.env;
        m.body = vec![for_loop(e, k, i, n, vec![fill]), for_loop(e, b, j, n, vec![read])].into();
        let got = run(&m, &batch(&[5], &[], &[]));
        match usage {
            Some(u) => {
                let error = got.unwrap_err();
                assert!(
                    matches!(&error, InterpError::Undefined { usage, origin: Some(o), .. } if *usage == u && o == "K[1]"),
                    "{error}"
                );
            }
            None => assert_eq!(values(&got.unwrap(), b), [0.0, -2.0, 4.0, -2.0, 8.0]),
        }
    }
}

#[test]
fn updates_of_many_elements_and_negative_extents() {
    // H[i % 3] += 1 over 1000 iterations; then a loop of extent -1 that would write outside.
    let mut m = LoopModule::default();
    let e = &mut m.env;
    let three = e.pool.int(3);
    let h = tensor(e, "H", ScalarType::I8, Role::Output, &[three]);
    let (i, j, k) = (new_var(e, "i"), new_var(e, "j"), new_var(e, "k"));
    let thousand = e.pool.int(1000);
    let minus = e.pool.int(-1);
    let zero = e.identity(Combiner::Sum, ScalarType::I8);
    let one = e.pool.lit(Literal::int(ScalarType::I8, 1));
    let bucket = e.pool.modulo(i, three);
    let init = block(h, BlockRole::Init, &[j], zero, &[]);
    let count = block(h, BlockRole::Update(Reduction::Op(Combiner::Sum)), &[bucket], one, &[]);
    let wild = block(h, BlockRole::Compute, &[thousand], one, &[]);
    let e = &m.env;
    m.body = vec![
        for_loop(e, h, j, three, vec![init]),
        for_loop(e, h, i, thousand, vec![count]),
        for_loop(e, h, k, minus, vec![wild.clone()]),
    ]
    .into();
    let wrapped = f64::from(334i32 as i8);
    assert_eq!(values(&run(&m, &Batch::default()).unwrap(), h), [wrapped, wrapped - 1.0, wrapped - 1.0]);
    m.body.push(wild);
    let want = InterpError::OutOfBounds { stage: Stage::Loop, tensor: "H".into(), index: vec![1000], write: true };
    assert_eq!(run(&m, &Batch::default()), Err(want));
}

#[test]
fn a_loop_that_reads_what_it_writes_runs_in_order() {
    // P[i + 1] = P[i] + 1, and an output that is never written
    let mut m = LoopModule::default();
    let e = &mut m.env;
    let n = e.pool.int(400);
    let p = tensor(e, "P", ScalarType::F32, Role::Output, &[n]);
    let i = new_var(e, "i");
    let (zero, one) = (e.pool.int(0), e.pool.int(1));
    let next = e.pool.add(i, one);
    let old = e.load(p, [i]);
    let lit = e.pool.lit(Literal::float(ScalarType::F32, 1.0));
    let value = e.pool.add(old, lit);
    let start = block(p, BlockRole::Compute, &[zero], lit, &[]);
    let step = block(p, BlockRole::Compute, &[next], value, &[]);
    let upto = m.env.pool.int(399);
    m.body = vec![for_loop(&m.env, p, i, upto, vec![step])].into();
    let error = run(&m, &Batch::default()).unwrap_err();
    assert!(matches!(&error, InterpError::Undefined { usage: Use::Output, index, .. } if index == &[0]), "{error}");
    m.body.insert(0, start);
    assert_eq!(values(&run(&m, &Batch::default()).unwrap(), p), (1..=400).map(f64::from).collect::<Vec<_>>());
}

/// An index stands for a mathematical integer: one outside 64 bits has no value, which matters where it is used.
#[test]
fn indices_outside_64_bits_have_no_value() {
    let module = |rows: &str, value: &str| {
        let text = format!(
            "loop.module @m {{
               param N in 0..=10
               tensor @Y[i: N] : i32 output
               for %i in 0..N stage @Y {{
                 for %j in 0..{rows} stage @Y {{
                   block @Y compute {{ spatial %x < N = %i + %j @Y[%x] = {value} }}
                 }}
               }}
             }}"
        );
        crate::text::parse_loops(&text).unwrap_or_else(|d| panic!("{d}"))
    };
    let y = |m: &LoopModule| m.env.tensor_named("Y").unwrap();
    for (value, want) in [
        // Not chosen where it has no value.
        ("i32(select(%x < 2, %x * 9223372036854775807, 7) % 5)", [0.0, 2.0, 2.0, 2.0, 2.0]),
        ("i32(select(2 <= %x, 3, (%x + 1) // (%x - 1)))", [-1.0, 0.0, 3.0, 3.0, 3.0]),
    ] {
        let m = module("1", value);
        let got = run(&m, &batch(&[5], &[], &[])).unwrap_or_else(|e| panic!("{value}: {e}"));
        assert_eq!(values(&got, y(&m)), want, "{value}");
    }
    for (rows, value, usage) in [
        ("1", "i32(%x * 9223372036854775807 % 5)", Use::Output),
        ("1", "i32((0 - 2 - %x * 9223372036854775807) % 5)", Use::Output),
        ("1 + (%i + 1) * 4611686018427387904 // 4611686018427387904 // 9", "1:i32", Use::Extent),
    ] {
        let m = module(rows, value);
        let error = run(&m, &batch(&[5], &[], &[])).unwrap_err();
        assert!(
            matches!(&error, InterpError::Undefined { usage: u, origin: Some(o), .. }
                if *u == usage && o == "an index outside 64 bits"),
            "{value}: {error}"
        );
    }
}
