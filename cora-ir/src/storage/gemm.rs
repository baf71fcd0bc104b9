//! A product of matrices as one statement: what is given to a library, as data.

use super::Stmt;
use crate::env::Env;
use crate::ids::{ExprId, TensorId};
use crate::layout::LayoutStep;
use crate::loops::LoopKind;

/// A matrix in a flat buffer: the element of row `i` and column `j` is at `offset + i * row + j * column`; in blocks of
/// `r` rows and `c` columns at `offset + i / r * blocks[0] + j / c * blocks[1] + i % r * row + j % c * column`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// The buffer.
    pub tensor: TensorId,
    /// Flat offset of the first element.
    pub offset: ExprId,
    /// Elements from one row to the next.
    pub row: ExprId,
    /// Elements from one column to the next.
    pub column: ExprId,
    /// Elements from one block of rows, and of columns, to the next, where it lies in blocks. Their sizes are those of the
    /// tensor instruction that reads it.
    pub blocks: Option<[ExprId; 2]>,
}

/// `C[i, j] = sum over p < k of A[i, p] * B[p, j]` for `i < m` and `j < n`; with `accumulate` the sum is added to what
/// `C` holds. A negative size counts as 0, and over nothing the sum is 0. All elements are of one type, `f32` or `f64`,
/// and `C` shares no element with `A` and `B`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gemm {
    /// `m`, `n` and `k`.
    pub sizes: [ExprId; 3],
    /// The result: `m` rows, `n` columns.
    pub c: Matrix,
    /// The left factor: `m` rows, `k` columns.
    pub a: Matrix,
    /// The right factor: `k` rows, `n` columns.
    pub b: Matrix,
    /// Whether the sum is added to what the result holds.
    pub accumulate: bool,
}

impl Matrix {
    pub(super) fn exprs_mut(&mut self) -> impl Iterator<Item = &mut ExprId> {
        [&mut self.offset, &mut self.row, &mut self.column].into_iter().chain(self.blocks.iter_mut().flatten())
    }

    /// Offset and strides, then those of blocks.
    pub fn exprs(&self) -> impl Iterator<Item = ExprId> {
        [self.offset, self.row, self.column].into_iter().chain(self.blocks.into_iter().flatten())
    }

    /// The offset of row `i`, column `j`.
    pub(crate) fn at(&self, env: &mut Env, i: ExprId, j: ExprId) -> ExprId {
        let (i, j) = (env.pool.mul(i, self.row), env.pool.mul(j, self.column));
        let at = env.pool.add(self.offset, i);
        env.pool.add(at, j)
    }

    /// The rows and columns of its blocks, where the instruction reads blocks of `sizes`. Of a swizzled buffer a line of a
    /// block is a line of 128 bytes.
    pub fn block_sizes(&self, env: &Env, sizes: Option<[i64; 2]>) -> Option<[i64; 2]> {
        let ([rows, columns], t) = (sizes?, &env.tensors[self.tensor]);
        if !t.layout.contains(&LayoutStep::Swizzle) {
            return sizes;
        }
        let line = t.ty.elems_of(128);
        Some(if env.pool.as_int(self.column) == Some(1) { [rows, line] } else { [line, columns] })
    }

    /// The same of a matrix in blocks of so many rows and columns, if it is one.
    pub fn at_in_blocks(&self, env: &mut Env, sizes: Option<[i64; 2]>, i: ExprId, j: ExprId) -> ExprId {
        let sizes = self.block_sizes(env, sizes);
        let (Some(steps), Some(sizes)) = (self.blocks, sizes) else { return self.at(env, i, j) };
        let mut sum = self.offset;
        for ((at, size), (block, inside)) in
            [i, j].into_iter().zip(sizes).zip(steps.into_iter().zip([self.row, self.column]))
        {
            let size = env.pool.int(size);
            let (whole, rest) = (env.pool.floor_div(at, size), env.pool.modulo(at, size));
            let (whole, rest) = (env.pool.mul(whole, block), env.pool.mul(rest, inside));
            sum = env.pool.add(sum, whole);
            sum = env.pool.add(sum, rest);
        }
        sum
    }
}

impl Gemm {
    /// The sizes, then offset and strides of the result and of the factors.
    pub fn exprs(&self) -> Vec<ExprId> {
        self.sizes.into_iter().chain([&self.c, &self.a, &self.b].into_iter().flat_map(Matrix::exprs)).collect()
    }

    /// Replaces each of [`Gemm::exprs`].
    pub fn map(&mut self, f: &mut dyn FnMut(ExprId) -> ExprId) {
        let matrices = [&mut self.c, &mut self.a, &mut self.b].into_iter().flat_map(Matrix::exprs_mut);
        self.sizes.iter_mut().chain(matrices).for_each(|e| *e = f(*e));
    }

    /// The tensors that are read.
    pub fn reads(&self) -> impl Iterator<Item = TensorId> {
        [self.a.tensor, self.b.tensor].into_iter().chain(self.accumulate.then_some(self.c.tensor))
    }

    /// The same as loops: what the statement means.
    pub fn as_loops(&self, env: &mut Env) -> Vec<Stmt> {
        let [i, j, p] = ["i", "j", "p"].map(|n| env.new_var(n));
        let [vi, vj, vp] = [i, j, p].map(|v| env.pool.var(v));
        let (c, a, b) = (self.c.at(env, vi, vj), self.a.at(env, vi, vp), self.b.at(env, vp, vj));
        let (x, y) = (env.load(self.a.tensor, [a]), env.load(self.b.tensor, [b]));
        let product = env.pool.mul(x, y);
        let old = env.load(self.c.tensor, [c]);
        let value = env.pool.add(old, product);
        let tensor = self.c.tensor;
        let update = Stmt::Store { tensor, index: c, value, mask: None, rest: vec![] };
        let around = |var, extent, body| Stmt::For { var, extent, kind: LoopKind::Serial, body };
        let mut element = vec![around(p, self.sizes[2], vec![update])];
        if !self.accumulate {
            let value = env.identity(crate::types::Combiner::Sum, env.tensors[tensor].ty);
            element.insert(0, Stmt::Store { tensor, index: c, value, mask: None, rest: vec![] });
        }
        vec![around(i, self.sizes[0], vec![around(j, self.sizes[1], element)])]
    }
}
