//! Operators that are read before they are defined: recurrences.

use super::{Decl, Elab, State};
use crate::ast::{Def, ItemKind};
use cora_ir::recurrence::{Place, Read, Recurrence, recurrences};
use cora_ir::schedule::Span;
use cora_ir::{Diagnostic, DimId, Expr, ExprId, Op, ScalarType, Tensor, TensorId};
use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

impl<'a> Elab<'a> {
    /// The tensor of an operator whose definition is at hand or further down, if that has an index list; without a type its
    /// elements are `f32`.
    pub(super) fn early_tensor(&mut self, name: &str) -> Option<TensorId> {
        if let Some(&found) = self.early.get(name) {
            return Some(found);
        }
        let program = self.program;
        let slot = self.slots.get(name).filter(|s| matches!(s.state, State::Later))?;
        let Decl::Item(item) = slot.decl else { return None };
        let ItemKind::Op(def) = &program.items[item].kind else { return None };
        let saved = (self.mode, std::mem::take(&mut self.scope));
        let dims = self.index_list(def.dims.as_deref()?);
        (self.mode, self.scope) = saved;
        let dims = dims?;
        let tensor_dims = self.tensor_dims_of(&dims);
        let ty = def.ty.unwrap_or(ScalarType::F32);
        let tensor = self.graph.env.tensors.push(Tensor::temp(name.to_owned(), ty, tensor_dims));
        self.tensor_dims.insert(tensor, dims.iter().map(|d| d.0).collect());
        self.early.insert(name.to_owned(), tensor);
        if def.ty.is_none() {
            self.assumed.insert(tensor);
        }
        Some(tensor)
    }

    /// An operator that the definition at hand reads, of a type that no definition states.
    pub(super) fn assumed_here(&self) -> Option<String> {
        let read = |e| match self.graph.env.pool.get(e) {
            Expr::Load { tensor, .. } => self.assumed.get(tensor).copied(),
            _ => None,
        };
        let found = self.accesses.iter().find_map(|a| read(a.0))?;
        Some(self.graph.env.tensors[found].name.clone())
    }

    /// Defines a tensor that has been read before.
    pub(super) fn define_early(&mut self, def: &Def, op: Op) -> Option<TensorId> {
        let (name, tensor) = (&def.name.name, op.tensor);
        let (found, read_as) = (self.graph.env.pool.ty(op.value).scalar, self.graph.env.tensors[tensor].ty);
        let d = if op.combiner.is_some_and(|c| matches!(c, cora_ir::Reduction::Tuple(_))) {
            Diagnostic::new("E0221", format!("`{name}` is a tuple and read before it is defined"))
                .hint("a recurrence is of single values: reduce by `sum`, `prod`, `max` or `min`")
        } else if found != read_as {
            Diagnostic::new("E0221", format!("`{name}` is read as {read_as} before it is defined as {found}"))
                .hint(format!("give it its type: `{name}[..] : {found} = ..`"))
        } else {
            self.graph.ops.push(op);
            return Some(tensor);
        };
        self.error(def.value.span(), d)
    }

    /// Puts operators that need each other behind what all of them need, and checks that what they read of each other is there
    /// before.
    pub(super) fn order_recurrences(&mut self) {
        if self.early.is_empty() || !self.diags.is_empty() {
            return;
        }
        let groups = self.groups();
        let group_of = |n: usize| groups.iter().position(|g| g.contains(&n));
        let (mut wrong, mut out_of_order) = (Vec::new(), Vec::new());
        for (n, op) in self.graph.ops.iter().enumerate() {
            for t in self.read_by(op) {
                let at = self.graph.ops.iter().position(|o| o.tensor == t);
                if at.is_some_and(|m| m > n && group_of(m) != group_of(n)) {
                    let what = format!("`{}` is used before its definition", self.graph.env.tensors[t].name);
                    let d = Diagnostic::new("E0221", what);
                    wrong.push((op.tensor, t, d.hint("operators are defined in order: move its definition up")));
                }
            }
        }
        let order = self.order(&groups);
        let old = std::mem::take(&mut self.graph.ops);
        self.graph.ops = order.into_iter().map(|n| old[n].clone()).collect();
        for r in recurrences(&self.graph) {
            for (reader, of) in r.unordered(&self.graph) {
                if of.place == Place::Unknown {
                    self.graph.only_in_its_branch(reader);
                }
            }
        }
        for r in recurrences(&self.graph) {
            let tensors = self.graph.ops[r.ops.clone()].iter().map(|op| op.tensor);
            if let Some(t) = tensors.clone().find(|&t| self.graph.env.tensors[t].tuple.is_some()) {
                let name = &self.graph.env.tensors[t].name;
                let d = Diagnostic::new(
                    "E0221",
                    format!("`{name}` is of tuples and one of operators that need each other"),
                );
                let d = d.hint("a recurrence is of single values: reduce by `sum`, `prod`, `max` or `min`");
                wrong.extend(tensors.clone().map(|other| (t, other, d.clone())).find(|x| x.1 != t));
                continue;
            }
            for (reader, of) in r.unordered(&self.graph) {
                let name = &self.graph.env.tensors[of.tensor].name;
                let d = Diagnostic::new("E0221", format!("`{name}` is read where it may not be computed yet"));
                let d = d.hint(self.what_orders(&r, reader, &of));
                out_of_order.push((self.read_at(reader, &|e| self.is_read(e, &of)), d));
            }
        }
        for (reader, read, d) in wrong {
            let is = |e| matches!(self.graph.env.pool.get(e), Expr::Load { tensor, .. } if *tensor == read);
            out_of_order.push((self.read_at(reader, &is), d));
        }
        for (span, d) in out_of_order {
            self.report(span, d);
        }
    }

    /// What would have a read of a recurrence be of something that is computed before.
    fn what_orders(&self, r: &Recurrence, reader: TensorId, of: &Read) -> String {
        let env = &self.graph.env;
        let dims = |dims: &[DimId]| dims.iter().map(|&d| env.dims[d].name.as_str()).collect::<Vec<_>>().join(", ");
        let name = |t: TensorId| &env.tensors[t].name;
        let ops = &self.graph.ops[r.ops.clone()];
        let all: Vec<String> = ops.iter().map(|op| format!("`{}[{}]`", name(op.tensor), dims(&op.spatial))).collect();
        let all = all.join(", ");
        if r.dims.is_empty() {
            return format!("operators that need each other have their first dimensions in common: {all}");
        }
        let at = dims(&r.dims);
        if of.place != Place::Same {
            return format!(
                "elements are computed in the order of [{at}]: it has to follow from extents, ranges and conditions that the \
                 first of these positions that is not the element's own is less, as of `t - 1`, of `s` in a dimension `s = t`, \
                 or of `p` in `if p < t then ..`; dimensions that are read as a whole come after it"
            );
        }
        // What it needs at the same position, and what that needs.
        let same = r.same_positions(&self.graph);
        let mut needed = vec![of.tensor];
        let mut next = 0;
        while next < needed.len() {
            let new = same.iter().filter(|(by, _)| *by == needed[next]).map(|&(_, t)| t);
            let new: Vec<TensorId> = new.filter(|t| !needed.contains(t)).collect();
            needed.extend(new);
            next += 1;
        }
        let read = name(of.tensor);
        if !needed.contains(&reader) {
            return format!("it is computed later at the same position: move the definition of `{read}` up");
        }
        if ops.len() == 1 {
            return format!("`{read}` is made of itself at a position of [{at}]: read an earlier one, as of `t - 1`");
        }
        format!(
            "{all} are computed together for each position of [{at}], the dimensions that all of them have first, and there \
             `{read}` is made of what reads it: have one of these reads be of an earlier position, or put a dimension that \
             decides the order first in all of them"
        )
    }

    /// Whether an expression reads the element that `of` does.
    fn is_read(&self, e: ExprId, of: &Read) -> bool {
        matches!(self.graph.env.pool.get(e), Expr::Load { tensor, index, .. } if *tensor == of.tensor && **index == *of.index)
    }

    fn read_by(&self, op: &Op) -> BTreeSet<TensorId> {
        let mut out = BTreeSet::new();
        self.graph.env.pool.walk(op.value, &mut |_, e| {
            if let Expr::Load { tensor, .. } = e {
                out.insert(*tensor);
            }
        });
        out
    }

    /// Where the definition that made `reader` reads what is looked for.
    fn read_at(&self, reader: TensorId, is: &dyn Fn(ExprId) -> bool) -> Span {
        let place = self.graph.places.iter().find(|p| p.ops.contains(&reader));
        let access = place.and_then(|p| p.accesses.iter().find(|a| is(a.0)).map(|a| a.1));
        access.or(place.map(|p| p.span)).unwrap_or_default()
    }

    /// The operators that need each other, each alone if it needs no later one.
    fn groups(&self) -> Vec<BTreeSet<usize>> {
        let mut graph = DiGraph::<(), ()>::new();
        let nodes: Vec<NodeIndex> = self.graph.ops.iter().map(|_| graph.add_node(())).collect();
        for (n, op) in self.graph.ops.iter().enumerate() {
            for t in self.read_by(op) {
                if let Some(m) = self.graph.ops.iter().position(|o| o.tensor == t) {
                    graph.add_edge(nodes[n], nodes[m], ());
                }
            }
        }
        tarjan_scc(&graph).into_iter().map(|g| g.into_iter().map(NodeIndex::index).collect()).collect()
    }

    /// The operators group by group, each group after those that it reads, else as they were.
    fn order(&self, groups: &[BTreeSet<usize>]) -> Vec<usize> {
        let of = |t: TensorId| groups.iter().position(|g| g.iter().any(|&n| self.graph.ops[n].tensor == t));
        let needs = |g: usize| -> BTreeSet<usize> {
            let read = groups[g].iter().flat_map(|&n| self.read_by(&self.graph.ops[n]));
            read.filter_map(of).filter(|&other| other != g).collect()
        };
        let mut left: Vec<BTreeSet<usize>> = (0..groups.len()).map(needs).collect();
        let first = |g: usize| Reverse((groups[g].first().copied(), g));
        let mut ready: BinaryHeap<_> = (0..groups.len()).filter(|&g| left[g].is_empty()).map(first).collect();
        let mut out = Vec::new();
        while let Some(Reverse((_, g))) = ready.pop() {
            out.extend(&groups[g]);
            for (other, needed) in left.iter_mut().enumerate() {
                if needed.remove(&g) && needed.is_empty() {
                    ready.push(first(other));
                }
            }
        }
        out
    }
}
