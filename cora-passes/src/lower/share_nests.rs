//! Nests that compute the same are one.
//!
//! ```text
//! for i { N[i] = sum(d) X[i, d] * X[i, d] };  for i { Q[i] = sum(d) X[i, d] * X[i, d] };  .. Q[j] ..
//!   =>  for i { N[i] = sum(d) X[i, d] * X[i, d] };  .. N[j] ..
//! ```
//!
//! What a program writes twice is computed once, and matrices that several stages read in the same order of elements, such
//! as the weights of steps or layers that share them, are copied to that order once.
//!
//! Ensures: the same values; an output is not replaced.

use crate::schedule::tree::rewrite_readers;
use cora_ir::loops::{Block, BlockRole, For, LoopModule, Stmt};
use cora_ir::{Env, Expr, ExprId, ExprPool, Role, Scope, TensorDim, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Removes every top-level nest that writes the elements of an intermediate as an earlier one writes those of another.
pub fn share_nests(m: &mut LoopModule) {
    let mut n = 0;
    while n < m.body.len() {
        let found = written_alone(m, n).and_then(|own| {
            (0..n).find_map(|earlier| {
                let first = written_alone(m, earlier).filter(|&first| is_like(&m.env, first, own))?;
                let (body, pool) = (&m.body, &mut m.env.pool);
                Same::default().stmts(pool, &body[earlier], &body[n]).then_some((own, first))
            })
        });
        match found {
            Some((own, first)) => {
                m.body.remove(n);
                read_instead(m, own, first);
            }
            None => n += 1,
        }
    }
}

/// Replaces a tensor that is not written any more by another wherever it is read.
fn read_instead(m: &mut LoopModule, own: TensorId, first: TensorId) {
    rewrite_readers(&mut m.env.pool, own, &mut m.body, &mut |pool, e, _| {
        pool.rewrite(e, &mut |pool, e| match pool.get(e).clone() {
            Expr::Load { tensor, part, index, guard } if tensor == own => {
                let ty = pool.ty(e).scalar;
                Some(pool.load_guarded((first, part), ty, index, guard))
            }
            _ => None,
        })
    });
    ask_instead(&mut m.body, own, first);
}

/// The same for what caches are asked for.
fn ask_instead(body: &mut [Stmt], own: TensorId, first: TensorId) {
    for s in body {
        if let Stmt::For(l) = s {
            l.prefetch.iter_mut().filter(|p| p.tensor == own).for_each(|p| p.tensor = first);
            ask_instead(&mut l.body, own, first);
        }
    }
}

/// The intermediate in global memory whose elements a nest, and no other, writes; nothing where it writes others too, or goes
/// on from what it reads.
fn written_alone(m: &LoopModule, nest: usize) -> Option<TensorId> {
    let Stmt::For(l) = &m.body[nest] else { return None };
    let (tensor, mut alone) = (l.stage, true);
    m.body[nest].walk(&mut |s| {
        alone &= match s {
            Stmt::For(l) => l.stage == tensor && l.prefetch.is_empty(),
            Stmt::Block(b) => {
                b.stage == tensor && b.tensor == tensor && !b.continues && !m.env.pool.reads(b.value, tensor)
            }
        };
    });
    let t = &m.env.tensors[tensor];
    let others =
        m.body.iter().enumerate().any(|(n, s)| n != nest && s.concerned().may_have(tensor) && writes(s, tensor));
    (alone && !others && t.role == Role::Temp && t.scope == Scope::Global).then_some(tensor)
}

fn writes(s: &Stmt, tensor: TensorId) -> bool {
    let mut found = false;
    s.walk(&mut |s| found |= matches!(s, Stmt::Block(b) if b.tensor == tensor));
    found
}

/// Whether two tensors differ in their names alone.
fn is_like(env: &Env, x: TensorId, y: TensorId) -> bool {
    let (x, y) = (&env.tensors[x], &env.tensors[y]);
    let sizes = |(a, b): (&TensorDim, &TensorDim)| a.extent == b.extent && a.storage == b.storage;
    x.ty == y.ty
        && x.tuple == y.tuple
        && x.dims.len() == y.dims.len()
        && x.dims.iter().zip(&y.dims).all(sizes)
        && x.range == y.range
        && x.layout == y.layout
}

/// A comparison of two nests.
#[derive(Default)]
struct Same {
    /// The first one's variables for those of the other.
    vars: FxHashMap<VarId, ExprId>,
}

impl Same {
    fn stmts(&mut self, pool: &mut ExprPool, x: &Stmt, y: &Stmt) -> bool {
        match (x, y) {
            (Stmt::For(x), Stmt::For(y)) => self.loops(pool, x, y),
            (Stmt::Block(x), Stmt::Block(y)) => self.blocks(pool, x, y),
            _ => false,
        }
    }

    fn loops(&mut self, pool: &mut ExprPool, x: &For, y: &For) -> bool {
        if x.kind != y.kind
            || x.init != y.init
            || x.body.len() != y.body.len()
            || !self.exprs(pool, &[x.extent], &[y.extent])
        {
            return false;
        }
        self.vars.insert(y.var, pool.var(x.var));
        x.body.iter().zip(y.body.iter()).all(|(x, y)| self.stmts(pool, x, y))
    }

    fn blocks(&mut self, pool: &mut ExprPool, x: &Block, y: &Block) -> bool {
        if x.role != y.role || x.atomic != y.atomic || x.iters.len() != y.iters.len() {
            return false;
        }
        for (x, y) in x.iters.iter().zip(&y.iters) {
            if x.kind != y.kind || !self.exprs(pool, &[x.extent, x.binding], &[y.extent, y.binding]) {
                return false;
            }
            self.vars.insert(y.var, pool.var(x.var));
        }
        let init = x.role == BlockRole::Init;
        self.exprs(pool, &x.predicate, &y.predicate)
            && self.exprs(pool, &x.index, &y.index)
            && (init || self.exprs(pool, &[x.value], &[y.value]))
    }

    fn exprs(&mut self, pool: &mut ExprPool, x: &[ExprId], y: &[ExprId]) -> bool {
        x.len() == y.len() && x.iter().zip(y).all(|(&x, &y)| x == y || x == pool.substitute(y, &self.vars))
    }
}
