//! Loops along fused rows run row by row.
//!
//! ```text
//! for %i in 0..n { @O[p + %i] = @A[p + %i] * @S[row(p + %i)] }
//!   =>  for %r in 0..row(p + n - 1) - row(p) + 1 {
//!         for %i in 0..(what is left of row(p) + %r up to p + n) { @O[..] = @A[..] * @S[row(p) + %r] }
//!       }
//! ```
//!
//! A tile of a fused loop (paper section 4.1) has the row of each of its elements to find, a search, and where a row has
//! several dimensions a quotient and a remainder. Between the ends of a tile these are known from one element to the next: two
//! searches are enough, and along a row positions move by 1, so that a vector is one piece of memory.
//!
//! Where rows of a tile turn out to be short, or many are empty, it runs element by element, as it was. Vectors of a loop over
//! vectors are made anew in each row. Iterations keep their order. Buffers in registers stay in unrolled loops, so a loop that
//! names one is left alone.
//!
//! Requires: names of loops are their own; no tables yet. Ensures: the same iterations in the same order.

use super::Simplifier;
use super::place::{Place, Rewrite, Tables};
use super::vectorize::{substitute, substitute_all};
use cora_ir::affine::{least_operands, normalize, poly};
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::{BinOp, Env, Expr, ExprId, ExprPool, Scope, UfDef, UfId, VarId};
use rustc_hash::FxHashMap;

/// Loops of fewer iterations are left alone.
const FEWEST: i64 = 8;
/// Tiles of fewer elements are of one row or run as they were.
const SMALL: i64 = 16;
/// Elements of a row from which on the row is worth its own loop, where it is searched for and where it is a quotient.
const SEARCHED: i64 = 8;
const DIVIDED: i64 = 4;
/// Levels of rows in rows.
const MOST_LEVELS: usize = 4;

/// Rewrites such loops in every kernel for a CPU.
pub fn segment_rows(m: &mut StorageModule, simplifier: &mut dyn Simplifier) {
    if !m.tables.is_empty() {
        return;
    }
    let tables = Tables::of(m);
    for k in m.kernels.iter_mut().filter(|k| !k.is_grid()) {
        let mut cx = Segments { env: &mut m.env, simplifier, place: Place::new(&tables) };
        let body = std::mem::take(&mut k.body);
        k.body = cx.body(body);
    }
}

struct Segments<'a> {
    env: &'a mut Env,
    simplifier: &'a mut dyn Simplifier,
    place: Place<'a>,
}

/// A loop over `count` neighbouring elements.
struct Run {
    var: VarId,
    count: ExprId,
    /// Lanes of its vectors.
    width: Option<i64>,
    body: Vec<Stmt>,
    /// As it stands in the program, lanes one after the other.
    given: Option<Stmt>,
}

/// A row, as what its elements have in common: they are numbered `start + var`.
enum Row {
    /// The row of a prefix sum of `size` that a search finds, of `all`; each position of the sum is `scale` elements.
    Searched { search: UfId, sum: UfId, outer: Vec<ExprId>, size: ExprId, start: ExprId, all: ExprId, scale: i64 },
    /// The quotient by the size of the rows.
    Divided { size: ExprId, start: ExprId },
}

impl Row {
    fn start(&self) -> ExprId {
        match self {
            Row::Searched { start, .. } | Row::Divided { start, .. } => *start,
        }
    }
}

impl<'a> Rewrite<'a> for Segments<'a> {
    fn at(&mut self) -> (&mut Env, &mut Place<'a>) {
        (self.env, &mut self.place)
    }

    fn replaced(&mut self, s: Stmt) -> Result<Vec<Stmt>, Stmt> {
        let Stmt::For { var, extent, kind, body } = &s else { return Err(s) };
        let run = self.run(*var, *extent, *kind, body);
        run.and_then(|mut run| self.in_rows(&mut run, 0, None)).ok_or(s)
    }
}

impl Segments<'_> {
    /// An innermost loop with a row to find, or one over its vectors.
    fn run(&mut self, var: VarId, extent: ExprId, kind: LoopKind, body: &[Stmt]) -> Option<Run> {
        if !self.is_simple(body) {
            return None;
        }
        let serial = |var, extent, body| Stmt::For { var, extent, kind: LoopKind::Serial, body };
        if let (LoopKind::Serial, [Stmt::For { var: lane, extent: lanes, kind: LoopKind::Vector, body }]) = (kind, body)
            && let Some(mut run) = self.vectors((var, extent), (*lane, *lanes), body)
        {
            run.given = Some(serial(var, extent, vec![serial(*lane, *lanes, body.clone())]));
            return Some(run);
        }
        let bound = self.env.pool.constant_bound(extent);
        let width = match kind {
            LoopKind::Serial => None,
            LoopKind::Vector => Some(bound?),
            _ => return None,
        };
        let few = bound.is_some_and(|n| n < FEWEST);
        let given = Some(serial(var, extent, body.to_vec()));
        (!few).then(|| Run { var, count: extent, width, body: body.to_vec(), given })
    }

    /// `for %o in 0..n { for %l in 0..min(w, r - w * %o) vector { .. w * %o + %l .. } }` as a loop over elements.
    fn vectors(&mut self, (o, n): (VarId, ExprId), (l, lanes): (VarId, ExprId), body: &[Stmt]) -> Option<Run> {
        let width = self.env.pool.constant_bound(lanes)?;
        let (vo, vl, w) = (self.env.pool.var(o), self.env.pool.var(l), self.env.pool.int(width));
        let before = self.env.pool.mul(vo, w);
        let mut count = self.env.pool.mul(n, w);
        for left in least_operands(&mut self.env.pool, lanes) {
            if self.env.pool.as_int(left) != Some(width) {
                let upto = self.env.pool.add(left, before);
                let upto = normalize(&mut self.env.pool, upto);
                if self.env.pool.uses_var(upto, o) {
                    return None;
                }
                count = self.env.pool.min(count, upto);
            }
        }
        let lane = self.env.pool.sub(vl, before);
        let mut body = body.to_vec();
        self.put(&mut body, &[(l, lane)].into_iter().collect());
        let apart = body.iter().any(|s| s.any(&mut |s| s.exprs().iter().any(|&e| self.env.pool.uses_var(e, o))));
        (!apart).then(|| Run {
            var: l,
            count: normalize(&mut self.env.pool, count),
            width: Some(width),
            body,
            given: None,
        })
    }

    /// Whether statements are branches and stores to memory, or loops of such.
    fn is_simple(&self, body: &[Stmt]) -> bool {
        let registers = |t| self.env.tensors[t].scope == Scope::Reg;
        let reads =
            |e: ExprId| self.env.pool.any(e, &mut |n| matches!(n, Expr::Load { tensor, .. } if registers(*tensor)));
        body.iter().all(|s| {
            !s.any(&mut |s| {
                let simple = match s {
                    Stmt::For { kind, .. } => matches!(kind, LoopKind::Serial | LoopKind::Unroll | LoopKind::Vector),
                    s => matches!(s, Stmt::If { .. } | Stmt::Store { .. } | Stmt::Prefetch { .. }),
                };
                !simple || s.writes().into_iter().any(registers) || s.exprs().into_iter().any(reads)
            })
        })
    }

    /// The loops over rows and their elements; `sized`: what is a factor of the size of each row with elements.
    fn in_rows(&mut self, run: &mut Run, level: usize, sized: Option<ExprId>) -> Option<Vec<Stmt>> {
        if level == MOST_LEVELS {
            return None;
        }
        let row = self.row(run, sized)?;
        let body = std::mem::take(&mut run.body);
        let one_by_one = self.one_by_one(run, &body);
        let mut out = Vec::new();
        let first = self.first(&row);
        let first = if matches!(row, Row::Divided { .. }) { self.name("first", first, &mut out) } else { first };
        let small = self.env.pool.constant_bound(run.count).is_some_and(|n| n < SMALL);
        let (cond, rows) = if small {
            self.of_one_row(run, &row, first, body, level)
        } else {
            self.of_each_row(run, &row, first, body, level)
        };
        out.push(Stmt::If { cond, then: rows, other: vec![one_by_one] });
        let zero = self.env.pool.int(0);
        let any = self.env.pool.lt(zero, run.count);
        if !small && self.is_all(&row, run.count) || self.proved(any) {
            return Some(out);
        }
        Some(vec![Stmt::If { cond: any, then: out, other: Vec::new() }])
    }

    /// Where one row has all elements of a small tile: the condition, and what runs.
    fn of_one_row(
        &mut self,
        run: &Run,
        row: &Row,
        first: ExprId,
        mut body: Vec<Stmt>,
        level: usize,
    ) -> (ExprId, Vec<Stmt>) {
        let (begin, size) = self.extent(row, first);
        let begins = self.env.pool.sub(begin, row.start());
        let upto = self.env.pool.add(begins, size);
        let cond = self.env.pool.le(run.count, upto);
        self.name_row(&mut body, row, run.var, first, begin);
        let x = self.env.copy_var(run.var);
        let position = self.env.pool.var(x);
        self.put(&mut body, &[(run.var, position)].into_iter().collect());
        let inner = Run { var: x, count: run.count, width: run.width, body, given: None };
        (normalize(&mut self.env.pool, cond), self.inside(inner, level, size))
    }

    /// Where rows are long enough: the condition, and the loop over rows. Of short rows, and of many that are empty, what
    /// finds one anew for each element has less to do.
    fn of_each_row(
        &mut self,
        run: &Run,
        row: &Row,
        first: ExprId,
        mut body: Vec<Stmt>,
        level: usize,
    ) -> (ExprId, Vec<Stmt>) {
        let (count, zero, one) = (run.count, self.env.pool.int(0), self.env.pool.int(1));
        let last = self.last(row, count);
        let more = self.env.pool.sub(last, first);
        let least = self.env.pool.int(if matches!(row, Row::Searched { .. }) { SEARCHED } else { DIVIDED });
        let least = self.env.pool.mul(more, least);
        let cond = self.env.pool.lt(least, count);
        let rows = self.env.pool.add(more, one);
        let rows = normalize(&mut self.env.pool, rows);
        let (r, x) = (self.env.new_var("row"), self.env.copy_var(run.var));
        let (vr, vx) = (self.env.pool.var(r), self.env.pool.var(x));
        let at = self.env.pool.add(first, vr);
        let at = normalize(&mut self.env.pool, at);
        let (begin, size) = self.extent(row, at);

        self.place.enter(self.env, r, rows);
        let mut elements = Vec::new();
        let begins = self.env.pool.sub(begin, row.start());
        let from = self.env.pool.max(begins, zero);
        let from = self.name("from", from, &mut elements);
        let upto = self.env.pool.add(begins, size);
        let upto = self.env.pool.min(upto, count);
        let left = self.env.pool.sub(upto, from);
        let left = self.name("left", left, &mut elements);
        let position = self.env.pool.add(from, vx);
        self.name_row(&mut body, row, run.var, at, begin);
        self.put(&mut body, &[(run.var, position)].into_iter().collect());
        let inner = Run { var: x, count: left, width: run.width, body, given: None };
        elements.extend(self.inside(inner, level, size));
        self.place.leave();
        let rows = Stmt::For { var: r, extent: rows, kind: LoopKind::Serial, body: elements };
        (normalize(&mut self.env.pool, cond), vec![rows])
    }

    /// The elements of one row, which may have rows of their own.
    fn inside(&mut self, mut run: Run, level: usize, size: ExprId) -> Vec<Stmt> {
        match self.in_rows(&mut run, level + 1, Some(size)) {
            Some(rows) => rows,
            None => self.elements(run),
        }
    }

    /// The row of the first element.
    fn first(&mut self, row: &Row) -> ExprId {
        if self.env.pool.as_int(row.start()) == Some(0) {
            return self.env.pool.int(0);
        }
        self.find(row, row.start())
    }

    /// The row of the last element, or a later one that is empty.
    fn last(&mut self, row: &Row, count: ExprId) -> ExprId {
        let one = self.env.pool.int(1);
        match row {
            Row::Searched { all, .. } if self.ends(row, count) => self.env.pool.sub(*all, one),
            _ => {
                let end = self.env.pool.add(row.start(), count);
                let last = self.env.pool.sub(end, one);
                self.find(row, last)
            }
        }
    }

    fn find(&mut self, row: &Row, element: ExprId) -> ExprId {
        match row {
            Row::Searched { search, outer, scale, .. } => {
                let scale = self.env.pool.int(*scale);
                let at = self.env.pool.floor_div(element, scale);
                let at = normalize(&mut self.env.pool, at);
                self.env.pool.call(*search, outer.iter().copied().chain([at]))
            }
            Row::Divided { size, .. } => self.env.pool.floor_div(element, *size),
        }
    }

    /// Whether the elements are those up to the end of the last row.
    fn ends(&mut self, row: &Row, count: ExprId) -> bool {
        let Row::Searched { sum, outer, start, all, scale, .. } = row else { return false };
        let (end, scale) = (self.env.pool.add(*start, count), self.env.pool.int(*scale));
        let total = self.env.pool.call(*sum, outer.iter().copied().chain([*all]));
        let total = self.env.pool.mul(total, scale);
        let more = self.env.pool.sub(end, total);
        let more = normalize(&mut self.env.pool, more);
        self.env.pool.as_int(more) == Some(0)
    }

    /// Whether the elements are those of all rows, so that none is searched for.
    fn is_all(&mut self, row: &Row, count: ExprId) -> bool {
        self.env.pool.as_int(row.start()) == Some(0) && self.ends(row, count)
    }

    /// Where row `at` begins, and its size, in elements.
    fn extent(&mut self, row: &Row, at: ExprId) -> (ExprId, ExprId) {
        match row {
            Row::Searched { sum, outer, size, scale, .. } => {
                let args: Vec<ExprId> = outer.iter().copied().chain([at]).collect();
                let scale = self.env.pool.int(*scale);
                let (size, begin) = (self.env.pool.instantiate(*size, &args), self.env.pool.call(*sum, args));
                (self.env.pool.mul(begin, scale), self.env.pool.mul(size, scale))
            }
            Row::Divided { size, .. } => (self.env.pool.mul(at, *size), *size),
        }
    }

    /// The loop as it was, with names of its own.
    fn one_by_one(&mut self, run: &Run, body: &[Stmt]) -> Stmt {
        if let Some(given) = &run.given {
            return substitute(self.env, given, &FxHashMap::default());
        }
        let var = self.env.copy_var(run.var);
        let map = [(run.var, self.env.pool.var(var))].into_iter().collect();
        let body = substitute_all(self.env, body, &map);
        Stmt::For { var, extent: run.count, kind: LoopKind::Serial, body }
    }

    /// A name for a value, defined by a statement.
    fn name(&mut self, name: &str, value: ExprId, out: &mut Vec<Stmt>) -> ExprId {
        let value = self.simplifier.simplify(self.env, self.place.loops(), value);
        if matches!(self.env.pool.get(value), Expr::Int(_) | Expr::Var(_) | Expr::Call(..)) {
            return value;
        }
        let var = self.env.new_var(name);
        self.place.define(self.env, var, value);
        out.push(Stmt::Let { var, value });
        self.env.pool.var(var)
    }

    /// The outermost row that the loop finds anew for each element.
    fn row(&mut self, run: &mut Run, sized: Option<ExprId>) -> Option<Row> {
        let mut found = Vec::new();
        for s in &run.body {
            self.rows_in(s, run.var, true, &mut found);
        }
        let (searches, quotients): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|&(e, _)| matches!(self.env.pool.get(e), Expr::Call(..)));
        searches.into_iter().chain(quotients).find_map(|e| self.row_of(e, run, sized))
    }

    /// Searches and quotients that depend on `var`, each with whether it is there in each iteration.
    fn rows_in(&self, s: &Stmt, var: VarId, always: bool, found: &mut Vec<(ExprId, bool)>) {
        for e in s.exprs() {
            let chosen =
                self.env.pool.any(e, &mut |n| matches!(n, Expr::Load { guard: Some(_), .. } | Expr::Select(..)));
            self.env.pool.walk(e, &mut |id, n| {
                let row = match n {
                    Expr::Call(f, _) => matches!(self.env.ufs[*f].def, UfDef::Search { .. }),
                    Expr::Bin(BinOp::FloorDiv | BinOp::Mod, _, by) => self.env.pool.as_int(*by).is_none(),
                    _ => false,
                };
                if row && self.env.pool.uses_var(id, var) {
                    let always = always && !chosen;
                    match found.iter_mut().find(|f| f.0 == id) {
                        Some(known) => known.1 |= always,
                        None => found.push((id, always)),
                    }
                }
            });
        }
        s.bodies().flatten().for_each(|s| self.rows_in(s, var, false, found));
    }

    fn row_of(&mut self, (e, always): (ExprId, bool), run: &mut Run, sized: Option<ExprId>) -> Option<Row> {
        let fixed = |cx: &mut Self, e: ExprId| {
            let reads = cx.env.pool.any(e, &mut |n| matches!(n, Expr::Load { .. }));
            !reads && !cx.uses_inside(e, run) && (always || cx.is_defined(e))
        };
        match self.env.pool.get(e).clone() {
            Expr::Call(search, args) => {
                let UfDef::Search { sum } = self.env.ufs[search].def else { return None };
                let UfDef::PrefixSum { body: size } = self.env.ufs[sum].def else { return None };
                let (&position, outer) = args.split_last()?;
                let (element, scale) = scaled(&mut self.env.pool, position);
                let start = self.start(element, run.var).filter(|&s| fixed(self, s))?;
                let all = *self.env.ufs[sum].domain.last()?;
                let all = self.env.pool.instantiate(all, outer);
                let total = self.env.pool.call(sum, outer.iter().copied().chain([all]));
                let factor = self.env.pool.int(scale);
                let total = self.env.pool.mul(total, factor);
                let end = self.env.pool.add(start, run.count);
                let zero = self.env.pool.int(0);
                let (begins, ends) = (self.env.pool.le(zero, start), self.env.pool.le(end, total));
                if !outer.iter().all(|&o| fixed(self, o)) || !self.proved(begins) {
                    return None;
                }
                if !self.proved(ends) {
                    // Past the end a masked tile does nothing.
                    let mask = self.env.pool.lt(element, total);
                    let mask = normalize(&mut self.env.pool, mask);
                    run.body = without(self.env, &run.body, mask)?;
                    let left = self.env.pool.sub(total, start);
                    run.count = self.env.pool.min(run.count, left);
                }
                Some(Row::Searched { search, sum, outer: outer.to_vec(), size, start, all, scale })
            }
            Expr::Bin(BinOp::FloorDiv | BinOp::Mod, position, size) => {
                let start = self.start(position, run.var).filter(|&s| fixed(self, s) && fixed(self, size))?;
                let zero = self.env.pool.int(0);
                let some = self.env.pool.lt(zero, size);
                let factor = sized.is_some_and(|whole| self.is_factor(size, whole));
                (factor || self.proved(some)).then_some(Row::Divided { size, start })
            }
            _ => None,
        }
    }

    /// `e - var`, if `var` is not in it.
    fn start(&mut self, e: ExprId, var: VarId) -> Option<ExprId> {
        let v = self.env.pool.var(var);
        let start = self.env.pool.sub(e, v);
        let start = normalize(&mut self.env.pool, start);
        (!self.env.pool.uses_var(start, var)).then_some(start)
    }

    /// Whether all calls in `e` provably are in their functions' domains, wherever the loops around run.
    fn is_defined(&mut self, e: ExprId) -> bool {
        let mut calls = Vec::new();
        self.env.pool.walk(e, &mut |_, n| {
            if let Expr::Call(f, args) = n {
                calls.push((*f, args.to_vec()));
            }
        });
        let zero = self.env.pool.int(0);
        calls.into_iter().all(|(f, args)| {
            let domain = self.env.ufs[f].domain.clone();
            !matches!(self.env.ufs[f].def, UfDef::Search { .. })
                && args.iter().zip(domain).all(|(&a, size)| {
                    let size = self.env.pool.instantiate(size, &args);
                    let (from, below) = (self.env.pool.le(zero, a), self.env.pool.lt(a, size));
                    self.proved(from) && self.proved(below)
                })
        })
    }

    /// Whether an expression uses the loop's variable or one of a loop inside.
    fn uses_inside(&self, e: ExprId, run: &Run) -> bool {
        let uses = |v| self.env.pool.uses_var(e, v);
        let inside = |s: &Stmt| s.any(&mut |s| matches!(s, Stmt::For { var, .. } if uses(*var)));
        uses(run.var) || run.body.iter().any(inside)
    }

    /// Whether each term of `whole` has the factor `size`: where `whole` is not 0, `size` is not either.
    fn is_factor(&mut self, size: ExprId, whole: ExprId) -> bool {
        let (size, whole) = (poly(&self.env.pool, size), poly(&self.env.pool, whole));
        let [(atoms, 1)] = size.terms.iter().map(|(m, &k)| (m, k)).collect::<Vec<_>>()[..] else { return false };
        whole.terms.keys().all(|m| {
            let mut rest = m.clone();
            atoms.iter().all(|a| rest.iter().position(|x| x == a).map(|n| rest.swap_remove(n)).is_some())
        })
    }

    fn proved(&mut self, goal: ExprId) -> bool {
        let goal = normalize(&mut self.env.pool, goal);
        self.env.pool.as_bool(goal) == Some(true) || self.place.proved(self.env, self.simplifier, goal)
    }

    /// The row in the place of what finds it; `at` is its number.
    fn name_row(&mut self, body: &mut [Stmt], row: &Row, var: VarId, at: ExprId, begin: ExprId) {
        let v = self.env.pool.var(var);
        let starts = |pool: &mut ExprPool, position: ExprId, start: ExprId| {
            let here = pool.add(start, v);
            let apart = pool.sub(position, here);
            let apart = normalize(pool, apart);
            pool.as_int(apart) == Some(0)
        };
        let mut named = |pool: &mut ExprPool, e: ExprId| match (pool.get(e).clone(), row) {
            (Expr::Call(f, args), Row::Searched { search, outer, start, scale, .. }) => {
                let (&position, around) = args.split_last()?;
                let (element, own) = scaled(pool, position);
                let same = f == *search && around == &outer[..] && own == *scale;
                (same && starts(pool, element, *start)).then_some(at)
            }
            (Expr::Bin(op @ (BinOp::FloorDiv | BinOp::Mod), position, by), Row::Divided { size, start })
                if by == *size && starts(pool, position, *start) =>
            {
                Some(if op == BinOp::FloorDiv { at } else { pool.sub(position, begin) })
            }
            _ => None,
        };
        for s in body {
            s.map_exprs(&mut |e| self.env.pool.rewrite(e, &mut named));
            for b in s.bodies_mut() {
                self.name_row(b, row, var, at, begin);
            }
        }
    }

    /// Values in the place of variables.
    fn put(&mut self, body: &mut [Stmt], map: &FxHashMap<VarId, ExprId>) {
        for s in body {
            s.map_exprs(&mut |e| {
                let e = self.env.pool.substitute(e, map);
                normalize(&mut self.env.pool, e)
            });
            for b in s.bodies_mut() {
                self.put(b, map);
            }
        }
    }

    /// The loop itself.
    fn elements(&mut self, run: Run) -> Vec<Stmt> {
        let Run { var, count, width, mut body, given: _ } = run;
        let Some(width) = width else {
            return vec![Stmt::For { var, extent: count, kind: LoopKind::Serial, body }];
        };
        let name = format!("{}_o", self.env.vars[var].name);
        let (o, lane) = (self.env.new_var(name), self.env.new_var(self.env.vars[var].name.clone()));
        let (vo, vl) = (self.env.pool.var(o), self.env.pool.var(lane));
        let (w, up) = (self.env.pool.int(width), self.env.pool.int(width - 1));
        let before = self.env.pool.mul(vo, w);
        let at = self.env.pool.add(before, vl);
        self.put(&mut body, &[(var, at)].into_iter().collect());
        let left = self.env.pool.sub(count, before);
        let lanes = self.env.pool.min(w, left);
        let lanes = normalize(&mut self.env.pool, lanes);
        let filled = self.env.pool.add(count, up);
        let vectors = self.env.pool.floor_div(filled, w);
        let vectors = normalize(&mut self.env.pool, vectors);
        let inner = Stmt::For { var: lane, extent: lanes, kind: LoopKind::Vector, body };
        vec![Stmt::For { var: o, extent: vectors, kind: LoopKind::Serial, body: vec![inner] }]
    }
}

/// `x` and `c`, a positive constant, where a position is `x // c`; else the position itself and 1.
fn scaled(pool: &mut ExprPool, position: ExprId) -> (ExprId, i64) {
    let p = poly(pool, position);
    let quotient = |m: &[ExprId], k: i64| match (m, k) {
        (&[a], 1) => match *pool.get(a) {
            Expr::Bin(BinOp::FloorDiv, x, c) => pool.as_int(c).filter(|&c| c > 0).map(|c| (a, x, c)),
            _ => None,
        },
        _ => None,
    };
    let mut quotients = p.terms.iter().filter_map(|(m, &k)| quotient(m, k));
    let (Some((a, x, c)), None) = (quotients.next(), quotients.next()) else { return (position, 1) };
    // Multiples of c were taken out of the quotient.
    let (rest, by) = (pool.sub(position, a), pool.int(c));
    let rest = pool.mul(rest, by);
    let x = pool.add(x, rest);
    (normalize(pool, x), c)
}

/// The statements where `mask` holds, if they do nothing elsewhere.
fn without(env: &mut Env, body: &[Stmt], mask: ExprId) -> Option<Vec<Stmt>> {
    let mut out = Vec::with_capacity(body.len());
    for s in body {
        match s {
            Stmt::If { cond, then, other } if other.is_empty() => {
                let all = env.pool.conjuncts(*cond);
                let left: Vec<ExprId> = all.iter().copied().filter(|&c| normalize(&mut env.pool, c) != mask).collect();
                let then = if left.len() < all.len() { then.clone() } else { without(env, then, mask)? };
                if left.is_empty() {
                    out.extend(then);
                } else {
                    out.push(Stmt::If { cond: env.pool.all(left), then, other: Vec::new() });
                }
            }
            Stmt::For { var, extent, kind, body } => {
                let body = without(env, body, mask)?;
                out.push(Stmt::For { var: *var, extent: *extent, kind: *kind, body });
            }
            _ => return None,
        }
    }
    Some(out)
}
