//! Rules of the loop dialect.

use super::{Allow, Checker, Loads, VerifyError};
use crate::env::Role;
use crate::expr::Expr;
use crate::ids::{TensorId, VarId};
use crate::loops::{Block, BlockRole, For, IterKind, LoopKind, LoopModule, Stmt};
use crate::tuple::Reduction;
use crate::types::ScalarType;
use rustc_hash::FxHashSet;

/// Checks every invariant of the loop dialect; see the [module's header](self::super).
///
/// # Errors
/// Every invariant that is broken, each with its rule and place.
pub fn verify_loops(m: &LoopModule) -> Result<(), Vec<VerifyError>> {
    let mut c = Checker::new(&m.env);
    c.declarations(true, &Default::default());
    let mut around = Around { scope: FxHashSet::default(), depth: 0, init: false };
    let mut written = FxHashSet::default();
    for s in &m.body {
        c.stmt(s, &mut around, &mut written);
    }
    c.all_written(&written, &[]);
    c.finish()
}

/// What encloses a statement.
struct Around {
    scope: FxHashSet<VarId>,
    depth: usize,
    init: bool,
}

fn over<'a>(vars: &'a FxHashSet<VarId>, loads: Loads<'a>, rule: &'static str) -> Allow<'a> {
    Allow { loads, args: (0, "formal-args"), vars: Some((vars, rule)), no_calls: None, vectors: false }
}

impl Checker<'_> {
    fn stmt(&mut self, s: &Stmt, around: &mut Around, written: &mut FxHashSet<TensorId>) {
        match s {
            Stmt::For(l) => {
                let place = format!("for {}", self.var_name(l.var));
                self.within(place, |c| c.for_loop(l, around, written));
            }
            Stmt::Block(b) => {
                let place = format!("block {}", self.tensor_name(b.stage));
                self.within(place, |c| c.block(b, around));
                written.insert(b.tensor);
            }
        }
    }

    fn for_loop(&mut self, l: &For, around: &mut Around, written: &mut FxHashSet<TensorId>) {
        self.exists(l.stage);
        let allow = over(&around.scope, Loads::MultiDim, "bound");
        self.scalar(l.extent, ScalarType::Index, "extent-type", "the extent", &allow);
        if l.kind == LoopKind::Parallel && around.depth > 0 {
            self.error("parallel-outermost", "a parallel loop inside another loop");
        }
        if around.init && !l.init {
            self.error("init-loops", "a loop that is not `init` inside one that is");
        }
        if self.env.vars.get(l.var).is_none() {
            self.error("entities", format!("there is no {:?}", l.var));
        }
        for p in &l.prefetch {
            let known = self.exists(p.stage) & self.exists(p.tensor);
            if known && (p.distance < 1 || !(0..=3).contains(&p.locality)) {
                self.error("prefetch", format!("{} iterations ahead with locality {}", p.distance, p.locality));
            }
            if let Some(v) = p.of.filter(|&v| v != l.var && !around.scope.contains(&v)) {
                self.error("prefetch", format!("no loop around binds `{}`", self.var_name(v)));
            }
        }
        let new = around.scope.insert(l.var);
        if !new {
            self.error("bound-once", format!("`{}` is already bound", self.var_name(l.var)));
        }
        let outer_init = around.init;
        around.init |= l.init;
        around.depth += 1;
        for s in &l.body {
            self.stmt(s, around, written);
        }
        around.depth -= 1;
        around.init = outer_init;
        if new {
            around.scope.remove(&l.var);
        }
    }

    fn block(&mut self, b: &Block, around: &Around) {
        if !self.exists(b.stage) | !self.exists(b.tensor) {
            return;
        }
        if around.init && b.role != BlockRole::Init {
            self.error("init-loops", "a block that is not an init block inside an `init` loop");
        }
        let (all, spatial) = self.iters(b, around);
        let outside = over(&around.scope, Loads::MultiDim, "bindings");
        for &cond in &b.predicate {
            self.scalar(cond, ScalarType::Bool, "extent-type", "the predicate", &outside);
        }
        let tensor = &self.env.tensors[b.tensor];
        if b.index.len() != tensor.dims.len() {
            let (found, wanted) = (b.index.len(), tensor.dims.len());
            self.error("block-index", format!("{found} indices for a tensor that has {wanted} dimensions"));
        }
        let body = over(&all, Loads::MultiDim, "block-body");
        for &i in &b.index {
            self.scalar(i, ScalarType::Index, "extent-type", "the index", &body);
            let reduced = |v: &VarId| all.contains(v) && !spatial.contains(v);
            if self.known(i) && self.env.pool.vars_of(i).iter().any(reduced) {
                self.error("block-index", format!("`{}` uses a reduced iterator", self.show(i)));
            }
        }
        self.element(b.value, b.tensor, "block-type", &body);
        if matches!(b.role, BlockRole::Update(r) if !self.fits(r, b.tensor)) {
            self.error("block-role", "the combiner is not the tensor's");
        }
        if b.atomic && !matches!(b.role, BlockRole::Update(Reduction::Op(_))) {
            self.error("block-role", "atomic, and no update of one value");
        }
        if matches!(tensor.role, Role::Input | Role::ConstInput) {
            self.error("block-role", format!("`@{}` is an input and written", tensor.name));
        }
        self.attached(b, around);
    }

    /// Checks the iterators; gives all their variables, and those of the spatial ones.
    fn iters(&mut self, b: &Block, around: &Around) -> (FxHashSet<VarId>, FxHashSet<VarId>) {
        let (mut all, mut spatial) = (FxHashSet::default(), FxHashSet::default());
        let outside = over(&around.scope, Loads::MultiDim, "bindings");
        for i in &b.iters {
            let inside = over(&all, Loads::MultiDim, "iter-extents");
            self.scalar(i.extent, ScalarType::Index, "extent-type", "the iterator's extent", &inside);
            self.scalar(i.binding, ScalarType::Index, "extent-type", "the binding", &outside);
            if self.env.vars.get(i.var).is_none() {
                self.error("entities", format!("there is no {:?}", i.var));
            }
            if around.scope.contains(&i.var) || !all.insert(i.var) {
                self.error("bound-once", format!("`{}` is already bound", self.var_name(i.var)));
            }
            match i.kind {
                IterKind::Spatial => drop(spatial.insert(i.var)),
                IterKind::Reduce if matches!(b.role, BlockRole::Update(_)) => {}
                IterKind::Reduce => self.error("block-role", "a reduced iterator in a block that does not update"),
            }
        }
        (all, spatial)
    }

    /// Tensors that are attached in a loop are accessed within it.
    fn attached(&mut self, b: &Block, around: &Around) {
        let mut accessed: FxHashSet<TensorId> = FxHashSet::from_iter([b.tensor]);
        let bindings = b.iters.iter().flat_map(|i| [i.extent, i.binding]);
        for e in bindings.chain(b.predicate.iter().chain(&b.index).chain([&b.value]).copied()) {
            if self.known(e) {
                self.env.pool.walk(e, &mut |_, n| {
                    if let Expr::Load { tensor, .. } = n {
                        accessed.insert(*tensor);
                    }
                });
            }
        }
        let mut accessed: Vec<TensorId> = accessed.into_iter().collect();
        accessed.sort_unstable();
        for t in accessed {
            let Some(tensor) = self.env.tensors.get(t) else { continue };
            for e in tensor.dims.iter().flat_map(|d| [d.extent, d.storage]) {
                if !self.known(e) {
                    continue;
                }
                for v in self.env.pool.vars_of(e) {
                    if !around.scope.contains(&v) {
                        let var = self.var_name(v);
                        self.error("attached", format!("`@{}` is accessed outside of its loop {var}", tensor.name));
                    }
                }
            }
        }
    }
}
