//! Guards, masks, gathers, scatters, registers, and what is remembered across stores.

use cora_ir::storage::Stmt;
use cora_ir::{BinOp, Combiner, ExprId, Literal, ScalarType};

use super::kit::{Buf, Kit, Loaded, parallel, serial, store, targets};

const F32: ScalarType = ScalarType::F32;

fn numbers(n: usize) -> Vec<f64> {
    (0..n).map(|i| i as f64 + 1.0).collect()
}

#[test]
fn a_false_scalar_guard_reads_nothing() {
    for lanes in [1, 8] {
        let mut k = Kit::default();
        let (a, o) = (k.buffer("A", F32), k.buffer("O", F32));
        let (v, i) = k.var("i");
        // All but the first are far outside of memory.
        let far = k.int(1 << 40);
        let at = k.m.env.pool.mul(i, far);
        let at = if lanes == 1 { at } else { k.m.env.pool.ramp(at, 1, lanes) };
        let one = k.int(1);
        let cond = k.m.env.pool.lt(i, one);
        let other = k.m.env.pool.lit(Literal::float(F32, -1.0));
        let other = k.m.env.pool.splat(other, lanes);
        let value = k.guarded(a, at, cond, other);
        let index = k.lanes(i, lanes);
        let extent = k.int(3);
        k.kernel("k", vec![parallel(v, extent, vec![store(o, index, value)])]);
        let n = lanes as usize;
        let after = k.run(true, &[Buf::of(F32, &numbers(n)), Buf::of(F32, &vec![0.0; 3 * n])], &[], &[], (0, 3));
        let got = after[1].as_f32();
        assert!(got[..n].iter().enumerate().all(|(i, &v)| v == i as f32 + 1.0) && got[n..].iter().all(|&v| v == -1.0));
    }
}

/// A name, the condition on `(i, n)`, and whether it holds.
type Condition = (&'static str, fn(&mut Kit, ExprId, ExprId) -> ExprId, fn(i64, i64) -> bool);

/// The conditions on `ramp(base)` and `n` that masks are made of, with their meaning for a position.
fn conditions() -> Vec<Condition> {
    vec![
        ("i < n", |k, i, n| k.m.env.pool.lt(i, n), |i, n| i < n),
        ("i <= n", |k, i, n| k.m.env.pool.le(i, n), |i, n| i <= n),
        ("n < i", |k, i, n| k.m.env.pool.lt(n, i), |i, n| n < i),
        ("n <= i", |k, i, n| k.m.env.pool.le(n, i), |i, n| n <= i),
        ("i == n", |k, i, n| k.m.env.pool.bin(BinOp::Eq, i, n), |i, n| i == n),
        (
            "2 i < n",
            |k, i, n| {
                let two = k.int(2);
                let twice = k.m.env.pool.mul(i, two);
                k.m.env.pool.lt(twice, n)
            },
            |i, n| 2 * i < n,
        ),
        (
            "i % 4 < n",
            |k, i, n| {
                let four = k.int(4);
                let low = k.m.env.pool.modulo(i, four);
                k.m.env.pool.lt(low, n)
            },
            |i, n| i.rem_euclid(4) < n,
        ),
        (
            "0 - i < n - i - i",
            |k, i, n| {
                let (zero, twice) = (k.int(0), k.m.env.pool.add(i, i));
                let (minus, right) = (k.m.env.pool.sub(zero, i), k.m.env.pool.sub(n, twice));
                k.m.env.pool.lt(minus, right)
            },
            |i, n| i < n,
        ),
        (
            "5 < n",
            |k, _, n| {
                let five = k.int(5);
                let five = k.m.env.pool.splat(five, 16);
                k.m.env.pool.lt(five, n)
            },
            |_, n| 5 < n,
        ),
        (
            "not (i < n) or i < 3",
            |k, i, n| {
                let three = k.int(3);
                let (below, low) = (k.m.env.pool.lt(i, n), k.m.env.pool.lt(i, three));
                let not = k.m.env.pool.un(cora_ir::UnOp::Not, below);
                k.m.env.pool.bin(BinOp::Or, not, low)
            },
            |i, n| i >= n || i < 3,
        ),
    ]
}

#[test]
fn masks_of_every_form() {
    for ty in [F32, ScalarType::Bool, ScalarType::BF16, ScalarType::I64] {
        for (name, build, holds) in conditions() {
            let mut k = Kit::default();
            let (a, o) = (k.buffer("A", ty), k.buffer("O", ty));
            let n = k.param("n");
            let n = k.m.env.pool.param(n);
            // `n` itself is declared not to be negative, `n - 20` may be.
            let twenty = k.int(20);
            let n = k.m.env.pool.sub(n, twenty);
            let (v, i) = k.var("i");
            let index = k.lanes(i, 16);
            let bound = k.m.env.pool.splat(n, 16);
            let cond = build(&mut k, index, bound);
            let one = k.m.env.pool.lit(if ty.is_float() { Literal::float(ty, 1.0) } else { Literal::int(ty, 1) });
            let other = k.m.env.pool.splat(one, 16);
            let value = k.guarded(a, index, cond, other);
            let two = k.int(2);
            let masked = Stmt::Store { tensor: o, index, value, mask: Some(cond), rest: vec![] };
            k.kernel("k", vec![parallel(v, two, vec![masked])]);
            let loaded: Vec<_> = targets().iter().map(|t| Loaded::new(&k.m, t)).collect();
            for n in [-20, -1, 0, 1, 3, 15, 16, 17, 31, 32, 33, 1000, 1 << 40, -(1 << 40)] {
                for l in &loaded {
                    let zeros = vec![0.0; 32];
                    let ones = vec![1.0; 32];
                    let mut bufs = [Buf::of(ty, &ones), Buf::of(ty, &zeros)];
                    l.call(&mut bufs, &[], &[n + 20], (0, 2));
                    for (i, got) in bufs[1].numbers(ty).into_iter().enumerate() {
                        assert_eq!(got, f64::from(holds(i as i64, n)), "{name}, {ty}, n = {n}, i = {i}");
                    }
                }
            }
        }
    }
}

#[test]
fn masked_loads_give_the_other_value() {
    for ty in ScalarType::ELEMENTS {
        let mut k = Kit::default();
        let (a, o) = (k.buffer("A", ty), k.buffer("O", ty));
        let zero = k.int(0);
        let five = k.int(5);
        for lanes in [8, 64] {
            let index = k.m.env.pool.ramp(zero, 1, lanes);
            let bound = k.m.env.pool.splat(five, lanes);
            let cond = k.m.env.pool.lt(index, bound);
            let other = k.m.env.pool.lit(if ty.is_float() { Literal::float(ty, 1.0) } else { Literal::int(ty, 1) });
            let value = k.guarded(a, index, cond, other);
            k.m.kernels.clear();
            k.kernel("k", vec![store(o, index, value)]);
            let input: Vec<f64> = (0..5).map(|i| f64::from(i % 2)).collect();
            let after = k.run(true, &[Buf::of(ty, &input), Buf::of(ty, &vec![0.0; lanes as usize])], &[], &[], (0, 1));
            for (i, got) in after[1].numbers(ty).into_iter().enumerate() {
                assert_eq!(got, if i < 5 { input[i] } else { 1.0 }, "{ty} x{lanes}");
            }
        }
    }
}

#[test]
fn strides_gathers_and_scatters() {
    for ty in ScalarType::ELEMENTS {
        let mut k = Kit::default();
        let (a, ids, o) = (k.buffer("A", ty), k.buffer("ids", ScalarType::I32), k.buffer("O", ty));
        let pool = &mut k.m.env.pool;
        let (zero, seven, three) = (pool.int(0), pool.int(7), pool.int(3));
        let run = pool.ramp(zero, 1, 8);
        let back = pool.ramp(seven, -1, 8);
        let thirds = pool.splat(three, 8);
        let thirds = pool.mul(run, thirds);
        let same = pool.splat(three, 8);
        let id = k.m.env.load(ids, [run]);
        let id = k.m.env.pool.cast(ScalarType::Index, id);
        let mut body = Vec::new();
        for (row, from) in [back, thirds, same, id].into_iter().enumerate() {
            let value = k.load(a, from);
            let at = k.int(row as i64 * 8);
            let at = k.m.env.pool.ramp(at, 1, 8);
            body.push(store(o, at, value));
        }
        // Scattered: backwards, and to where the ids say with a mask.
        let value = k.load(a, run);
        let first = k.int(39);
        let at = k.m.env.pool.ramp(first, -1, 8);
        body.push(store(o, at, value));
        let fourty = k.int(40);
        let fourty = k.m.env.pool.splat(fourty, 8);
        let at = k.m.env.pool.add(id, fourty);
        let bound = k.m.env.pool.splat(three, 8);
        let mask = k.m.env.pool.lt(run, bound);
        body.push(Stmt::Store { tensor: o, index: at, value, mask: Some(mask), rest: vec![] });
        k.kernel("k", body);
        let input: Vec<f64> =
            (0..24).map(|i| if ty == ScalarType::Bool { f64::from(i % 3 == 1) } else { f64::from(i) }).collect();
        let order = [4, 2, 7, 0, 1, 5, 3, 6];
        let bufs = [Buf::of(ty, &input), Buf::i32(&order), Buf::of(ty, &[0.0; 48])];
        let got = k.run(true, &bufs, &[], &[], (0, 1))[2].numbers(ty);
        for lane in 0..8 {
            let want = [input[7 - lane], input[lane * 3], input[3], input[order[lane] as usize], input[7 - lane]];
            for (row, want) in want.into_iter().enumerate() {
                assert_eq!(got[row * 8 + lane], want, "{ty} row {row} lane {lane}");
            }
        }
        for (place, &got) in got[40..].iter().enumerate() {
            let want = (0..3).find(|&l| order[l] as usize == place).map_or(0.0, |l| input[l]);
            assert_eq!(got, want, "{ty} scattered to {place}");
        }
    }
}

#[test]
fn registers_by_vectors_and_by_lanes() {
    for ty in ScalarType::ELEMENTS {
        let mut k = Kit::default();
        let (a, r, o) = (k.buffer("A", ty), k.registers("R", ty, 16), k.buffer("O", ty));
        let zero = k.int(0);
        let pool = &mut k.m.env.pool;
        let all = pool.ramp(zero, 1, 16);
        let evens = pool.ramp(zero, 2, 8);
        let one = pool.int(1);
        let odds = pool.ramp(one, 2, 8);
        let eight = pool.int(8);
        let (low, high) = (pool.ramp(zero, 1, 8), pool.ramp(eight, 1, 8));
        let load = k.load(a, all);
        let (even, odd) = (k.load(r, evens), k.load(r, odds));
        let three = k.int(3);
        let third = k.load(r, three);
        let sixteen = k.int(16);
        let body = vec![
            store(r, all, load),
            store(o, low, even),
            store(o, high, odd),
            store(o, sixteen, third),
            store(r, evens, odd),
            store(o, low, even),
            store(r, all, load),
            store(o, low, even),
        ];
        k.kernel("k", body);
        let input: Vec<f64> =
            (0..16).map(|i| if ty == ScalarType::Bool { f64::from(i % 5 == 1) } else { f64::from(i) }).collect();
        let text = k.mlir();
        assert!(text.contains("llvm.alloca %one x !llvm.array<16 x"), "{text}");
        let got = k.run(true, &[Buf::of(ty, &input), Buf::of(ty, &[0.0; 17])], &[], &[], (0, 1))[1].numbers(ty);
        for lane in 0..8 {
            assert_eq!((got[lane], got[8 + lane]), (input[2 * lane], input[2 * lane + 1]), "{ty}");
        }
        assert_eq!(got[16], input[3]);
    }
}

#[test]
fn loads_are_not_remembered_across_stores() {
    let mut k = Kit::default();
    let (a, b) = (k.buffer("A", F32), k.buffer("B", F32));
    let p = k.param("p");
    let p = k.m.env.pool.param(p);
    let (v, i) = k.var("i");
    let lit = |k: &mut Kit, v| k.m.env.pool.lit(Literal::float(F32, v));
    let (zero, one, four) = (k.int(0), k.int(1), k.int(4));
    let (ten, hundred) = (lit(&mut k, 10.0), lit(&mut k, 100.0));
    let a0 = k.load(a, zero);
    let sum = k.m.env.pool.add(a0, ten);
    let cond = k.m.env.pool.lt(zero, p);
    let i1 = k.m.env.pool.add(i, one);
    let body = vec![
        store(b, zero, a0),                                           // B[0] = A[0]
        store(a, zero, sum),                                          // A[0] = A[0] + 10
        serial(v, four, vec![store(b, i1, a0), store(a, zero, sum)]), // B[i + 1] = A[0]; A[0] += 10
        Stmt::If { cond, then: vec![store(a, zero, hundred)], other: vec![store(a, zero, ten)] },
        store(b, four, a0), // B[4] = A[0]
    ];
    k.kernel("k", body);
    for (p, last) in [(0, 10.0), (1, 100.0)] {
        let after = k.run(true, &[Buf::f32(&[1.0]), Buf::f32(&[0.0; 5])], &[], &[p], (0, 1));
        assert_eq!(after[1].as_f32(), [1.0, 11.0, 21.0, 31.0, last]);
    }
}

#[test]
fn the_second_operand_of_and_waits_for_the_first() {
    let mut k = Kit::default();
    let (table, o) = (k.table("lens", ScalarType::I32), k.buffer("O", F32));
    let (v, i) = k.var("i");
    let far = k.int(1 << 40);
    let at = k.m.env.pool.mul(i, far);
    let (one, two) = (k.int(1), k.int(2));
    let entry = k.entry(table, at);
    let (inside, below) = (k.m.env.pool.lt(i, one), k.m.env.pool.lt(one, entry));
    let cond = k.m.env.pool.and(inside, below);
    let not_inside = k.m.env.pool.le(one, i);
    let either = k.m.env.pool.bin(BinOp::Or, not_inside, below);
    let value = k.m.env.pool.lit(Literal::float(F32, 1.0));
    let next = k.m.env.pool.add(i, two);
    let then = vec![Stmt::Store { tensor: o, index: i, value, mask: Some(cond), rest: vec![] }];
    let body = vec![
        Stmt::If { cond, then, other: vec![] },
        Stmt::If { cond: either, then: vec![store(o, next, value)], other: vec![] },
    ];
    k.kernel("k", vec![parallel(v, two, body)]);
    let after = k.run(true, &[Buf::f32(&[0.0; 4])], &[Buf::i32(&[5])], &[], (0, 2));
    assert_eq!(after[0].as_f32(), [1.0, 0.0, 1.0, 1.0]);
}

/// A square of elements from rows `stride` apart, by vectors of its columns: read apart, or written apart.
fn square(ty: ScalarType, lanes: u32, stride: i64, reads_apart: bool) -> (Kit, usize) {
    let mut k = Kit::default();
    let (a, o) = (k.buffer("A", ty), k.buffer("O", ty));
    let (v, i) = k.var("i");
    let mut body = Vec::new();
    for n in 0..i64::from(lanes) {
        let (column, row) = (k.int(n), k.int(n * i64::from(lanes)));
        let pool = &mut k.m.env.pool;
        let (far, near) = (pool.add(i, column), pool.add(i, row));
        let (far, near) = (pool.ramp(far, stride, lanes), pool.ramp(near, 1, lanes));
        let (from, to) = if reads_apart { (far, near) } else { (near, far) };
        let value = k.load(a, from);
        body.push(store(o, to, value));
    }
    let extent = k.int(2);
    k.kernel("k", vec![parallel(v, extent, body)]);
    (k, (stride.unsigned_abs() * u64::from(lanes)) as usize)
}

#[test]
fn squares_change_order_by_shuffles() {
    for ty in ScalarType::ELEMENTS {
        for (lanes, reads_apart) in [(4, true), (8, true), (16, true), (4, false), (16, false)] {
            let stride = 19;
            let (k, size) = square(ty, lanes, stride, reads_apart);
            let text = k.mlir();
            assert!(text.contains("shufflevector") && !text.contains("gather") && !text.contains("scatter"), "{text}");
            let number = |i: usize| if ty == ScalarType::Bool { f64::from(i % 3 == 1) } else { (i % 100) as f64 };
            let input: Vec<f64> = (0..size + 2).map(number).collect();
            let out = vec![0.0; size + 2];
            // The second iteration, so that the first element is not at 0.
            let got = k.run(true, &[Buf::of(ty, &input), Buf::of(ty, &out)], &[], &[], (1, 2))[1].numbers(ty);
            let mut want = out;
            for (n, lane) in (0..lanes as usize).flat_map(|n| (0..lanes as usize).map(move |l| (n, l))) {
                let (far, near) = (1 + n + lane * stride as usize, 1 + n * lanes as usize + lane);
                let (from, to) = if reads_apart { (far, near) } else { (near, far) };
                want[to] = input[from];
            }
            assert_eq!(got, want, "{ty} x{lanes}, {reads_apart}");
        }
    }
}

/// `O[i + n + count * lane] = A[i + n * lanes + lane]` for each of `count` vectors, `order` of which is written when.
fn in_turn(ty: ScalarType, lanes: u32, order: &[i64], own: bool) -> Kit {
    let mut k = Kit::default();
    let (a, o) = (k.buffer("A", ty), k.buffer("O", ty));
    let (v, i) = k.var("i");
    let mut body = Vec::new();
    for &n in order {
        let (column, row) = (k.int(n), k.int(n * i64::from(lanes)));
        let pool = &mut k.m.env.pool;
        let (to, from) = (pool.add(i, column), pool.add(i, row));
        let (to, from) = (pool.ramp(to, order.len() as i64, lanes), pool.ramp(from, 1, lanes));
        let value = k.load(if own { o } else { a }, from);
        body.push(store(o, to, value));
    }
    let extent = k.int(2);
    k.kernel("k", vec![parallel(v, extent, body)]);
    k
}

#[test]
fn vectors_between_each_other_are_written_as_one() {
    for ty in ScalarType::ELEMENTS {
        for (lanes, count) in [(4, 2), (8, 4), (16, 2), (5, 2)] {
            let order: Vec<i64> = (0..count).collect();
            let k = in_turn(ty, lanes, &order, false);
            let text = k.mlir();
            let all = count as usize * lanes as usize;
            assert_eq!(text.contains("shufflevector"), all * ty.bytes() <= 128, "{ty} x{lanes}: {text}");
            let number = |i: usize| if ty == ScalarType::Bool { f64::from(i % 3 == 1) } else { (i % 100) as f64 };
            let input: Vec<f64> = (0..all + 2).map(number).collect();
            let out = vec![0.0; all + 2];
            let got = k.run(true, &[Buf::of(ty, &input), Buf::of(ty, &out)], &[], &[], (1, 2))[1].numbers(ty);
            let mut want = out;
            for i in 0..all {
                want[1 + i / lanes as usize + i % lanes as usize * count as usize] = input[1 + i];
            }
            assert_eq!(got, want, "{ty} x{lanes}, {count}");
        }
    }
    // Written in another order, and of what is written before.
    assert!(!in_turn(F32, 8, &[1, 0], false).mlir().contains("shufflevector"));
    assert!(!in_turn(F32, 8, &[0, 1], true).mlir().contains("shufflevector"));
}

#[test]
fn what_overlaps_or_does_not_follow_is_no_square() {
    let mut k = Kit::default();
    let (a, o) = (k.buffer("A", F32), k.buffer("O", F32));
    let mut body = Vec::new();
    for n in [0, 1, 2, 4] {
        let (column, row) = (k.int(n), k.int(n * 4));
        let (far, near) = (k.m.env.pool.ramp(column, 9, 4), k.m.env.pool.ramp(row, 1, 4));
        let value = k.load(a, far);
        body.push(store(o, near, value));
    }
    k.kernel("k", body);
    assert!(!k.mlir().contains("shufflevector"));
    // Written apart, but in each other: the last one counts.
    assert!(!square(F32, 4, 3, false).0.mlir().contains("shufflevector"));
}

/// `O[n] = O[n] op (all lanes of row n of A)` for neighbours `n`, in this order.
fn sums(ty: ScalarType, combiner: Combiner, lanes: u32, order: &[i64]) -> Kit {
    let mut k = Kit::default();
    let (a, o) = (k.buffer("A", ty), k.buffer("O", ty));
    let mut body = Vec::new();
    for &n in order {
        let (row, at) = (k.int(n * i64::from(lanes)), k.int(n + 1));
        let row = k.m.env.pool.ramp(row, 1, lanes);
        let (v, old) = (k.load(a, row), k.load(o, at));
        let pool = &mut k.m.env.pool;
        let all = pool.reduce(combiner, v);
        let value = pool.bin(combiner.op(), old, all);
        body.push(store(o, at, value));
    }
    let (v, _) = k.var("i");
    let extent = k.int(1);
    k.kernel("k", vec![parallel(v, extent, body)]);
    k
}

#[test]
fn neighbours_take_the_lanes_of_a_vector_each_in_one() {
    for ty in [F32, ScalarType::F64, ScalarType::I32, ScalarType::I64] {
        for (combiner, lanes, count) in [
            (Combiner::Sum, 8, 8),
            (Combiner::Sum, 16, 8),
            (Combiner::Sum, 4, 2),
            (Combiner::Sum, 2, 3),
            (Combiner::Max, 4, 7),
            (Combiner::Min, 16, 16),
            (Combiner::Sum, 4, 9),
        ] {
            let order: Vec<i64> = (0..count).collect();
            let backwards: Vec<i64> = order.iter().rev().copied().collect();
            let (k, alone) = (sums(ty, combiner, lanes, &order), sums(ty, combiner, lanes, &backwards));
            let together = [&k, &alone].map(|k| k.mlir().contains("llvm.shufflevector"));
            assert_eq!(together, [true, false], "{ty} x{lanes}, {count}, {combiner:?}");
            let float = |i: usize| ((i * 7919 + 13) % 1000) as f64 * 0.37 - 150.0;
            let number = |i: usize| if ty.is_float() { float(i) } else { float(i).floor() };
            let input: Vec<f64> = (0..(count as u32 * lanes) as usize).map(number).collect();
            let out: Vec<f64> = (0..count as usize + 2).map(|i| number(i + 31)).collect();
            let run = |k: &Kit| k.run(true, &[Buf::of(ty, &input), Buf::of(ty, &out)], &[], &[], (0, 1))[1].numbers(ty);
            // To the same bits.
            assert_eq!(run(&k), run(&alone), "{ty} x{lanes}, {count}, {combiner:?}");
        }
    }
}

#[test]
fn a_vector_that_reads_the_elements_is_combined_by_itself() {
    let mut k = Kit::default();
    let o = k.buffer("O", F32);
    let mut body = Vec::new();
    for n in 0..4 {
        let at = k.int(n);
        let first = k.int(0);
        let all = k.m.env.pool.ramp(first, 1, 4);
        let (v, old) = (k.load(o, all), k.load(o, at));
        let pool = &mut k.m.env.pool;
        let all = pool.reduce(Combiner::Sum, v);
        let value = pool.bin(Combiner::Sum.op(), old, all);
        body.push(store(o, at, value));
    }
    let (v, _) = k.var("i");
    let extent = k.int(1);
    k.kernel("k", vec![parallel(v, extent, body)]);
    // 1 + 10, then 2 + 20, 3 + 40, 4 + 80.
    let after = k.run(true, &[Buf::f32(&[1.0, 2.0, 3.0, 4.0])], &[], &[], (0, 1));
    assert_eq!(after[0].as_f32(), [11.0, 22.0, 43.0, 84.0]);
}

#[test]
fn kernels_of_equal_parts_have_one_function() {
    // Layer n of A and of the places P in B. Those share code that begin at whole lines of memory: all, or the first and the last.
    for (stride, functions) in [(48_i64, 1), (40, 2)] {
        let mut k = Kit::default();
        let (a, b) = (k.buffer("A", F32), k.buffer("B", F32));
        let (p, o) = (k.buffer("P", ScalarType::I32), k.buffer("O", F32));
        for n in 0..3_i64 {
            let (v, i) = k.var("i");
            let (first, eight, last) = (k.int(n * stride), k.int(8), k.int(n * stride + 15));
            let at = k.m.env.pool.mul(i, eight);
            let at = k.m.env.pool.add(at, first);
            let lanes = k.m.env.pool.ramp(at, 1, 8);
            let place = k.m.env.pool.load(p, ScalarType::Index, [lanes]);
            let (x, y, z) = (k.load(a, lanes), k.load(b, place), k.load(a, last));
            let z = k.m.env.pool.splat(z, 8);
            let value = k.m.env.pool.add(x, y);
            let value = k.m.env.pool.add(value, z);
            let extent = k.int(2);
            k.kernel(&format!("layer{n}"), vec![parallel(v, extent, vec![store(o, lanes, value)])]);
        }
        let text = k.mlir();
        assert_eq!(text.matches("llvm.func internal").count(), functions, "{text}");
        assert_eq!(text.matches("of the same code as cora_layer0").count(), 3 - functions, "{text}");
        let size = (2 * stride + 16) as usize;
        let (of_a, of_b) = (numbers(size), numbers(8).into_iter().map(|x| 1000.0 * x).collect::<Vec<_>>());
        let places: Vec<f64> = (0..size).map(|i| (i % 7) as f64).collect();
        for target in targets() {
            let loaded = Loaded::new(&k.m, &target);
            for n in 0..3 {
                let mut bufs = [
                    Buf::of(F32, &of_a),
                    Buf::of(F32, &of_b),
                    Buf::of(ScalarType::I32, &places),
                    Buf::of(F32, &vec![0.0; size]),
                ];
                loaded.call_nth(n, &mut bufs, &[], &[], (0, 2));
                let first = n * stride as usize;
                let expected = |i: usize| match i.checked_sub(first) {
                    Some(..16) => (of_a[i] + of_b[i % 7] + of_a[first + 15]) as f32,
                    _ => 0.0,
                };
                assert_eq!(bufs[3].as_f32(), (0..size).map(expected).collect::<Vec<_>>(), "layer {n} on {target}");
            }
        }
    }
}
