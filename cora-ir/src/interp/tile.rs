//! Tiles that several lanes compute together, as the statements that an interpreter runs.
//!
//! ```text
//! tile mma.m16n8k16.f32.bf16 @C[c, 0, 0] = @A[a, ar, ac] * @B[b, br, bc]
//!   =>  for %lane thread.x { for %r in 0..8 { let %i = row  let %p = column  @left[%i * 16 + %p] = f32(@A[a + %i*ar + %p*ac]) } }
//!       for %lane thread.x { .. @right .. }
//!       for %lane thread.x { for %r in 0..4 { let %i = row  let %j = column
//!         @C[instance of %lane, c + %r] += @left[%i * 16] * @right[%j] + @left[%i * 16 + 1] * @right[8 + %j] + .. } }
//! ```
//!
//! Each lane reads the elements that the lane map gives it, so that races and bank conflicts are those of the machine.

use crate::env::{Env, Role, Scope, Tensor, TensorDim};
use crate::ids::{ExprId, TensorId, VarId};
use crate::intrinsic::{Digit, Fragment, Of};
use crate::loops::{Axis, LoopKind};
use crate::storage::{Matrix, Stmt, StorageModule, Tile};
use crate::types::{Combiner, ScalarType};

/// The factors of the tile that is being computed, as they enter the product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factors {
    left: TensorId,
    right: TensorId,
    /// The loop around what a tile that goes on beside its threads does.
    pub beside: VarId,
}

impl Factors {
    /// Room for them, if a warp computes tiles anywhere in the module.
    pub fn new(env: &mut Env, module: &StorageModule) -> Option<Self> {
        let mut found = false;
        module.kernels.iter().flat_map(|k| &k.body).for_each(|s| s.walk(&mut |s| found |= by_several_lanes(s)));
        found.then(|| Self { left: room(env, "left"), right: room(env, "right"), beside: env.new_var("tile") })
    }

    /// The buffers, each of [`Factors::ELEMENTS`] elements.
    pub fn tensors(self) -> [TensorId; 2] {
        [self.left, self.right]
    }

    /// No tile has a larger factor.
    pub const ELEMENTS: i64 = 1 << 12;
}

fn by_several_lanes(s: &Stmt) -> bool {
    matches!(s, Stmt::Tile(_)) && s.lanes().is_some()
}

fn room(env: &mut Env, what: &str) -> TensorId {
    let extent = env.pool.int(Factors::ELEMENTS);
    let name = env.fresh_tensor_name(what);
    env.tensors.push(Tensor {
        name,
        ty: ScalarType::F32,
        tuple: None,
        dims: vec![TensorDim { name: "element".to_owned(), also: None, extent, storage: extent }],
        role: Role::Temp,
        scope: Scope::Global,
        range: None,
        layout: vec![],
    })
}

/// The statements. `base` is the number of the first lane's thread; a lane's registers are `size` elements for each
/// thread before it into the result's buffer, if that is in registers.
pub(crate) fn statements(env: &mut Env, t: &Tile, (base, size): (ExprId, Option<ExprId>), room: Factors) -> Stmt {
    let i = t.intrinsic.get();
    let [_, n, k] = i.tile;
    let body = vec![
        factor(env, t, (&t.a, &i.a), (room.left, k)),
        factor(env, t, (&t.b, &i.b), (room.right, n)),
        by_lanes(env, (i.lanes, &i.c), |env, lane, r, at| {
            let [row, column] = at.map(|v| env.pool.var(v));
            let index = match size {
                Some(size) => {
                    let thread = env.pool.add(base, lane);
                    let own = env.pool.mul(thread, size);
                    let first = env.pool.add(own, t.c.offset);
                    env.pool.add(first, r)
                }
                None => t.c.at(env, row, column),
            };
            let mut sum = None;
            for p in 0..k {
                let p = env.pool.int(p);
                let x = element(env, room.left, row, p, k);
                let y = element(env, room.right, p, column, n);
                let product = env.pool.mul(x, y);
                sum = Some(sum.map_or(product, |s| env.pool.add(s, product)));
            }
            let (old, zero) = (env.load(t.c.tensor, [index]), env.identity(Combiner::Sum, i.c.ty));
            let value = env.pool.add(old, sum.unwrap_or(zero));
            Stmt::Store { tensor: t.c.tensor, index, value, mask: None, rest: vec![] }
        }),
    ];
    let var = if i.beside { room.beside } else { env.new_var("tile") };
    Stmt::For { var, extent: env.pool.int(1), kind: LoopKind::Serial, body }
}

/// Element `row`, `column` of a matrix of so many columns.
fn element(env: &mut Env, of: TensorId, row: ExprId, column: ExprId, columns: i64) -> ExprId {
    let at = place(env, row, column, columns);
    env.load(of, [at])
}

fn place(env: &mut Env, row: ExprId, column: ExprId, columns: i64) -> ExprId {
    let columns = env.pool.int(columns);
    let rows = env.pool.mul(row, columns);
    env.pool.add(rows, column)
}

/// Each lane reads its elements of a factor.
fn factor(env: &mut Env, t: &Tile, (m, f): (&Matrix, &Fragment), (to, columns): (TensorId, i64)) -> Stmt {
    by_lanes(env, (t.intrinsic.get().lanes, f), |env, _, _, at| {
        let [row, column] = at.map(|v| env.pool.var(v));
        let from = m.at_in_blocks(env, f.blocks, row, column);
        let (index, value) = (place(env, row, column, columns), t.read(env, m.tensor, from));
        Stmt::Store { tensor: to, index, value, mask: None, rest: vec![] }
    })
}

/// A statement for each element that each lane holds: of the lane, the register, and the variables of row and column.
fn by_lanes(
    env: &mut Env,
    (lanes, f): (i64, &Fragment),
    body: impl FnOnce(&mut Env, ExprId, ExprId, [VarId; 2]) -> Stmt,
) -> Stmt {
    let [lane, register, row, column] = ["lane", "register", "row", "column"].map(|n| env.new_var(n));
    let (l, r) = (env.pool.var(lane), env.pool.var(register));
    let (i, j) = (digits(env, f.row, l, r), digits(env, f.column, l, r));
    let inner =
        vec![Stmt::Let { var: row, value: i }, Stmt::Let { var: column, value: j }, body(env, l, r, [row, column])];
    let extent = env.pool.int(f.registers);
    let inner = vec![Stmt::For { var: register, extent, kind: LoopKind::Serial, body: inner }];
    Stmt::For { var: lane, extent: env.pool.int(lanes), kind: LoopKind::Bound(Axis::ThreadX), body: inner }
}

/// A coordinate over a lane and a register.
fn digits(env: &mut Env, digits: &[Digit], lane: ExprId, register: ExprId) -> ExprId {
    let mut sum = env.pool.int(0);
    for d in digits {
        let of = if d.of == Of::Lane { lane } else { register };
        let [divisor, modulus, times] = [d.divisor, d.modulus, d.times].map(|n| env.pool.int(n));
        let digit = env.pool.floor_div(of, divisor);
        let digit = env.pool.modulo(digit, modulus);
        let part = env.pool.mul(digit, times);
        sum = env.pool.add(sum, part);
    }
    sum
}
