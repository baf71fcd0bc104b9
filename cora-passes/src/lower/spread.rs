//! A warp's result in registers: how its elements are spread over the lanes.
//!
//! Tiles of such a buffer follow each other in each lane's registers; in a tile the instruction's lane map says which
//! lane holds an element, and in which register. What that means for an index is decided by trying all iterations of the
//! few loops of constant extent that it depends on.

use cora_ir::intrinsic::{Digit, Of};
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, IntrinsicId, TensorId, VarId};
use rustc_hash::FxHashMap;

/// A buffer in the registers of a warp's lanes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Spread {
    pub(super) intrinsic: IntrinsicId,
    /// The dimensions in which its tiles have rows and columns.
    pub(super) dims: [usize; 2],
}

/// The refusal of such a buffer.
pub(super) fn not_spread(env: &Env, tensor: TensorId, fact: &str) -> Diagnostic {
    let what = format!("`{}` is in registers that the lanes of a warp share: {fact}", env.tensors[tensor].name);
    Diagnostic::new("E0439", what).hint(
        "give each warp whole tiles of it, unroll the loops around them, and bind loops of other stages that use it as \
         the instruction's lane map says; or keep it in shared memory",
    )
}

impl Spread {
    /// Size of a tile in dimension `d`.
    pub(super) fn tile(self, d: usize) -> i64 {
        let [m, n, _] = self.intrinsic.get().tile;
        match self.dims.iter().position(|&x| x == d) {
            Some(0) => m,
            Some(_) => n,
            None => 1,
        }
    }

    /// Registers that each lane has for a buffer of these sizes.
    ///
    /// # Errors
    /// `E0439` for a part of a tile.
    pub(super) fn registers(self, env: &mut Env, tensor: TensorId, sizes: &[ExprId]) -> Result<ExprId, Diagnostic> {
        let mut count = self.intrinsic.get().c.registers;
        for (d, &size) in sizes.iter().enumerate() {
            let tiles = env.pool.as_int(size).filter(|n| n % self.tile(d) == 0).map(|n| n / self.tile(d));
            let Some(tiles) = tiles else {
                let dim = env.tensors[tensor].dims[d].name.clone();
                return Err(not_spread(
                    env,
                    tensor,
                    &format!("its dimension `{dim}` is no multiple of {}", self.tile(d)),
                ));
            };
            count *= tiles;
        }
        Ok(env.pool.int(count))
    }

    /// The first register of the tile in which element `at` lies.
    pub(super) fn first(self, env: &mut Env, sizes: &[ExprId], at: &[ExprId]) -> ExprId {
        let mut sum = env.pool.int(0);
        for (d, (&size, &at)) in sizes.iter().zip(at).enumerate() {
            let tile = env.pool.int(self.tile(d));
            let (tiles, here) = (env.pool.floor_div(size, tile), env.pool.floor_div(at, tile));
            sum = env.pool.mul(sum, tiles);
            sum = env.pool.add(sum, here);
        }
        let each = env.pool.int(self.intrinsic.get().c.registers);
        env.pool.mul(sum, each)
    }

    /// The register, or the lane, of element `at`.
    pub(super) fn holder(self, env: &mut Env, at: &[ExprId], of: Of) -> ExprId {
        let c = self.intrinsic.get().c;
        let (row, column) = (at[self.dims[0]], at[self.dims[1]]);
        let x = places(env, c.row, row, of);
        let y = places(env, c.column, column, of);
        env.pool.add(x, y)
    }

    /// Where a lane's element is in its registers.
    pub(super) fn index(self, env: &mut Env, sizes: &[ExprId], at: &[ExprId]) -> ExprId {
        let (first, register) = (self.first(env, sizes, at), self.holder(env, at, Of::Register));
        env.pool.add(first, register)
    }
}

/// What a coordinate says about the lane or the register.
fn places(env: &mut Env, digits: &[Digit], at: ExprId, of: Of) -> ExprId {
    let mut sum = env.pool.int(0);
    for d in digits.iter().filter(|d| d.of == of) {
        let [divisor, modulus, times] = [d.divisor, d.modulus, d.times].map(|n| env.pool.int(n));
        let digit = env.pool.floor_div(at, times);
        let digit = env.pool.modulo(digit, modulus);
        let part = env.pool.mul(digit, divisor);
        sum = env.pool.add(sum, part);
    }
    sum
}

/// Most iterations that are tried one by one.
const MOST_ITERATIONS: i64 = 1 << 14;

/// Whether two indices are equal in all iterations of loops of constant extent; nothing where they depend on anything
/// else. What a lane map says about lanes and unrolled loops is decided that way.
pub(super) fn equal_everywhere(env: &Env, a: ExprId, b: ExprId, loops: &[(VarId, ExprId)]) -> Option<bool> {
    let mut vars: Vec<VarId> = env.pool.vars_of(a).into_iter().chain(env.pool.vars_of(b)).collect();
    vars.sort_unstable();
    vars.dedup();
    let mut count: i64 = 1;
    let mut sizes = Vec::new();
    for &v in &vars {
        let n = env.pool.as_int(loops.iter().find(|l| l.0 == v)?.1)?;
        sizes.push(n);
        count = count.checked_mul(n).filter(|&c| (1..=MOST_ITERATIONS).contains(&c))?;
    }
    let mut at: FxHashMap<VarId, i64> = FxHashMap::default();
    for n in 0..count {
        let mut left = n;
        for (&v, &size) in vars.iter().zip(&sizes) {
            at.insert(v, left % size);
            left /= size;
        }
        if evaluated(env, a, &at)? != evaluated(env, b, &at)? {
            return Some(false);
        }
    }
    Some(true)
}

/// The value of an index made of variables and numbers.
fn evaluated(env: &Env, e: ExprId, at: &FxHashMap<VarId, i64>) -> Option<i64> {
    let value = |e: ExprId| evaluated(env, e, at);
    match *env.pool.get(e) {
        Expr::Int(n) => Some(n),
        Expr::Var(v) => at.get(&v).copied(),
        Expr::Bin(op, a, b) => {
            let (a, b) = (value(a)?, value(b)?);
            match op {
                BinOp::Add => a.checked_add(b),
                BinOp::Sub => a.checked_sub(b),
                BinOp::Mul => a.checked_mul(b),
                BinOp::FloorDiv if b > 0 => Some(a.div_euclid(b)),
                BinOp::Mod if b > 0 => Some(a.rem_euclid(b)),
                BinOp::Min => Some(a.min(b)),
                BinOp::Max => Some(a.max(b)),
                _ => None,
            }
        }
        _ => None,
    }
}
