//! Conditions that programs need proved, and neighbours of them that are false.

use crate::world::{World, show};
use cora_ir::{ExprId, VarId};
use cora_passes::simplify::{Facts, Prover, Verdict, simplify};

type Loop = (VarId, ExprId);

fn check(w: &mut World, loops: &[Loop], assumed: &[ExprId], goal: ExprId) -> Verdict {
    let mut facts = Facts::in_loops(loops.iter().copied());
    facts.assumptions.extend_from_slice(assumed);
    Prover::new().prove(&mut w.env, &facts, goal)
}

#[track_caller]
fn holds(w: &mut World, loops: &[Loop], assumed: &[ExprId], goal: ExprId) {
    let v = check(w, loops, assumed, goal);
    assert!(v.is_proved(), "{}: {v:?}", show(&w.env, goal));
}

#[track_caller]
fn fails(w: &mut World, loops: &[Loop], assumed: &[ExprId], goal: ExprId) {
    let v = check(w, loops, assumed, goal);
    assert!(matches!(v, Verdict::Refuted(..)), "{}: {v:?}", show(&w.env, goal));
}

#[track_caller]
fn becomes(w: &mut World, loops: &[Loop], e: ExprId, expected: ExprId) {
    let facts = Facts::in_loops(loops.iter().copied());
    let mut prover = Prover::new();
    let got = simplify(&mut w.env, Some(&mut prover), &facts, e);
    let want = simplify(&mut w.env, Some(&mut prover), &facts, expected);
    assert_eq!(got, want, "{} became {}, not {}", show(&w.env, e), show(&w.env, got), show(&w.env, want));
}

/// Loops b and a split i of 14: `(b, io, ii)` and the position `14*io + ii`.
fn tiled(w: &mut World, exact: bool) -> (Vec<Loop>, ExprId, ExprId) {
    let (b, be) = w.var("b");
    let (qo, qoe) = w.var("qo");
    let (qi, qie) = w.var("qi");
    let len = w.call(w.lens, be);
    let outer = w.env.pool.ceil_div(len, 14);
    let k = w.int(14);
    let done = w.env.pool.mul(qoe, k);
    let left = w.env.pool.sub(len, done);
    let inner = if exact { w.env.pool.min(k, left) } else { k };
    let at = w.env.pool.add(done, qie);
    (vec![(b, w.m), (qo, outer), (qi, inner)], be, at)
}

#[test]
fn exact_tails_need_no_guard() {
    let mut w = World::new();
    let (loops, b, at) = tiled(&mut w, true);
    let len = w.call(w.lens, b);
    let goal = w.env.pool.lt(at, len);
    holds(&mut w, &loops, &[], goal);
}

#[test]
fn full_tails_need_their_guard() {
    let mut w = World::new();
    let (loops, b, at) = tiled(&mut w, false);
    let len = w.call(w.lens, b);
    let goal = w.env.pool.lt(at, len);
    fails(&mut w, &loops, &[], goal);
    let padded = w.env.pool.round_up(len, 14);
    let goal = w.env.pool.lt(at, padded);
    holds(&mut w, &loops, &[], goal);
    // The first element of a tile is always inside.
    let first = w.env.pool.var(loops[1].0);
    let k = w.int(14);
    let first = w.env.pool.mul(first, k);
    let goal = w.env.pool.lt(first, len);
    holds(&mut w, &loops, &[], goal);
}

#[test]
fn offsets_stay_inside_storage() {
    for exact in [true, false] {
        let mut w = World::new();
        let (loops, b, at) = tiled(&mut w, exact);
        let row = w.call(w.p, b);
        let total = w.call(w.p, w.m);
        let offset = w.env.pool.add(row, at);
        let inside = w.env.pool.lt(offset, total);
        let len = w.call(w.lens, b);
        let mask = w.env.pool.lt(at, len);
        if exact {
            holds(&mut w, &loops, &[], inside);
        } else {
            fails(&mut w, &loops, &[], inside);
            holds(&mut w, &loops, &[mask], inside);
        }
        // Elements of 512 in each position.
        let (d, de) = w.var("d");
        let n = w.int(512);
        let wide = w.tile(offset, 512, de);
        let wide_total = w.env.pool.mul(total, n);
        let goal = w.env.pool.lt(wide, wide_total);
        let mut more = loops.clone();
        more.push((d, n));
        holds(&mut w, &more, &[mask], goal);
    }
}

#[test]
fn multiples_split_evenly() {
    let mut w = World::new();
    let m = w.m;
    let (b, be) = w.var("b");
    let (xo, xoe) = w.var("xo");
    let (xi, xie) = w.var("xi");
    let len = w.call(w.lens, be);
    let extent = w.env.pool.round_up(len, 64);
    for tile in [16, 64] {
        let outer = w.env.pool.ceil_div(extent, tile);
        let inner = w.int(tile);
        let at = w.tile(xoe, tile, xie);
        let goal = w.env.pool.lt(at, extent);
        holds(&mut w, &[(b, m), (xo, outer), (xi, inner)], &[], goal);
    }
    let outer = w.env.pool.ceil_div(extent, 48);
    let inner = w.int(48);
    let at = w.tile(xoe, 48, xie);
    let goal = w.env.pool.lt(at, extent);
    fails(&mut w, &[(b, m), (xo, outer), (xi, inner)], &[], goal);
}

/// A tile before the last one is full: `t < ceil(n / 16)` says `t <= n // 16`, and no more.
#[test]
fn tiles_before_the_last_are_full() {
    let mut w = World::new();
    let (b, be) = w.var("b");
    let (t, te) = w.var("t");
    let loops = [(b, w.m), (t, w.int(100))];
    let len = w.call(w.lens, be);
    let (tiles, sixteen) = (w.env.pool.ceil_div(len, 16), w.int(16));
    let full = w.env.pool.floor_div(len, sixteen);
    let exists = w.env.pool.lt(te, tiles);
    let goal = w.env.pool.le(te, full);
    holds(&mut w, &loops, &[exists], goal);
    let wrong = w.env.pool.lt(te, full);
    fails(&mut w, &loops, &[exists], wrong);
}

#[test]
fn square_offsets_stay_inside() {
    // p2(b) + q*lens(b) + k < p2(M)
    let mut w = World::new();
    let m = w.m;
    let ((b, be), (q, qe), (k, ke)) = (w.var("b"), w.var("q"), w.var("k"));
    let (len, row, total) = (w.call(w.lens, be), w.call(w.p2, be), w.call(w.p2, w.m));
    let ql = w.env.pool.mul(qe, len);
    let at = w.env.pool.add(row, ql);
    let at = w.env.pool.add(at, ke);
    let goal = w.env.pool.lt(at, total);
    holds(&mut w, &[(b, m), (q, len), (k, len)], &[], goal);
    let (h, he) = w.var("h");
    let eight = w.int(8);
    // 8*p2(b) + h*len*len + q*len + k
    let hl = w.env.pool.mul(he, len);
    let hlq = w.env.pool.add(hl, qe);
    let hlq = w.env.pool.mul(hlq, len);
    let start = w.env.pool.mul(row, eight);
    let at = w.env.pool.add(start, hlq);
    let at = w.env.pool.add(at, ke);
    let all = w.env.pool.mul(total, eight);
    let goal = w.env.pool.lt(at, all);
    holds(&mut w, &[(b, m), (h, eight), (q, len), (k, len)], &[], goal);
}

#[test]
fn triangular_offsets_stay_inside() {
    // i*(i+1)/2 + j < n*(n+1)/2 for j <= i < n
    let mut w = World::new();
    let ((i, ie), (j, je)) = (w.var("i"), w.var("j"));
    let one = w.int(1);
    let extent = w.env.pool.add(ie, one);
    let a0 = w.env.pool.arg(0);
    let body = w.env.pool.add(a0, one);
    let m = w.m;
    let row = w.env.sum_upto("tri", &[m], body, &[], ie);
    let total = w.env.sum_upto("tri", &[m], body, &[], m);
    let at = w.env.pool.add(row, je);
    let goal = w.env.pool.lt(at, total);
    holds(&mut w, &[(i, m), (j, extent)], &[], goal);
    let more = w.env.pool.add(at, one);
    let goal = w.env.pool.lt(more, total);
    fails(&mut w, &[(i, m), (j, extent)], &[], goal);
}

#[test]
fn fused_loops_find_their_rows() {
    let mut w = World::new();
    let (f, fe) = w.var("f");
    let total = w.call(w.p, w.m);
    let loops = [(f, total)];
    let b = w.call(w.s, fe);
    let start = w.call(w.p, b);
    let i = w.env.pool.sub(fe, start);
    let len = w.call(w.lens, b);
    let zero = w.int(0);
    for goal in [w.env.pool.lt(i, len), w.env.pool.le(zero, i), w.env.pool.lt(b, w.m), w.env.pool.le(zero, b)] {
        holds(&mut w, &loops, &[], goal);
    }
    // The offset of A[b, i] is f.
    let offset = w.env.pool.add(start, i);
    becomes(&mut w, &loops, offset, fe);
    // Searching for the offset of (b, i) finds b again.
    let again = w.call(w.s, offset);
    becomes(&mut w, &loops, again, b);
    // One row more than there are is not to be had.
    let one = w.int(1);
    let next = w.env.pool.add(b, one);
    let goal = w.env.pool.lt(next, w.m);
    fails(&mut w, &loops, &[], goal);
    let goal = w.env.pool.lt(zero, i);
    fails(&mut w, &loops, &[], goal);
}

#[test]
fn nested_loops_find_their_rows() {
    let mut w = World::new();
    let m = w.m;
    let ((b, be), (i, ie)) = (w.var("b"), w.var("i"));
    let (len, start) = (w.call(w.lens, be), w.call(w.p, be));
    let loops = [(b, w.m), (i, len)];
    let f = w.env.pool.add(start, ie);
    let found = w.call(w.s, f);
    becomes(&mut w, &loops, found, be);
    let back = w.call(w.p, found);
    let inner = w.env.pool.sub(f, back);
    becomes(&mut w, &loops, inner, ie);
    // Without the range of i it would not be b.
    let many = w.int(512);
    let same = w.env.pool.bin(cora_ir::BinOp::Eq, found, be);
    let v = check(&mut w, &[(b, m), (i, many)], &[], same);
    assert!(!v.is_proved(), "{v:?}");
}

#[test]
fn bulk_padded_tiles_need_the_guard() {
    let mut w = World::new();
    let ((t, te), (i, ie)) = (w.var("t"), w.var("i"));
    let total = w.call(w.p, w.m);
    let tiles = w.env.pool.ceil_div(total, 64);
    let k = w.int(64);
    let f = w.tile(te, 64, ie);
    let loops = [(t, tiles), (i, k)];
    let guard = w.env.pool.lt(f, total);
    fails(&mut w, &loops, &[], guard);
    let padded = w.env.pool.round_up(total, 64);
    let inside = w.env.pool.lt(f, padded);
    holds(&mut w, &loops, &[], inside);
    let b = w.call(w.s, f);
    let start = w.call(w.p, b);
    let i = w.env.pool.sub(f, start);
    let len = w.call(w.lens, b);
    let goal = w.env.pool.lt(i, len);
    holds(&mut w, &loops, &[guard], goal);
    let v = check(&mut w, &loops, &[], goal);
    assert!(!v.is_proved(), "{v:?}");
}

#[test]
fn padded_rows_of_a_fused_loop() {
    // Rows padded to 16 are fused and tiled by 16: each tile is in one row.
    let mut w = World::new();
    let ((t, te), (i, ie)) = (w.var("t"), w.var("i"));
    let total = w.call(w.p16, w.m);
    let tiles = w.env.pool.ceil_div(total, 16);
    let k = w.int(16);
    let f = w.tile(te, 16, ie);
    let loops = [(t, tiles), (i, k)];
    let goal = w.env.pool.lt(f, total);
    holds(&mut w, &loops, &[], goal);
    let b = w.call(w.s16, f);
    let start = w.call(w.p16, b);
    let inner = w.env.pool.sub(f, start);
    let len = w.call(w.lens, b);
    let padded = w.env.pool.round_up(len, 16);
    let goal = w.env.pool.lt(inner, padded);
    holds(&mut w, &loops, &[], goal);
}

#[test]
fn lengths_are_below_their_maximum() {
    let mut w = World::new();
    let m = w.m;
    let ((b, be), (q, qe)) = (w.var("b"), w.var("q"));
    let len = w.call(w.lens, be);
    let most = w.env.pool.call(w.longest, []);
    let goal = w.env.pool.lt(qe, most);
    holds(&mut w, &[(b, m), (q, len)], &[], goal);
    let k = w.env.pool.ceil_div(len, 32);
    let kmost = w.env.pool.ceil_div(most, 32);
    let goal = w.env.pool.le(k, kmost);
    holds(&mut w, &[(b, m)], &[], goal);
    let sorted = w.call(w.order, be);
    let goal = w.env.pool.lt(sorted, w.m);
    holds(&mut w, &[(b, m)], &[], goal);
}
