//! Structural equality of modules up to ids, written without the printer.

use crate::env::{Env, TensorDim, UfDef};
use crate::expr::Expr;
use crate::graph::Graph;
use crate::ids::{ExprId, TensorId, UfId, VarId};
use crate::loops::{self, LoopModule};
use crate::storage::{self, Beside, StorageModule};
use std::collections::HashMap;

/// Two modules' environments and what was found to correspond. Every check panics on a difference.
pub struct Same<'a> {
    a: &'a Env,
    b: &'a Env,
    vars: HashMap<VarId, VarId>,
    ufs: HashMap<UfId, UfId>,
    tensors: HashMap<TensorId, TensorId>,
}

impl<'a> Same<'a> {
    fn new(a: &'a Env, b: &'a Env) -> Self {
        assert_eq!(a.params, b.params);
        Self { a, b, vars: HashMap::new(), ufs: HashMap::new(), tensors: HashMap::new() }
    }

    fn var(&mut self, a: VarId, b: VarId) {
        assert_eq!(*self.vars.entry(a).or_insert(b), b, "variables differ");
        assert_eq!(self.a.vars[a], self.b.vars[b]);
    }

    fn exprs(&mut self, a: &[ExprId], b: &[ExprId]) {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).for_each(|(&x, &y)| self.expr(x, y));
    }

    fn option(&mut self, a: Option<ExprId>, b: Option<ExprId>) {
        self.exprs(a.as_slice(), b.as_slice());
    }

    fn expr(&mut self, a: ExprId, b: ExprId) {
        assert_eq!(self.a.pool.ty(a), self.b.pool.ty(b));
        let (ka, kb) = (self.a.pool.children(a), self.b.pool.children(b));
        match (self.a.pool.get(a).clone(), self.b.pool.get(b).clone()) {
            (Expr::Var(x), Expr::Var(y)) => self.var(x, y),
            (Expr::Call(x, _), Expr::Call(y, _)) => self.uf(x, y),
            (Expr::Load { tensor: x, guard: g, .. }, Expr::Load { tensor: y, guard: h, .. }) => {
                assert_eq!(g.is_some(), h.is_some());
                self.tensor(x, y);
            }
            (Expr::Search { table: x, .. }, Expr::Search { table: y, .. }) => self.tensor(x, y),
            (Expr::Un(x, _), Expr::Un(y, _)) => assert_eq!(x, y),
            (Expr::Bin(x, ..), Expr::Bin(y, ..)) => assert_eq!(x, y),
            (Expr::Cast(x, _), Expr::Cast(y, _)) => assert_eq!(x, y),
            (Expr::Splat(_, x), Expr::Splat(_, y)) => assert_eq!(x, y),
            (Expr::Reduce(x, _), Expr::Reduce(y, _)) => assert_eq!(x, y),
            (Expr::Ramp { stride: x, lanes: l, .. }, Expr::Ramp { stride: y, lanes: m, .. }) => {
                assert_eq!((x, l), (y, m));
            }
            (Expr::Select(..), Expr::Select(..)) => {}
            // Leaves with a value of their own: the nodes themselves are equal.
            (x, y) => assert_eq!(x, y),
        }
        self.exprs(&ka, &kb);
    }

    fn uf(&mut self, a: UfId, b: UfId) {
        if let Some(&known) = self.ufs.get(&a) {
            return assert_eq!(known, b);
        }
        self.ufs.insert(a, b);
        let (x, y) = (self.a.ufs[a].clone(), self.b.ufs[b].clone());
        assert_eq!(x.name, y.name);
        self.exprs(&x.domain, &y.domain);
        match (x.def, y.def) {
            (UfDef::Extent { lo: l, hi: h }, UfDef::Extent { lo, hi }) => self.exprs(&[l, h], &[lo, hi]),
            (UfDef::Search { sum: x }, UfDef::Search { sum: y }) => self.uf(x, y),
            (x, y) => {
                assert_eq!(std::mem::discriminant(&x), std::mem::discriminant(&y));
                self.option(x.body(), y.body());
            }
        }
    }

    fn tensor(&mut self, a: TensorId, b: TensorId) {
        if let Some(&known) = self.tensors.get(&a) {
            return assert_eq!(known, b);
        }
        self.tensors.insert(a, b);
        let (x, y) = (&self.a.tensors[a], &self.b.tensors[b]);
        assert_eq!((&x.name, x.ty, x.role, x.scope), (&y.name, y.ty, y.role, y.scope));
        assert_eq!((x.dims.len(), x.range.is_some()), (y.dims.len(), y.range.is_some()));
        let all = |dims: &[TensorDim]| dims.iter().flat_map(|d| [d.extent, d.storage]).collect::<Vec<_>>();
        let labels = |dims: &[TensorDim]| dims.iter().map(|d| d.name.clone()).collect::<Vec<_>>();
        assert_eq!(labels(&x.dims), labels(&y.dims));
        self.exprs(&all(&x.dims), &all(&y.dims));
        if let (Some((l, h)), Some((lo, hi))) = (x.range, y.range) {
            self.exprs(&[l, h], &[lo, hi]);
        }
    }
}

/// Loop modules.
pub fn same_loops(a: &LoopModule, b: &LoopModule) {
    assert_eq!(a.name, b.name);
    loop_bodies(&mut Same::new(&a.env, &b.env), &a.body, &b.body);
}

fn loop_bodies(s: &mut Same<'_>, a: &[loops::Stmt], b: &[loops::Stmt]) {
    assert_eq!(a.len(), b.len());
    for (x, y) in a.iter().zip(b) {
        match (x, y) {
            (loops::Stmt::For(x), loops::Stmt::For(y)) => {
                assert_eq!((x.kind, x.init), (y.kind, y.init));
                s.var(x.var, y.var);
                s.tensor(x.stage, y.stage);
                s.expr(x.extent, y.extent);
                loop_bodies(s, &x.body, &y.body);
            }
            (loops::Stmt::Block(x), loops::Stmt::Block(y)) => {
                assert_eq!(
                    (x.role, x.continues, x.atomic, x.iters.len()),
                    (y.role, y.continues, y.atomic, y.iters.len())
                );
                for (i, j) in x.iters.iter().zip(&y.iters) {
                    assert_eq!(i.kind, j.kind);
                    s.var(i.var, j.var);
                    s.exprs(&[i.extent, i.binding], &[j.extent, j.binding]);
                }
                s.tensor(x.stage, y.stage);
                s.tensor(x.tensor, y.tensor);
                s.exprs(&x.predicate, &y.predicate);
                s.exprs(&x.index, &y.index);
                s.expr(x.value, y.value);
            }
            _ => panic!("statements of different kinds"),
        }
    }
}

/// Storage modules.
pub fn same_storage(a: &StorageModule, b: &StorageModule) {
    let mut s = Same::new(&a.env, &b.env);
    assert_eq!((&a.name, a.buffers.len(), a.tables.len()), (&b.name, b.buffers.len(), b.tables.len()));
    for (x, y) in a.buffers.iter().zip(&b.buffers) {
        s.tensor(x.tensor, y.tensor);
        s.expr(x.elems, y.elems);
        s.option(x.offset, y.offset);
    }
    for (x, y) in a.tables.iter().zip(&b.tables) {
        s.tensor(x.tensor, y.tensor);
        s.uf(x.uf, y.uf);
        s.expr(x.entries, y.entries);
        s.exprs(&x.domain, &y.domain);
        s.option(x.body, y.body);
    }
    assert_eq!(a.kernels.len(), b.kernels.len());
    for (x, y) in a.kernels.iter().zip(&b.kernels) {
        assert_eq!(x.name, y.name);
        storage_bodies(&mut s, &x.body, &y.body);
    }
}

fn storage_bodies(s: &mut Same<'_>, a: &[storage::Stmt], b: &[storage::Stmt]) {
    use storage::Stmt;
    assert_eq!(a.len(), b.len());
    for (x, y) in a.iter().zip(b) {
        match (x, y) {
            (Stmt::For { var: v, extent: e, kind: k, body: c }, Stmt::For { var, extent, kind, body }) => {
                assert_eq!(k, kind);
                s.var(*v, *var);
                s.expr(*e, *extent);
                storage_bodies(s, c, body);
            }
            (Stmt::If { cond: c, then: t, other: o }, Stmt::If { cond, then, other }) => {
                s.expr(*c, *cond);
                storage_bodies(s, t, then);
                storage_bodies(s, o, other);
            }
            (Stmt::Let { var: v, value: e }, Stmt::Let { var, value }) => {
                s.var(*v, *var);
                s.expr(*e, *value);
            }
            (Stmt::Commit, Stmt::Commit) => {}
            (Stmt::Beside(x), Stmt::Beside(y)) => match (x, y) {
                (Beside::Wait { pending: n, results: of }, Beside::Wait { pending, results }) => {
                    assert_eq!((n, of.len()), (pending, results.len()));
                    of.iter().zip(results).for_each(|(&x, &y)| s.tensor(x, y));
                }
                (x, y) => assert_eq!(x, y),
            },
            (Stmt::Wait { pending: n }, Stmt::Wait { pending }) => assert_eq!(n, pending),
            (
                Stmt::Atomic { tensor: t, index: i, combiner: c, value: v },
                Stmt::Atomic { tensor, index, combiner, value },
            ) => {
                assert_eq!(c, combiner);
                s.tensor(*t, *tensor);
                s.exprs(&[*i, *v], &[*index, *value]);
            }
            (Stmt::Copy { tensor: t, index: i, value: v, mask: m }, Stmt::Copy { tensor, index, value, mask }) => {
                s.tensor(*t, *tensor);
                s.exprs(&[*i, *v], &[*index, *value]);
                s.option(*m, *mask);
            }
            (Stmt::Prefetch { tensor: t, index: i, locality: l }, Stmt::Prefetch { tensor, index, locality }) => {
                assert_eq!(l, locality);
                s.tensor(*t, *tensor);
                s.expr(*i, *index);
            }
            (Stmt::Tile(x), Stmt::Tile(y)) => {
                assert_eq!(x.intrinsic, y.intrinsic);
                for (x, y) in x.matrices().into_iter().zip(y.matrices()) {
                    s.tensor(x.tensor, y.tensor);
                }
                s.exprs(&x.exprs(), &y.exprs());
            }
            (Stmt::Bulk(x), Stmt::Bulk(y)) => {
                s.tensor(x.to, y.to);
                s.tensor(x.from, y.from);
                let sizes = |b: &storage::Bulk| b.dims.iter().map(|d| (d.step, d.extent)).collect::<Vec<_>>();
                assert_eq!((sizes(x), x.zeros), (sizes(y), y.zeros));
                s.exprs(&x.exprs(), &y.exprs());
            }
            (Stmt::Await { tensor: t, slot: x }, Stmt::Await { tensor, slot }) => {
                s.tensor(*t, *tensor);
                s.expr(*x, *slot);
            }
            (Stmt::Gemm(x), Stmt::Gemm(y)) => {
                assert_eq!(x.accumulate, y.accumulate);
                for (x, y) in [(&x.c, &y.c), (&x.a, &y.a), (&x.b, &y.b)] {
                    s.tensor(x.tensor, y.tensor);
                }
                s.exprs(&x.exprs(), &y.exprs());
            }
            (
                Stmt::Store { tensor: t, index: i, value: v, mask: m, rest: r },
                Stmt::Store { tensor, index, value, mask, rest },
            ) => {
                assert_eq!(r.len(), rest.len());
                r.iter().zip(rest).for_each(|(x, y)| {
                    s.tensor(x.0, y.0);
                    s.expr(x.1, y.1);
                });
                s.tensor(*t, *tensor);
                s.exprs(&[*i, *v], &[*index, *value]);
                s.option(*m, *mask);
            }
            _ => panic!("statements of different kinds"),
        }
    }
}

/// Op graphs, spans of steps aside.
pub fn same_graphs(a: &Graph, b: &Graph) {
    let mut s = Same::new(&a.env, &b.env);
    assert_eq!((&a.name, a.ops.len(), a.outputs.len()), (&b.name, b.ops.len(), b.outputs.len()));
    assert_eq!(a.env.dims.len(), b.env.dims.len());
    for ((_, x), (_, y)) in a.env.dims.iter().zip(b.env.dims.iter()) {
        assert_eq!(x.name, y.name);
        s.var(x.var, y.var);
        s.expr(x.extent, y.extent);
    }
    for (x, y) in a.ops.iter().zip(&b.ops) {
        assert_eq!((&x.spatial, &x.reduce, x.combiner), (&y.spatial, &y.reduce, y.combiner));
        s.tensor(x.tensor, y.tensor);
        s.expr(x.value, y.value);
    }
    for (&x, &y) in a.outputs.iter().zip(&b.outputs) {
        s.tensor(x, y);
    }
    assert_eq!(a.schedules.len(), b.schedules.len());
    for (x, y) in a.schedules.iter().zip(&b.schedules) {
        assert_eq!((&x.name, x.steps.len()), (&y.name, y.steps.len()));
        assert!(x.steps.iter().zip(&y.steps).all(|(p, q)| p.kind == q.kind));
    }
}
