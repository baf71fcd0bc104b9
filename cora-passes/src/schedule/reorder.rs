//! `reorder S: a b c`: permutes loops of one perfect nest.
//!
//! Requires: the named loops lie in one nest with nothing but loops between the first and the last.
//! A loop may not move outside a loop that its extent depends on (paper section 4.1); an extent that only seems to,
//! such as `(o * 6 + i) // 6 * 6` where `i < 6`, is simplified first. Ensures: the same iterations; sums may be combined
//! in another order.

use super::conditions::is_condition;
use super::defined::is_defined;
use super::inits::{place_init, remove_inits};
use super::tree::{find_loop, find_stage, is_reduction_var, loop_at, loop_at_mut};
use crate::simplify::{Facts, Prover, simplify, with_example};
use cora_ir::affine::div_through_max;
use cora_ir::loops::{BlockRole, Body, For, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{Diagnostic, Expr, ExprId, Reduction, VarId};

/// Puts the loops of `stage` called `order` into that order; other loops keep their places.
///
/// # Errors
/// `E0402` no such loop, `E0430` loops that are not in one perfect nest, `E0431` a loop that would
/// leave a loop its extent depends on, `E0432` a loop named twice, `E0411` a parallel loop inside,
/// `E0446` a loop bound to blocks inside one that is not, `E0433` a loop that would leave one that is a condition for it,
/// `E0437` reduced loops of a combiner that is not commutative.
pub fn reorder(m: &mut LoopModule, stage: &str, order: &[String]) -> Result<(), Diagnostic> {
    let tensor = find_stage(m, stage)?;
    let saved = m.body.clone();
    remove_inits(m, tensor);
    let result = permute(m, stage, order);
    if result.is_err() {
        m.body = saved;
    }
    result?;
    place_init(m, tensor);
    Ok(())
}

fn permute(m: &mut LoopModule, stage: &str, order: &[String]) -> Result<(), Diagnostic> {
    let mut paths = Vec::new();
    for name in order {
        let path = find_loop(m, &LoopRef { stage: stage.to_owned(), name: name.clone() })?;
        if paths.contains(&path) {
            return Err(Diagnostic::new("E0432", format!("reorder names loop `{stage}.{name}` twice"))
                .hint("name each loop once; loops that are not named keep their places"));
        }
        paths.push(path);
    }
    let mut sorted = paths.clone();
    sorted.sort_by_key(Vec::len);
    let (Some(first), Some(last)) = (sorted.first().cloned(), sorted.last().cloned()) else {
        return Ok(());
    };
    let not_perfect = |a: &For, m: &LoopModule| {
        Diagnostic::new(
            "E0430",
            format!("reorder of `{stage}`: loop `{}` holds more than one statement", m.env.vars[a.var].name),
        )
        .hint("reorder before attaching other stages between the loops")
    };
    if sorted.iter().any(|p| !last.starts_with(p)) {
        return Err(Diagnostic::new("E0430", format!("reorder of `{stage}`: the loops are not in one nest"))
            .hint("name loops that lie one inside the other"));
    }
    for n in first.len()..last.len() {
        let l = loop_at(&m.body, &last[..n]);
        if l.body.len() != 1 {
            return Err(not_perfect(l, m));
        }
    }
    // Headers of the whole stretch in their new order.
    let stretch: Vec<For> = (first.len()..=last.len())
        .map(|n| For { body: Body::default(), ..loop_at(&m.body, &last[..n]).clone() })
        .collect();
    let slots: Vec<usize> = sorted.iter().map(|p| p.len() - first.len()).collect();
    let mut new: Vec<For> = stretch.clone();
    for (slot, path) in slots.iter().zip(&paths) {
        new[*slot] = stretch[path.len() - first.len()].clone();
    }
    simplify_extents(m, &last, &mut new);
    let outside: Vec<_> = (1..first.len()).map(|n| loop_at(&m.body, &first[..n])).map(|l| (l.var, l.extent)).collect();
    check_order(m, stage, &outside, &new)?;
    check_terms(m, stage, first.as_slice(), &stretch, &new)?;
    check_conditions(m, stage, &stretch, &new)?;
    check_values(m, stage, &outside, &stretch, &new)?;
    for (n, header) in new.into_iter().enumerate() {
        let l = loop_at_mut(&mut m.body, &last[..first.len() + n]);
        let body = std::mem::take(&mut l.body);
        *l = For { body, ..header };
    }
    Ok(())
}

/// Gives loops that would leave one that their extent uses a simpler extent, if that does not use it. Where the loop
/// that is left runs no iteration neither does anything inside the other, however often it runs.
fn simplify_extents(m: &mut LoopModule, innermost: &[usize], new: &mut [For]) {
    let around: Vec<_> =
        (1..=innermost.len()).map(|n| loop_at(&m.body, &innermost[..n])).map(|l| (l.var, l.extent)).collect();
    for n in 0..new.len() {
        let inner: Vec<_> = new[n + 1..].iter().map(|l| l.var).collect();
        let uses = |m: &LoopModule, e| inner.iter().any(|v| m.env.pool.uses_var(e, *v));
        if uses(m, new[n].extent) {
            let ranges = ranges_of(m, &around, new[n].extent);
            let ranges = Facts::in_loops(ranges);
            let mut simpler = simplify(&mut m.env, None, &ranges, new[n].extent);
            let through = div_through_max(&mut m.env.pool, new[n].extent);
            if through != new[n].extent && uses(m, simpler) {
                simpler = simplify(&mut m.env, None, &ranges, through);
            }
            // Later steps ask for a constant bound: to unroll, to bind to threads.
            simpler = m.env.pool.with_bound_of(new[n].extent, simpler);
            // Functions may have no value where the loop that is left does not run.
            let here = Facts::in_loops(ranges_of(m, &around, simpler));
            if !uses(m, simpler) && is_defined(&mut m.env, &mut Prover::new(), &here, simpler) {
                new[n].extent = simpler;
            }
        }
    }
}

/// The loops of `around`, outermost first, that `extent` depends on, and no other: one that never runs would make
/// everything true, also where the extent is used in a nest without it.
fn ranges_of(m: &LoopModule, around: &[(VarId, ExprId)], extent: ExprId) -> Vec<(VarId, ExprId)> {
    let mut needed = m.env.pool.vars_of(extent);
    let mut ranges = Vec::new();
    for &(v, e) in around.iter().rev() {
        if needed.contains(&v) {
            needed.extend(m.env.pool.vars_of(e));
            ranges.push((v, e));
        }
    }
    ranges.reverse();
    ranges
}

/// A loop that runs those inside it only under a condition keeps them.
fn check_conditions(m: &LoopModule, stage: &str, old: &[For], new: &[For]) -> Result<(), Diagnostic> {
    for (n, l) in old.iter().enumerate().filter(|(_, l)| is_condition(&m.env.pool, l.extent)) {
        let after = new.iter().skip_while(|x| x.var != l.var);
        let kept = |inner: &For| after.clone().any(|x| x.var == inner.var);
        if let Some(inner) = old[n + 1..].iter().find(|&inner| !kept(inner)) {
            let (outer, inner) = (&m.env.vars[l.var].name, &m.env.vars[inner.var].name);
            return Err(Diagnostic::new(
                "E0433",
                format!("loop `{stage}.{inner}` cannot move outside `{stage}.{outer}`, which is a condition for it"),
            )
            .hint(format!("keep `{inner}` inside `{outer}`, or reorder before the step that made the condition")));
        }
    }
    Ok(())
}

/// The refusal of a step that would permute the terms of a reduction whose combiner needs them in order.
pub(super) fn permuted(m: &LoopModule, reduction: Reduction, shown: &str) -> Diagnostic {
    let name = m.env.reduction_name(reduction);
    Diagnostic::new("E0437", format!("`{shown}`: `{name}` is not commutative, so its terms keep their order"))
        .hint("declare the combiner `commutative` if it is, or keep reduced loops in order and factor the outermost")
}

/// Terms change places only where the combiner allows it.
fn check_terms(m: &LoopModule, stage: &str, path: &[usize], old: &[For], new: &[For]) -> Result<(), Diagnostic> {
    let mut blocks = Vec::new();
    loop_at(&m.body, path).body.iter().for_each(|s| {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s {
                blocks.push(b);
            }
        });
    });
    for b in blocks {
        let BlockRole::Update(r) = b.role else { continue };
        let reduced = |loops: &[For]| -> Vec<VarId> {
            loops.iter().map(|l| l.var).filter(|&v| is_reduction_var(&m.env.pool, b, v)).collect()
        };
        if !m.env.is_commutative(r) && reduced(old) != reduced(new) {
            return Err(permuted(m, r, &format!("reorder {stage}")));
        }
    }
    Ok(())
}

/// An extent that calls functions has a value where the loop is put, also where a loop that it leaves never runs.
fn check_values(
    m: &mut LoopModule,
    stage: &str,
    outside: &[(VarId, ExprId)],
    old: &[For],
    new: &[For],
) -> Result<(), Diagnostic> {
    let mut prover = Prover::new();
    for (n, l) in new.iter().enumerate() {
        if !m.env.pool.any(l.extent, &mut |e| matches!(e, Expr::Call(..) | Expr::Load { .. })) {
            continue;
        }
        let was_inside = |x: &&For| old.iter().take_while(|o| o.var != l.var).any(|o| o.var == x.var);
        for left in new[n + 1..].iter().filter(was_inside) {
            // Only loops that it depends on: the others need not be around an `init` of the same loops.
            let around: Vec<_> = outside.iter().copied().chain(new[..n].iter().map(|l| (l.var, l.extent))).collect();
            let ranges = ranges_of(m, &around, l.extent);
            let mut facts = Facts::in_loops(ranges.iter().copied());
            let zero = m.env.pool.int(0);
            for (_, extent) in ranges {
                let runs = m.env.pool.lt(zero, extent);
                facts.push_assumption(runs);
            }
            let always = m.env.pool.as_int(left.extent).is_some_and(|e| e > 0);
            if !always && !is_defined(&mut m.env, &mut prover, &facts, l.extent) {
                let (name, on) = (&m.env.vars[l.var].name, &m.env.vars[left.var].name);
                let d = Diagnostic::new(
                    "E0431",
                    format!(
                        "loop `{stage}.{name}` cannot move outside `{stage}.{on}`: where that never runs its extent \
                         need not have a value"
                    ),
                );
                let zero = m.env.pool.int(0);
                let runs = m.env.pool.lt(zero, left.extent);
                return Err(with_example(d, &m.env, &facts, runs).hint("leave it inside the loop that decides"));
            }
        }
    }
    Ok(())
}

/// Two iterations of `inner` in which the extent of `l` differs.
fn differing(m: &mut LoopModule, outside: &[(VarId, ExprId)], l: &For, inner: &For) -> (Facts, ExprId) {
    let other = m.env.new_var(format!("{}2", m.env.vars[inner.var].name));
    let pool = &mut m.env.pool;
    let second = [(inner.var, pool.var(other))].into_iter().collect();
    let extent = pool.substitute(l.extent, &second);
    let same = pool.bin(cora_ir::BinOp::Eq, l.extent, extent);
    let all = outside.iter().copied().chain([(inner.var, inner.extent), (other, inner.extent)]);
    (Facts::in_loops(all), same)
}

fn check_order(m: &mut LoopModule, stage: &str, outside: &[(VarId, ExprId)], new: &[For]) -> Result<(), Diagnostic> {
    for (n, l) in new.iter().enumerate() {
        let name = m.env.vars[l.var].name.clone();
        if n > 0 && l.kind == LoopKind::Parallel {
            return Err(Diagnostic::new(
                "E0411",
                format!("loop `{stage}.{name}` is parallel and would move inside another"),
            )
            .hint("reorder first, then make the outermost loop parallel"));
        }
        if let Some(outer) = new[..n].iter().find(|o| l.kind.is_block() && !o.kind.is_block()) {
            let on = &m.env.vars[outer.var].name;
            return Err(Diagnostic::new(
                "E0446",
                format!("loop `{stage}.{name}` is bound to blocks and would move inside `{on}`, which is not"),
            )
            .hint("only the outermost loops of a nest can be blocks: reorder first, then bind"));
        }
        if let Some(inner) = new[n + 1..].iter().find(|o| m.env.pool.uses_var(l.extent, o.var)) {
            let on = m.env.vars[inner.var].name.clone();
            let d = Diagnostic::new(
                "E0431",
                format!("loop `{stage}.{name}` cannot move outside `{stage}.{on}`: its extent depends on `{on}`"),
            );
            // Where the loop inside is one that varies itself, so does what it varies with.
            let around: Vec<(VarId, ExprId)> = outside
                .iter()
                .copied()
                .chain(new.iter().filter(|o| o.var != inner.var).map(|o| (o.var, o.extent)))
                .collect();
            let both = m.env.pool.add(l.extent, inner.extent);
            let around = ranges_of(m, &around, both);
            let (facts, same) = differing(m, &around, l, inner);
            let hint = match m.env.pool.constant_bound(l.extent) {
                Some(_) => {
                    "a loop that ends with the rows stays inside the loops that it depends on; split with tail(mask), all \
                     tiles have the same loop"
                }
                None => "a variable loop stays inside the loops that it depends on",
            };
            return Err(with_example(d, &m.env, &facts, same).hint(hint));
        }
    }
    Ok(())
}
