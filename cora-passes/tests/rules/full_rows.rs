//! Sums over tiles in closed form, against the terms added one by one.

use cora_ir::env::Param;
use cora_ir::{Env, Expr, ExprId};
use cora_passes::execution::world::World;
use rustc_hash::FxHashMap;

struct Tiles {
    env: Env,
    n: ExprId,
    x: ExprId,
}

impl Tiles {
    fn new() -> Self {
        let mut env = Env::default();
        let n = env.params.push(Param { name: "n".into(), lo: 0, hi: 100 });
        let (n, x) = (env.pool.param(n), env.pool.arg(0));
        Self { env, n, x }
    }

    /// What is left of `n` before tile x of `c`: `n - c * x`.
    fn left(&mut self, n: ExprId, c: i64) -> ExprId {
        let c = self.env.pool.int(c);
        let before = self.env.pool.mul(c, self.x);
        self.env.pool.sub(n, before)
    }

    /// `max(min(c, e), 0)`
    fn clamp(&mut self, c: i64, e: ExprId) -> ExprId {
        let (c, zero) = (self.env.pool.int(c), self.env.pool.int(0));
        let e = self.env.pool.min(c, e);
        self.env.pool.max(e, zero)
    }

    /// Whether the sums are in closed form; they are what the terms add up to, and each position is found in its row.
    #[track_caller]
    fn closed(&mut self, rows: ExprId, body: ExprId) -> bool {
        let f = self.env.new_var("x");
        let (at, domain) = (self.env.pool.var(f), [rows]);
        let before = self.env.sum_before("t", &domain, body, &[], at);
        let upto = self.env.sum_upto("t", &domain, body, &[], at);
        let all = self.env.sum_upto("t", &domain, body, &[], rows);
        let row = self.env.search_row("t", &domain, body, &[], at);
        for n in 0..=100 {
            let world = World { env: &self.env, params: vec![n], tables: FxHashMap::default() };
            let eval = |e, x| world.eval(e, &[x], &[(f, x)]).expect("a value");
            let (count, mut sum) = (eval(rows, 0), 0);
            for x in 0..count {
                assert_eq!((eval(before, x), eval(upto, x)), (sum, sum), "n = {n}, row {x}");
                let size = eval(body, x);
                (sum..sum + size).for_each(|p| assert_eq!(eval(row, p), x, "n = {n}, position {p}"));
                sum += size;
            }
            assert_eq!((eval(upto, count.max(0)), eval(all, 0)), (sum, sum), "n = {n}");
        }
        ![before, upto, all, row].iter().any(|&e| self.env.pool.any(e, &mut |n| matches!(n, Expr::Call(..))))
    }
}

#[test]
fn tiles() {
    for c in [1, 3, 8] {
        let mut t = Tiles::new();
        let rows = t.env.pool.ceil_div(t.n, c);
        let left = t.left(t.n, c);
        let body = t.clamp(c, left);
        assert!(t.closed(rows, body), "{c}");
        let smaller = t.clamp(c, t.n);
        let (fewer, three) = (t.env.pool.min(rows, smaller), t.env.pool.int(3));
        let thrice = t.env.pool.mul(three, body);
        assert!(t.closed(rows, thrice) && t.closed(fewer, body), "{c}");
    }
}

#[test]
fn tiles_of_tiles() {
    for (c, d) in [(8, 3), (8, 4), (6, 6), (5, 7), (9, 2)] {
        let mut t = Tiles::new();
        let rows = t.env.pool.ceil_div(t.n, c);
        let left = t.left(t.n, c);
        let parts = t.env.pool.ceil_div(left, d);
        let count = (c - 1) / d + 1;
        let body = t.clamp(count, parts);
        assert!(t.closed(rows, body), "{c} {d}");
        // Rows that are shorter, of one more and of one less than are full.
        for other in [count - 1, count + 1] {
            let body = t.clamp(other, parts);
            t.closed(rows, body);
        }
    }
}

#[test]
fn constants() {
    let mut t = Tiles::new();
    let n = t.env.pool.int(100);
    for (c, d) in [(32, 12), (32, 1), (25, 5), (99, 1), (100, 7)] {
        let rows = t.env.pool.int((100 - 1) / c + 1);
        let left = t.left(n, c);
        let parts = t.env.pool.ceil_div(left, d);
        let body = t.clamp((c - 1) / d + 1, parts);
        assert!(t.closed(rows, body), "{c} {d}");
    }
}

/// Windows at the end of a row, triangles and more rows than there are elements have no such form, or the right one.
#[test]
fn other_rows() {
    let mut t = Tiles::new();
    let left = t.left(t.n, 1);
    let window = t.clamp(4, left);
    assert!(!t.closed(t.n, window));
    let left = t.left(t.n, 8);
    let (tile, one) = (t.clamp(8, left), t.env.pool.int(1));
    let more = t.env.pool.ceil_div(t.n, 8);
    let more = t.env.pool.add(more, one);
    t.closed(more, tile);
    let fewer = t.env.pool.floor_div(t.n, one);
    let eight = t.env.pool.int(8);
    let fewer = t.env.pool.floor_div(fewer, eight);
    t.closed(fewer, tile);
    let small = t.clamp(5, left);
    t.closed(more, small);
}
