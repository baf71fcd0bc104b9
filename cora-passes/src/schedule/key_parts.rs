//! Long keys of `remap` in parts: what a key searches for is a table of its own.
//!
//! ```text
//! order = sort_desc g(at(h($0)), at(h($0)) ..)   =>   order = sort_desc g(part($0), part($0) ..)
//!                                                     part = map at(h($0))
//! ```
//!
//! The prelude evaluates keys as trees, in which each guarded read of a table has its index three times, so searches inside
//! searches grow threefold with every level.
//!
//! Requires: a key over the arguments of the order. Ensures: the same key; a part has a value for all arguments, 0 where
//! the key does not ask for it.

use cora_ir::{BinOp, Env, Expr, ExprId, ExprPool, UfDef, UnOp};
use rustc_hash::FxHashMap;

/// Keys of fewer nodes stay whole.
const LONG: usize = 128;

/// `key`, over `domain`, with its searches as functions called after `name` if it is long.
pub(super) fn in_parts(env: &mut Env, name: &str, domain: &[ExprId], key: ExprId) -> ExprId {
    if nodes(&env.pool, key, &mut FxHashMap::default()) < LONG {
        return key;
    }
    Parts { env, name, domain, done: FxHashMap::default() }.rewrite(key, None)
}

/// The nodes of `e` as a tree.
fn nodes(pool: &ExprPool, e: ExprId, seen: &mut FxHashMap<ExprId, usize>) -> usize {
    if let Some(&n) = seen.get(&e) {
        return n;
    }
    let n = pool.children(e).into_iter().fold(1_usize, |n, k| n.saturating_add(nodes(pool, k, seen)));
    seen.insert(e, n);
    n
}

struct Parts<'a> {
    env: &'a mut Env,
    name: &'a str,
    domain: &'a [ExprId],
    done: FxHashMap<(ExprId, Option<ExprId>), ExprId>,
}

impl Parts<'_> {
    /// `e`, which is evaluated where `cond` holds.
    fn rewrite(&mut self, e: ExprId, cond: Option<ExprId>) -> ExprId {
        if let Some(&done) = self.done.get(&(e, cond)) {
            return done;
        }
        let new = match self.env.pool.get(e).clone() {
            Expr::Select(c, a, b) => {
                let c = self.rewrite(c, cond);
                let not = self.env.pool.un(UnOp::Not, c);
                let (then, other) = (self.both(cond, c), self.both(cond, not));
                let (a, b) = (self.rewrite(a, Some(then)), self.rewrite(b, Some(other)));
                self.env.pool.select(c, a, b)
            }
            // The second operand counts only where the first does not decide.
            Expr::Bin(op @ (BinOp::And | BinOp::Or), a, b) => {
                let a = self.rewrite(a, cond);
                let decides = if op == BinOp::And { a } else { self.env.pool.un(UnOp::Not, a) };
                let undecided = self.both(cond, decides);
                let b = self.rewrite(b, Some(undecided));
                self.env.pool.bin(op, a, b)
            }
            Expr::Call(f, args) => {
                let args: Vec<ExprId> = args.iter().map(|&a| self.rewrite(a, cond)).collect();
                let call = self.env.pool.call(f, args);
                let varies = self.env.pool.any(call, &mut |n| matches!(n, Expr::Arg(_)));
                if varies && matches!(self.env.ufs[f].def, UfDef::Search { .. }) { self.part(call, cond) } else { call }
            }
            _ => {
                let kids = self.env.pool.children(e);
                let kids: Vec<ExprId> = kids.into_iter().map(|k| self.rewrite(k, cond)).collect();
                self.env.pool.with_children(e, &kids)
            }
        };
        self.done.insert((e, cond), new);
        new
    }

    fn both(&mut self, cond: Option<ExprId>, c: ExprId) -> ExprId {
        cond.map_or(c, |cond| self.env.pool.and(cond, c))
    }

    /// A function that is `search` where `cond` holds, called.
    fn part(&mut self, search: ExprId, cond: Option<ExprId>) -> ExprId {
        let pool = &mut self.env.pool;
        let zero = pool.int(0);
        let body = cond.map_or(search, |c| pool.select(c, search, zero));
        let f = self.env.uf(&format!("{}.at", self.name), self.domain.to_vec(), UfDef::Map { body });
        let all: Vec<ExprId> = (0..self.domain.len()).map(|n| self.env.pool.arg(n as u32)).collect();
        self.env.pool.call(f, all)
    }
}
