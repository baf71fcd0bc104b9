//! A box of a buffer that a device's copy engine brings into shared memory, as one statement.

use super::Stmt;
use crate::env::Env;
use crate::ids::{ExprId, TensorId};
use crate::loops::LoopKind;
use crate::types::Combiner;

/// The most dimensions that a copy engine knows.
pub const MOST_DIMS: usize = 5;
/// The most positions of a box along one dimension.
pub const MOST_EXTENT: i64 = 256;

/// Steps, and the elements that lie side by side, are multiples of so many bytes.
pub const BOX_UNIT: i64 = 16;
/// A box in shared memory begins at multiples of so many bytes,
pub const BOX_BEGIN: i64 = 128;
/// a swizzled one of so many, 8 lines.
pub const SWIZZLED_BEGIN: i64 = 8 * SWIZZLED_LINE;
/// Bytes of a line that is swizzled.
pub const SWIZZLED_LINE: i64 = 128;

/// One thread of the block asks for a box of a global buffer. Its elements lie in one piece in the shared buffer, the first
/// dimension innermost; those outside of the dimensions' sizes are zero. The buffer has one slot, or several; a box is
/// asked for into one of them, and is there for a thread once that thread has waited for the slot ([`Stmt::Await`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bulk {
    /// The shared buffer.
    pub to: TensorId,
    /// Flat offset there of the box's first element.
    pub offset: ExprId,
    /// The slot that the box fills, from 0.
    pub slot: ExprId,
    /// The global buffer.
    pub from: TensorId,
    /// The buffer's dimensions for this copy, the box's innermost first.
    pub dims: Vec<BulkDim>,
    /// Whether the zeros outside of the dimensions are seen. Else larger sizes do as well, inside the buffer.
    pub zeros: bool,
}

/// A dimension of a buffer and the box's part in it. Positions `0..size` are `step` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkDim {
    /// The box's first position.
    pub at: ExprId,
    /// How many positions there are; over parameters and tables.
    pub size: ExprId,
    /// Elements from one position to the next, at least 1.
    pub step: i64,
    /// Positions of the box.
    pub extent: i64,
}

impl Bulk {
    /// Whether the lines of the box are swizzled in shared memory.
    pub fn is_swizzled(&self, env: &Env) -> bool {
        env.tensors[self.to].is_swizzled()
    }

    /// At multiples of how many elements the box begins in shared memory.
    pub fn begin(&self, env: &Env) -> i64 {
        env.tensors[self.to].ty.elems_of(if self.is_swizzled(env) { SWIZZLED_BEGIN } else { BOX_BEGIN })
    }

    /// Slots of the shared buffer.
    pub fn slots(&self, env: &Env) -> i64 {
        env.tensors[self.to].slots().unwrap_or(1)
    }

    /// The elements of the box.
    pub fn elems(&self) -> i64 {
        self.dims.iter().map(|d| d.extent).product()
    }

    /// Offset and slot, then position and size in each dimension.
    pub fn exprs(&self) -> Vec<ExprId> {
        [self.offset, self.slot].into_iter().chain(self.dims.iter().flat_map(|d| [d.at, d.size])).collect()
    }

    /// Replaces each of [`Bulk::exprs`].
    pub fn map(&mut self, f: &mut dyn FnMut(ExprId) -> ExprId) {
        let dims = self.dims.iter_mut().flat_map(|d| [&mut d.at, &mut d.size]);
        [&mut self.offset, &mut self.slot].into_iter().chain(dims).for_each(|e| *e = f(*e));
    }

    /// The same as loops, what the statement means.
    pub fn as_loops(&self, env: &mut Env) -> Stmt {
        let vars: Vec<_> = (0..self.dims.len()).map(|_| env.new_var("x")).collect();
        let (mut target, mut source, mut inside) = (self.offset, env.pool.int(0), Vec::new());
        let (mut pitch, zero) = (1, env.pool.int(0));
        for (d, &v) in self.dims.iter().zip(&vars) {
            let x = env.pool.var(v);
            let (by, step) = (env.pool.int(pitch), env.pool.int(d.step));
            let here = env.pool.mul(x, by);
            target = env.pool.add(target, here);
            let at = env.pool.add(d.at, x);
            inside.push(env.pool.le(zero, at));
            inside.push(env.pool.lt(at, d.size));
            let part = env.pool.mul(at, step);
            source = env.pool.add(source, part);
            pitch *= d.extent;
        }
        let ty = env.tensors[self.from].ty;
        let (there, other) = (env.pool.all(inside), env.identity(Combiner::Sum, ty));
        let value = env.pool.load_guarded((self.from, 0), ty, [source], Some((there, other)));
        let mut body = vec![Stmt::Store { tensor: self.to, index: target, value, mask: None, rest: vec![] }];
        for (d, &var) in self.dims.iter().zip(&vars) {
            body = vec![Stmt::For { var, extent: env.pool.int(d.extent), kind: LoopKind::Serial, body }];
        }
        body.pop().unwrap_or(Stmt::Barrier)
    }
}
