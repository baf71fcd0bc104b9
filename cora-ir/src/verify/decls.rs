//! Rules of declarations: names, parameters, uninterpreted functions, tensors.

use super::{Allow, Checker, Loads};
use crate::env::{Role, Scope, Tensor, Uf, UfDef};
use crate::expr::Expr;
use crate::ids::{EntityId, ExprId, TensorId, UfId};
use crate::layout::stored_names;
use crate::tuple::{Reduction, TupleCombiner};
use crate::types::ScalarType;
use rustc_hash::FxHashSet;

impl Checker<'_> {
    /// Checks everything that is declared. `attached` says whether extents may mention variables;
    /// `tables` are what they may read (functions may have been lowered to them).
    pub(super) fn declarations(&mut self, attached: bool, tables: &FxHashSet<TensorId>) {
        let env = self.env;
        self.distinct("parameter", env.params.iter().map(|(_, p)| p.name.as_str()));
        self.distinct("function", env.ufs.iter().map(|(_, f)| f.name.as_str()));
        self.distinct("tensor", env.tensors.iter().map(|(_, t)| t.name.as_str()));
        for (_, p) in env.params.iter() {
            if p.lo > p.hi {
                self.error("param-range", format!("parameter `{}` is in {}..={}", p.name, p.lo, p.hi));
            }
        }
        for (id, f) in env.ufs.iter() {
            self.within(format!("uf @{}", f.name), |c| c.uf(id, f));
        }
        self.distinct("combiner", env.combiners.iter().map(|(_, c)| c.name.as_str()));
        for (_, f) in env.combiners.iter() {
            self.within(format!("combiner @{}", f.name), |c| c.combiner(f));
        }
        for (_, t) in env.tensors.iter() {
            self.within(format!("tensor @{}", t.name), |c| c.tensor(t, attached, tables));
        }
    }

    /// Whether `r` combines elements of `t`.
    pub(super) fn fits(&self, r: Reduction, t: TensorId) -> bool {
        match r {
            Reduction::Op(_) => self.env.tensors[t].tuple.is_none(),
            Reduction::Tuple(c) => self.env.tensors[t].tuple == Some(c),
        }
    }

    fn combiner(&mut self, f: &TupleCombiner) {
        if f.parts.is_empty() || f.body.len() != f.parts.len() {
            return self.error("combiner", format!("{} results for {} components", f.body.len(), f.parts.len()));
        }
        let types: Vec<ScalarType> = f.parts.iter().map(|p| p.ty).collect();
        self.operands = [types.clone(), types].concat();
        let nothing = FxHashSet::default();
        let allow = Allow {
            loads: Loads::No("combiner"),
            args: (0, "combiner"),
            vars: Some((&nothing, "combiner")),
            no_calls: Some("combiner"),
            vectors: false,
        };
        for (part, &e) in f.parts.iter().zip(&f.body) {
            self.scalar(e, part.ty, "combiner", "a component", &allow);
            if self.known(e) && !self.env.is_combiner_body(e) {
                self.error("combiner", format!("`{}` is not over the operands alone", self.show(e)));
            }
            if part.identity.ty != part.ty || part.ty == ScalarType::Index {
                self.error("combiner", format!("the identity of `{}` is of another type", part.name));
            }
        }
        self.operands = Vec::new();
    }

    /// No name occurs twice.
    pub(super) fn distinct<'n>(&mut self, kind: &str, names: impl Iterator<Item = &'n str>) {
        let mut seen = FxHashSet::default();
        for name in names {
            if !seen.insert(name) {
                self.error("names", format!("two {kind}s are called `{name}`"));
            }
        }
    }

    fn uf(&mut self, id: UfId, f: &Uf) {
        for (j, &extent) in f.domain.iter().enumerate() {
            self.uf_expr(id, extent, j, "an argument's extent");
        }
        let n = f.domain.len();
        match f.def {
            UfDef::Extent { lo, hi } => {
                for e in [lo, hi] {
                    self.uf_expr(id, e, 0, "a bound");
                    self.only_params(e, "uf-args");
                }
            }
            UfDef::Search { sum } => self.search(id, f, sum),
            _ => {
                if let Some(body) = f.def.body() {
                    self.uf_expr(id, body, n, "the body");
                }
            }
        }
        let shape = match f.def {
            UfDef::PrefixSum { .. } | UfDef::Search { .. } | UfDef::Map { .. } | UfDef::SortDesc { .. } => n >= 1,
            UfDef::Extent { .. } | UfDef::Max { .. } => true,
        };
        if !shape {
            self.error("uf-shape", format!("a function of this kind does not have {n} arguments"));
        }
    }

    fn search(&mut self, id: UfId, f: &Uf, sum: UfId) {
        if sum >= id {
            return self.error("uf-order", "the inverted sum is not an earlier function");
        }
        let inverted = &self.env.ufs[sum];
        if !matches!(inverted.def, UfDef::PrefixSum { .. }) || inverted.domain.len() != f.domain.len() {
            self.error("uf-shape", format!("`@{}` is no prefix sum with as many arguments", inverted.name));
        }
    }

    /// An expression of a definition with `args` arguments.
    fn uf_expr(&mut self, id: UfId, e: ExprId, args: usize, what: &str) {
        let nothing = FxHashSet::default();
        let allow = Allow {
            loads: Loads::No("uf-pure"),
            args: (args as u32, "uf-args"),
            vars: Some((&nothing, "uf-pure")),
            no_calls: None,
            vectors: false,
        };
        self.scalar(e, ScalarType::Index, "uf-pure", what, &allow);
        if !self.known(e) {
            return;
        }
        let mut later = false;
        self.env.pool.walk(e, &mut |_, n| later |= matches!(n, Expr::Call(f, _) if f.index() >= id.index()));
        if later {
            self.error("uf-order", format!("`{}` calls no earlier function", self.show(e)));
        }
    }

    fn only_params(&mut self, e: ExprId, rule: &'static str) {
        if self.known(e) && self.env.pool.any(e, &mut |n| matches!(n, Expr::Call(..))) {
            self.error(rule, format!("`{}` is not over parameters alone", self.show(e)));
        }
    }

    /// The steps fit the dimensions, and what the host sees is row-major.
    fn layout(&mut self, t: &Tensor) {
        if t.layout.is_empty() {
            return;
        }
        if t.role != Role::Temp {
            self.error("tensor-layout", "inputs and outputs are stored as they are declared");
        }
        let names = t.dims.iter().map(|d| d.name.clone()).collect();
        if stored_names(&t.layout, names).is_none() {
            self.error("tensor-layout", "a step does not fit the dimensions before it");
        }
    }

    fn tensor(&mut self, t: &Tensor, attached: bool, tables: &FxHashSet<TensorId>) {
        let nothing = FxHashSet::default();
        let free = attached && t.scope != Scope::Global;
        for (j, d) in t.dims.iter().enumerate() {
            let allow = Allow {
                loads: if tables.is_empty() { Loads::No("tensor-dims") } else { Loads::Only(tables, "tensor-dims") },
                args: (j as u32, "tensor-dims"),
                vars: if free { None } else { Some((&nothing, "tensor-dims")) },
                no_calls: None,
                // Sizes of tables may search others.
                vectors: !tables.is_empty(),
            };
            for (e, what) in [(d.extent, "an extent"), (d.storage, "a storage extent")] {
                self.scalar(e, ScalarType::Index, "tensor-dims", what, &allow);
            }
        }
        if t.ty == ScalarType::Index {
            self.error("tensor-type", "elements are not stored as index");
        }
        self.layout(t);
        if let Some(c) = t.tuple {
            let first = self.env.combiners.get(c).and_then(|c| c.parts.first());
            if first.is_none_or(|p| p.ty != t.ty) {
                self.error("tensor-tuple", "the combiner has no such first component");
            }
            if t.role != Role::Temp || t.range.is_some() {
                self.error("tensor-tuple", "tuples are neither given nor results nor indices");
            }
        }
        let Some((lo, hi)) = t.range else { return };
        if !t.ty.is_int() {
            self.error("tensor-type", format!("elements of type {} have a range", t.ty));
        }
        let allow = Allow {
            loads: if tables.is_empty() { Loads::No("tensor-type") } else { Loads::Only(tables, "tensor-type") },
            args: (t.dims.len() as u32, "tensor-type"),
            vars: Some((&nothing, "tensor-type")),
            no_calls: None,
            vectors: !tables.is_empty(),
        };
        for e in [lo, hi] {
            self.scalar(e, ScalarType::Index, "tensor-type", "a bound", &allow);
        }
    }
}
