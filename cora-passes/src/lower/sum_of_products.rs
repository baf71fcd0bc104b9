//! Loop nests around one sum of products, which become an instruction or a call.

use cora_ir::loops::{Block, BlockRole, For, LoopKind, Stmt};
use cora_ir::{BinOp, Combiner, Env, Expr, ExprId, Reduction, TensorId};

/// A loop nest around one update.
pub(super) struct Nest<'a> {
    pub loops: Vec<&'a For>,
    pub block: &'a Block,
    /// Whether the result begins at 0 inside the nest.
    pub init: bool,
}

pub(super) fn name(env: &Env, l: &For) -> String {
    format!("{}.{}", env.tensors[l.stage].name, env.vars[l.var].name)
}

/// The single update inside `l` and the loops around it, those inside of one kind; else the fact that keeps it from being
/// one.
pub(super) fn nest<'a>(env: &Env, l: &'a For, inner: &LoopKind) -> Result<Nest<'a>, String> {
    let (mut loops, mut init) = (vec![l], None);
    loop {
        let here: &'a For = loops[loops.len() - 1];
        let mut main = None;
        for s in &here.body {
            match init_stage(s) {
                Some(stage) => init = Some(stage),
                None if main.is_none() => main = Some(s),
                None => return Err(format!("several statements stand in loop `{}`", name(env, here))),
            }
        }
        match main {
            None => return Err("it combines nothing".to_owned()),
            Some(Stmt::For(x)) if x.kind == *inner => loops.push(x),
            Some(Stmt::For(x)) => return Err(format!("loop `{}` inside is {}", name(env, x), x.kind.described())),
            Some(Stmt::Block(block)) => {
                if init.is_some_and(|s| s != block.stage) {
                    return Err("another stage is set up inside".to_owned());
                }
                return Ok(Nest { loops, block, init: init.is_some() });
            }
        }
    }
}

/// The stage, if all blocks below set up its reduction.
pub(super) fn init_stage(s: &Stmt) -> Option<TensorId> {
    let (mut stage, mut all) = (None, true);
    s.walk(&mut |s| {
        if let Stmt::Block(b) = s {
            all &= b.role == BlockRole::Init && stage.is_none_or(|t| t == b.stage);
            stage = Some(b.stage);
        }
    });
    stage.filter(|_| all)
}

/// The two values whose product the block adds.
pub(super) fn product(env: &Env, b: &Block) -> Result<[ExprId; 2], String> {
    let of = &env.tensors[b.tensor].name;
    if b.role != BlockRole::Update(Reduction::Op(Combiner::Sum)) {
        return Err(format!("`{of}` is not a sum there"));
    }
    match *env.pool.get(b.value) {
        Expr::Bin(BinOp::Mul, x, y) => Ok([x, y]),
        _ => Err(format!("what is added to `{of}` is no product")),
    }
}
