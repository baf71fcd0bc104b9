//! `bind S.k block.y atomic`: iterations that are reduced over combine into one element as they come.
//!
//! ```text
//! for b { S[b] = 0;  for k { S[b] += A[b, k] } }
//!   =>  for b { S[b] = 0 }                                 stage S.init, a nest of its own
//!       for b block.x { for k block.y { S[b] += A[b, k] atomic } }
//! ```
//!
//! Nothing orders blocks, and only barriers order threads: so what each adds must be one indivisible operation on memory,
//! the elements must hold the identity before the kernel begins, and nothing else in the kernel may look at them. The sum
//! of floating-point numbers then depends on the order in which they come, which is another one in each run: that is why
//! nothing but this flag makes it so.
//!
//! Requires: what `bind` requires, but that iterations are independent. Ensures: the stage's updates are atomic and go on
//! from stage `S.init`, whose loops are the stage's spatial dimensions. Every later step is held to the same.

use super::inits::remove_init;
use super::slots::wrap;
use super::tree::{find_loop, is_reduction_var, loop_at, own_iters, writes_below};
use cora_ir::loops::{Block, BlockRole, IterKind, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::storage::is_atomic;
use cora_ir::{Diagnostic, Reduction, Scope, Tensor, TensorDim, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Makes the updates over the loop at `path` atomic. Nests may be added before its own.
///
/// # Errors
/// `E0416` nothing is reduced over the loop; `E0417` memory cannot combine the elements; `E0418` the kernel uses them otherwise.
pub(super) fn make_atomic(m: &mut LoopModule, path: &[usize], target: &LoopRef) -> Result<(), Diagnostic> {
    let var = loop_at(&m.body, path).var;
    let mut stages: Vec<TensorId> = Vec::new();
    m.body[path[0]].walk(&mut |s| {
        if let Stmt::Block(b) = s
            && is_reduction_var(&m.env.pool, b, var)
            && !stages.contains(&b.stage)
        {
            stages.push(b.stage);
        }
    });
    if stages.is_empty() {
        let what = format!("no stage is reduced over loop `{}.{}`", target.stage, target.name);
        return Err(Diagnostic::new("E0416", what)
            .hint("without `atomic` its iterations are bound as they are; `atomic` is for a loop of partial results"));
    }
    for stage in stages {
        let mut first = None;
        let nest = find_loop(m, target)?[0];
        m.body[nest].blocks_mut(&mut |b| {
            if b.stage == stage && matches!(b.role, BlockRole::Update(_)) {
                first = first.take().or_else(|| Some(b.clone()));
                (b.atomic, b.continues) = (true, true);
            }
        });
        let Some(update) = first else { continue };
        combines(m, &update)?;
        if !update.continues {
            remove_init(&mut m.body, stage);
            let first = identity_nest(m, &update);
            // Other parts of the stage write elements of their own, which they have after this.
            let writes = |s: &Stmt| writes_below(std::slice::from_ref(s)).contains(&update.tensor);
            let nest = m.body.iter().position(writes).unwrap_or(0);
            m.body.insert(nest, first);
        }
    }
    check(m, &m.body.iter().collect::<Vec<_>>())
}

/// Memory can combine what the block updates.
fn combines(m: &LoopModule, b: &Block) -> Result<(), Diagnostic> {
    let t = &m.env.tensors[b.tensor];
    let no = |what: String, hint: &str| Err(Diagnostic::new("E0417", what).hint(hint.to_owned()));
    let BlockRole::Update(Reduction::Op(combiner)) = b.role else {
        let what = format!("`{}` is of tuples, which memory cannot combine", t.name);
        return no(what, "give the partial results a stage of their own by `rfactor`");
    };
    if t.scope != Scope::Global {
        let what = format!("`{}` is {}, and blocks share global tensors alone", t.name, t.scope.name());
        return no(what, "bind a loop that its reader is reduced over");
    }
    if !is_atomic(combiner, t.ty) {
        let what =
            format!("memory cannot combine by `{}` elements of type {}, as `{}` has", combiner.name(), t.ty, t.name);
        let hint = "atomic are sums of f32, f64, i32 and i64, and min and max of i32 and i64; give the partial results a \
                    stage of their own by `rfactor`";
        return no(what, hint);
    }
    Ok(())
}

/// A nest over the elements of an update's tensor that gives them the identity.
fn identity_nest(m: &mut LoopModule, update: &Block) -> Stmt {
    let env = &mut m.env;
    let BlockRole::Update(reduction) = update.role else { return Stmt::Block(update.clone()) };
    let base = format!("{}.init", env.tensors[update.stage].name);
    let (name, ty) = (env.fresh_tensor_name(&base), env.tensors[update.tensor].ty);
    let stage = env.tensors.push(Tensor::temp(name, ty, Vec::<TensorDim>::new()));
    let mut block = Block { stage, role: BlockRole::Compute, continues: false, atomic: false, ..update.clone() };
    block.iters.retain(|i| i.kind == IterKind::Spatial);
    block.predicate.clear();
    block.value = env.reduction_identity(reduction, update.tensor);
    own_iters(env, &mut block);
    let mut outer: FxHashMap<VarId, cora_ir::ExprId> = FxHashMap::default();
    let mut loops = Vec::new();
    for i in &mut block.iters {
        let d = block.index.iter().position(|&x| env.pool.as_var(x) == Some(i.var));
        let name = d.map_or_else(|| env.vars[i.var].name.clone(), |d| env.tensors[block.tensor].dims[d].name.clone());
        let var = env.new_var(name);
        let extent = env.pool.substitute(i.extent, &outer);
        i.binding = env.pool.var(var);
        outer.insert(i.var, i.binding);
        loops.push((var, extent));
    }
    wrap(env, stage, block, &loops)
}

/// Every atomic update of these nests is one that memory can do, in a nest that has no other business with its tensor.
///
/// # Errors
/// `E0417` and `E0418`, as [`make_atomic`].
pub(super) fn check(m: &LoopModule, nests: &[&Stmt]) -> Result<(), Diagnostic> {
    for nest in nests {
        let mut atomic: Vec<&Block> = Vec::new();
        nest.walk(&mut |s| {
            if let Stmt::Block(b) = s
                && b.atomic
            {
                atomic.push(b);
            }
        });
        for b in atomic {
            combines(m, b)?;
            if let Some(stage) = other_use(m, nest, b.tensor) {
                let (t, s) = (&m.env.tensors[b.tensor].name, &m.env.tensors[stage].name);
                return Err(Diagnostic::new(
                    "E0418",
                    format!("`{t}` is combined in no order, and stage `{s}` uses it in the same kernel"),
                )
                .hint("its elements are complete when the kernel ends: leave other stages in kernels of their own"));
            }
        }
    }
    Ok(())
}

/// A stage of the nest that reads `tensor`, or writes it by itself.
fn other_use(m: &LoopModule, nest: &Stmt, tensor: TensorId) -> Option<TensorId> {
    let reads = |e| m.env.pool.reads(e, tensor);
    let mut found = None;
    nest.walk(&mut |s| {
        let (stage, uses) = match s {
            Stmt::For(l) => (l.stage, reads(l.extent)),
            Stmt::Block(b) => {
                let iters = b.iters.iter().flat_map(|i| [i.extent, i.binding]);
                let mut all = iters.chain(b.predicate.iter().chain(&b.index).chain([&b.value]).copied());
                (b.stage, (b.tensor == tensor && !b.atomic) || all.any(reads))
            }
        };
        if uses {
            found = found.or(Some(stage));
        }
    });
    found
}
