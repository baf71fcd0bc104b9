//! A tile that a tensor instruction computes, as one statement.

use super::{Matrix, Stmt};
use crate::env::Env;
use crate::ids::{ExprId, TensorId};
use crate::intrinsic::{IntrinsicId, Read};
use crate::loops::LoopKind;

/// `C[i, j] += sum over p < k of read(A[i, p]) * read(B[p, j])`, all sizes being the intrinsic's. Its lanes execute it
/// together. Where the result of lanes is in registers its strides are 0 and its offset is the first of the registers, the
/// same in all lanes, in which each lane holds what the intrinsic's lane map says. A factor that the instruction reads in
/// blocks has the strides of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The instruction.
    pub intrinsic: IntrinsicId,
    /// The result.
    pub c: Matrix,
    /// The left factor.
    pub a: Matrix,
    /// The right factor.
    pub b: Matrix,
}

impl Tile {
    /// Offset and strides of the result and of the factors.
    pub fn exprs(&self) -> Vec<ExprId> {
        [&self.c, &self.a, &self.b].into_iter().flat_map(Matrix::exprs).collect()
    }

    /// Replaces each of [`Tile::exprs`].
    pub fn map(&mut self, f: &mut dyn FnMut(ExprId) -> ExprId) {
        for m in [&mut self.c, &mut self.a, &mut self.b] {
            m.exprs_mut().for_each(|e| *e = f(*e));
        }
    }

    /// The matrices, the result first.
    pub fn matrices(&self) -> [&Matrix; 3] {
        [&self.c, &self.a, &self.b]
    }

    /// The tensors that are read.
    pub fn reads(&self) -> [TensorId; 3] {
        [self.a.tensor, self.b.tensor, self.c.tensor]
    }

    /// An element of a factor as it enters the product.
    pub fn read(&self, env: &mut Env, tensor: TensorId, at: ExprId) -> ExprId {
        let e = env.load(tensor, [at]);
        match self.intrinsic.get().read {
            Read::Converted(ty) => env.pool.cast(ty, e),
            Read::Rounded(op) => env.pool.un(op, e),
        }
    }

    /// The same as loops, what the statement means, where its matrices are in memory or one thread executes it.
    pub fn as_loops(&self, env: &mut Env) -> Vec<Stmt> {
        let vars = ["i", "j", "p"].map(|n| env.new_var(n));
        let [i, j, p] = vars.map(|v| env.pool.var(v));
        let f = self.intrinsic.get();
        let c = self.c.at_in_blocks(env, f.c.blocks, i, j);
        let (a, b) = (self.a.at_in_blocks(env, f.a.blocks, i, p), self.b.at_in_blocks(env, f.b.blocks, p, j));
        let (x, y) = (self.read(env, self.a.tensor, a), self.read(env, self.b.tensor, b));
        let product = env.pool.mul(x, y);
        let old = env.load(self.c.tensor, [c]);
        let value = env.pool.add(old, product);
        let mut body = vec![Stmt::Store { tensor: self.c.tensor, index: c, value, mask: None, rest: vec![] }];
        for (var, n) in vars.into_iter().zip(self.intrinsic.get().tile).rev() {
            let extent = env.pool.int(n);
            body = vec![Stmt::For { var, extent, kind: LoopKind::Serial, body }];
        }
        body
    }
}
