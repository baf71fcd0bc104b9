//! `rfactor S.ko -> Sf`: a reduction's partial results for each iteration of one of its loops.
//!
//! ```text
//! for i { S[i] = 0; for ko { for ki { S[i] += x(ko*4+ki) } } }
//!   =>  for i { for ko { Sf[i, ko] = 0; for ki { Sf[i, ko] += x(ko*4+ki) } } }
//!       for i { S[i] = 0; for ko { S[i] += Sf[i, ko] } }
//! ```
//!
//! The partial results are a tensor of their own, ragged where the loop's extent depends on where the
//! element is. They are combined in the order of the loop, whoever computed them: results do not
//! depend on the number of threads (paper section 4.1; TVM's primitive of the same name).
//!
//! A loop that ends elsewhere in each iteration of another reduced one, as the inner loop of a split, runs to
//! where it ends at most, and a mask decides which of its iterations count: a partial result of none is the identity.
//!
//! Requires: the stage is not attached, and is reduced over the loop; the loop's extent, or a bound of it, is a
//! function of the element. Ensures: every element combines the same terms, in another order; the new stage
//! has the stage's loops under their names, the stage keeps its spatial loops and the one named.

use super::pad_dim::calls_with_arg;
use super::region::{bound_above, range_over};
use super::tree::{
    Path, enclosing, find_loop, find_stage, in_own_loops, is_condition, is_reduction_var, loop_at, own_iters,
    place_init, remove_init, stages_below, stmt_at,
};
use crate::lower::sign::as_size;
use crate::simplify::{Facts, Prover, with_example};
use cora_ir::loops::{Block, BlockRole, Body, For, Iter, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, ExprPool, Tensor, TensorDim, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Makes the new stage `name` compute the partial results of `target`'s stage for each of its iterations.
///
/// # Errors
/// `E0401`/`E0402` unknown stage or loop, `E0411` a loop that is not serial, `E0460` the name is taken,
/// `E0494` a loop that the stage is not reduced over, `E0495` an attached stage, or one with others
/// attached in its loops, `E0496` a loop whose extent is no function of the stage's element and has no bound that is
/// one, `E0437` a loop inside another reduced one, where the combiner is not commutative.
pub fn rfactor(m: &mut LoopModule, target: &LoopRef, name: &str) -> Result<(), Diagnostic> {
    let old = find_stage(m, &target.stage)?;
    let shown = format!("{}.{}", target.stage, target.name);
    if m.env.tensor_named(name).is_some() {
        return Err(Diagnostic::new("E0460", format!("there already is a tensor `{name}`"))
            .hint("choose another name for the new stage"));
    }
    let var = loop_at(&m.body, &find_loop(m, target)?).var;
    let mut nest = Nest::of(m, old, &target.stage)?;
    let at = nest.loops.iter().position(|l| l.var == var).filter(|_| is_reduction_var(&m.env.pool, &nest.block, var));
    let (Some(at), BlockRole::Update(_)) = (at, nest.block.role) else {
        return Err(Diagnostic::new("E0494", format!("`{}` is not reduced over `{shown}`", target.stage))
            .hint("name a loop that the stage is reduced over"));
    };
    if let Some(l) = nest.loops.iter().find(|l| is_reduced(m, &nest, l) && l.kind != LoopKind::Serial) {
        let l = &m.env.vars[l.var].name;
        return Err(Diagnostic::new("E0411", format!("loop `{}.{l}` is no longer serial", target.stage))
            .hint("factor the reduction first, then make loops vector or unrolled"));
    }
    let BlockRole::Update(reduction) = nest.block.role else { return Ok(()) };
    if !m.env.is_commutative(reduction) && nest.loops[..at].iter().any(|l| is_reduced(m, &nest, l)) {
        return Err(super::reorder::permuted(m, reduction, &shown));
    }
    bound_loop(m, &mut nest, at);
    let dims = dims(m, &nest, at, &shown)?;
    let mut partial = partial_block(m, &nest, var).ok_or_else(|| not_of_element(&shown))?;
    let (ty, tuple) = (m.env.tensors[nest.block.tensor].ty, m.env.tensors[nest.block.tensor].tuple);
    let new = m.env.tensors.push(Tensor { tuple, ..Tensor::temp(name, ty, dims) });
    (partial.stage, partial.tensor) = (new, new);
    let header = |l: &For| For { stage: new, ..l.clone() };
    let partial =
        nest.loops.iter().rev().fold(Stmt::Block(partial), |s, l| Stmt::For(For { body: vec![s].into(), ..header(l) }));
    remove_init(&mut m.body, old);
    let combined = combined_nest(m, &nest, var, new);
    let top = nest.top;
    m.body[top] = combined;
    m.body.insert(top, partial);
    place_init(m, new);
    place_init(m, old);
    Ok(())
}

/// The loops around a stage's block, outermost first, and the block.
struct Nest {
    top: usize,
    loops: Vec<For>,
    block: Block,
}

impl Nest {
    fn of(m: &LoopModule, stage: TensorId, name: &str) -> Result<Self, Diagnostic> {
        let mut body = m.body.clone();
        remove_init(&mut body, stage);
        let mut tops = (0..body.len()).filter(|&n| stages_below(&body[n..=n]).contains(&stage));
        let (Some(top), None) = (tops.next(), tops.next()) else { return Err(shared(name)) };
        let mut path: Path = vec![top];
        while let Some(Stmt::For(l)) = stmt_at(&body, &path) {
            if l.body.len() != 1 || l.stage != stage {
                return Err(shared(name));
            }
            path.push(0);
        }
        let Some(Stmt::Block(block)) = stmt_at(&body, &path) else { return Err(shared(name)) };
        let loops = enclosing(&body, &path).into_iter().map(|l| For { body: Body::default(), ..l.clone() }).collect();
        Ok(Self { top, loops, block: block.clone() })
    }
}

fn shared(name: &str) -> Diagnostic {
    Diagnostic::new("E0495", format!("`{name}` is not alone in its loops")).hint(
        "factor the reduction before stages are attached and loops are peeled; the new stage can be attached itself",
    )
}

fn is_reduced(m: &LoopModule, nest: &Nest, l: &For) -> bool {
    is_reduction_var(&m.env.pool, &nest.block, l.var)
}

/// Gives the loop an extent that is a function of the element, if it has a bound that is one; its surplus is masked.
fn bound_loop(m: &mut LoopModule, nest: &mut Nest, at: usize) {
    let For { var, extent, .. } = nest.loops[at];
    // In surplus iterations a function has no value.
    let pool = &m.env.pool;
    let called = |n: &Expr| matches!(n, Expr::Call(_, args) if args.iter().any(|&a| pool.uses_var(a, var)));
    let mut steering = nest.loops[at + 1..].iter().map(|l| l.extent).chain(nest.block.predicate.iter().copied());
    if steering.any(|e| pool.any(e, &mut |n| called(n))) {
        return;
    }
    let mut bounds = vec![extent];
    let mut n = 0;
    while let Some(&e) = bounds.get(n) {
        if let Expr::Bin(BinOp::Min, a, b) = *m.env.pool.get(e) {
            bounds.extend([a, b]);
        }
        n += 1;
    }
    // The greatest of all terms, which is none where there are no terms.
    let (mut around, reduced): (Vec<&For>, Vec<&For>) = nest.loops[..at].iter().partition(|l| !is_reduced(m, nest, l));
    let spatial = around.len();
    around.extend(reduced);
    let around: Vec<(VarId, ExprId)> = around.into_iter().map(|l| (l.var, l.extent)).collect();
    if let Some((_, greatest)) = range_over(&mut m.env, extent, &around, spatial) {
        bounds.push(as_size(&mut m.env, &[], greatest));
    }
    // Or of all terms of all elements.
    bounds.extend(bound_above(&mut m.env, extent, &around));
    let Some(bound) = bounds.into_iter().find(|&e| is_of_element(m, nest, e)) else { return };
    if bound != extent {
        let v = m.env.pool.var(var);
        nest.loops[at].extent = bound;
        nest.block.predicate.push(m.env.pool.lt(v, extent));
    }
}

/// Whether a number of iterations is the same for all terms of an element.
fn is_of_element(m: &mut LoopModule, nest: &Nest, extent: ExprId) -> bool {
    let e = element_extent(&mut m.env, nest, extent);
    let pool = &m.env.pool;
    !is_condition(pool, extent) && !pool.vars_of(e).iter().any(|v| nest.loops.iter().any(|l| l.var == *v))
}

/// The dimensions of the partial results: the stage's, padded as they are, and the loop's iterations.
fn dims(m: &mut LoopModule, nest: &Nest, at: usize, shown: &str) -> Result<Vec<TensorDim>, Diagnostic> {
    let extent = nest.loops[at].extent;
    if !is_of_element(m, nest, extent) {
        return Err(not_of_element(shown));
    }
    let over_element = element_extent(&mut m.env, nest, extent);
    let mut dims = m.env.tensors[nest.block.tensor].dims.clone();
    for (d, dim) in dims.iter_mut().enumerate() {
        // A function that gives the new extent has no value at positions of the padding.
        if dim.storage == dim.extent || !calls_with_arg(&m.env.pool, over_element, d as u32) {
            continue;
        }
        if let Some((facts, inside)) = may_be_surplus(m, nest, d) {
            let dim = &dim.name;
            let refusal = Diagnostic::new(
                "E0496",
                format!(
                    "a padded loop writes surplus positions of `{dim}`, where `{shown}` has no number of iterations"
                ),
            );
            return Err(with_example(refusal, &m.env, &facts, inside)
                .hint("factor the reduction first, then pad the loops of both stages"));
        }
        dim.storage = dim.extent;
    }
    let name = m.env.vars[nest.loops[at].var].name.clone();
    dims.push(TensorDim::new(name, over_element));
    Ok(dims)
}

/// If the stage's loops may go beyond the valid positions of dimension `d`: the facts, and what does not follow.
fn may_be_surplus(m: &mut LoopModule, nest: &Nest, d: usize) -> Option<(Facts, ExprId)> {
    let map: FxHashMap<VarId, ExprId> = nest.block.iters.iter().map(|i| (i.var, i.binding)).collect();
    let mut facts = Facts::in_loops(nest.loops.iter().map(|l| (l.var, l.extent)));
    facts.assumptions.extend(nest.block.predicate.iter().copied());
    let extent = m.env.extent_at(nest.block.tensor, d, &nest.block.index);
    let goal = m.env.pool.lt(nest.block.index[d], extent);
    let goal = m.env.pool.substitute(goal, &map);
    let proved = Prover::new().prove(&mut m.env, &facts, goal).is_proved();
    (!proved).then_some((facts, goal))
}

fn not_of_element(shown: &str) -> Diagnostic {
    Diagnostic::new("E0496", format!("the number of iterations of `{shown}` is no function of the element"))
        .hint("factor the reduction before its spatial loops are split, or name a loop outside the other reduced ones")
}

/// An extent over loop variables as one over the indices of the stage's tensor (`Arg`s).
fn element_extent(env: &mut Env, nest: &Nest, extent: ExprId) -> ExprId {
    let mut map: FxHashMap<ExprId, ExprId> = FxHashMap::default();
    for (n, &x) in nest.block.index.iter().enumerate() {
        let bound = nest.block.iters.iter().find(|i| env.pool.as_var(x) == Some(i.var));
        if let Some(i) = bound {
            let arg = env.pool.arg(n as u32);
            map.insert(i.binding, arg);
        }
    }
    replace(&mut env.pool, extent, &map)
}

/// Replaces whole subexpressions.
fn replace(pool: &mut ExprPool, e: ExprId, map: &FxHashMap<ExprId, ExprId>) -> ExprId {
    pool.rewrite(e, &mut |_, x| map.get(&x).copied())
}

/// The stage's own block as one of the partial results; `stage` and `tensor` are still the stage's.
///
/// It reduces over the loops that are left, one iterator each: the reduced positions follow from
/// them and from the factored iteration, wherever the block is attached later.
fn partial_block(m: &mut LoopModule, nest: &Nest, var: VarId) -> Option<Block> {
    let mut block = nest.block.clone();
    block.continues = false;
    block.atomic = false;
    let (iter, index) = loop_iter(m, nest, var);
    let mut map: FxHashMap<ExprId, ExprId> = FxHashMap::default();
    for i in block.iters.iter().filter(|i| i.kind == IterKind::Spatial).chain([&iter]) {
        let own = m.env.pool.var(i.var);
        map.insert(i.binding, own);
    }
    let reduced: Vec<Iter> = block.iters.extract_if(.., |i| i.kind == IterKind::Reduce).collect();
    block.iters.push(iter);
    block.index.push(index);
    let of_loops = |pool: &ExprPool, e| pool.vars_of(e).iter().any(|v| nest.loops.iter().any(|l| l.var == *v));
    for l in nest.loops.iter().filter(|l| l.var != var) {
        if !is_reduction_var(&m.env.pool, &nest.block, l.var) {
            continue;
        }
        let extent = replace(&mut m.env.pool, l.extent, &map);
        if of_loops(&m.env.pool, extent) {
            return None;
        }
        let name = m.env.vars[l.var].name.clone();
        let own = m.env.new_var(name);
        let (binding, at) = (m.env.pool.var(l.var), m.env.pool.var(own));
        map.insert(binding, at);
        block.iters.push(Iter { var: own, kind: IterKind::Reduce, extent, binding });
    }
    let mut positions: FxHashMap<VarId, ExprId> = FxHashMap::default();
    for i in &reduced {
        let at = replace(&mut m.env.pool, i.binding, &map);
        if of_loops(&m.env.pool, at) {
            return None;
        }
        positions.insert(i.var, at);
    }
    block.value = m.env.pool.substitute(block.value, &positions);
    Some(block)
}

/// An iterator for the iterations of the factored loop, and the index made of it.
fn loop_iter(m: &mut LoopModule, nest: &Nest, var: VarId) -> (Iter, ExprId) {
    let l = &nest.loops[nest.loops.iter().position(|l| l.var == var).unwrap_or_default()];
    let whole = l.extent;
    // A domain is over the block's own iterators.
    let mut map: FxHashMap<ExprId, ExprId> = FxHashMap::default();
    for i in nest.block.iters.iter().filter(|i| i.kind == IterKind::Spatial) {
        let v = m.env.pool.var(i.var);
        map.insert(i.binding, v);
    }
    let extent = replace(&mut m.env.pool, whole, &map);
    let name = m.env.vars[var].name.clone();
    let own = m.env.new_var(name);
    let binding = m.env.pool.var(var);
    let index = m.env.pool.var(own);
    (Iter { var: own, kind: IterKind::Spatial, extent, binding }, index)
}

/// The stage's spatial loops and the factored one around the sum of the partial results.
fn combined_nest(m: &mut LoopModule, nest: &Nest, var: VarId, new: TensorId) -> Stmt {
    let (mut reduce, _) = loop_iter(m, nest, var);
    let mut block = nest.block.clone();
    block.iters.retain(|i| i.kind == IterKind::Spatial);
    // What the partial results leave out they have left out.
    let left_out = |v: &VarId| *v != var && is_reduction_var(&m.env.pool, &nest.block, *v);
    block.predicate.retain(|&p| !m.env.pool.vars_of(p).iter().any(left_out));
    reduce.kind = IterKind::Reduce;
    block.iters.push(reduce);
    own_iters(&mut m.env, &mut block);
    let last = block.iters.last().map(|i| m.env.pool.var(i.var));
    let at: Vec<ExprId> = block.index.iter().copied().chain(last).collect();
    block.value = m.env.element(new, &at);
    let kept = |l: &&For| l.var == var || !is_reduction_var(&m.env.pool, &nest.block, l.var);
    let loops: Vec<For> = nest.loops.iter().filter(kept).cloned().collect();
    in_own_loops(&mut m.env, block, &loops)
}
