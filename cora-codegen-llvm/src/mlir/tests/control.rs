//! Loops, conditions, names, tables, searches, symbols, and what is refused.

use cora_ir::loops::LoopKind;
use cora_ir::storage::Stmt;
use cora_ir::{ScalarType, UfDef};

use super::kit::{Buf, Kit, parallel, serial, store};
use crate::llvm::MlirModule;
use crate::mlir::{EmitFault, EmitOptions, Slot, Slots, emit};

const F32: ScalarType = ScalarType::F32;

/// Sums of rows: `O[b] = sum over i < lens(b) of A[row(b) + i]`, rows of a batch of `M`.
fn row_sums(table: ScalarType) -> Kit {
    let mut k = Kit::default();
    let (a, o) = (k.buffer("A", F32), k.buffer("O", F32));
    let (lens, row) = (k.table("lens", table), k.table("row", table));
    let m = k.param("M");
    let acc = k.registers("acc", F32, 1);
    let (vb, b) = k.var("b");
    let (vi, i) = k.var("i");
    let (vr, r) = k.var("r");
    let m = k.m.env.pool.param(m);
    let zero = k.int(0);
    let len = k.entry(lens, b);
    let start = k.entry(row, b);
    let at = k.m.env.pool.add(r, i);
    let (element, sum) = (k.load(a, at), k.load(acc, zero));
    let next = k.m.env.pool.add(sum, element);
    let nothing = k.m.env.identity(cora_ir::Combiner::Sum, F32);
    let body = vec![
        store(acc, zero, nothing),
        Stmt::Let { var: vr, value: start },
        serial(vi, len, vec![store(acc, zero, next)]),
        store(o, b, sum),
    ];
    k.kernel("row sums", vec![parallel(vb, m, body)]);
    k
}

#[test]
fn ragged_rows_in_any_split() {
    let lens = [3_i64, 0, -2, 5];
    let rows = [0_i64, 3, 3, 3];
    let input: Vec<f32> = (1..=8).map(|v| v as f32).collect();
    for ty in [ScalarType::I32, ScalarType::I64] {
        let k = row_sums(ty);
        let table = |v: &[i64]| Buf::of(ty, &v.iter().map(|&v| v as f64).collect::<Vec<_>>());
        let mut bufs = vec![Buf::f32(&input), Buf::f32(&[-1.0; 4])];
        for range in [(2, 4), (0, 1), (1, 1), (1, 2)] {
            bufs = k.run(true, &bufs, &[table(&lens), table(&rows)], &[4], range);
        }
        assert_eq!(bufs[1].as_f32(), [6.0, 0.0, 0.0, 30.0]);
    }
}

#[test]
fn searches_find_the_row_that_holds_a_position() {
    for ty in [ScalarType::I32, ScalarType::I64] {
        let mut k = Kit::default();
        let (sums, o) = (k.table("row", ty), k.buffer("O", ScalarType::I64));
        let m = k.param("M");
        let m = k.m.env.pool.param(m);
        let (v, f) = k.var("f");
        let one = k.int(1);
        let x = k.m.env.pool.search(sums, one, m, f);
        let value = k.m.env.pool.cast(ScalarType::I64, x);
        let extent = k.int(0);
        k.kernel("k", vec![parallel(v, extent, vec![store(o, f, value)])]);
        let lens = [0_i64, 2, 0, 0, 3, 1, 0];
        let mut table = vec![99.0, 0.0];
        for l in lens {
            table.push(table[table.len() - 1] + l as f64);
        }
        let after = k.run(true, &[Buf::i64(&[-1; 6])], &[Buf::of(ty, &table)], &[7], (0, 6));
        assert_eq!(after[0].as_i64(), [1, 1, 4, 4, 4, 5]);
        // No rows, one row: nothing is read.
        for rows in [-1, 0, 1] {
            let after = k.run(true, &[Buf::i64(&[-1; 6])], &[Buf::of(ty, &[])], &[rows], (0, 6));
            assert_eq!(after[0].as_i64(), [0; 6]);
        }
    }
}

#[test]
fn searches_leave_inner_loops() {
    let mut k = Kit::default();
    let (sums, o) = (k.table("row", ScalarType::I32), k.buffer("O", ScalarType::I64));
    let (vf, f) = k.var("f");
    let (vi, i) = k.var("i");
    let (zero, n) = (k.int(0), k.int(100));
    let x = k.m.env.pool.search(sums, zero, n, f);
    let at = k.m.env.pool.mul(f, n);
    let at = k.m.env.pool.add(at, i);
    let value = k.m.env.pool.cast(ScalarType::I64, x);
    k.kernel("k", vec![parallel(vf, n, vec![serial(vi, n, vec![store(o, at, value)])])]);
    let llvm = super::asm::llvm_ir(&k, "x86-64-v3");
    let calls: Vec<usize> = llvm
        .match_indices("call ")
        .filter(|&(at, _)| llvm[at..].lines().next().unwrap().contains("@cora.search.i32("))
        .map(|(at, _)| at)
        .collect();
    let inner = llvm.find("store ").unwrap();
    assert!(calls.len() == 1 && calls[0] < inner, "{llvm}");
}

#[test]
fn index_arithmetic_is_written_once_and_outside() {
    let mut k = Kit::default();
    let (a, o) = (k.buffer("A", F32), k.buffer("O", F32));
    let (vf, f) = k.var("f");
    let (vi, i) = k.var("i");
    let n = k.int(100);
    let row = k.m.env.pool.mul(f, n);
    let at = k.m.env.pool.add(row, i);
    let seven = k.int(7);
    let later = k.m.env.pool.add(at, seven);
    let (x, y) = (k.load(a, at), k.load(a, later));
    let value = k.m.env.pool.add(x, y);
    k.kernel("k", vec![parallel(vf, n, vec![serial(vi, n, vec![store(o, at, value)])])]);
    let text = k.mlir();
    assert_eq!(text.matches("arith.muli").count(), 1, "{text}");
    assert_eq!(text.matches("arith.addi").count(), 1, "{text}");
    assert!(text.contains("[7] : (!llvm.ptr) -> !llvm.ptr, f32"), "{text}");
    let (inner, product) = (text.find("// i").unwrap(), text.find("arith.muli").unwrap());
    assert!(product < inner, "{text}");
    MlirModule::parse(&text).unwrap();
}

#[test]
fn names_and_numbers_agree() {
    let mut k = Kit::default();
    let (a, r, b) = (k.buffer("A", F32), k.registers("R", F32, 1), k.buffer("B", F32));
    let t = k.table("lens", ScalarType::I32);
    for name in ["P.sum", "P_sum", "exp", "größe"] {
        k.kernel(name, vec![]);
    }
    let slots = Slots::new(&k.m);
    assert_eq!(slots.symbols(), ["cora_P_sum", "cora_P_sum_1", "cora_exp", "cora_gr__e"]);
    assert_eq!(
        [a, r, b, t].map(|t| slots.get(t)),
        [Some(Slot::Buffer(0)), Some(Slot::Registers), Some(Slot::Buffer(1)), Some(Slot::Table(0)),]
    );
    let text = k.mlir();
    assert_eq!(text, k.mlir());
    MlirModule::parse(&text).unwrap();
}

fn refused(build: impl FnOnce(&mut Kit) -> Vec<Stmt>) -> EmitFault {
    let mut k = Kit::default();
    let body = build(&mut k);
    k.kernel("k", body);
    emit(&k.m, &EmitOptions::default()).unwrap_err().fault
}

#[test]
fn what_is_not_legal_is_refused() {
    let looped = |kind| {
        refused(|k| {
            let (var, _) = k.var("i");
            let extent = k.int(4);
            vec![Stmt::For { var, extent, kind, body: vec![] }, Stmt::For { var, extent, kind, body: vec![] }]
        })
    };
    assert_eq!(looped(LoopKind::Vector), EmitFault::NotLegal("a vector or unrolled loop"));
    let parallel = "a parallel loop that is not the kernel's last statement";
    assert_eq!(looped(LoopKind::Parallel), EmitFault::NotLegal(parallel));
    let unbound = refused(|k| {
        let o = k.buffer("O", F32);
        let (_, i) = k.var("i");
        let value = k.m.env.identity(cora_ir::Combiner::Sum, F32);
        vec![store(o, i, value)]
    });
    assert_eq!(unbound, EmitFault::Unbound("i".into()));
    let call = refused(|k| {
        let o = k.buffer("O", F32);
        let (lo, hi) = (k.int(0), k.int(9));
        let f = k.m.env.uf("lens", vec![hi], UfDef::Extent { lo, hi });
        let at = k.m.env.pool.call(f, [lo]);
        let value = k.m.env.identity(cora_ir::Combiner::Sum, F32);
        vec![store(o, at, value)]
    });
    assert_eq!(call, EmitFault::NotLegal("a call of an uninterpreted function"));
    let element = refused(|k| {
        let o = k.buffer("O", ScalarType::F64);
        let at = k.int(0);
        let value = k.m.env.identity(cora_ir::Combiner::Sum, F32);
        vec![store(o, at, value)]
    });
    assert_eq!(element, EmitFault::ElementType { tensor: "O".into(), elements: ScalarType::F64, ty: F32 });
    let size = refused(|k| {
        let r = k.registers("R", F32, 0);
        let at = k.int(0);
        let value = k.m.env.identity(cora_ir::Combiner::Sum, F32);
        vec![store(r, at, value)]
    });
    assert_eq!(size, EmitFault::BufferSize("R".into()));
}
