//! Sequences of a recurrence side by side: what all of them read, as weights, is read once for several.
//!
//! ```text
//! for b { for t in 0..n(b) { S[b, t] = .. } }
//!   =>  for bo { for t in 0..(the least n of the tile) { for bi in 0..4 { S[bo * 4 + bi, t] = .. } }
//!                for bi { for t in (that)..n(bo * 4 + bi) { .. } } }
//! ```
//!
//! Sequences come longest first, so that those of a tile are of about one length. A tile that is not full has no common part.
//! Both parts are stages of their own, `S.main` and `S.tail`, as those of `peel` are; no step does this.

use super::{loop_ref, step};
use crate::schedule::parts::{Part, copy_with, declare};
use crate::schedule::recurrent::{is_free, is_recurrent, positions};
use cora_ir::affine::normalize;
use cora_ir::loops::{Block, BlockRole, For, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::{Remap, StepKind};
use cora_ir::{BinOp, Env, Expr, ExprId, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Sequences of a tile: enough that weights from the L2 cache keep up, and few, since a tile is one worker's.
const SEQUENCES: i64 = 4;

/// Makes tiles of sequences of every recurrence that reads the same for all of them.
pub(super) fn side_by_side(m: &mut LoopModule) {
    for n in 0..m.body.len() {
        super::attempt(m, |m| sequences(m, n));
    }
}

fn loops(m: &LoopModule, n: usize) -> Option<(For, For)> {
    let Stmt::For(b) = &m.body[n] else { return None };
    let [Stmt::For(t)] = b.body.as_slice() else { return None };
    let positions = positions(m, b.stage) == Some(2) && is_free(m, b) && !is_free(m, t);
    let serial = b.kind == LoopKind::Serial && t.kind == LoopKind::Serial;
    (positions && serial).then(|| (b.clone(), t.clone()))
}

fn sequences(m: &mut LoopModule, n: usize) -> Option<()> {
    let (b, t) = loops(m, n)?;
    let nests = t.body.iter().all(|s| matches!(s, Stmt::For(l) if is_recurrent(m, l.stage) && is_alone(s)));
    if !nests
        || !t.body.iter().any(|s| shares(m, s, b.var))
        || m.env.pool.as_int(b.extent).is_some_and(|e| e < SEQUENCES)
    {
        return None;
    }
    if m.env.pool.uses_var(t.extent, b.var) {
        step(m, StepKind::Remap { target: loop_ref(m, &b), policy: Remap::LongestFirst })?;
    }
    let (b, mut t) = loops(m, n)?;
    t.body.iter_mut().for_each(|s| s.blocks_mut(&mut |b| b.value = without_known(&mut m.env, b)));
    m.body.remove(n);
    let stmts: Vec<Stmt> = t.body.to_vec();
    let [main, tail] = ["main", "tail"].map(|name| declare(m, &stmts, name).ok());
    let tiled = tile(m, (&b, &t), &stmts, (&main?, &tail?));
    m.body.insert(n, tiled);
    Some(())
}

/// Whether all blocks of a nest are of its stage.
fn is_alone(s: &Stmt) -> bool {
    let Stmt::For(l) = s else { return false };
    let mut alone = true;
    s.walk(&mut |s| alone &= !matches!(s, Stmt::Block(b) if b.stage != l.stage));
    alone
}

/// Whether terms of a reduction are made of something that is the same for all sequences.
fn shares(m: &LoopModule, s: &Stmt, b: VarId) -> bool {
    let mut shared = false;
    s.walk(&mut |s| {
        let Stmt::Block(block) = s else { return };
        let own: Vec<VarId> = block.iters.iter().filter(|i| m.env.pool.uses_var(i.binding, b)).map(|i| i.var).collect();
        shared |= matches!(block.role, BlockRole::Update(_))
            && m.env.pool.any(block.value, &mut |e| match e {
                Expr::Load { index, .. } => !index.iter().any(|&i| own.iter().any(|&v| m.env.pool.uses_var(i, v))),
                _ => false,
            });
    });
    shared
}

/// The value of a block without conditions that hold by the extents of its iterators: what is before an index is below its
/// extent, too.
fn without_known(env: &mut Env, block: &Block) -> ExprId {
    let iters = &block.iters;
    env.pool.rewrite(block.value, &mut |pool, e| {
        let Expr::Load { tensor, part, index, guard: Some((cond, other)) } = pool.get(e).clone() else { return None };
        let known = |c: ExprId| {
            let Expr::Bin(BinOp::Lt, a, most) = *pool.get(c) else { return false };
            let var = match *pool.get(a) {
                Expr::Var(v) => Some(v),
                Expr::Bin(BinOp::Sub, v, n) if pool.as_int(n).is_some_and(|n| n >= 0) => pool.as_var(v),
                _ => None,
            };
            var.is_some_and(|v| iters.iter().any(|i| i.var == v && i.extent == most))
        };
        let asked = pool.conjuncts(cond);
        let left: Vec<ExprId> = asked.iter().copied().filter(|&c| !known(c)).collect();
        if left.len() == asked.len() {
            return None;
        }
        let ty = pool.ty(e).scalar;
        let guard = (!left.is_empty()).then(|| (pool.all(left), other));
        Some(pool.load_guarded((tensor, part), ty, index.iter().copied(), guard))
    })
}

fn tile(m: &mut LoopModule, (b, t): (&For, &For), stmts: &[Stmt], (main, tail): (&Part, &Part)) -> Stmt {
    for part in [main, tail] {
        for &(of, new) in &part.stages {
            let count = positions(m, of).unwrap_or(0);
            m.env.recurrent.push((new, count));
        }
    }
    let env = &mut m.env;
    let serial = |var: VarId, stage: TensorId, extent: ExprId, body: Vec<Stmt>| {
        let (kind, prefetch) = (LoopKind::Serial, vec![]);
        Stmt::For(For { var, stage, extent, kind, prefetch, init: false, body: body.into() })
    };
    let name = |env: &Env, v: VarId, end: &str| format!("{}{end}", env.vars[v].name);
    let outer = env.new_var(name(env, b.var, "o"));
    let (size, one) = (env.pool.int(SEQUENCES), env.pool.int(1));
    let at = env.pool.var(outer);
    let first = env.pool.mul(at, size);
    let tiles = env.pool.ceil_div(b.extent, SEQUENCES);
    // How long all sequences of a full tile are.
    let last = env.pool.sub(b.extent, one);
    let mut common = None;
    for u in 0..SEQUENCES {
        let u = env.pool.int(u);
        let sequence = env.pool.add(first, u);
        let sequence = env.pool.min(sequence, last);
        let length = env.pool.substitute(t.extent, &FxHashMap::from_iter([(b.var, sequence)]));
        common = Some(common.map_or(length, |c| env.pool.min(c, length)));
    }
    let (common, zero) = (common.unwrap_or(last), env.pool.int(0));
    let end = env.pool.add(first, size);
    let full = env.pool.le(end, b.extent);
    let common = env.pool.select(full, common, zero);
    // Position by position, all sequences of the tile.
    let position = env.copy_var(t.var);
    let here = env.pool.var(position);
    let mut together = Vec::new();
    for s in stmts {
        let Stmt::For(l) = s else { continue };
        let inner = env.new_var(name(env, b.var, "i"));
        let i = env.pool.var(inner);
        let sequence = env.pool.add(first, i);
        let map = FxHashMap::from_iter([(b.var, sequence), (t.var, here)]);
        let body = copy_with(env, std::slice::from_ref(s), main, map);
        together.push(serial(inner, main.stage(l.stage), size, body));
    }
    let together = serial(position, main.stage(t.stage), common, together);
    // What is left of each.
    let inner = env.new_var(name(env, b.var, "i"));
    let i = env.pool.var(inner);
    let sequence = env.pool.add(first, i);
    let length = env.pool.substitute(t.extent, &FxHashMap::from_iter([(b.var, sequence)]));
    let left = env.pool.sub(length, common);
    let position = env.copy_var(t.var);
    let here = env.pool.var(position);
    let here = env.pool.add(common, here);
    let map = FxHashMap::from_iter([(b.var, sequence), (t.var, here)]);
    let body = copy_with(env, stmts, tail, map);
    let rest = serial(position, tail.stage(t.stage), left, body);
    let sequences = env.pool.sub(b.extent, first);
    let sequences = normalize(&mut env.pool, sequences);
    let sequences = env.pool.min(size, sequences);
    let rest = serial(inner, tail.stage(b.stage), sequences, vec![rest]);
    serial(outer, b.stage, tiles, vec![together, rest])
}
