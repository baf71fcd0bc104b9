//! Reductions over the lanes of a warp.
//!
//! ```text
//! for %k in 0..32 thread.x { S += A[%k] }
//!   =>  @S.lane[0] = 0   for %k thread.x { @S.lane[0] += A[%k] }
//!       shuffle @S.other = @S.lane xor 16   @S.lane[0] += @S.other[0]   .. xor 8, 4, 2, 1 ..
//!       S += @S.lane[0]
//! ```
//!
//! Each lane combines its iterations, in order, into a register of its own. Then in five steps lanes exchange what they
//! have and combine it, so that all lanes hold the same bits: both of a pair combine the same two values, and `+`, `*`,
//! `min` and `max` commute. Lanes without an iteration hold the identity. Where the block has a condition that all lanes
//! share, the last step has it too.

use crate::schedule::bind::warp_reduction;
use crate::schedule::tree::is_reduction_var;
use cora_ir::loops::{Block, BlockRole, For, Stmt as LoopStmt};
use cora_ir::storage::{Kernel, Stmt, WARP};
use cora_ir::{Combiner, Diagnostic, Env, ExprId, Scope, Tensor, TensorDim, TensorId};

/// What the lanes of a loop over `thread.x` have in common.
pub(super) enum Lanes<'a> {
    /// Nothing: they write different elements.
    Apart,
    /// The element that the block combines into.
    Reduced(&'a Block, Combiner),
    /// They combine into an element, and the loop does something else besides: no warp can do that.
    Mixed(TensorId),
}

/// What the lanes of the loop do. `bind` has seen a nest of one block; steps after it may have changed that.
pub(super) fn lanes<'a>(env: &Env, l: &'a For) -> Lanes<'a> {
    if let Some(b) = warp_reduction(env, l)
        && let BlockRole::Update(r) = b.role
        && let Some(c) = r.op()
    {
        return Lanes::Reduced(b, c);
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

/// Registers for a lane's partial result and another lane's.
pub(super) fn registers(env: &mut Env, tensor: TensorId) -> (TensorId, TensorId) {
    let one = env.pool.int(1);
    let (ty, base) = (env.tensors[tensor].ty, env.tensors[tensor].name.clone());
    let mut register = |what: &str| {
        let name = env.fresh_tensor_name(&format!("{base}.{what}"));
        env.tensors.push(Tensor { scope: Scope::Reg, ..Tensor::temp(name, ty, vec![TensorDim::new("one", one)]) })
    };
    (register("lane"), register("other"))
}

/// A lane begins with the identity.
pub(super) fn begin(env: &mut Env, own: TensorId, combiner: Combiner) -> Stmt {
    let ty = env.tensors[own].ty;
    let (index, value) = (env.pool.int(0), env.identity(combiner, ty));
    Stmt::Store { tensor: own, index, value, mask: None, rest: vec![] }
}

fn combine(env: &mut Env, (tensor, at): (TensorId, ExprId), with: TensorId, combiner: Combiner) -> Stmt {
    let zero = env.pool.int(0);
    let (old, new) = (env.load(tensor, [at]), env.load(with, [zero]));
    let value = env.pool.bin(combiner.op(), old, new);
    Stmt::Store { tensor, index: at, value, mask: None, rest: vec![] }
}

/// Every lane gets the combination of all.
pub(super) fn exchange(env: &mut Env, (own, other): (TensorId, TensorId), combiner: Combiner, out: &mut Vec<Stmt>) {
    let zero = env.pool.int(0);
    let mut xor = WARP as u32 / 2;
    while xor > 0 {
        out.push(Stmt::Shuffle { to: other, from: own, xor });
        out.push(combine(env, (own, zero), other, combiner));
        xor /= 2;
    }
}

/// The element takes what the lanes have.
pub(super) fn finish(env: &mut Env, target: (TensorId, ExprId), own: TensorId, combiner: Combiner) -> Stmt {
    combine(env, target, own, combiner)
}
