//! `cache_read S.T -> Tl at S.i layout(..)`: a stage reads a tensor through a copy.
//!
//! ```text
//! layout(n/32, k, n%32):  for no, k, ni { Tl[no, k, ni] = T[k, no*32 + ni] },  T[k, n] => Tl[n//32, k, n%32]
//! ```
//!
//! A new stage `Tl` copies `T`: its dimensions are those of `T` in the order that `layout` gives, whole
//! or as blocks (`n/32`) and the positions in a block (`n%32`; the last block's storage is padded). It may
//! leave out one in which every read is at the same constant position: only that is copied.
//! The reads in `S` are redirected, and the copy is attached at the loop by the rules of `compute_at`,
//! or with `setup` or `before` left as a nest of its own: what reads const inputs only, as with `setup` it
//! must, the runtime runs once for given weights.
//!
//! Requires: `S` reads `T` (inside the loop); the layout keeps a dimension inside those its extent
//! depends on; for `setup` a const input of constant shape. Ensures: the same values.

use super::compute_at::compute_at;
use super::compute_inline::zero_of;
use super::pad_dim::calls_with_arg;
use super::padded_reads::{Redirected, computed_ends, guard_padded_reads};
use super::readers::{block_paths, collect_readers, element_reads};
use super::region::range_over;
use super::split::divisible;
use super::tree::{
    self, Path, blocks_in, enclosing, find_loop, find_stage, loop_at, loop_at_mut, stages_of, stmt_at, writes_below,
};
use super::{MAX_PADDING, tensor_called};
use cora_ir::affine::{least_operands, normalize};
use cora_ir::loops::{Block, BlockRole, For, Iter, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::schedule::{CopyAt, LayoutDim, LoopRef, Part};
use cora_ir::{Diagnostic, Env, Expr, ExprId, ExprPool, Role, ScalarType, Scope, Tensor, TensorDim, TensorId, VarId};

/// What to copy and where.
pub struct CacheRead<'a> {
    /// The reading stage.
    pub stage: &'a str,
    /// The tensor that it reads.
    pub tensor: &'a str,
    /// Name of the new stage.
    pub name: &'a str,
    /// Scope of the copy.
    pub scope: Scope,
    /// Where it is made.
    pub at: &'a CopyAt,
    /// Dimensions of the copy, outermost first; empty = unchanged.
    pub layout: &'a [LayoutDim<usize>],
    /// Which distinct read of the tensor, in order of appearance; nothing = all.
    pub access: Option<usize>,
}

/// Inserts the copy.
///
/// # Errors
/// `E0401`/`E0402` unknown stage or loop, `E0460` the name is taken, `E0463` unknown tensor or one
/// that the stage does not read there, `E0464` a layout that is not a permutation, that puts a
/// dimension outside one it depends on or whose blocks reach beyond what an attached tensor has, or
/// an attached tensor of which nobody knows what is read,
/// `E0466` a tensor that the loop itself computes, `E0467` a copy at setup of what is no const input
/// of constant shape; and those of `compute_at`.
pub fn cache_read(m: &mut LoopModule, c: &CacheRead) -> Result<(), Diagnostic> {
    let stage = find_stage(m, c.stage)?;
    let at = c.at.as_loop();
    let path = at.map(|at| find_loop(m, at)).transpose()?;
    let source = tensor_called(m, c.tensor)?;
    if m.env.tensor_named(c.name).is_some() {
        return Err(Diagnostic::new("E0460", format!("there already is a tensor `{}`", c.name))
            .hint("choose another name for the copy"));
    }
    match (&path, c.at) {
        (Some(path), CopyAt::Loop(at)) => check_loop(m, source, path, c.tensor, at)?,
        (_, CopyAt::Setup) => check_setup(m, source)?,
        _ => check_before(m, stage, source)?,
    }
    let rank = m.env.tensors[source].dims.len();
    let layout: Vec<LayoutDim<usize>> =
        if c.layout.is_empty() { (0..rank).map(LayoutDim::whole).collect() } else { c.layout.to_vec() };
    let saved = m.checkpoint();
    let reads = Redirected { stage, below: path.as_deref(), access: c.access };
    guard_padded_reads(m, source, Some(reads));
    let ends = computed_ends(m, source);
    if let Some(path) = &path
        && let Err(e) = check_attached(m, (stage, source), path, &layout)
    {
        m.restore(saved);
        return Err(e);
    }
    let body = match &path {
        Some(path) => &mut loop_at_mut(&mut m.body, path).body,
        None => &mut m.body,
    };
    let fixed = constant_positions(&m.env, body, (stage, source), c.access);
    check_layout(&m.env, source, &layout, &fixed)?;
    let fixed: Vec<ExprId> = fixed.into_iter().map(|at| m.env.pool.int(at.unwrap_or(0))).collect();
    let (new, nest) = copy_stage(&mut m.env, (source, &ends), &layout, &fixed, c.name);
    let redirected = redirect(&mut m.env, body, (stage, source, new), &layout, c.access);
    if !redirected {
        m.restore(saved);
        let place = at.map_or(String::new(), |at| format!(" in loop `{}.{}`", at.stage, at.name));
        let body = path.as_deref().map_or(&m.body, |path| &loop_at(&m.body, path).body);
        let own = blocks_in(body).into_iter().filter(|(b, _)| b.stage == stage);
        let reads = own.map(|(b, _)| loads(&m.env.pool, b.value, source).len()).max().unwrap_or(0);
        return Err(match c.access {
            Some(n) if reads > 0 => no_such_read(c, n, reads, &place),
            _ => not_read(c.stage, c.tensor, &place),
        });
    }
    let Some((path, at)) = path.zip(at) else {
        let first = m.body.iter().position(|s| tree::reads(&m.env.pool, s, new)).unwrap_or(0);
        m.body.insert(first, nest);
        return Ok(());
    };
    m.body.insert(path[0], nest);
    let result = compute_at(m, c.name, at);
    if result.is_err() {
        m.restore(saved);
        return result;
    }
    m.env.tensors[new].scope = c.scope;
    Ok(())
}

fn not_read(stage: &str, tensor: &str, place: &str) -> Diagnostic {
    Diagnostic::new("E0463", format!("stage `{stage}` does not read `{tensor}`{place}"))
        .hint("name a tensor that the stage reads there")
}

fn no_such_read(c: &CacheRead, access: usize, reads: usize, place: &str) -> Diagnostic {
    let count = if reads == 1 { "one read".to_owned() } else { format!("{reads} distinct reads") };
    let what = format!("stage `{}` has {count} of `{}`{place}, and none is `access({access})`", c.stage, c.tensor);
    Diagnostic::new("E0463", what).hint(match reads - 1 {
        0 => "reads are counted from 0: write `access(0)`, or leave it out".to_owned(),
        last => format!("reads are counted from 0, in order of appearance: the last one is `access({last})`"),
    })
}

fn check_loop(m: &LoopModule, source: TensorId, path: &[usize], tensor: &str, at: &LoopRef) -> Result<(), Diagnostic> {
    let inside = loop_at(&m.body, path);
    if m.env.tensors[source].role == Role::Temp && writes_below(&inside.body).contains(&source) {
        return Err(Diagnostic::new(
            "E0466",
            format!("`{tensor}` is computed inside loop `{}.{}`, so it cannot be copied there", at.stage, at.name),
        )
        .hint("name a loop inside the one in which it is attached"));
    }
    Ok(())
}

/// A source that is itself attached has the elements that are read in that loop and no others. Of a dimension in which
/// nobody knows what is read all is copied, so all must be there. Blocks are copied whole, so what is read must be whole
/// blocks, up to the end of the dimension.
fn check_attached(
    m: &mut LoopModule,
    (stage, source): (TensorId, TensorId),
    path: &Path,
    layout: &[LayoutDim<usize>],
) -> Result<(), Diagnostic> {
    if m.env.tensors[source].scope == Scope::Global {
        return Ok(());
    }
    let mut readers = collect_readers(m, source, path);
    readers.retain(|r| block_stage(&m.body, &r.block) == Some(stage));
    for r in &readers {
        for (d, a) in (0..m.env.tensors[source].dims.len()).flat_map(|d| r.accesses.iter().map(move |a| (d, a))) {
            if range_over(&mut m.env, a.index[d], &r.loops, r.outer).is_none() && !is_whole(m, source, d, path) {
                let t = &m.env.tensors[source];
                return Err(Diagnostic::new(
                    "E0464",
                    format!(
                        "what is read of `{}` there is not known, and `{}` is attached: it may not have all positions of \
                         dimension `{}`",
                        t.name, t.name, t.dims[d].name
                    ),
                )
                .hint("copy before the loops between are fused, or read the tensor itself"));
            }
        }
    }
    let blocks = layout.iter().filter_map(|l| if let Part::Div(c) = l.part { Some((l.dim, c)) } else { None });
    for (d, c) in blocks {
        for r in &readers {
            for a in &r.accesses {
                let env = &mut m.env;
                let whole = range_over(env, a.index[d], &r.loops, r.outer).is_some_and(|(lo, hi)| {
                    let one = env.pool.int(1);
                    let (extent, end) = (env.extent_at(source, d, &a.index), env.pool.add(hi, one));
                    let end = normalize(&mut env.pool, end);
                    let ends = least_operands(&mut env.pool, end);
                    let extent = normalize(&mut env.pool, extent);
                    divisible(&mut env.pool, lo, c)
                        && ends.into_iter().all(|e| e == extent || divisible(&mut env.pool, e, c))
                });
                if !whole {
                    let t = &m.env.tensors[source];
                    return Err(Diagnostic::new(
                        "E0464",
                        format!(
                            "what is read of `{}` there is not known to be whole blocks of {c} of `{}`, and `{}` is \
                             attached: it has no other elements",
                            t.name, t.dims[d].name, t.name
                        ),
                    )
                    .hint("lay the dimension out as a whole, or copy before the tensor is attached"));
                }
            }
        }
    }
    Ok(())
}

/// Whether one of the blocks that write an attached tensor writes all positions of dimension `d` inside the loops that it
/// shares with those at `path`.
fn is_whole(m: &mut LoopModule, tensor: TensorId, d: usize, path: &Path) -> bool {
    let around: Vec<VarId> =
        enclosing(&m.body, path).iter().map(|l| l.var).chain([loop_at(&m.body, path).var]).collect();
    let writes = |b: &Block| b.tensor == tensor && b.role != BlockRole::Init && b.predicate.is_empty();
    let paths = block_paths(&m.body, &[]);
    let writers: Vec<(Path, Block)> = paths
        .into_iter()
        .filter_map(|p| match stmt_at(&m.body, &p) {
            Some(Stmt::Block(b)) if writes(b) => Some((p, b.clone())),
            _ => None,
        })
        .collect();
    writers.into_iter().any(|(p, b)| {
        let loops: Vec<(VarId, ExprId)> = enclosing(&m.body, &p).iter().map(|l| (l.var, l.extent)).collect();
        let map = b.iters.iter().map(|i| (i.var, i.binding)).collect();
        let index: Vec<ExprId> = b.index.iter().map(|&e| m.env.pool.substitute(e, &map)).collect();
        let common = loops.iter().take_while(|l| around.contains(&l.0)).count();
        let Some((lo, hi)) = range_over(&mut m.env, index[d], &loops, common) else { return false };
        let (extent, one) = (m.env.extent_at(tensor, d, &index), m.env.pool.int(1));
        let end = m.env.pool.add(hi, one);
        let (end, extent) = (normalize(&mut m.env.pool, end), normalize(&mut m.env.pool, extent));
        m.env.pool.as_int(lo) == Some(0) && end == extent
    })
}

/// The stage of the block at `path`.
fn block_stage(body: &[Stmt], path: &[usize]) -> Option<TensorId> {
    match stmt_at(body, path) {
        Some(Stmt::Block(b)) => Some(b.stage),
        _ => None,
    }
}

/// What setup copies is given once, and its shape is the same for every batch.
fn check_setup(m: &LoopModule, source: TensorId) -> Result<(), Diagnostic> {
    let t = &m.env.tensors[source];
    let refuse = |why: String| {
        Err(Diagnostic::new("E0467", format!("`{}` cannot be copied at setup: {why}", t.name))
            .hint("copy it at a loop of the stage instead, `-> copy local at stage.loop`"))
    };
    if t.role != Role::ConstInput {
        return refuse("it is not a const input".to_owned());
    }
    let constant = |e: ExprId| m.env.pool.as_int(e).is_some();
    match t.dims.iter().find(|d| !constant(d.extent) || !constant(d.storage)) {
        Some(d) => refuse(format!("the size of its dimension `{}` comes with each batch", d.name)),
        None => Ok(()),
    }
}

/// A nest of its own sees no buffers of other loops, nor what is written in the stage's nest or after it.
fn check_before(m: &LoopModule, stage: TensorId, source: TensorId) -> Result<(), Diagnostic> {
    let t = &m.env.tensors[source];
    let is_of = |s: &Stmt| s.concerned().may_have(stage) && stages_of(std::slice::from_ref(s)).contains(&stage);
    let nest = m.body.iter().position(is_of).unwrap_or(0);
    let writes = |s: &Stmt| s.concerned().may_have(source) && writes_below(std::slice::from_ref(s)).contains(&source);
    if t.scope == Scope::Global && !m.body[nest..].iter().any(writes) {
        return Ok(());
    }
    let reads = |b: &&Block| !element_reads(&m.env.pool, b, source).is_empty();
    if !m.blocks_of(stage).iter().any(reads) {
        return Err(not_read(&m.env.tensors[stage].name, &t.name, ""));
    }
    let what = format!("`{}` is computed in the nest that reads it, so it cannot be copied before", t.name);
    Err(Diagnostic::new("E0466", what).hint("copy it at a loop inside the one in which it is computed"))
}

/// In which dimensions of `source` all its reads in `stage`, in the loop or anywhere, are at one constant position.
pub(super) fn constant_reads(
    m: &LoopModule,
    read: (TensorId, TensorId),
    path: Option<&[usize]>,
    access: Option<usize>,
) -> Vec<bool> {
    let body = path.map_or(&m.body, |path| &loop_at(&m.body, path).body);
    constant_positions(&m.env, body, read, access).iter().map(Option::is_some).collect()
}

/// In each dimension the constant position of all reads of `source` in `stage` below `body`, if there is one.
fn constant_positions(
    env: &Env,
    body: &[Stmt],
    (stage, source): (TensorId, TensorId),
    access: Option<usize>,
) -> Vec<Option<i64>> {
    let mut seen: Vec<Vec<Option<i64>>> = vec![Vec::new(); env.tensors[source].dims.len()];
    let mut block = |b: &Block| {
        let mut reads = Vec::new();
        env.pool.walk(b.value, &mut |_, n| {
            if let Expr::Load { tensor, index, .. } = n
                && *tensor == source
            {
                reads.push(index.clone());
            }
        });
        let chosen = reads.iter().enumerate().filter(|(n, _)| access.is_none_or(|a| a == *n));
        chosen.for_each(|(_, index)| index.iter().zip(&mut seen).for_each(|(&e, at)| at.push(env.pool.as_int(e))));
    };
    for s in body {
        s.walk_where(&|s| s.concerned().may_have(stage), &mut |s| match s {
            Stmt::Block(b) if b.stage == stage => block(b),
            _ => {}
        });
    }
    seen.into_iter().map(|at| at.first().copied().flatten().filter(|&c| at.iter().all(|&x| x == Some(c)))).collect()
}

/// The distinct reads of `source` in a value, in order of appearance.
fn loads(pool: &ExprPool, value: ExprId, source: TensorId) -> Vec<ExprId> {
    let mut reads = Vec::new();
    pool.walk(value, &mut |id, n| {
        if matches!(n, Expr::Load { tensor, .. } if *tensor == source) {
            reads.push(id);
        }
    });
    reads
}

/// Makes the reads of `source` in `stage` below `body` reads of `new`; whether there were any.
fn redirect(
    env: &mut Env,
    body: &mut [Stmt],
    (stage, source, new): (TensorId, TensorId, TensorId),
    layout: &[LayoutDim<usize>],
    access: Option<usize>,
) -> bool {
    let pool = &mut env.pool;
    let mut redirected = false;
    for s in body.iter_mut().filter(|s| s.concerned().may_have(stage)) {
        s.blocks_mut(&mut |b| {
            if b.stage != stage {
                return;
            }
            let reads = loads(pool, b.value, source);
            let chosen = access.map(|n| reads.get(n).copied());
            let value = pool.rewrite(b.value, &mut |p, e| match p.get(e).clone() {
                Expr::Load { tensor, part, index, guard }
                    if tensor == source && chosen.is_none_or(|c| c == Some(e)) =>
                {
                    let mut at = Vec::new();
                    for d in layout {
                        at.push(match d.part {
                            Part::Whole => index[d.dim],
                            Part::Div(c) => {
                                let c = p.int(c);
                                p.floor_div(index[d.dim], c)
                            }
                            Part::Mod(c) => {
                                let c = p.int(c);
                                p.modulo(index[d.dim], c)
                            }
                        });
                    }
                    let ty = p.ty(e).scalar;
                    Some(p.load_guarded((new, part), ty, at, guard))
                }
                _ => None,
            });
            redirected |= value != b.value;
            b.value = value;
        });
    }
    redirected
}

/// Each dimension once: whole, or as blocks and, further in, positions in blocks of the same size; or not at all where
/// the position is constant.
fn is_cover(layout: &[LayoutDim<usize>], fixed: &[Option<i64>]) -> bool {
    let parts = |d: usize| layout.iter().filter(|l| l.dim == d).map(|l| l.part).collect::<Vec<_>>();
    layout.iter().all(|l| l.dim < fixed.len())
        && (0..fixed.len()).all(|d| match parts(d)[..] {
            [] => fixed[d].is_some(),
            [Part::Whole] => true,
            [Part::Div(a), Part::Mod(b)] => a == b && (1..=MAX_PADDING).contains(&a),
            _ => false,
        })
}

fn check_layout(
    env: &Env,
    source: TensorId,
    layout: &[LayoutDim<usize>],
    fixed: &[Option<i64>],
) -> Result<(), Diagnostic> {
    let dims = &env.tensors[source].dims;
    let name = &env.tensors[source].name;
    if !is_cover(layout, fixed) {
        let listed = |names: Vec<&str>| names.join(", ");
        let missing = |d: &usize| fixed[*d].is_none() && !layout.iter().any(|l| l.dim == *d);
        let missing: Vec<&str> = (0..dims.len()).filter(missing).map(|d| dims[d].name.as_str()).collect();
        let all = listed(dims.iter().map(|d| d.name.as_str()).collect());
        let lacks = if missing.is_empty() { String::new() } else { format!("; it lacks {}", listed(missing)) };
        return Err(Diagnostic::new(
            "E0464",
            format!("the layout does not cover each dimension of `{name}` ({all}) once{lacks}"),
        )
        .hint(
            "list every dimension `d`, outermost first, or both its blocks and, further in, its positions in a block: \
             `d/32`, `d%32`; one that is always read at the same constant position may be left out",
        ));
    }
    for l in layout.iter().filter(|l| l.part != Part::Whole) {
        let steered = |e| calls_with_arg(&env.pool, e, l.dim as u32);
        if let Some(inner) = dims.iter().find(|x| steered(x.extent) || steered(x.storage)) {
            return Err(Diagnostic::new(
                "E0464",
                format!(
                    "`{}` cannot be laid out in blocks: the size of `{}` depends on it",
                    dims[l.dim].name, inner.name
                ),
            )
            .note(format!("`{}` has no size at positions that only pad the last block", inner.name))
            .hint("lay the dimension out as a whole"));
        }
    }
    for (at, &d) in layout.iter().enumerate() {
        for later in &layout[at + 1..] {
            let needs = |e| env.pool.any(e, &mut |x| *x == Expr::Arg(later.dim as u32));
            if needs(dims[d.dim].extent) || needs(dims[d.dim].storage) {
                return Err(Diagnostic::new(
                    "E0464",
                    format!(
                        "the layout puts `{}` outside `{}`, which its extent depends on",
                        dims[d.dim].name, dims[later.dim].name
                    ),
                )
                .hint("a dimension stays inside those that its extent depends on"));
            }
        }
    }
    Ok(())
}

/// The positions in the tensor's dimensions of an element of the copy, `at` being its index.
fn source_index(env: &mut Env, layout: &[LayoutDim<usize>], fixed: &[ExprId], at: &[ExprId]) -> Vec<ExprId> {
    let mut index = fixed.to_vec();
    for l in layout {
        index[l.dim] = env.pool.int(0);
    }
    for (l, &e) in layout.iter().zip(at) {
        let part = match l.part {
            Part::Whole | Part::Mod(_) => e,
            Part::Div(c) => {
                let c = env.pool.int(c);
                env.pool.mul(e, c)
            }
        };
        index[l.dim] = env.pool.add(index[l.dim], part);
    }
    index
}

/// The dimensions of the copy.
fn copy_dims(
    env: &mut Env,
    (source, ends): (TensorId, &[ExprId]),
    layout: &[LayoutDim<usize>],
    fixed: &[ExprId],
) -> Vec<TensorDim> {
    let dims = env.tensors[source].dims.clone();
    let args: Vec<ExprId> = (0..layout.len()).map(|n| env.pool.arg(n as u32)).collect();
    let positions = source_index(env, layout, fixed, &args);
    let mut out = Vec::new();
    for l in layout {
        let whole = env.pool.instantiate(ends[l.dim], &positions);
        let name = dims[l.dim].name.clone();
        out.push(match l.part {
            Part::Whole => TensorDim::new(name, whole),
            Part::Div(c) => {
                let extent = env.pool.ceil_div(whole, c);
                TensorDim::new(format!("{name}_o"), extent)
            }
            Part::Mod(c) => {
                let size = env.pool.int(c);
                let outer = layout.iter().position(|x| x.dim == l.dim).unwrap_or(0);
                let base = env.pool.mul(args[outer], size);
                let rest = env.pool.sub(whole, base);
                let divides = divisible(&mut env.pool, whole, c);
                let extent = if divides { size } else { env.pool.min(size, rest) };
                TensorDim { name: format!("{name}_i"), also: None, extent, storage: size }
            }
        });
    }
    out
}

/// The element at `read`. A constant position of a dimension that is left out may be one that the reader asks for under
/// a guard only; the copy is made for all its elements, and asks itself.
fn copied(env: &mut Env, source: TensorId, layout: &[LayoutDim<usize>], read: &[ExprId]) -> ExprId {
    let zero = env.pool.int(0);
    let mut inside = Vec::new();
    for d in (0..read.len()).filter(|d| layout.iter().all(|l| l.dim != *d)) {
        let extent = env.extent_at(source, d, read);
        inside.extend([env.pool.le(zero, read[d]), env.pool.lt(read[d], extent)]);
    }
    let inside = env.pool.all(inside);
    if env.pool.as_bool(inside) == Some(true) {
        return env.element(source, read);
    }
    let types = env.part_types(source);
    let load = |(k, ty): (usize, ScalarType)| {
        let other = zero_of(&mut env.pool, ty);
        env.pool.load_guarded((source, k as u32), ty, read.iter().copied(), Some((inside, other)))
    };
    let parts: Vec<ExprId> = types.into_iter().enumerate().map(load).collect();
    if env.tensors[source].tuple.is_some() { env.pool.make_tuple(&parts) } else { parts[0] }
}

/// The tensor and the naive nest of a copy of `source` in another layout.
fn copy_stage(
    env: &mut Env,
    (source, ends): (TensorId, &[ExprId]),
    layout: &[LayoutDim<usize>],
    fixed: &[ExprId],
    name: &str,
) -> (TensorId, Stmt) {
    let dims = copy_dims(env, (source, ends), layout, fixed);
    let ty = env.tensors[source].ty;
    let new = env.tensors.push(Tensor { tuple: env.tensors[source].tuple, ..Tensor::temp(name, ty, dims.clone()) });
    let mut loops: Vec<(VarId, ExprId)> = Vec::new();
    let mut iters: Vec<Iter> = Vec::new();
    let (mut outer, mut inner): (Vec<ExprId>, Vec<ExprId>) = (Vec::new(), Vec::new());
    for d in &dims {
        let (lv, bv) = (env.new_var(d.name.clone()), env.new_var(d.name.clone()));
        let loop_extent = env.pool.instantiate(d.extent, &outer);
        let extent = env.pool.instantiate(d.extent, &inner);
        loops.push((lv, loop_extent));
        let binding = env.pool.var(lv);
        iters.push(Iter { var: bv, kind: IterKind::Spatial, extent, binding });
        outer.push(binding);
        inner.push(env.pool.var(bv));
    }
    let read = source_index(env, layout, fixed, &inner);
    let value = copied(env, source, layout, &read);
    let block = Block {
        stage: new,
        role: BlockRole::Compute,
        continues: false,
        atomic: false,
        iters,
        predicate: Vec::new(),
        tensor: new,
        index: inner,
        value,
    };
    let mut nest = Stmt::Block(block);
    for (var, extent) in loops.into_iter().rev() {
        nest = Stmt::For(For {
            var,
            stage: new,
            extent,
            kind: LoopKind::Serial,
            prefetch: vec![],
            init: false,
            body: vec![nest].into(),
        });
    }
    (new, nest)
}
