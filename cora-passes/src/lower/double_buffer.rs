//! Buffers of several slots: the contents of later iterations are made before this iteration's are used.
//!
//! ```text
//! for %k in 0..K { @L[%i] = @A[%k * 8 + %i]  .. @L[%i] .. }
//!   =>  if 0 < K { @L[%i] = @A[%i] }
//!       for %k in 0..K { if %k + 1 < K { @L[(%k + 1) % 2 * 8 + %i] = @A[(%k + 1) * 8 + %i] }  .. @L[%k % 2 * 8 + %i] .. }
//! ```
//!
//! What fills a shared buffer of a grid may go on beside the threads (`copy`): the contents of one iteration are a group,
//! and an iteration begins by waiting for its own. The barrier that threads need between iterations anyway then stands
//! between that and the uses, and before what fills the slot that was used last.
//!
//! Where several buffers of a loop are filled so, it has one wait, at its very beginning: for the buffer with the fewest
//! slots, whose contents are in as late a group as any that are needed.
//!
//! A box that the copy engine brings (`bulk`) is asked for in the same place, and waited for by slot, after what is asked
//! for ahead. A slot takes one box an iteration.
//!
//! Of a ring of at least four slots that tensor instructions read beside their threads, one slot is left out of the
//! contents ahead: the instructions of the last iteration still read it when this iteration's are under way
//! (`await-tiles`).
//!
//! Requires: storage of marked tensors, each used in one loop, right after lowering. Ensures: their buffers have as many
//! times the elements, and every use is in a slot. Runs before functions are lowered, so that reads in the copy ahead are
//! guarded as any others.

use super::vectorize::substitute_all;
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{Diagnostic, Env, Expr, ExprId, Scope, TensorId, VarId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;

/// From so many slots on one is left to the instructions of the last iteration.
const LONG_RING: i64 = 4;

/// The code of a buffer that cannot have several slots.
pub const REFUSAL: &str = "E0459";

/// Gives every marked buffer its slots.
///
/// # Errors
/// `E0459` a buffer whose next contents cannot be made ahead.
pub fn double_buffer(m: &mut StorageModule) -> Result<(), Diagnostic> {
    let marked: Vec<(TensorId, i64)> = m.env.tensors.iter().filter_map(|(id, t)| Some((id, t.slots()?))).collect();
    let mut done = Vec::new();
    let users = if marked.is_empty() { FxHashMap::default() } else { users(m) };
    for (t, slots) in marked {
        let with = |t: &TensorId| users.get(t).map_or(&[][..], Vec::as_slice);
        let tensors = stored_together(with(&t).iter().flat_map(|&n| &m.kernels[n].body), t);
        let own: Vec<usize> = (0..m.buffers.len()).filter(|&b| tensors.contains(&m.buffers[b].tensor)).collect();
        let Some(elems) = own.first().map(|&b| m.buffers[b].elems).filter(|_| !done.contains(&t)) else { continue };
        let kernels: BTreeSet<usize> = tensors.iter().flat_map(with).copied().collect();
        for n in kernels {
            let k = &mut m.kernels[n];
            if accesses(&m.env, &k.body, &tensors) > 0 {
                let beside = k.is_grid() && m.env.tensors[t].scope == Scope::Shared;
                Slots { env: &mut m.env, tensors: &tensors, elems, slots, beside }.in_body(&mut k.body, None)?;
            }
        }
        let slots = m.env.pool.int(slots);
        for b in own {
            m.buffers[b].elems = m.env.pool.mul(elems, slots);
        }
        done.extend(tensors);
    }
    Ok(())
}

/// The kernels that use each tensor, in order.
fn users(m: &StorageModule) -> FxHashMap<TensorId, Vec<usize>> {
    let mut users: FxHashMap<TensorId, Vec<usize>> = FxHashMap::default();
    for (n, k) in m.kernels.iter().enumerate() {
        let (mut used, mut seen) = (BTreeSet::new(), FxHashSet::default());
        for s in &k.body {
            s.walk(&mut |s| {
                used.extend(s.writes().into_iter().chain(s.named_reads()));
                for e in s.exprs() {
                    m.env.pool.walk_seen(e, &mut seen, &mut |_, n| {
                        if let Expr::Load { tensor, .. } | Expr::Search { table: tensor, .. } = n {
                            used.insert(*tensor);
                        }
                    });
                }
            });
        }
        used.into_iter().for_each(|t| users.entry(t).or_default().push(n));
    }
    users
}

/// `t` and the tensors that statements store at the same index: the components of a tensor of tuples.
pub(super) fn stored_together<'a>(body: impl Iterator<Item = &'a Stmt>, t: TensorId) -> Vec<TensorId> {
    let mut all = vec![t];
    for s in body {
        s.walk(&mut |s| {
            let own = s.writes();
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
            n += usize::from(s.writes().iter().any(|t| ts.contains(t)) || reads_itself(env, s, ts));
        });
    }
    n
}

fn reads_itself(env: &Env, s: &Stmt, ts: &[TensorId]) -> bool {
    let named = s.named_reads().iter().any(|r| ts.contains(r));
    let is_read =
        |n: &Expr| matches!(n, Expr::Load { tensor, .. } | Expr::Search { table: tensor, .. } if ts.contains(tensor));
    named || s.exprs().into_iter().any(|e| env.pool.any(e, &mut |n| is_read(n)))
}

fn writes(s: &Stmt, ts: &[TensorId]) -> bool {
    written(s).iter().any(|t| ts.contains(t))
}

/// The tensors that a statement and those below it write.
fn written(s: &Stmt) -> Vec<TensorId> {
    let mut out = Vec::new();
    s.walk(&mut |s| out.extend(s.writes()));
    out
}

fn reads(env: &Env, s: &Stmt, ts: &[TensorId]) -> bool {
    s.any(&mut |s| reads_itself(env, s, ts))
}

struct Slots<'a> {
    env: &'a mut Env,
    /// The buffer; of tuples, those of the components.
    tensors: &'a [TensorId],
    /// Elements of one slot.
    elems: ExprId,
    slots: i64,
    /// Whether copies into it may go on beside the threads.
    beside: bool,
}

impl Slots<'_> {
    fn refuse(&self, fact: &str) -> Diagnostic {
        let name = &self.env.tensors[self.tensors[0]].name;
        Diagnostic::new(REFUSAL, format!("`{name}` cannot have several slots: {fact}"))
            .hint("it must be filled first in each iteration of a serial loop, from what the loop does not write")
    }

    /// Finds the innermost loop around all uses; `inside` is what the loop found around `body` is, if one was.
    fn in_body(&mut self, body: &mut Vec<Stmt>, inside: Option<LoopKind>) -> Result<(), Diagnostic> {
        let (env, t) = (&*self.env, self.tensors);
        let users: Vec<usize> = (0..body.len()).filter(|&n| reads(env, &body[n], t) || writes(&body[n], t)).collect();
        let [at] = users[..] else {
            return Err(match inside {
                None => self.refuse("no loop is around all its uses"),
                Some(LoopKind::Serial | LoopKind::Unroll) => {
                    self.refuse("it is used under a condition inside the loop")
                }
                Some(kind) => self.refuse(&format!("the loop around its uses is {}", kind.described())),
            });
        };
        match &mut body[at] {
            Stmt::If { then, other, .. } if accesses(env, other, t) == 0 => self.in_body(then, inside),
            Stmt::For { var, extent, kind, body: inner } => {
                let several = inner.iter().filter(|s| reads(env, s, t) || writes(s, t)).count() > 1;
                if !several {
                    // A thread that fills it for itself is not waited for.
                    self.beside &= !kind.is_thread();
                    return self.in_body(inner, Some(*kind));
                }
                let (var, extent, kind) = (*var, *extent, *kind);
                let boxes = inner.iter().any(|s| self.awaits(s));
                let first = self.rotate(var, extent, kind, inner)?;
                self.before(body, at, first, self.beside && !boxes);
                Ok(())
            }
            _ => Err(self.refuse("no loop is around all its uses")),
        }
    }

    /// Rewrites a loop's body; what comes before the loop, by slot.
    fn rotate(
        &mut self,
        var: VarId,
        extent: ExprId,
        kind: LoopKind,
        body: &mut Vec<Stmt>,
    ) -> Result<Vec<Stmt>, Diagnostic> {
        if !matches!(kind, LoopKind::Serial | LoopKind::Unroll) {
            return Err(self.refuse(&format!("the loop around its uses is {}", kind.described())));
        }
        let mut boxes = 0;
        body.iter().for_each(|s| {
            s.walk(&mut |s| boxes += usize::from(matches!(s, Stmt::Bulk(b) if self.tensors.contains(&b.to))))
        });
        let awaited = body.iter().position(|s| self.awaits(s));
        if let Some(at) = awaited {
            body.remove(at);
        }
        let fill = self.fill(body)?;
        let serial = |s: &Stmt| matches!(s, Stmt::For { .. }) && s.any(&mut |s| self.awaits(s));
        if boxes > 1 || fill.iter().any(|s| s.any(&mut |s| serial(s))) {
            return Err(self.refuse("several boxes fill it, and a slot takes one").hint(
                "let one box bring all that an iteration uses: bulk_copy its outermost loop, or use smaller tiles",
            ));
        }
        if fill.iter().any(|s| s.any(&mut |s| self.awaits(s))) {
            return Err(self.refuse("it is filled under a condition"));
        }
        let beside = self.beside && awaited.is_none();
        let ring = self.slots >= LONG_RING && body.iter().any(|s| s.any(&mut |s| s.goes_on() && self.reads_itself(s)));
        let distance = self.slots - if ring { 2 } else { 1 };
        let mut first = Vec::new();
        for i in 0..distance {
            let i = self.env.pool.int(i);
            let then = self.at(&fill, var, i);
            first.push(Stmt::If { cond: self.env.pool.lt(i, extent), then, other: Vec::new() });
        }
        let (v, by) = (self.env.pool.var(var), self.env.pool.int(distance));
        let later = self.env.pool.add(v, by);
        let ahead = self.at(&fill, var, later);
        let more = self.env.pool.lt(later, extent);
        let slot = self.slot(v);
        let mut rest: Vec<Stmt> = body.iter().filter(|s| !fill.contains(s)).map(|s| self.moved(s, slot)).collect();
        // Each iteration commits a group for each buffer at least, so no more groups follow what is needed now.
        let own = beside.then_some((distance - 1) as u32);
        let others = match rest.first() {
            Some(&Stmt::Wait { pending }) => {
                rest.remove(0);
                Some(pending)
            }
            _ => None,
        };
        let wait = others.into_iter().chain(own).min().map(|pending| Stmt::Wait { pending });
        // Buffers of one loop with equally many slots are filled together.
        let committed = rest.get(1) == Some(&Stmt::Commit);
        match rest.first_mut() {
            Some(Stmt::If { cond, then, other }) if *cond == more && other.is_empty() && (!beside || committed) => {
                then.splice(0..0, ahead);
            }
            _ => {
                let ahead = Stmt::If { cond: more, then: ahead, other: Vec::new() };
                let new = if beside { vec![ahead, Stmt::Commit] } else { vec![ahead] };
                rest.splice(0..0, new);
            }
        }
        if awaited.is_some() {
            let slots = self.env.pool.int(self.slots);
            let slot = self.env.pool.modulo(v, slots);
            rest.insert(1, Stmt::Await { tensor: self.tensors[0], slot });
        }
        *body = wait.into_iter().chain(rest).collect();
        Ok(first)
    }

    /// Puts what comes before the loop at `at` there: the contents of one slot after those of another, a group each.
    fn before(&self, body: &mut Vec<Stmt>, at: usize, first: Vec<Stmt>, beside: bool) {
        let each = if beside { 2 } else { 1 };
        let there = at.checked_sub(each * first.len());
        let same = |there: usize| {
            first.iter().enumerate().all(|(n, s)| match (s, &body[there + each * n]) {
                (Stmt::If { cond: x, .. }, Stmt::If { cond: y, other, .. }) => {
                    x == y && other.is_empty() && (each == 1 || body[there + each * n + 1] == Stmt::Commit)
                }
                _ => false,
            })
        };
        match there.filter(|&t| same(t)) {
            Some(there) => {
                for (n, s) in first.into_iter().enumerate() {
                    if let (Stmt::If { then, .. }, Stmt::If { then: more, .. }) = (&mut body[there + each * n], s) {
                        then.extend(more);
                    }
                }
            }
            None => {
                let new: Vec<Stmt> = first.into_iter().flat_map(|s| [s, Stmt::Commit].into_iter().take(each)).collect();
                body.splice(at..at, new);
            }
        }
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
        let copies = substitute_all(self.env, fill, &map);
        let slots = self.env.pool.int(self.slots);
        let number = self.env.pool.modulo(i, slots);
        let mut moved: Vec<Stmt> = copies.iter().map(|s| self.moved(s, slot)).collect();
        for s in &mut moved {
            if let Stmt::Bulk(b) = s {
                b.slot = number;
            }
        }
        moved
    }

    /// Whether it waits for a box in the buffer.
    fn awaits(&self, s: &Stmt) -> bool {
        matches!(s, Stmt::Await { tensor, .. } if self.tensors.contains(tensor))
    }

    fn reads_itself(&self, s: &Stmt) -> bool {
        reads_itself(self.env, s, self.tensors)
    }

    /// Where the slot of iteration `i` begins.
    fn slot(&mut self, i: ExprId) -> ExprId {
        let slots = self.env.pool.int(self.slots);
        let number = self.env.pool.modulo(i, slots);
        let at = self.env.pool.mul(number, self.elems);
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
    let mut s = s.clone();
    s.map_exprs(&mut |e| expr(env, e));
    match &mut s {
        Stmt::Store { tensor: t, index, .. } | Stmt::Prefetch { tensor: t, index, .. } => *index = own(env, *t, *index),
        Stmt::Gemm(g) => {
            for m in [&mut g.c, &mut g.a, &mut g.b] {
                m.offset = own(env, m.tensor, m.offset);
            }
        }
        Stmt::Tile(t) => {
            for m in [&mut t.c, &mut t.a, &mut t.b] {
                m.offset = own(env, m.tensor, m.offset);
            }
        }
        Stmt::Bulk(b) => b.offset = own(env, b.to, b.offset),
        s => s.bodies_mut().flatten().for_each(|s| *s = shifted(env, s, tensors, by)),
    }
    s
}
