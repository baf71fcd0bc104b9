//! A copy given to a GPU's copy engine, as data: the box of a buffer that it brings into shared memory.
//!
//! ```text
//! for %i in 0..128 bulk { for %k in 0..64 bulk { @L[%i, %k] = @A[%f * 128 + min(%i, F - %f * 128 - 1), %o * 64 + %k] } }
//!   =>  bulk @L[0] slot 0 = @A[%o * 64 of 512 by 1 for 64, %f * 128 of F by 512 for 128]  await @L slot 0
//! ```
//!
//! A copy is one block that stores elements of a global buffer. In order of their steps in the shared buffer its loops are
//! the box's dimensions, the innermost first; neighbouring ones that go on where the other ends are one. The global buffer
//! has these dimensions for the copy: each has as many positions as fit into a step of the next larger one, and the largest
//! goes to the buffer's end, which for a ragged tensor is the end of its last row. What lies outside is zero.
//!
//! A relaxed loop's surplus iterations would read valid positions once more; nobody sees what they read, so here they read
//! what the buffer holds there, or zeros. Those that are zeros (`relax .. zero`) are seen: each must lie outside of the
//! buffer's dimensions, so a tile of rows has to end with the tensor and not with one of its rows.
//!
//! Requires: constant extents, a layout of the shared buffer in which the box lies in one piece. Ensures: the same elements
//! wherever they are seen, in bounds of the buffer.

use super::offload::strides;
use super::sum_of_products::name;
use super::to_storage::Lowering;
use cora_ir::affine::{normalize, poly};
use cora_ir::loops::{Block, BlockRole, For, LoopKind, Stmt as LoopStmt};
use cora_ir::storage::{
    BOX_BEGIN as BEGIN, BOX_UNIT as UNIT, Bulk, BulkDim, MOST_DIMS, MOST_EXTENT, SWIZZLED_BEGIN as SWIZZLED,
    SWIZZLED_LINE as LINE, Stmt, is_copy,
};
use cora_ir::text::{Names, print_expr};
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, ScalarType, TensorId, VarId};
use rustc_hash::FxHashMap;

/// What lowering says about such copies.
pub const REFUSALS: [&str; 4] = ["E0405", "E0406", "E0407", "E0419"];

/// Bytes of an element in memory.
fn bytes(ty: ScalarType) -> i64 {
    8 / ty.elems_of(8)
}

fn no_copy(env: &Env, l: &For, fact: &str) -> Diagnostic {
    Diagnostic::new("E0405", format!("loop `{}` is no copy of a box: {fact}", name(env, l)))
        .hint("bulk_copy takes the loops of a stage that cache_read makes in shared memory, the outermost one named")
}

fn no_box(env: &Env, l: &For, fact: &str, hint: &str) -> Diagnostic {
    Diagnostic::new("E0406", format!("loop `{}` is no box that the copy engine brings: {fact}", name(env, l)))
        .hint(hint)
}

fn wrong_place(env: &Env, l: &For, fact: &str, hint: &str) -> Diagnostic {
    Diagnostic::new("E0419", format!("loop `{}`: the copy engine {fact}", name(env, l))).hint(hint)
}

/// What mends a box elsewhere than on a GPU.
const NO_GRID: &str = "take the step away, or compile for a GPU and bind the loops around to blocks of its grid";
/// What mends a box in loops of threads.
const ONE_THREAD: &str =
    "one thread of a block asks for the box, for all: bind neither its loops nor those around it to threads";

/// The refusal of a copy where threads, lanes or a processor would have to make it.
pub(super) fn check_place(env: &Env, s: &LoopStmt, is_grid: bool) -> Result<(), Diagnostic> {
    let LoopStmt::For(l) = s else { return Ok(()) };
    if l.kind == LoopKind::Bulk {
        return if is_grid { Ok(()) } else { Err(wrong_place(env, l, "is a GPU's", NO_GRID)) };
    }
    let inside = l.kind.is_thread() || matches!(l.kind, LoopKind::Virtual | LoopKind::Vector);
    if inside {
        let mut found = None;
        s.walk(&mut |s| {
            if let LoopStmt::For(b) = s
                && b.kind == LoopKind::Bulk
            {
                found = Some(b);
            }
        });
        if let Some(b) = found {
            return Err(wrong_place(
                env,
                b,
                &format!("would run inside a loop that is {}", l.kind.described()),
                ONE_THREAD,
            ));
        }
    }
    l.body.iter().try_for_each(|s| check_place(env, s, is_grid))
}

/// The engine does not see what threads of the same kernel store, and swizzled elements have no place of their own for other
/// statements.
///
/// # Errors
/// `E0405`, `E0429`.
pub(super) fn check_kernel(env: &Env, body: &[Stmt]) -> Result<(), Diagnostic> {
    let (mut stored, mut brought) = (Vec::new(), Vec::new());
    for s in body {
        s.walk(&mut |s| match s {
            Stmt::Bulk(b) => brought.push((b.from, b.to)),
            s => stored.extend(s.writes()),
        });
    }
    if let Some(&(from, to)) = brought.iter().find(|b| stored.contains(&b.0)) {
        let [from, to] = [from, to].map(|t| env.tensors[t].name.clone());
        return Err(Diagnostic::new(
            "E0405",
            format!("`{to}` is no copy for the engine: its kernel itself writes `{from}`"),
        )
        .hint("compute what is copied in a nest before, or copy without bulk_copy"));
    }
    for s in body {
        let mut found = None;
        s.walk(&mut |s| {
            let mut used = Vec::new();
            for e in s.exprs() {
                env.pool.walk(e, &mut |_, n| {
                    if let Expr::Load { tensor, .. } = n {
                        used.push(*tensor);
                    }
                });
            }
            match s {
                Stmt::Bulk(b) => used.push(b.from),
                Stmt::Tile(t) => {
                    used.extend(t.matrices().into_iter().filter(|m| m.blocks.is_none()).map(|m| m.tensor));
                }
                Stmt::Await { .. } => {}
                s => used.extend(s.writes().into_iter().chain(s.named_reads())),
            }
            found = found.or(used.into_iter().find(|&t| env.tensors[t].is_swizzled()));
        });
        if let Some(t) = found {
            let fact = format!("`{}` is swizzled, and its elements are accessed one by one", env.tensors[t].name);
            return Err(Diagnostic::new("E0429", fact)
                .hint("fill it by bulk_copy, and read it by a tensor instruction that reads shared memory itself"));
        }
    }
    Ok(())
}

/// A loop of the box, or several that are one: its position is the sum of variables times factors.
#[derive(Clone)]
struct Side {
    vars: Vec<(VarId, i64)>,
    extent: i64,
    /// Elements from one position to the next, in the shared and in the global buffer.
    to: i64,
    from: i64,
}

/// The sides by their steps in the global buffer, the largest first; those with equal steps in any order: one of them has a
/// single position there.
fn orders(sides: &[Side]) -> Vec<Vec<usize>> {
    let mut first: Vec<usize> = (0..sides.len()).collect();
    first.sort_by_key(|&n| std::cmp::Reverse(sides[n].from));
    let mut all = vec![first.clone()];
    for n in 1..first.len() {
        if sides[first[n - 1]].from == sides[first[n]].from {
            let mut other = first.clone();
            other.swap(n - 1, n);
            all.push(other);
        }
    }
    all
}

/// The loops of kind `bulk` and the block inside.
fn nest<'a>(env: &Env, l: &'a For) -> Result<(Vec<&'a For>, &'a Block), Diagnostic> {
    let mut loops = vec![l];
    loop {
        match loops[loops.len() - 1].body.as_slice() {
            [LoopStmt::For(inner)] if inner.kind == LoopKind::Bulk => loops.push(inner),
            [LoopStmt::For(inner)] => {
                let fact = format!("loop `{}` inside is {}", name(env, inner), inner.kind.described());
                return Err(no_copy(env, l, &fact));
            }
            [LoopStmt::Block(b)] if b.role == BlockRole::Compute => return Ok((loops, b)),
            _ => return Err(no_copy(env, l, "several statements stand inside, or one that is no copy")),
        }
    }
}

/// `e` without the clamps of relaxed loops among `vars`; what holds for iterations that are not surplus.
fn unclamped(env: &mut Env, e: ExprId, vars: &[VarId], valid: &mut Vec<ExprId>) -> ExprId {
    let found = env.pool.rewrite(e, &mut |p, x| {
        let Expr::Bin(BinOp::Min, a, b) = *p.get(x) else { return None };
        let uses = |e: ExprId| vars.iter().any(|&v| p.uses_var(e, v));
        let (at, last) = match (uses(a), uses(b)) {
            (true, false) => (a, b),
            (false, true) => (b, a),
            _ => return None,
        };
        valid.push(p.le(at, last));
        Some(at)
    });
    // A loop that was relaxed twice has a clamp inside another.
    if found == e { e } else { unclamped(env, found, vars, valid) }
}

impl Lowering<'_> {
    /// Lowers a loop of kind `bulk`.
    pub(super) fn bulk(&mut self, l: &For, out: &mut Vec<Stmt>) -> Result<(), Diagnostic> {
        if !self.in_grid() {
            return Err(wrong_place(&self.env, l, "is a GPU's", NO_GRID));
        }
        let (loops, block) = nest(&self.env, l)?;
        let outer = self.loops.len();
        for x in &loops {
            let extent = self.value(x.extent, &mut FxHashMap::default());
            let extent = self.simplifier.simplify(&mut self.env, &self.loops, extent);
            self.loops.push((x.var, extent));
        }
        let lowered = self.bulk_box(l, &loops, block, outer);
        self.loops.truncate(outer);
        let (bulk, around) = lowered?;
        let (tensor, slot) = (bulk.to, bulk.slot);
        let stmts = vec![Stmt::Bulk(Box::new(bulk)), Stmt::Await { tensor, slot }];
        out.extend(super::under(&mut self.env, around, stmts));
        Ok(())
    }

    /// The box, and the conditions on it as a whole; the loops inside begin at `outer`.
    fn bulk_box(
        &mut self,
        l: &For,
        loops: &[&For],
        b: &Block,
        outer: usize,
    ) -> Result<(Bulk, Vec<ExprId>), Diagnostic> {
        let mut extents = Vec::new();
        for n in outer..self.loops.len() {
            let (v, e) = self.loops[n];
            let Some(extent) = self.env.pool.as_int(e).filter(|&n| n >= 1) else {
                let text = print_expr(&self.env, e, &Names::of(&self.env, &[e]));
                let fact = format!("loop `{}` has {text} iterations", self.env.vars[v].name);
                return Err(no_box(
                    &self.env,
                    l,
                    &fact,
                    "run full tiles before: `relax Copy.i`, or `relax Copy.k zero`",
                ));
            };
            extents.push(extent);
        }
        let vars: Vec<VarId> = loops.iter().map(|l| l.var).collect();
        let mut around = Vec::new();
        for &cond in &b.predicate {
            let map: FxHashMap<VarId, ExprId> = b.iters.iter().map(|i| (i.var, i.binding)).collect();
            let cond = self.env.pool.substitute(cond, &map);
            let cond = self.value(cond, &mut FxHashMap::default());
            let cond = self.simplifier.simplify(&mut self.env, &self.loops, cond);
            if self.env.pool.as_bool(cond) == Some(true) {
                continue;
            }
            if vars.iter().any(|&v| self.env.pool.uses_var(cond, v)) {
                return Err(no_copy(&self.env, l, "only some of its positions are written"));
            }
            around.push(cond);
        }
        let (mut valid, mut map) = (Vec::new(), FxHashMap::default());
        for i in &b.iters {
            map.insert(i.var, unclamped(&mut self.env, i.binding, &vars, &mut valid));
        }
        let valid: Vec<ExprId> = valid.into_iter().map(|e| self.value(e, &mut FxHashMap::default())).collect();
        let mut memo = FxHashMap::default();
        let index: Vec<ExprId> = b.index.iter().map(|&e| self.env.pool.substitute(e, &map)).collect();
        let index: Vec<ExprId> = index.into_iter().map(|e| self.value(e, &mut memo)).collect();
        let target = self.flat(b.tensor, &index);
        let value = self.env.pool.substitute(b.value, &map);
        let value = self.value(value, &mut memo);
        if !is_copy(&self.env, b.tensor, value) {
            let fact = format!(
                "what `{}` takes is no element of a global tensor of its type",
                self.env.tensors[b.tensor].name
            );
            return Err(no_copy(&self.env, l, &fact));
        }
        let Expr::Load { tensor: from, index, guard, .. } = self.env.pool.get(value).clone() else {
            return Err(no_copy(&self.env, l, "it reads no element"));
        };
        let sides = self.sides(l, (b.tensor, target), (from, index[0]), &vars, &extents)?;
        let (offset, base, sides) = sides;
        self.check_shape(l, (b.tensor, from), &sides)?;
        let (mut dims, mut fault) = (None, None);
        for order in orders(&sides) {
            let found = self.dims(l, from, base, (&sides, &order)).and_then(|d| {
                self.check_inside(l, from, &d, (&sides, &order), (&valid, guard.map(|g| g.0))).map(|()| d)
            });
            match found {
                Ok(d) => dims = dims.or(Some(d)),
                Err(d) => fault = fault.or(Some(d)),
            }
        }
        let Some(dims) = dims else {
            return Err(fault.unwrap_or_else(|| no_copy(&self.env, l, "it has no dimension")));
        };
        self.check_begin(l, b.tensor, offset)?;
        let slot = self.env.pool.int(0);
        Ok((Bulk { to: b.tensor, offset, slot, from, dims, zeros: guard.is_some() }, around))
    }

    /// Where the box begins in both buffers, and its sides, the one that is contiguous in the shared buffer first.
    #[allow(clippy::type_complexity, reason = "two offsets and the sides")]
    fn sides(
        &mut self,
        l: &For,
        (to, target): (TensorId, ExprId),
        (from, source): (TensorId, ExprId),
        vars: &[VarId],
        extents: &[i64],
    ) -> Result<(ExprId, ExprId, Vec<Side>), Diagnostic> {
        let found = [(to, target), (from, source)].map(|(t, at)| (t, strides(&mut self.env.pool, at, vars)));
        let mut both = Vec::new();
        for (t, found) in found {
            let steps = found.and_then(|(base, steps)| {
                let steps: Option<Vec<i64>> = steps.iter().map(|&s| self.env.pool.as_int(s)).collect();
                Some((base, steps?))
            });
            let Some(steps) = steps else {
                let fact = format!(
                    "the offset of `{}` is not affine in its loops with constant steps",
                    self.env.tensors[t].name
                );
                let hint = "split the copy's loops as its layout splits its dimensions; rows of the source have a constant length";
                return Err(no_box(&self.env, l, &fact, hint));
            };
            both.push(steps);
        }
        let mut sides: Vec<Side> = (0..vars.len())
            .filter(|&n| extents[n] > 1)
            .map(|n| Side { vars: vec![(vars[n], 1)], extent: extents[n], to: both[0].1[n], from: both[1].1[n] })
            .collect();
        sides.sort_by_key(|s| s.to);
        let mut pitch = 1;
        for s in &sides {
            if s.to != pitch {
                let fact = format!("it does not lie in one piece in `{}`", self.env.tensors[to].name);
                return Err(no_box(&self.env, l, &fact, "copy all of a tile, without storage_align"));
            }
            pitch *= s.extent;
        }
        let line = self.env.tensors[to].is_swizzled().then(|| self.env.tensors[to].ty.elems_of(LINE));
        let mut joined: Vec<Side> = Vec::new();
        for s in sides {
            match joined.last_mut() {
                Some(last)
                    if s.from == last.from * last.extent
                        && last.extent * s.extent <= MOST_EXTENT
                        && line.is_none_or(|n| last.to > 1 || last.extent * s.extent <= n) =>
                {
                    last.vars.extend(s.vars.iter().map(|&(v, by)| (v, by * last.extent)));
                    last.extent *= s.extent;
                }
                _ => joined.push(s),
            }
        }
        Ok((both[0].0, both[1].0, joined))
    }

    /// Steps and extents are those that the engine takes.
    fn check_shape(&self, l: &For, (to, from): (TensorId, TensorId), sides: &[Side]) -> Result<(), Diagnostic> {
        let size = bytes(self.env.tensors[from].ty);
        let name = self.env.tensors[from].name.clone();
        let refuse = |cx: &Self, fact: String, hint: &str| Err(no_box(&cx.env, l, &fact, hint));
        let Some(first) = sides.first().filter(|s| s.from == 1) else {
            let hint = "its innermost stored dimension must be the innermost one of the source";
            return refuse(self, format!("neighbours in it are no neighbours in `{name}`"), hint);
        };
        if first.extent * size % UNIT != 0 {
            let fact = format!("{} elements of {size} bytes lie side by side in it", first.extent);
            return refuse(self, fact, "they must be a multiple of 16 bytes");
        }
        if self.env.tensors[to].is_swizzled() && first.extent * size != LINE {
            let fact =
                format!("{} bytes lie side by side in it, and lines of {LINE} are swizzled", first.extent * size);
            return refuse(
                self,
                fact,
                "store lines of 128 bytes: `split_dim T.k 64 -> ko, ki` for elements of 2 bytes",
            );
        }
        if sides.len() > MOST_DIMS {
            return refuse(self, format!("it has {} dimensions", sides.len()), "there are at most 5");
        }
        if let Some(s) = sides.iter().find(|s| s.extent > MOST_EXTENT) {
            let fact = format!("it has {} positions along one dimension", s.extent);
            return refuse(self, fact, "there are at most 256: use smaller tiles");
        }
        if let Some(Side { from: s, .. }) = sides[1..].iter().find(|s| s.from < 1 || s.from * size % UNIT != 0) {
            let fact = format!("positions of `{name}` are {s} elements of {size} bytes apart");
            return refuse(self, fact, "they must be a multiple of 16 bytes apart");
        }
        Ok(())
    }

    /// The global buffer's dimensions, and where the box begins in each; `order` has the largest step first.
    fn dims(
        &mut self,
        l: &For,
        from: TensorId,
        base: ExprId,
        (sides, order): (&[Side], &[usize]),
    ) -> Result<Vec<BulkDim>, Diagnostic> {
        let name = self.env.tensors[from].name.clone();
        let refuse = |cx: &Self, fact: String, hint: &str| Err(no_box(&cx.env, l, &fact, hint));
        let steps: Vec<i64> = order.iter().map(|&n| sides[n].from).collect();
        if steps.windows(2).any(|w| w[0] % w[1] != 0) {
            return refuse(self, format!("its dimensions overlap in `{name}`"), "copy a box of its stored dimensions");
        }
        let elems = self.buffer(from).elems;
        let outermost = steps.first().copied().unwrap_or(1);
        let Some(rows) = self.quotient(elems, outermost) else {
            let fact = format!("`{name}` has no whole number of rows of {outermost} elements");
            return refuse(self, fact, "let the box's largest step be a row of the source");
        };
        let mut at = vec![self.env.pool.int(0); sides.len()];
        for (atoms, c) in poly(&self.env.pool, base).terms {
            let n = order.iter().copied().find(|&n| c % sides[n].from == 0).unwrap_or(0);
            let mut term = self.env.pool.int(c / sides[n].from);
            for a in atoms {
                term = self.env.pool.mul(term, a);
            }
            at[n] = self.env.pool.add(at[n], term);
        }
        let mut dims = Vec::new();
        for (n, s) in sides.iter().enumerate() {
            let place = order.iter().position(|&o| o == n).unwrap_or(0);
            let size = match place.checked_sub(1) {
                Some(larger) => self.env.pool.int(steps[larger] / s.from),
                None => rows,
            };
            let at = normalize(&mut self.env.pool, at[n]);
            dims.push(BulkDim { at, size, step: s.from, extent: s.extent });
        }
        Ok(dims)
    }

    /// `e / n`, if that is exact whatever the values are.
    fn quotient(&mut self, e: ExprId, n: i64) -> Option<ExprId> {
        let mut sum = self.env.pool.int(0);
        for (atoms, c) in poly(&self.env.pool, e).terms {
            let mut term = self.env.pool.int((c % n == 0).then_some(c / n)?);
            for a in atoms {
                term = self.env.pool.mul(term, a);
            }
            sum = self.env.pool.add(sum, term);
        }
        Some(normalize(&mut self.env.pool, sum))
    }

    /// What is seen of the box lies inside the dimensions, and what is to be zero outside of them.
    fn check_inside(
        &mut self,
        l: &For,
        from: TensorId,
        dims: &[BulkDim],
        (sides, order): (&[Side], &[usize]),
        (valid, guard): (&[ExprId], Option<ExprId>),
    ) -> Result<(), Diagnostic> {
        let mut inside = Vec::new();
        let assumed: Vec<ExprId> = valid.iter().copied().chain(guard).collect();
        for (n, (d, s)) in dims.iter().zip(sides).enumerate() {
            let mut at = d.at;
            for &(v, by) in &s.vars {
                let (x, by) = (self.env.pool.var(v), self.env.pool.int(by));
                let part = self.env.pool.mul(x, by);
                at = self.env.pool.add(at, part);
            }
            let zero = self.env.pool.int(0);
            let both = [self.env.pool.le(zero, at), self.env.pool.lt(at, d.size)];
            inside.extend(both);
            // Elements are in the buffer, so along its largest step they are where all others are inside.
            if order.first() == Some(&n) {
                continue;
            }
            if !both.iter().all(|&goal| self.simplifier.prove(&mut self.env, &self.loops, &assumed, goal)) {
                let name = &self.env.tensors[from].name;
                let fact = format!(
                    "it may go beyond the end of a row of `{name}`, {} positions of {} elements",
                    show(&self.env, d.size),
                    d.step
                );
                return Err(no_box(
                    &self.env,
                    l,
                    &fact,
                    "let tiles begin at multiples of their size, and relax their ends with zero",
                ));
            }
        }
        let zeros = guard.is_none_or(|g| self.simplifier.prove(&mut self.env, &self.loops, &inside, g));
        if !zeros {
            let name = &self.env.tensors[from].name;
            let fact =
                format!("loop `{}`: zeros are to be read where `{name}` has other elements", self::name(&self.env, l));
            return Err(Diagnostic::new("E0407", fact)
                .note("the copy engine knows the end of the tensor, not that of a row inside it")
                .hint(
                    "where surplus elements are not reduced over, `relax` without `zero`; else copy without bulk_copy",
                ));
        }
        Ok(())
    }

    /// Boxes begin, and slots follow each other, at addresses that the engine takes.
    fn check_begin(&mut self, l: &For, to: TensorId, offset: ExprId) -> Result<(), Diagnostic> {
        let size = bytes(self.env.tensors[to].ty);
        let unit = if self.env.tensors[to].is_swizzled() { SWIZZLED } else { BEGIN };
        let elems = self.buffer(to).elems;
        for e in [offset, elems] {
            if poly(&self.env.pool, e).terms.values().any(|c| c * size % unit != 0) {
                let fact = format!("in `{}` it begins at no multiple of {unit} bytes", self.env.tensors[to].name);
                return Err(no_box(&self.env, l, &fact, &format!("let the box have a multiple of {unit} bytes")));
            }
        }
        Ok(())
    }
}

fn show(env: &Env, e: ExprId) -> String {
    print_expr(env, e, &Names::of(env, &[e]))
}
