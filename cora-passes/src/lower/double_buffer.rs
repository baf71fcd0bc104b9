//! Buffers of two slots: the next iteration's contents are made before this iteration's are used.
//!
//! ```text
//! for %k in 0..K { @L[%i] = @A[%k * 8 + %i]  .. @L[%i] .. }
//!   =>  if 0 < K { @L[%i] = @A[%i] }
//!       for %k in 0..K { if %k + 1 < K { @L[(%k + 1) % 2 * 8 + %i] = @A[(%k + 1) * 8 + %i] }  .. @L[%k % 2 * 8 + %i] .. }
//! ```
//!
//! Requires: storage of marked tensors, each used in one loop, right after lowering. Ensures: their buffers have twice the
//! elements, and every use is in a slot. Runs before functions are lowered, so that reads in the copy ahead are guarded
//! as any others.

use super::vectorize::substitute;
use cora_ir::layout::LayoutStep;
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{Diagnostic, Env, Expr, ExprId, TensorId, VarId};
use rustc_hash::FxHashMap;

/// The code of a buffer that cannot have two slots.
pub const REFUSAL: &str = "E0459";

/// Gives every marked buffer two slots.
///
/// # Errors
/// `E0459` a buffer whose next contents cannot be made ahead.
pub fn double_buffer(m: &mut StorageModule) -> Result<(), Diagnostic> {
    let marked: Vec<TensorId> =
        m.env.tensors.iter().filter(|(_, t)| t.layout.contains(&LayoutStep::Double)).map(|(id, _)| id).collect();
    let mut done = Vec::new();
    for t in marked {
        let tensors = stored_together(m.kernels.iter().flat_map(|k| &k.body), t);
        let own: Vec<usize> = (0..m.buffers.len()).filter(|&b| tensors.contains(&m.buffers[b].tensor)).collect();
        let Some(elems) = own.first().map(|&b| m.buffers[b].elems).filter(|_| !done.contains(&t)) else { continue };
        for k in &mut m.kernels {
            if accesses(&m.env, &k.body, &tensors) > 0 {
                Slots { env: &mut m.env, tensors: &tensors, elems }.in_body(&mut k.body, false)?;
            }
        }
        let two = m.env.pool.int(2);
        for b in own {
            m.buffers[b].elems = m.env.pool.mul(elems, two);
        }
        done.extend(tensors);
    }
    Ok(())
}

/// `t` and the tensors that statements store at the same index: the components of a tensor of tuples.
pub(super) fn stored_together<'a>(body: impl Iterator<Item = &'a Stmt>, t: TensorId) -> Vec<TensorId> {
    let mut all = vec![t];
    for s in body {
        s.walk(&mut |s| {
            let own = writes_itself(s);
            if own.contains(&t) {
                all.extend(own);
            }
        });
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// How many statements of `body` and below access any of `ts` themselves.
pub(super) fn accesses(env: &Env, body: &[Stmt], ts: &[TensorId]) -> usize {
    let mut n = 0;
    for s in body {
        s.walk(&mut |s| {
            n += usize::from(writes_itself(s).iter().any(|t| ts.contains(t)) || reads_itself(env, s, ts));
        });
    }
    n
}

fn writes_itself(s: &Stmt) -> Vec<TensorId> {
    match s {
        Stmt::Store { tensor, rest, .. } => std::iter::once(*tensor).chain(rest.iter().map(|r| r.0)).collect(),
        Stmt::Gemm(g) => vec![g.c.tensor],
        Stmt::Tile(t) => vec![t.c.tensor],
        Stmt::Shuffle { to, .. } => vec![*to],
        _ => vec![],
    }
}

fn reads_itself(env: &Env, s: &Stmt, ts: &[TensorId]) -> bool {
    let named = match s {
        Stmt::Gemm(g) => g.reads().any(|r| ts.contains(&r)),
        Stmt::Tile(t) => t.reads().iter().any(|r| ts.contains(r)),
        Stmt::Prefetch { tensor, .. } | Stmt::Shuffle { from: tensor, .. } => ts.contains(tensor),
        _ => false,
    };
    let is_read =
        |n: &Expr| matches!(n, Expr::Load { tensor, .. } | Expr::Search { table: tensor, .. } if ts.contains(tensor));
    named || exprs(s).into_iter().any(|e| env.pool.any(e, &mut |n| is_read(n)))
}

fn writes(s: &Stmt, ts: &[TensorId]) -> bool {
    written(s).iter().any(|t| ts.contains(t))
}

/// The tensors that a statement and those below it write.
fn written(s: &Stmt) -> Vec<TensorId> {
    let mut out = Vec::new();
    s.walk(&mut |s| out.extend(writes_itself(s)));
    out
}

fn reads(env: &Env, s: &Stmt, ts: &[TensorId]) -> bool {
    let mut found = false;
    s.walk(&mut |s| found |= reads_itself(env, s, ts));
    found
}

/// The expressions of a statement itself.
fn exprs(s: &Stmt) -> Vec<ExprId> {
    match s {
        Stmt::For { extent, .. } => vec![*extent],
        Stmt::If { cond, .. } => vec![*cond],
        Stmt::Let { value, .. } => vec![*value],
        Stmt::Store { index, value, mask, rest, .. } => {
            [*index, *value].into_iter().chain(*mask).chain(rest.iter().map(|r| r.1)).collect()
        }
        Stmt::Gemm(g) => g.exprs(),
        Stmt::Tile(t) => t.exprs(),
        Stmt::Prefetch { index, .. } => vec![*index],
        Stmt::Shuffle { .. } | Stmt::Barrier => vec![],
    }
}

struct Slots<'a> {
    env: &'a mut Env,
    /// The buffer; of tuples, those of the components.
    tensors: &'a [TensorId],
    /// Elements of one slot.
    elems: ExprId,
}

impl Slots<'_> {
    fn refuse(&self, fact: &str) -> Diagnostic {
        let name = &self.env.tensors[self.tensors[0]].name;
        Diagnostic::new(REFUSAL, format!("`{name}` cannot have two slots: {fact}"))
            .hint("it must be filled first in each iteration of a serial loop, from what the loop does not write")
    }

    /// Finds the innermost loop around all uses; `inside` says whether a loop was found around `body`.
    fn in_body(&mut self, body: &mut Vec<Stmt>, inside: bool) -> Result<(), Diagnostic> {
        let (env, t) = (&*self.env, self.tensors);
        let users: Vec<usize> = (0..body.len()).filter(|&n| reads(env, &body[n], t) || writes(&body[n], t)).collect();
        let [at] = users[..] else {
            let fact =
                if inside { "it is used under a condition inside the loop" } else { "no loop is around all its uses" };
            return Err(self.refuse(fact));
        };
        match &mut body[at] {
            Stmt::If { then, other, .. } if accesses(env, other, t) == 0 => self.in_body(then, inside),
            Stmt::For { var, extent, kind, body: inner } => {
                let several = inner.iter().filter(|s| reads(env, s, t) || writes(s, t)).count() > 1;
                if !several {
                    return self.in_body(inner, true);
                }
                let (var, extent, kind) = (*var, *extent, *kind);
                let first = self.rotate(var, extent, kind, inner)?;
                body.insert(at, first);
                Ok(())
            }
            _ => Err(self.refuse("no loop is around all its uses")),
        }
    }

    /// Rewrites a loop's body; what comes before the loop.
    fn rotate(&mut self, var: VarId, extent: ExprId, kind: LoopKind, body: &mut Vec<Stmt>) -> Result<Stmt, Diagnostic> {
        if !matches!(kind, LoopKind::Serial | LoopKind::Unroll) {
            return Err(self.refuse(&format!("the loop around its uses is {}", kind.name())));
        }
        let fill = self.fill(body)?;
        let (v, zero, one) = (self.env.pool.var(var), self.env.pool.int(0), self.env.pool.int(1));
        let next = self.env.pool.add(v, one);
        let first = self.at(&fill, var, zero);
        let ahead = self.at(&fill, var, next);
        let slot = self.slot(v);
        let rest: Vec<Stmt> = body.iter().filter(|s| !fill.contains(s)).map(|s| self.moved(s, slot)).collect();
        let (any, more) = (self.env.pool.lt(zero, extent), self.env.pool.lt(next, extent));
        let guarded = |cond, then| Stmt::If { cond, then, other: Vec::new() };
        *body = std::iter::once(guarded(more, ahead)).chain(rest).collect();
        Ok(guarded(any, first))
    }

    /// The statements that fill the buffer, which nothing in the loop stands against running ahead.
    fn fill(&self, body: &[Stmt]) -> Result<Vec<Stmt>, Diagnostic> {
        let (env, t) = (&*self.env, self.tensors);
        let (fill, rest): (Vec<&Stmt>, Vec<&Stmt>) = body.iter().partition(|s| writes(s, t));
        if fill.iter().any(|s| written(s).iter().any(|w| !t.contains(w))) {
            return Err(self.refuse("what fills it writes another tensor too"));
        }
        let last = body.iter().rposition(|s| writes(s, t)).unwrap_or(0);
        if body[..last].iter().any(|s| !writes(s, t) && reads(env, s, t)) {
            return Err(self.refuse("it is read before it is filled"));
        }
        let changed: Vec<TensorId> = rest.iter().flat_map(|s| written(s)).collect();
        if let Some(&w) = changed.iter().find(|&&w| fill.iter().any(|s| reads(env, s, &[w]))) {
            return Err(self.refuse(&format!("it is filled from `{}`, which the loop writes", env.tensors[w].name)));
        }
        if body.iter().any(|s| matches!(s, Stmt::Let { .. })) {
            return Err(self.refuse("the loop names values"));
        }
        Ok(fill.into_iter().cloned().collect())
    }

    /// The filling of iteration `i`, in its slot.
    fn at(&mut self, fill: &[Stmt], var: VarId, i: ExprId) -> Vec<Stmt> {
        let map: FxHashMap<VarId, ExprId> = [(var, i)].into_iter().collect();
        let slot = self.slot(i);
        let copies: Vec<Stmt> = fill.iter().map(|s| substitute(self.env, s, &map)).collect();
        copies.iter().map(|s| self.moved(s, slot)).collect()
    }

    /// Where the slot of iteration `i` begins.
    fn slot(&mut self, i: ExprId) -> ExprId {
        let two = self.env.pool.int(2);
        let parity = self.env.pool.modulo(i, two);
        let at = self.env.pool.mul(parity, self.elems);
        cora_ir::affine::normalize(&mut self.env.pool, at)
    }

    /// A statement with the buffer's elements `slot` further.
    fn moved(&mut self, s: &Stmt, slot: ExprId) -> Stmt {
        shifted(self.env, s, self.tensors, slot)
    }
}

/// A statement with every index into `tensors` moved by `by`; what is stored together is among them together.
pub(super) fn shifted(env: &mut Env, s: &Stmt, tensors: &[TensorId], by: ExprId) -> Stmt {
    let further = |p: &mut cora_ir::ExprPool, at: ExprId| {
        let lanes = p.ty(at).lanes;
        let by = p.splat(by, lanes);
        p.add(at, by)
    };
    let expr = |env: &mut Env, e: ExprId| {
        env.pool.rewrite(e, &mut |p, x| match p.get(x).clone() {
            Expr::Load { tensor: t, part, index, guard } if tensors.contains(&t) => {
                let ty = p.ty(x).scalar;
                let at = further(p, index[0]);
                Some(p.load_guarded((t, part), ty, [at], guard))
            }
            _ => None,
        })
    };
    let own =
        |env: &mut Env, t: TensorId, at: ExprId| if tensors.contains(&t) { further(&mut env.pool, at) } else { at };
    match s {
        Stmt::For { var, extent, kind, body } => {
            let extent = expr(env, *extent);
            let body = body.iter().map(|s| shifted(env, s, tensors, by)).collect();
            Stmt::For { var: *var, extent, kind: *kind, body }
        }
        Stmt::If { cond, then, other } => Stmt::If {
            cond: expr(env, *cond),
            then: then.iter().map(|s| shifted(env, s, tensors, by)).collect(),
            other: other.iter().map(|s| shifted(env, s, tensors, by)).collect(),
        },
        Stmt::Let { var, value } => Stmt::Let { var: *var, value: expr(env, *value) },
        Stmt::Store { tensor: t, index, value, mask, rest } => {
            let index = expr(env, *index);
            let (value, mask) = (expr(env, *value), mask.map(|m| expr(env, m)));
            let rest = rest.iter().map(|r| (r.0, expr(env, r.1))).collect();
            Stmt::Store { tensor: *t, index: own(env, *t, index), value, mask, rest }
        }
        Stmt::Gemm(g) => {
            let mut g = g.clone();
            g.map(&mut |e| expr(env, e));
            for m in [&mut g.c, &mut g.a, &mut g.b] {
                m.offset = own(env, m.tensor, m.offset);
            }
            Stmt::Gemm(g)
        }
        Stmt::Tile(t) => {
            let mut t = t.clone();
            t.map(&mut |e| expr(env, e));
            for m in [&mut t.c, &mut t.a, &mut t.b] {
                m.offset = own(env, m.tensor, m.offset);
            }
            Stmt::Tile(t)
        }
        Stmt::Prefetch { tensor: t, index, locality } => {
            let index = expr(env, *index);
            Stmt::Prefetch { tensor: *t, index: own(env, *t, index), locality: *locality }
        }
        Stmt::Shuffle { .. } | Stmt::Barrier => s.clone(),
    }
}
