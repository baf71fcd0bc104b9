//! `peel S.io`: the iterations of a loop in which every tile is full, apart from those with a tail.
//!
//! ```text
//! for io in 0..ceildiv(E, 14) { for ii in 0..min(14, E - io*14) { S } }
//!   =>  for io in 0..E // 14 { for ii in 0..14 { S.main } }
//!       for io in 0..ceildiv(E, 14) - E // 14 { for ii in 0..min(14, E % 14) { S.tail } }
//!
//! for t { for ii in 0..min(14, R(t)) { S } }
//!   =>  for t { if 14 <= R(t) { for ii in 0..14 { S.main } } else { for ii in 0..min(14, R(t)) { S.tail } } }
//! ```
//!
//! `peel S.io few 3` parts by the number of a tile's iterations, so that a register tile of a few rows computes a few:
//!
//! ```text
//! for io { for ii in 0..min(14, R(io)) { S } }
//!   =>  for io { if 3 < R(io) { for ii in 0..min(14, R(io)) { S.main } } else { for ii in 0..min(3, R(io)) { S.tail } } }
//! ```
//!
//! A tile is a loop inside with extent `min(c, R)`, or a mask `x < R`, whose R depends on the peeled
//! loop. Where R falls as the loop goes on, the loop itself is cut (the first form); otherwise (a
//! fused or a parallel loop) each iteration chooses, in the stretches of a loop that [`super::hfuse`]
//! made each for itself. The parts are stages: `S.main` and `S.tail`.
//!
//! Requires: a loop that is not vector or unrolled, with such a tile inside. Ensures: the same
//! iterations in the same order; in `main` the tiles have constant extent and no mask, or, of `few`, the extents in `tail`
//! are at most that.

use super::conditions::{is_condition, runs};
use super::defined::is_defined;
use super::inits::{place_init, remove_init};
use super::parts::{PARTS, Part, copy, declare};
use super::region::range_over;
use super::relax::tile_of;
use super::tree::{
    Path, around_elements, blocks_below, body_at_mut, enclosing, find_loop, is_reduction_var, loop_at, stages_of,
    substitute, writes_below,
};
use crate::lower::sign::{as_size, never_negative};
use crate::simplify::{Facts, Prover};
use cora_ir::affine::{build, normalize, poly};
use cora_ir::loops::{Block, BlockRole, Body, For, Iter, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, ExprPool, TensorId, VarId};

/// Greatest number of parts of a stage.
const MAX_PARTS: usize = 32;

/// Peels one loop: off the iterations whose tiles are full, or, of `few`, those with more iterations than that.
///
/// # Errors
/// `E0402` no such loop, `E0411` a vector or unrolled loop, `E0482` no partial tile inside that the
/// loop decides, or, of `few`, several, `E0483` tiles with elements of their own beside ones that depend on what is
/// reduced over, `E0460` the name of a part is taken.
pub fn peel(m: &mut LoopModule, target: &LoopRef, few: Option<i64>) -> Result<(), Diagnostic> {
    let saved = (m.body.clone(), m.env.tensors.clone());
    let result = peel_loop(m, target, few);
    if result.is_err() {
        (m.body, m.env.tensors) = saved;
    }
    result
}

/// A tile inside the loop: full where all of `slack` are at least 0.
struct Tile {
    slack: Vec<ExprId>,
    /// What is known of a full one.
    fact: Fact,
    /// The blocks below that write the tile's elements.
    writers: Vec<Block>,
}

enum Fact {
    /// This minimum, in normal form, is that constant.
    Extent(ExprId, ExprId),
    /// This conjunct of predicates holds.
    Mask(ExprId),
}

fn peel_loop(m: &mut LoopModule, target: &LoopRef, few: Option<i64>) -> Result<(), Diagnostic> {
    let path = find_loop(m, target)?;
    let kind = loop_at(&m.body, &path).kind;
    if matches!(kind, LoopKind::Vector | LoopKind::Unroll | LoopKind::Virtual) {
        return Err(Diagnostic::new(
            "E0411",
            format!("loop `{}.{}` is already {}", target.stage, target.name, kind.described()),
        )
        .hint("peel it before it is made vector or unrolled"));
    }
    let stages = stages_of(&loop_at(&m.body, &path).body);
    for &s in &stages {
        remove_init(&mut m.body, s);
    }
    let path = find_loop(m, target)?;
    let l = loop_at(&m.body, &path).clone();
    let all: Vec<(VarId, ExprId)> = enclosing(&m.body, &path).iter().map(|l| (l.var, l.extent)).collect();
    let around = around_elements(m, &path);
    let mut found = false;
    for (inner, loops) in stretches(m, &l, &all) {
        let mut tiles = tiles(&mut m.env, &loops, l.var, &inner.body);
        check_reduced(&m.env.pool, target, l.var, &inner.body, &tiles)?;
        let always: Vec<_> = loops.into_iter().filter(|l| around.contains(l) || !all.contains(l)).collect();
        keep_defined(&mut m.env, &always, &mut tiles);
        if tiles.is_empty() {
            continue;
        }
        // Inits of parts that were made before stand beside the nest.
        let site = path_of(&m.body, inner.var);
        if let Some(few) = few {
            if let Some(site) = site {
                found |= choose_few(m, &site, &inner, (&always, &tiles), few)?;
            }
            continue;
        }
        found = true;
        let Some(site) = site else { continue };
        let full = if site == path { cut(&mut m.env, &around, &l, &tiles) } else { None };
        match full {
            Some(full) if kind == LoopKind::Serial => cut_loop(m, &path, &around, &l, &tiles, full)?,
            _ => choose_full(m, &site, &inner, &tiles)?,
        }
    }
    if !found {
        return Err(nothing(target, few));
    }
    for s in stages {
        place_init(m, s);
    }
    Ok(())
}

fn nothing(target: &LoopRef, few: Option<i64>) -> Diagnostic {
    let which = format!("inside `{}.{}`", target.stage, target.name);
    match few {
        None => Diagnostic::new("E0482", format!("nothing to peel: no tile {which} is partial because of it"))
            .note("a tile is a loop inside with extent `min(constant, rest)`, or a mask `position < extent`, that depends on the loop")
            .hint("split first, then peel the outer loop of the tile"),
        Some(few) => Diagnostic::new(
            "E0482",
            format!("nothing to peel: no tile {which} has more than {few} iterations in some of the loop's, and fewer in others"),
        )
        .note("a tile is a loop inside with extent `min(constant, rest)` where the loop decides the rest")
        .hint("split first, exactly, then peel the outer loop of the tile by fewer iterations than that has"),
    }
}

/// Where a loop is.
fn path_of(body: &[Stmt], v: VarId) -> Option<Path> {
    body.iter().enumerate().find_map(|(n, s)| match s {
        Stmt::For(l) if l.var == v => Some(vec![n]),
        Stmt::For(l) => path_of(&l.body, v).map(|inside| [&[n], inside.as_slice()].concat()),
        Stmt::Block(_) => None,
    })
}

/// A loop whose body is to be peeled as one, and the loops around that body.
type Stretch = (For, Vec<(VarId, ExprId)>);

/// The loop, or the conditions in it if there is nothing else: what is inside one has a meaning only there.
fn stretches(m: &LoopModule, l: &For, around: &[(VarId, ExprId)]) -> Vec<Stretch> {
    let loops = [around, &[(l.var, l.extent)]].concat();
    let condition = |s: &Stmt| matches!(s, Stmt::For(inner) if is_condition(&m.env.pool, inner.extent));
    if !l.body.iter().all(condition) {
        return vec![(l.clone(), loops)];
    }
    let inside = l.body.iter().filter_map(|s| match s {
        Stmt::For(inner) => Some(stretches(m, inner, &loops)),
        Stmt::Block(_) => None,
    });
    inside.flatten().collect()
}

/// Where something is inside `loops`, and their conditions hold.
fn facts_in(env: &mut Env, loops: &[(VarId, ExprId)]) -> Facts {
    let mut facts = Facts::in_loops(loops.iter().copied());
    for &(_, e) in loops {
        if is_condition(&env.pool, e) {
            let holds = runs(env, e);
            facts.push_assumption(holds);
        }
    }
    facts
}

/// The tiles in `body`, inside `loops`, that `var` decides, as far as these determine them.
fn tiles(env: &mut Env, loops: &[(VarId, ExprId)], var: VarId, body: &[Stmt]) -> Vec<Tile> {
    let mut out = Vec::new();
    for s in body {
        collect(env, s, var, loops.len(), &mut loops.to_vec(), &mut out);
    }
    keep_defined(env, loops, &mut out);
    out
}

/// Where a tile does not run, functions in what decides it need not have a value.
fn keep_defined(env: &mut Env, loops: &[(VarId, ExprId)], tiles: &mut Vec<Tile>) {
    let facts = facts_in(env, loops);
    let mut prover = Prover::new();
    tiles.retain(|t| t.slack.iter().all(|&e| is_defined(env, &mut prover, &facts, e)));
}

fn collect(env: &mut Env, s: &Stmt, var: VarId, from: usize, loops: &mut Vec<(VarId, ExprId)>, out: &mut Vec<Tile>) {
    match s {
        Stmt::For(inner) => {
            let extent = normalize(&mut env.pool, inner.extent);
            let mut known = extent;
            if let Some((full, rest)) = tile_of(env, extent) {
                let slack = env.pool.sub(rest, full);
                if let Some(slack) = decided(env, slack, var, loops, from) {
                    let mut writers = Vec::new();
                    inner.body.iter().for_each(|s| {
                        s.walk(&mut |s| {
                            if let Stmt::Block(b) = s
                                && !is_reduction_var(&env.pool, b, inner.var)
                            {
                                writers.push(b.clone());
                            }
                        });
                    });
                    push(out, Tile { slack, fact: Fact::Extent(extent, full), writers });
                    known = full;
                }
            }
            loops.push((inner.var, known));
            for s in &inner.body {
                collect(env, s, var, from, loops, out);
            }
            loops.pop();
        }
        Stmt::Block(b) => {
            for &p in &b.predicate {
                let Expr::Bin(BinOp::Lt, x, y) = *env.pool.get(p) else { continue };
                // The least room that an iteration of the tile leaves.
                let room = env.pool.sub(y, x);
                let one = env.pool.int(1);
                let room = env.pool.sub(room, one);
                if let Some(slack) = decided(env, room, var, loops, from) {
                    // A mask that what is reduced over decides says which terms count, `init` has none of it.
                    let terms = [&env.pool.vars_of(x)[..], &[var]].concat();
                    let writes = !terms.into_iter().any(|v| is_reduction_var(&env.pool, b, v));
                    let writers = writes.then(|| b.clone()).into_iter().collect();
                    push(out, Tile { slack, fact: Fact::Mask(p), writers });
                }
            }
        }
    }
}

fn push(out: &mut Vec<Tile>, tile: Tile) {
    let same = |a: &Fact, b: &Fact| match (a, b) {
        (Fact::Extent(a, _), Fact::Extent(b, _)) | (Fact::Mask(a), Fact::Mask(b)) => a == b,
        _ => false,
    };
    if let Some(there) = out.iter_mut().find(|t| same(&t.fact, &tile.fact)) {
        there.writers.extend(tile.writers);
    } else {
        out.push(tile);
    }
}

/// The least `room` of the iterations inside, as operands of a minimum, if it depends on `var` and is known outside.
fn decided(env: &mut Env, room: ExprId, var: VarId, loops: &[(VarId, ExprId)], from: usize) -> Option<Vec<ExprId>> {
    let (least, _) = range_over(env, room, loops, from)?;
    let least = normalize(&mut env.pool, least);
    let mut out = Vec::new();
    let mut stack = vec![least];
    while let Some(e) = stack.pop() {
        match *env.pool.get(e) {
            Expr::Bin(BinOp::Min, a, b) => stack.extend([b, a]),
            Expr::Int(v) if v >= 0 => {}
            Expr::Load { .. } | Expr::Int(_) => return None,
            _ => out.push(e),
        }
    }
    let loads = env.pool.any(least, &mut |n| matches!(n, Expr::Load { .. }));
    (!loads && env.pool.uses_var(least, var)).then_some(out)
}

/// A choice that depends on what is reduced over leaves the elements alone: `init` would not know which there are. All tiles
/// are full in one part, so what decides one of them decides all; and a part has some iterations of the loop itself.
fn check_reduced(
    pool: &ExprPool,
    target: &LoopRef,
    var: VarId,
    body: &[Stmt],
    tiles: &[Tile],
) -> Result<(), Diagnostic> {
    let deciding: Vec<VarId> = tiles.iter().flat_map(|t| &t.slack).flat_map(|&e| pool.vars_of(e)).collect();
    let mixed = |b: &Block| deciding.iter().any(|&v| is_reduction_var(pool, b, v));
    let spatial = |i: &Iter| i.kind == IterKind::Spatial && pool.uses_var(i.binding, var);
    let divided = |b: &Block| b.iters.iter().any(spatial) && mixed(b);
    if !tiles.iter().flat_map(|t| &t.writers).any(mixed) && !blocks_below(body).into_iter().any(divided) {
        return Ok(());
    }
    Err(Diagnostic::new(
        "E0483",
        format!(
            "peeling `{}.{}` would make which elements are written depend on what is reduced over",
            target.stage, target.name
        ),
    )
    .hint("reorder the reduced loops inside the spatial ones, then peel one kind at a time; a `split .. tail(mask)` needs no parts"))
}

/// The number of leading iterations with full tiles, if they come first.
fn cut(env: &mut Env, around: &[(VarId, ExprId)], l: &For, tiles: &[Tile]) -> Option<ExprId> {
    let v = env.pool.var(l.var);
    let mut full: Option<ExprId> = None;
    let facts = facts_in(env, around);
    let mut prover = Prover::new();
    for &slack in tiles.iter().flat_map(|t| &t.slack) {
        let mut p = poly(&env.pool, slack);
        // slack = rest - c * v >= 0  <=>  v < rest // c + 1
        let c = p.terms.remove(&vec![v])?.checked_neg().filter(|&c| c > 0)?;
        let rest = build(&mut env.pool, &p);
        if env.pool.uses_var(rest, l.var) || !is_defined(env, &mut prover, &facts, rest) {
            return None;
        }
        let c = env.pool.int(c);
        let sum = env.pool.add(rest, c);
        let n = env.pool.floor_div(sum, c);
        let n = normalize(&mut env.pool, n);
        full = Some(full.map_or(n, |f| {
            let (less, more) = (env.pool.le(f, n), env.pool.le(n, f));
            match () {
                () if prover.prove(env, &facts, less).is_proved() => f,
                () if prover.prove(env, &facts, more).is_proved() => n,
                () => env.pool.min(f, n),
            }
        }));
    }
    let full = normalize(&mut env.pool, full?);
    let ranges: Vec<(ExprId, ExprId)> = around.iter().map(|&(v, e)| (env.pool.var(v), e)).collect();
    let full = as_size(env, &ranges, full);
    let goal = env.pool.le(full, l.extent);
    let within = prover.prove(env, &facts, goal).is_proved();
    Some(if within { full } else { env.pool.min(full, l.extent) })
}

/// First form: the loop is cut after `full` iterations.
fn cut_loop(
    m: &mut LoopModule,
    path: &Path,
    around: &[(VarId, ExprId)],
    l: &For,
    tiles: &[Tile],
    full: ExprId,
) -> Result<(), Diagnostic> {
    let mut main = l.clone();
    main.extent = full;
    make_full(&mut m.env, &mut main.body, tiles);
    let mut tail = l.clone();
    let left = m.env.pool.sub(l.extent, full);
    tail.extent = normalize(&mut m.env.pool, left);
    let ranges: Vec<(ExprId, ExprId)> = around.iter().map(|&(v, e)| (m.env.pool.var(v), e)).collect();
    let one = m.env.pool.int(1);
    let spare = m.env.pool.sub(one, tail.extent);
    let goal = m.env.pool.le(tail.extent, one);
    let single = never_negative(&mut m.env, &ranges, spare)
        || Prover::new().prove(&mut m.env, &Facts::in_loops(around.iter().copied()), goal).is_proved();
    let v = m.env.pool.var(l.var);
    let at = if single { full } else { m.env.pool.add(full, v) };
    go_on(&m.env, &mut tail.body, &[l.var]);
    let map = [(l.var, at)].into_iter().collect();
    substitute(&mut m.env.pool, &mut tail.body, &map);
    tidy(&mut m.env, &mut tail.body);
    replace(m, path, [vec![Stmt::For(main)], vec![Stmt::For(tail)]])
}

/// Second form: each iteration chooses.
fn choose_full(m: &mut LoopModule, path: &Path, l: &For, tiles: &[Tile]) -> Result<(), Diagnostic> {
    let mut conds = Vec::new();
    for &slack in tiles.iter().flat_map(|t| &t.slack) {
        let zero = m.env.pool.int(0);
        let cond = m.env.pool.le(zero, slack);
        if !conds.contains(&cond) {
            conds.push(cond);
        }
    }
    let full = m.env.pool.all(conds);
    let mut main = l.body.clone();
    make_full(&mut m.env, &mut main, tiles);
    choose(m, path, l, full, [main, l.body.clone()])
}

/// By the iterations of the one tile inside; nothing, and false, where all iterations are of one kind.
fn choose_few(
    m: &mut LoopModule,
    path: &Path,
    l: &For,
    (loops, tiles): (&[(VarId, ExprId)], &[Tile]),
    few: i64,
) -> Result<bool, Diagnostic> {
    let own = |pool: &ExprPool, rest: ExprId| pool.vars_of(rest).iter().all(|v| loops.iter().any(|l| l.0 == *v));
    let mut found = Vec::new();
    for t in tiles {
        let Fact::Extent(extent, full) = t.fact else { continue };
        let more = m.env.pool.as_int(full).is_some_and(|n| n > few);
        let rest = tile_of(&mut m.env, extent).map(|t| t.1).filter(|&rest| more && own(&m.env.pool, rest));
        found.extend(rest.map(|rest| (extent, rest, t.writers.clone())));
    }
    let (extent, rest, writers) = match found.len() {
        0 => return Ok(false),
        1 => found.remove(0),
        _ => return Err(several(&m.env, l)),
    };
    let few = m.env.pool.int(few);
    let more = m.env.pool.lt(few, rest);
    let less = m.env.pool.le(rest, few);
    let facts = facts_in(&mut m.env, loops);
    let mut prover = Prover::new();
    if [more, less].into_iter().any(|c| prover.prove(&mut m.env, &facts, c).is_proved()) {
        return Ok(false);
    }
    let less = m.env.pool.min(few, rest);
    let mut tail = l.body.clone();
    make_full(&mut m.env, &mut tail, &[Tile { slack: vec![], fact: Fact::Extent(extent, less), writers }]);
    choose(m, path, l, more, [l.body.clone(), tail])?;
    Ok(true)
}

/// Which tile is meant is not said.
fn several(env: &Env, l: &For) -> Diagnostic {
    let name = &env.vars[l.var].name;
    Diagnostic::new("E0482", format!("several loops inside `{name}` are partial tiles, and `few` is about one"))
        .hint("peel a loop further inside, which has one of them inside it")
}

/// The first of two bodies where a condition holds, else the second.
fn choose(
    m: &mut LoopModule,
    path: &Path,
    l: &For,
    first: ExprId,
    [main, mut tail]: [Body; 2],
) -> Result<(), Diagnostic> {
    let (one, zero) = (m.env.pool.int(1), m.env.pool.int(0));
    let (yes, no) = (m.env.pool.select(first, one, zero), m.env.pool.select(first, zero, one));
    let once = |m: &mut LoopModule, extent: ExprId, body: Body| {
        let var = m.env.new_var("once");
        vec![Stmt::For(For {
            var,
            stage: l.stage,
            extent,
            kind: LoopKind::Serial,
            prefetch: vec![],
            init: false,
            body,
        })]
    };
    let main = once(m, yes, main);
    go_on(&m.env, &mut tail, &m.env.pool.vars_of(first));
    let tail = once(m, no, tail);
    let inside = [path.as_slice(), &[0]].concat();
    // The body as one statement, which the two parts replace.
    let whole = For { body: l.body.clone(), var: m.env.new_var("once"), extent: one, prefetch: vec![], ..*l };
    *body_at_mut(&mut m.body, path) = vec![Stmt::For(whole)];
    replace(m, &inside, [main, tail])
}

/// Updates that are reduced over one of `vars` go on from what the first part leaves.
pub(super) fn go_on(env: &Env, stmts: &mut [Stmt], vars: &[VarId]) {
    for s in stmts {
        s.blocks_mut(&mut |b| {
            let shared = vars.iter().any(|&v| is_reduction_var(&env.pool, b, v));
            b.continues |= shared && matches!(b.role, BlockRole::Update(_));
        });
    }
}

/// Splitting every part that there is doubles them.
fn check_number(m: &LoopModule, whole: &Stmt) -> Result<(), Diagnostic> {
    for t in writes_below(std::slice::from_ref(whole)) {
        let mut stages: Vec<TensorId> =
            m.blocks_writing(t).into_iter().filter(|b| b.role != BlockRole::Init).map(|b| b.stage).collect();
        stages.sort_unstable();
        stages.dedup();
        if stages.len() >= MAX_PARTS {
            return Err(Diagnostic::new(
                "E0415",
                format!("`{}` is in {} parts already", m.env.tensors[t].name, stages.len()),
            )
            .note(format!("at most {MAX_PARTS}; with each point, every part that there is by then becomes two"))
            .hint("split at fewer points"));
        }
    }
    Ok(())
}

/// Puts the parts in the place of the statement at `path`.
pub(super) fn replace(m: &mut LoopModule, path: &Path, parts: [Vec<Stmt>; 2]) -> Result<(), Diagnostic> {
    let (&at, outer) = path.split_last().expect("a loop's path is not empty");
    let whole = body_at_mut(&mut m.body, outer)[at].clone();
    check_number(m, &whole)?;
    body_at_mut(&mut m.body, outer).remove(at);
    let whole = std::slice::from_ref(&whole);
    let mut made: Vec<Part> = Vec::new();
    let mut out = Vec::new();
    for (stmts, name) in parts.into_iter().zip(PARTS) {
        let part = declare(m, whole, name)?;
        out.extend(copy(&mut m.env, &stmts, &part));
        made.push(part);
    }
    let body = body_at_mut(&mut m.body, outer);
    body.splice(at..at, out);
    for part in made {
        for (_, stage) in part.stages {
            place_init(m, stage);
        }
    }
    Ok(())
}

/// Every tile is full: its extent is its constant, and its mask holds.
fn make_full(env: &mut Env, stmts: &mut [Stmt], tiles: &[Tile]) {
    let known = |env: &mut Env, e: ExprId| {
        let e = normalize(&mut env.pool, e);
        tiles.iter().find_map(|t| match t.fact {
            Fact::Extent(min, full) if min == e => Some(full),
            _ => None,
        })
    };
    let rewrite = |env: &mut Env, e: ExprId| {
        let mut minima = Vec::new();
        env.pool.walk(e, &mut |id, n| {
            if matches!(n, Expr::Bin(BinOp::Min, ..)) {
                minima.push(id);
            }
        });
        let minima: Vec<(ExprId, ExprId)> = minima.into_iter().filter_map(|e| known(env, e).map(|c| (e, c))).collect();
        if minima.is_empty() {
            return e;
        }
        let e = env.pool.rewrite(e, &mut |_, n| minima.iter().find(|x| x.0 == n).map(|x| x.1));
        normalize(&mut env.pool, e)
    };
    for s in stmts {
        match s {
            Stmt::For(l) => {
                l.extent = rewrite(env, l.extent);
                make_full(env, &mut l.body, tiles);
            }
            Stmt::Block(b) => {
                b.predicate.retain(|&p| !tiles.iter().any(|t| matches!(t.fact, Fact::Mask(q) if q == p)));
                for p in &mut b.predicate {
                    *p = rewrite(env, *p);
                }
                b.predicate.retain(|&p| env.pool.as_bool(p) != Some(true));
                for i in &mut b.iters {
                    i.binding = rewrite(env, i.binding);
                }
            }
        }
    }
}

/// Extents in normal form.
fn tidy(env: &mut Env, stmts: &mut [Stmt]) {
    for s in stmts {
        if let Stmt::For(l) = s {
            l.extent = normalize(&mut env.pool, l.extent);
            tidy(env, &mut l.body);
        }
    }
}
