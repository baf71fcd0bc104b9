//! Formulas of steps as index expressions at a loop.

use super::conditions::{is_condition, runs};
use super::defined::{first_outside, in_domain, is_defined};
use super::tree::{Path, enclosing, loop_at};
use crate::lower::declared::{Indices, bounds};
use crate::simplify::{Facts, Prover, with_example};
use cora_ir::loops::{Block, LoopModule, Stmt};
use cora_ir::schedule::Formula;
use cora_ir::{Diagnostic, Env, Expr, ExprId, UfDef, UfId, VarId};
use rustc_hash::FxHashMap;

/// Greatest number in a formula: with a few of them multiplied, indices still fit 64 bits.
const MAX_LITERAL: i64 = 1 << 31;
/// Greatest magnitude of a formula's value.
const MAX_VALUE: i64 = 1 << 61;

fn too_large(message: &str) -> Diagnostic {
    Diagnostic::new("E0484", message).hint("use smaller numbers")
}

/// What a formula is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A number of iterations of a loop, known outside it.
    Bound,
    /// The iteration at each place of a loop.
    Place,
    /// What the iterations of a loop are sorted by: where one is beyond what a function is declared over, any key does.
    Key,
}

/// The loops around, and if it may be named the one at `path`: variables and extents, outermost first.
fn ranges(m: &LoopModule, path: &Path, purpose: Purpose) -> Vec<(VarId, ExprId)> {
    visible(m, path, purpose).into_iter().rev().map(|l| (l.1, l.2)).collect()
}

/// The value of `f` outside the loop at `path`, or in it where the `purpose` is not a bound: names are parameters, the loops
/// around, and dimensions of its stage that follow from these; `size` of the loop itself is its extent.
///
/// # Errors
/// `E0484` a name that means nothing there, a call that is none or of a function that may have no value
/// there (but where loops are raised to its greatest value, it is that), or numbers that may not fit 64 bits.
pub(super) fn value(m: &mut LoopModule, path: &Path, f: &Formula, purpose: Purpose) -> Result<ExprId, Diagnostic> {
    match f {
        Formula::Int(n) if !(-MAX_LITERAL..=MAX_LITERAL).contains(n) => {
            Err(too_large(&format!("{n} is too large a number for a formula")))
        }
        Formula::Int(n) => Ok(m.env.pool.int(*n)),
        Formula::Name(n) => name(m, path, n, purpose),
        Formula::Call(n, args) => call(m, path, n, args, purpose),
        Formula::Bin(op, a, b) => {
            let (a, b) = (value(m, path, a, purpose)?, value(m, path, b, purpose)?);
            let e = match op {
                '+' => m.env.pool.add(a, b),
                '-' => m.env.pool.sub(a, b),
                _ => m.env.pool.mul(a, b),
            };
            let loops = ranges(m, path, purpose);
            let values = bounds(&m.env, e, Indices { args: &[], loops: &loops });
            let fits = |v: Option<i64>| v.is_some_and(|v| (-MAX_VALUE..=MAX_VALUE).contains(&v));
            if fits(values.lo) && fits(values.hi) {
                Ok(e)
            } else {
                Err(too_large(&format!("`{f}` may not fit 64 bits")))
            }
        }
    }
}

/// The loops that a formula may name, innermost first.
fn visible(m: &LoopModule, path: &Path, purpose: Purpose) -> Vec<(String, cora_ir::VarId, ExprId)> {
    let mut loops = enclosing(&m.body, path);
    if purpose != Purpose::Bound {
        loops.push(loop_at(&m.body, path));
    }
    loops.iter().rev().map(|l| (m.env.vars[l.var].name.clone(), l.var, l.extent)).collect()
}

fn unknown(m: &LoopModule, path: &Path, purpose: Purpose, message: String) -> Diagnostic {
    let mut known: Vec<String> = visible(m, path, purpose).into_iter().map(|l| l.0).collect();
    let dims = dims(m, path, purpose).into_iter().map(|d| d.0).filter(|d| !known.contains(d)).collect::<Vec<_>>();
    known.extend(dims);
    known.extend(m.env.params.iter().map(|(_, p)| p.name.clone()));
    let hint = if known.is_empty() {
        "there are no loops around it and no parameters: use numbers".to_owned()
    } else {
        format!("loops, dimensions and parameters that are known there: {}", known.join(", "))
    };
    Diagnostic::new("E0484", message).hint(hint)
}

fn name(m: &mut LoopModule, path: &Path, n: &str, purpose: Purpose) -> Result<ExprId, Diagnostic> {
    if let Some((_, var, extent)) = visible(m, path, purpose).into_iter().find(|l| l.0 == n) {
        // Of a dimension whose loop has another order or is a part the index is meant.
        let own = loop_at(&m.body, path).var == var;
        let index = dims(m, path, purpose).into_iter().find(|d| d.0 == n).map(|d| d.1);
        if let Some(index) = index.filter(|&i| m.env.pool.vars_of(i) == [var] && !(own && purpose == Purpose::Place)) {
            check_index(m, path, (n, index), purpose)?;
            return Ok(index);
        }
        // A loop that is a condition counts nothing: what does not depend on it stays so.
        let pool = &mut m.env.pool;
        return Ok(if is_condition(pool, extent) { pool.int(0) } else { pool.var(var) });
    }
    let param = m.env.params.iter().find(|(_, p)| p.name == n).map(|(id, _)| id);
    if let Some(p) = param {
        return Ok(m.env.pool.param(p));
    }
    match dims(m, path, purpose).into_iter().find(|d| d.0 == n) {
        Some((_, index)) => check_index(m, path, (n, index), purpose).map(|()| index),
        None => Err(unknown(
            m,
            path,
            purpose,
            format!("`{n}` is no loop around this one, no dimension that follows from those, and no parameter"),
        )),
    }
}

/// The dimensions of the stage of the loop at `path` whose index follows from the loops that may be named, as those of loops
/// that were fused or split do.
fn dims(m: &LoopModule, path: &Path, purpose: Purpose) -> Vec<(String, ExprId)> {
    let l = loop_at(&m.body, path);
    let known: Vec<VarId> = visible(m, path, purpose).into_iter().map(|l| l.1).collect();
    let mut found: Vec<(String, Option<ExprId>)> = Vec::new();
    let mut of_block = |b: &Block| {
        for i in b.iters.iter().filter(|_| b.stage == l.stage) {
            let name = &m.env.vars[i.var].name;
            let follows = m.env.pool.vars_of(i.binding).iter().all(|v| known.contains(v));
            match found.iter_mut().find(|d| d.0 == *name) {
                Some(d) if d.1 != Some(i.binding) => d.1 = None,
                Some(_) => {}
                None => found.push((name.clone(), follows.then_some(i.binding))),
            }
        }
    };
    for s in &l.body {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s {
                of_block(b);
            }
        });
    }
    found.into_iter().filter_map(|(name, index)| Some((name, index?))).collect()
}

fn call(m: &mut LoopModule, path: &Path, n: &str, args: &[Formula], purpose: Purpose) -> Result<ExprId, Diagnostic> {
    if let ("size", [Formula::Name(l)]) = (n, args) {
        return match visible(m, path, Purpose::Place).into_iter().find(|x| x.0 == *l) {
            Some((_, _, extent)) => Ok(extent),
            None => Err(unknown(m, path, purpose, format!("`size({l})` names no loop around this one"))),
        };
    }
    let mut values = Vec::new();
    for a in args {
        values.push(value(m, path, a, purpose)?);
    }
    let pool = &mut m.env.pool;
    match (n, values.as_slice()) {
        ("min", &[a, b]) => return Ok(pool.min(a, b)),
        ("max", &[a, b]) => return Ok(pool.max(a, b)),
        ("floordiv" | "ceildiv", &[a, b]) => {
            let Some(c) = pool.as_int(b).filter(|&c| c > 0) else {
                return Err(Diagnostic::new("E0484", format!("`{n}` wants a positive number to divide by"))
                    .hint("divide by a constant"));
            };
            return Ok(if n == "ceildiv" { pool.ceil_div(a, c) } else { pool.floor_div(a, b) });
        }
        _ => {}
    }
    let found = m.env.ufs.iter().find(|(_, u)| u.name == n && matches!(u.def, UfDef::Extent { .. }));
    match found.map(|(id, u)| (id, u.domain.len())) {
        Some((id, arity)) if arity == values.len() => match check_defined(m, path, (n, id, args), &values, purpose) {
            Ok(()) => Ok(m.env.pool.call(id, values)),
            Err(_) if purpose == Purpose::Key && args.iter().all(|a| matches!(a, Formula::Name(_))) => {
                Ok(within(&mut m.env, id, &values))
            }
            Err(d) => greatest(m, path, id).ok_or(d),
        },
        Some((_, arity)) => {
            Err(Diagnostic::new("E0484", format!("`{n}` takes {arity} arguments, not {}", values.len()))
                .hint("give one index for each dimension that the function is declared over"))
        }
        None => Err(Diagnostic::new("E0484", format!("there is no function `{n}` of {} arguments", values.len()))
            .hint("use floordiv, ceildiv, min, max, size of a loop, or an extent function of the program")),
    }
}

/// The value of `f` at indices of it, 0 at others: loops that were padded count further.
fn within(env: &mut Env, f: UfId, args: &[ExprId]) -> ExprId {
    let mut conditions = Vec::new();
    for n in 0..args.len() {
        conditions.extend(in_domain(env, f, args, n));
    }
    let inside = env.pool.all(conditions);
    let (value, zero) = (env.pool.call(f, args.iter().copied()), env.pool.int(0));
    env.pool.select(inside, value, zero)
}

/// `e` with the greatest value of each function for the function, where loops around run up to that.
pub(super) fn raised(m: &mut LoopModule, path: &Path, e: ExprId) -> ExprId {
    let mut raised: FxHashMap<ExprId, ExprId> = FxHashMap::default();
    let mut calls: Vec<(ExprId, UfId)> = Vec::new();
    m.env.pool.walk(e, &mut |id, n| {
        if let Expr::Call(f, _) = n {
            calls.push((id, *f));
        }
    });
    for (id, f) in calls {
        if let Some(most) = greatest(m, path, f) {
            raised.insert(id, most);
        }
    }
    m.env.pool.rewrite(e, &mut |_, n| raised.get(&n).copied())
}

/// The greatest value of `f`, where a loop there runs up to that, as in the fully padded form.
fn greatest(m: &mut LoopModule, path: &Path, f: UfId) -> Option<ExprId> {
    let of_f = |body: ExprId| matches!(m.env.pool.get(body), Expr::Call(g, _) if *g == f);
    let (max, _) = m.env.ufs.iter().find(|(_, u)| matches!(u.def, UfDef::Max { body } if of_f(body)))?;
    let runs_to = |extent: ExprId| m.env.pool.any(extent, &mut |n| matches!(n, Expr::Call(g, _) if *g == max));
    let raised = visible(m, path, Purpose::Place).into_iter().any(|(_, _, extent)| runs_to(extent));
    raised.then(|| m.env.pool.call(max, []))
}

/// What is known in the loops that a formula may name.
fn facts(m: &mut LoopModule, path: &Path, purpose: Purpose) -> Facts {
    let loops = ranges(m, path, purpose);
    let mut facts = Facts::in_loops(loops.iter().copied());
    for (_, extent) in loops {
        if is_condition(&m.env.pool, extent) {
            let runs = runs(&mut m.env, extent);
            facts.push_assumption(runs);
        }
    }
    facts
}

/// A dimension of loops that were fused and padded has no index where they count further.
fn check_index(
    m: &mut LoopModule,
    path: &Path,
    (n, index): (&str, ExprId),
    purpose: Purpose,
) -> Result<(), Diagnostic> {
    if purpose != Purpose::Bound {
        return Ok(());
    }
    let facts = facts(m, path, purpose);
    if is_defined(&mut m.env, &mut Prover::new(), &facts, index) {
        return Ok(());
    }
    Err(Diagnostic::new("E0484", format!("`{n}` is not proved to have an index there"))
        .note("loops that were fused and padded count further than the dimension does")
        .hint("name it before the loop is padded, or split where no dimension of a padded loop is asked for"))
}

/// A function has values at its declared indices only: each argument must be proved to be one.
fn check_defined(
    m: &mut LoopModule,
    path: &Path,
    (n, f, args): (&str, UfId, &[Formula]),
    values: &[ExprId],
    purpose: Purpose,
) -> Result<(), Diagnostic> {
    let facts = facts(m, path, purpose);
    let mut prover = Prover::new();
    let Some((outside, inside)) = first_outside(&mut m.env, &mut prover, &facts, f, values) else { return Ok(()) };
    let arg = &args[outside];
    let d =
        Diagnostic::new("E0484", format!("`{n}` may have no value there: `{arg}` is not proved to be an index of it"));
    Err(with_example(d, &m.env, &facts, inside)
        .note("loops that were padded, fused or split count further than the function's own index does")
        .hint("call it at the index of a loop over that dimension, before the loop is changed"))
}
