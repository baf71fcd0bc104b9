//! `fuse S.b S.i -> f`: perfectly nested loops of any raggedness into one (paper section 5.1).
//!
//! ```text
//! for b in 0..M { for i in 0..lens(b) }  =>  for f in 0..row(M)   with b = row.at(f), i = f - row(b)
//! ```
//!
//! The fused space is a layout: its size and the inverse come from the dimension graph of the
//! loops, so the tables are those of a tensor stored the same way. Rows may be empty anywhere.
//!
//! Requires: serial loops, each the only statement of the one before. Ensures: the same iterations
//! in the same order. With bulk padding the surplus iterations are masked by a predicate.

use super::MAX_PADDING;
use super::conditions::{is_condition, runs};
use super::defined::is_defined;
use super::inits::{place_init, remove_inits};
use super::serial_loop::serial_or;
use super::tree::{
    Path, add_predicate, check_fresh_loop, check_no_marks, clamp_surplus, enclosing, find_loop, loop_at, loop_at_mut,
    rewrite, substitute,
};
use crate::lower::declared::{Indices, bounds};
use crate::lower::layout::{Layout, sizes};
use crate::simplify::{Facts, Prover};
use cora_ir::loops::{BlockRole, Body, For, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, ExprPool, UfDef, VarId};
use rustc_hash::FxHashMap;

/// Most iterations that a fused loop may count, so that what later steps add to them fits 64 bits too.
const MAX_COUNT: i64 = 1 << 62;

/// Fuses `loops` (outermost first) into one called `name`, its extent rounded up to a multiple of `pad`.
///
/// # Errors
/// `E0402` no such loop, `E0420` loops that are not perfectly nested in that order, `E0411` a loop
/// that is not serial, `E0421` a reduced loop fused with a spatial one, `E0422` `pad` below 1 or too large,
/// `E0423` a loop that runs the others only under a condition, `E0409` reduced loops with too many iterations to count.
pub fn fuse(m: &mut LoopModule, loops: &[LoopRef], name: &str, pad: i64) -> Result<(), Diagnostic> {
    let Some(first) = loops.first() else {
        return Err(Diagnostic::new("E0420", "fuse needs at least one loop").hint("name the loops outermost first"));
    };
    if !(1..=MAX_PADDING).contains(&pad) {
        return Err(Diagnostic::new("E0422", format!("bulk padding to a multiple of {pad} is not possible"))
            .hint(format!("pad to a positive multiple, at most {MAX_PADDING}: the surplus iterations run too")));
    }
    let top = find_loop(m, first)?;
    let stage = loop_at(&m.body, &top).stage;
    let saved = m.body.clone();
    remove_inits(m, stage);
    let result = fuse_nest(m, loops, name, pad);
    if result.is_err() {
        m.body = saved;
    }
    result?;
    place_init(m, stage);
    Ok(())
}

/// The first tensor that an extent reads.
fn read_by(pool: &ExprPool, extent: ExprId) -> Option<cora_ir::TensorId> {
    let mut found = None;
    pool.walk(extent, &mut |_, n| {
        if let cora_ir::Expr::Load { tensor, .. } = n {
            found = found.or(Some(*tensor));
        }
    });
    found
}

fn fuse_nest(m: &mut LoopModule, refs: &[LoopRef], name: &str, pad: i64) -> Result<(), Diagnostic> {
    let top: Path = find_loop(m, &refs[0])?;
    let stage = loop_at(&m.body, &top).stage;
    let mut nest: Vec<For> = Vec::new();
    let mut path = top.clone();
    for (n, r) in refs.iter().enumerate() {
        let here = find_loop(m, r)?;
        if n > 0 {
            let parent = loop_at(&m.body, &path);
            path.push(0);
            if here != path || parent.body.len() != 1 {
                return Err(Diagnostic::new(
                    "E0420",
                    format!("`{}.{}` is not the only statement directly inside `{}.{}`", r.stage, r.name, refs[n - 1].stage, refs[n - 1].name),
                )
                .hint("name the loops outermost first; reorder them to be adjacent, and fuse before attaching stages between them"));
            }
        }
        let l = loop_at(&m.body, &here);
        check_no_marks(&m.env, l, r)?;
        serial_or(m, &here, r, "fuse loops before they are made parallel, vector or unrolled")?;
        if n + 1 < refs.len() && is_condition(&m.env.pool, l.extent) {
            return Err(Diagnostic::new(
                "E0423",
                format!("loop `{}.{}` is a condition for the loops inside it", r.stage, r.name),
            )
            .hint("fuse the loops inside it, or attach the stage where no mask applies"));
        }
        if let Some(t) = read_by(&m.env.pool, l.extent) {
            let t = &m.env.tensors[t].name;
            return Err(Diagnostic::new(
                "E0424",
                format!("loop `{}.{}` cannot be fused: its extent reads an element of `{t}`", r.stage, r.name),
            )
            .note("the table of a fused loop is built from parameters and lengths, before any tensor has elements")
            .hint("fuse the loops whose extents depend on parameters, lengths and loops outside them only"));
        }
        nest.push(For { body: Body::default(), ..l.clone() });
    }
    check_one_kind(m, &path, &nest, refs)?;
    if !refs.iter().any(|r| r.name == name) {
        check_fresh_loop(m, stage, name)?;
    }
    let outer: Vec<(VarId, ExprId)> = enclosing(&m.body, &top).iter().map(|l| (l.var, l.extent)).collect();
    check_values(m, &outer, &nest, refs)?;
    let reduced = is_reduced(m, &path, &nest);
    let (nest, fused_before) = rows_again(&mut m.env, nest);
    let space = FusedSpace::new(&mut m.env, &outer, &nest);
    let fused = m.env.new_var(name);
    let f = m.env.pool.var(fused);
    let layout_name = format!("{}.{name}", m.env.tensors[stage].name);
    let layout = Layout { extents: &space.extents, name: &layout_name };
    let total = layout.volume(&mut m.env, space.outer.len());
    let total = m.env.pool.instantiate(total, &space.outer);
    let total = space.inside_conditions(&mut m.env, total);
    if reduced {
        check_count(m, &outer, total, refs)?;
    }
    let index = layout.unflatten(&mut m.env, space.outer.len(), &space.outer, f);
    let index: Vec<ExprId> = index.into_iter().map(|e| space.inside_conditions(&mut m.env, e)).collect();
    let map: FxHashMap<VarId, ExprId> = nest.iter().map(|l| l.var).zip(index).collect();
    let innermost = loop_at_mut(&mut m.body, &path);
    let mut body = std::mem::take(&mut innermost.body);
    for before in &fused_before {
        rewrite(&mut m.env.pool, &mut body, &mut |pool, e| before.replaced(pool, e));
    }
    substitute(&mut m.env.pool, &mut body, &map);
    let padded = m.env.pool.round_up(total, pad);
    if pad > 1 {
        let one = m.env.pool.int(1);
        let last = m.env.pool.sub(total, one);
        clamp_surplus(&mut m.env.pool, &mut body, fused, last);
        let cond = m.env.pool.lt(f, total);
        add_predicate(&m.env.pool, &mut body, cond);
    }
    let top_loop = loop_at_mut(&mut m.body, &top);
    *top_loop = For { var: fused, extent: padded, body, ..top_loop.clone() };
    Ok(())
}

/// How often a fused loop runs is computed where the outer loops may never run, too.
fn check_values(
    m: &mut LoopModule,
    outer: &[(VarId, ExprId)],
    nest: &[For],
    refs: &[LoopRef],
) -> Result<(), Diagnostic> {
    for (n, l) in nest.iter().enumerate().skip(1) {
        let pool = &m.env.pool;
        let looks_up = pool.any(l.extent, &mut |e| matches!(e, cora_ir::Expr::Call(..)));
        // Where it moves with them there is a table, which has entries of those that run.
        let own = nest[..n].iter().any(|o| pool.uses_var(l.extent, o.var));
        let always = nest[..n].iter().all(|o| pool.as_int(o.extent).is_some_and(|e| e > 0));
        if !looks_up || own || always {
            continue;
        }
        let mut facts = Facts::in_loops(outer.iter().copied());
        for &(_, extent) in outer {
            let runs = runs(&mut m.env, extent);
            facts.push_assumption(runs);
        }
        if !is_defined(&mut m.env, &mut Prover::new(), &facts, l.extent) {
            let d = Diagnostic::new(
                "E0424",
                format!(
                    "loop `{}.{}` cannot be fused with those outside it: where they never run its extent need not have a value",
                    refs[n].stage, refs[n].name
                ),
            );
            return Err(
                d.hint("fuse the loops inside it, or ask only for what has a value there in the step that made it")
            );
        }
    }
    Ok(())
}

/// A loop that counts the elements of rows, as an earlier `fuse` made it: `f` in `0..sum(rows)`.
struct FusedBefore {
    f: VarId,
    /// The row that holds `f`, as expressions call it.
    row_of: ExprId,
    row: VarId,
    /// `sum(row) + within`.
    value: ExprId,
}

impl FusedBefore {
    /// `e` over the row and the position in it.
    fn replaced(&self, pool: &mut ExprPool, e: ExprId) -> ExprId {
        if !pool.uses_var(e, self.f) {
            return e;
        }
        let row = pool.var(self.row);
        let e = pool.rewrite(e, &mut |_, x| (x == self.row_of).then_some(row));
        let e = pool.substitute(e, &FxHashMap::from_iter([(self.f, self.value)]));
        cora_ir::affine::normalize(pool, e)
    }
}

/// Loops that were fused before, on which the extents of loops inside depend by their rows alone, as the loops over rows and
/// over the elements of a row: the tables have an entry for each row then, as if all were fused at once, not one for each
/// element.
fn rows_again(env: &mut Env, nest: Vec<For>) -> (Vec<For>, Vec<FusedBefore>) {
    let (mut out, mut fused): (Vec<For>, Vec<FusedBefore>) = (Vec::new(), Vec::new());
    for (n, l) in nest.iter().enumerate() {
        let extent = fused.iter().fold(l.extent, |e, before| before.replaced(&mut env.pool, e));
        let l = For { extent, ..l.clone() };
        let inside: Vec<ExprId> = nest[n + 1..].iter().map(|i| i.extent).collect();
        match two_loops(env, &l, &inside) {
            Some((loops, before)) => {
                out.extend(loops);
                fused.push(before);
            }
            None => out.push(l),
        }
    }
    (out, fused)
}

fn two_loops(env: &mut Env, l: &For, inside: &[ExprId]) -> Option<([For; 2], FusedBefore)> {
    let Expr::Call(sum, args) = env.pool.get(l.extent).clone() else { return None };
    let UfDef::PrefixSum { body } = env.ufs[sum].def else { return None };
    let (&rows, outer) = args.split_last()?;
    let all = *env.ufs[sum].domain.last()?;
    if env.pool.instantiate(all, outer) != rows {
        return None;
    }
    let search = env.ufs.iter().find(|(_, u)| matches!(u.def, UfDef::Search { sum: s } if s == sum))?.0;
    let f = env.pool.var(l.var);
    let row_of = env.pool.call(search, outer.iter().copied().chain([f]));
    let name = env.vars[l.var].name.clone();
    let (row, within) = (env.new_var(format!("{name}.row")), env.new_var(name));
    let row_index = env.pool.var(row);
    let at_row: Vec<ExprId> = outer.iter().copied().chain([row_index]).collect();
    let elements = env.pool.instantiate(body, &at_row);
    let start = env.pool.call(sum, at_row);
    let position = env.pool.var(within);
    let value = env.pool.add(start, position);
    let before = FusedBefore { f: l.var, row_of, row, value };
    let mut depends = false;
    for &e in inside {
        depends |= env.pool.uses_var(e, l.var);
        let e = before.replaced(&mut env.pool, e);
        // Elements of a row that count differently have an entry each in any case.
        if env.pool.uses_var(e, within) || env.pool.any(e, &mut |x| matches!(x, Expr::Call(g, _) if *g == sum)) {
            return None;
        }
    }
    depends.then(|| {
        ([For { var: row, extent: rows, ..l.clone() }, For { var: within, extent: elements, ..l.clone() }], before)
    })
}

/// Whether a block inside reduces over the loops.
fn is_reduced(m: &LoopModule, inner: &Path, nest: &[For]) -> bool {
    let mut reduced = false;
    for s in &loop_at(&m.body, inner).body {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s {
                reduced |= nest.iter().any(|l| super::tree::is_reduction_var(&m.env.pool, b, l.var));
            }
        });
    }
    reduced
}

/// Loops that are reduced over may have more iterations together, by declared ranges, than 64 bits count. Of other loops each
/// iteration has an element in memory, and the prelude counts the entries of tables.
fn check_count(m: &LoopModule, outer: &[(VarId, ExprId)], total: ExprId, refs: &[LoopRef]) -> Result<(), Diagnostic> {
    let most = |e: ExprId| bounds(&m.env, e, Indices { args: &[], loops: outer }).hi;
    let mut too_many = most(total).is_some_and(|n| n > MAX_COUNT);
    m.env.pool.walk(total, &mut |_, n| {
        if let Expr::Bin(BinOp::Mul, a, b) = n
            && let (Some(a), Some(b)) = (most(*a), most(*b))
        {
            too_many |= a.checked_mul(b).is_none_or(|n| n > MAX_COUNT);
        }
    });
    if !too_many {
        return Ok(());
    }
    let names: Vec<String> = refs.iter().map(|r| format!("`{}.{}`", r.stage, r.name)).collect();
    Err(Diagnostic::new("E0409", format!("{} may have more than 2^62 iterations together", names.join(" and ")))
        .hint("leave them nested, or declare smaller ranges of the parameters and lengths that they depend on"))
}

fn check_one_kind(m: &LoopModule, inner: &Path, nest: &[For], refs: &[LoopRef]) -> Result<(), Diagnostic> {
    let mut clash = false;
    for s in &loop_at(&m.body, inner).body {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s
                && matches!(b.role, BlockRole::Update(_))
            {
                let reduced = nest.iter().filter(|l| super::tree::is_reduction_var(&m.env.pool, b, l.var)).count();
                clash |= reduced != 0 && reduced != nest.len();
            }
        });
    }
    if clash {
        let names: Vec<String> = refs.iter().map(|r| format!("{}.{}", r.stage, r.name)).collect();
        return Err(Diagnostic::new(
            "E0421",
            format!("`{}` mixes a loop that is reduced over with one that is not", names.join(" ")),
        )
        .hint("fuse spatial loops with spatial loops and reduced loops with reduced loops"));
    }
    Ok(())
}

/// The loops to fuse, and the enclosing loops that their extents depend on, as a box over `Arg`s.
struct FusedSpace {
    /// Extents: first those of the enclosing loops, then of the fused ones.
    extents: Vec<ExprId>,
    /// The enclosing loops' variables.
    outer: Vec<ExprId>,
    /// Conditions under which enclosing loops run: elsewhere the loop after them has no iterations.
    conditions: Vec<ExprId>,
}

impl FusedSpace {
    fn new(env: &mut Env, enclosing: &[(VarId, ExprId)], nest: &[For]) -> Self {
        let read = needed(env, enclosing, nest.iter().map(|l| l.extent));
        let masks = enclosing_conditions(env, enclosing, nest, &read);
        let needed = needed(env, enclosing, nest.iter().map(|l| l.extent).chain(masks.iter().map(|c| c.1)));
        let mut map: FxHashMap<VarId, ExprId> = FxHashMap::default();
        let (mut extents, mut outer, mut conditions) = (Vec::new(), Vec::new(), Vec::new());
        // What was met on the way in, whether no loop bears it yet, and the loops that have no iteration without it.
        let (mut met, mut pending, mut borne): (Vec<ExprId>, bool, Vec<VarId>) = (Vec::new(), false, Vec::new());
        let all = enclosing.iter().map(|&(v, e)| (v, e, true)).chain(nest.iter().map(|l| (l.var, l.extent, false)));
        for (v, extent, is_outer) in all.collect::<Vec<_>>() {
            if is_outer && !needed.contains(&v) {
                met.extend(masks.iter().filter(|c| c.0 == v).map(|c| c.1));
                pending |= masks.iter().any(|c| c.0 == v);
                continue;
            }
            let mut size = extent;
            let inside = borne.iter().any(|&b| env.pool.uses_var(extent, b));
            let calls = env.pool.any(extent, &mut |n| matches!(n, cora_ir::Expr::Call(..)));
            if pending || (!met.is_empty() && calls && !inside) {
                let (here, zero) = (env.pool.all(met.iter().copied()), env.pool.int(0));
                size = env.pool.select(here, extent, zero);
                conditions.push(here);
                borne.push(v);
                pending = false;
            } else if inside {
                borne.push(v);
            }
            let over_args = env.pool.substitute(size, &map);
            extents.push(over_args);
            let a = env.pool.arg(map.len() as u32);
            map.insert(v, a);
            if is_outer {
                outer.push(env.pool.var(v));
            }
        }
        Self { extents: sizes(env, &extents), outer, conditions }
    }

    /// `e` where every enclosing condition holds.
    fn inside_conditions(&self, env: &mut Env, e: ExprId) -> ExprId {
        self.conditions.iter().fold(e, |e, &c| {
            let normal = cora_ir::affine::normalize(&mut env.pool, c);
            env.pool.rewrite(e, &mut |p, x| match *p.get(x) {
                cora_ir::Expr::Select(cond, then, _) if cond == c || cond == normal => Some(then),
                _ => None,
            })
        })
    }
}

/// The variables in `exprs`, and in the extents of enclosing loops that bind such.
fn needed(env: &Env, enclosing: &[(VarId, ExprId)], exprs: impl Iterator<Item = ExprId>) -> Vec<VarId> {
    let mut needed: Vec<VarId> = exprs.flat_map(|e| env.pool.vars_of(e)).collect();
    for (v, extent) in enclosing.iter().rev() {
        if needed.contains(v) {
            needed.extend(env.pool.vars_of(*extent));
        }
    }
    needed
}

/// The tables of a fused space cover all iterations of the enclosing loops that they have as arguments, `read`; where others
/// do not run, functions that the extents call may have no value. The conditions that those run: none where the extents
/// always have a value; of the loops that are conditions, and where these are not enough of those that may be empty.
fn enclosing_conditions(
    env: &mut Env,
    enclosing: &[(VarId, ExprId)],
    nest: &[For],
    read: &[VarId],
) -> Vec<(VarId, ExprId)> {
    // A single loop needs no table.
    if nest.len() < 2 {
        return Vec::new();
    }
    let own: Vec<(VarId, ExprId)> = enclosing.iter().filter(|l| read.contains(&l.0)).copied().collect();
    let all: Vec<(VarId, ExprId)> = own.into_iter().chain(nest.iter().map(|l| (l.var, l.extent))).collect();
    let mut out: Vec<(VarId, ExprId)> = Vec::new();
    for conditions in [true, false] {
        let mut facts = Facts::new();
        facts.assumptions.extend(out.iter().map(|c| c.1));
        let prover = &mut Prover::new();
        // That a loop runs says that its extent has a value, but only to what is inside it.
        let defined = all.iter().all(|&(v, extent)| {
            let defined = is_defined(env, prover, &facts, extent);
            facts.push_var(v, extent);
            defined
        });
        if defined {
            break;
        }
        let others = enclosing.iter().filter(|l| !read.contains(&l.0) && is_condition(&env.pool, l.1) == conditions);
        for (v, extent) in others.copied().collect::<Vec<_>>() {
            let runs = runs(env, extent);
            if !prover.prove(env, &Facts::new(), runs).is_proved() {
                out.push((v, runs));
            }
        }
    }
    out
}
