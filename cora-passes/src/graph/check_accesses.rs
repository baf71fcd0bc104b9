//! Proves every access of the op graph in bounds, before anything is lowered.
//!
//! For each read `T[e0, e1, ..]` the conditions `0 <= ej < extent_j(e0..)` must follow from the
//! ranges of the operator's dimensions, the declared ranges of parameters and functions, and the
//! conditions under which the value is used. A read inside `select` that needs the condition
//! becomes a guarded read.
//!
//! Requires: a verified graph. Ensures: no read is outside its tensor's valid positions, for any
//! batch that passes validation; later passes rely on it. Runs before `lower_to_loops`.

use crate::lower::Simplifier;
use crate::schedule::compute_inline::zero_of;
use cora_ir::{Diagnostic, Env, Expr, ExprId, Graph, ScalarType, TensorId, UnOp, VarId};
use rustc_hash::FxHashMap;

/// Checks `graph`, and guards reads that are in bounds only under a condition.
///
/// # Errors
/// `E0243` for each access that cannot be proved in bounds.
pub fn check_accesses(graph: &mut Graph, simplifier: &mut dyn Simplifier) -> Result<(), Vec<Diagnostic>> {
    let mut errors = Vec::new();
    for n in 0..graph.ops.len() {
        let op = graph.ops[n].clone();
        let loops: Vec<(VarId, ExprId)> =
            op.spatial.iter().chain(&op.reduce).map(|&d| (graph.env.dims[d].var, graph.env.dims[d].extent)).collect();
        let stage = graph.env.tensors[op.tensor].name.clone();
        let mut cx = Check {
            env: &mut graph.env,
            simplifier,
            loops,
            stage,
            errors: &mut errors,
            gathered: FxHashMap::default(),
        };
        graph.ops[n].value = cx.expr(op.value, &mut Vec::new());
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

struct Check<'a> {
    env: &'a mut Env,
    simplifier: &'a mut dyn Simplifier,
    loops: Vec<(VarId, ExprId)>,
    stage: String,
    errors: &'a mut Vec<Diagnostic>,
    /// A variable that stands for each gathered index, with the declared range as its own.
    gathered: FxHashMap<ExprId, ExprId>,
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
            Expr::Load { tensor, index, guard } => {
                let index: Vec<ExprId> = index.iter().map(|&i| self.expr(i, path)).collect();
                let guard = guard.map(|(c, o)| (self.expr(c, path), self.expr(o, path)));
                self.load(tensor, &index, guard, path)
            }
            _ => {
                let kids = self.env.pool.children(e);
                let new: Vec<ExprId> = kids.iter().map(|&k| self.expr(k, path)).collect();
                self.env.pool.with_children(e, &new)
            }
        }
    }

    fn load(&mut self, tensor: TensorId, index: &[ExprId], guard: Option<(ExprId, ExprId)>, path: &[ExprId]) -> ExprId {
        let ty = self.env.tensors[tensor].ty;
        let goals = self.goals(tensor, index);
        let assumed: Vec<ExprId> = guard.iter().map(|g| g.0).collect();
        let failing = self.failing(&goals, &assumed);
        if failing.is_none() {
            return self.env.pool.load_guarded(tensor, ty, index.iter().copied(), guard);
        }
        let under_path: Vec<ExprId> = assumed.iter().chain(path).copied().collect();
        match self.failing(&goals, &under_path) {
            None => {
                let cond = self.env.pool.all(under_path);
                let other = guard.map_or_else(|| zero_of(&mut self.env.pool, ty), |g| g.1);
                self.env.pool.load_guarded(tensor, ty, index.iter().copied(), Some((cond, other)))
            }
            Some(goal) => {
                self.report(tensor, index, goal);
                self.env.pool.load_guarded(tensor, ty, index.iter().copied(), guard)
            }
        }
    }

    /// `0 <= index` and `index < extent` for each dimension.
    fn goals(&mut self, tensor: TensorId, index: &[ExprId]) -> Vec<ExprId> {
        let plain: Vec<ExprId> = index.iter().map(|&i| self.without_gathers(i)).collect();
        let zero = self.env.pool.int(0);
        let mut goals = Vec::new();
        for (d, &i) in plain.iter().enumerate() {
            let extent = self.env.extent_at(tensor, d, &plain);
            goals.push(self.env.pool.le(zero, i));
            goals.push(self.env.pool.lt(i, extent));
        }
        goals
    }

    /// Replaces loaded indices by variables with the tensor's declared range.
    fn without_gathers(&mut self, e: ExprId) -> ExprId {
        let mut loads = Vec::new();
        self.env.pool.walk(e, &mut |id, n| {
            if let Expr::Cast(ScalarType::Index, x) = n
                && matches!(self.env.pool.get(*x), Expr::Load { .. })
            {
                loads.push((id, *x));
            }
        });
        for (cast, load) in loads {
            if self.gathered.contains_key(&cast) {
                continue;
            }
            let Expr::Load { tensor, .. } = *self.env.pool.get(load) else { continue };
            let Some((lo, hi)) = self.env.tensors[tensor].range else { continue };
            let var = self.env.new_var("gathered");
            let v = self.env.pool.var(var);
            let size = self.env.pool.sub(hi, lo);
            self.loops.insert(0, (var, size));
            let value = self.env.pool.add(v, lo);
            self.gathered.insert(cast, value);
        }
        let map = self.gathered.clone();
        self.env.pool.rewrite(e, &mut |_, x| map.get(&x).copied())
    }

    fn failing(&mut self, goals: &[ExprId], assumptions: &[ExprId]) -> Option<ExprId> {
        let assumptions: Vec<ExprId> = assumptions.iter().map(|&a| self.without_gathers(a)).collect();
        goals.iter().copied().find(|&g| !self.simplifier.prove(self.env, &self.loops, &assumptions, g))
    }

    fn report(&mut self, tensor: TensorId, index: &[ExprId], goal: ExprId) {
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
        let name = &self.env.tensors[tensor].name;
        self.errors.push(
            Diagnostic::new(
                "E0243",
                format!("in `{}`: the access {name}[{}] is not proved to be in bounds", self.stage, shown.join(", ")),
            )
            .note(format!("could not prove: {fact}"))
            .hint(format!("give it a value outside the bounds, as in `{name}[..] else 0`, or declare tighter ranges")),
        );
    }
}
