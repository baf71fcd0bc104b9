//! Blocks that write and read a buffer by indices that were made anew, within loops over it.

use super::readers::{Access, Reader};
use super::tree::is_reduction_var;
use cora_ir::loops::{Block, For, Iter, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::{Env, Expr, ExprId, TensorId, VarId};

/// `block` within `loops`, outermost first; within a loop of one iteration where there are none.
pub(super) fn wrap(env: &mut Env, stage: TensorId, block: Block, loops: &[(VarId, ExprId)]) -> Stmt {
    let once;
    let loops = if loops.is_empty() {
        once = [(env.new_var("once"), env.pool.int(1))];
        &once
    } else {
        loops
    };
    loops.iter().rev().fold(Stmt::Block(block), |body, &(var, extent)| {
        let (kind, prefetch) = (LoopKind::Serial, vec![]);
        Stmt::For(For { var, stage, extent, kind, prefetch, init: false, body: vec![body].into() })
    })
}

/// Has a block write its buffer by these indices: name and extent of each dimension, and the index over the loops.
pub(super) fn write_slots(env: &mut Env, block: &mut Block, slots: &[(String, ExprId, ExprId)]) {
    let at = block.iters.iter().position(|i| i.kind == IterKind::Reduce).unwrap_or(block.iters.len());
    block.index.clear();
    let mut new = Vec::new();
    for (name, extent, binding) in slots {
        // A loop's own iterator says the same: what moves with it moves with the buffer's position, too.
        let own = |i: &&Iter| i.binding == *binding && i.extent == *extent && i.kind == IterKind::Spatial;
        let var = match block.iters.iter().find(own).filter(|i| !block.index.contains(&env.pool.var(i.var))) {
            Some(i) => i.var,
            None => {
                let var = env.new_var(name.clone());
                new.push(Iter { var, kind: IterKind::Spatial, extent: *extent, binding: *binding });
                var
            }
        };
        block.index.push(env.pool.var(var));
    }
    block.iters.splice(at..at, new);
}

/// Has a reader's access read the stage's buffer by these indices over its loops, each with the name of its dimension.
pub(super) fn read_slots(m: &mut LoopModule, stage: TensorId, (r, a): (&Reader, &Access), by: &[(String, ExprId)]) {
    let env = &mut m.env;
    let reader = block_at_mut(&mut m.body, &r.block);
    let mut index = Vec::new();
    for (n, (name, binding)) in by.iter().enumerate() {
        let extent = env.tensors[stage].dims[n].extent;
        if let Some(own) = reader.iters.iter().find(|i| i.binding == *binding && i.extent == extent) {
            index.push(env.pool.var(own.var));
            continue;
        }
        let var = env.new_var(name.clone());
        let reduced = env.pool.vars_of(*binding).iter().any(|&v| is_reduction_var(&env.pool, reader, v));
        let (kind, at) = match reader.iters.iter().position(|i| i.kind == IterKind::Reduce) {
            Some(first) if !reduced => (IterKind::Spatial, first),
            _ => (if reduced { IterKind::Reduce } else { IterKind::Spatial }, reader.iters.len()),
        };
        reader.iters.insert(at, Iter { var, kind, extent, binding: *binding });
        index.push(env.pool.var(var));
    }
    reader.value = env.pool.rewrite(reader.value, &mut |p, e| match p.get(e).clone() {
        Expr::Load { tensor, part, index: old, guard } if tensor == stage && *old == *a.raw => {
            let ty = p.ty(e).scalar;
            Some(p.load_guarded((tensor, part), ty, index.iter().copied(), guard))
        }
        _ => None,
    });
}

fn block_at_mut<'a>(body: &'a mut [Stmt], path: &[usize]) -> &'a mut Block {
    let (&first, rest) = path.split_first().expect("a block's path is not empty");
    match &mut body[first] {
        Stmt::Block(b) => b,
        Stmt::For(l) => block_at_mut(&mut l.body, rest),
    }
}
