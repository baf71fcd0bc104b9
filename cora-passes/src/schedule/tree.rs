//! Finding and editing loops: paths, substitution, what is read and written below.

use super::conditions::is_condition;
use super::parts::is_part;
use cora_ir::expr::ExprPool;
use cora_ir::loops::{Block, BlockRole, Body, For, Iter, IterKind, LoopModule, Stmt};
use cora_ir::schedule::LoopRef;
use cora_ir::{Diagnostic, Env, ExprId, Reduction, TensorId, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

/// A statement's position: an index into the module's body, then into each nested body.
pub type Path = Vec<usize>;

/// The statement at `path`.
pub fn stmt_at<'a>(body: &'a [Stmt], path: &[usize]) -> Option<&'a Stmt> {
    let (&first, rest) = path.split_first()?;
    let s = body.get(first)?;
    match (rest.is_empty(), s) {
        (true, _) => Some(s),
        (false, Stmt::For(l)) => stmt_at(&l.body, rest),
        (false, Stmt::Block(_)) => None,
    }
}

/// The list of statements that the loop at `path` holds; the top level for the empty path.
pub fn body_at_mut<'a>(body: &'a mut Vec<Stmt>, path: &[usize]) -> &'a mut Vec<Stmt> {
    match path.split_first() {
        None => body,
        Some((&first, rest)) => match &mut body[first] {
            Stmt::For(l) => body_at_mut(&mut l.body, rest),
            Stmt::Block(_) => unreachable!("a path leads through loops only"),
        },
    }
}

/// The loop at `path`.
pub fn loop_at<'a>(body: &'a [Stmt], path: &[usize]) -> &'a For {
    match stmt_at(body, path) {
        Some(Stmt::For(l)) => l,
        _ => unreachable!("find_loop gives paths of loops"),
    }
}

/// The loop at `path`, mutably.
pub fn loop_at_mut<'a>(body: &'a mut [Stmt], path: &[usize]) -> &'a mut For {
    let (&first, rest) = path.split_first().expect("a loop's path is not empty");
    match &mut body[first] {
        Stmt::For(l) => {
            if rest.is_empty() {
                return l;
            }
            loop_at_mut(&mut l.body, rest)
        }
        Stmt::Block(_) => unreachable!("find_loop gives paths of loops"),
    }
}

/// The loops around `path`, outermost first, without the one at `path` itself.
pub fn enclosing<'a>(body: &'a [Stmt], path: &[usize]) -> Vec<&'a For> {
    (1..path.len()).map(|n| loop_at(body, &path[..n])).collect()
}

/// The loops around the one at `path`, outermost first, that run wherever an element has its first value: one that is reduced
/// over may have no iteration, and what that would prove is false of `init`.
pub(super) fn around_elements(m: &LoopModule, path: &[usize]) -> Vec<(VarId, ExprId)> {
    let mut loops: Vec<_> = enclosing(&m.body, path).iter().map(|l| (l.var, l.extent)).collect();
    for b in blocks_below(&loop_at(&m.body, path).body) {
        loops.retain(|l| !is_reduction_var(&m.env.pool, b, l.0));
    }
    loops
}

/// Every block in `body`, in order, with the loops around it there, outermost first.
pub fn blocks_in(body: &[Stmt]) -> Vec<(&Block, Vec<&For>)> {
    fn go<'a>(body: &'a [Stmt], around: &mut Vec<&'a For>, out: &mut Vec<(&'a Block, Vec<&'a For>)>) {
        for s in body {
            match s {
                Stmt::Block(b) => out.push((b, around.clone())),
                Stmt::For(l) => {
                    around.push(l);
                    go(&l.body, around, out);
                    around.pop();
                }
            }
        }
    }
    let mut out = Vec::new();
    go(body, &mut Vec::new(), &mut out);
    out
}

/// Every stage with a loop or a block below, in order of appearance.
pub fn stages_of(body: &[Stmt]) -> Vec<TensorId> {
    let (mut out, mut seen) = (Vec::new(), FxHashSet::default());
    for s in body {
        s.walk(&mut |s| {
            let stage = match s {
                Stmt::For(l) => l.stage,
                Stmt::Block(b) => b.stage,
            };
            if seen.insert(stage) {
                out.push(stage);
            }
        });
    }
    out
}

/// Whether a loop or a block below is of `stage`.
fn is_stage(body: &[Stmt], stage: TensorId) -> bool {
    body.iter().filter(|s| s.concerned().may_have(stage)).any(|s| match s {
        Stmt::For(l) => l.stage == stage || is_stage(&l.body, stage),
        Stmt::Block(b) => b.stage == stage,
    })
}

/// The stage called `name`. Loops around the parts of a stage that was split are still its own.
///
/// # Errors
/// `E0401` there is none at this point.
pub fn find_stage(m: &LoopModule, name: &str) -> Result<TensorId, Diagnostic> {
    m.env.tensor_named(name).filter(|&t| is_stage(&m.body, t)).ok_or_else(|| {
        let stages = stages_of(&m.body);
        let known: Vec<&str> = stages.iter().map(|&t| m.env.tensors[t].name.as_str()).collect();
        Diagnostic::new("E0401", format!("there is no stage `{name}`"))
            .hint(format!("stages at this point: {}", known.join(", ")))
    })
}

/// The paths of all loops of `stage` in order, `init` loops left out.
pub fn stage_loops(m: &LoopModule, stage: TensorId) -> Vec<Path> {
    fn go(body: &[Stmt], stage: TensorId, at: &mut Path, out: &mut Vec<Path>) {
        for (i, s) in body.iter().enumerate() {
            if let Stmt::For(l) = s
                && s.concerned().may_have(stage)
            {
                at.push(i);
                if l.stage == stage && !l.init {
                    out.push(at.clone());
                }
                go(&l.body, stage, at, out);
                at.pop();
            }
        }
    }
    let mut out = Vec::new();
    go(&m.body, stage, &mut Vec::new(), &mut out);
    out
}

/// The path of the first block of `stage`.
pub fn first_block(m: &LoopModule, stage: TensorId) -> Option<Path> {
    first_block_in(&m.body, stage)
}

/// The path of the first block of `stage` in `body`.
pub fn first_block_in(body: &[Stmt], stage: TensorId) -> Option<Path> {
    fn go(body: &[Stmt], stage: TensorId, at: &mut Path) -> bool {
        body.iter().enumerate().any(|(i, s)| {
            at.push(i);
            let found = match s {
                Stmt::For(l) => s.concerned().may_have(stage) && go(&l.body, stage, at),
                Stmt::Block(b) => b.stage == stage,
            };
            if !found {
                at.pop();
            }
            found
        })
    }
    let mut at = Path::new();
    go(body, stage, &mut at).then_some(at)
}

/// The tensor that the blocks of `stage` write: its own, or that of the stage it is a part of.
pub fn written_by(m: &LoopModule, stage: TensorId) -> TensorId {
    m.blocks_of(stage).first().map_or(stage, |b| b.tensor)
}

/// The path of the loop that `r` names: by its name, else by its other name.
///
/// # Errors
/// `E0401` unknown stage, `E0402` the stage has no such loop.
pub fn find_loop(m: &LoopModule, r: &LoopRef) -> Result<Path, Diagnostic> {
    let stage = find_stage(m, &r.stage)?;
    let loops = stage_loops(m, stage);
    let name_of = |p: &Path| m.env.vars[loop_at(&m.body, p).var].name.clone();
    let also = |p: &&Path| m.env.vars[loop_at(&m.body, p).var].also.as_ref() == Some(&r.name);
    let found = loops.iter().find(|p| name_of(p) == r.name).or_else(|| loops.iter().find(also));
    found.cloned().ok_or_else(|| {
        let names: Vec<String> = loops.iter().map(name_of).collect();
        let own =
            if names.is_empty() { "it has none".to_owned() } else { format!("its loops are: {}", names.join(", ")) };
        let parts = parts_with_loop(m, r);
        let hint = match parts.as_slice() {
            [] => match beside_with_loop(m, r) {
                Some(other) => format!("{own}; stage `{other}` has a loop `{}`", r.name),
                None => own,
            },
            [part] => format!("{own}; its part `{part}` has a loop `{}`", r.name),
            _ => {
                let parts: Vec<String> = parts.iter().map(|p| format!("`{p}`")).collect();
                let (stage, parts) = (&r.stage, parts.join(" and "));
                format!(
                    "{own}; its parts {parts} have loops `{}`, and a step on `{stage}.*` is about each of them",
                    r.name
                )
            }
        };
        Diagnostic::new("E0402", format!("stage `{}` has no loop `{}`", r.stage, r.name)).hint(hint)
    })
}

/// The parts of the stage that have a loop of that name.
fn parts_with_loop<'a>(m: &'a LoopModule, r: &LoopRef) -> Vec<&'a str> {
    let parts = stages_of(&m.body).into_iter().filter(|&t| is_part(&m.env.tensors[t].name, &r.stage));
    parts.filter(|&t| has_loop(m, t, &r.name)).map(|t| m.env.tensors[t].name.as_str()).collect()
}

fn has_loop(m: &LoopModule, stage: TensorId, name: &str) -> bool {
    stage_loops(m, stage).iter().any(|p| m.env.vars[loop_at(&m.body, p).var].name == name)
}

/// A stage that has such a loop and is named after this one, as the sum `T.sum` in what `T` is defined as.
fn beside_with_loop<'a>(m: &'a LoopModule, r: &LoopRef) -> Option<&'a str> {
    let names = stages_of(&m.body).into_iter().map(|t| (t, m.env.tensors[t].name.as_str()));
    let mut named = names.filter(|(_, n)| n.strip_prefix(r.stage.as_str()).is_some_and(|end| end.starts_with('.')));
    named.find(|&(t, _)| has_loop(m, t, &r.name)).map(|(_, name)| name)
}

/// Refuses a loop name that the stage already uses.
///
/// # Errors
/// `E0403` it does.
pub fn check_fresh_loop(m: &LoopModule, stage: TensorId, name: &str) -> Result<(), Diagnostic> {
    let taken = stage_loops(m, stage).iter().any(|p| m.env.vars[loop_at(&m.body, p).var].name == name);
    if taken {
        let stage = &m.env.tensors[stage].name;
        return Err(Diagnostic::new("E0403", format!("stage `{stage}` already has a loop `{name}`"))
            .hint("choose another name for the new loop"));
    }
    Ok(())
}

/// Refuses to take apart a loop that says whether loads are hoisted out of it.
///
/// # Errors
/// `E0411` it does.
pub fn check_no_hoisting(env: &Env, l: &For, r: &LoopRef) -> Result<(), Diagnostic> {
    if env.vars[l.var].hoist.is_none() {
        return Ok(());
    }
    Err(Diagnostic::new(
        "E0411",
        format!("loop `{}.{}` already says whether loads are hoisted out of it", r.stage, r.name),
    )
    .hint("`hoist_loads` comes after loops are split, fused, made vector or unrolled"))
}

/// Refuses to change the iterations of a loop that says what they prefetch, or what is read before them.
///
/// # Errors
/// `E0411` it does.
pub fn check_no_marks(env: &Env, l: &For, r: &LoopRef) -> Result<(), Diagnostic> {
    check_no_hoisting(env, l, r)?;
    if l.prefetch.is_empty() {
        return Ok(());
    }
    Err(Diagnostic::new(
        "E0411",
        format!("loop `{}.{}` already prefetches some of its iterations ahead", r.stage, r.name),
    )
    .hint("prefetch after loops are split and fused"))
}

/// Replaces loop variables in extents, bindings and predicates below.
pub fn substitute(pool: &mut ExprPool, stmts: &mut [Stmt], map: &FxHashMap<VarId, ExprId>) {
    rewrite(pool, stmts, &mut |pool, e| pool.substitute(e, map));
}

/// Replaces the extents of loops, and the bindings and predicates of blocks.
pub fn rewrite(pool: &mut ExprPool, stmts: &mut [Stmt], f: &mut dyn FnMut(&mut ExprPool, ExprId) -> ExprId) {
    for s in stmts {
        match s {
            Stmt::For(l) => {
                l.extent = f(pool, l.extent);
                rewrite(pool, &mut l.body, f);
            }
            Stmt::Block(b) => {
                for i in &mut b.iters {
                    i.binding = f(pool, i.binding);
                }
                for p in &mut b.predicate {
                    *p = f(pool, *p);
                }
            }
        }
    }
}

/// Rewrites the expressions of those of `stmts` that may read `tensor`, also where they decide which elements there are; `f` is
/// told whether it is an extent of a loop.
pub(crate) fn rewrite_readers(
    pool: &mut ExprPool,
    tensor: TensorId,
    stmts: &mut [Stmt],
    f: &mut impl FnMut(&mut ExprPool, ExprId, bool) -> ExprId,
) {
    for s in stmts {
        if !s.read(pool).may_have(tensor) {
            continue;
        }
        match s {
            Stmt::For(l) => {
                l.extent = f(pool, l.extent, true);
                rewrite_readers(pool, tensor, &mut l.body, f);
            }
            Stmt::Block(b) => {
                let mut change = |e: &mut ExprId| *e = f(pool, *e, false);
                b.iters.iter_mut().flat_map(|i| [&mut i.extent, &mut i.binding]).for_each(&mut change);
                b.predicate.iter_mut().chain(&mut b.index).for_each(&mut change);
                change(&mut b.value);
            }
        }
    }
}

/// Adds a conjunct to the predicate of every block below.
pub fn add_predicate(pool: &ExprPool, stmts: &mut [Stmt], cond: ExprId) {
    if pool.as_bool(cond) == Some(true) {
        return;
    }
    for s in stmts {
        s.blocks_mut(&mut |b| {
            if !b.predicate.contains(&cond) {
                b.predicate.push(cond);
            }
        });
    }
}

/// The blocks that compute, in order; those that set what is reduced to its beginning are left out.
pub fn blocks_below(body: &[Stmt]) -> Vec<&Block> {
    let mut out = Vec::new();
    for s in body {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s {
                out.push(b);
            }
        });
    }
    out.retain(|b| b.role != BlockRole::Init);
    out
}

/// Whether tuples are reduced over loop `l`.
pub fn combines_tuples(pool: &ExprPool, l: &For) -> bool {
    let tuples = |b: &&Block| matches!(b.role, BlockRole::Update(Reduction::Tuple(_)));
    blocks_below(&l.body).into_iter().filter(tuples).any(|b| is_reduction_var(pool, b, l.var))
}

/// Whether the block reduces over loop variable `v`. A reduced position may be counted from the
/// beginning of a row that a spatial variable gives; that one is not reduced over.
pub fn is_reduction_var(pool: &ExprPool, b: &Block, v: VarId) -> bool {
    let bound = |kind| b.iters.iter().any(|i| i.kind == kind && pool.uses_var(i.binding, v));
    bound(IterKind::Reduce) && !bound(IterKind::Spatial)
}

/// Whether iterations of loop `v` write elements of their own: an iterator of the written index depends on it. An
/// iterator that is not part of the index tells no elements apart, whatever it is bound to.
pub fn distinguishes(pool: &ExprPool, b: &Block, v: VarId) -> bool {
    let indexes = |i: &Iter| b.index.iter().any(|&e| pool.uses_var(e, i.var));
    b.iters.iter().any(|i| i.kind == IterKind::Spatial && pool.uses_var(i.binding, v) && indexes(i))
}

/// Gives surplus iterations of loop `v` the loops and masks of iteration `last` where functions and tensors have no value
/// beyond it: loops that look up one, or that run through positions at which one is looked up, and conditions. Others have
/// the extents of their own iteration: where storage is padded it has room for those.
pub fn clamp_surplus(pool: &mut ExprPool, stmts: &mut [Stmt], v: VarId, last: ExprId) {
    if !is_looked_up(pool, stmts, v) {
        return;
    }
    let var = pool.var(v);
    let clamped = pool.min(var, last);
    let map: FxHashMap<VarId, ExprId> = [(v, clamped)].into_iter().collect();
    clamp_below(pool, stmts, v, &map);
}

/// Whether an extent or a predicate below calls a function or reads a tensor at something that
/// depends on `v`.
pub fn looks_up(pool: &ExprPool, s: &Stmt, v: VarId) -> bool {
    let mut found = false;
    let mut check = |e: ExprId| found = found || looks_up_at(pool, e, v);
    s.walk(&mut |s| match s {
        Stmt::For(l) => check(l.extent),
        Stmt::Block(b) => b.predicate.iter().for_each(|&p| check(p)),
    });
    found
}

/// Whether `e` calls a function or reads a tensor at something that depends on `v`.
pub fn looks_up_at(pool: &ExprPool, e: ExprId, v: VarId) -> bool {
    let mut found = false;
    pool.walk(e, &mut |id, n| {
        let lookup = matches!(n, cora_ir::Expr::Call(..) | cora_ir::Expr::Load { .. });
        found = found || (lookup && pool.uses_var(id, v));
    });
    found
}

fn clamp_below(pool: &mut ExprPool, stmts: &mut [Stmt], v: VarId, map: &FxHashMap<VarId, ExprId>) {
    for s in stmts {
        match s {
            Stmt::For(l) => {
                let own = !is_condition(pool, l.extent) && !is_looked_up(pool, &l.body, l.var);
                if !own || looks_up_at(pool, l.extent, v) {
                    l.extent = pool.substitute(l.extent, map);
                }
                clamp_below(pool, &mut l.body, v, map);
            }
            Stmt::Block(b) => {
                for p in &mut b.predicate {
                    if looks_up_at(pool, *p, v) {
                        *p = pool.substitute(*p, map);
                    }
                }
            }
        }
    }
}

/// Whether something is looked up below at `v`, or at a loop that ends by it.
fn is_looked_up(pool: &ExprPool, body: &[Stmt], v: VarId) -> bool {
    let by_loop = |s: &Stmt| match s {
        Stmt::For(l) if pool.uses_var(l.extent, v) => {
            is_looked_up(pool, &l.body, l.var) || is_looked_up(pool, &l.body, v)
        }
        Stmt::For(l) => is_looked_up(pool, &l.body, v),
        Stmt::Block(_) => false,
    };
    body.iter().any(|s| looks_up(pool, s, v) || by_loop(s))
}

/// Gives a copied block iterators of its own, in its domains and its index.
pub fn own_iters(env: &mut Env, block: &mut Block) {
    let mut rename: FxHashMap<VarId, ExprId> = FxHashMap::default();
    for i in &mut block.iters {
        i.extent = env.pool.substitute(i.extent, &rename);
        let name = env.vars[i.var].name.clone();
        let fresh = env.new_var(name);
        let e = env.pool.var(fresh);
        rename.insert(i.var, e);
        i.var = fresh;
    }
    for x in &mut block.index {
        *x = env.pool.substitute(*x, &rename);
    }
}

/// A block inside copies of `loops`, outermost first, with variables of their own.
pub fn in_own_loops(env: &mut Env, block: Block, loops: &[For]) -> Stmt {
    let mut vars: FxHashMap<VarId, ExprId> = FxHashMap::default();
    let mut own = Vec::new();
    for l in loops {
        let var = env.copy_var(l.var);
        env.vars[var].hoist = None;
        let extent = env.pool.substitute(l.extent, &vars);
        let e = env.pool.var(var);
        vars.insert(l.var, e);
        own.push(For { var, extent, body: Body::default(), prefetch: vec![], ..*l });
    }
    let mut stmt = Stmt::Block(block);
    substitute(&mut env.pool, std::slice::from_mut(&mut stmt), &vars);
    for l in own.into_iter().rev() {
        stmt = Stmt::For(For { body: vec![stmt].into(), ..l });
    }
    stmt
}

/// Every stage with a block below `stmts`.
pub fn stages_below(stmts: &[Stmt]) -> Vec<TensorId> {
    let mut out = Vec::new();
    for s in stmts {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s
                && !out.contains(&b.stage)
            {
                out.push(b.stage);
            }
        });
    }
    out
}

/// Every tensor that the statements below write.
pub fn writes_below(stmts: &[Stmt]) -> Vec<TensorId> {
    let (mut out, mut seen) = (Vec::new(), FxHashSet::default());
    for s in stmts {
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s
                && seen.insert(b.tensor)
            {
                out.push(b.tensor);
            }
        });
    }
    out
}

/// Every tensor that the statements below read: in values and indices, and where they decide which
/// elements there are, in extents, bindings and predicates.
pub fn reads_below(pool: &ExprPool, stmts: &[Stmt]) -> Vec<TensorId> {
    let (mut out, mut seen, mut nodes) = (Vec::new(), FxHashSet::default(), FxHashSet::default());
    for s in stmts {
        s.walk(&mut |s| {
            let own = match s {
                Stmt::For(_) => Vec::new(),
                Stmt::Block(b) => vec![b.value].into_iter().chain(b.index.iter().copied()).collect(),
            };
            for e in own.into_iter().chain(steering(s)).filter(|&e| !pool.loads(e).is_empty()) {
                pool.walk_seen(e, &mut nodes, &mut |_, n| {
                    if let cora_ir::Expr::Load { tensor, .. } = n
                        && seen.insert(*tensor)
                    {
                        out.push(*tensor);
                    }
                });
            }
        });
    }
    out
}

/// Whether something below reads `tensor`, as [`reads_below`] has it.
pub fn reads(pool: &ExprPool, s: &Stmt, tensor: TensorId) -> bool {
    s.read(pool).may_have(tensor)
        && match s {
            Stmt::For(l) => pool.reads(l.extent, tensor) || l.body.iter().any(|s| reads(pool, s, tensor)),
            Stmt::Block(b) => {
                let own = b.index.iter().copied().chain([b.value]);
                own.chain(steering(s)).any(|e| pool.reads(e, tensor))
            }
        }
}

/// The first stage below with a loop, a binding or a predicate that reads `tensor`: its iterations
/// depend on the tensor's values.
pub fn steered_by(pool: &ExprPool, stmts: &[Stmt], tensor: TensorId) -> Option<TensorId> {
    let mut found = None;
    for s in stmts {
        s.walk(&mut |s| {
            let mut read = Vec::new();
            steering(s).into_iter().for_each(|e| add_reads(pool, e, &mut read));
            let stage = match s {
                Stmt::For(l) => l.stage,
                Stmt::Block(b) => b.stage,
            };
            found = found.or(read.contains(&tensor).then_some(stage));
        });
    }
    found
}

/// The expressions of one statement that decide which elements there are.
pub(super) fn steering(s: &Stmt) -> Vec<ExprId> {
    match s {
        Stmt::For(l) => vec![l.extent],
        Stmt::Block(b) => {
            b.iters.iter().flat_map(|i| [i.extent, i.binding]).chain(b.predicate.iter().copied()).collect()
        }
    }
}

/// Adds the tensors that an expression reads.
pub fn add_reads(pool: &ExprPool, e: ExprId, out: &mut Vec<TensorId>) {
    if pool.loads(e).is_empty() {
        return;
    }
    pool.walk(e, &mut |_, n| {
        if let cora_ir::Expr::Load { tensor, .. } = n
            && !out.contains(tensor)
        {
            out.push(*tensor);
        }
    });
}
