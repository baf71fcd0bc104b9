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

    /// An operator of whole numbers over copies of `outer`.
    fn index_tensor(&mut self, outer: &[OpDim]) -> cora_ir::TensorId {
        let (mut over_args, mut own): (FxHashMap<VarId, ExprId>, FxHashMap<VarId, ExprId>) = Default::default();
        let mut extents = Vec::new();
        for (j, d) in outer.iter().enumerate() {
            extents.push(self.env().pool.substitute(d.extent, &over_args));
            let arg = self.env().pool.arg(j as u32);
            over_args.insert(d.var, arg);
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
