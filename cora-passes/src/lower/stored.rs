//! The stored dimensions of a tensor: what its layout steps make of its own dimensions.
//!
//! ```text
//! [b: M, i: lens(b)], split 1 32 -> io ii   =>  [b: M, io: ceildiv(lens(b), 32), ii: 32]
//!                                               at [b, i // 32, i % 32]
//! [b: M, i: lens(b)], fuse 0 2 -> t         =>  [t: row(M)] at [row(b) + i]
//! ```
//!
//! The rule of offsets (`layout`) then applies to the stored dimensions as to any others. Each step
//! maps different positions to different ones, so the whole does. Elements of dimensions that are fused
//! lie where they would lie otherwise: for addresses these stay apart until a step takes positions of the
//! fused one apart, so that no table has an entry for each of them.

use super::layout::{Layout, sizes};
use cora_ir::layout::LayoutStep;
use cora_ir::{Env, ExprId};

/// Stored dimensions.
pub struct Stored {
    /// Their sizes, outermost first, the j-th over `Arg(0..j)`, their own indices; none is negative.
    pub extents: Vec<ExprId>,
    /// Their indices, over the indices `Arg(0..rank)` of the tensor's own dimensions.
    pub index: Vec<ExprId>,
}

impl Stored {
    /// What `steps` make of dimensions of `extents` (the j-th over `Arg(0..j)`, not negative); `name`
    /// is the base of the names of functions that are made.
    pub fn new(env: &mut Env, name: &str, extents: Vec<ExprId>, steps: &[LayoutStep]) -> Self {
        let index = (0..extents.len() as u32).map(|d| env.pool.arg(d)).collect();
        let mut out = Self { extents, index };
        for step in steps {
            match step {
                LayoutStep::Split { dim, factor, .. } => out.split(env, *dim, *factor),
                LayoutStep::Fuse { first, count, .. } => out.fuse(env, name, *first, *count),
                LayoutStep::Align { dim, multiple, offset } => out.align(env, name, *dim, (*multiple, *offset)),
                // Slots are a matter of the loop that the buffer lives in.
                LayoutStep::Slots(_) => {}
                // Addresses are permuted by those who access them (`lower/bulk.rs`).
                LayoutStep::Swizzle => {}
                LayoutStep::Fold { dim, count } => out.fold(env, *dim, *count),
                LayoutStep::Reorder { order } => out.reorder(env, order),
            }
        }
        out
    }

    /// The stored dimensions for addresses: like [`Stored::new`], but dimensions that are fused stay apart where nothing
    /// depends on their being one.
    pub fn addressed(env: &mut Env, name: &str, extents: Vec<ExprId>, steps: &[LayoutStep]) -> Self {
        // How many dimensions each one that the steps speak of consists of.
        let mut parts = vec![1; extents.len()];
        let mut own: Vec<LayoutStep> = Vec::new();
        let mut fused = 0;
        for step in steps {
            match step {
                LayoutStep::Fuse { first, count, .. } => {
                    let together = parts[*first..first + count].iter().sum();
                    parts.splice(*first..first + count, [together]);
                }
                LayoutStep::Split { dim, .. } | LayoutStep::Align { dim, .. } | LayoutStep::Fold { dim, .. } => {
                    let first: usize = parts[..*dim].iter().sum();
                    if parts[*dim] > 1 {
                        let name = format!("fused{fused}");
                        fused += 1;
                        own.push(LayoutStep::Fuse { first, count: parts[*dim], name });
                        parts[*dim] = 1;
                    }
                    let mut step = step.clone();
                    if let LayoutStep::Split { dim: d, .. }
                    | LayoutStep::Align { dim: d, .. }
                    | LayoutStep::Fold { dim: d, .. } = &mut step
                    {
                        *d = first;
                    }
                    // What lies inside an aligned dimension becomes one.
                    match step {
                        LayoutStep::Align { .. } => parts.splice(dim + 1.., [1]).for_each(drop),
                        LayoutStep::Fold { .. } => {}
                        _ => parts.insert(*dim, 1),
                    }
                    own.push(step);
                }
                LayoutStep::Reorder { order } => {
                    let starts: Vec<usize> = (0..parts.len()).map(|d| parts[..d].iter().sum()).collect();
                    let order_of_parts = order.iter().flat_map(|&d| starts[d]..starts[d] + parts[d]).collect();
                    own.push(LayoutStep::Reorder { order: order_of_parts });
                    parts = order.iter().map(|&d| parts[d]).collect();
                }
                LayoutStep::Slots(_) | LayoutStep::Swizzle => own.push(step.clone()),
            }
        }
        Self::new(env, name, extents, &own)
    }

    fn split(&mut self, env: &mut Env, d: usize, factor: i64) {
        let c = env.pool.int(factor);
        let whole = env.pool.round_up(self.extents[d], factor);
        let blocks = env.pool.floor_div(whole, c);
        let blocks = cora_ir::affine::normalize(&mut env.pool, blocks);
        // The old index d in terms of the new ones; inner dimensions move by one.
        let mut renumber: Vec<ExprId> = (0..d as u32).map(|a| env.pool.arg(a)).collect();
        let (outer, inner) = (env.pool.arg(d as u32), env.pool.arg(d as u32 + 1));
        let base = env.pool.mul(outer, c);
        renumber.push(env.pool.add(base, inner));
        renumber.extend((d + 1..self.extents.len()).map(|a| env.pool.arg(a as u32 + 1)));
        let mut extents = self.extents[..d].to_vec();
        extents.extend([blocks, c]);
        extents.extend(self.extents[d + 1..].iter().map(|&e| env.pool.instantiate(e, &renumber)));
        // Extents have values in the padding of the last block too, perhaps negative ones.
        self.extents = sizes(env, &extents);
        let at = self.index[d];
        let (block, within) = (env.pool.floor_div(at, c), env.pool.modulo(at, c));
        self.index.splice(d..=d, [block, within]);
    }

    fn fuse(&mut self, env: &mut Env, name: &str, first: usize, count: usize) {
        let end = first + count;
        let outer: Vec<ExprId> = (0..first as u32).map(|a| env.pool.arg(a)).collect();
        let fused = Layout { extents: &self.extents[..end], name };
        let (volume, offset) = (fused.volume(env, first), fused.offset_within(env, first));
        let flat = env.pool.arg(first as u32);
        let steered = self.extents[end..].iter().any(|&e| {
            env.pool.any(e, &mut |n| matches!(n, cora_ir::Expr::Arg(a) if (first..end).contains(&(*a as usize))))
        });
        let mut renumber = outer.clone();
        if steered {
            renumber.extend(fused.unflatten(env, first, &outer, flat));
        } else {
            renumber.resize(end, flat);
        }
        renumber.extend((end..self.extents.len()).map(|a| env.pool.arg((a - count + 1) as u32)));
        let mut extents = self.extents[..first].to_vec();
        extents.push(volume);
        extents.extend(self.extents[end..].iter().map(|&e| env.pool.instantiate(e, &renumber)));
        self.extents = extents;
        let at = env.pool.instantiate(offset, &self.index);
        self.index.splice(first..end, [at]);
    }

    fn align(&mut self, env: &mut Env, name: &str, d: usize, (multiple, offset): (i64, i64)) {
        let inside = self.extents.len() - d - 1;
        if inside > 1 {
            self.fuse(env, name, d + 1, inside);
        }
        // The least number from the row's size on that is `offset` more than a multiple.
        let pool = &mut env.pool;
        let (size, m, o) = (self.extents[d + 1], pool.int(multiple), pool.int(offset));
        let past = pool.sub(o, size);
        let room = pool.modulo(past, m);
        let pitch = pool.add(size, room);
        self.extents[d + 1] = cora_ir::affine::normalize(pool, pitch);
    }

    fn fold(&mut self, env: &mut Env, d: usize, count: i64) {
        let count = env.pool.int(count);
        self.extents[d] = count;
        self.index[d] = env.pool.modulo(self.index[d], count);
    }

    fn reorder(&mut self, env: &mut Env, order: &[usize]) {
        let mut renumber = vec![env.pool.int(0); order.len()];
        for (new, &old) in order.iter().enumerate() {
            renumber[old] = env.pool.arg(new as u32);
        }
        self.extents = order.iter().map(|&d| env.pool.instantiate(self.extents[d], &renumber)).collect();
        self.index = order.iter().map(|&d| self.index[d]).collect();
    }
}
