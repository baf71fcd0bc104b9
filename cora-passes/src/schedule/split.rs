//! `split S.i 14 -> io, ii`: one loop into two.
//!
//! ```text
//! for i in 0..E  =>  for io in 0..ceildiv(E, 14) { for ii in 0..min(14, E - io*14) }   (exact)
//!                    for io in 0..ceildiv(E, 14) { for ii in 0..14 where io*14+ii < E } (mask)
//! ```
//!
//! Requires: a serial loop, a positive factor. Ensures: the same iterations in the same order; no
//! tail at all where the factor is proved to divide the extent.

use super::conditions::not_a_condition;
use super::inits::place_init;
use super::serial_loop::serial_or;
use super::tree::{
    add_predicate, check_fresh_loop, check_no_marks, clamp_surplus, find_loop, loop_at, loop_at_mut, substitute,
};
use super::{MAX_FACTOR, MAX_PADDING};
use cora_ir::loops::{For, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::{LoopRef, Tail};
use cora_ir::{BinOp, Diagnostic, Expr, ExprId};
use rustc_hash::FxHashMap;

/// The step: a split, and the peeling that its tail may ask for.
///
/// # Errors
/// Those of [`split`] and of [`super::peel::peel`].
pub fn split_step(
    m: &mut LoopModule,
    target: &LoopRef,
    factor: i64,
    names: (&str, &str),
    tail: Tail,
) -> Result<(), Diagnostic> {
    if tail != Tail::Peel {
        return split(m, target, factor, names, tail);
    }
    let saved = (m.body.clone(), m.env.tensors.clone());
    split(m, target, factor, names, Tail::Exact)?;
    let outer = LoopRef { stage: target.stage.clone(), name: names.0.to_owned() };
    let result = super::peel::peel(m, &outer, None);
    // Tiles that are always full need no peeling.
    match result {
        Err(d) if d.code != "E0482" => {
            (m.body, m.env.tensors) = saved;
            Err(d)
        }
        _ => Ok(()),
    }
}

/// Splits `target` by `factor`; `names` are the outer and the inner loop's.
///
/// # Errors
/// `E0402` no such loop, `E0403` a name is taken, `E0410` a factor that is not positive or too large,
/// `E0411` a loop that is already parallel, vector or unrolled, `E0423` one that is a condition.
pub fn split(
    m: &mut LoopModule,
    target: &LoopRef,
    factor: i64,
    names: (&str, &str),
    tail: Tail,
) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let l = loop_at(&m.body, &path);
    let (stage, var, extent) = (l.stage, l.var, l.extent);
    if factor < 1 {
        return Err(Diagnostic::new("E0410", format!("split factor {factor} is not positive"))
            .hint("tiles have at least one iteration"));
    }
    let most = if tail == Tail::Mask { MAX_PADDING } else { MAX_FACTOR };
    if factor > most {
        return Err(Diagnostic::new("E0410", format!("split factor {factor} is too large"))
            .hint(format!("at most {MAX_FACTOR}, and {MAX_PADDING} with a mask: masked iterations run too")));
    }
    serial_or(m, &path, target, "split it before it is made parallel, vector or unrolled")?;
    check_no_marks(&m.env, l, target)?;
    not_a_condition(m, l, target)?;
    for n in [names.0, names.1] {
        if n != target.name {
            check_fresh_loop(m, stage, n)?;
        }
    }
    if names.0 == names.1 {
        return Err(Diagnostic::new("E0403", format!("both loops of the split are called `{}`", names.0))
            .hint("give each a name of its own"));
    }
    let (outer, inner) = (m.env.new_var(names.0), m.env.new_var(names.1));
    let pool = &mut m.env.pool;
    let (o, i, f) = (pool.var(outer), pool.var(inner), pool.int(factor));
    let base = pool.mul(o, f);
    let value = pool.add(base, i);
    let divides = divisible(pool, extent, factor);
    let outer_extent = pool.ceil_div(extent, factor);
    let outer_extent = cora_ir::affine::normalize(pool, outer_extent);
    let inner_extent = if divides || tail == Tail::Mask {
        f
    } else {
        let rest = pool.sub(extent, base);
        let tile = pool.min(f, rest);
        cora_ir::affine::normalize(pool, tile)
    };
    let l = loop_at_mut(&mut m.body, &path);
    let mut body = std::mem::take(&mut l.body);
    let map: FxHashMap<_, _> = [(var, value)].into_iter().collect();
    if !divides && tail == Tail::Mask {
        let one = m.env.pool.int(1);
        let last = m.env.pool.sub(extent, one);
        clamp_surplus(&mut m.env.pool, &mut body, var, last);
    }
    substitute(&mut m.env.pool, &mut body, &map);
    if !divides && tail == Tail::Mask {
        let cond = m.env.pool.lt(value, extent);
        add_predicate(&m.env.pool, &mut body, cond);
    }
    let inner_loop =
        For { var: inner, stage, extent: inner_extent, kind: LoopKind::Serial, prefetch: vec![], init: false, body };
    let l = loop_at_mut(&mut m.body, &path);
    *l = For { var: outer, extent: outer_extent, body: vec![Stmt::For(inner_loop)].into(), ..l.clone() };
    place_init(m, stage);
    Ok(())
}

/// Whether `factor` is seen to divide `e` from its polynomial form, or both sides of each choice.
pub fn divisible(pool: &mut cora_ir::ExprPool, e: ExprId, factor: i64) -> bool {
    if let Expr::Bin(BinOp::Min | BinOp::Max, a, b) | Expr::Select(_, a, b) = *pool.get(e) {
        return divisible(pool, a, factor) && divisible(pool, b, factor);
    }
    let f = pool.int(factor);
    let r = pool.modulo(e, f);
    let r = cora_ir::affine::normalize(pool, r);
    pool.as_int(r) == Some(0)
}
