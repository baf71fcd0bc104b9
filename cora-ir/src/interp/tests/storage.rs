//! The storage dialect: tables, offsets, vectors, masks, searches.

use super::*;
use crate::env::UfDef;
use crate::interp::{Stage, Use, run_storage};
use crate::loops::LoopKind;
use crate::storage::{Buffer, Kernel, Stmt, StorageModule, Table};
use crate::types::{BinOp, Literal};

fn for_loop(env: &Env, var: ExprId, extent: ExprId, body: Vec<Stmt>) -> Stmt {
    Stmt::For { var: env.pool.as_var(var).unwrap(), extent, kind: LoopKind::Serial, body }
}

fn new_var(env: &mut Env, name: &str) -> ExprId {
    let v = env.new_var(name);
    env.pool.var(v)
}

/// `A[M, lens(b)]` and `B` alike, packed, with tables for `lens` and its prefix sum.
struct Packed {
    m: StorageModule,
    lens: UfId,
    rows: ExprId,
    a: TensorId,
    b: TensorId,
    /// The tables' tensors.
    len: TensorId,
    row: TensorId,
}

fn packed(b_rank: usize) -> Packed {
    let mut m = StorageModule::default();
    let e = &mut m.env;
    let (_, rows) = param(e, "M");
    let lens = extent_fn(e, "lens", &[rows]);
    let a0 = e.pool.arg(0);
    let body = e.pool.call(lens, [a0]);
    let row_uf = e.uf("row", vec![rows], UfDef::PrefixSum { body });
    let a = tensor(e, "A", ScalarType::F32, Role::Input, &[rows, body]);
    let b = tensor(e, "B", ScalarType::F32, Role::Output, &[rows, body][..b_rank]);
    let one = e.pool.int(1);
    let entries = e.pool.add(rows, one);
    let len = tensor(e, "len.t", ScalarType::I32, Role::Temp, &[rows]);
    let row = tensor(e, "row.t", ScalarType::I32, Role::Temp, &[entries]);
    let read_len = e.load(len, [a0]);
    let body = Some(e.pool.cast(ScalarType::Index, read_len));
    m.tables.push(Table { uf: lens, tensor: len, entries: rows, domain: vec![rows], body: None });
    m.tables.push(Table { uf: row_uf, tensor: row, entries, domain: vec![rows], body });
    let total = read_index(e, row, rows);
    let start = read_index(e, row, a0);
    let a1 = e.pool.arg(1);
    let offset = e.pool.add(start, a1);
    m.buffers.push(Buffer { tensor: a, elems: total, offset: Some(offset) });
    let (elems, offset) = if b_rank == 2 { (total, offset) } else { (rows, a0) };
    m.buffers.push(Buffer { tensor: b, elems, offset: Some(offset) });
    Packed { m, lens, rows, a, b, len, row }
}

fn read_index(e: &mut Env, t: TensorId, at: ExprId) -> ExprId {
    let x = e.load(t, [at]);
    e.pool.cast(ScalarType::Index, x)
}

fn kernel(m: &mut StorageModule, body: Vec<Stmt>) {
    m.kernels.push(Kernel { name: "k".into(), body });
}

fn run(m: &StorageModule, b: &Batch) -> Result<Results, InterpError> {
    run_storage(m, b, &Options::default())
}

const LENGTHS: [i64; 5] = [0, 11, 0, 300, 1];

fn data(p: &Packed) -> Batch {
    batch(&[5], &[(p.lens, &LENGTHS)], &[(p.a, floats(312, |i| i as f64 - 50.0))])
}

fn doubled() -> Vec<f64> {
    (0..312).map(|i| 2.0 * (f64::from(i) - 50.0)).collect()
}

/// Rows in vectors of 8; lanes beyond a row's end are masked, if `masked`.
fn vectors(masked: bool) -> Packed {
    let mut p = packed(2);
    let e = &mut p.m.env;
    let (vb, o) = (new_var(e, "b"), new_var(e, "o"));
    let (n, base) = (e.new_var("n"), e.new_var("base"));
    let n_value = read_index(e, p.len, vb);
    let base_value = read_index(e, p.row, vb);
    let (n_, base_) = (e.pool.var(n), e.pool.var(base));
    let tiles = e.pool.ceil_div(n_, 8);
    let eight = e.pool.int(8);
    let first = e.pool.mul(o, eight);
    let lane = e.pool.ramp(first, 1, 8);
    let limit = e.pool.splat(n_, 8);
    let mask = e.pool.lt(lane, limit);
    let flat = e.pool.add(base_, first);
    let at = e.pool.ramp(flat, 1, 8);
    let zero = e.pool.lit(Literal::float(ScalarType::F32, 0.0));
    let zeros = e.pool.splat(zero, 8);
    let x = e.pool.load_guarded((p.a, 0), ScalarType::F32, [at], masked.then_some((mask, zeros)));
    let two = e.pool.lit(Literal::float(ScalarType::F32, 2.0));
    let twos = e.pool.splat(two, 8);
    let y = e.pool.mul(x, twos);
    let store = Stmt::Store { tensor: p.b, index: at, value: y, mask: masked.then_some(mask), rest: vec![] };
    let inner = for_loop(e, o, tiles, vec![store]);
    let body = vec![Stmt::Let { var: n, value: n_value }, Stmt::Let { var: base, value: base_value }, inner];
    let outer = for_loop(e, vb, p.rows, body);
    kernel(&mut p.m, vec![outer]);
    p
}

#[test]
fn vector_loads_and_stores_with_masks() {
    let p = vectors(true);
    assert_eq!(values(&run(&p.m, &data(&p)).unwrap(), p.b), doubled());
    // Without a mask the last vector leaves the buffer.
    let p = vectors(false);
    let want = InterpError::OutOfBounds { stage: Stage::Storage, tensor: "A".into(), index: vec![312], write: false };
    assert_eq!(run(&p.m, &data(&p)), Err(want));
}

#[test]
fn a_flat_loop_with_search_and_table_errors() {
    // For each flat f: b = search(f); B[f] = A[f] + (f - row[b]) * 0, under a scalar `if`
    let mut p = packed(2);
    let e = &mut p.m.env;
    let f = new_var(e, "f");
    let total = read_index(e, p.row, p.rows);
    let zero = e.pool.int(0);
    let found = e.pool.search(p.row, zero, p.rows, f);
    let b = e.new_var("b");
    let vb = e.pool.var(b);
    let start = read_index(e, p.row, vb);
    let i = e.pool.sub(f, start);
    let n = read_index(e, p.len, vb);
    let inside = e.pool.lt(i, n);
    let x = e.load(p.a, [f]);
    let y = e.pool.add(x, x);
    let store = Stmt::Store { tensor: p.b, index: f, value: y, mask: None, rest: vec![] };
    let guarded = Stmt::If { cond: inside, then: vec![store], other: vec![] };
    let nest = for_loop(e, f, total, vec![Stmt::Let { var: b, value: found }, guarded]);
    kernel(&mut p.m, vec![nest]);
    let batch = data(&p);
    assert_eq!(values(&run(&p.m, &batch).unwrap(), p.b), doubled());

    let entries = p.m.tables[1].entries;
    p.m.tables[1].entries = p.rows;
    assert!(matches!(run(&p.m, &batch), Err(InterpError::Table { .. })));
    p.m.tables[1].entries = entries;
    p.m.env.tensors[p.row].ty = ScalarType::I8;
    let error = run(&p.m, &batch).unwrap_err();
    assert!(matches!(&error, InterpError::Table { table, .. } if table == "row.t"), "{error}");
}

/// `B[b] = sum of row b`: a local accumulator, a strip loop of read-modify-write stores, or vectors
/// reduced at the end.
#[test]
fn accumulators_in_local_buffers() {
    let sums: Vec<f64> = {
        let v: Vec<f64> = (0..312).map(|i| f64::from(i) - 50.0).collect();
        vec![0.0, v[..11].iter().sum(), 0.0, v[11..311].iter().sum(), v[311]]
    };
    for initialised in [true, false] {
        for vector in [false, true] {
            let mut p = packed(1);
            let e = &mut p.m.env;
            let lanes: u32 = if vector { 4 } else { 1 };
            let size = e.pool.int(lanes.into());
            let acc = tensor(e, "acc", ScalarType::F32, Role::Temp, &[size]);
            e.tensors[acc].scope = Scope::Reg;
            let (vb, o) = (new_var(e, "b"), new_var(e, "o"));
            let zero = e.pool.int(0);
            let slot = if vector { e.pool.ramp(zero, 1, 4) } else { zero };
            let zero_f = e.pool.lit(Literal::float(ScalarType::F32, 0.0));
            let zeros = e.pool.splat(zero_f, lanes);
            let n = read_index(e, p.len, vb);
            let base = read_index(e, p.row, vb);
            let four = e.pool.int(lanes.into());
            let trips = e.pool.ceil_div(n, lanes.into());
            let first = e.pool.mul(o, four);
            let flat = e.pool.add(base, first);
            let x = if vector {
                let at = e.pool.ramp(flat, 1, 4);
                let lane = e.pool.ramp(first, 1, 4);
                let limit = e.pool.splat(n, 4);
                let mask = e.pool.lt(lane, limit);
                e.pool.load_guarded((p.a, 0), ScalarType::F32, [at], Some((mask, zeros)))
            } else {
                e.load(p.a, [flat])
            };
            let old = e.load(acc, [slot]);
            let sum = e.pool.add(old, x);
            let total = if vector { e.pool.reduce(Combiner::Sum, old) } else { old };
            let init = Stmt::Store { tensor: acc, index: slot, value: zeros, mask: None, rest: vec![] };
            let update = Stmt::Store { tensor: acc, index: slot, value: sum, mask: None, rest: vec![] };
            let out = Stmt::Store { tensor: p.b, index: vb, value: total, mask: None, rest: vec![] };
            let inner = for_loop(e, o, trips, vec![update]);
            let first_row = e.pool.bin(BinOp::Eq, vb, zero);
            let init =
                if initialised { init } else { Stmt::If { cond: first_row, then: vec![init.clone()], other: vec![] } };
            let outer = for_loop(e, vb, p.rows, vec![init, inner, out]);
            p.m.buffers.push(Buffer { tensor: acc, elems: size, offset: None });
            kernel(&mut p.m, vec![outer]);
            let got = run(&p.m, &data(&p));
            if initialised {
                assert_eq!(values(&got.unwrap(), p.b), sums);
            } else {
                // The next row's accumulator is a new one.
                assert!(
                    matches!(&got, Err(InterpError::Undefined { usage: Use::Output, index, .. }) if index == &[1]),
                    "{got:?}"
                );
            }
        }
    }
}

#[test]
fn both_branches_and_masked_scalars() {
    let mut m = StorageModule::default();
    let e = &mut m.env;
    let n = e.pool.int(10);
    let b = tensor(e, "B", ScalarType::I64, Role::Output, &[n]);
    let i = new_var(e, "i");
    let a0 = e.pool.arg(0);
    let three = e.pool.int(3);
    let low = e.pool.lt(i, three);
    let (x, y, z) = (
        e.pool.lit(Literal::int(ScalarType::I64, 1)),
        e.pool.lit(Literal::int(ScalarType::I64, 2)),
        e.pool.lit(Literal::int(ScalarType::I64, 3)),
    );
    let put = |value, mask| Stmt::Store { tensor: b, index: i, value, mask, rest: vec![] };
    let both = Stmt::If { cond: low, then: vec![put(x, None)], other: vec![put(y, None)] };
    let two = e.pool.int(2);
    let odd = e.pool.modulo(i, two);
    let odd = e.pool.bin(BinOp::Eq, odd, two);
    let one = e.pool.int(1);
    let even = e.pool.modulo(i, two);
    let even = e.pool.lt(even, one);
    let e = &m.env;
    let loops = vec![
        for_loop(e, i, n, vec![both]),
        for_loop(e, i, n, vec![put(z, Some(odd))]),
        for_loop(e, i, n, vec![put(z, Some(even))]),
    ];
    m.buffers.push(Buffer { tensor: b, elems: n, offset: Some(a0) });
    kernel(&mut m, loops);
    assert_eq!(values(&run(&m, &Batch::default()).unwrap(), b), [3.0, 1.0, 3.0, 2.0, 3.0, 2.0, 3.0, 2.0, 3.0, 2.0]);
}
