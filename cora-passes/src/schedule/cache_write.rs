//! `cache_write S -> Sr reg at S.k`: a stage computes into a local buffer, which is copied out.
//!
//! ```text
//! for io { for k { for ii { S[io*4+ii] += .. } } }
//!   =>  for io { for k { for ii { Sr[ii] += .. } }  for ii { S[io*4+ii] = Sr[ii] } }    (at S.io)
//! ```
//!
//! The buffer has one dimension for each spatial loop inside the attach loop that is no condition, so its indices are
//! loop variables whatever the raggedness. A loop that alone runs through a dimension of the stage, and
//! the buffer's dimension for it, are called like that dimension too. Requires: only loops of this stage
//! inside. Ensures: the new stage owns the computing loops, the old one the copying loops, under their
//! old names.
//!
//! In a loop that the stage is reduced over, the buffer holds the partial result of one iteration, which is combined
//! with what the stage has:
//!
//! ```text
//! for ko { for ii { for ki { S[ii] += .. } } }
//!   =>  for ko { for ii { for ki { Sr[ii] += .. } }  for ii { S[ii] += Sr[ii] } }    (at S.ko)
//! ```
//!
//! The part of an iteration without terms is the identity of the reduction.

use super::conditions::runs_once_or_never;
use super::inits::{place_init, remove_init};
use super::mirrored::dims_of_loops;
use super::region::bound_above;
use super::tree::{
    Path, enclosing, find_loop, find_stage, in_own_loops, is_reduction_var, loop_at_mut, own_iters, stmt_at,
};
use crate::simplify::{Facts, Prover};
use cora_ir::loops::{Block, BlockRole, Body, For, Iter, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{Diagnostic, ExprId, Scope, Tensor, TensorDim, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Makes `stage` compute into the new stage `name` of scope `scope` in each iteration of `at`.
///
/// # Errors
/// `E0401`/`E0402` unknown stage or loop, `E0460` the name is taken, `E0461` the loop is not one of
/// the stage's, or a loop inside belongs to another stage, `E0462` an inner loop without a bound.
pub fn cache_write(m: &mut LoopModule, stage: &str, name: &str, scope: Scope, at: &LoopRef) -> Result<(), Diagnostic> {
    let old = find_stage(m, stage)?;
    let path = find_loop(m, at)?;
    if m.env.tensor_named(name).is_some() {
        return Err(Diagnostic::new("E0460", format!("there already is a tensor `{name}`"))
            .hint("choose another name for the new stage"));
    }
    let saved = m.body.clone();
    remove_init(&mut m.body, old);
    let path = find_loop(m, at).unwrap_or(path);
    let Some((block_path, block)) = find_main(&m.body, old, &path) else {
        m.body = saved;
        return Err(Diagnostic::new("E0461", format!("loop `{}.{}` is not around stage `{stage}`", at.stage, at.name))
            .hint("name a loop around the stage's own block"));
    };
    let all: Vec<For> =
        enclosing(&m.body, &block_path).into_iter().map(|l| For { body: Body::default(), ..l.clone() }).collect();
    let partial = all[..path.len()].iter().any(|l| is_reduction_var(&m.env.pool, &block, l.var));
    let inner: Vec<For> = all[path.len()..].to_vec();
    if inner.iter().any(|l| l.stage != old) {
        m.body = saved;
        return Err(Diagnostic::new(
            "E0461",
            format!("a loop inside `{}.{}` belongs to another stage", at.stage, at.name),
        )
        .hint("cache the stage before others are attached in its loops"));
    }
    let ranges: Vec<(VarId, ExprId)> = all.iter().map(|l| (l.var, l.extent)).collect();
    let copied: Vec<For> = inner.into_iter().filter(|l| !is_reduction_var(&m.env.pool, &block, l.var)).collect();
    // A condition holds for all elements inside.
    let spatial: Vec<For> = copied.iter().filter(|l| !runs_once_or_never(&m.env.pool, l.extent)).cloned().collect();
    let names = other_names(m, &block, &spatial);
    let mut dims = Vec::new();
    for (l, also) in spatial.iter().zip(&names) {
        let Some(bound) = bound_above(&mut m.env, l.extent, &ranges) else {
            m.body = saved;
            let lname = &m.env.vars[l.var].name;
            return Err(Diagnostic::new("E0462", format!("loop `{stage}.{lname}` has no bound to size `{name}` by"))
                .hint("split it by a constant, or cache at an inner loop"));
        };
        dims.push(TensorDim { also: also.clone(), ..TensorDim::new(m.env.vars[l.var].name.clone(), bound) });
    }
    let Some(parts) = part_numbers(m, &block, &all[..path.len()]) else {
        m.body = saved;
        return Err(Diagnostic::new("E0462", format!("the loops around `{}.{}` have no bound", at.stage, at.name))
            .hint("name a loop outside all that the stage is reduced over"));
    };
    // The tensor that is written: a part of a stage is a tensor of another type.
    let (ty, tuple) = (m.env.tensors[block.tensor].ty, m.env.tensors[block.tensor].tuple);
    let new = m.env.tensors.push(Tensor { tuple, scope, ..Tensor::temp(name, ty, dims) });
    // Without a first term the combination is of the part with that number.
    let numbers = (partial && !has_terms(m, &block, &all, path.len())).then_some(&parts[..]);
    let copy = copy_nest(m, &block, numbers, (&all[path.len()..], &copied, &spatial), new, partial);
    for (l, also) in spatial.iter().zip(names) {
        m.env.vars[l.var].also = also;
    }
    let mut compute = block.clone();
    compute.stage = new;
    compute.continues = false;
    compute.atomic = false;
    compute.tensor = new;
    compute.iters.splice(0..0, parts);
    compute.index = slots(m, &mut compute.iters, &spatial, new);
    retarget(&mut loop_at_mut(&mut m.body, &path).body, old, new, &compute);
    let body = &mut loop_at_mut(&mut m.body, &path).body;
    let after = block_path[path.len()] + 1;
    body.insert(after, copy);
    place_init(m, new);
    if partial {
        place_init(m, old);
    }
    Ok(())
}

/// What else the loops are called, and the buffer's dimensions: as the dimensions of the stage that they run through.
fn other_names(m: &mut LoopModule, block: &Block, spatial: &[For]) -> Vec<Option<String>> {
    let bindings: FxHashMap<VarId, ExprId> = block.iters.iter().map(|i| (i.var, i.binding)).collect();
    let index: Vec<ExprId> = block.index.iter().map(|&e| m.env.pool.substitute(e, &bindings)).collect();
    let loops: Vec<(VarId, ExprId)> = spatial.iter().map(|l| (l.var, l.extent)).collect();
    let dims = dims_of_loops(&m.env, &index, &loops);
    let name = |(l, d): (&For, Option<usize>)| {
        let own = &m.env.vars[l.var];
        let dim = d.map(|d| m.env.tensors[block.tensor].dims[d].name.clone());
        dim.filter(|n| *n != own.name).or_else(|| own.also.clone())
    };
    spatial.iter().zip(dims).map(name).collect()
}

/// A spatial iterator for each of the loops that the stage is reduced over: the buffer is another one in each iteration.
fn part_numbers(m: &mut LoopModule, block: &Block, outside: &[For]) -> Option<Vec<Iter>> {
    let ranges: Vec<(VarId, ExprId)> = outside.iter().map(|l| (l.var, l.extent)).collect();
    let mut iters = Vec::new();
    for l in outside.iter().filter(|l| is_reduction_var(&m.env.pool, block, l.var)).cloned().collect::<Vec<_>>() {
        let extent = bound_above(&mut m.env, l.extent, &ranges)?;
        let var = m.env.new_var(m.env.vars[l.var].name.clone());
        iters.push(Iter { var, kind: IterKind::Spatial, extent, binding: m.env.pool.var(l.var) });
    }
    Some(iters)
}

/// Whether each iteration of the loops outside has a term: the reduced loops inside run, and their first iterations are
/// not masked away.
fn has_terms(m: &mut LoopModule, block: &Block, all: &[For], outside: usize) -> bool {
    let reduced = |m: &LoopModule, l: &For| is_reduction_var(&m.env.pool, block, l.var);
    let mut prover = Prover::new();
    // Where the conditions hold in the first iteration of the loops inside, that one is a term.
    let zero = m.env.pool.int(0);
    let first: FxHashMap<VarId, ExprId> =
        all[outside..].iter().filter(|l| reduced(m, l)).map(|l| (l.var, zero)).collect();
    let others = all.iter().filter(|l| !first.contains_key(&l.var));
    let loops: Vec<(VarId, ExprId)> = others.map(|l| (l.var, m.env.pool.substitute(l.extent, &first))).collect();
    let facts = Facts::in_loops(loops);
    for &p in &block.predicate {
        let concerns = all.iter().any(|l| reduced(m, l) && m.env.pool.uses_var(p, l.var));
        let p = m.env.pool.substitute(p, &first);
        if concerns && !prover.prove(&mut m.env, &facts, p).is_proved() {
            return false;
        }
    }
    (outside..all.len()).all(|n| {
        let facts = Facts::in_loops(all[..n].iter().map(|l| (l.var, l.extent)));
        let zero = m.env.pool.int(0);
        let runs = m.env.pool.lt(zero, all[n].extent);
        !reduced(m, &all[n]) || prover.prove(&mut m.env, &facts, runs).is_proved()
    })
}

fn find_main(body: &[Stmt], stage: TensorId, under: &Path) -> Option<(Path, Block)> {
    fn go(body: &[Stmt], stage: TensorId, here: &mut Path) -> Option<(Path, Block)> {
        for (i, s) in body.iter().enumerate() {
            here.push(i);
            let found = match s {
                Stmt::Block(b) if b.stage == stage => Some((here.clone(), b.clone())),
                Stmt::Block(_) => None,
                Stmt::For(l) => go(&l.body, stage, here),
            };
            if found.is_some() {
                return found;
            }
            here.pop();
        }
        None
    }
    match stmt_at(body, under) {
        Some(Stmt::For(l)) => go(&l.body, stage, &mut under.clone()),
        _ => None,
    }
}

/// Adds an iterator for each spatial loop and gives the index made of them.
fn slots(m: &mut LoopModule, iters: &mut Vec<Iter>, spatial: &[For], tensor: TensorId) -> Vec<ExprId> {
    let mut index = Vec::new();
    for (n, l) in spatial.iter().enumerate() {
        let name = m.env.vars[l.var].name.clone();
        let extent = m.env.tensors[tensor].dims[n].extent;
        let var = m.env.new_var(name);
        let binding = m.env.pool.var(l.var);
        let at = iters.iter().position(|i| i.kind == IterKind::Reduce).unwrap_or(iters.len());
        iters.insert(at, Iter { var, kind: IterKind::Spatial, extent, binding });
        index.push(m.env.pool.var(var));
    }
    index
}

/// The nest that copies the buffer out: of the loops `inner`, those that are `copied`, of which `spatial` are the buffer's
/// dimensions. If it is `partial`, or the elements hold a partial result already, it is combined with them: reduced over the
/// dimensions at the first term of the part, or over the `numbers` of parts.
fn copy_nest(
    m: &mut LoopModule,
    block: &Block,
    numbers: Option<&[Iter]>,
    (inner, copied, spatial): (&[For], &[For], &[For]),
    new: TensorId,
    partial: bool,
) -> Stmt {
    let mut copy = block.clone();
    if !block.continues && !partial {
        copy.role = BlockRole::Compute;
    }
    // Where the part's own loops would be masked in any case there is no part, not even the identity.
    let dropped = |v: VarId| {
        let inside = numbers.is_none() || inner.iter().any(|l| l.var == v);
        inside && is_reduction_var(&m.env.pool, block, v)
    };
    copy.predicate.retain(|&p| !m.env.pool.vars_of(p).into_iter().any(dropped));
    // What is left of a reduced dimension is where a part begins.
    let zero = m.env.pool.int(0);
    let parts: FxHashMap<VarId, ExprId> =
        inner.iter().filter(|l| is_reduction_var(&m.env.pool, block, l.var)).map(|l| (l.var, zero)).collect();
    for i in copy.iters.iter_mut().filter(|i| i.kind == IterKind::Reduce) {
        i.binding = m.env.pool.substitute(i.binding, &parts);
    }
    let kept = partial && numbers.is_none();
    copy.iters.retain(|i| i.kind == IterKind::Spatial || (kept && m.env.pool.as_int(i.binding).is_none()));
    copy.iters.extend(numbers.unwrap_or_default().iter().map(|i| Iter { kind: IterKind::Reduce, ..i.clone() }));
    own_iters(&mut m.env, &mut copy);
    let index = slots(m, &mut copy.iters, spatial, new);
    copy.value = m.env.element(new, &index);
    let header = |l: &For| For { stage: block.stage, kind: LoopKind::Serial, init: false, ..l.clone() };
    let loops: Vec<For> = copied.iter().map(header).collect();
    in_own_loops(&mut m.env, copy, &loops)
}

fn retarget(body: &mut [Stmt], old: TensorId, new: TensorId, compute: &Block) {
    for s in body {
        match s {
            Stmt::Block(b) if b.stage == old => *b = compute.clone(),
            Stmt::Block(_) => {}
            Stmt::For(l) => {
                if l.stage == old {
                    l.stage = new;
                }
                retarget(&mut l.body, old, new, compute);
            }
        }
    }
}
