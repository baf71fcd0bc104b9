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
//! The new stage stands just before the stage, where that is attached, or beside stages that are not for it alone, in the
//! same loop; what is attached in the stage's own loops is in those of the new one.
//!
//! Requires: the stage is in one piece, and is reduced over the loop; the loop's extent, or a bound of it, is a
//! function of the element. Ensures: every element combines the same terms, in another order; the new stage
//! has the stage's loops under their names, the stage keeps its spatial loops and the one named.

use super::conditions::is_condition;
use super::inits::{place_init, remove_init};
use super::pad_dim::calls_with_arg;
use super::region::{bound_above, range_over};
use super::solved::in_terms_of;
use super::tree::{
    Path, add_predicate, blocks_in, body_at_mut, find_loop, find_stage, first_block_in, in_own_loops, is_reduction_var,
    looks_up, loop_at, own_iters, reads, reads_below, stages_of, stmt_at, written_by,
};
use crate::lower::sign::as_size;
use crate::simplify::{Facts, Prover, with_example};
use cora_ir::loops::{Block, BlockRole, Body, For, Iter, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, ExprPool, Role, Scope, Tensor, TensorDim, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Makes the new stage `name` compute the partial results of `target`'s stage for each of its iterations.
///
/// # Errors
/// `E0401`/`E0402` unknown stage or loop, `E0411` a loop that is not serial, `E0460` the name is taken,
/// `E0494` a loop that the stage is not reduced over, `E0495` a stage in parts, or one that is reduced over a loop that it
/// shares with others which are not for it alone, `E0496` a loop whose extent is no function of the stage's element and
/// has no bound that is one, `E0437` a loop inside another reduced one, where the combiner is not commutative.
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
    let scope = if nest.around.is_empty() { Scope::Global } else { Scope::Local };
    let new = m.env.tensors.push(Tensor { tuple, scope, ..Tensor::temp(name, ty, dims) });
    (partial.stage, partial.tensor) = (new, new);
    remove_init(&mut m.body, old);
    let combined = combined_nest(m, &nest, var, new);
    let (&top, around) = nest.site.split_last().expect("a stage's loops are somewhere");
    let body = body_at_mut(&mut m.body, around);
    let mut whole = std::mem::replace(&mut body[top], combined);
    turn_partial(&mut m.env.pool, &mut whole, old, &nest.loops[at], &partial);
    body.insert(top, whole);
    place_init(m, new);
    place_init(m, old);
    Ok(())
}

/// A stage's own loops, outermost first, and its block.
struct Nest {
    /// Where the outermost of them is, when the stage has no `init`.
    site: Path,
    /// The loops that it is attached in, and their extents.
    around: Vec<(VarId, ExprId)>,
    loops: Vec<For>,
    /// What is attached in its own loops.
    attached: Vec<Stmt>,
    block: Block,
}

impl Nest {
    fn of(m: &LoopModule, stage: TensorId, name: &str) -> Result<Self, Diagnostic> {
        let mut body = m.body.clone();
        remove_init(&mut body, stage);
        let mut blocks = blocks_in(&body).into_iter().filter(|(b, _)| b.stage == stage);
        let (Some((block, loops)), None) = (blocks.next(), blocks.next()) else { return Err(in_parts(name)) };
        let whole = first_block_in(&body, stage).ok_or_else(|| in_parts(name))?;
        let first = loops.iter().position(|l| l.stage == stage).unwrap_or(loops.len());
        // Loops that it shares with stages which are not for it alone are around it.
        let own_from = (first..loops.len()).find(|&n| is_alone(m, &body, &whole[..=n], stage));
        let (around, own) = loops.split_at(own_from.unwrap_or(loops.len()));
        if let Some(l) = around.iter().find(|l| is_reduction_var(&m.env.pool, block, l.var)) {
            let (of, l) = (&m.env.tensors[l.stage].name, &m.env.vars[l.var].name);
            return Err(Diagnostic::new(
                "E0495",
                format!("`{name}` is reduced over loop `{of}.{l}`, where other stages are"),
            )
            .hint("factor the reduction before it shares loops with another stage"));
        }
        if let Some(l) = own.iter().find(|l| l.stage != stage) {
            let (of, l) = (&m.env.tensors[l.stage].name, &m.env.vars[l.var].name);
            return Err(Diagnostic::new("E0495", format!("loop `{of}.{l}` around `{name}` is another stage's"))
                .hint("factor the reduction before its loops are fused with those of others"));
        }
        let mut site = whole;
        site.truncate(around.len() + 1);
        let around = around.iter().map(|l| (l.var, l.extent)).collect();
        let others =
            own.iter().flat_map(|l| l.body.iter()).filter(|&s| !stages_of(std::slice::from_ref(s)).contains(&stage));
        let attached = others.cloned().collect();
        let loops = own.iter().map(|&l| For { body: Body::default(), ..l.clone() }).collect();
        Ok(Self { site, around, loops, attached, block: block.clone() })
    }

    /// What is known in the innermost loop.
    fn facts(&self) -> Facts {
        Facts::in_loops(self.around.iter().copied().chain(self.loops.iter().map(|l| (l.var, l.extent))))
    }

    fn uses_loops(&self, pool: &ExprPool, e: ExprId) -> bool {
        let is_loop = |v| self.around.iter().any(|l| l.0 == v) || self.loops.iter().any(|l| l.var == v);
        pool.vars_of(e).into_iter().any(is_loop)
    }
}

fn in_parts(name: &str) -> Diagnostic {
    Diagnostic::new("E0495", format!("`{name}` is computed in parts"))
        .hint("factor the reduction before its loops are peeled, or name one of the parts")
}

/// Whether the other stages in the loop at `site` are for `stage` alone: nothing outside reads them.
fn is_alone(m: &LoopModule, body: &[Stmt], site: &[usize], stage: TensorId) -> bool {
    let Some(whole) = stmt_at(body, site) else { return false };
    let others: Vec<&Block> =
        blocks_in(std::slice::from_ref(whole)).into_iter().map(|(b, _)| b).filter(|b| b.stage != stage).collect();
    if others.is_empty() {
        return true;
    }
    let pool = &m.env.pool;
    let own = written_by(m, stage);
    let mut outside = body.to_vec();
    let (&last, around) = site.split_last().expect("a stage's loops are somewhere");
    body_at_mut(&mut outside, around).remove(last);
    let read_outside = reads_below(pool, &outside);
    let private = |b: &&Block| m.env.tensors[b.tensor].role == Role::Temp && !read_outside.contains(&b.tensor);
    others.iter().all(private) && others.iter().all(|&b| !reads(pool, &Stmt::Block(b.clone()), own))
}

/// Makes the nest of `stage` that of the partial results: their block, with the factored loop as it is now. What is
/// attached in that does nothing in its surplus iterations.
fn turn_partial(pool: &mut ExprPool, s: &mut Stmt, stage: TensorId, factored: &For, partial: &Block) {
    match s {
        Stmt::Block(b) if b.stage == stage => *b = partial.clone(),
        Stmt::Block(_) => {}
        Stmt::For(l) => {
            if l.stage == stage {
                l.stage = partial.stage;
            }
            for s in &mut l.body {
                turn_partial(pool, s, stage, factored, partial);
            }
            if l.var == factored.var && l.extent != factored.extent {
                let v = pool.var(l.var);
                let counts = pool.lt(v, l.extent);
                add_predicate(pool, &mut l.body, counts);
                l.extent = factored.extent;
            }
        }
    }
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
    if nest.attached.iter().any(|s| looks_up(pool, s, var)) || steering.any(|e| pool.any(e, &mut |n| called(n))) {
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
    !is_condition(&m.env.pool, extent) && !nest.uses_loops(&m.env.pool, e)
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
    let mut facts = nest.facts();
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
    let mut known = Vec::new();
    for (n, &x) in nest.block.index.iter().enumerate() {
        let bound = nest.block.iters.iter().find(|i| env.pool.as_var(x) == Some(i.var));
        if let Some(i) = bound {
            known.push((i.binding, env.pool.arg(n as u32)));
        }
    }
    in_terms_of(env, &nest.facts(), extent, &known)
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
    let facts = nest.facts();
    let spatial = block.iters.iter().filter(|i| i.kind == IterKind::Spatial).chain([&iter]);
    let mut known: Vec<(ExprId, ExprId)> = spatial.map(|i| (i.binding, m.env.pool.var(i.var))).collect();
    let reduced: Vec<Iter> = block.iters.extract_if(.., |i| i.kind == IterKind::Reduce).collect();
    block.iters.push(iter);
    block.index.push(index);
    for l in nest.loops.iter().filter(|l| l.var != var) {
        if !is_reduction_var(&m.env.pool, &nest.block, l.var) {
            continue;
        }
        let extent = in_terms_of(&mut m.env, &facts, l.extent, &known);
        if nest.uses_loops(&m.env.pool, extent) {
            return None;
        }
        let name = m.env.vars[l.var].name.clone();
        let own = m.env.new_var(name);
        let (binding, at) = (m.env.pool.var(l.var), m.env.pool.var(own));
        known.push((binding, at));
        block.iters.push(Iter { var: own, kind: IterKind::Reduce, extent, binding });
    }
    let mut positions: FxHashMap<VarId, ExprId> = FxHashMap::default();
    for i in &reduced {
        let at = in_terms_of(&mut m.env, &facts, i.binding, &known);
        if nest.uses_loops(&m.env.pool, at) {
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
    let spatial = nest.block.iters.iter().filter(|i| i.kind == IterKind::Spatial);
    let known: Vec<(ExprId, ExprId)> = spatial.map(|i| (i.binding, m.env.pool.var(i.var))).collect();
    let extent = in_terms_of(&mut m.env, &nest.facts(), whole, &known);
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
