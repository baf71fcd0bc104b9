//! The first block of a blocked reduction writes its sums, instead of adding them to zeros written before.
//!
//! ```text
//! for %i in 0..%n { @Y[%i] = 0 }
//! for %kb in 0..%m { for %i in 0..%n { .. @Y[%i] = @Y[%i] + @R[0] } }
//!   =>  for %kb in 0..%m { for %i in 0..%n { .. if 0 < %kb { @Y[%i] = @Y[%i] + @R[0] } else { @Y[%i] = 0 + @R[0] } } }
//! ```
//!
//! That is a pass over the output less, which is in memory. It needs a first block: `0 < %m` is proved. What is added is the sum
//! of a block, from a buffer of the iteration's own: little is written twice.
//!
//! Requires: a name for each loop. Ensures: the elements written are the same, with the same values.

use super::Simplifier;
use super::place::{Place, Rewrite, Tables};
use cora_ir::affine::normalize;
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{BinOp, Env, Expr, ExprId, ScalarType, Scope, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Rewrites blocked reductions in every kernel for a CPU.
pub fn write_first_blocks(m: &mut StorageModule, simplifier: &mut dyn Simplifier) {
    let tables = Tables::of(m);
    for k in m.kernels.iter_mut().filter(|k| !k.is_grid()) {
        let mut cx = FirstBlock { env: &mut m.env, simplifier, place: Place::new(&tables) };
        let body = std::mem::take(&mut k.body);
        k.body = cx.body(body);
    }
}

#[derive(Clone, Copy)]
enum Around {
    Loop(VarId, ExprId, LoopKind),
    Cond(ExprId),
}

struct FirstBlock<'a> {
    env: &'a mut Env,
    simplifier: &'a mut dyn Simplifier,
    place: Place<'a>,
}

/// Loops and conditions around one store of a constant.
struct Initial {
    around: Vec<Around>,
    tensor: TensorId,
    index: ExprId,
    value: ExprId,
}

impl<'a> Rewrite<'a> for FirstBlock<'a> {
    fn at(&mut self) -> (&mut Env, &mut Place<'a>) {
        (self.env, &mut self.place)
    }

    fn body(&mut self, stmts: Vec<Stmt>) -> Vec<Stmt> {
        let mut out = Vec::with_capacity(stmts.len());
        let mut left = stmts.into_iter().peekable();
        while let Some(s) = left.next() {
            let next = left.peek_mut();
            let initial = self.initial(&s).zip(next);
            if !initial.is_some_and(|(initial, next)| self.written_by_first(&initial, next)) {
                out.push(self.inside(s));
            }
        }
        out
    }
}

impl FirstBlock<'_> {
    fn initial(&self, mut s: &Stmt) -> Option<Initial> {
        let mut around = Vec::new();
        loop {
            match s {
                Stmt::For { var, extent, kind, body } if !self.reads(*extent) => {
                    around.push(Around::Loop(*var, *extent, *kind));
                    let [inner] = &body[..] else { return None };
                    s = inner;
                }
                Stmt::If { cond, then, other } if other.is_empty() && !self.reads(*cond) => {
                    around.push(Around::Cond(*cond));
                    let [inner] = &then[..] else { return None };
                    s = inner;
                }
                Stmt::Store { tensor, index, value, mask: None, rest } if rest.is_empty() => {
                    let constant = matches!(self.env.pool.get(*value), Expr::Lit(_));
                    return (constant && !self.reads(*index)).then_some(Initial {
                        around,
                        tensor: *tensor,
                        index: *index,
                        value: *value,
                    });
                }
                _ => return None,
            }
        }
    }

    fn reads(&self, e: ExprId) -> bool {
        self.env.pool.any(e, &mut |e| matches!(e, Expr::Load { .. }))
    }

    /// Whether the first iteration of the loop writes what `initial` does; if so it no longer reads it.
    fn written_by_first(&mut self, initial: &Initial, s: &mut Stmt) -> bool {
        let Stmt::For { var, extent, kind: LoopKind::Serial, body } = s else { return false };
        let zero = self.env.pool.int(0);
        let some = self.env.pool.bin(BinOp::Lt, zero, *extent);
        if !self.updates(initial, body) || !(self.env.pool.as_bool(some) == Some(true) || self.proved(some)) {
            return false;
        }
        let block = self.env.pool.var(*var);
        let later = self.env.pool.bin(BinOp::Lt, zero, block);
        self.apart(initial, later, body);
        true
    }

    fn proved(&mut self, cond: ExprId) -> bool {
        !self.place.reads_elements(self.env, cond) && self.place.proved(self.env, self.simplifier, cond)
    }

    /// Whether the tensor is in memory and read and written by one statement of `body` alone, in loops as those of `initial`,
    /// each element for itself.
    fn updates(&mut self, initial: &Initial, body: &[Stmt]) -> bool {
        let t = initial.tensor;
        let mut concerned = 0;
        let pool = &self.env.pool;
        for s in body {
            s.walk(&mut |s| {
                let asked = matches!(s, Stmt::Prefetch { .. });
                let named = !asked && s.named_reads().contains(&t);
                let read = s.exprs().iter().any(|e| pool.reads(*e, t));
                concerned += usize::from(named || read || s.writes().contains(&t));
            });
        }
        let in_memory = self.env.tensors[t].scope != Scope::Reg && !initial.around.is_empty();
        in_memory && concerned == 1 && self.updated_in(initial, &initial.around, &mut FxHashMap::default(), body)
    }

    /// Whether a statement of `body` is the update, inside the loops and conditions that are left.
    fn updated_in(
        &mut self,
        initial: &Initial,
        left: &[Around],
        renamed: &mut FxHashMap<VarId, ExprId>,
        body: &[Stmt],
    ) -> bool {
        let t = initial.tensor;
        let Some(s) = body.iter().find(|s| s.any(&mut |s| s.writes().contains(&t))) else { return false };
        match (s, left) {
            (Stmt::For { var, extent, kind, body }, [Around::Loop(of, as_long, same), left @ ..]) => {
                if !self.alike(*as_long, renamed, *extent) || kind != same {
                    return false;
                }
                let var = self.env.pool.var(*var);
                renamed.insert(*of, var);
                self.updated_in(initial, left, renamed, body)
            }
            (Stmt::If { cond, then, other }, [Around::Cond(same), left @ ..]) => {
                self.alike(*same, renamed, *cond) && other.is_empty() && self.updated_in(initial, left, renamed, then)
            }
            (Stmt::Store { index, value, mask: None, rest, .. }, []) if rest.is_empty() => {
                let here = self.alike(initial.index, renamed, *index);
                let elsewhere = self.env.pool.any(*value, &mut |e| match e {
                    Expr::Load { tensor, index: at, guard, .. } if *tensor == t => {
                        at[..] != [*index] || guard.is_some()
                    }
                    Expr::Load { tensor, .. } => self.env.tensors[*tensor].scope == Scope::Global,
                    _ => false,
                });
                here && !elsewhere && self.env.pool.ty(*value).scalar != ScalarType::Bool
            }
            _ => false,
        }
    }

    fn alike(&mut self, initial: ExprId, renamed: &FxHashMap<VarId, ExprId>, e: ExprId) -> bool {
        let initial = self.env.pool.substitute(initial, renamed);
        normalize(&mut self.env.pool, initial) == normalize(&mut self.env.pool, e)
    }

    /// Splits the outermost statement of `body` that does nothing but the update: it updates where `later` holds and writes
    /// elsewhere.
    fn apart(&mut self, initial: &Initial, later: ExprId, body: &mut [Stmt]) {
        let t = initial.tensor;
        for s in body.iter_mut().filter(|s| s.any(&mut |s| s.writes().contains(&t))) {
            let around = |s: &Stmt| matches!(s, Stmt::For { .. } | Stmt::If { .. } | Stmt::Prefetch { .. });
            if !s.any(&mut |s| !around(s) && !s.writes().contains(&t)) {
                let mut first = s.clone();
                self.without_old_value(initial, &mut first);
                *s = Stmt::If { cond: later, then: vec![s.clone()], other: vec![first] };
            } else {
                s.bodies_mut().for_each(|b| self.apart(initial, later, b));
            }
        }
    }

    /// The initial value takes the place of the element that the update reads.
    fn without_old_value(&mut self, initial: &Initial, s: &mut Stmt) {
        match s {
            Stmt::Store { tensor, value, .. } if *tensor == initial.tensor => {
                *value = self.env.pool.rewrite(*value, &mut |pool, e| match pool.get(e) {
                    Expr::Load { tensor, .. } if *tensor == initial.tensor => Some(initial.value),
                    _ => None,
                });
            }
            s => s.bodies_mut().flatten().for_each(|s| self.without_old_value(initial, s)),
        }
    }
}
