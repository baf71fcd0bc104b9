//! Where the `init` block of a reduction stands.

use super::conditions::is_condition;
use super::tree::{Path, body_at_mut, enclosing, in_own_loops, is_reduction_var, own_iters, stmt_at};
use cora_ir::expr::ExprPool;
use cora_ir::loops::{Block, BlockRole, Body, For, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::{Env, Reduction, TensorId, VarId};

/// Removes the `init` block of `stage` and its loops, wherever they are.
pub fn remove_init(body: &mut Vec<Stmt>, stage: TensorId) {
    body.retain_mut(|s| match s {
        s if !s.concerned().may_have(stage) => true,
        Stmt::For(l) => {
            let had = !l.body.is_empty();
            remove_init(&mut l.body, stage);
            !(had && l.body.is_empty())
        }
        Stmt::Block(b) => !(b.stage == stage && b.role == BlockRole::Init),
    });
}

/// Places the `init` block of a reduction anew: just before the outermost loop that it reduces
/// over, inside copies of the spatial loops that are within that loop.
///
/// The nest of `init` is a function of the nest of `update`; every primitive that changes a stage's
/// loops calls this at its end, so the module stays executable after each step. The loops of a stage
/// may be around parts of it; theirs are placed too.
pub fn place_init(m: &mut LoopModule, stage: TensorId) {
    for s in reduced_in(m, stage) {
        place_one(m, s);
    }
}

/// Removes the `init` blocks that [`place_init`] places.
pub fn remove_inits(m: &mut LoopModule, stage: TensorId) {
    for s in reduced_in(m, stage) {
        remove_init(&mut m.body, s);
    }
}

/// `stage`, and the stages that are reduced over a loop of it.
fn reduced_in(m: &LoopModule, stage: TensorId) -> Vec<TensorId> {
    fn go(pool: &ExprPool, body: &[Stmt], stage: TensorId, around: &mut Vec<VarId>, out: &mut Vec<TensorId>) {
        for s in body {
            match s {
                Stmt::For(l) => {
                    let own = l.stage == stage;
                    if around.is_empty() && !s.concerned().may_have(stage) {
                        continue;
                    }
                    around.extend(own.then_some(l.var));
                    go(pool, &l.body, stage, around, out);
                    around.truncate(around.len() - usize::from(own));
                }
                Stmt::Block(b) => {
                    if around.iter().any(|&v| is_reduction_var(pool, b, v)) && !out.contains(&b.stage) {
                        out.push(b.stage);
                    }
                }
            }
        }
    }
    let mut out = vec![stage];
    go(&m.env.pool, &m.body, stage, &mut Vec::new(), &mut out);
    out
}

fn place_one(m: &mut LoopModule, stage: TensorId) {
    let Some(path) = find_update(&m.body, stage, &mut Vec::new()) else { return };
    remove_init(&mut m.body, stage);
    let Some(path) = find_update(&m.body, stage, &mut Vec::new()).or(Some(path)) else { return };
    let Some(Stmt::Block(update)) = stmt_at(&m.body, &path) else { return };
    let update = update.clone();
    let BlockRole::Update(combiner) = update.role else { return };
    if update.continues {
        return;
    }
    let loops: Vec<For> =
        enclosing(&m.body, &path).into_iter().map(|l| For { body: Body::default(), ..l.clone() }).collect();
    let first = loops.iter().position(|l| is_reduction_var(&m.env.pool, &update, l.var)).unwrap_or(loops.len());
    let init = build_init(&mut m.env, &update, combiner, &loops[first..]);
    let at = path[first];
    body_at_mut(&mut m.body, &path[..first]).insert(at, init);
}

fn find_update(body: &[Stmt], stage: TensorId, at: &mut Path) -> Option<Path> {
    for (i, s) in body.iter().enumerate() {
        at.push(i);
        match s {
            Stmt::Block(b) if b.stage == stage && matches!(b.role, BlockRole::Update(_)) => return Some(at.clone()),
            Stmt::For(l) if s.concerned().may_have(stage) => {
                if let Some(p) = find_update(&l.body, stage, at) {
                    return Some(p);
                }
            }
            _ => {}
        }
        at.pop();
    }
    None
}

fn build_init(env: &mut Env, update: &Block, combiner: Reduction, inner: &[For]) -> Stmt {
    let mut block = update.clone();
    block.role = BlockRole::Init;
    block.continues = false;
    block.atomic = false;
    block.iters.retain(|i| i.kind == IterKind::Spatial);
    block.value = env.reduction_identity(combiner, update.tensor);
    let reduced: Vec<VarId> =
        inner.iter().filter(|l| is_reduction_var(&env.pool, update, l.var)).map(|l| l.var).collect();
    block.predicate.retain(|&p| !reduced.iter().any(|&v| env.pool.uses_var(p, v)));
    own_iters(env, &mut block);
    // A condition on what is reduced over, which holds for some of the updates, does not matter.
    let varies =
        |l: &&For| is_condition(&env.pool, l.extent) && reduced.iter().any(|&v| env.pool.uses_var(l.extent, v));
    let spatial = inner.iter().filter(|l| !reduced.contains(&l.var) && !varies(l)).map(|l| For {
        stage: update.stage,
        kind: if matches!(l.kind, LoopKind::Parallel | LoopKind::Offload) { LoopKind::Serial } else { l.kind },
        init: true,
        prefetch: vec![],
        ..l.clone()
    });
    let spatial: Vec<For> = spatial.collect();
    in_own_loops(env, block, &spatial)
}
