//! `pad_loop S.i 2`, `pad_loop S.k to 8 * floordiv(i, 8) + 8`: loop padding (paper section 4.1).
//!
//! Requires: for a padded spatial loop, storage of the written tensor at least as large as the
//! padded extent, and as what loops inside reach in surplus iterations; a padded reduced loop masks its
//! surplus. Ensures: surplus iterations write storage padding only; their reads are guarded, so padding is never observed.
//!
//! A reduced loop may be padded to any extent, one that neighbouring iterations of a loop around have in common for instance,
//! so that it can leave them: `for k in 0..i + 3 { .. }  =>  for k in 0..i // 8 * 8 + 10 { .. where k < i + 3 }`. Where the
//! formula is not proved to be as much as the extent, the greater of the two is taken.

use super::compute_inline::zero_of;
use super::defined::is_defined;
use super::filled::{Loops, Relaxed, stretches};
use super::formula::{self, Purpose};
use super::inits::place_init;
use super::pad_dim::check_multiple;
use super::relax::each_block;
use super::serial_loop::serial_or;
use super::split::divisible;
use super::tree::{
    Path, add_predicate, around_elements, blocks_below, clamp_surplus, enclosing, find_loop, find_stage,
    is_reduction_var, looks_up, loop_at, loop_at_mut, written_by,
};
use crate::simplify::{Facts, Prover, with_example};
use cora_ir::affine::normalize;
use cora_ir::loops::{Block, BlockRole, IterKind, LoopModule, Stmt};
use cora_ir::schedule::{Formula, LoopRef};
use cora_ir::{Diagnostic, Env, Expr, ExprId, ExprPool, Scope, TensorId, VarId};
use rustc_hash::FxHashSet;

/// Rounds a loop's extent up to a multiple.
///
/// # Errors
/// `E0402` no such loop, `E0411` not serial, `E0471` a multiple below 1, `E0472` a loop that is
/// not one dimension of its stage (split or fused already), `E0473` storage with less padding.
pub fn pad_loop(m: &mut LoopModule, target: &LoopRef, multiple: i64) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let stage = find_stage(m, &target.stage)?;
    let l = loop_at(&m.body, &path);
    let (var, extent) = (l.var, l.extent);
    check_multiple(multiple)?;
    serial_or(m, &path, target, "pad it before it is made parallel, vector or unrolled")?;
    if divisible(&mut m.env.pool, extent, multiple) {
        return Ok(());
    }
    // The surplus of a part would be elements of another part.
    if written_by(m, stage) != stage {
        return Err(not_a_dimension(target));
    }
    let padded = m.env.pool.round_up(extent, multiple);
    let padded = cora_ir::affine::normalize(&mut m.env.pool, padded);
    let v = m.env.pool.var(var);
    let mut error = None;
    // Whether surplus iterations compute nothing in some block.
    let mut masked = false;
    let mut body = loop_at(&m.body, &path).body.clone();
    let mut loops: Loops = enclosing(&m.body, &path).iter().map(|l| (l.var, l.extent)).collect();
    loops.push((var, padded));
    // The loop may go through a part of the dimension: beyond it are other positions, up to the end of that. Or it goes
    // beyond the dimension already, where nothing is computed.
    let around = Facts::in_loops(around_elements(m, &path));
    let end = dimension_end(m, &path).filter(|&end| reaches(&mut m.env, &around, end, extent)).unwrap_or(extent);
    let stretches = stretches(m, &path);
    let surplus = Relaxed { var, loops, stretches: &stretches, never_empty: false };
    for s in &mut body {
        each_block(s, &mut Vec::new(), &mut |b, inner| {
            let using = steered(&m.env, b, var);
            // Loops of several stages together are no dimension of either.
            let other = using.is_empty() && b.stage == stage && b.role != BlockRole::Init;
            if other || using.iter().any(|&n| b.iters[n].binding != v) {
                error = Some(not_a_dimension(target));
            } else if !indexes(&m.env.pool, b, &using)
                || using.iter().any(|&n| b.iters[n].kind == IterKind::Reduce)
                || using.iter().any(|&n| {
                    let end = end_of(&mut m.env.pool, b, n);
                    !reaches(&mut m.env, &around, end, extent)
                })
            {
                masked = true;
            } else {
                // What a copy holds there reaches surplus elements only; a table that says where has nothing to say there.
                let pool = &m.env.pool;
                let free = !inner.iter().any(|l| pool.uses_var(l.1, var)) && !gathers(pool, b.value);
                let own = if free { surplus.settle(&mut m.env, b, inner) } else { FxHashSet::default() };
                let mut padded = steered(&m.env, b, var);
                padded.retain(|&n| !own.contains(&b.iters[n].var));
                let pool = &mut m.env.pool;
                let inside = |n: &usize| {
                    let v = pool.var(b.iters[*n].var);
                    pool.lt(v, b.iters[*n].extent)
                };
                let inside: Vec<ExprId> = padded.iter().map(inside).collect();
                let nowhere_beyond = m.env.pool.all(inside);
                if let Err(e) = inner_loops_fit(&mut m.env, b, &[&surplus.loops[..], &inner[..]].concat(), var) {
                    error = Some(e);
                }
                for n in padded {
                    if let Err(e) = pad_block(&mut m.env, b, n, (multiple, nowhere_beyond)) {
                        error = Some(e);
                    }
                }
            }
        });
    }
    if let Some(e) = error {
        return Err(e);
    }
    let one = m.env.pool.int(1);
    let last = m.env.pool.sub(end, one);
    clamp_surplus(&mut m.env.pool, &mut body, var, last);
    if masked {
        let cond = m.env.pool.lt(v, extent);
        let updates = |s: &mut Stmt| add_predicate(&m.env.pool, std::slice::from_mut(s), cond);
        body.iter_mut().for_each(updates);
    }
    let l = loop_at_mut(&mut m.body, &path);
    l.body = body;
    l.extent = padded;
    place_init(m, stage);
    Ok(())
}

/// Raises the extent of a loop that is reduced over to the formula, over the loops around and the parameters, or to what it
/// was if that is more.
///
/// # Errors
/// `E0402` no such loop, `E0411` not serial, `E0472` a loop that is not one dimension of its stage, is not reduced over, or
/// that functions inside it are called at, `E0484` a formula that has no value there.
pub fn pad_loop_to(m: &mut LoopModule, target: &LoopRef, to: &Formula) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let stage = find_stage(m, &target.stage)?;
    let (var, extent) = {
        let l = loop_at(&m.body, &path);
        (l.var, l.extent)
    };
    serial_or(m, &path, target, "pad it before it is made parallel, vector or unrolled")?;
    let to = formula::value(m, &path, to, Purpose::Bound)?;
    let to = formula::raised(m, &path, to);
    let refuse = |why: &str, hint: &str| {
        Err(Diagnostic::new(
            "E0472",
            format!("loop `{}.{}` cannot be padded to an extent: {why}", target.stage, target.name),
        )
        .hint(hint.to_owned()))
    };
    let own = m.env.pool.var(var);
    let body = &loop_at(&m.body, &path).body;
    let mut blocks = Vec::new();
    for s in body {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s {
                blocks.push(b)
            }
        });
    }
    if blocks.iter().any(|b| steered(&m.env, b, var).iter().any(|&n| b.iters[n].binding != own)) {
        return Err(not_a_dimension(target));
    }
    if !blocks.iter().all(|b| b.role == BlockRole::Init || is_reduction_var(&m.env.pool, b, var)) {
        return refuse("it is not reduced over", "pad it to a multiple, which its storage may have room for");
    }
    // An empty loop has no last iteration whose values they could take.
    if body.iter().any(|s| looks_up(&m.env.pool, s, var)) {
        return refuse("beyond its end loops inside it have no length", "pad it to a multiple");
    }
    let padded = at_least(m, &path, to, extent);
    let cond = m.env.pool.lt(own, extent);
    let l = loop_at_mut(&mut m.body, &path);
    add_predicate(&m.env.pool, &mut l.body, cond);
    l.extent = padded;
    place_init(m, stage);
    Ok(())
}

/// `to`, if it is proved to be no less than `extent`, else the greater of the two.
fn at_least(m: &mut LoopModule, path: &Path, to: ExprId, extent: ExprId) -> ExprId {
    let to = normalize(&mut m.env.pool, to);
    let facts = Facts::in_loops(around_elements(m, path));
    let goal = m.env.pool.le(extent, to);
    if Prover::new().prove(&mut m.env, &facts, goal).is_proved() { to } else { m.env.pool.max(to, extent) }
}

/// The extent of the iterator that is the loop at `path`, over the loops around, if all blocks inside have the same and it
/// has a value in surplus iterations of those.
fn dimension_end(m: &mut LoopModule, path: &Path) -> Option<ExprId> {
    let l = loop_at(&m.body, path);
    let around: Vec<VarId> = enclosing(&m.body, path).iter().map(|l| l.var).collect();
    let pool = &mut m.env.pool;
    let own = pool.var(l.var);
    let mut ends = Vec::new();
    for b in blocks_below(&l.body) {
        ends.extend((0..b.iters.len()).filter(|&n| b.iters[n].binding == own).map(|n| end_of(pool, b, n)));
    }
    let end = *ends.first()?;
    let known = pool.vars_of(end).iter().all(|v| around.contains(v)) && ends.iter().all(|&e| e == end);
    let facts = Facts::in_loops(around_elements(m, path));
    (known && is_defined(&mut m.env, &mut Prover::new(), &facts, end)).then_some(end)
}

/// The extent of iterator `n`, over the loops around.
fn end_of(pool: &mut ExprPool, b: &Block, n: usize) -> ExprId {
    let map = b.iters.iter().map(|i| (i.var, i.binding)).collect();
    pool.substitute(b.iters[n].extent, &map)
}

/// Whether a dimension that ends at `end` is proved to be as long as a loop.
fn reaches(env: &mut Env, facts: &Facts, end: ExprId, extent: ExprId) -> bool {
    let within = env.pool.le(extent, end);
    Prover::new().prove(env, facts, within).is_proved()
}

/// The iterators that a loop steers.
fn steered(env: &Env, b: &Block, var: VarId) -> Vec<usize> {
    (0..b.iters.len()).filter(|&n| env.pool.uses_var(b.iters[n].binding, var)).collect()
}

/// Whether a place that is read is read itself.
fn gathers(pool: &ExprPool, e: ExprId) -> bool {
    let is_read = |n: &Expr| matches!(n, Expr::Load { .. });
    pool.any(e, &mut |n| match n {
        Expr::Load { index, .. } => index.iter().any(|&i| pool.any(i, &mut |n| is_read(n))),
        _ => false,
    })
}

/// Whether each value of the iterators `ns` writes an element of its own.
fn indexes(pool: &cora_ir::ExprPool, b: &Block, ns: &[usize]) -> bool {
    ns.iter().any(|&n| b.index.iter().any(|&e| pool.uses_var(e, b.iters[n].var)))
}

fn not_a_dimension(r: &LoopRef) -> Diagnostic {
    Diagnostic::new("E0472", format!("loop `{}.{}` is not a whole dimension of its stage", r.stage, r.name))
        .hint("pad a loop before splitting or fusing it")
}

/// Widens spatial iterator `n` of a block: checks the storage written, guards the loads. `all_valid`: no iterator that is
/// widened is beyond its extent.
fn pad_block(env: &mut Env, b: &mut Block, n: usize, (multiple, all_valid): (i64, ExprId)) -> Result<(), Diagnostic> {
    let (var, extent) = (b.iters[n].var, b.iters[n].extent);
    let index_var = env.pool.var(var);
    for (d, &ix) in b.index.iter().enumerate() {
        if !env.pool.uses_var(ix, var) {
            continue;
        }
        let dim = env.tensors[b.tensor].dims[d].clone();
        let enough = ix == index_var && divisible(&mut env.pool, dim.storage, multiple);
        if !enough {
            let (facts, fits) = surplus_fits(env, b, (n, d), multiple);
            let name = &env.tensors[b.tensor].name;
            let refusal = Diagnostic::new(
                "E0473",
                format!("padding loop `{}` to a multiple of {multiple} would write outside `{name}`", dim.name),
            );
            return Err(with_example(refusal, env, &facts, fits)
                .note(format!("the storage of dimension `{}` is not proved to be a multiple of {multiple}", dim.name))
                .hint(format!(
                    "`pad_dim {name}.{} {multiple}` first (storage padding must be at least loop padding)",
                    dim.name
                )));
        }
    }
    let valid = env.pool.lt(index_var, extent);
    // Where others begin or end depends on it, they go beyond their extents with it.
    let mut moved = vec![var];
    for i in &b.iters {
        if moved.iter().any(|&v| env.pool.uses_var(i.extent, v)) {
            moved.push(i.var);
        }
    }
    b.value = guard_uses(env, b.value, (&moved, extent), multiple, (valid, all_valid));
    b.iters[n].extent = env.pool.round_up(extent, multiple);
    Ok(())
}

/// Checks that loops inside, whose extents may be more in surplus iterations of the loop `var`, stay inside what the block
/// writes. `loops`: those around the block.
fn inner_loops_fit(env: &mut Env, b: &Block, loops: &Loops, var: VarId) -> Result<(), Diagnostic> {
    let mut moved = vec![var];
    for &(v, extent) in loops.iter().skip_while(|l| l.0 != var).skip(1) {
        if moved.iter().any(|&m| env.pool.uses_var(extent, m)) {
            moved.push(v);
        }
    }
    let map = b.iters.iter().map(|i| (i.var, i.binding)).collect();
    let index: Vec<ExprId> = b.index.iter().map(|&e| env.pool.substitute(e, &map)).collect();
    for (d, &at) in index.iter().enumerate() {
        if !moved[1..].iter().any(|&v| env.pool.uses_var(at, v)) {
            continue;
        }
        let storage = env.pool.instantiate(env.tensors[b.tensor].dims[d].storage, &index);
        let fits = env.pool.lt(at, storage);
        let facts = Facts::in_loops(loops.iter().copied());
        if !Prover::new().prove(env, &facts, fits).is_proved() {
            let (name, padded) = (&env.tensors[b.tensor].name, &env.vars[var].name);
            let dim = &env.tensors[b.tensor].dims[d].name;
            let refusal = Diagnostic::new(
                "E0473",
                format!(
                    "padding loop `{padded}` would write outside `{name}`: what is beyond its end has more `{dim}`"
                ),
            );
            let hint = format!("give `{name}.{dim}` as much room first, with `pad_dim`");
            return Err(with_example(refusal, env, &facts, fits).hint(hint));
        }
    }
    Ok(())
}

/// That the padded extent of iterator `n` is at most the storage of dimension `d`, wherever the iterators are.
fn surplus_fits(env: &mut Env, b: &Block, (n, d): (usize, usize), multiple: i64) -> (Facts, ExprId) {
    let padded = env.pool.round_up(b.iters[n].extent, multiple);
    let storage = env.pool.instantiate(env.tensors[b.tensor].dims[d].storage, &b.index);
    let fits = env.pool.le(padded, storage);
    (Facts::in_loops(b.iters.iter().map(|i| (i.var, i.extent))), fits)
}

/// Guards every load whose index mentions one of `moved`, the padded variable first and those whose range depends on it:
/// where `valid` fails, 0 is the value. A load at the padded variable itself from a dimension that is stored with the same
/// padding needs no guard: the surplus position exists, and what it holds reaches surplus elements only.
fn guard_uses(
    env: &mut Env,
    e: ExprId,
    (moved, extent): (&[VarId], ExprId),
    multiple: i64,
    (valid, all_valid): (ExprId, ExprId),
) -> ExprId {
    let uses =
        |p: &ExprPool, index: &[ExprId], vars: &[VarId]| index.iter().any(|&i| vars.iter().any(|&v| p.uses_var(i, v)));
    let mut loads = Vec::new();
    env.pool.walk(e, &mut |id, n| {
        if let Expr::Load { tensor, index, .. } = n
            && uses(&env.pool, index, moved)
        {
            loads.push((id, *tensor, index.to_vec()));
        }
    });
    let mut stored: Vec<ExprId> = Vec::new();
    for (id, tensor, index) in loads {
        let alone = !uses(&env.pool, &index, &moved[1..]);
        if alone && stored_alike(env, tensor, &index, (moved[0], extent), multiple) {
            stored.push(id);
        }
    }
    env.pool.rewrite(e, &mut |p, x| match p.get(x).clone() {
        Expr::Load { tensor, part, index, guard } if uses(p, &index, moved) => {
            if stored.contains(&x) {
                return None;
            }
            let ty = p.ty(x).scalar;
            // A buffer may have room for what nobody wrote there; an integer may decide what is read.
            let valid = if ty.is_float() { valid } else { all_valid };
            let guard = match guard {
                Some((c, o)) => (p.and(valid, c), o),
                None => (valid, zero_of(p, ty)),
            };
            Some(p.load_guarded((tensor, part), ty, index.iter().copied(), Some(guard)))
        }
        _ => None,
    })
}

/// Whether `tensor[index]` is read at `var` in one dimension, of the same extent as the loop and
/// with storage that is a multiple of the padding. Integers may be used as indices, so they are
/// never read from padding. A buffer attached in a loop is as large as what its writers cover, whatever was padded.
fn stored_alike(
    env: &mut Env,
    tensor: TensorId,
    index: &[ExprId],
    (var, extent): (VarId, ExprId),
    multiple: i64,
) -> bool {
    let x = env.pool.var(var);
    let mut dims = index.iter().enumerate().filter(|(_, i)| env.pool.uses_var(**i, var)).map(|(d, _)| d);
    let (Some(d), None) = (dims.next(), dims.next()) else { return false };
    let t = &env.tensors[tensor];
    if index[d] != x || !t.ty.is_float() || t.scope != Scope::Global {
        return false;
    }
    let storage = env.tensors[tensor].dims[d].storage;
    let same = env.extent_at(tensor, d, index);
    let (same, extent) = (normalize(&mut env.pool, same), normalize(&mut env.pool, extent));
    same == extent && divisible(&mut env.pool, storage, multiple)
}
