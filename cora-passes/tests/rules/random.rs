//! Random expressions have the same value before and after simplification.

use crate::world::{World, show};
use cora_ir::{BinOp, ExprId, UnOp, VarId};
use cora_passes::simplify::concrete::Batch;
use cora_passes::simplify::{Facts, Prover, bounds, modulus, simplify};

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// A loop nest of one of a few shapes, and expressions worth combining.
fn nest(w: &mut World, r: &mut Rng) -> (Facts, Vec<ExprId>) {
    let m = w.m;
    let mut facts = Facts::new();
    let mut atoms = vec![m];
    let enter = |w: &mut World, facts: &mut Facts, atoms: &mut Vec<ExprId>, name: &str, extent: ExprId| {
        let (v, e): (VarId, ExprId) = w.var(name);
        facts.push_var(v, extent);
        atoms.push(e);
        e
    };
    if r.below(2) == 0 {
        let b = enter(w, &mut facts, &mut atoms, "b", m);
        let len = w.call(w.lens, b);
        let (p, p16) = (w.call(w.p, b), w.call(w.p16, b));
        atoms.extend([len, p, p16]);
        let t = r.one_of(&[2, 4, 14, 16]);
        let outer = w.env.pool.ceil_div(len, t);
        let o = enter(w, &mut facts, &mut atoms, "o", outer);
        let k = w.int(t);
        let done = w.env.pool.mul(o, k);
        let left = w.env.pool.sub(len, done);
        let inner = if r.below(2) == 0 { w.env.pool.min(k, left) } else { k };
        let i = enter(w, &mut facts, &mut atoms, "i", inner);
        let at = w.env.pool.add(done, i);
        let offset = w.env.pool.add(p, at);
        let mask = w.env.pool.lt(at, len);
        atoms.extend([at, offset, left]);
        if inner == k && r.below(2) == 0 {
            facts.push_assumption(mask);
        }
        if inner != k || facts.assumptions.contains(&mask) {
            let row = w.call(w.s, offset);
            atoms.push(row);
        }
        let one = w.int(1);
        let next = w.env.pool.add(b, one);
        let (p1, q1) = (w.call(w.p, next), w.call(w.p16, next));
        atoms.extend([p1, q1]);
    } else {
        let total = w.call(w.p, m);
        let f = enter(w, &mut facts, &mut atoms, "f", total);
        let b = w.call(w.s, f);
        let start = w.call(w.p, b);
        let len = w.call(w.lens, b);
        let i = w.env.pool.sub(f, start);
        atoms.extend([b, start, len, i, total]);
        let e = w.env.pool.ceil_div(len, 4);
        let j = enter(w, &mut facts, &mut atoms, "j", e);
        let offset = w.env.pool.add(start, j);
        let row = w.call(w.s, offset);
        atoms.push(row);
    }
    (facts, atoms)
}

fn expression(w: &mut World, r: &mut Rng, atoms: &[ExprId], depth: u32) -> ExprId {
    if depth == 0 || r.below(6) == 0 {
        return if r.below(4) == 0 {
            let v = r.one_of(&[0, 1, 2, 3, 4, 7, 14, 16, 28, 64, -1, -3]);
            w.int(v)
        } else {
            r.one_of(atoms)
        };
    }
    let a = expression(w, r, atoms, depth - 1);
    match r.below(16) {
        0..=2 => {
            let b = expression(w, r, atoms, depth - 1);
            w.env.pool.add(a, b)
        }
        3 => {
            let b = expression(w, r, atoms, depth - 1);
            w.env.pool.sub(a, b)
        }
        4 | 5 => {
            let k = r.one_of(&[2, 4, 14, 16, -2]);
            let k = w.int(k);
            w.env.pool.mul(a, k)
        }
        6..=8 => {
            let k = r.one_of(&[2, 4, 7, 14, 16, 28]);
            let k = w.int(k);
            let op = r.one_of(&[BinOp::FloorDiv, BinOp::Mod]);
            w.env.pool.bin(op, a, k)
        }
        9 => {
            let b = expression(w, r, atoms, depth - 1);
            let op = r.one_of(&[BinOp::FloorDiv, BinOp::Mod]);
            w.env.pool.bin(op, a, b)
        }
        10..=12 => {
            let b = expression(w, r, atoms, depth - 1);
            let op = r.one_of(&[BinOp::Min, BinOp::Max]);
            w.env.pool.bin(op, a, b)
        }
        13 => {
            let b = expression(w, r, atoms, depth - 1);
            w.env.pool.mul(a, b)
        }
        _ => {
            let c = condition(w, r, atoms, depth - 1);
            let b = expression(w, r, atoms, depth - 1);
            w.env.pool.select(c, a, b)
        }
    }
}

fn condition(w: &mut World, r: &mut Rng, atoms: &[ExprId], depth: u32) -> ExprId {
    let d = depth.min(2);
    match r.below(8) {
        0 if depth > 0 => {
            let (a, b) = (condition(w, r, atoms, depth - 1), condition(w, r, atoms, depth - 1));
            let op = r.one_of(&[BinOp::And, BinOp::Or]);
            w.env.pool.bin(op, a, b)
        }
        1 if depth > 0 => {
            let a = condition(w, r, atoms, depth - 1);
            w.env.pool.un(UnOp::Not, a)
        }
        _ => {
            let (a, b) = (expression(w, r, atoms, d), expression(w, r, atoms, d));
            let op = r.one_of(&[BinOp::Lt, BinOp::Le, BinOp::Eq, BinOp::Ne, BinOp::Lt]);
            w.env.pool.bin(op, a, b)
        }
    }
}

#[test]
fn simplification_keeps_values() {
    let mut compared = 0u32;
    let mut changed = 0u32;
    let mut r = Rng(0x1234_5678_9abc_def1);
    for case in 0..3000u64 {
        let mut w = World::new();
        let (facts, atoms) = nest(&mut w, &mut r);
        let depth = 1 + r.below(4) as u32;
        let e = if r.below(3) == 0 {
            condition(&mut w, &mut r, &atoms, depth)
        } else {
            expression(&mut w, &mut r, &atoms, depth)
        };
        let mut prover = Prover::new();
        let s = simplify(&mut w.env, Some(&mut prover), &facts, e);
        changed += u32::from(s != e);
        let index = w.env.pool.ty(e).scalar == cora_ir::ScalarType::Index;
        let (range, class) = (bounds(&mut w.env, &facts, e), modulus(&mut w.env, &facts, e));
        for seed in 0..12 {
            let mut batch = Batch::new(case * 31 + seed);
            for i in 0..3 {
                let Some(vars) = batch.iteration(&w.env, &facts, seed * 7 + i) else { continue };
                let Some(before) = batch.eval(&w.env, e, &vars) else { continue };
                let after = batch.eval(&w.env, s, &vars);
                compared += 1;
                assert_eq!(
                    Some(before),
                    after,
                    "case {case}: {} became {} with {:?}",
                    show(&w.env, e),
                    show(&w.env, s),
                    batch.describe(&w.env, &vars)
                );
                if index {
                    let shown = show(&w.env, e);
                    assert!(range.contains(before), "case {case}: {shown} = {before}, not in {range:?}");
                    let off = before.wrapping_sub(class.residue);
                    let member = if class.modulus == 0 { off == 0 } else { off % class.modulus == 0 };
                    assert!(member, "case {case}: {shown} = {before}, not in {class:?}");
                }
            }
        }
    }
    assert!(compared > 15_000 && changed > 1_500, "{compared} comparisons, {changed} changed");
}

#[test]
fn proved_conditions_hold() {
    let mut r = Rng(0x0f1e_2d3c_4b5a_6978);
    let (mut proved, mut refuted, mut open) = (0u32, 0u32, 0u32);
    for case in 0..1000u64 {
        let mut w = World::new();
        let (facts, atoms) = nest(&mut w, &mut r);
        let goal = condition(&mut w, &mut r, &atoms, 2);
        let verdict = Prover::new().prove(&mut w.env, &facts, goal);
        match &verdict {
            cora_passes::simplify::Verdict::Proved(_) => proved += 1,
            cora_passes::simplify::Verdict::Refuted(..) => refuted += 1,
            cora_passes::simplify::Verdict::Unknown(_) => open += 1,
        }
        if !verdict.is_proved() {
            continue;
        }
        for seed in 0..24 {
            let mut batch = Batch::new(case * 57 + seed + 1000);
            for i in 0..3 {
                let Some(vars) = batch.iteration(&w.env, &facts, seed * 11 + i) else { continue };
                let value = batch.eval(&w.env, goal, &vars);
                assert_ne!(
                    value,
                    Some(0),
                    "case {case}: {} with {:?}",
                    show(&w.env, goal),
                    batch.describe(&w.env, &vars)
                );
            }
        }
    }
    println!("proved {proved}, refuted {refuted}, open {open}");
    assert!(proved > 60 && refuted > 200, "proved {proved}, refuted {refuted}, open {open}");
}

/// The exact range of `x // c - m * ((x + g) // (m*c))` is found without a solver, in both directions.
#[test]
fn quotients_by_multiples() {
    use cora_passes::simplify::{Stage, Verdict};
    for (c, m) in [(1, 3), (2, 2), (4, 4), (16, 4), (3, 5)] {
        for g in [-50, -17, -16, -3, -1, 0, 1, 3, 15, 16, 48, 63] {
            let mut w = World::new();
            let (_, x) = w.var("x");
            let (by, gap, whole, times) = (w.int(c), w.int(g), w.int(c * m), w.int(m));
            let shifted = w.env.pool.add(x, gap);
            let (p, q) = (w.env.pool.floor_div(x, by), w.env.pool.floor_div(shifted, whole));
            let scaled = w.env.pool.mul(q, times);
            let e = w.env.pool.sub(p, scaled);
            let value = |x: i64| x.div_euclid(c) - m * (x + g).div_euclid(c * m);
            let (least, greatest) =
                (-200..=200).fold((i64::MAX, i64::MIN), |(l, h), x| (l.min(value(x)), h.max(value(x))));
            let mut verdict = |lo: i64, hi: i64| {
                let (lo, hi) = (w.int(lo), w.int(hi));
                let (above, below) = (w.env.pool.le(lo, e), w.env.pool.le(e, hi));
                [above, below].map(|goal| Prover::new().prove(&mut w.env, &Facts::new(), goal))
            };
            for v in verdict(least, greatest) {
                assert!(matches!(v, Verdict::Proved(Stage::Affine | Stage::Linear)), "{c} {m} {g}: {v:?}");
            }
            for v in verdict(least + 1, greatest - 1) {
                assert!(matches!(v, Verdict::Refuted(..)), "{c} {m} {g}: {v:?}");
            }
        }
    }
}
