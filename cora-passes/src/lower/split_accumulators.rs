//! Extremes of cheap terms keep several partial results.
//!
//! ```text
//! for %o in 0..n { @S[i] = max(@S[i], v(%o)) }
//!   =>  if 8 <= n {
//!         @S.parts[..] = -inf
//!         for %q in 0..n // 4 { @S[i] = max(@S[i], v(%q * 4))  @S.parts[0] = max(@S.parts[0], v(%q * 4 + 1)) .. }
//!         @S[i] = max(max(@S[i], @S.parts[0]), max(@S.parts[1], @S.parts[2]))
//!         for %o in 0..n - n // 4 * 4 { @S[i] = max(@S[i], v(n // 4 * 4 + %o)) }
//!       } else { .. as before }
//! ```
//!
//! The greater of two numbers, NaN if either is none, takes a processor three operations, each of which waits for the one
//! before it. Extremes are the same in whatever order they are taken. (Sums wait for one addition, as long as loads take.)
//!
//! Requires: no vector or unrolled loops, tails cut off. Ensures: the same statements but for such loops, which are innermost
//! and do nothing else; partial results are new register buffers. Not on a grid, where threads fill each other's waits.

use super::sign::never_negative;
use cora_ir::affine::normalize;
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Buffer, Stmt, StorageModule};
use cora_ir::{BinOp, Combiner, Env, Expr, ExprId, ScalarType, Scope, Tensor, TensorDim, TensorId, UnOp, VarId};

/// Partial results of one reduction.
const PARTS: u32 = 4;
/// Iterations from which on it pays.
const LEAST: i64 = 8;
/// Extremes in one loop that do not fill each other's waits yet.
const MOST_UPDATES: usize = 2;
/// Operations of a term, reads of memory among them, from which on it takes longer than the wait.
const MOST_OPERATIONS: u32 = 6;

/// Splits such loops in every kernel that is none of a grid.
pub fn split_accumulators(m: &mut StorageModule) {
    let mut kernels = std::mem::take(&mut m.kernels);
    for k in kernels.iter_mut().filter(|k| !k.is_grid()) {
        let body = std::mem::take(&mut k.body);
        k.body = stmts(m, body);
    }
    m.kernels = kernels;
}

fn stmts(m: &mut StorageModule, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(body.len());
    for mut s in body {
        if let Stmt::For { var, extent, kind: LoopKind::Serial, body } = &s
            && m.env.pool.as_int(*extent).is_none_or(|n| n >= LEAST)
            && let Some(updates) = updates(&m.env, *var, body)
        {
            out.push(split(m, (*var, *extent), body, &updates));
            continue;
        }
        for inner in s.bodies_mut() {
            *inner = stmts(m, std::mem::take(inner));
        }
        out.push(s);
    }
    out
}

/// `tensor[index] = tensor[index] op term`.
struct Update {
    tensor: TensorId,
    index: ExprId,
    combiner: Combiner,
    term: ExprId,
}

/// The body's statements if all of them are updates of places that neither change from one iteration to the next nor are
/// read otherwise, and few and cheap ones.
fn updates(env: &Env, var: VarId, body: &[Stmt]) -> Option<Vec<Update>> {
    if body.is_empty() || body.len() > MOST_UPDATES {
        return None;
    }
    let found: Vec<Update> = body.iter().map(|s| update(env, s)).collect::<Option<_>>()?;
    let written = |t: TensorId| found.iter().any(|u| u.tensor == t);
    let reads = |e| env.pool.any(e, &mut |n| matches!(n, Expr::Load { tensor, .. } if written(*tensor)));
    let splits = |(n, u): (usize, &Update)| {
        found[..n].iter().all(|v| v.tensor != u.tensor)
            && !env.pool.uses_var(u.index, var)
            && !reads(u.index)
            && !reads(u.term)
            && operations(env, var, u.term) <= MOST_OPERATIONS
    };
    found.iter().enumerate().all(splits).then_some(found)
}

fn update(env: &Env, s: &Stmt) -> Option<Update> {
    let &Stmt::Store { tensor, index, value, mask: None, ref rest } = s else { return None };
    let Expr::Bin(op, a, b) = *env.pool.get(value) else { return None };
    let combiner = [Combiner::Max, Combiner::Min].into_iter().find(|c| c.op() == op)?;
    let is_old = |e: ExprId| {
        matches!(env.pool.get(e),
            Expr::Load { tensor: t, index: i, guard: None, .. } if *t == tensor && i[..] == [index])
    };
    let term = match (is_old(a), is_old(b)) {
        (true, false) => b,
        (false, true) => a,
        _ => return None,
    };
    rest.is_empty().then_some(Update { tensor, index, combiner, term })
}

/// Operations of a term that change with the loop, apart from those on indices.
fn operations(env: &Env, var: VarId, term: ExprId) -> u32 {
    let mut count = 0;
    env.pool.walk(term, &mut |id, n| {
        count += match n {
            _ if !env.pool.uses_var(id, var) => 0,
            Expr::Un(UnOp::Neg | UnOp::Not | UnOp::Abs | UnOp::Floor | UnOp::Ceil | UnOp::Round, _) => 1,
            Expr::Bin(BinOp::Div | BinOp::FloorDiv | BinOp::Mod | BinOp::Pow, ..)
            | Expr::Un(..)
            | Expr::Search { .. }
            | Expr::Call(..) => MOST_OPERATIONS + 1,
            Expr::Bin(..) | Expr::Load { .. } | Expr::Select(..) | Expr::Cast(..) => {
                u32::from(env.pool.ty(id).scalar != ScalarType::Index)
            }
            _ => 0,
        };
    });
    count
}

fn split(m: &mut StorageModule, (var, extent): (VarId, ExprId), body: &[Stmt], updates: &[Update]) -> Stmt {
    let parts: Vec<TensorId> = updates.iter().map(|u| buffer(m, u)).collect();
    let env = &mut m.env;
    let mut then = Vec::new();
    for (u, &of) in updates.iter().zip(&parts) {
        let identity = env.identity(u.combiner, env.tensors[of].ty);
        let identity = env.pool.splat(identity, env.pool.ty(u.term).lanes);
        for part in 1..PARTS {
            let index = place(env, u, part);
            then.push(Stmt::Store { tensor: of, index, value: identity, mask: None, rest: vec![] });
        }
    }
    let width = env.pool.int(i64::from(PARTS));
    let rounds = env.pool.floor_div(extent, width);
    let done = env.pool.mul(rounds, width);
    let round = env.copy_var(var);
    let mut steps = Vec::new();
    for part in 0..PARTS {
        let first = env.pool.var(round);
        let first = env.pool.mul(first, width);
        let offset = env.pool.int(i64::from(part));
        let at = env.pool.add(first, offset);
        for (u, &of) in updates.iter().zip(&parts) {
            let held = held(env, u, of, part);
            let step = update_at(env, u, held, (var, at));
            // What the first of the iterations asks for may be plain of the others.
            steps.push(without_known(env, (round, rounds), step));
        }
    }
    then.push(Stmt::For { var: round, extent: rounds, kind: LoopKind::Serial, body: steps });
    for (u, &of) in updates.iter().zip(&parts) {
        let op = u.combiner.op();
        let [a, b, c, d] = std::array::from_fn(|part| {
            let (tensor, index) = held(env, u, of, part as u32);
            env.load(tensor, [index])
        });
        let (low, high) = (env.pool.bin(op, a, b), env.pool.bin(op, c, d));
        let value = env.pool.bin(op, low, high);
        then.push(Stmt::Store { tensor: u.tensor, index: u.index, value, mask: None, rest: vec![] });
    }
    let left = env.pool.sub(extent, done);
    let left = normalize(&mut env.pool, left);
    if env.pool.as_int(left) != Some(0) {
        let last = env.copy_var(var);
        let at = env.pool.var(last);
        let at = env.pool.add(done, at);
        let body = updates.iter().map(|u| update_at(env, u, (u.tensor, u.index), (var, at))).collect();
        then.push(Stmt::For { var: last, extent: left, kind: LoopKind::Serial, body });
    }
    let least = env.pool.int(LEAST);
    let cond = env.pool.le(least, extent);
    let other = vec![Stmt::For { var, extent, kind: LoopKind::Serial, body: body.to_vec() }];
    Stmt::If { cond, then, other }
}

/// The update of a partial result by the term of iteration `at`.
fn update_at(env: &mut Env, u: &Update, (tensor, index): (TensorId, ExprId), (var, at): (VarId, ExprId)) -> Stmt {
    let map = [(var, at)].into_iter().collect();
    let term = env.pool.substitute(u.term, &map);
    let term = normalize(&mut env.pool, term);
    let old = env.load(tensor, [index]);
    let value = env.pool.bin(u.combiner.op(), old, term);
    Stmt::Store { tensor, index, value, mask: None, rest: vec![] }
}

/// The statement without conditions of reads that hold in every iteration, which is at least 0.
fn without_known(env: &mut Env, round: (VarId, ExprId), s: Stmt) -> Stmt {
    let Stmt::Store { tensor, index, value, mask, rest } = s else { return s };
    let ranges = [(env.pool.var(round.0), round.1)];
    let mut guards = Vec::new();
    env.pool.walk(value, &mut |_, n| {
        if let Expr::Load { guard: Some((cond, _)), .. } = n {
            guards.extend(env.pool.conjuncts(*cond));
        }
    });
    guards.retain(|&c| {
        let Expr::Bin(BinOp::Le, a, b) = *env.pool.get(c) else { return false };
        let distance = env.pool.sub(b, a);
        let distance = normalize(&mut env.pool, distance);
        never_negative(env, &ranges, distance)
    });
    let yes = env.pool.bool(true);
    let value = env.pool.rewrite(value, &mut |_, e| guards.contains(&e).then_some(yes));
    Stmt::Store { tensor, index, value, mask, rest }
}

/// Where a partial result is: the first one where the whole is.
fn held(env: &mut Env, u: &Update, of: TensorId, part: u32) -> (TensorId, ExprId) {
    if part == 0 { (u.tensor, u.index) } else { (of, place(env, u, part)) }
}

/// The index of partial result `part`, which is not the first.
fn place(env: &mut Env, u: &Update, part: u32) -> ExprId {
    let lanes = env.pool.ty(u.term).lanes;
    let first = env.pool.int(i64::from(lanes) * i64::from(part - 1));
    if lanes == 1 { first } else { env.pool.ramp(first, 1, lanes) }
}

/// A register buffer for all partial results but the first.
fn buffer(m: &mut StorageModule, u: &Update) -> TensorId {
    let base = format!("{}.parts", m.env.tensors[u.tensor].name);
    let name = m.env.fresh_tensor_name(&base);
    let size = m.env.pool.int(i64::from(m.env.pool.ty(u.term).lanes) * i64::from(PARTS - 1));
    let dims = vec![TensorDim::new("part", size)];
    let ty = m.env.tensors[u.tensor].ty;
    let tensor = m.env.tensors.push(Tensor { scope: Scope::Reg, ..Tensor::temp(name, ty, dims) });
    m.buffers.push(Buffer { tensor, elems: size, offset: None });
    tensor
}
