//! What a loop asks the caches for, as statements at the beginning of its body.
//!
//! ```text
//! for %k in 0..K prefetch @S @A 2 { .. @A[%k, %j] .. for %j in 0..64 .. }
//!   =>  for %k in 0..K { if %k + 2 < K { for %l in 0..4 { prefetch @A[(%k + 2) * 64 + %l * 16] } } .. }
//! ```
//!
//! The address is that of the read with the loop's variable moved on; the condition makes every function in it be called
//! where it is defined. Loops inside that the index uses are run again, the one with the smallest stride once a cache line.
//!
//! ```text
//! for %n in 0..N { for %r in 0..16 { for %k in 0..K prefetch @S @A of %n 1 { .. @A[%n, %k, %j] .. for %j in 0..64 .. }}}
//!   =>  .. for %k in 0..K { prefetch @A[((min(%n + 1, N - 1) * K + %k) * 64 + %r * 4] if that line is there .. }
//! ```
//!
//! Where a loop around is counted, its last iteration is asked for once more, so that no condition is left inside. Loops
//! between that the index does not use ask for a share of the lines each. What a later iteration itself will write is not
//! there yet: no condition that reads it is asked, and no address is found through it.

use super::to_storage::Lowering;
use crate::schedule::prefetch::{Read, asked_for, reads};
use crate::schedule::tree::writes_below;
use cora_ir::affine::{normalize, poly};
use cora_ir::loops::{Block, For, LoopKind, Prefetch, Stmt as LoopStmt};
use cora_ir::storage::Stmt;
use cora_ir::{Expr, ExprId, Scope, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Bytes of a cache line on every processor that there is code for.
const LINE: i64 = 64;

/// Numbers below this can be multiplied.
const MANY: i64 = 1 << 31;

/// Loops of at most so many iterations are unrolled.
const UNROLL: i64 = 8;

/// A loop whose iterations a prefetch counts.
pub(super) struct Counted<'a> {
    l: &'a For,
    /// What is written in it.
    written: Vec<TensorId>,
}

/// The loops whose iterations some prefetch counts.
pub(super) fn counted(body: &[LoopStmt]) -> FxHashMap<VarId, Counted<'_>> {
    let mut loops = Vec::new();
    for s in body {
        s.walk(&mut |s| {
            if let LoopStmt::For(l) = s {
                loops.push(l);
            }
        });
    }
    let counted: Vec<VarId> = loops.iter().flat_map(|l| l.prefetch.iter().map(|p| p.of.unwrap_or(l.var))).collect();
    loops.retain(|l| counted.contains(&l.var));
    loops.into_iter().map(|l| (l.var, Counted { l, written: writes_below(&l.body) })).collect()
}

fn is_lookup(e: &Expr) -> bool {
    matches!(e, Expr::Call(..) | Expr::Load { .. } | Expr::Search { .. })
}

impl Lowering<'_> {
    /// The prefetches at the beginning of an iteration of `l`, which is the innermost of the loops around.
    pub(super) fn prefetches(&mut self, l: &For, extent: ExprId, out: &mut Vec<Stmt>) {
        let mut seen = Vec::new();
        for p in &l.prefetch {
            let counted = self.counted.get(&p.of.unwrap_or(l.var)).map_or(l, |c| c.l);
            // A buffer that was attached inside since has no later contents yet.
            let filled = self.written_in(counted.var).contains(&p.tensor);
            if filled && self.env.tensors[p.tensor].scope != Scope::Global {
                continue;
            }
            for (block, mut loops) in asked_for(&self.env.pool, (l, counted), p.stage, p.tensor) {
                loops.retain(|x| !self.loops.iter().any(|&(v, _)| v == x.var));
                for read in reads(&self.env.pool, block, p.tensor) {
                    let Some(&tensor) = self.components.of(p.tensor).get(read.0 as usize) else { continue };
                    let own = Prefetch { tensor, ..p.clone() };
                    let stmts = self.ahead((l, extent), &own, (block, &loops), &read, &mut seen);
                    out.extend(stmts.into_iter().flatten());
                }
            }
        }
    }

    fn ahead(
        &mut self,
        (l, extent): (&For, ExprId),
        p: &Prefetch,
        (block, loops): (&Block, &[&For]),
        (_, index, guard): &Read,
        seen: &mut Vec<(Prefetch, Vec<ExprId>)>,
    ) -> Option<Vec<Stmt>> {
        let bound: FxHashMap<VarId, ExprId> = block.iters.iter().map(|i| (i.var, i.binding)).collect();
        let index: Vec<ExprId> = index.iter().map(|&e| self.env.pool.substitute(e, &bound)).collect();
        let key = (p.clone(), index.clone());
        if seen.contains(&key) {
            return None;
        }
        seen.push(key);
        let used = self.used(&index, loops);
        // The loop whose iterations are counted, and those inside it down to this one.
        let counted = p.of.unwrap_or(l.var);
        let place = self.loops.iter().position(|&(v, _)| v == counted)?;
        let extent = if p.of.is_some() { self.loops[place].1 } else { extent };
        let between: Vec<(VarId, ExprId)> = self.loops[place + 1..].to_vec();
        let around =
            between.iter().map(|l| l.1).chain(loops.iter().filter(|l| used.contains(&l.var)).map(|l| l.extent));
        if index.iter().copied().chain(around).any(|e| self.comes_later(counted, e)) {
            return None;
        }
        // A name for the iteration that is asked for, whose range is that of the loop.
        let then = self.env.new_var(self.env.vars[counted].name.clone());
        let mut map: FxHashMap<VarId, ExprId> = FxHashMap::default();
        map.insert(counted, self.env.pool.var(then));
        let outer = self.loops.len();
        self.loops.push((then, extent));
        let mut inner: Vec<(VarId, ExprId)> = Vec::new();
        // That loops over which nothing is asked run at all, without which nothing need have a value; and whether it is
        // known of each of them.
        let (mut run, mut all) = (Vec::new(), true);
        // That the others run at all.
        let mut asked = Vec::new();
        for l in loops {
            if !used.contains(&l.var) {
                let runs = self.runs(l.extent, &map);
                let apart = !runs.is_some_and(|c| inner.iter().any(|&(v, _)| self.env.pool.uses_var(c, v)));
                let own = loops.iter().any(|o| !used.contains(&o.var) && self.env.pool.uses_var(l.extent, o.var));
                match runs {
                    Some(_) if own || !apart || self.comes_later(counted, l.extent) => all = false,
                    runs => run.extend(runs),
                }
                continue;
            }
            let e = self.env.pool.substitute(l.extent, &map);
            let e = self.value(e, &mut FxHashMap::default());
            let e = self.simplifier.simplify(&mut self.env, &self.loops, e);
            asked.extend(self.runs(l.extent, &map));
            let var = self.env.new_var(self.env.vars[l.var].name.clone());
            map.insert(l.var, self.env.pool.var(var));
            inner.push((var, e));
            self.loops.push((var, e));
        }
        let (mut conds, known) = self.conditions(block, *guard, (&bound, &map), loops, &used, counted);
        let idle: Vec<(VarId, ExprId)> =
            between.iter().copied().filter(|&(v, _)| !index.iter().any(|&e| self.env.pool.uses_var(e, v))).collect();
        let index: Vec<ExprId> = index.iter().map(|&e| self.env.pool.substitute(e, &map)).collect();
        let index: Vec<ExprId> = index.into_iter().map(|e| self.value(e, &mut FxHashMap::default())).collect();
        let at = self.flat(p.tensor, &index);
        if !(known && all) && self.looks_up(at) || !all && inner.iter().any(|&(_, e)| self.looks_up(e)) {
            self.loops.truncate(outer);
            return None;
        }
        // Iterations of the loops between that the later iteration does not have: this one, or any at all.
        let mut there = Vec::new();
        for l in between.iter().filter(|l| self.env.pool.uses_var(l.1, counted)).copied().collect::<Vec<_>>() {
            let e = self.env.pool.substitute(l.1, &map);
            let at = if idle.contains(&l) { self.env.pool.int(0) } else { self.env.pool.var(l.0) };
            there.push(self.env.pool.lt(at, e));
        }
        there.extend(run);
        self.loops.truncate(outer);
        let mut at = self.by_lines(p, at, &mut inner);
        let mut shared = None;
        if p.of.is_some() && l.var != counted && !idle.is_empty() {
            shared = self.share(&idle, &mut inner, (&mut at, &mut asked), &mut conds);
            if shared.is_none() {
                // A line asked for without the loops that it was one of.
                let of_line = |c: &ExprId| inner.iter().any(|&(v, _)| self.env.pool.uses_var(*c, v));
                let (each, all): (Vec<ExprId>, Vec<ExprId>) = asked.into_iter().partition(of_line);
                conds.extend(each);
                there.extend(all);
            }
        }
        // An address beyond the end does no harm where nothing is looked up to find it.
        if p.of.is_some() && !self.looks_up(at) {
            conds.clear();
        }
        if conds.is_empty() && !self.looks_up(at) && !inner.iter().any(|&(_, e)| self.looks_up(e)) {
            there.clear();
        }
        let stmt = Stmt::Prefetch { tensor: p.tensor, index: at, locality: p.locality };
        let mut stmts = super::under(&mut self.env, conds, vec![stmt]);
        for (var, extent) in inner.into_iter().rev() {
            let few = self.env.pool.constant_bound(extent).is_some_and(|n| n <= UNROLL);
            let kind = if few { LoopKind::Unroll } else { LoopKind::Serial };
            stmts = vec![Stmt::For { var, extent, kind, body: stmts }];
        }
        for cond in there.into_iter().rev().chain(shared) {
            stmts = vec![Stmt::If { cond, then: stmts, other: Vec::new() }];
        }
        Some(match p.of {
            Some(_) => self.clamped(&stmts, (counted, then), p.distance, extent),
            None => self.moved(&stmts, (counted, then), p.distance, extent),
        })
    }

    /// That a loop has an iteration, unless it always has.
    fn runs(&mut self, extent: ExprId, map: &FxHashMap<VarId, ExprId>) -> Option<ExprId> {
        let e = self.env.pool.substitute(extent, map);
        let zero = self.env.pool.int(0);
        let runs = self.env.pool.lt(zero, e);
        let runs = self.value(runs, &mut FxHashMap::default());
        let runs = self.simplifier.simplify(&mut self.env, &self.loops, runs);
        (self.env.pool.as_bool(runs) != Some(true)).then_some(runs)
    }

    /// Whether a function or a tensor is read to find an address.
    fn looks_up(&self, at: ExprId) -> bool {
        self.env.pool.any(at, &mut is_lookup)
    }

    /// Divides the lines that `inner` goes through among the iterations of `idle`, on which they do not depend: line `q`
    /// is asked for by iteration `q / (lines / iterations)`, both counted row by row; where there are more iterations than
    /// lines, by several in a row, or if nobody knows how many there are by iteration `q`, and the last line by those after
    /// it. Where no bound is known the first iteration asks for all, which the condition that is given back says.
    fn share(
        &mut self,
        idle: &[(VarId, ExprId)],
        inner: &mut Vec<(VarId, ExprId)>,
        (at, asked): (&mut ExprId, &mut [ExprId]),
        conds: &mut Vec<ExprId>,
    ) -> Option<ExprId> {
        // A line beyond the last does no harm where nothing is looked up to find it.
        let mut harmless = true;
        self.env.pool.walk(*at, &mut |e, n| {
            harmless &= !is_lookup(n) || inner.iter().all(|&(v, _)| !self.env.pool.uses_var(e, v));
        });
        let pool = &mut self.env.pool;
        let size = |e: ExprId| if harmless { pool.constant_bound(e) } else { pool.as_int(e) };
        let sizes: Option<Vec<i64>> = inner.iter().map(|&(_, e)| size(e).filter(|&n| n > 0)).collect();
        let most: Option<Vec<i64>> = idle.iter().map(|&(_, e)| pool.constant_bound(e).filter(|&n| n > 0)).collect();
        let product = |n: &[i64]| n.iter().try_fold(1i64, |p, &n| p.checked_mul(n).filter(|&n| n < MANY));
        let known = sizes.as_ref().and_then(|n| product(n)).zip(most.as_ref().and_then(|n| product(n)));
        let (Some((lines, iterations)), Some(sizes), Some(most)) = (known, &sizes, &most) else {
            let one = pool.int(1);
            let first = idle.iter().map(|&(v, _)| {
                let v = pool.var(v);
                pool.lt(v, one)
            });
            let first: Vec<ExprId> = first.collect();
            return Some(pool.all(first));
        };
        let mut number = pool.int(0);
        for (&(v, _), &n) in idle.iter().zip(most) {
            let (v, n) = (pool.var(v), pool.int(n));
            number = pool.mul(number, n);
            number = pool.add(number, v);
        }
        let mut turns = Vec::new();
        if lines >= iterations {
            let (turn, each) = (self.env.new_var("line"), (lines + iterations - 1) / iterations);
            let pool = &mut self.env.pool;
            let (e, t) = (pool.int(each), pool.var(turn));
            turns.push((turn, e));
            number = pool.mul(number, e);
            number = pool.add(number, t);
            if each * iterations != lines {
                let lines = pool.int(lines);
                conds.push(pool.lt(number, lines));
            }
        } else if idle.iter().all(|&(_, e)| pool.as_int(e).is_some()) {
            let (lines, iterations) = (pool.int(lines), pool.int(iterations));
            number = pool.mul(number, lines);
            number = pool.floor_div(number, iterations);
        } else {
            let last = pool.int(lines - 1);
            number = pool.min(number, last);
        }
        let pool = &mut self.env.pool;
        let number = normalize(pool, number);
        // The line's own indices, row by row.
        let mut map: FxHashMap<VarId, ExprId> = FxHashMap::default();
        let mut below = 1;
        for (n, (&(v, _), &size)) in inner.iter().zip(sizes).enumerate().rev() {
            let b = pool.int(below);
            let mut digit = pool.floor_div(number, b);
            if n > 0 {
                let s = pool.int(size);
                digit = pool.modulo(digit, s);
            }
            map.insert(v, digit);
            below *= size;
        }
        *at = pool.substitute(*at, &map);
        asked.iter_mut().chain(conds).for_each(|c| *c = pool.substitute(*c, &map));
        *inner = turns;
        None
    }

    /// The statement for the iteration `distance` later, or for the last one.
    fn clamped(&mut self, stmts: &[Stmt], (here, then): (VarId, VarId), distance: i64, extent: ExprId) -> Vec<Stmt> {
        let pool = &mut self.env.pool;
        let (v, d, one) = (pool.var(here), pool.int(distance), pool.int(1));
        let (later, last) = (pool.add(v, d), pool.sub(extent, one));
        let later = pool.min(later, last);
        let map: FxHashMap<VarId, ExprId> = [(then, later)].into_iter().collect();
        super::vectorize::substitute_all(&mut self.env, stmts, &map)
    }

    /// The loops that the index depends on, outermost first.
    fn used(&self, index: &[ExprId], loops: &[&For]) -> Vec<VarId> {
        let mut used: Vec<VarId> = Vec::new();
        for (n, l) in loops.iter().enumerate().rev() {
            let inside = loops[n + 1..].iter().filter(|x| used.contains(&x.var)).map(|x| x.extent);
            if index.iter().copied().chain(inside).any(|e| self.env.pool.uses_var(e, l.var)) {
                used.insert(0, l.var);
            }
        }
        used
    }

    fn written_in(&self, counted: VarId) -> &[TensorId] {
        self.counted.get(&counted).map_or(&[], |c| &c.written)
    }

    /// Whether an expression reads what the later iteration itself will write.
    fn comes_later(&self, counted: VarId, e: ExprId) -> bool {
        let written = self.written_in(counted);
        self.env.pool.any(e, &mut |n| matches!(n, Expr::Load { tensor, .. } if written.contains(tensor)))
    }

    /// The conditions of block and read that are about loops which are run again, and whether they are all that there
    /// are: what the later iteration itself will write decides nothing yet.
    fn conditions(
        &mut self,
        block: &Block,
        guard: Option<ExprId>,
        (bound, map): (&FxHashMap<VarId, ExprId>, &FxHashMap<VarId, ExprId>),
        loops: &[&For],
        used: &[VarId],
        counted: VarId,
    ) -> (Vec<ExprId>, bool) {
        let guard = guard.map(|g| self.env.pool.substitute(g, bound));
        let (mut conds, mut known) = (Vec::new(), true);
        for c in block.predicate.iter().copied().chain(guard) {
            if loops.iter().any(|l| !used.contains(&l.var) && self.env.pool.uses_var(c, l.var)) {
                continue;
            }
            if self.comes_later(counted, c) {
                known = false;
                continue;
            }
            let c = self.env.pool.substitute(c, map);
            let c = self.value(c, &mut FxHashMap::default());
            let c = self.simplifier.simplify(&mut self.env, &self.loops, c);
            if self.env.pool.as_bool(c) != Some(true) {
                conds.push(c);
            }
        }
        (conds, known)
    }

    /// The loop of the smallest stride below a cache line takes a line an iteration.
    fn by_lines(&mut self, p: &Prefetch, at: ExprId, inner: &mut [(VarId, ExprId)]) -> ExprId {
        let bytes = self.env.tensors[p.tensor].ty.bytes().max(1) as i64;
        let mut finest: Option<(usize, i64)> = None;
        let terms = poly(&self.env.pool, at).terms;
        for (n, &(var, _)) in inner.iter().enumerate() {
            let v = self.env.pool.var(var);
            let elsewhere = terms.keys().any(|m| m != &vec![v] && m.iter().any(|&a| self.env.pool.uses_var(a, var)));
            let steers = inner.iter().any(|&(_, e)| self.env.pool.uses_var(e, var));
            let Some(&stride) = terms.get(&vec![v]).filter(|_| !elsewhere && !steers) else { continue };
            let step = if stride > 0 { LINE / bytes / stride } else { 0 };
            if step > 1 && finest.is_none_or(|f| step > f.1) {
                finest = Some((n, step));
            }
        }
        let Some((n, step)) = finest else { return at };
        let (var, extent) = inner[n];
        let pool = &mut self.env.pool;
        let lines = pool.ceil_div(extent, step);
        inner[n].1 = normalize(pool, lines);
        let (v, s) = (pool.var(var), pool.int(step));
        let first = pool.mul(v, s);
        let at = pool.substitute(at, &[(var, first)].into_iter().collect());
        normalize(pool, at)
    }

    /// The statement for the iteration `distance` later, if there is one.
    fn moved(&mut self, stmts: &[Stmt], (here, then): (VarId, VarId), distance: i64, extent: ExprId) -> Vec<Stmt> {
        let pool = &mut self.env.pool;
        let (v, d) = (pool.var(here), pool.int(distance));
        let later = pool.add(v, d);
        let cond = pool.lt(later, extent);
        let map: FxHashMap<VarId, ExprId> = [(then, later)].into_iter().collect();
        let then = super::vectorize::substitute_all(&mut self.env, stmts, &map);
        vec![Stmt::If { cond, then, other: Vec::new() }]
    }
}
