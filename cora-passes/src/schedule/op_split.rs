//! `op_split S.q at 14 * floordiv(lens(b), 14)`: a stage in two, before and from an iteration of a loop
//! (paper section 4.1).
//!
//! ```text
//! for b { for q in 0..E { S } }  =>  for b { for q in 0..p { S.main } }
//!                                    for b { for q in 0..E - p { S.tail, q := p + q } }
//! ```
//!
//! The whole nest of the stage is split, with what is attached in it, so that the parts can be
//! scheduled apart and fused again by `hfuse`. A reduction may be split too: `S.tail` goes on from what
//! `S.main` leaves, so terms are combined in the order in which they were.
//!
//! Requires: a loop that is not vector or unrolled, nothing in the nest but the stage and what it
//! attaches. Ensures: the same iterations; a point outside the loop leaves one part empty.

use super::filled::Loops;
use super::formula::{self, Purpose};
use super::inits::remove_init;
use super::parts::PARTS;
use super::peel::{go_on, replace};
use super::relax::each_block;
use super::tree::{
    Path, around_elements, enclosing, find_loop, is_reduction_var, loop_at, loop_at_mut, reads_below, stages_of,
    substitute, writes_below,
};
use crate::simplify::{Facts, Prover};
use cora_ir::affine::normalize;
use cora_ir::loops::{BlockRole, For, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::{Formula, LoopRef};
use cora_ir::{Diagnostic, Env, ExprId, Scope, VarId};
use rustc_hash::FxHashMap;

/// Splits at each point in turn; later ones split every part that there is by then.
///
/// # Errors
/// `E0402` no such loop, `E0411` a vector or unrolled loop, `E0483` a point of a spatial loop that depends on what is
/// reduced over, `E0484` a formula with unknown names, `E0436` another stage in the nest, `E0460` the
/// name of a part is taken, `E0437` a reduced loop inside another one of a combiner that is not commutative.
pub fn op_split(m: &mut LoopModule, points: &[(LoopRef, Formula)]) -> Result<(), Diagnostic> {
    let saved = (m.body.clone(), m.env.tensors.clone());
    let result = split_all(m, points);
    if result.is_err() {
        (m.body, m.env.tensors) = saved;
    }
    result
}

fn split_all(m: &mut LoopModule, points: &[(LoopRef, Formula)]) -> Result<(), Diagnostic> {
    // Stages that were split, and the ends of their parts' names.
    let mut parts: Vec<(String, Vec<String>)> = Vec::new();
    for (target, at) in points {
        let ends = parts.iter().find(|p| p.0 == target.stage).map_or(vec![String::new()], |p| p.1.clone());
        for end in &ends {
            let part = LoopRef { stage: format!("{}{end}", target.stage), name: target.name.clone() };
            split_one(m, &part, at)?;
        }
        let next = ends.iter().flat_map(|e| PARTS.map(|p| format!("{e}.{p}"))).collect();
        parts.retain(|p| p.0 != target.stage);
        parts.push((target.stage.clone(), next));
    }
    Ok(())
}

fn split_one(m: &mut LoopModule, target: &LoopRef, at: &Formula) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let shown = format!("{}.{}", target.stage, target.name);
    let kind = loop_at(&m.body, &path).kind;
    if matches!(kind, LoopKind::Vector | LoopKind::Unroll | LoopKind::Virtual) {
        return Err(Diagnostic::new("E0411", format!("loop `{shown}` is already {}", kind.described()))
            .hint("split the operator before its loops become vector or unrolled"));
    }
    let root = own_nest(m, &path);
    for s in stages_of(&[whole(m, &root)]) {
        remove_init(&mut m.body, s);
    }
    let path = find_loop(m, target)?;
    let root = own_nest(m, &path);
    let at = formula::value(m, &path, at, Purpose::Bound)?;
    let l = loop_at(&m.body, &path);
    let (var, extent) = (l.var, l.extent);
    check_alone(m, &root, &path, &shown)?;
    check_reduced(m, &path, at, &shown)?;
    check_order(m, &root, &path, &shown)?;
    let point = within(m, &path, at, extent);
    let (main, tail) = (whole(m, &root), whole(m, &root));
    let (Stmt::For(mut main), Stmt::For(mut tail)) = (main, tail) else { unreachable!("a loop's path") };
    let inside = &path[root.len()..];
    descend(&mut main, inside).extent = point;
    let rest = m.env.pool.sub(extent, point);
    let rest = normalize(&mut m.env.pool, rest);
    let v = m.env.pool.var(var);
    let shifted = m.env.pool.add(point, v);
    let t = descend(&mut tail, inside);
    t.extent = rest;
    go_on(&m.env, &mut t.body, &[var]);
    let map = [(var, shifted)].into_iter().collect();
    substitute(&mut m.env.pool, &mut t.body, &map);
    let around: Loops = enclosing(&m.body, &root).iter().map(|l| (l.var, l.extent)).collect();
    let mut parts = [Stmt::For(main), Stmt::For(tail)];
    for s in &mut parts {
        drop_implied(&mut m.env, s, &around);
    }
    replace(m, &root, parts.map(|s| vec![s]))
}

/// Conditions on what is reduced that hold wherever a part gets go, as that of a padded loop does in a part which ends before
/// the surplus. Others are the first value's too, which is outside the reduced loops.
fn drop_implied(env: &mut Env, part: &mut Stmt, around: &Loops) {
    each_block(part, &mut Vec::new(), &mut |b, inside| {
        if b.predicate.is_empty() {
            return;
        }
        let facts = Facts::in_loops(around.iter().chain(inside).copied());
        let reduced: Vec<VarId> = inside.iter().map(|l| l.0).filter(|&v| is_reduction_var(&env.pool, b, v)).collect();
        let bindings: FxHashMap<VarId, ExprId> = b.iters.iter().map(|i| (i.var, i.binding)).collect();
        let mut prover = Prover::new();
        b.predicate.retain(|&p| {
            let goal = env.pool.substitute(p, &bindings);
            !reduced.iter().any(|&v| env.pool.uses_var(goal, v)) || !prover.prove(env, &facts, goal).is_proved()
        });
    });
}

/// The path of the stage's outermost loop with nothing but its loops down to the one at `path`.
fn own_nest(m: &LoopModule, path: &Path) -> Path {
    let stage = loop_at(&m.body, path).stage;
    let depth = (1..=path.len()).rev().take_while(|&n| loop_at(&m.body, &path[..n]).stage == stage).last();
    path[..depth.unwrap_or(path.len())].to_vec()
}

fn whole(m: &LoopModule, root: &Path) -> Stmt {
    Stmt::For(loop_at(&m.body, root).clone())
}

/// The loop at `path` below `l`.
fn descend<'a>(l: &'a mut For, path: &[usize]) -> &'a mut For {
    if path.is_empty() { l } else { loop_at_mut(&mut l.body, path) }
}

/// Statements beside the split loop run with both parts, so they must belong to the part alone.
fn check_alone(m: &LoopModule, root: &Path, path: &Path, shown: &str) -> Result<(), Diagnostic> {
    let mut beside: Vec<Stmt> = Vec::new();
    for n in root.len()..path.len() {
        let on = path[n];
        beside.extend(
            loop_at(&m.body, &path[..n]).body.iter().enumerate().filter(|(i, _)| *i != on).map(|(_, s)| s.clone()),
        );
    }
    let mut rest = m.body.clone();
    super::tree::body_at_mut(&mut rest, &root[..root.len() - 1]).remove(root[root.len() - 1]);
    let (read, written) = (reads_below(&m.env.pool, &rest), writes_below(&rest));
    let inside = writes_below(std::slice::from_ref(&whole(m, path)));
    let shared = writes_below(&beside).into_iter().find(|t| {
        m.env.tensors[*t].scope == Scope::Global || read.contains(t) || written.contains(t) || inside.contains(t)
    });
    match shared {
        None => Ok(()),
        Some(t) => Err(Diagnostic::new(
            "E0436",
            format!(
                "`{shown}` cannot split the operator: `{}` is computed beside it in the same nest",
                m.env.tensors[t].name
            ),
        )
        .hint("split the operator before other stages are fused into its loops, or peel the loop")),
    }
}

fn check_reduced(m: &LoopModule, path: &Path, at: ExprId, shown: &str) -> Result<(), Diagnostic> {
    let used = m.env.pool.vars_of(at);
    let var = loop_at(&m.body, path).var;
    let mut reduced: Option<VarId> = None;
    for s in &loop_at(&m.body, path).body {
        s.walk(&mut |s| {
            // Which terms are in which part may depend on other terms.
            if let Stmt::Block(b) = s
                && !is_reduction_var(&m.env.pool, b, var)
            {
                reduced = reduced.or(used.iter().copied().find(|&v| is_reduction_var(&m.env.pool, b, v)));
            }
        });
    }
    match reduced {
        None => Ok(()),
        Some(v) => Err(Diagnostic::new(
            "E0483",
            format!(
                "splitting `{shown}` there would make which elements are written depend on `{}`, which is reduced over",
                m.env.vars[v].name
            ),
        )
        .hint("split at a point that does not depend on reduced loops")),
    }
}

/// Splitting inside another reduced loop combines the first terms of all its iterations before the last ones of any.
fn check_order(m: &LoopModule, root: &Path, path: &Path, shown: &str) -> Result<(), Diagnostic> {
    let var = loop_at(&m.body, path).var;
    let around: Vec<VarId> = (root.len()..path.len()).map(|n| loop_at(&m.body, &path[..n]).var).collect();
    let mut permuted = None;
    for s in &loop_at(&m.body, path).body {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s
                && let BlockRole::Update(r) = b.role
                && !m.env.is_commutative(r)
                && is_reduction_var(&m.env.pool, b, var)
                && around.iter().any(|&v| is_reduction_var(&m.env.pool, b, v))
            {
                permuted = Some(r);
            }
        });
    }
    permuted.map_or(Ok(()), |r| Err(super::reorder::permuted(m, r, shown)))
}

/// `at` between 0 and the extent: as it is where that is proved, also where loops around that are reduced over have no
/// iteration, since elements have their first values there.
fn within(m: &mut LoopModule, path: &Path, at: ExprId, extent: ExprId) -> ExprId {
    let at = normalize(&mut m.env.pool, at);
    let facts = Facts::in_loops(around_elements(m, path));
    let zero = m.env.pool.int(0);
    let mut prover = Prover::new();
    let low = m.env.pool.le(zero, at);
    let at = if prover.prove(&mut m.env, &facts, low).is_proved() { at } else { m.env.pool.max(at, zero) };
    let high = m.env.pool.le(at, extent);
    if prover.prove(&mut m.env, &facts, high).is_proved() { at } else { m.env.pool.min(at, extent) }
}
