//! Index tensors that operators compute: gathers and conditions through them.

use super::graphs::{Gen, OpDim};
use super::values::Val;
use cora_ir::{ExprId, Role, ScalarType, VarId};
use rand::prelude::*;
use rustc_hash::FxHashMap;

impl Gen<'_> {
    /// A computed number over the first one or two dimensions of the operator being made, as an index.
    /// It may be negative, and as great as any.
    pub fn computed_index(&mut self) -> Option<ExprId> {
        let count = self.rng.random_range(1..=2).min(self.dims.len());
        let outer: Vec<OpDim> = self.dims[..count].to_vec();
        let reader = std::mem::take(&mut self.dims);
        let made = self.index_tensor(&outer);
        self.dims = reader;
        let at: Vec<ExprId> = outer.iter().map(|d| d.index).collect();
        let load = (!outer.is_empty()).then(|| self.env().load(made, at))?;
        Some(self.env().pool.cast(ScalarType::Index, load))
    }

    /// The extents of the first dimensions of the operator being made, each over the arguments before it.
    pub fn over_args(&mut self, outer: &[OpDim]) -> Vec<ExprId> {
        let mut map: FxHashMap<VarId, ExprId> = FxHashMap::default();
        let mut extents = Vec::new();
        for (j, d) in outer.iter().enumerate() {
            extents.push(self.env().pool.substitute(d.extent, &map));
            let arg = self.env().pool.arg(j as u32);
            map.insert(d.var, arg);
        }
        extents
    }

    /// An operator of whole numbers over copies of `outer`.
    fn index_tensor(&mut self, outer: &[OpDim]) -> cora_ir::TensorId {
        let extents = self.over_args(outer);
        let mut own: FxHashMap<VarId, ExprId> = FxHashMap::default();
        for d in outer {
            let extent = self.env().pool.substitute(d.extent, &own);
            let copy = self.add_dim(extent);
            own.insert(d.var, copy.index);
        }
        let given = self.declare_input(ScalarType::I32, Role::Input, &extents, None);
        let at: Vec<ExprId> = self.dims.iter().map(|d| d.index).collect();
        let given = self.env().load(given, at);
        let by = self.rng.random_range(-1..=2);
        let by = self.literal(ScalarType::I32, by);
        let kind = self.rng.random_range(0..3);
        let pool = &mut self.env().pool;
        let e = match kind {
            0 => pool.add(given, by),
            1 => pool.max(given, by),
            _ => pool.mul(given, by),
        };
        self.define_with(ScalarType::I32, &[], None, Val { e, bound: 8.0, exact: true })
    }
}
