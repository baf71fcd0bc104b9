//! The regions of buffers that are attached in loops: what their writers cover between two uses.

use super::super::grid::{self, Private};
use super::super::sign::never_negative;
use super::digits::Digits;
use super::{DenseBox, Lowering, Rows};
use crate::lower::layout::Layout;
use crate::schedule::region::{bound_above, least, range_over};
use crate::simplify::{Facts, interval};
use cora_ir::affine::{build, normalize, poly};
use cora_ir::loops::{Axis, Block, BlockRole, For, LoopKind, Stmt as LoopStmt};
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, Scope, TensorId, UfDef, VarId};
use rustc_hash::FxHashMap;

/// A block and the loops around it.
pub(super) struct Use<'a> {
    block: &'a Block,
    pub(super) loops: Vec<&'a For>,
    path: Vec<usize>,
}

/// A dimension of a region.
struct Size {
    /// What it has at most.
    bound: ExprId,
    /// Whether that is what the tensor's own dimension has at most.
    whole: bool,
}

/// What one writer leaves out in each dimension.
type Gaps = Vec<Option<Digits>>;

/// The blocks that write or read each tensor that is not in global memory.
pub(super) type Uses<'a> = FxHashMap<TensorId, Vec<Use<'a>>>;

/// The uses of all tensors, in order.
pub(super) fn uses<'a>(env: &Env, body: &'a [LoopStmt]) -> Uses<'a> {
    fn go<'a>(env: &Env, body: &'a [LoopStmt], path: &mut Vec<usize>, loops: &mut Vec<&'a For>, out: &mut Uses<'a>) {
        for (i, s) in body.iter().enumerate() {
            path.push(i);
            match s {
                LoopStmt::For(l) => {
                    loops.push(l);
                    go(env, &l.body, path, loops, out);
                    loops.pop();
                }
                LoopStmt::Block(b) => {
                    let mut used = crate::schedule::tree::reads_below(&env.pool, std::slice::from_ref(s));
                    if !used.contains(&b.tensor) {
                        used.push(b.tensor);
                    }
                    used.retain(|&t| env.tensors[t].scope != Scope::Global);
                    for t in used {
                        out.entry(t).or_default().push(Use { block: b, loops: loops.clone(), path: path.clone() });
                    }
                }
            }
            path.pop();
        }
    }
    let mut out = Uses::default();
    go(env, body, &mut Vec::new(), &mut Vec::new(), &mut out);
    out
}

/// The elements of `tensor` that a block reads.
fn reads_of(env: &Env, b: &Block, tensor: TensorId) -> Vec<Vec<ExprId>> {
    let mut reads: Vec<Vec<ExprId>> = Vec::new();
    for e in [b.value].into_iter().chain(b.index.iter().copied()) {
        env.pool.walk(e, &mut |_, n| {
            if let Expr::Load { tensor: t, index, .. } = n
                && *t == tensor
            {
                reads.push(index.to_vec());
            }
        });
    }
    reads
}

/// The extents of the loops of a nest that are bound to an axis.
fn threads_along(nest: &LoopStmt, axis: Axis) -> Vec<ExprId> {
    let mut out = Vec::new();
    nest.walk(&mut |s| {
        if let LoopStmt::For(l) = s
            && l.kind.axis() == Some(axis)
        {
            out.push(l.extent);
        }
    });
    out
}

/// What a part writes of a buffer.
#[derive(Default)]
struct Written {
    stage: Option<TensorId>,
    loops: Vec<(VarId, ExprId)>,
    /// The range of each dimension: what one thread writes, and what all of them do, if that is known.
    own: Vec<(ExprId, ExprId)>,
    all: Vec<Option<(ExprId, ExprId)>>,
}

impl Lowering<'_> {
    /// The region of a local tensor: what its writers cover inside the innermost loop around all uses.
    pub(super) fn infer_box(&mut self, body: &[LoopStmt], all: &[Use<'_>], tensor: TensorId) -> Result<(), Diagnostic> {
        let Some(first) = all.first() else { return Ok(()) };
        let common = all.iter().fold(first.path.len() - 1, |n, u| {
            let limit = n.min(u.path.len() - 1);
            (0..limit).position(|i| u.path[i] != first.path[i]).unwrap_or(limit)
        });
        let rank = self.env.tensors[tensor].dims.len();
        let mut lo: Vec<Option<ExprId>> = vec![None; rank];
        let mut hi: Vec<Option<ExprId>> = vec![None; rank];
        // As the writers have it, which may be before the first element.
        let mut least: Vec<Option<ExprId>> = vec![None; rank];
        let mut outer: Vec<(VarId, ExprId)> = Vec::new();
        let mut positions: Vec<(VarId, ExprId)> = Vec::new();
        let private = match self.env.tensors[tensor].scope {
            Scope::Shared => Private::No,
            // A warp's lanes have one together.
            _ if self.spreads.contains_key(&tensor) => Private::Lanes,
            _ => Private::Thread,
        };
        let mut threads: Vec<(Axis, VarId)> = Vec::new();
        let mut writers: Vec<&Use<'_>> =
            all.iter().filter(|u| u.block.tensor == tensor && u.block.role != BlockRole::Init).collect();
        // A part that never writes, as what peeling leaves of a padded loop, has no position that means anything.
        let runs = |u: &&Use<'_>| u.block.predicate.iter().all(|&p| self.env.pool.as_bool(p) != Some(false));
        if writers.iter().any(runs) {
            writers.retain(runs);
        }
        let mut gaps: Vec<Gaps> = Vec::new();
        let mut parts: Vec<Written> = Vec::new();
        for &u in &writers {
            let mut part = Written::default();
            let (loops, inner) = grid::loops_of(&mut self.env, &u.loops, common, private, &mut threads);
            let map = self.bindings(u, common, private, &threads);
            let mut index = Vec::new();
            let mut digits = Vec::new();
            for d in 0..rank {
                let e = self.env.pool.substitute(u.block.index[d], &map);
                digits.push(Digits::of(&mut self.env, e, &loops[inner..]));
                let one = self.env.pool.int(1);
                let range = range_over(&mut self.env, e, &loops, inner);
                // Which of the elements are a thread's own is not known then.
                if range.is_none() && threads.iter().any(|&(_, v)| self.env.pool.uses_var(e, v)) {
                    let reader = all.iter().find(|u| u.block.tensor != tensor).unwrap_or(u);
                    return Err(grid::foreign_read(&self.env, tensor, reader.block.stage));
                }
                let (l, h) = range.unwrap_or_else(|| {
                    // Surplus iterations may write padding.
                    let storage = self.env.tensors[tensor].dims[d].storage;
                    let extent = self.env.pool.instantiate(storage, &index);
                    (self.env.pool.int(0), self.env.pool.sub(extent, one))
                });
                part.own.push((l, h));
                part.all.push(range_over(&mut self.env, e, &loops, common));
                // Where a writer has no iteration, the region is that of the others.
                let computed = l;
                let l = first_positions(&mut self.env, l);
                let l = self.not_before_the_first(l, if writers.len() > 1 { &loops[..inner] } else { &loops });
                index.push(if computed == h {
                    l
                } else {
                    // Any position of the region, for the extents of the dimensions inside.
                    let size = self.env.pool.sub(h, l);
                    let size = self.env.pool.add(size, one);
                    let var = self.env.new_var("position");
                    positions.push((var, size));
                    let v = self.env.pool.var(var);
                    self.env.pool.add(l, v)
                });
                lo[d] = Some(lo[d].map_or(l, |x| self.env.pool.min(x, l)));
                least[d] = Some(least[d].map_or(computed, |x| self.env.pool.min(x, computed)));
                hi[d] = Some(hi[d].map_or(h, |x| self.env.pool.max(x, h)));
            }
            parts.push(Written { stage: Some(u.block.stage), loops: loops.clone(), ..part });
            outer = loops;
            gaps.push(digits);
        }
        self.check_parts(tensor, &parts, &threads)?;
        if private == Private::No && first.loops[..common].iter().any(|l| l.kind.is_thread()) {
            return Err(grid::shared_by_one(&self.env, tensor));
        }
        outer.extend(positions);
        let (mut los, mut sizes) = (Vec::new(), Vec::new());
        let mut whole = Vec::new();
        for d in 0..rank {
            let (Some(l), Some(h), Some(least)) = (lo[d], hi[d], least[d]) else { continue };
            let size = self.size_of((tensor, d), (l, least, h), (&los, &sizes), &outer)?;
            whole.push(size.whole && self.env.pool.as_int(l) == Some(0));
            los.push(l);
            sizes.push(self.padded(tensor, d, size.bound));
        }
        let (own, copies): (Vec<_>, Vec<_>) =
            threads.into_iter().partition(|&(_, v)| los.iter().any(|&l| self.env.pool.uses_var(l, v)));
        copies.iter().try_for_each(|c| self.check_threads(body, (tensor, c.0), all, (common, private), false))?;
        let threads = own;
        if !threads.is_empty() {
            let region = (&los[..], &hi[..], &gaps[..]);
            all.iter().try_for_each(|u| self.check_own(tensor, u, (common, private), region, &threads))?;
            threads.iter().try_for_each(|t| self.check_threads(body, (tensor, t.0), all, (common, private), true))?;
        }
        if private == Private::Lanes {
            all.iter().try_for_each(|u| self.check_lanes(tensor, u, (common, &los), &threads))?;
        }
        if !self.used_in_grid.contains(&tensor) && all.iter().all(|u| u.loops.iter().all(|l| !l.kind.is_described())) {
            self.infer_rows(tensor, &sizes, &whole);
        }
        self.boxes.insert(tensor, DenseBox { lo: los, size: sizes, threads });
        Ok(())
    }

    /// The size of dimension `d` of a region from `l`, or `least` as the writers have it, to `h`.
    fn size_of(
        &mut self,
        (tensor, d): (TensorId, usize),
        (l, least, h): (ExprId, ExprId, ExprId),
        outside: (&[ExprId], &[ExprId]),
        outer: &[(VarId, ExprId)],
    ) -> Result<Size, Diagnostic> {
        let one = self.env.pool.int(1);
        let mut size_from = |l: ExprId| {
            let size = self.env.pool.sub(h, l);
            let size = self.env.pool.add(size, one);
            let size = normalize(&mut self.env.pool, size);
            bound_above(&mut self.env, size, outer)
        };
        // From the first element on there is no more than from before it.
        let found = size_from(l).or_else(|| size_from(least));
        let dim = self.env.tensors[tensor].dims[d].name.clone();
        let name = self.env.tensors[tensor].name.clone();
        // Nothing is written beyond the dimension either.
        let room = self.room(tensor, d, outside, outer);
        let mut bound = match (found, room) {
            (Some(bound), Some(room)) => {
                let bound = normalize(&mut self.env.pool, bound);
                self.lower_bound(bound, room)
            }
            (Some(bound), None) | (None, Some(bound)) => normalize(&mut self.env.pool, bound),
            (None, None) => {
                let d = Diagnostic::new("E0490", format!("no bound is known for dimension `{dim}` of buffer `{name}`"));
                return Err(d.hint("attach the stage at a loop where its region has a bound, or keep it global"));
            }
        };
        if self.env.pool.as_int(bound).is_none() && self.used_in_grid.contains(&tensor) {
            bound =
                grid::constant_size(&mut self.env, bound).ok_or_else(|| grid::unbounded(&self.env, tensor, &dim))?;
        }
        if self.env.tensors[tensor].scope == Scope::Reg && self.env.pool.as_int(bound).is_none() {
            return Err(Diagnostic::new(
                "E0491",
                format!("register buffer `{name}` has variable size in dimension `{dim}`"),
            )
            .hint("attach it inside loops that leave constant tiles, or use scope `local`"));
        }
        Ok(Size { bound, whole: room == Some(bound) })
    }

    /// Lays a local tensor out by the rule of offsets where its region is all rows of one position of the dimensions
    /// outside, and a box of their greatest sizes is more: triangles, trees, sizes that are not greatest together.
    fn infer_rows(&mut self, tensor: TensorId, sizes: &[ExprId], whole: &[bool]) {
        let one = |&s: &ExprId| self.env.pool.as_int(s) == Some(1);
        let from = sizes.iter().position(|s| !one(s)).unwrap_or(sizes.len());
        if sizes.len() < from + 2 || whole[from..].contains(&false) {
            return;
        }
        let extents = self.storage_sizes(tensor);
        let (mut steered, mut calls) = (false, Vec::new());
        for &e in &extents[from..] {
            self.env.pool.walk(e, &mut |id, n| match n {
                Expr::Arg(a) => steered |= *a as usize >= from,
                Expr::Call(..) if !calls.contains(&id) => calls.push(id),
                _ => {}
            });
        }
        if !steered && calls.len() < 2 {
            return;
        }
        let stored = self.stored(tensor, extents.clone());
        let outside: Vec<ExprId> = (0..from as u32).map(|a| self.env.pool.arg(a)).collect();
        if stored.index.get(..from) != Some(&outside[..]) || stored.extents.get(..from) != Some(&extents[..from]) {
            return;
        }
        // The order of a box's dimensions is free; rows come after what they belong to.
        let later = |j: usize, n: &Expr| matches!(n, Expr::Arg(a) if *a as usize >= j);
        if (from..stored.extents.len()).any(|j| self.env.pool.any(stored.extents[j], &mut |n| later(j, n))) {
            return;
        }
        let name = format!("{}.row", self.env.tensors[tensor].name);
        let layout = Layout { extents: &stored.extents, name: &name };
        let volume = layout.volume(&mut self.env, from);
        let offset = layout.offset_within(&mut self.env, from);
        let offset = self.env.pool.instantiate(offset, &stored.index);
        let elems =
            self.env.greatest_over(&format!("{}.size", self.env.tensors[tensor].name), &extents[..from], volume);
        // How many registers there are is known now or never.
        if self.env.tensors[tensor].scope == Scope::Reg && self.env.pool.as_int(elems).is_none() {
            return;
        }
        self.rows.insert(tensor, Rows { offset, elems });
    }

    /// Where a region begins: iterations that conditions leave out may reach before the first element, as those of a loop
    /// that another stage's run through first.
    fn not_before_the_first(&mut self, lo: ExprId, loops: &[(VarId, ExprId)]) -> ExprId {
        let zero = self.env.pool.int(0);
        let ranges: Vec<(ExprId, ExprId)> = loops.iter().map(|&(v, e)| (self.env.pool.var(v), e)).collect();
        if never_negative(&mut self.env, &ranges, lo) {
            return lo;
        }
        let goal = self.env.pool.le(zero, lo);
        if self.simplifier.prove(&mut self.env, loops, &[], goal) { lo } else { self.env.pool.max(lo, zero) }
    }

    /// A bound of the size of dimension `d`, given the least indices and the sizes of the region in the dimensions outside.
    fn room(
        &mut self,
        tensor: TensorId,
        d: usize,
        (los, sizes): (&[ExprId], &[ExprId]),
        outer: &[(VarId, ExprId)],
    ) -> Option<ExprId> {
        let mut loops = outer.to_vec();
        let mut index = Vec::new();
        for (&lo, &size) in los.iter().zip(sizes) {
            let var = self.env.new_var("position");
            loops.push((var, size));
            let v = self.env.pool.var(var);
            index.push(self.env.pool.add(lo, v));
        }
        let storage = self.env.tensors[tensor].dims[d].storage;
        let storage = self.env.pool.instantiate(storage, &index);
        let bound = bound_above(&mut self.env, storage, &loops)?;
        Some(normalize(&mut self.env.pool, bound))
    }

    /// The lower one of two bounds of a size; the first one where that is not known.
    fn lower_bound(&mut self, bound: ExprId, other: ExprId) -> ExprId {
        let constant = |e| self.env.pool.as_int(e);
        match (constant(bound), constant(other)) {
            (None, None) => {
                let less = self.env.pool.le(other, bound);
                if self.simplifier.prove(&mut self.env, &[], &[], less) { other } else { bound }
            }
            _ => least(&mut self.env, bound, other),
        }
    }

    /// What a block's iterators are bound to, the threads that own elements under common names.
    fn bindings(
        &mut self,
        u: &Use<'_>,
        common: usize,
        private: Private,
        threads: &[(Axis, VarId)],
    ) -> FxHashMap<VarId, ExprId> {
        let own = grid::own_threads(&mut self.env, &u.loops, common, private, threads);
        let pool = &mut self.env.pool;
        u.block.iters.iter().map(|i| (i.var, pool.substitute(i.binding, &own))).collect()
    }

    /// The threads along `axis` that read elements write them: each its `own` ones, or each a copy of the same. Which of
    /// its own a thread has is another question, so where both numbers are bounded the bounds are compared.
    fn check_threads(
        &mut self,
        body: &[LoopStmt],
        (tensor, axis): (TensorId, Axis),
        all: &[Use<'_>],
        (common, private): (usize, Private),
        own: bool,
    ) -> Result<(), Diagnostic> {
        let along = |env: &mut Env, u: &Use<'_>| {
            let own = u.loops[common..].iter().find(|l| private.owns(l) && l.kind.axis() == Some(axis))?;
            // The loops around may allow less than the form of the extent does.
            let facts = Facts::in_loops(u.loops.iter().map(|l| (l.var, l.extent)));
            let found = [env.pool.constant_bound(own.extent), interval::bounds(env, &facts, own.extent).hi];
            Some((own.extent, found.into_iter().flatten().min()))
        };
        let writers = all.iter().filter(|u| u.block.tensor == tensor);
        let written: Vec<(ExprId, Option<i64>)> = writers.filter_map(|u| along(&mut self.env, u)).collect();
        for u in all.iter().filter(|u| u.block.tensor != tensor) {
            let readers = match along(&mut self.env, u) {
                Some(n) => vec![n],
                // All threads of the block store to what is private, else the first one.
                None if matches!(self.env.tensors[u.block.tensor].scope, Scope::Global | Scope::Shared) => continue,
                None => {
                    let all = threads_along(&body[u.path[0]], axis).into_iter();
                    all.map(|n| (n, self.env.pool.constant_bound(n))).collect()
                }
            };
            let around: Vec<(VarId, ExprId)> = u.loops.iter().map(|l| (l.var, l.extent)).collect();
            for &(least, least_bound) in &written {
                for &(n, bound) in &readers {
                    if own && bound.zip(least_bound).is_some_and(|(n, least)| n <= least) {
                        continue;
                    }
                    let enough = self.env.pool.le(n, least);
                    if !self.simplifier.prove(&mut self.env, &around, &[], enough) {
                        return Err(grid::foreign_read(&self.env, tensor, u.block.stage));
                    }
                }
            }
        }
        Ok(())
    }

    /// What one part writes no other part adds to in another thread, which has elements of its own: parts give a thread the
    /// same ones, or ones as far away for all threads of which no other thread has any.
    fn check_parts(
        &mut self,
        tensor: TensorId,
        parts: &[Written],
        threads: &[(Axis, VarId)],
    ) -> Result<(), Diagnostic> {
        let uses_thread = |env: &Env, e| threads.iter().any(|&(_, v)| env.pool.uses_var(e, v));
        for (n, b) in parts.iter().enumerate() {
            for a in &parts[..n] {
                let (mut same, mut as_far) = (true, true);
                for (&(l, h), &(m, i)) in a.own.iter().zip(&b.own) {
                    if ![l, h, m, i].into_iter().any(|e| uses_thread(&self.env, e)) {
                        continue;
                    }
                    for (x, y) in [(l, m), (h, i)] {
                        let apart = self.env.pool.sub(y, x);
                        let apart = normalize(&mut self.env.pool, apart);
                        let zero = self.env.pool.int(0);
                        let none = self.env.pool.bin(BinOp::Eq, apart, zero);
                        same &= self.simplifier.prove(&mut self.env, &a.loops, &[], none);
                        as_far &= !uses_thread(&self.env, apart);
                    }
                }
                let ranges: Vec<_> = a.all.iter().zip(&b.all).filter_map(|(x, y)| Some(((*x)?, (*y)?))).collect();
                let mut before = |h, l| {
                    let less = self.env.pool.lt(h, l);
                    self.simplifier.prove(&mut self.env, &a.loops, &[], less)
                };
                let disjoint = || ranges.into_iter().any(|((l, h), (m, i))| before(h, m) || before(i, l));
                if !(same || as_far && disjoint()) {
                    return Err(grid::foreign_read(&self.env, tensor, b.stage.unwrap_or(tensor)));
                }
            }
        }
        Ok(())
    }

    /// Each thread reads only elements that it writes itself.
    fn check_own(
        &mut self,
        tensor: TensorId,
        u: &Use<'_>,
        (common, private): (usize, Private),
        (lo, hi, gaps): (&[ExprId], &[Option<ExprId>], &[Gaps]),
        threads: &[(Axis, VarId)],
    ) -> Result<(), Diagnostic> {
        let reads = reads_of(&self.env, u.block, tensor);
        let (loops, from) = grid::loops_of(&mut self.env, &u.loops, common, private, &mut threads.to_vec());
        let map = self.bindings(u, common, private, threads);
        let missing = threads.iter().any(|(a, _)| !u.loops.iter().any(|l| l.kind.axis() == Some(*a)));
        // All threads have what one part writes, and each its own of another part.
        if missing && u.block.tensor == tensor && u.block.role != BlockRole::Init {
            return Err(grid::foreign_read(&self.env, tensor, u.block.stage));
        }
        for index in reads {
            for (d, &e) in index.iter().enumerate() {
                let e = self.env.pool.substitute(e, &map);
                let range = range_over(&mut self.env, e, &loops, from).unwrap_or((e, e));
                let inside = match (range, hi[d]) {
                    ((l, h), Some(top)) => {
                        let (a, b) = (self.env.pool.le(lo[d], l), self.env.pool.le(h, top));
                        self.simplifier.prove(&mut self.env, &loops, &[], a)
                            && self.simplifier.prove(&mut self.env, &loops, &[], b)
                    }
                    _ => false,
                };
                let offset = self.env.pool.sub(e, lo[d]);
                let written = gaps.iter().any(|w| match &w[d] {
                    Some(digits) => digits.have(&mut self.env, offset, &loops),
                    None => true,
                });
                if missing || !inside || !written {
                    return Err(grid::foreign_read(&self.env, tensor, u.block.stage));
                }
            }
        }
        Ok(())
    }

    /// Outside of its tiles, elements of a buffer that is spread over lanes are used by the lanes that hold them.
    fn check_lanes(
        &mut self,
        tensor: TensorId,
        u: &Use<'_>,
        (common, lo): (usize, &[ExprId]),
        threads: &[(Axis, VarId)],
    ) -> Result<(), Diagnostic> {
        if u.loops.last().is_some_and(|l| matches!(l.kind, LoopKind::Tensorize(_))) {
            return Ok(());
        }
        let mut used: Vec<Vec<ExprId>> = reads_of(&self.env, u.block, tensor);
        used.extend((u.block.tensor == tensor).then(|| u.block.index.clone()));
        let (loops, _) = grid::loops_of(&mut self.env, &u.loops, common, Private::Lanes, &mut threads.to_vec());
        let map = self.bindings(u, common, Private::Lanes, threads);
        let lane = u.loops.iter().find(|l| l.kind == LoopKind::Bound(Axis::ThreadX)).map(|l| l.var);
        for index in used {
            let mut at = Vec::new();
            for (&e, &lo) in index.iter().zip(lo) {
                let e = self.env.pool.substitute(e, &map);
                let e = self.env.pool.sub(e, lo);
                at.push(normalize(&mut self.env.pool, e));
            }
            self.check_lane((tensor, u.block.stage), &at, &loops, lane)?;
        }
        Ok(())
    }
}

/// `e`, or less: what a search finds at the first position, `f(min(0, n - 1))`, is taken as 0, since a loop that has no
/// iterations has no such position. Other writers may run where it has none, and readers of padding.
fn first_positions(env: &mut Env, e: ExprId) -> ExprId {
    let mut p = poly(&env.pool, e);
    let missing = |m: &[ExprId], c: i64| match (m, c > 0) {
        (&[a], true) => match env.pool.get(a) {
            Expr::Call(f, args) if matches!(env.ufs[*f].def, UfDef::Search { .. }) => {
                let last = args.last().map(|&x| env.pool.get(x));
                let zero = |x: ExprId| env.pool.as_int(x) == Some(0);
                matches!(last, Some(&Expr::Bin(BinOp::Min, x, y)) if zero(x) || zero(y))
            }
            _ => false,
        },
        _ => false,
    };
    let before = p.terms.len();
    p.terms.retain(|m, c| !missing(m, *c));
    if p.terms.len() == before { e } else { build(&mut env.pool, &p) }
}
