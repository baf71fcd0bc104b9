//! Programs and steps for tensor instructions: sums of products that one of them reads, and the loops that make its tile.

use super::graphs::Gen;
use super::steps::{Proposer, blocks, loop_ref};
use super::values::Val;
use cora_ir::intrinsic::{Emission, Read};
use cora_ir::loops::{Axis, For, IterKind, LoopKind, LoopModule};
use cora_ir::schedule::{Binding, LoopRef, StepKind, Tail};
use cora_ir::{BinOp, Combiner, Expr, IntrinsicId, Role, ScalarType, UnOp};
use cora_passes::schedule::tree::enclosing;
use rand::prelude::*;

impl Gen<'_> {
    /// A projection of rows whose elements are converted to f32, or rounded to TF32.
    pub fn projection(&mut self) {
        let ty = *[ScalarType::BF16, ScalarType::BF16, ScalarType::F16, ScalarType::F32]
            .choose(self.rng)
            .expect("not empty");
        let rows = self.shapes.rows;
        let whole = self.rng.random_bool(0.5);
        // Few iterations: a tile of 16 rows is to fit into a batch.
        let (k, n) =
            *[(16, 8), (16, 8), (8, 8), (8, 16), (2, 16), (4, 16), (2, 32)].choose(self.rng).expect("not empty");
        let (k, n, sixteen) = (self.int(k), self.int(n), self.int(16));
        let a0 = self.env().pool.arg(0);
        let row = if whole { sixteen } else { self.shapes.row_extent(&mut self.g.env, a0) };
        let x = self.declare_input(ty, Role::Input, &[rows, row, k], None);
        let w = self.declare_input(ty, Role::Input, &[k, n], None);
        self.dims.clear();
        let b = self.add_dim(rows);
        let extent = if whole { sixteen } else { self.shapes.row_extent(&mut self.g.env, b.index) };
        let q = self.add_dim(extent);
        let (n, k) = (self.add_dim(n), self.add_dim(k));
        let [x, y] = [self.read(x, &[b, q, k]), self.read(w, &[k, n])].map(|mut v| {
            let pool = &mut self.g.env.pool;
            v.e = if ty == ScalarType::F32 { pool.un(UnOp::Tf32, v.e) } else { pool.cast(ScalarType::F32, v.e) };
            v
        });
        let term = self.arith(BinOp::Mul, x, y);
        self.define_with(ScalarType::F32, &[k.dim], Some(Combiner::Sum), term);
    }

    /// A convolution along the rows of a batch by a const factor, of as many terms as instructions of processors take.
    pub fn convolution(&mut self) {
        let (ty, sum, fits) = *[(ScalarType::BF16, ScalarType::F32, 32), (ScalarType::I8, ScalarType::I32, 64)]
            .choose(self.rng)
            .expect("not empty");
        let rows = self.shapes.rows;
        let taps = self.rng.random_range(1..=3);
        let (k, n) = *[(fits, 16), (fits, 16), (fits, 8), (fits / 2, 16), (6, 20)].choose(self.rng).expect("not empty");
        let (k, n, t) = (self.int(k), self.int(n), self.int(taps));
        let (step, guarded) = (self.rng.random_range(1..=2), self.rng.random_bool(0.4));
        let (by, last) = (self.int(step), self.int(taps - 1));
        let a0 = self.env().pool.arg(0);
        let row = self.shapes.row_extent(&mut self.g.env, a0);
        let pool = &mut self.g.env.pool;
        let positions = pool.mul(row, by);
        let length = if guarded { positions } else { pool.add(positions, last) };
        let x = self.declare_input(ty, Role::Input, &[rows, length, k], None);
        let mut w = self.declare_input(ty, Role::ConstInput, &[t, k, n], None);
        if self.rng.random_bool(0.3) {
            w = self.weights_of(ty, w);
        }
        self.dims.clear();
        let b = self.add_dim(rows);
        let extent = self.shapes.row_extent(&mut self.g.env, b.index);
        let q = self.add_dim(extent);
        let (n, t, k) = (self.add_dim(n), self.add_dim(t), self.add_dim(k));
        let zero = self.literal(ty, 0);
        let backwards = self.rng.random_bool(0.4);
        let pool = &mut self.g.env.pool;
        let first = pool.mul(q.index, by);
        let tap = if backwards { pool.sub(last, t.index) } else { t.index };
        let at = pool.add(first, tap);
        let (at, guard) = if guarded {
            let (one, none, end) = (pool.int(1), pool.int(0), pool.mul(q.extent, by));
            let at = pool.sub(at, one);
            let there = [pool.le(none, at), pool.lt(at, end)];
            (at, Some((pool.all(there), zero)))
        } else {
            (at, None)
        };
        let read = pool.load_guarded((x, 0), ty, [b.index, at, k.index], guard);
        let factor = self.env().load(w, vec![t.index, k.index, n.index]);
        let mut of_row = Val { e: self.env().pool.cast(sum, read), bound: 4.0, exact: true };
        if sum == ScalarType::I32 && self.rng.random_bool(0.5) {
            let zero_point = self.operand(sum, &[b]);
            of_row = self.arith(BinOp::Sub, of_row, Val { e: zero_point, bound: 4.0, exact: true });
        }
        let of_column = Val { e: self.env().pool.cast(sum, factor), bound: 4.0, exact: true };
        let term = self.arith(BinOp::Mul, of_row, of_column);
        self.define_with(sum, &[t.dim, k.dim], Some(Combiner::Sum), term);
    }
}

impl Proposer<'_> {
    /// The steps that make a tile of a sum of products, where its sizes divide the loops.
    pub fn tile_of_instruction(&mut self, m: &LoopModule) -> Option<()> {
        let all = blocks(m);
        let products = all.iter().filter_map(|(path, b)| {
            let Expr::Bin(BinOp::Mul, x, _) = *m.env.pool.get(b.value) else { return None };
            let (read, inner) = match *m.env.pool.get(x) {
                Expr::Cast(ty, e) => (Read::Converted(ty), e),
                Expr::Un(op, e) => (Read::Rounded(op), e),
                _ => return None,
            };
            let ty = m.env.pool.ty(inner).scalar;
            let fits = |i: &IntrinsicId| i.get().a.ty == ty && i.get().read == read;
            let fitting: Vec<IntrinsicId> = IntrinsicId::ALL.into_iter().filter(fits).collect();
            (!fitting.is_empty()).then_some((path, *b, fitting))
        });
        let products: Vec<_> = products.collect();
        let (path, b, fitting) = products.choose(self.rng)?;
        // Mostly those that the machine has.
        let likely = |i: &IntrinsicId| matches!(i.get().emission, Emission::MmaSync(_)) == self.grid;
        let likely: Vec<IntrinsicId> = fitting.iter().copied().filter(likely).collect();
        let intrinsic = *likely.choose(self.rng).or(fitting.choose(self.rng))?;
        let around = enclosing(&m.body, path);
        let reduced =
            |l: &For| b.iters.iter().any(|i| i.kind == IterKind::Reduce && m.env.pool.uses_var(i.binding, l.var));
        let own = |l: &&&For| l.stage == b.stage && l.kind == LoopKind::Serial;
        let divided = |l: &For, n: i64| m.env.pool.as_int(l.extent).is_some_and(|e| e % n == 0);
        let [rows, columns, k] = intrinsic.get().tile;
        let mut found: Vec<(&For, i64)> = Vec::new();
        for (n, is_reduced) in [(columns, false), (rows, false), (k, true)] {
            let free = |l: &&&For| !found.iter().any(|f| f.0.var == l.var);
            let fits = |l: &&&For| own(l) && free(l) && reduced(l) == is_reduced && divided(l, n);
            if n > 1 {
                let l = around.iter().rev().find(fits)?;
                found.push((l, n));
            }
        }
        let stage = loop_ref(m, found[0].0).stage;
        let (mut outer, mut inner) = (Vec::new(), Vec::new());
        for (l, n) in found {
            let (o, i) = (self.fresh("o"), self.fresh("i"));
            let (target, tail) = (loop_ref(m, l), Tail::Exact);
            self.queue.push_back(StepKind::Split { target, factor: n, outer: o.clone(), inner: i.clone(), tail });
            outer.push(o);
            inner.push(i);
        }
        let target = LoopRef { stage: stage.clone(), name: inner[0].clone() };
        let order = outer.into_iter().chain(inner).collect();
        self.queue.push_back(StepKind::Reorder { stage, order });
        self.queue.push_back(StepKind::Tensorize { target, intrinsic });
        if self.grid {
            let target = loop_ref(m, around.first()?);
            self.queue.push_back(StepKind::Bind { target, to: Binding::Axis(Axis::BlockX), atomic: false });
        }
        Some(())
    }
}
