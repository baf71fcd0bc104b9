//! Sums that are added up, in one tile.
//!
//! ```text
//! for tile { acc = sum(k) ..;  T[i, j] = acc };  for tile { acc' = sum(l) ..;  Y[i, j] = f(T[i, j] + acc') }
//!   =>  for tile { acc' = sum(k) .. + sum(l) ..;  Y[i, j] = f(acc') }
//! ```
//!
//! The first sums are not stored, and no registers but those of the second ones hold them.

use super::epilogues::{blocks, is_read_alone};
use crate::schedule::relax::relax_tails_of;
use crate::schedule::tree::{body_at_mut, substitute};
use cora_ir::affine::normalize;
use cora_ir::loops::{Block, BlockRole, For, LoopModule, Stmt};
use cora_ir::{BinOp, Combiner, Expr, ExprId, ExprPool, Reduction, Scope, TensorId, VarId};
use rustc_hash::FxHashMap;

/// A nest in which one statement takes results out of the registers, beside those that sum them.
struct Tiled {
    /// Where the nest stands.
    at: usize,
    /// Around that statement, outermost first.
    loops: Vec<For>,
    block: Block,
    /// Where each of the loops, and the block, stands in what is around it.
    path: Vec<usize>,
}

impl Tiled {
    fn of(m: &LoopModule, stage: TensorId) -> Option<Self> {
        let at = m.body.iter().position(|s| matches!(s, Stmt::For(l) if l.stage == stage))?;
        let (mut loops, mut path, mut last) = (Vec::new(), vec![at], &m.body[at]);
        while let Stmt::For(l) = last {
            loops.push(l.clone());
            let leaves = |s: &Stmt| blocks(s).iter().any(|b| b.tensor == stage);
            let n = l.body.iter().position(leaves)?;
            if l.body[n + 1..].iter().any(leaves) {
                return None;
            }
            path.push(n);
            last = &l.body[n];
        }
        let Stmt::Block(block) = last else { return None };
        let plain = block.role == BlockRole::Compute && !block.continues && block.predicate.is_empty();
        plain.then(|| Self { at, loops, block: block.clone(), path })
    }
}

/// Sums an intermediate on in the registers of the stage that alone reads it, where its own tiles are the same.
pub(super) fn join(m: &mut LoopModule, stage: TensorId, results: TensorId) -> Option<()> {
    let (theirs, ours) = (Tiled::of(m, results)?, Tiled::of(m, stage)?);
    if theirs.at > ours.at || !is_read_alone(m, results, &ours.block) {
        return None;
    }
    let pool = &mut m.env.pool;
    let vars = same_loops(pool, &theirs.loops, &ours.loops)?;
    let to: FxHashMap<VarId, ExprId> = vars.iter().map(|(&v, &w)| (v, pool.var(w))).collect();
    // Iterators that say the same.
    let mut iters = FxHashMap::default();
    for i in &theirs.block.iters {
        let binding = pool.substitute(i.binding, &to);
        let same = ours.block.iters.iter().find(|o| same(pool, o.binding, binding))?;
        iters.insert(i.var, pool.var(same.var));
    }
    let index: Vec<ExprId> = theirs.block.index.iter().map(|&e| pool.substitute(e, &iters)).collect();
    let sums = pool.substitute(theirs.block.value, &iters);
    let Expr::Load { tensor: from, index: at, .. } = pool.get(sums).clone() else { return None };
    let into = |n: &Expr| match n {
        Expr::Load { tensor, index, .. } if m.env.tensors[*tensor].scope == Scope::Reg && *index == at => Some(*tensor),
        _ => None,
    };
    let mut own = None;
    m.env.pool.walk(ours.block.value, &mut |_, n| own = own.or(into(n)));
    let acc = own?;
    let [a, b] = [from, acc].map(|t| &m.env.tensors[t]);
    let alike = a.ty == b.ty && a.ty == m.env.tensors[results].ty && a.scope == b.scope && a.dims.len() == b.dims.len();
    let sizes = a.dims.iter().zip(&b.dims).all(|(a, b)| a.storage == b.storage);
    let added_up = m
        .blocks()
        .into_iter()
        .filter(|b| [from, acc].contains(&b.tensor))
        .all(|b| matches!(b.role, BlockRole::Init | BlockRole::Update(Reduction::Op(Combiner::Sum))));
    if index != ours.block.index || !alike || !sizes || !added_up {
        return None;
    }
    let value = added(&mut m.env.pool, ours.block.value, results, acc)?;
    let block = Block { value, ..ours.block.clone() };
    // Of registers that two stages write a relaxed loop could not be told from a longer one.
    relax_tails_of(m, |t| [from, acc].contains(&t));
    go_on(&mut m.body, acc);
    let ours = Tiled::of(m, stage)?;
    for n in (1..ours.path.len()).rev() {
        // What they compute there, before what is computed here.
        let mut beside = body_at_mut(&mut m.body, &theirs.path[..n]).clone();
        beside.remove(theirs.path[n]);
        substitute(&mut m.env.pool, &mut beside, &to);
        ask_of(&mut beside, &vars);
        beside.iter_mut().for_each(|s| s.blocks_mut(&mut |b| b.tensor = if b.tensor == from { acc } else { b.tensor }));
        let here = body_at_mut(&mut m.body, &ours.path[..n]);
        if n + 1 == ours.path.len() {
            here[ours.path[n]] = Stmt::Block(block.clone());
        }
        here.splice(0..0, beside);
    }
    m.body.remove(theirs.at);
    Some(())
}

/// A value in which elements of `results` and of `acc` are read only to be added to each other, as if `acc` held the sums.
fn added(pool: &mut ExprPool, value: ExprId, results: TensorId, acc: TensorId) -> Option<ExprId> {
    fn addends(pool: &ExprPool, e: ExprId, out: &mut Vec<ExprId>) {
        match *pool.get(e) {
            Expr::Bin(BinOp::Add, a, b) => {
                addends(pool, a, out);
                addends(pool, b, out);
            }
            _ => out.push(e),
        }
    }
    let without = |pool: &mut ExprPool, e: ExprId| {
        let mut all = Vec::new();
        addends(pool, e, &mut all);
        let read =
            |t: TensorId| all.iter().position(|&a| matches!(pool.get(a), Expr::Load { tensor, .. } if *tensor == t));
        let (at, _) = (read(results)?, read(acc)?);
        all.remove(at);
        all.into_iter().reduce(|a, b| pool.add(a, b))
    };
    let mut uses = 0;
    pool.walk(value, &mut |e, _| {
        let reads = |k: &&ExprId| matches!(pool.get(**k), Expr::Load { tensor, .. } if [results, acc].contains(tensor));
        uses += pool.children(e).iter().filter(reads).count();
    });
    let new = pool.rewrite(value, &mut |pool, e| without(pool, e));
    (uses == 2 && !pool.reads(new, results)).then_some(new)
}

/// Has updates of a tensor go on from what is there.
fn go_on(body: &mut Vec<Stmt>, of: TensorId) {
    body.retain_mut(|s| match s {
        Stmt::For(l) => {
            let had = !l.body.is_empty();
            go_on(&mut l.body, of);
            !(had && l.body.is_empty())
        }
        Stmt::Block(b) => {
            b.continues |= b.tensor == of && matches!(b.role, BlockRole::Update(_));
            !(b.tensor == of && b.role == BlockRole::Init)
        }
    });
}

/// Has loops ask for iterations of others.
fn ask_of(stmts: &mut [Stmt], vars: &FxHashMap<VarId, VarId>) {
    for s in stmts {
        let Stmt::For(l) = s else { continue };
        for p in &mut l.prefetch {
            p.of = p.of.map(|v| vars.get(&v).copied().unwrap_or(v));
        }
        ask_of(&mut l.body, vars);
    }
}

/// The variables of loops that run alike, one by one.
fn same_loops(pool: &mut ExprPool, theirs: &[For], ours: &[For]) -> Option<FxHashMap<VarId, VarId>> {
    let mut vars = FxHashMap::default();
    let mut to = FxHashMap::default();
    for (t, o) in theirs.iter().zip(ours) {
        let extent = pool.substitute(t.extent, &to);
        if t.kind != o.kind || !same(pool, extent, o.extent) {
            return None;
        }
        vars.insert(t.var, o.var);
        to.insert(t.var, pool.var(o.var));
    }
    (theirs.len() == ours.len()).then_some(vars)
}

fn same(pool: &mut ExprPool, a: ExprId, b: ExprId) -> bool {
    a == b || normalize(pool, a) == normalize(pool, b)
}
