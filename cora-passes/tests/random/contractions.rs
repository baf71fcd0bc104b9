//! Sums of products over rows, columns and a reduction, whose operands are read through gathers, windows, strides and
//! conditions: what the compiler's own schedules tile.

use super::graphs::{Gen, OpDim};
use super::values::Val;
use cora_ir::{BinOp, Combiner, ExprId, Role, ScalarType, TensorId};
use rand::prelude::*;
use rustc_hash::FxHashMap;

/// A position of an operand: its index in the operator, and the extent of its dimension over the arguments before it.
struct Position {
    index: ExprId,
    extent: ExprId,
    /// The dimension that it is, where it is one.
    dim: Option<OpDim>,
}

impl Gen<'_> {
    /// One contraction, with an operator over its result in half of the cases.
    pub fn contraction(&mut self) {
        use ScalarType::{BF16, F16, F32, F64, I8, I32};
        self.dims.clear();
        let batched = self.rng.random_bool(0.85);
        let b = batched.then(|| {
            let rows = self.shapes.rows;
            self.add_dim(rows)
        });
        let rows = self.side(b, None);
        let columns = self.side(b, Some(rows));
        let k = self.summed(b, rows, columns);
        let (read, summed) =
            *[(F32, F32), (F32, F32), (F32, F32), (F64, F64), (BF16, F32), (F16, F32), (I8, I32), (I32, I32)]
                .choose(self.rng)
                .expect("not empty");
        let mut term = self.product(b, [rows, k, columns], (read, summed));
        if self.rng.random_bool(0.15) {
            let other = self.product(b, [rows, k, columns], (read, summed));
            let op = if self.rng.random_bool(0.5) { BinOp::Add } else { BinOp::Sub };
            term = self.arith(op, term, other);
        }
        if self.rng.random_bool(0.1) {
            let third = self.operand(summed, &[k]);
            term = self.arith(BinOp::Mul, term, Val { e: third, bound: 21.0, exact: true });
        }
        if self.rng.random_bool(0.25) {
            let Some(mut cond) = self.comparison() else { return };
            if self.rng.random_bool(0.3) {
                let Some(other) = self.comparison() else { return };
                cond = self.env().pool.and(cond, other);
            }
            let zero = self.literal(summed, 0);
            term.e = self.env().pool.select(cond, term.e, zero);
        }
        let combiner = if self.rng.random_bool(0.9) { Combiner::Sum } else { Combiner::Max };
        self.define_with(summed, &[k.dim], Some(combiner), term);
        if self.rng.random_bool(0.5) {
            self.op();
        }
    }

    /// Which of two positions comes first, mostly as they are.
    fn comparison(&mut self) -> Option<ExprId> {
        let (&p, &q) = (self.dims.choose(self.rng)?, self.dims.choose(self.rng)?);
        let by = if self.rng.random_bool(0.2) { self.rng.random_range(2..=3) } else { 1 };
        let farther = if self.rng.random_bool(0.3) { self.rng.random_range(-9..=9) } else { 0 };
        let (by, farther) = (self.int(by), self.int(farther));
        let pool = &mut self.g.env.pool;
        let (x, y) = (pool.mul(p.index, by), pool.add(q.index, farther));
        Some(pool.le(x, y))
    }

    /// A product of an element of the row's terms and one of the column's.
    fn product(
        &mut self,
        b: Option<OpDim>,
        [rows, k, columns]: [OpDim; 3],
        (read, summed): (ScalarType, ScalarType),
    ) -> Val {
        let mut first: Vec<OpDim> = b.filter(|_| self.rng.random_bool(0.8)).into_iter().collect();
        let mut second: Vec<OpDim> = b.filter(|_| self.rng.random_bool(0.5)).into_iter().collect();
        first.extend([rows, k]);
        second.extend(if self.rng.random_bool(0.5) { [k, columns] } else { [columns, k] });
        let offset = summed == ScalarType::I32 && self.rng.random_bool(0.4);
        let [x, y] = [first, second].map(|dims| {
            let v = self.operand(read, &dims);
            let e = self.env().pool.cast(summed, v);
            let factor = Val { e, bound: 21.0, exact: true };
            // A zero point of the row, the column, or of all.
            let mut of: Vec<OpDim> = dims.into_iter().filter(|d| d.dim != k.dim).collect();
            of.retain(|_| self.rng.random_bool(0.8));
            if !offset || of.is_empty() || self.rng.random_bool(0.3) {
                return factor;
            }
            let zero_point = Val { e: self.operand(summed, &of), bound: 21.0, exact: true };
            let op = if self.rng.random_bool(0.7) { BinOp::Sub } else { BinOp::Add };
            self.arith(op, factor, zero_point)
        });
        self.arith(BinOp::Mul, x, y)
    }

    /// Rows or columns: a length of the batch's row, a triangle, or a number that is a tile or one more or less.
    pub fn side(&mut self, b: Option<OpDim>, outer: Option<OpDim>) -> OpDim {
        let n = *[1, 2, 5, 7, 8, 9, 16, 17, 33].choose(self.rng).expect("not empty");
        let constant = self.int(n);
        let one = self.int(1);
        let ragged = b.map(|b| self.shapes.row_extent(&mut self.g.env, b.index));
        let extent = match (self.rng.random_range(0..10), ragged, outer) {
            (0..5, Some(row), _) => row,
            (5, _, Some(o)) => self.env().pool.add(o.index, one),
            (6, ..) => self.shapes.size,
            _ => constant,
        };
        self.add_dim(extent)
    }

    fn summed(&mut self, b: Option<OpDim>, rows: OpDim, columns: OpDim) -> OpDim {
        let n = *[1, 2, 3, 4, 5, 8].choose(self.rng).expect("not empty");
        let constant = self.int(n);
        let one = self.int(1);
        let ragged = b.map(|b| self.shapes.row_extent(&mut self.g.env, b.index));
        let extent = match (self.rng.random_range(0..10), ragged) {
            (0..3, Some(row)) => row,
            (3, _) => self.env().pool.add(rows.index, one),
            (4, _) => self.shapes.size,
            (5, _) => {
                let more = self.rng.random_range(0..=3);
                let more = self.int(more);
                self.env().pool.add(columns.index, more)
            }
            _ => constant,
        };
        self.add_dim(extent)
    }

    /// An input that is read at `dims` and at those that their extents depend on, one or another of them by a gather,
    /// in a window, or where a condition holds.
    pub fn operand(&mut self, ty: ScalarType, dims: &[OpDim]) -> ExprId {
        let mut at: Vec<Position> = Vec::new();
        let mut guards = Vec::new();
        for &d in dims {
            self.place(d, &mut at, &mut guards);
        }
        let extents: Vec<ExprId> = at.iter().map(|p| p.extent).collect();
        let role = if self.rng.random_bool(0.15) { Role::ConstInput } else { Role::Input };
        let mut id = self.declare_input(ty, role, &extents, None);
        if role == Role::ConstInput && self.rng.random_bool(0.5) {
            id = self.weights_of(ty, id);
        }
        let guard = (!guards.is_empty()).then(|| {
            let other = self.literal(ty, 0);
            (self.env().pool.all(guards), other)
        });
        let index: Vec<ExprId> = at.iter().map(|p| p.index).collect();
        let read = self.env().pool.load_guarded((id, 0), ty, index, guard);
        if self.rng.random_bool(0.8) { read } else { self.computed(ty, read) }
    }

    /// An intermediate that is computed of a const input.
    pub fn weights_of(&mut self, ty: ScalarType, input: TensorId) -> TensorId {
        let outside = std::mem::take(&mut self.dims);
        let mut at: Vec<OpDim> = Vec::new();
        for d in self.g.env.tensors[input].dims.clone() {
            let index: Vec<ExprId> = at.iter().map(|d| d.index).collect();
            let extent = self.env().pool.instantiate(d.extent, &index);
            at.push(self.add_dim(extent));
        }
        let v = self.read(input, &at);
        let two = self.literal(ty, 2);
        let e = if self.rng.random_bool(0.5) { self.env().pool.sub(two, v.e) } else { self.computed(ty, v.e) };
        let before = std::mem::replace(&mut self.in_order, true);
        let id = self.define_with(ty, &[], None, Val { e, bound: 21.0, exact: true });
        (self.dims, self.in_order) = (outside, before);
        id
    }

    /// Something of an operand that takes more to compute than to read.
    fn computed(&mut self, ty: ScalarType, read: ExprId) -> ExprId {
        let one = self.literal(ty, 1);
        let least = self.rng.random_bool(0.5);
        let pool = &mut self.g.env.pool;
        let square = pool.mul(read, read);
        let less = pool.sub(square, read);
        let more = pool.add(less, one);
        if least { pool.min(more, square) } else { more }
    }

    fn place(&mut self, d: OpDim, at: &mut Vec<Position>, guards: &mut Vec<ExprId>) {
        if at.iter().any(|p| p.dim.is_some_and(|o| o.dim == d.dim)) {
            return;
        }
        if self.rng.random_bool(0.3) {
            let (index, extent) = self.gather_at(d);
            at.push(Position { index, extent, dim: None });
            return;
        }
        for outer in self.dims.clone() {
            if outer.dim != d.dim && self.g.env.pool.uses_var(d.extent, outer.var) {
                // A tensor's extents are over its own dimensions.
                self.place_itself(outer, at);
            }
        }
        match self.rng.random_range(0..12) {
            // A window: the sum of two dimensions, the second of a fixed size.
            0 => {
                let fixed: Vec<OpDim> = self
                    .dims
                    .iter()
                    .copied()
                    .filter(|o| self.g.env.pool.as_int(o.extent).is_some_and(|n| n > 0))
                    .collect();
                let Some(&o) = fixed.choose(self.rng) else { return self.place_itself(d, at) };
                let extent = self.over_positions(d.extent, at);
                let pool = &mut self.g.env.pool;
                let zero = pool.int(0);
                let (one, length) = (pool.int(1), pool.max(extent, zero));
                let both = pool.add(length, o.extent);
                let (index, extent) = (pool.add(d.index, o.index), pool.sub(both, one));
                at.push(Position { index, extent, dim: None });
            }
            // Each second element.
            1 => {
                let extent = self.over_positions(d.extent, at);
                let pool = &mut self.g.env.pool;
                let two = pool.int(2);
                let (index, extent) = (pool.mul(d.index, two), pool.mul(extent, two));
                at.push(Position { index, extent, dim: None });
            }
            // From the end.
            2 => {
                let extent = self.over_positions(d.extent, at);
                let pool = &mut self.g.env.pool;
                let one = pool.int(1);
                let last = pool.sub(d.extent, one);
                let index = pool.sub(last, d.index);
                at.push(Position { index, extent, dim: None });
            }
            // The one before, 0 for the first.
            3 => {
                let extent = self.over_positions(d.extent, at);
                let pool = &mut self.g.env.pool;
                let (one, zero) = (pool.int(1), pool.int(0));
                let index = pool.sub(d.index, one);
                guards.push(pool.le(zero, index));
                at.push(Position { index, extent, dim: None });
            }
            _ => self.place_itself(d, at),
        }
    }

    fn place_itself(&mut self, d: OpDim, at: &mut Vec<Position>) {
        if at.iter().any(|p| p.dim.is_some_and(|o| o.dim == d.dim)) {
            return;
        }
        for outer in self.dims.clone() {
            if outer.dim != d.dim && self.g.env.pool.uses_var(d.extent, outer.var) {
                self.place_itself(outer, at);
            }
        }
        let extent = self.over_positions(d.extent, at);
        at.push(Position { index: d.index, extent, dim: Some(d) });
    }

    /// An extent over the positions before it.
    fn over_positions(&mut self, extent: ExprId, at: &[Position]) -> ExprId {
        let mut map = FxHashMap::default();
        for (j, p) in at.iter().enumerate() {
            if let Some(d) = p.dim {
                let arg = self.env().pool.arg(j as u32);
                map.insert(d.var, arg);
            }
        }
        self.env().pool.substitute(extent, &map)
    }

    /// A position that an index tensor gives for `d`, and for another dimension now and then; and the table's size.
    fn gather_at(&mut self, d: OpDim) -> (ExprId, ExprId) {
        let size = *[1, 3, 6, 20].choose(self.rng).expect("not empty");
        let table = if self.rng.random_bool(0.15) { self.shapes.size } else { self.int(size) };
        let mut by = vec![d];
        if self.rng.random_bool(0.3) {
            by.extend(self.dims.choose(self.rng).copied());
        }
        let index = self.gather_by(&by, table);
        (index, table)
    }

    /// An index below `extent` that an input gives for each position of `dims` and of those that their extents need.
    pub fn gather_by(&mut self, dims: &[OpDim], extent: ExprId) -> ExprId {
        let mut at: Vec<Position> = Vec::new();
        for &d in dims {
            self.place_itself(d, &mut at);
        }
        let extents: Vec<ExprId> = at.iter().map(|p| p.extent).collect();
        let index: Vec<ExprId> = at.iter().map(|p| p.index).collect();
        // What is given may count from another number than 0.
        let least = if self.rng.random_bool(0.25) { self.rng.random_range(-3..=5) } else { 0 };
        let low = self.int(least);
        let mut extent = self.over_positions(extent, &at);
        if self.rng.random_bool(0.25) {
            // Each element has a range of its own.
            let position = self.rng.random_range(0..at.len()) as u32;
            let pool = &mut self.env().pool;
            let (position, one) = (pool.arg(position), pool.int(1));
            let so_far = pool.add(position, one);
            extent = pool.min(extent, so_far);
        }
        let high = self.env().pool.add(extent, low);
        let ty =
            *[ScalarType::I32, ScalarType::I32, ScalarType::I64, ScalarType::I16].choose(self.rng).expect("not empty");
        let ids = self.declare_input(ty, Role::Input, &extents, Some((low, high)));
        let load = self.env().load(ids, index);
        let position = self.env().pool.cast(ScalarType::Index, load);
        self.env().pool.sub(position, low)
    }
}
