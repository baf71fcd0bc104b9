//! Reductions over the lanes of a warp.
//!
//! ```text
//! for %k in 0..32 thread.x { S += A[%k] }
//!   =>  @S.lane[0] = 0   for %k thread.x { @S.lane[0] += A[%k] }
//!       shuffle @S.other = @S.lane xor 16   @S.lane[0] += @S.other[0]   .. xor 8, 4, 2, 1 ..
//!       S += @S.lane[0]
//! ```
//!
//! Each lane combines its iterations, in order, into a register of its own, one for each component of a tuple. Then in five
//! steps lanes exchange what they have and combine it, so that all lanes hold the same bits: both of a pair combine the
//! same two values, and `+`, `*`, `min` and `max` commute. Tuples stay in order: neighbours are combined first (`xor 1, 2,
//! 4, 8, 16`), with that of the lower lane on the left in both lanes. Lanes without an iteration hold the identity. Where
//! the block has a condition that all lanes share, the last step has it too.

use crate::schedule::bind::warp_reduction;
use crate::schedule::tree::is_reduction_var;
use cora_ir::loops::{Axis, Block, BlockRole, For, LoopKind, Stmt as LoopStmt};
use cora_ir::storage::{Kernel, Stmt, WARP};
use cora_ir::{BinOp, Diagnostic, Env, ExprId, Reduction, Scope, Tensor, TensorDim, TensorId};

/// What the lanes of a loop over `thread.x` have in common.
pub(super) enum Lanes<'a> {
    /// Nothing: they write different elements.
    Apart,
    /// The element that the block combines into.
    Reduced(&'a Block, Reduction),
    /// They combine into an element, and the loop does something else besides: no warp can do that.
    Mixed(TensorId),
}

/// What the lanes of the loop do. `bind` has seen a nest of one block; steps after it may have changed that.
pub(super) fn lanes<'a>(env: &Env, l: &'a For) -> Lanes<'a> {
    if let Some(b) = warp_reduction(env, l)
        && let BlockRole::Update(r) = b.role
    {
        return Lanes::Reduced(b, r);
    }
    let mut mixed = None;
    for s in &l.body {
        s.walk(&mut |s| {
            if let LoopStmt::Block(b) = s
                && !b.atomic
                && is_reduction_var(&env.pool, b, l.var)
            {
                mixed.get_or_insert(b.tensor);
            }
        });
    }
    mixed.map_or(Lanes::Apart, Lanes::Mixed)
}

/// The refusal of [`Lanes::Mixed`].
pub(super) fn not_alone(env: &Env, l: &For, tensor: TensorId) -> Diagnostic {
    let (stage, name) = (&env.tensors[l.stage].name, &env.vars[l.var].name);
    let what = format!("the lanes of loop `{stage}.{name}` combine into `{}`", env.tensors[tensor].name);
    Diagnostic::new("E0448", format!("{what}, and there is more in the loop than one element's terms"))
        .hint("bind it after the steps that move loops or stages into it, or move these outside")
}

/// Lanes that exchange registers must be all threads along x.
pub(super) fn check_rows(env: &Env, k: &Kernel) -> Result<(), Diagnostic> {
    let x = k.threads(env).map(|t| t[0]);
    let lanes = k.lanes();
    let [wanted] = lanes[..] else {
        if lanes.is_empty() {
            return Ok(());
        }
        let all: Vec<String> = lanes.iter().map(i64::to_string).collect();
        let what = format!("in kernel `{}` different numbers of lanes work together: {}", k.name, all.join(" and "));
        return Err(Diagnostic::new("E0448", what).hint(
            "use instructions of one number of lanes in a kernel, and those of 32 beside reductions over thread.x",
        ));
    };
    if x == Some(wanted) {
        return Ok(());
    }
    let x = x.map_or("no constant number of".to_owned(), |n| n.to_string());
    let of = if wanted == WARP { "the lanes of a warp".to_owned() } else { format!("{wanted} lanes") };
    let what = format!("in kernel `{}` {of} work together, and its blocks have {x} threads along x", k.name);
    Err(Diagnostic::new("E0448", what)
        .hint(format!("bind loops of {wanted} iterations to thread.x, everywhere in the kernel")))
}

/// The conditions of a block that are the same for all that is inside loop `l`.
pub(super) fn conditions(env: &Env, l: &For, b: &Block) -> Vec<ExprId> {
    let mut vars = vec![l.var];
    l.body.iter().for_each(|s| {
        s.walk(&mut |s| {
            if let LoopStmt::For(l) = s {
                vars.push(l.var);
            }
        });
    });
    b.predicate.iter().copied().filter(|&p| !vars.iter().any(|&v| env.pool.uses_var(p, v))).collect()
}

/// Registers of the lanes: one for each component of what they combine.
pub(super) struct Registers {
    /// A lane's partial result.
    pub(super) own: Vec<TensorId>,
    /// Another lane's.
    pub(super) other: Vec<TensorId>,
}

/// The registers of lanes that combine into these tensors.
pub(super) fn registers(env: &mut Env, components: &[TensorId]) -> Registers {
    let one = env.pool.int(1);
    let mut register = |t: TensorId, what: &str| {
        let (ty, base) = (env.tensors[t].ty, env.tensors[t].name.clone());
        let name = env.fresh_tensor_name(&format!("{base}.{what}"));
        env.tensors.push(Tensor { scope: Scope::Reg, ..Tensor::temp(name, ty, vec![TensorDim::new("one", one)]) })
    };
    let own = components.iter().map(|&t| register(t, "lane")).collect();
    Registers { own, other: components.iter().map(|&t| register(t, "other")).collect() }
}

/// The only element of registers, a tuple of several.
pub(super) fn element(env: &mut Env, r: Reduction, registers: &[TensorId]) -> ExprId {
    let zero = env.pool.int(0);
    at(env, r, registers, zero)
}

fn at(env: &mut Env, r: Reduction, tensors: &[TensorId], index: ExprId) -> ExprId {
    let loads: Vec<ExprId> = tensors.iter().map(|&t| env.load(t, [index])).collect();
    if r.op().is_some() { loads[0] } else { env.pool.make_tuple(&loads) }
}

fn store(env: &Env, tensors: &[TensorId], index: ExprId, value: ExprId) -> Stmt {
    let values = env.pool.components(value);
    let rest = tensors.iter().copied().zip(values.iter().copied()).skip(1).collect();
    Stmt::Store { tensor: tensors[0], index, value: values[0], mask: None, rest }
}

/// A loop over fewer than all lanes as one over all, of which the others do nothing.
pub(super) fn all_lanes(env: &mut Env, s: &mut Stmt) {
    let Stmt::For { var, extent, body, .. } = s else { return };
    if env.pool.constant_bound(*extent).is_none_or(|n| n >= WARP) {
        return;
    }
    let lane = env.pool.var(*var);
    let cond = env.pool.lt(lane, *extent);
    *extent = env.pool.int(WARP);
    *body = vec![Stmt::If { cond, then: std::mem::take(body), other: Vec::new() }];
}

/// A lane begins with the identity.
pub(super) fn begin(env: &mut Env, own: &[TensorId], r: Reduction) -> Stmt {
    let (index, value) = (env.pool.int(0), env.reduction_identity(r, own[0]));
    store(env, own, index, value)
}

/// Every lane gets the combination of all.
pub(super) fn exchange(env: &mut Env, Registers { own, other }: &Registers, r: Reduction, out: &mut Vec<Stmt>) {
    let zero = env.pool.int(0);
    let bits = WARP.ilog2();
    for n in 0..bits {
        // Tuples of neighbours first: what two lanes have is in order, one after the other.
        let xor = match r {
            Reduction::Op(_) => 1 << (bits - 1 - n),
            Reduction::Tuple(_) => 1 << n,
        };
        out.extend(own.iter().zip(other).map(|(&from, &to)| Stmt::Shuffle { to, from, xor }));
        let (mine, theirs) = (element(env, r, own), element(env, r, other));
        out.push(match r {
            Reduction::Op(_) => {
                let value = env.combined(r, mine, theirs);
                store(env, own, zero, value)
            }
            Reduction::Tuple(_) => in_order(env, (own, r), (mine, theirs), xor),
        });
    }
}

/// Each lane's tuple combined with that of the lane that differs in bit `xor`.
fn in_order(env: &mut Env, (own, r): (&[TensorId], Reduction), (mine, theirs): (ExprId, ExprId), xor: u32) -> Stmt {
    let var = env.new_var("lane");
    let (lane, bit) = (env.pool.var(var), env.pool.int(i64::from(xor)));
    let (two, zero, extent) = (env.pool.int(2), env.pool.int(0), env.pool.int(WARP));
    let quotient = env.pool.floor_div(lane, bit);
    let set = env.pool.bin(BinOp::Mod, quotient, two);
    let lower = env.pool.bin(BinOp::Eq, set, zero);
    let (mine, theirs) = (env.pool.components(mine), env.pool.components(theirs));
    let pick = |env: &mut Env, a: &[ExprId], b: &[ExprId]| {
        let parts: Vec<ExprId> = a.iter().zip(b).map(|(&a, &b)| env.pool.select(lower, a, b)).collect();
        env.pool.make_tuple(&parts)
    };
    let (left, right) = (pick(env, &mine, &theirs), pick(env, &theirs, &mine));
    let value = env.combined(r, left, right);
    Stmt::For { var, extent, kind: LoopKind::Bound(Axis::ThreadX), body: vec![store(env, own, zero, value)] }
}

/// The element at `index` takes what the lanes have.
pub(super) fn finish(env: &mut Env, (tensors, index): (&[TensorId], ExprId), own: &[TensorId], r: Reduction) -> Stmt {
    let (old, new) = (at(env, r, tensors, index), element(env, r, own));
    let value = env.combined(r, old, new);
    store(env, tensors, index, value)
}
