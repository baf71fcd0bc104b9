//! Rules of the op graph.

use super::{Allow, Checker, Loads, VerifyError};
use crate::env::Role;
use crate::expr::{Expr, MAX_VALUE_SIZE};
use crate::graph::{Graph, Op};
use crate::ids::{DimId, TensorId, VarId};
use crate::recurrence::{Recurrence, recurrences};
use crate::tuple::{Reduction, check_laws};
use crate::types::ScalarType;
use rustc_hash::FxHashSet;

/// Checks every invariant of an op graph; see the [module's header](self::super).
///
/// # Errors
/// Every invariant that is broken, each with its rule and place.
pub fn verify_graph(g: &Graph) -> Result<(), Vec<VerifyError>> {
    let mut c = Checker::new(&g.env);
    c.limit_depth();
    c.declarations(false, &Default::default());
    c.dims(g);
    let mut ready: FxHashSet<TensorId> = FxHashSet::default();
    for (id, t) in g.env.tensors.iter() {
        if matches!(t.role, Role::Input | Role::ConstInput) {
            ready.insert(id);
        }
    }
    let dims = |op: &Op| op.spatial.iter().all(|&d| g.env.dims.get(d).is_some());
    let known = g.ops.iter().all(|op| c.known(op.value) && !c.is_too_deep(op.value) && dims(op));
    let recurrences = if known { recurrences(g) } else { Vec::new() };
    for (n, op) in g.ops.iter().enumerate() {
        let name = c.tensor_name(op.tensor);
        let own = recurrences.iter().find(|r| r.ops.contains(&n));
        let own: FxHashSet<TensorId> = own
            .iter()
            .flat_map(|r| &g.ops[r.ops.clone()])
            .map(|op| op.tensor)
            .filter(|&t| c.env.tensors.get(t).is_some())
            .collect();
        c.within(format!("op {name}"), |c| c.op(op, (&ready, &own)));
        ready.insert(op.tensor);
    }
    for r in &recurrences {
        c.recurrence(g, r);
    }
    c.outputs(g);
    c.finish()
}

fn over<'a>(vars: &'a FxHashSet<VarId>, loads: Loads<'a>, rule: &'static str) -> Allow<'a> {
    Allow { loads, args: (0, "formal-args"), vars: Some((vars, rule)), no_calls: None, vectors: false }
}

impl Checker<'_> {
    fn dims(&mut self, g: &Graph) {
        let mut earlier = FxHashSet::default();
        for (_, d) in g.env.dims.iter() {
            self.within(format!("dim {}", d.name), |c| {
                let allow = over(&earlier, Loads::No("dim-order"), "dim-order");
                c.scalar(d.extent, ScalarType::Index, "types", "the extent", &allow);
                if c.env.vars.get(d.var).is_none() {
                    c.error("entities", format!("there is no {:?}", d.var));
                }
                if earlier.contains(&d.var) {
                    c.error("dim-order", "its variable is another dimension's");
                }
            });
            earlier.insert(d.var);
        }
    }

    /// The rules of an operator after those that made `ready`, in a recurrence of those that make `own`.
    fn op(&mut self, op: &Op, (ready, own): (&FxHashSet<TensorId>, &FxHashSet<TensorId>)) {
        if !self.exists(op.tensor) {
            return;
        }
        let tensor = &self.env.tensors[op.tensor];
        if ready.contains(&op.tensor) {
            self.error("op-order", "the tensor is an input or already defined");
        }
        if tensor.range.is_some() {
            self.error("op-range", "only elements that are given are checked to be in a range");
        }
        if op.spatial.len() != tensor.dims.len() {
            let (found, wanted) = (op.spatial.len(), tensor.dims.len());
            self.error("op-dims", format!("{found} dimensions for a tensor that has {wanted}"));
        }
        if op.combiner.is_some() == op.reduce.is_empty() {
            self.error("op-reduce", "a combiner without reduced dimensions, or these without a combiner");
        }
        let mut bound = FxHashSet::default();
        for &d in op.spatial.iter().chain(&op.reduce) {
            self.op_dim(d, &mut bound);
        }
        if op.combiner.is_some_and(|r| !self.fits(r, op.tensor)) {
            self.error("op-reduce", "the combiner is not the tensor's");
        }
        if self.is_too_large(op.value) {
            self.error("op-size", format!("a value has more than {MAX_VALUE_SIZE} nodes when written out"));
        }
        let before = self.errors.len();
        self.element(op.value, op.tensor, "op-type", &over(&bound, Loads::MultiDim, "op-bound"));
        if let (Some(Reduction::Tuple(c)), true) = (op.combiner, self.errors.len() == before)
            && let Err(broken) = check_laws(self.env, c, &self.env.pool.components(op.value))
        {
            self.error("op-laws", format!("`@{}` {broken}", self.env.combiners[c].name));
        }
        self.reads(op, (ready, own));
    }

    fn op_dim(&mut self, d: DimId, bound: &mut FxHashSet<VarId>) {
        let Some(dim) = self.env.dims.get(d) else {
            return self.error("entities", format!("there is no {d:?}"));
        };
        self.expr(dim.extent, &over(bound, Loads::No("op-dims"), "op-dims"));
        if !bound.insert(dim.var) {
            self.error("op-dims", format!("dimension `{}` occurs twice", dim.name));
        }
    }

    fn reads(&mut self, op: &Op, (ready, own): (&FxHashSet<TensorId>, &FxHashSet<TensorId>)) {
        if !self.known(op.value) || self.is_too_deep(op.value) {
            return;
        }
        let mut read = Vec::new();
        self.env.pool.walk(op.value, &mut |_, n| {
            if let Expr::Load { tensor, .. } = n {
                read.push(*tensor);
            }
        });
        for t in read {
            if !ready.contains(&t) && !own.contains(&t) {
                self.error("op-order", format!("`{}` is read before it is defined", self.tensor_name(t)));
            }
        }
    }

    /// What a recurrence reads of itself is there before.
    fn recurrence(&mut self, g: &Graph, r: &Recurrence) {
        let tuples = |op: &&Op| self.env.tensors.get(op.tensor).is_some_and(|t| t.tuple.is_some());
        if let Some(op) = g.ops[r.ops.clone()].iter().find(tuples) {
            let name = self.tensor_name(op.tensor);
            self.error("op-order", format!("`{name}` is of tuples and read before it is defined"));
        }
        for (reader, of) in r.unordered(g) {
            let index: Vec<String> = of.index.iter().map(|&e| self.show(e)).collect();
            let (reader, tensor) = (self.tensor_name(reader), self.tensor_name(of.tensor));
            let read = format!("`{reader}` reads `{tensor}[{}]`", index.join(", "));
            self.error("op-order", format!("{read}, which is read before it is defined"));
        }
    }

    fn outputs(&mut self, g: &Graph) {
        let mut seen = FxHashSet::default();
        for &t in &g.outputs {
            if !self.exists(t) {
                continue;
            }
            let name = self.tensor_name(t);
            if !seen.insert(t) {
                self.error("outputs", format!("`{name}` is an output twice"));
            }
            if self.env.tensors[t].role != Role::Output {
                self.error("outputs", format!("output `{name}` has another role"));
            }
            if g.op_of(t).is_none() {
                self.error("outputs", format!("no operator defines output `{name}`"));
            }
        }
        for (id, t) in self.env.tensors.iter() {
            if t.role == Role::Output && !seen.contains(&id) {
                self.error("outputs", format!("`@{}` has the role of an output and is none", t.name));
            }
        }
    }
}
