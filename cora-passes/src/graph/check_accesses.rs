//! Proves every access of the op graph in bounds, before anything is lowered.
//!
//! For each read `T[e0, e1, ..]` the conditions `0 <= ej < extent_j(e0..)` must follow from the
//! ranges of the operator's dimensions, the declared ranges of parameters and functions, and the
//! conditions under which the value is used. A read inside `select` or a guarded read that needs the
//! condition becomes a guarded read.
//!
//! Indices are mathematical integers in the proofs and 64 bits in code: an operator whose index
//! arithmetic could leave 64 bits is refused (`index_range`), and so is one reduced over a dimension that no tensor which it
//! reads has, where the number of its terms could.
//!
//! Requires: a verified graph. Ensures: operators compute what their tensors have (`check_sizes`); no read is outside
//! its tensor's valid positions, for any batch that passes validation, and no index is outside 64 bits; later passes
//! rely on it. Runs before `lower_to_loops`.

use super::{check_calls, check_sizes, index_range};
use crate::lower::Simplifier;
use crate::schedule::compute_inline::zero_of;
use crate::schedule::defined::in_domain;
use crate::simplify::Facts;
use crate::simplify::example::{breaking, could_not_prove};
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, Graph, ScalarType, TensorId, UfDef, UfId, UnOp, VarId};
use rustc_hash::FxHashMap;

/// Checks `graph`, and guards reads that are in bounds only under a condition.
///
/// # Errors
/// `E0509` for sizes of tensors that are not those of their operators, `E0243` for each access that cannot be proved in
/// bounds, `E0244` for each call of an extent function outside its domain, `E0250` for index arithmetic that could leave 64
/// bits.
pub fn check_accesses(graph: &mut Graph, simplifier: &mut dyn Simplifier) -> Result<(), Vec<Diagnostic>> {
    let mut errors = check_sizes::check_sizes(graph, simplifier);
    if !errors.is_empty() {
        return Err(errors);
    }
    errors.extend(check_calls::check_declared(graph, simplifier));
    errors.extend(index_range::beyond_memory(&graph.env));
    for n in 0..graph.ops.len() {
        let mut checked = check_operator(graph, n, simplifier);
        // What is wrong everywhere may be right where its results are used.
        if checked.is_err() && graph.only_in_its_branch(graph.ops[n].tensor) {
            checked = check_operator(graph, n, simplifier).or(checked);
        }
        match checked {
            Ok(value) => graph.ops[n].value = value,
            Err(found) => errors.extend(found),
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// The value of an operator with its reads guarded where they have to be.
fn check_operator(graph: &mut Graph, n: usize, simplifier: &mut dyn Simplifier) -> Result<ExprId, Vec<Diagnostic>> {
    let op = graph.ops[n].clone();
    let at = |graph: &Graph, load: ExprId, d: Diagnostic| match graph.place_of(op.tensor, load) {
        Some(span) => d.at(span),
        None => d,
    };
    let loops: Vec<(VarId, ExprId)> =
        op.spatial.iter().chain(&op.reduce).map(|&d| (graph.env.dims[d].var, graph.env.dims[d].extent)).collect();
    let stage = graph.env.tensors[op.tensor].name.clone();
    // Validation evaluates the extents of tensors: nobody would see that another one wraps.
    let unstored = op.reduce.iter().map(|&d| &graph.env.dims[d]).filter(|d| !runs_along(&graph.env, op.value, d.var));
    let counts: Vec<ExprId> = unstored.map(|d| d.extent).collect();
    let mut computed = std::iter::once(op.value).chain(counts);
    if let Some(wide) = computed.find_map(|e| index_range::too_wide(&mut graph.env, e)) {
        let d = index_range::refusal(&graph.env, &stage, wide);
        return Err(vec![at(graph, wide.0, d)]);
    }
    let mut found = Vec::new();
    let mut cx = Check {
        env: &mut graph.env,
        simplifier,
        loops,
        stage,
        errors: &mut found,
        gathered: FxHashMap::default(),
        ranges: Vec::new(),
    };
    let value = cx.expr(op.value, &mut Vec::new());
    if found.is_empty() { Ok(value) } else { Err(found.into_iter().map(|(load, d)| at(graph, load, d)).collect()) }
}

/// Whether a tensor that `value` reads under no condition has a dimension as long as `var` counts.
fn runs_along(env: &Env, value: ExprId, var: VarId) -> bool {
    match env.pool.get(value) {
        Expr::Select(c, ..) | Expr::Bin(BinOp::And, c, _) => runs_along(env, *c, var),
        Expr::Load { guard: Some((c, _)), .. } => runs_along(env, *c, var),
        Expr::Load { index, .. } if index.iter().any(|&i| env.pool.as_var(i) == Some(var)) => true,
        _ => env.pool.children(value).into_iter().any(|e| runs_along(env, e, var)),
    }
}

/// What does not follow, and from what.
#[derive(Clone)]
struct Unproved {
    goal: ExprId,
    facts: Facts,
}

struct Check<'a> {
    env: &'a mut Env,
    simplifier: &'a mut dyn Simplifier,
    loops: Vec<(VarId, ExprId)>,
    stage: String,
    /// The accesses that are wrong, as they stand in the operator.
    errors: &'a mut Vec<(ExprId, Diagnostic)>,
    /// A variable that stands for each gathered index, with the declared range as its own.
    gathered: FxHashMap<ExprId, ExprId>,
    /// Those variables with the sizes of their ranges.
    ranges: Vec<(VarId, ExprId)>,
}

impl Check<'_> {
    fn expr(&mut self, e: ExprId, path: &mut Vec<ExprId>) -> ExprId {
        match self.env.pool.get(e).clone() {
            Expr::Select(c, a, b) => {
                let c2 = self.expr(c, path);
                path.push(c2);
                let a = self.expr(a, path);
                path.pop();
                let not = self.env.pool.un(UnOp::Not, c2);
                path.push(not);
                let b = self.expr(b, path);
                path.pop();
                self.env.pool.select(c2, a, b)
            }
            // What the second operand is does not matter where the first is false.
            Expr::Bin(BinOp::And, a, b) => {
                let a = self.expr(a, path);
                path.push(a);
                let b = self.expr(b, path);
                path.pop();
                self.env.pool.and(a, b)
            }
            Expr::Call(f, args) if matches!(self.env.ufs[f].def, UfDef::Extent { .. }) => {
                let args: Vec<ExprId> = args.iter().map(|&a| self.expr(a, path)).collect();
                self.call(e, f, args, path)
            }
            Expr::Load { tensor, part, index, guard } => {
                let Some((c, o)) = guard else {
                    let index: Vec<ExprId> = index.iter().map(|&i| self.expr(i, path)).collect();
                    return self.load(e, (tensor, part), &index, None, path);
                };
                let c = self.expr(c, path);
                path.push(c);
                let index: Vec<ExprId> = index.iter().map(|&i| self.expr(i, path)).collect();
                path.pop();
                let not = self.env.pool.un(UnOp::Not, c);
                path.push(not);
                let o = self.expr(o, path);
                path.pop();
                self.load(e, (tensor, part), &index, Some((c, o)), path)
            }
            _ => {
                let kids = self.env.pool.children(e);
                let new: Vec<ExprId> = kids.iter().map(|&k| self.expr(k, path)).collect();
                self.env.pool.with_children(e, &new)
            }
        }
    }

    fn load(
        &mut self,
        load: ExprId,
        (tensor, part): (TensorId, u32),
        index: &[ExprId],
        guard: Option<(ExprId, ExprId)>,
        path: &[ExprId],
    ) -> ExprId {
        let ty = self.env.part_types(tensor)[part as usize];
        let assumed: Vec<ExprId> = guard.iter().map(|g| g.0).collect();
        let Some(goal) = self.failing(tensor, index, &assumed) else {
            return self.env.pool.load_guarded((tensor, part), ty, index.iter().copied(), guard);
        };
        let (mut under_path, mut wrong) = (assumed.clone(), Some(goal));
        // A condition about the element itself knows it without that condition: so do the others, or they were not the same.
        for of_itself in [false, true] {
            let reads = |c: &ExprId| self.env.pool.reads(*c, tensor);
            let more: Vec<ExprId> = path.iter().copied().filter(|c| of_itself || !reads(c)).collect();
            let conditions: Vec<ExprId> = assumed.iter().copied().chain(more).collect();
            if wrong.is_some() && conditions.len() > under_path.len() {
                wrong = self.failing(tensor, index, &conditions);
                under_path = conditions;
            }
        }
        match wrong {
            None => {
                let cond = self.env.pool.all(under_path);
                let other = guard.map_or_else(|| zero_of(&mut self.env.pool, ty), |g| g.1);
                self.env.pool.load_guarded((tensor, part), ty, index.iter().copied(), Some((cond, other)))
            }
            Some(goal) => {
                self.report(load, tensor, index, &goal);
                self.env.pool.load_guarded((tensor, part), ty, index.iter().copied(), guard)
            }
        }
    }

    /// A call whose arguments are inside the function's domain under the conditions around it. Both sides of a
    /// condition are evaluated, so arguments that need it are kept inside by force.
    fn call(&mut self, call: ExprId, f: UfId, args: Vec<ExprId>, path: &[ExprId]) -> ExprId {
        let Some(goal) = self.outside(f, &args, &[]) else { return self.env.pool.call(f, args) };
        let wrong = if path.is_empty() { Some(goal.clone()) } else { self.outside(f, &args, path) };
        let forced = wrong.is_none().then(|| self.limited(f, &args));
        if let Some(forced) = forced
            && self.outside(f, &forced, &[]).is_none()
        {
            return self.env.pool.call(f, forced);
        }
        let place = format!("`{}`", self.stage);
        let Unproved { goal, facts } = wrong.unwrap_or(goal);
        let d = check_calls::refusal(self.env, &place, call, f, (goal, &facts));
        self.errors.push((call, d));
        call
    }

    /// `args` limited to the domain of `f`.
    fn limited(&mut self, f: UfId, args: &[ExprId]) -> Vec<ExprId> {
        let mut out: Vec<ExprId> = Vec::new();
        for (n, &a) in args.iter().enumerate() {
            let extent = self.env.ufs[f].domain[n];
            let extent = self.env.pool.instantiate(extent, &out);
            let (zero, one) = (self.env.pool.int(0), self.env.pool.int(1));
            let last = self.env.pool.sub(extent, one);
            let high = self.env.pool.min(a, last);
            out.push(self.env.pool.max(high, zero));
        }
        out
    }

    /// The first condition of the domain of `f` that does not follow from the assumptions.
    fn outside(&mut self, f: UfId, args: &[ExprId], assumptions: &[ExprId]) -> Option<Unproved> {
        let held: Vec<ExprId> = assumptions.iter().flat_map(|&a| self.env.pool.conjuncts(a)).collect();
        let args: Vec<ExprId> = args.iter().map(|&a| self.without_gathers(a, &held)).collect();
        let facts: Vec<ExprId> = assumptions.iter().map(|&a| self.condition(a, &held)).collect();
        let goals: Vec<ExprId> = (0..args.len()).flat_map(|n| in_domain(self.env, f, &args, n)).collect();
        goals.into_iter().find_map(|g| self.unproved(&facts, g))
    }

    /// The first of `0 <= index` and `index < extent`, for each dimension, that does not follow from
    /// the assumptions.
    fn failing(&mut self, tensor: TensorId, index: &[ExprId], assumptions: &[ExprId]) -> Option<Unproved> {
        let held: Vec<ExprId> = assumptions.iter().flat_map(|&a| self.env.pool.conjuncts(a)).collect();
        let index: Vec<ExprId> = index.iter().map(|&i| self.without_gathers(i, &held)).collect();
        let facts: Vec<ExprId> = assumptions.iter().map(|&a| self.condition(a, &held)).collect();
        let zero = self.env.pool.int(0);
        for (d, &i) in index.iter().enumerate() {
            let extent = self.env.extent_at(tensor, d, &index);
            for goal in [self.env.pool.le(zero, i), self.env.pool.lt(i, extent)] {
                if let Some(unproved) = self.unproved(&facts, goal) {
                    return Some(unproved);
                }
            }
        }
        None
    }

    /// Whether `goal` follows from the operator's loops and `facts`.
    fn prove(&mut self, facts: &[ExprId], goal: ExprId) -> bool {
        self.unproved(facts, goal).is_none()
    }

    /// `goal`, unless it follows from the operator's loops and `facts`. That a gathered index is in its declared range says
    /// too that there is such an index, which is known only where one is read: where `goal` or a fact is about it.
    fn unproved(&mut self, facts: &[ExprId], goal: ExprId) -> Option<Unproved> {
        let pool = &self.env.pool;
        let mut about: Vec<ExprId> = facts.iter().copied().chain([goal]).collect();
        let (mut before, mut inside) = (Vec::new(), Vec::new());
        // The range of one may depend on those before it, and on the operator's dimensions.
        for &(v, size) in self.ranges.iter().rev() {
            if about.iter().any(|&e| pool.uses_var(e, v)) {
                about.push(size);
                if pool.vars_of(size).is_empty() { before.push((v, size)) } else { inside.insert(0, (v, size)) }
            }
        }
        let loops: Vec<(VarId, ExprId)> = before.into_iter().chain(self.loops.iter().copied()).chain(inside).collect();
        if self.simplifier.prove(self.env, &loops, facts, goal) {
            return None;
        }
        let mut known = Facts::in_loops(loops);
        known.assumptions.extend_from_slice(facts);
        Some(Unproved { goal, facts: known })
    }

    /// Replaces loaded indices by variables with the tensor's declared range; `held` are conditions
    /// that hold.
    fn without_gathers(&mut self, e: ExprId, held: &[ExprId]) -> ExprId {
        let (mut loads, mut choices) = (Vec::new(), Vec::new());
        self.env.pool.walk(e, &mut |id, n| match n {
            Expr::Cast(ScalarType::Index, x) if matches!(self.env.pool.get(*x), Expr::Load { .. }) => {
                loads.push((id, *x));
            }
            Expr::Select(c, ..) => choices.push(*c),
            _ => {}
        });
        let mut known: FxHashMap<ExprId, ExprId> =
            loads.into_iter().filter_map(|(cast, x)| self.gather(x, held).map(|v| (cast, v))).collect();
        // What is compared may be the elements themselves.
        known.extend(choices.into_iter().map(|c| (c, self.condition(c, held))).collect::<Vec<_>>());
        self.env.pool.rewrite(e, &mut |_, x| known.get(&x).copied())
    }

    /// A condition as the prover reads it: gathered indices are variables, also where elements of
    /// integer tensors are compared.
    fn condition(&mut self, e: ExprId, held: &[ExprId]) -> ExprId {
        match *self.env.pool.get(e) {
            Expr::Bin(op @ (BinOp::And | BinOp::Or), a, b) => {
                let (a, b) = (self.condition(a, held), self.condition(b, held));
                self.env.pool.bin(op, a, b)
            }
            Expr::Un(UnOp::Not, a) => {
                let a = self.condition(a, held);
                self.env.pool.un(UnOp::Not, a)
            }
            Expr::Bin(op, a, b) if op.is_comparison() && self.env.pool.ty(a).scalar.is_int() => {
                match (self.element(a, held), self.element(b, held)) {
                    (Some(x), Some(y)) => self.env.pool.bin(op, x, y),
                    _ => e,
                }
            }
            _ => self.without_gathers(e, held),
        }
    }

    /// The value of an integer element, as an index.
    fn element(&mut self, e: ExprId, held: &[ExprId]) -> Option<ExprId> {
        match *self.env.pool.get(e) {
            Expr::Lit(l) if l.ty.is_int() => Some(self.env.pool.int(l.as_i64())),
            Expr::Load { .. } => self.gather(e, held),
            Expr::Cast(to, a) => {
                let from = self.env.pool.ty(a).scalar;
                let fits = from.is_int() && to.is_int() && from.bytes() <= to.bytes();
                if fits { self.element(a, held) } else { None }
            }
            _ => None,
        }
    }

    /// The variable that stands for an element of an integer tensor. A guarded one is an element like
    /// others where its condition holds, or if its alternative is in the range too.
    fn gather(&mut self, load: ExprId, held: &[ExprId]) -> Option<ExprId> {
        let Expr::Load { tensor, part, index, guard } = self.env.pool.get(load).clone() else { return None };
        let ty = self.env.part_types(tensor)[part as usize];
        let element = self.env.pool.load_guarded((tensor, part), ty, index, None);
        let value = self.plain_gather(tensor, ty, element)?;
        let Some((cond, other)) = guard else { return Some(value) };
        if self.env.pool.conjuncts(cond).iter().all(|c| held.contains(c)) {
            return Some(value);
        }
        let (lo, hi) = self.range(element)?;
        let other = self.element(other, held)?;
        let goals = [self.env.pool.le(lo, other), self.env.pool.lt(other, hi)];
        let inside = goals.into_iter().all(|g| self.prove(&[], g));
        // It differs from the element where the condition does not hold.
        if inside { self.plain_gather(tensor, ty, load) } else { None }
    }

    /// The declared range of an element, over variables for gathered indices.
    fn range(&mut self, load: ExprId) -> Option<(ExprId, ExprId)> {
        let Expr::Load { tensor, index, .. } = self.env.pool.get(load).clone() else { return None };
        let index: Vec<ExprId> = index.iter().map(|&i| self.without_gathers(i, &[])).collect();
        self.env.range_at(tensor, &index)
    }

    fn plain_gather(&mut self, tensor: TensorId, ty: ScalarType, load: ExprId) -> Option<ExprId> {
        if !ty.is_int() {
            return None;
        }
        let cast = self.env.pool.cast(ScalarType::Index, load);
        if let Some(&value) = self.gathered.get(&cast) {
            return Some(value);
        }
        let range = self.range(load).or_else(|| {
            let of_type = (ty != ScalarType::I64).then(|| (ty.int_min(), ty.int_max() + 1))?;
            Some((self.env.pool.int(of_type.0), self.env.pool.int(of_type.1)))
        });
        // Its name stands in examples.
        let name = match range.map(|(lo, _)| self.env.pool.as_int(lo)) {
            None | Some(Some(0)) => format!("{}[..]", self.env.tensors[tensor].name),
            Some(Some(lo)) => format!("{}[..] - ({lo})", self.env.tensors[tensor].name),
            Some(None) => "gathered".to_owned(),
        };
        let var = self.env.new_var(name);
        let v = self.env.pool.var(var);
        let value = match range {
            Some((lo, hi)) => {
                let size = self.env.pool.sub(hi, lo);
                self.ranges.push((var, size));
                self.env.pool.add(v, lo)
            }
            None => v,
        };
        self.gathered.insert(cast, value);
        Some(value)
    }

    /// The first number in an index that a dimension of constant size does not have.
    fn none_of_its_positions(&mut self, tensor: TensorId, index: &[ExprId]) -> Option<String> {
        (0..index.len()).find_map(|d| {
            let extent = self.env.extent_at(tensor, d, index);
            let (i, n) = (self.env.pool.as_int(index[d])?, self.env.pool.as_int(extent)?);
            let dim = &self.env.tensors[tensor].dims[d].name;
            let positions = if n <= 0 { "no positions".to_owned() } else { format!("positions 0 to {}", n - 1) };
            (!(0..n).contains(&i)).then(|| format!("dimension `{dim}` has {positions}, and {i} is none of them"))
        })
    }

    fn report(&mut self, load: ExprId, tensor: TensorId, index: &[ExprId], unproved: &Unproved) {
        let goal = unproved.goal;
        let example = breaking(self.env, &unproved.facts, goal);
        // Gathered indices under their own names.
        let mut back: FxHashMap<VarId, ExprId> = FxHashMap::default();
        for (&cast, &value) in &self.gathered {
            let var = self.env.pool.vars_of(value).first().copied();
            back.extend(var.map(|v| (v, cast)));
        }
        for (var, cast) in back.clone() {
            let v = self.env.pool.var(var);
            let low = self.env.pool.sub(self.gathered[&cast], v);
            back.insert(var, self.env.pool.sub(cast, low));
        }
        let named = self.env.pool.substitute(goal, &back);
        let goal = if named == goal { goal } else { cora_ir::affine::normalize(&mut self.env.pool, named) };
        let names = cora_ir::text::Names::of(self.env, &[goal]);
        let fact = cora_ir::text::print_expr(self.env, goal, &names);
        let names = cora_ir::text::Names::of(self.env, index);
        let shown: Vec<String> = index.iter().map(|&i| cora_ir::text::print_expr(self.env, i, &names)).collect();
        let note = self.none_of_its_positions(tensor, index).unwrap_or_else(|| could_not_prove(&fact, example));
        let name = &self.env.tensors[tensor].name;
        self.errors.push((
            load,
            Diagnostic::new(
                "E0243",
                format!("in `{}`: the access {name}[{}] is not proved to be in bounds", self.stage, shown.join(", ")),
            )
            .note(note)
            .hint(format!("give it a value outside the bounds, as in `{name}[..] else 0`, or declare tighter ranges")),
        ));
    }
}
