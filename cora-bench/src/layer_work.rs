//! Multiply-adds of an encoder layer that our schedule issues, beside those that are needed.

use cora::driver::{self, Failure, Lowered};
use cora::ir::interp::Batch;
use cora::ir::{UfDef, UfId};

/// The program that is measured.
const ENCODER_LAYER: &str = include_str!("../../examples/encoder_layer.cora");

/// An encoder layer under its `cpu` schedule.
pub struct LayerWork {
    lowered: Lowered,
    lens: UfId,
}

impl LayerWork {
    /// Compiles the layer as far as the storage dialect.
    ///
    /// # Errors
    /// The program's mistakes, rendered.
    pub fn new() -> Result<Self, Failure> {
        let source = crate::workload::source("encoder_layer", ENCODER_LAYER)?;
        let lowered = driver::lower(&source, source.schedule(None, "cpu", |_| false)?, false, &mut |_| {})?;
        let lens = source.graph.env.ufs.iter().find(|(_, f)| matches!(f.def, UfDef::Extent { .. }));
        let lens = lens.map(|(f, _)| f).ok_or_else(|| Failure::Bug("the layer has no lengths".to_owned()))?;
        Ok(Self { lens, lowered })
    }

    /// 10^9 multiply-adds on a batch of sequences of `lengths`: useful ones, and those issued, surplus
    /// iterations and masked lanes included.
    pub fn multiply_adds(&self, lengths: &[i64]) -> (f64, f64) {
        let extents = [(self.lens, lengths.to_vec())].into_iter().collect();
        let batch = Batch { params: vec![lengths.len() as i64], extents, inputs: Default::default() };
        let work = cora::work::kernel_flops(&self.lowered, &batch);
        // Two floating-point operations each.
        let total = |f: fn(&(f64, f64)) -> f64| work.iter().map(f).sum::<f64>() / 2e9;
        (total(|w| w.0), total(|w| w.1))
    }
}
