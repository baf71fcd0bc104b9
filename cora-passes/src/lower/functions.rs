//! Lowers calls of uninterpreted functions to reads of prelude tables.
//!
//! Only functions that are still called get a table, and each gets one: what simplification made
//! disappear is never built. A search becomes an inline search in its prefix sum's table. A prefix sum
//! that is a stretch of another one is read there (`shifted`).
//!
//! A read is valid wherever the loops around it run, whether or not a condition there holds, so it
//! may be hoisted: arguments that are not proved to be in the function's domain by the loops that
//! bind their variables make a guarded read.
//!
//! Requires: simplified offsets. Ensures: no `Call` is left in kernels, buffer sizes, offsets or
//! tables; tables are in the order in which they must be built. Runs after `to_storage`.

use super::Simplifier;
use super::declared::bounds_of;
use super::layout::{Layout, sizes};
use super::shifted::{self, Shifted};
use super::sign::{inside, never_negative};
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Stmt, StorageModule, Table};
use cora_ir::{Env, Expr, ExprId, Literal, Role, ScalarType, Tensor, TensorDim, TensorId, UfDef, UfId, VarId};
use rustc_hash::FxHashMap;

/// Replaces every call in `m` by a table read, and makes the tables; `share`: where a sum is a stretch of another one, it
/// has no table of its own.
pub fn lower_functions(m: &mut StorageModule, simplifier: &mut dyn Simplifier, share: bool) {
    // Where there are tables all calls read them already.
    if !m.tables.is_empty() {
        return;
    }
    let shifted = if share { shifted::find(m, simplifier) } else { FxHashMap::default() };
    let mut cx = Functions {
        env: std::mem::take(&mut m.env),
        shifted,
        simplifier,
        tables: Vec::new(),
        memo: FxHashMap::default(),
        loops: Vec::new(),
        formals: Vec::new(),
    };
    // Extent functions are the batch's own tables; they are inputs whether read or not.
    for f in cx.env.ufs.ids().collect::<Vec<_>>() {
        if matches!(cx.env.ufs[f].def, UfDef::Extent { .. }) {
            cx.table(f);
        }
    }
    for b in &mut m.buffers {
        b.elems = cx.lower(b.elems);
        let storage: Vec<ExprId> = cx.env.tensors[b.tensor].dims.iter().map(|d| d.storage).collect();
        b.offset = b.offset.map(|o| cx.lower_over(&storage, o));
    }
    // Extents of the arguments' and results' dimensions, and what elements have to be: the host needs them.
    for t in cx.env.tensors.ids().collect::<Vec<_>>() {
        if cx.env.tensors[t].role != Role::Temp {
            let dims = cx.env.tensors[t].dims.clone();
            let storage: Vec<ExprId> = dims.iter().map(|d| d.storage).collect();
            for (d, dim) in dims.iter().enumerate() {
                cx.env.tensors[t].dims[d].extent = cx.lower_over(&storage[..d], dim.extent);
                cx.env.tensors[t].dims[d].storage = cx.lower_over(&storage[..d], dim.storage);
            }
            let range = cx.env.tensors[t].range;
            cx.env.tensors[t].range = range.map(|(lo, hi)| (cx.lower_over(&storage, lo), cx.lower_over(&storage, hi)));
        }
    }
    for k in &mut m.kernels {
        cx.stmts(&mut k.body);
    }
    m.tables = cx.tables;
    m.env = cx.env;
}

struct Functions<'a> {
    env: Env,
    /// Prefix sums without a table of their own.
    shifted: FxHashMap<UfId, Shifted>,
    simplifier: &'a mut dyn Simplifier,
    tables: Vec<Table>,
    memo: FxHashMap<ExprId, ExprId>,
    /// The loops around, outermost first.
    loops: Vec<Around>,
    /// The extents of `Arg(0..)`.
    formals: Vec<ExprId>,
}

/// A loop around a read.
struct Around {
    var: VarId,
    /// Before lowering.
    extent: ExprId,
    /// Whether it stays a loop, so that reads of its variable stay inside.
    stays: bool,
}

/// A variable that stands for a search's result.
struct Row {
    var: VarId,
    /// At least 1 where the variables of the search are bound.
    extent: ExprId,
    search: ExprId,
}

impl Functions<'_> {
    fn stmts(&mut self, body: &mut [Stmt]) {
        for s in body {
            match s {
                Stmt::For { var, extent, kind, body } => {
                    // Copies of an unrolled loop become conditions, which reads may be hoisted out of.
                    let range = match kind {
                        LoopKind::Unroll | LoopKind::Vector => self.env.pool.constant_bound(*extent),
                        _ => None,
                    };
                    // So does the one of a loop that is there to be named only.
                    let stays = range.is_none() && self.env.pool.as_int(*extent) != Some(1);
                    let range = range.map_or(*extent, |bound| self.env.pool.int(bound));
                    self.loops.push(Around { var: *var, extent: range, stays });
                    *extent = self.lower(*extent);
                    self.stmts(body);
                    self.loops.pop();
                }
                s => {
                    s.map_exprs(&mut |e| self.lower(e));
                    s.bodies_mut().for_each(|b| self.stmts(b));
                }
            }
        }
    }

    /// [`Functions::lower`] where `Arg(j)` is in `0..formals[j]`.
    fn lower_over(&mut self, formals: &[ExprId], e: ExprId) -> ExprId {
        let memo = std::mem::take(&mut self.memo);
        let outer = std::mem::replace(&mut self.formals, formals.to_vec());
        let out = self.lower(e);
        self.formals = outer;
        self.memo = memo;
        out
    }

    /// Every call in `e`.
    fn lower(&mut self, e: ExprId) -> ExprId {
        let by_another = !self.shifted.is_empty()
            && self.env.pool.any(e, &mut |n| matches!(n, Expr::Call(f, _) if self.shifted.contains_key(f)));
        let out = self.lower_calls(e);
        // Where a stretch begins cancels against the offset of its rows.
        if by_another { cora_ir::affine::normalize(&mut self.env.pool, out) } else { out }
    }

    fn lower_calls(&mut self, e: ExprId) -> ExprId {
        if let Some(&done) = self.memo.get(&e) {
            return done;
        }
        let out = match self.env.pool.get(e).clone() {
            Expr::Call(f, args) => match self.env.ufs[f].def {
                UfDef::Search { sum } => self.search(f, sum, &args),
                _ => self.read(f, &args),
            },
            _ => {
                let kids = self.env.pool.children(e);
                let new: Vec<ExprId> = kids.iter().map(|&k| self.lower_calls(k)).collect();
                self.env.pool.with_children(e, &new)
            }
        };
        self.memo.insert(e, out);
        out
    }

    /// The entry of `f` for `args` (not lowered yet); 0 beyond the table where they may be outside
    /// the function's domain.
    fn read(&mut self, f: UfId, args: &[ExprId]) -> ExprId {
        if let Some(first) = self.first_of_stretch(f, args) {
            let (sum, mut at) = first;
            let before = self.read(sum, &at);
            let (Some(last), Some(&x)) = (at.last_mut(), args.last()) else { return before };
            *last = self.env.pool.add(*last, x);
            *last = cora_ir::affine::normalize(&mut self.env.pool, *last);
            let upto = self.read(sum, &at);
            return self.env.pool.sub(upto, before);
        }
        let table = self.table(f);
        let at = self.entry(f, args);
        let guard = if self.in_domain(f, args) {
            None
        } else {
            let entries = self.tables.iter().find(|t| t.uf == f).map(|t| t.entries);
            let zero = self.env.pool.int(0);
            let loops = self.loops_of(&self.env.pool.vars_of(at));
            let ranges = self.ranges(&loops);
            let above = (!never_negative(&mut self.env, &ranges, at)).then(|| self.env.pool.le(zero, at));
            let below = entries.map(|n| self.env.pool.lt(at, n));
            let cond = self.env.pool.all(above.into_iter().chain(below));
            let other = self.env.pool.lit(Literal::int(self.env.tensors[table].ty, 0));
            Some((cond, other))
        };
        let ty = self.env.tensors[table].ty;
        let v = self.env.pool.load_guarded((table, 0), ty, [at], guard);
        self.env.pool.cast(ScalarType::Index, v)
    }

    /// The sum whose table holds the values of `f`, if that has none, and its arguments where `f` is 0.
    fn first_of_stretch(&mut self, f: UfId, args: &[ExprId]) -> Option<(UfId, Vec<ExprId>)> {
        let Shifted { sum, outer, start } = self.shifted.get(&f)?.clone();
        let (_, around) = args.split_last()?;
        let at = outer.into_iter().chain([start]).map(|e| {
            let e = self.env.pool.instantiate(e, around);
            cora_ir::affine::normalize(&mut self.env.pool, e)
        });
        Some((sum, at.collect()))
    }

    /// The row of `sum` that `f` finds for `args` (not lowered yet); 0 where there is none.
    fn search(&mut self, f: UfId, sum: UfId, args: &[ExprId]) -> ExprId {
        let (&position, outer) = args.split_last().expect("a search has at least one argument");
        let zero = self.env.pool.int(0);
        let first: Vec<ExprId> = outer.iter().copied().chain([zero]).collect();
        // A stretch of another sum is searched where that has it, for what is before it and the position.
        let stretch = self.first_of_stretch(sum, &first);
        let (holder, holder_first) = stretch.clone().unwrap_or_else(|| (sum, first.clone()));
        let table = self.table(holder);
        let before = stretch.map(|(f, at)| self.read(f, &at));
        let from_row = |cx: &mut Self, value: ExprId| before.map_or(value, |b| cx.env.pool.add(value, b));
        let mut value = self.lower(position);
        let extent = *self.env.ufs[sum].domain.last().expect("a prefix sum has at least one argument");
        let extent = self.env.pool.instantiate(extent, outer);
        let mut len = self.lower(extent);
        let mut base = self.entry(holder, &holder_first);
        if self.in_domain(f, args) {
            value = from_row(self, value);
            return self.env.pool.search(table, base, len, value);
        }
        // A search that is moved out of the loop in which its position exists: before the first row is
        // the first row. (Beyond the last one is the last.)
        let loops = self.loops_of(&self.env.pool.vars_of(position));
        let ranges = self.ranges(&loops);
        if !never_negative(&mut self.env, &ranges, position) {
            value = self.env.pool.max(value, zero);
        }
        value = from_row(self, value);
        // Where there is no row: an empty one at the beginning of the table, and its index is 0.
        let exists = self.exists(sum, outer);
        let holds = self.env.pool.as_bool(exists) == Some(true);
        len = self.env.pool.select(exists, len, zero);
        base = self.env.pool.select(exists, base, zero);
        let found = self.env.pool.search(table, base, len, value);
        if holds && (self.inside(zero, extent) || self.run_for_rows((sum, outer), extent, &loops)) {
            return found;
        }
        let any = self.env.pool.lt(zero, len);
        self.env.pool.select(any, found, zero)
    }

    /// Whether one of these loops has no iteration where the sum's rows, `rows` of them, have no position: then there is a row.
    fn run_for_rows(&mut self, (sum, outer): (UfId, &[ExprId]), rows: ExprId, loops: &[(VarId, ExprId)]) -> bool {
        let all = self.env.pool.call(sum, outer.iter().copied().chain([rows]));
        let zero = self.env.pool.int(0);
        let ranges: Vec<(ExprId, ExprId)> = loops.iter().map(|&(v, e)| (self.env.pool.var(v), e)).collect();
        loops.iter().any(|&(_, extent)| {
            let without = self.env.pool.rewrite(extent, &mut |_, e| (e == all).then_some(zero));
            let none = self.env.pool.sub(zero, without);
            let none = cora_ir::affine::normalize(&mut self.env.pool, none);
            without != extent && never_negative(&mut self.env, &ranges, none)
        })
    }

    /// Whether `args` are in the domain of `f` wherever the loops that bind their variables run.
    fn in_domain(&mut self, f: UfId, args: &[ExprId]) -> bool {
        if self.calls_in_domain(f, args, &[]) {
            return true;
        }
        // A search gives one of the rows even for a position beyond them.
        let mut rows = Vec::new();
        let args: Vec<ExprId> = args.iter().map(|&a| self.without_searches(a, &mut rows)).collect();
        !rows.is_empty() && self.calls_in_domain(f, &args, &rows)
    }

    /// What a call gives outside its domain is no fact: the arguments' own calls must be inside theirs.
    fn calls_in_domain(&mut self, f: UfId, args: &[ExprId], rows: &[Row]) -> bool {
        let calls = self.calls_of(args).into_iter().chain([(f, args.to_vec())]).collect();
        self.all_in_domain(calls, rows)
    }

    /// Every call in these expressions, with its arguments.
    fn calls_of(&self, of: &[ExprId]) -> Vec<(UfId, Vec<ExprId>)> {
        let mut calls = Vec::new();
        for &a in of {
            self.env.pool.walk(a, &mut |_, n| {
                if let Expr::Call(f, args) = n {
                    calls.push((*f, args.to_vec()));
                }
            });
        }
        calls
    }

    fn all_in_domain(&mut self, calls: Vec<(UfId, Vec<ExprId>)>, rows: &[Row]) -> bool {
        calls.into_iter().all(|(f, args)| {
            let sizes = self.domain(f, &args);
            sizes.into_iter().zip(args).all(|(size, a)| self.inside_with(a, size, rows))
        })
    }

    /// `e` with a variable for each search of rows that exist.
    fn without_searches(&mut self, e: ExprId, rows: &mut Vec<Row>) -> ExprId {
        let node = self.env.pool.get(e).clone();
        if let Expr::Call(search, args) = &node
            && let UfDef::Search { sum } = self.env.ufs[*search].def
            && let Some((_, outer)) = args.split_last()
        {
            if let Some(known) = rows.iter().find(|r| r.search == e) {
                return self.env.pool.var(known.var);
            }
            let zero = self.env.pool.int(0);
            let first: Vec<ExprId> = outer.iter().copied().chain([zero]).collect();
            let extent = *self.env.ufs[sum].domain.last().expect("a prefix sum has at least one argument");
            let extent = self.env.pool.instantiate(extent, outer);
            let position = args.last().map_or_else(Vec::new, |&p| self.env.pool.vars_of(p));
            let loops = self.loops_of(&position);
            let exist = self.inside(zero, extent) || self.run_for_rows((sum, outer), extent, &loops);
            if exist && self.calls_in_domain(sum, &first, &[]) {
                let var = self.env.new_var("row");
                rows.push(Row { var, extent, search: e });
                return self.env.pool.var(var);
            }
        }
        let kids = self.env.pool.children(e);
        let new: Vec<ExprId> = kids.iter().map(|&k| self.without_searches(k, rows)).collect();
        self.env.pool.with_children(e, &new)
    }

    /// The loops that bind these variables, and those around them. Copies of an unrolled loop have no variable, so a
    /// read that uses no other may leave all loops, even ones that do not run.
    fn loops_of(&self, used: &[VarId]) -> Vec<(VarId, ExprId)> {
        let depth = self.loops.iter().rposition(|l| l.stays && used.contains(&l.var)).map_or(0, |n| n + 1);
        let known = |(n, l): &(usize, &Around)| *n < depth || (!l.stays && used.contains(&l.var));
        self.loops.iter().enumerate().filter(known).map(|(_, l)| (l.var, l.extent)).collect()
    }

    /// What the formal arguments and these loops count.
    fn ranges(&mut self, loops: &[(VarId, ExprId)]) -> Vec<(ExprId, ExprId)> {
        let formals = self.formals.clone();
        let mut ranges: Vec<(ExprId, ExprId)> =
            formals.into_iter().enumerate().map(|(n, e)| (self.env.pool.arg(n as u32), e)).collect();
        ranges.extend(loops.iter().map(|&(v, e)| (self.env.pool.var(v), e)));
        ranges
    }

    /// Whether `0 <= a < size` wherever the loops that bind the variables of `a` run.
    fn inside(&mut self, a: ExprId, size: ExprId) -> bool {
        self.inside_with(a, size, &[])
    }

    /// The same where some variables are rows.
    fn inside_with(&mut self, a: ExprId, size: ExprId, rows: &[Row]) -> bool {
        // What the size depends on is an argument before this one, so the read depends on it too.
        let mut used = self.env.pool.vars_of(a);
        used.extend(self.env.pool.vars_of(size));
        let rows: Vec<&Row> = rows.iter().filter(|r| used.contains(&r.var)).collect();
        used.extend(rows.iter().flat_map(|r| self.env.pool.vars_of(r.search)).collect::<Vec<_>>());
        let mut loops = self.loops_of(&used);
        loops.extend(rows.iter().map(|r| (r.var, r.extent)));
        let ranges = self.ranges(&loops);
        if inside(&mut self.env, &ranges, a, size) {
            return true;
        }
        let zero = self.env.pool.int(0);
        let (above, below) = (self.env.pool.le(zero, a), self.env.pool.lt(a, size));
        self.formals.is_empty()
            && self.simplifier.prove(&mut self.env, &loops, &[], above)
            && self.simplifier.prove(&mut self.env, &loops, &[], below)
    }

    /// A condition (lowered) that `outer`, the arguments of `f` but the last, are in its domain.
    fn exists(&mut self, f: UfId, outer: &[ExprId]) -> ExprId {
        let sizes = self.domain(f, outer);
        let zero = self.env.pool.int(0);
        let mut conds = Vec::new();
        for (size, &a) in sizes.into_iter().zip(outer) {
            let calls = self.calls_of(&[a, size]);
            if self.all_in_domain(calls, &[]) && self.inside(a, size) {
                continue;
            }
            let (size, a) = (self.lower(size), self.lower(a));
            conds.extend([self.env.pool.le(zero, a), self.env.pool.lt(a, size)]);
        }
        self.env.pool.all(conds)
    }

    /// How many values each argument of `f` has, given the arguments before it.
    fn domain(&mut self, f: UfId, args: &[ExprId]) -> Vec<ExprId> {
        let extents = self.box_of(f);
        extents.into_iter().map(|e| self.env.pool.instantiate(e, args)).collect()
    }

    /// The box of a function's table: its domain, one longer in the last dimension for sums.
    fn box_of(&mut self, f: UfId) -> Vec<ExprId> {
        let domain = self.env.ufs[f].domain.clone();
        let mut extents = sizes(&mut self.env, &domain);
        if matches!(self.env.ufs[f].def, UfDef::PrefixSum { .. })
            && let Some(last) = extents.last_mut()
        {
            let one = self.env.pool.int(1);
            *last = self.env.pool.add(*last, one);
        }
        if matches!(self.env.ufs[f].def, UfDef::Max { .. }) {
            extents.clear();
        }
        extents
    }

    /// Flat position of the entry for `args` (not lowered yet).
    fn entry(&mut self, f: UfId, args: &[ExprId]) -> ExprId {
        let extents = self.box_of(f);
        let name = format!("{}.row", self.env.ufs[f].name);
        let offset = Layout { extents: &extents, name: &name }.offset(&mut self.env);
        let offset = self.without_constants(&name, offset);
        let at = self.env.pool.instantiate(offset, args);
        self.lower(at)
    }

    /// Sums of `n(i) + c` in the form that those of `n(i)` have too, `N(x) + c*x`: a table of sums has an entry more a row than
    /// that of its terms, whose rows begin where `N` says.
    fn without_constants(&mut self, name: &str, e: ExprId) -> ExprId {
        if let Expr::Call(f, args) = self.env.pool.get(e).clone()
            && let UfDef::PrefixSum { body } = self.env.ufs[f].def
            && let Some(&x) = args.last()
        {
            let mut rest = cora_ir::affine::poly(&self.env.pool, body);
            let c = rest.terms.remove(&Vec::new()).unwrap_or(0);
            let rest = cora_ir::affine::build(&mut self.env.pool, &rest);
            let domain = self.env.ufs[f].domain.clone();
            let formals: Vec<(ExprId, ExprId)> =
                domain.iter().enumerate().map(|(n, &e)| (self.env.pool.arg(n as u32), e)).collect();
            if c == 0 || !never_negative(&mut self.env, &formals, rest) {
                return e;
            }
            // The index of an entry is a row; what else there is may be all rows.
            let outer = &args[..args.len() - 1];
            let sum = match self.env.pool.get(x) {
                Expr::Arg(_) => self.env.sum_before(name, &domain, rest, outer, x),
                _ => self.env.sum_upto(name, &domain, rest, outer, x),
            };
            let c = self.env.pool.int(c);
            let all = self.env.pool.mul(c, x);
            return self.env.pool.add(sum, all);
        }
        let kids = self.env.pool.children(e);
        let new: Vec<ExprId> = kids.iter().map(|&k| self.without_constants(name, k)).collect();
        self.env.pool.with_children(e, &new)
    }

    fn table(&mut self, f: UfId) -> TensorId {
        if let Some(t) = self.tables.iter().find(|t| t.uf == f) {
            return t.tensor;
        }
        let uf = self.env.ufs[f].clone();
        let extents = self.box_of(f);
        let name = format!("{}.row", uf.name);
        let entries = Layout { extents: &extents, name: &name }.volume(&mut self.env, 0);
        let entries = self.without_constants(&name, entries);
        let entries = self.lower(entries);
        let domain = uf.domain.iter().enumerate().map(|(j, &e)| self.lower_over(&uf.domain[..j], e)).collect();
        let body = uf.def.body().map(|b| self.lower_over(&uf.domain, b));
        let ty = if fits_i32(&self.env, f) { ScalarType::I32 } else { ScalarType::I64 };
        let name = self.env.fresh_tensor_name(&uf.name);
        let dims = vec![TensorDim::new("entry", entries)];
        let tensor = self.env.tensors.push(Tensor::temp(name, ty, dims));
        self.tables.push(Table { uf: f, tensor, entries, domain, body });
        tensor
    }
}

/// Whether every value of the function provably fits 32 bits, from declared ranges alone.
fn fits_i32(env: &Env, f: UfId) -> bool {
    let values = bounds_of(env, f);
    let fits = |v: Option<i64>| v.is_some_and(|v| i32::try_from(v).is_ok());
    fits(values.lo) && fits(values.hi)
}
