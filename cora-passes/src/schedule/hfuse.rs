//! `hfuse S.main.q S.tail.q -> t`: independent neighbouring loops one after the other as one loop
//! (horizontal fusion, paper section 4.1).
//!
//! ```text
//! for q in 0..A { X(q) }   for k in 0..B { Y(k) }
//!   =>  for t in 0..A + B { if t < A { X(t) }  if A <= t { Y(t - A) } }
//! ```
//!
//! The loop may then be parallel: iterations of both run at the same time. The loops are the parts of
//! one operator or unrelated operators, outermost or inside the same loop, or inside loops that count the same, which
//! become one.
//!
//! Requires: serial loops in one body, or in such loops, neither of which reads or overwrites what another writes; parts
//! of one stage write elements of their own, except where one goes on from what another leaves: there it is proved.
//! Ensures: the same iterations in the same order; those of loops that became one take turns.

use super::conditions::{is_condition, not_a_condition};
use super::inits::{place_init, remove_init};
use super::tree::{
    Path, blocks_in, body_at_mut, check_fresh_loop, check_no_marks, enclosing, find_loop, is_reduction_var, loop_at,
    reads_below, stages_of, substitute, writes_below,
};
use crate::lower::sign::as_size;
use crate::simplify::{Facts, Prover};
use cora_ir::affine::normalize;
use cora_ir::loops::{BlockRole, For, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{BinOp, Diagnostic, ExprId, TensorId, UnOp, VarId};
use rustc_hash::FxHashMap;

/// Loops with their extents, outermost first.
type Loops = Vec<(VarId, ExprId)>;

/// Fuses `loops`, in their order, into one called `name` of the first one's stage.
///
/// # Errors
/// `E0402` no such loop, `E0403` the name is taken, `E0411` a loop that is not serial, `E0489` loops
/// that are not in one body in that order, `E0423` one that is a condition, `E0468` a dependence between them or on what stands between.
pub fn hfuse(m: &mut LoopModule, loops: &[LoopRef], name: &str) -> Result<(), Diagnostic> {
    let saved = m.body.clone();
    let result = fuse(m, loops, name);
    if result.is_err() {
        m.body = saved;
    }
    result
}

fn show(r: &LoopRef) -> String {
    format!("{}.{}", r.stage, r.name)
}

fn fuse(m: &mut LoopModule, refs: &[LoopRef], name: &str) -> Result<(), Diagnostic> {
    let (first, others) = match refs {
        [first, others @ ..] if !others.is_empty() => (first, others),
        _ => {
            return Err(
                Diagnostic::new("E0489", "hfuse needs at least two loops").hint("name the loops in their order")
            );
        }
    };
    let mut inside = Vec::new();
    for r in refs {
        let l = loop_at(&m.body, &find_loop(m, r)?);
        check_no_marks(&m.env, l, r)?;
        not_a_condition(m, l, r)?;
        if l.kind != LoopKind::Serial {
            return Err(Diagnostic::new("E0411", format!("loop `{}` is already {}", show(r), l.kind.described()))
                .hint("fuse loops before they are made parallel, vector or unrolled"));
        }
        inside.extend(stages_of(&[Stmt::For(l.clone())]));
    }
    for &s in &inside {
        remove_init(&mut m.body, s);
    }
    let top = find_loop(m, first)?;
    let stage = loop_at(&m.body, &top).stage;
    if !refs.iter().any(|r| r.name == name && r.stage == first.stage) {
        check_fresh_loop(m, stage, name)?;
    }
    let (&start, outer) = top.split_last().expect("a loop's path is not empty");
    let mut fused = vec![loop_at(&m.body, &top).clone()];
    for r in others {
        bring_together(m, outer, r)?;
        let l = take_neighbour(m, outer, start, first, r, &fused)?;
        fused.push(l);
    }
    let around: Loops = enclosing(&m.body, &top).iter().map(|l| (l.var, l.extent)).collect();
    let joined = join(m, stage, fused, &around, name);
    body_at_mut(&mut m.body, outer)[start] = Stmt::For(joined);
    let mut seen = rustc_hash::FxHashSet::default();
    inside.retain(|s| seen.insert(*s));
    for s in inside {
        place_init(m, s);
    }
    Ok(())
}

/// Moves the loop `r` into the loops at `outer` if it is inside other ones that count the same, as the parts of an operator
/// are, and nothing connects the two nests.
fn bring_together(m: &mut LoopModule, outer: &[usize], r: &LoopRef) -> Result<(), Diagnostic> {
    let path: Path = find_loop(m, r)?;
    let (_, around) = path.split_last().expect("a loop's path is not empty");
    let Some(level) = (0..outer.len()).find(|&d| around.get(d) != Some(&outer[d])) else { return Ok(()) };
    if around.len() != outer.len() || around[level] < outer[level] {
        return Ok(());
    }
    let mut map: FxHashMap<VarId, ExprId> = FxHashMap::default();
    for n in level + 1..=outer.len() {
        let (first, second) = (loop_at(&m.body, &outer[..n]), loop_at(&m.body, &around[..n]));
        let serial = [first, second].iter().all(|l| l.kind == LoopKind::Serial && !is_condition(&m.env.pool, l.extent));
        let (var, own, extents) = (second.var, first.var, [first.extent, second.extent]);
        // What a step said of a loop that goes would be lost.
        if !serial || second.body.len() > 1 || check_no_marks(&m.env, second, r).is_err() {
            return Ok(());
        }
        let other = m.env.pool.substitute(extents[1], &map);
        if normalize(&mut m.env.pool, extents[0]) != normalize(&mut m.env.pool, other) {
            return Ok(());
        }
        map.insert(var, m.env.pool.var(own));
    }
    let (from, to) = (outer[level], around[level]);
    let loops: Loops = enclosing(&m.body, &outer[..=level]).iter().map(|l| (l.var, l.extent)).collect();
    let body = body_at_mut(&mut m.body, &outer[..level]);
    let nest = [body.remove(to)];
    let (first, between) = (vec![body[from].clone()], body[from + 1..to].to_vec());
    let shared =
        |m: &mut LoopModule, t: &TensorId| !apart(&first, &nest, *t) && !elements_apart(m, &loops, &first, &nest, *t);
    if let Some(t) = dependence(m, &first, &nest, shared) {
        return Err(dependent(m, t, &show(r), "the loops before it", goes_on(&first, &nest, t)));
    }
    let passed = |m: &mut LoopModule, t: &TensorId| !elements_apart(m, &loops, &between, &nest, *t);
    if let Some(t) = dependence(m, &between, &nest, passed) {
        return Err(dependent(m, t, &show(r), "what stands between the loops", None));
    }
    let mut own = nest.into_iter().collect::<Vec<_>>();
    for _ in level..outer.len() {
        let Some(Stmt::For(l)) = own.pop() else { unreachable!("each loop holds the next one") };
        own = l.body.to_vec();
    }
    substitute(&mut m.env.pool, &mut own, &map);
    body_at_mut(&mut m.body, outer).append(&mut own);
    Ok(())
}

/// Removes the loop `r` from the body, if it may run right after those in `before`.
fn take_neighbour(
    m: &mut LoopModule,
    outer: &[usize],
    start: usize,
    first: &LoopRef,
    r: &LoopRef,
    before: &[For],
) -> Result<For, Diagnostic> {
    let path: Path = find_loop(m, r)?;
    let (&at, around) = path.split_last().expect("a loop's path is not empty");
    if around != outer || at <= start {
        return Err(Diagnostic::new(
            "E0489",
            format!("`{}` does not stand after `{}` in the same body", show(r), show(first)),
        )
        .hint("name loops of one body in their order; split or reorder so that they are neighbours"));
    }
    let body = body_at_mut(&mut m.body, outer);
    let Stmt::For(l) = body.remove(at) else { unreachable!("find_loop gives paths of loops") };
    let between: Vec<Stmt> = body[start + 1..at].to_vec();
    let own = [Stmt::For(l.clone())];
    let around: Vec<(VarId, ExprId)> = enclosing(&m.body, outer).iter().map(|l| (l.var, l.extent)).collect();
    for l in before {
        let before = [Stmt::For(l.clone())];
        let shared = |m: &mut LoopModule, t: &TensorId| {
            !apart(&before, &own, *t) && !elements_apart(m, &around, &before, &own, *t)
        };
        if let Some(t) = dependence(m, &before, &own, shared) {
            return Err(dependent(m, t, &show(r), "the loops before it", goes_on(&before, &own, t)));
        }
    }
    let passed = |m: &mut LoopModule, t: &TensorId| !elements_apart(m, &around, &between, &own, *t);
    match dependence(m, &between, &own, passed) {
        Some(t) => Err(dependent(m, t, &show(r), "what stands between the loops", None)),
        None => Ok(l),
    }
}

/// `sum` says which part goes on from which one, if that is why.
fn dependent(m: &LoopModule, t: TensorId, r: &str, on: &str, sum: Option<[TensorId; 2]>) -> Diagnostic {
    let name = |t: TensorId| &m.env.tensors[t].name;
    let what = format!("`{r}` cannot run together with the others: `{}` connects it with {on}", name(t));
    let d = Diagnostic::new("E0468", what);
    match sum {
        Some([main, tail]) => d
            .note(format!(
                "they are parts of a loop that `{}` is reduced over: `{}` goes on from what `{}` leaves in the same elements",
                name(t),
                name(tail),
                name(main)
            ))
            .hint("make loops of each part parallel by themselves, or `peel` the loop: its parts stay in the loops around them"),
        None => d
            .note("one of them writes what the other reads or writes")
            .hint("fuse loops that are independent, such as the parts of a loop that is not reduced over or operators with other results"),
    }
}

/// The stages that write `t` in `a` and in `b`, if the second is a part that goes on from the first.
fn goes_on(a: &[Stmt], b: &[Stmt], t: TensorId) -> Option<[TensorId; 2]> {
    let writer = |stmts, continues: bool| {
        let all = blocks_in(stmts).into_iter().map(|(b, _)| b);
        let mut own = all.filter(|b| b.tensor == t && b.stage != t);
        own.find(|b| b.continues || !continues).map(|b| b.stage)
    };
    Some([writer(a, false)?, writer(b, true)?])
}

/// A tensor by which `b` depends on `a` or `a` on `b`: one reads what the other writes, or both write elements that may be
/// `shared`.
fn dependence(
    m: &mut LoopModule,
    a: &[Stmt],
    b: &[Stmt],
    shared: impl Fn(&mut LoopModule, &TensorId) -> bool,
) -> Option<TensorId> {
    let (wa, wb) = (writes_below(a), writes_below(b));
    let (ra, rb) = (reads_below(&m.env.pool, a), reads_below(&m.env.pool, b));
    let conflict = wa.iter().find(|t| rb.contains(t)).or(wb.iter().find(|t| ra.contains(t)));
    conflict.copied().or_else(|| wa.into_iter().find(|t| wb.contains(t) && shared(m, t)))
}

/// Whether it is proved that no element of `t` is written in `a` and in `b`, as of the parts of a sum that goes on where they
/// are parts of its rows too.
fn elements_apart(m: &mut LoopModule, around: &Loops, a: &[Stmt], b: &[Stmt], t: TensorId) -> bool {
    let [a, b] = [a, b].map(|stmts| written(m, stmts, t));
    let mut prover = Prover::new();
    a.iter().all(|(x, first)| {
        b.iter().all(|(y, second)| {
            let facts = Facts::in_loops(around.iter().chain(first).chain(second).copied());
            let same = x.iter().zip(y).map(|(&i, &j)| m.env.pool.bin(BinOp::Eq, i, j)).collect::<Vec<_>>();
            let same = m.env.pool.all(same);
            let never = m.env.pool.un(UnOp::Not, same);
            prover.prove(&mut m.env, &facts, never).is_proved()
        })
    })
}

/// The element of `t` that each block below writes, with loops of its own.
fn written(m: &mut LoopModule, stmts: &[Stmt], t: TensorId) -> Vec<(Vec<ExprId>, Loops)> {
    let mut out = Vec::new();
    for (b, inner) in blocks_in(stmts).into_iter().filter(|(b, _)| b.tensor == t) {
        let (mut own, mut loops): (FxHashMap<VarId, ExprId>, Loops) = Default::default();
        // A sum's first value is written where its loops have no iteration, too.
        let begins = matches!(b.role, BlockRole::Update(_)) && !b.continues;
        for l in inner {
            if begins && is_reduction_var(&m.env.pool, b, l.var) {
                continue;
            }
            let var = m.env.copy_var(l.var);
            loops.push((var, m.env.pool.substitute(l.extent, &own)));
            own.insert(l.var, m.env.pool.var(var));
        }
        let mut bindings: FxHashMap<VarId, ExprId> = FxHashMap::default();
        for i in &b.iters {
            bindings.insert(i.var, m.env.pool.substitute(i.binding, &own));
        }
        out.push((b.index.iter().map(|&e| m.env.pool.substitute(e, &bindings)).collect(), loops));
    }
    out
}

/// Whether the stages that write `t` in `a` and in `b` are different parts, each complete by itself.
fn apart(a: &[Stmt], b: &[Stmt], t: TensorId) -> bool {
    let writers = |stmts: &[Stmt]| {
        let (mut stages, mut complete) = (Vec::new(), true);
        for s in stmts {
            s.walk(&mut |s| {
                if let Stmt::Block(x) = s
                    && x.tensor == t
                {
                    stages.push(x.stage);
                    complete &= !x.continues;
                }
            });
        }
        (stages, complete)
    };
    let ((sa, ca), (sb, cb)) = (writers(a), writers(b));
    ca && cb && !sa.iter().any(|s| sb.contains(s))
}

/// One loop over all iterations; each body runs in its stretch.
fn join(m: &mut LoopModule, stage: TensorId, loops: Vec<For>, around: &Loops, name: &str) -> For {
    let env = &mut m.env;
    let var = env.new_var(name);
    let t = env.pool.var(var);
    let (one, zero) = (env.pool.int(1), env.pool.int(0));
    let (mut start, mut body) = (zero, Vec::new());
    let count = loops.len();
    for (n, l) in loops.into_iter().enumerate() {
        let known = env.pool.le(zero, l.extent);
        let known = Prover::new().prove(env, &Facts::in_loops(around.iter().copied()), known).is_proved();
        let size = if known { l.extent } else { as_size(env, &[], l.extent) };
        let end = env.pool.add(start, size);
        let end = normalize(&mut env.pool, end);
        let mut here = Vec::new();
        if n > 0 {
            here.push(env.pool.le(start, t));
        }
        if n + 1 < count {
            here.push(env.pool.lt(t, end));
        }
        let here = env.pool.all(here);
        let extent = env.pool.select(here, one, zero);
        let at = env.pool.sub(t, start);
        let at = normalize(&mut env.pool, at);
        let map = [(l.var, at)].into_iter().collect();
        let mut inner = l.body;
        substitute(&mut env.pool, &mut inner, &map);
        let once = env.new_var("once");
        body.push(Stmt::For(For {
            var: once,
            stage: l.stage,
            extent,
            kind: LoopKind::Serial,
            prefetch: vec![],
            init: false,
            body: inner,
        }));
        start = end;
    }
    For { var, stage, extent: start, kind: LoopKind::Serial, prefetch: vec![], init: false, body: body.into() }
}
