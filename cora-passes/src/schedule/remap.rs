//! `remap S.b longest_first`: the iterations of a loop in another order (paper appendix C.1).
//!
//! ```text
//! for b in 0..M { S(b) }  =>  for b in 0..M { S(order(b)) }     order = sort_desc(work of iteration)
//! ```
//!
//! `longest_first` and `by KEY` sort in the prelude, so what they give is a permutation whatever the
//! batch; a table that comes with the batch is used as a key. Where the number of iterations or their keys vary in the loops
//! around (`by pi(b, i)`), the table has a row for each combination of what they depend on (`key_rows`). `round_robin n` cuts the iterations into
//! n pieces and takes one of each in turn, a closed form. `order F` is a formula that is proved to be
//! a permutation.
//!
//! Requires: a loop that is not vector or unrolled and that nothing is reduced over. Ensures: the same
//! iterations, each once; every element is computed as before, so results are the same bits.

use super::MAX_FACTOR;
use super::conditions::{is_condition, runs};
use super::formula::{self, Purpose};
use super::inits::place_init;
use super::key_parts::in_parts;
use super::key_rows::{Rows, rows};
use super::tree::{Path, enclosing, find_loop, is_reduction_var, loop_at, loop_at_mut, substitute};
use crate::lower::sign::as_size;
use crate::simplify::{Facts, Prover, with_example};
use cora_ir::affine::{normalize, poly};
use cora_ir::loops::{LoopKind, LoopModule, Stmt};
use cora_ir::schedule::{LoopRef, Remap};
use cora_ir::{Diagnostic, Env, Expr, ExprId, ExprPool, UfDef, VarId};
use rustc_hash::FxHashMap;

/// Changes the order of a loop's iterations.
///
/// # Errors
/// `E0402` no such loop, `E0411` a vector or unrolled loop, `E0485` a loop that is reduced over,
/// `E0434` an order by what a tensor holds or by a loop that is reduced over, `E0435` a formula
/// that is not proved to be a permutation, `E0484` a formula with unknown names.
pub fn remap(m: &mut LoopModule, target: &LoopRef, policy: &Remap) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let l = loop_at(&m.body, &path);
    let (stage, var, kind) = (l.stage, l.var, l.kind);
    let shown = format!("{}.{}", target.stage, target.name);
    if matches!(kind, LoopKind::Vector | LoopKind::Unroll | LoopKind::Virtual) {
        return Err(Diagnostic::new("E0411", format!("loop `{shown}` is already {}", kind.described()))
            .hint("the order of lanes and copies is fixed; remap a loop outside"));
    }
    check_independent(m, &path, &shown)?;
    let place = m.env.pool.var(var);
    let iteration = match policy {
        Remap::LongestFirst => {
            let l = loop_at(&m.body, &path).clone();
            let work = work(&mut m.env, &l.body);
            sorted(m, &path, &shown, work)?
        }
        Remap::By(key) => {
            let key = formula::value(m, &path, key, Purpose::Key)?;
            let zero = m.env.pool.int(0);
            let descending = m.env.pool.sub(zero, key);
            sorted(m, &path, &shown, descending)?
        }
        Remap::RoundRobin(n) => {
            if !(1..=MAX_FACTOR).contains(n) {
                return Err(Diagnostic::new("E0435", format!("`{shown}` cannot be dealt to {n} pieces"))
                    .hint(format!("give a positive number of pieces, at most {MAX_FACTOR}")));
            }
            let extent = loop_at(&m.body, &path).extent;
            dealt(&mut m.env.pool, extent, place, *n)
        }
        Remap::Order(f) => {
            let f = formula::value(m, &path, f, Purpose::Place)?;
            check_permutation(m, &path, &shown, f)?;
            f
        }
    };
    let map = [(var, iteration)].into_iter().collect();
    let mut body = std::mem::take(&mut loop_at_mut(&mut m.body, &path).body);
    substitute(&mut m.env.pool, &mut body, &map);
    loop_at_mut(&mut m.body, &path).body = body;
    place_init(m, stage);
    Ok(())
}

fn check_independent(m: &LoopModule, path: &Path, shown: &str) -> Result<(), Diagnostic> {
    let l = loop_at(&m.body, path);
    let mut reduced = None;
    for s in &l.body {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s
                && is_reduction_var(&m.env.pool, b, l.var)
            {
                reduced = Some(b.tensor);
            }
        });
    }
    match reduced {
        None => Ok(()),
        Some(t) => Err(Diagnostic::new(
            "E0485",
            format!("loop `{shown}` cannot run in another order: it is reduced over into `{}`", m.env.tensors[t].name),
        )
        .note("the terms of a reduction are combined in the order of its loops, so that results do not depend on the batch")
        .hint("remap a spatial loop")),
    }
}

/// An estimate of what one iteration does: blocks run, loops inside at the middle of those around them.
fn work(env: &mut Env, stmts: &[Stmt]) -> ExprId {
    let mut sum = env.pool.int(0);
    for s in stmts {
        let one = env.pool.int(1);
        let part = match s {
            Stmt::Block(_) => one,
            Stmt::For(l) if l.init => continue,
            Stmt::For(l) => {
                let size = as_size(env, &[], l.extent);
                let last = env.pool.sub(size, one);
                let two = env.pool.int(2);
                let middle = env.pool.floor_div(last, two);
                let zero = env.pool.int(0);
                let middle = env.pool.max(middle, zero);
                let inside = work(env, &l.body);
                // Where the loop does not run, functions that are called inside it may have no value.
                let calls = env.pool.any(inside, &mut |n| matches!(n, Expr::Call(..)));
                let steered = calls && (is_condition(&env.pool, l.extent) || env.pool.uses_var(inside, l.var));
                let map: FxHashMap<VarId, ExprId> = [(l.var, middle)].into_iter().collect();
                let inside = env.pool.substitute(inside, &map);
                let product = env.pool.mul(size, inside);
                if steered {
                    let runs = runs(env, l.extent);
                    env.pool.select(runs, product, zero)
                } else {
                    product
                }
            }
        };
        sum = env.pool.add(sum, part);
    }
    normalize(&mut env.pool, sum)
}

/// The iteration at each place, in descending order of `key`: a table of the prelude.
fn sorted(m: &mut LoopModule, path: &Path, shown: &str, key: ExprId) -> Result<ExprId, Diagnostic> {
    let l = loop_at(&m.body, path);
    let (var, extent) = (l.var, l.extent);
    let place = m.env.pool.var(var);
    let key = normalize(&mut m.env.pool, key);
    if let Some(steps) = steps(&mut m.env.pool, key, place) {
        let one = m.env.pool.int(1);
        let last = m.env.pool.sub(extent, one);
        return Ok(if steps > 0 { m.env.pool.sub(last, place) } else { place });
    }
    let reads = |m: &LoopModule, e: ExprId| m.env.pool.any(e, &mut |n| matches!(n, Expr::Load { .. }));
    let refused = |what: &str| {
        Diagnostic::new("E0434", format!("the iterations of `{shown}` cannot be sorted before the kernels run: {what}"))
            .hint("`round_robin` and `order` need no table")
    };
    if reads(m, extent) || reads(m, key) {
        return Err(refused("their number or work reads a tensor"));
    }
    let around: Vec<(VarId, ExprId)> = enclosing(&m.body, path).iter().map(|l| (l.var, l.extent)).collect();
    let Rows { args, mut domain, extent, key } = rows(&mut m.env, &around, (var, extent), key);
    if domain.iter().any(|&e| reads(m, e)) {
        return Err(refused("the number of iterations of a loop around, for each of which they are, reads a tensor"));
    }
    if let Some(l) = reduced_around(m, path, &args) {
        let l = &m.env.vars[l].name;
        return Err(Diagnostic::new(
            "E0434",
            format!("the iterations of `{shown}` cannot have another order in each iteration of `{l}`, which is reduced over"),
        )
        .hint(format!("sort by what does not depend on `{l}`")));
    }
    let name = format!("{shown}.order");
    let size = as_size(&mut m.env, &[], extent);
    domain.push(size);
    let key = in_parts(&mut m.env, &name, &domain, key);
    let f = m.env.uf(&name, domain, UfDef::SortDesc { key });
    Ok(m.env.pool.call(f, args.into_iter().chain([place])))
}

/// A loop around, on which `args` depend, that a block inside is reduced over: it sets its elements apart from that loop.
fn reduced_around(m: &LoopModule, path: &Path, args: &[ExprId]) -> Option<VarId> {
    let used: Vec<VarId> = args.iter().flat_map(|&e| m.env.pool.vars_of(e)).collect();
    let mut found = None;
    for s in &loop_at(&m.body, path).body {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s {
                found = found.or(used.iter().copied().find(|&v| is_reduction_var(&m.env.pool, b, v)));
            }
        });
    }
    found
}

/// By how much `key` grows from one iteration to the next, if it is the same everywhere: the order needs no table then.
fn steps(pool: &mut ExprPool, key: ExprId, iteration: ExprId) -> Option<i64> {
    let v = pool.as_var(iteration)?;
    let p = poly(pool, key);
    let mut steps = 0;
    for (m, &c) in &p.terms {
        match m[..] {
            [a] if a == iteration => steps = c,
            _ if m.iter().any(|&a| pool.uses_var(a, v)) => return None,
            _ => {}
        }
    }
    Some(steps)
}

/// Place p takes iteration `p // n` of piece `p % n`; the first pieces are longer by one. That this is at most the last one is
/// written too, since no proof finds it.
pub(super) fn dealt(pool: &mut ExprPool, extent: ExprId, place: ExprId, n: i64) -> ExprId {
    let n = pool.int(n);
    let (short, longer) = (pool.floor_div(extent, n), pool.modulo(extent, n));
    let (round, piece) = (pool.floor_div(place, n), pool.modulo(place, n));
    let start = pool.mul(piece, short);
    let extra = pool.min(piece, longer);
    let start = pool.add(start, extra);
    let (dealt, one) = (pool.add(start, round), pool.int(1));
    let last = pool.sub(extent, one);
    pool.min(dealt, last)
}

/// Proves that `f` maps the loop's iterations to themselves, no two to the same one.
fn check_permutation(m: &mut LoopModule, path: &Path, shown: &str, f: ExprId) -> Result<(), Diagnostic> {
    let l = loop_at(&m.body, path);
    let (var, extent) = (l.var, l.extent);
    let mut loops: Vec<(VarId, ExprId)> = enclosing(&m.body, path).iter().map(|l| (l.var, l.extent)).collect();
    loops.push((var, extent));
    let name = m.env.vars[var].name.clone();
    let other = m.env.new_var(format!("{name}2"));
    let pool = &mut m.env.pool;
    let (zero, x, y) = (pool.int(0), pool.var(var), pool.var(other));
    let map = [(var, y)].into_iter().collect();
    let g = pool.substitute(f, &map);
    let (low, high) = (pool.le(zero, f), pool.lt(f, extent));
    let (same, equal) = (pool.bin(cora_ir::BinOp::Eq, f, g), pool.bin(cora_ir::BinOp::Eq, x, y));
    let mut prover = Prover::new();
    let refuse = |env: &Env, what: &str, facts: &Facts, goal: ExprId| {
        let d = Diagnostic::new("E0435", format!("the order of `{shown}` is not proved to be a permutation: {what}"));
        with_example(d, env, facts, goal).hint("use `by KEY`, which sorts and is a permutation whatever the key")
    };
    let inside = Facts::in_loops(loops.iter().copied());
    for goal in [low, high] {
        if !prover.prove(&mut m.env, &inside, goal).is_proved() {
            return Err(refuse(&m.env, "an iteration may lie outside the loop", &inside, goal));
        }
    }
    loops.push((other, extent));
    let both = Facts::in_loops(loops).assuming(same);
    if prover.prove(&mut m.env, &both, equal).is_proved() {
        return Ok(());
    }
    Err(refuse(&m.env, "two places may have the same iteration", &both, equal))
}
