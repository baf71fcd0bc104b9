//! Positions of intermediates that are written for a whole tile, past the end of what is computed: those may be read
//! without a clamp or a mask.
//!
//! ```text
//! for j in 0..64 { Xp[j] = X[min(j, R - 1)] }                                  (a relaxed copy)
//! for j in 0..64 vector { Sr[j] += (Xp[j] if j < R else 0) }  =>  Sr[j] += Xp[j]
//! ```

use super::tree::{loop_at, reads_below};
use crate::simplify::{Facts, Prover, bounds, simplify};
use cora_ir::affine::poly;
use cora_ir::env::Role;
use cora_ir::loops::{Block, Iter, IterKind, LoopModule, Stmt};
use cora_ir::{Env, Expr, ExprId, ExprPool, Scope, TensorId, TensorSet, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Loops around a block with their extents, outermost first.
pub type Loops = Vec<(VarId, ExprId)>;

/// Dimensions of intermediates whose writers, every one of `writers`, write at least the positions `base..base + full` at
/// all indices of the other dimensions that they write at all; with that base.
pub fn filled_dims(m: &mut LoopModule, writers: &Writers, full: ExprId) -> Filled {
    written(m, writers, &mut |env, b, e, loops| fills(env, b, e, loops, full))
}

/// What every writer of a dimension of an intermediate says of it, where they agree.
fn written<T: Copy + PartialEq>(
    m: &mut LoopModule,
    writers: &Writers,
    what: &mut dyn FnMut(&mut Env, &Block, ExprId, &Loops) -> Option<T>,
) -> FxHashMap<(TensorId, usize), T> {
    let (mut found, mut disputed) = (FxHashMap::default(), FxHashSet::default());
    for (b, loops) in writers {
        for (d, &e) in b.index.iter().enumerate() {
            let key = (b.tensor, d);
            match what(&mut m.env, b, e, loops) {
                Some(t) if *found.entry(key).or_insert(t) == t => {}
                _ => {
                    disputed.insert(key);
                }
            }
        }
    }
    found.retain(|key, _| !disputed.contains(key));
    found
}

pub type Filled = FxHashMap<(TensorId, usize), ExprId>;

/// Blocks that write intermediates, with the loops around them.
pub type Writers = Vec<(Block, Loops)>;

/// Whether nobody outside sees the tensor's surplus positions.
pub fn is_own(env: &Env, t: TensorId) -> bool {
    env.tensors[t].scope != Scope::Global || env.tensors[t].role == Role::Temp
}

/// The blocks that write intermediates, in execution order: in the nest of the loop at `path`, and in those that write what
/// the loop reads.
pub fn writers_of_reads(m: &LoopModule, path: &[usize]) -> Writers {
    fn go(env: &Env, body: &[Stmt], loops: &mut Loops, out: &mut Writers) {
        for s in body {
            match s {
                Stmt::For(l) => {
                    loops.push((l.var, l.extent));
                    go(env, &l.body, loops, out);
                    loops.pop();
                }
                Stmt::Block(b) if is_own(env, b.tensor) => out.push((b.clone(), loops.clone())),
                Stmt::Block(_) => {}
            }
        }
    }
    let read = reads_below(&m.env.pool, &loop_at(&m.body, path).body);
    let local = read.into_iter().filter(|&t| is_own(&m.env, t));
    let local: TensorSet = local.map(TensorSet::of).collect();
    let mut out = Vec::new();
    for (n, s) in m.body.iter().enumerate() {
        if n == path[0] || s.concerned().meets(local) {
            go(&m.env, std::slice::from_ref(s), &mut Vec::new(), &mut out);
        }
    }
    out
}

/// The base, if a block writes positions `base..base + full` in the dimension with index `e`, whatever the others.
fn fills(env: &mut Env, b: &Block, e: ExprId, loops: &[(VarId, ExprId)], full: ExprId) -> Option<ExprId> {
    let v = env.pool.as_var(e)?;
    let binding = b.iters.iter().find(|i| i.var == v)?.binding;
    let tile = env.pool.as_int(full)?;
    let runs = |env: &Env, l: &(VarId, ExprId)| {
        env.pool.as_int(l.1).is_some_and(|n| n >= tile) && !loops.iter().any(|o| env.pool.uses_var(o.1, l.0))
    };
    let own = loops.iter().rev().find(|l| env.pool.uses_var(binding, l.0) && runs(env, l))?.0;
    b.predicate.is_empty().then_some(())?;
    base_of(env, binding, own)
}

/// `e - var`, if that does not use `var`.
pub fn base_of(env: &mut Env, e: ExprId, var: VarId) -> Option<ExprId> {
    let v = env.pool.var(var);
    let base = env.pool.sub(e, v);
    let base = cora_ir::affine::normalize(&mut env.pool, base);
    (!env.pool.uses_var(base, var)).then_some(base)
}

/// Positions `base..base + len` of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    base: ExprId,
    len: ExprId,
}

/// Stretches of the dimensions of intermediates that all of their writers write, whatever the other indices are.
pub type Stretches = FxHashMap<(TensorId, usize), Stretch>;

/// The stretches of the intermediates that the loop at `path` reads, and of others.
pub fn stretches(m: &mut LoopModule, path: &[usize]) -> Stretches {
    let writers = writers_of_reads(m, path);
    written(m, &writers, &mut stretch)
}

/// The loops that step through the dimension with index `e` without a gap, the innermost by one; only the outermost of
/// them may have an extent that is not constant.
fn stretch(env: &mut Env, b: &Block, e: ExprId, loops: &Loops) -> Option<Stretch> {
    let v = env.pool.as_var(e)?;
    let binding = b.iters.iter().find(|i| i.var == v)?.binding;
    b.predicate.is_empty().then_some(())?;
    let p = poly(&env.pool, binding);
    let mut steps: Vec<(i64, ExprId, VarId)> = Vec::new();
    for &(l, extent) in loops {
        let x = env.pool.var(l);
        let steered = loops.iter().any(|o| env.pool.uses_var(o.1, l));
        if let (Some(&c), false) = (p.terms.get(&vec![x]), steered) {
            steps.push((c, extent, l));
        }
    }
    steps.sort_unstable();
    let (mut base, mut len) = (binding, 1_i64);
    for (c, extent, l) in steps {
        let n = env.pool.as_int(extent);
        if c < 1 || c > len || n.is_some_and(|n| n < 1) || (n.is_none() && c != len) {
            break;
        }
        let (v, by) = (env.pool.var(l), env.pool.int(c));
        let step = env.pool.mul(v, by);
        let rest = env.pool.sub(base, step);
        let rest = cora_ir::affine::normalize(&mut env.pool, rest);
        if env.pool.uses_var(rest, l) {
            break;
        }
        base = rest;
        let Some(n) = n else {
            let each = env.pool.int(len);
            return Some(Stretch { base, len: env.pool.mul(extent, each) });
        };
        len = c.checked_mul(n - 1)?.checked_add(len)?;
    }
    (len > 1).then(|| Stretch { base, len: env.pool.int(len) })
}

/// Of the spatial iterators `read`, those that nothing in the block mentions any more go.
fn drop_unused(env: &Env, b: &mut Block, read: &FxHashSet<VarId>) {
    let mut used: FxHashSet<VarId> = FxHashSet::default();
    for e in b.index.iter().chain(&b.predicate).copied().chain([b.value]).chain(b.iters.iter().map(|i| i.extent)) {
        used.extend(env.pool.vars_of(e));
    }
    b.iters.retain(|i| i.kind == IterKind::Reduce || used.contains(&i.var) || !read.contains(&i.var));
}

/// A loop whose tail predicate is dropped, and what is around it.
pub struct Relaxed<'a> {
    /// The loop.
    pub var: VarId,
    /// The loops around it and itself, with the full tile as its extent.
    pub loops: Loops,
    /// What is written past the end of what is computed.
    pub stretches: &'a Stretches,
    /// Whether the exact tile always has an iteration, which reads valid positions.
    pub never_empty: bool,
}

impl Relaxed<'_> {
    /// Lets reads of written positions be. Returns the iterators that such reads have now to themselves: they take
    /// neither clamp nor mask.
    pub fn settle(&self, env: &mut Env, b: &mut Block, inside: &Loops) -> FxHashSet<VarId> {
        let facts = Facts::in_loops(self.loops.iter().chain(inside).copied());
        let steering = steering(env, b.value);
        let mut loads = Vec::new();
        env.pool.walk(b.value, &mut |id, n| {
            if let Expr::Load { tensor, index, guard: None, part } = n
                && !steering.contains(&id)
            {
                loads.push((id, *tensor, *part, index.clone()));
            }
        });
        let bindings: FxHashMap<VarId, ExprId> = b.iters.iter().map(|i| (i.var, i.binding)).collect();
        let spatial = b.iters.iter().filter(|i| i.kind == IterKind::Spatial).map(|i| i.var).collect();
        let (mut own, mut read, mut replaced) = (FxHashSet::default(), FxHashSet::default(), FxHashMap::default());
        for (id, tensor, part, index) in loads {
            let Some(places) = self.places(env, &facts, (tensor, &index), (&bindings, &spatial)) else { continue };
            let ty = env.pool.ty(id).scalar;
            let mut new = index.clone();
            read.extend(index.iter().flat_map(|&i| env.pool.vars_of(i)));
            for (d, place) in places.into_iter().enumerate() {
                if let Some(Place { binding, extent, term }) = place {
                    let (var, extent) = (env.new_var("at"), env.pool.instantiate(extent, &new));
                    let first_reduced = b.iters.iter().position(|i| i.kind == IterKind::Reduce);
                    let at = first_reduced.unwrap_or(b.iters.len());
                    b.iters.insert(at, Iter { var, kind: IterKind::Spatial, extent, binding });
                    own.insert(var);
                    let at = env.pool.var(var);
                    new[d] = term.map_or(at, |t| env.pool.add(at, t));
                }
            }
            replaced.insert(id, env.pool.load_guarded((tensor, part), ty, new.iter().copied(), None));
        }
        if !replaced.is_empty() {
            b.value = env.pool.rewrite(b.value, &mut |_, e| replaced.get(&e).copied());
            drop_unused(env, b, &read);
        }
        own
    }

    /// Whether a position of a dimension is one that all writers write.
    fn is_written(&self, env: &mut Env, facts: &Facts, dim: (TensorId, usize), at: ExprId) -> bool {
        let Some(&s) = self.stretches.get(&dim) else { return false };
        let beyond = env.pool.sub(at, s.base);
        let beyond = simplify(env, None, facts, beyond);
        is_below(env, facts, beyond, s.len)
    }

    /// For each dimension of a load that the loop steers, where it reads; `None` if it may read what is not written.
    fn places(
        &self,
        env: &mut Env,
        facts: &Facts,
        (tensor, index): (TensorId, &[ExprId]),
        (bindings, spatial): (&FxHashMap<VarId, ExprId>, &FxHashSet<VarId>),
    ) -> Option<Vec<Option<Place>>> {
        let mut out = Vec::new();
        let mut filled = false;
        let all: Vec<ExprId> = index.iter().map(|&i| env.pool.substitute(i, bindings)).collect();
        for (d, &at) in all.iter().enumerate() {
            if !env.pool.uses_var(at, self.var) {
                out.push(None);
                continue;
            }
            let at = simplify(env, None, facts, at);
            if env.pool.uses_var(at, self.var) {
                self.is_written(env, facts, (tensor, d), at).then_some(())?;
                filled = true;
            }
            let storage = env.tensors[tensor].dims[d].storage;
            let mut outer = vec![storage];
            outer.extend(
                index
                    .iter()
                    .take(d)
                    .enumerate()
                    .filter_map(|(n, &i)| env.pool.any(storage, &mut |x| *x == Expr::Arg(n as u32)).then_some(i)),
            );
            // A place that the reduction moves is no spatial iterator: there is none before the reduction starts.
            let reduced = |pool: &ExprPool, e: ExprId| pool.vars_of(e).iter().any(|v| !spatial.contains(v));
            let (mut binding, mut term) = (at, None);
            if reduced(&env.pool, index[d]) {
                let moved = reduced_part(env, index[d], spatial)?;
                let by = env.pool.substitute(moved, bindings);
                let still = env.pool.sub(at, by);
                binding = simplify(env, None, facts, still);
                let loops: Vec<VarId> = env.pool.vars_of(by);
                let moves = loops.into_iter().any(|v| env.pool.uses_var(binding, v));
                // Not after the last place that there is.
                let there = is_above(env, facts, by) || self.is_written(env, facts, (tensor, d), binding);
                (!moves && there && is_above(env, facts, binding)).then_some(())?;
                term = Some(moved);
            }
            outer.iter().all(|&e| !reduced(&env.pool, e)).then_some(())?;
            out.push(Some(Place { binding, extent: storage, term }));
        }
        (filled && (self.never_empty || within(env, facts, tensor, &all))).then_some(out)
    }
}

/// Where a load reads in one dimension.
struct Place {
    /// In terms of the loops, without what the reduction adds.
    binding: ExprId,
    /// How many positions there are, of the dimensions outside it.
    extent: ExprId,
    /// What the reduction adds, in terms of the block's iterators.
    term: Option<ExprId>,
}

/// The part of a sum that iterators other than the `spatial` ones move; nothing where these move it, too.
fn reduced_part(env: &mut Env, e: ExprId, spatial: &FxHashSet<VarId>) -> Option<ExprId> {
    let terms = poly(&env.pool, e).terms;
    let mut sum = env.pool.int(0);
    for (product, c) in terms {
        let vars: Vec<VarId> = product.iter().flat_map(|&a| env.pool.vars_of(a)).collect();
        let here = vars.iter().filter(|v| spatial.contains(v)).count();
        if here == vars.len() {
            continue;
        }
        (here == 0).then_some(())?;
        let by = env.pool.int(c);
        let product = product.into_iter().fold(by, |a, b| env.pool.mul(a, b));
        sum = env.pool.add(sum, product);
    }
    Some(sum)
}

/// Whether `e` is proved to be no less than 0.
fn is_above(env: &mut Env, facts: &Facts, e: ExprId) -> bool {
    let zero = env.pool.int(0);
    let above = env.pool.le(zero, e);
    Prover::new().prove(env, facts, above).is_proved()
}

/// The parts of a value that say which elements of tensors and tables it reads: past the end they might name one that is
/// not there.
fn steering(env: &Env, value: ExprId) -> FxHashSet<ExprId> {
    let mut found = FxHashSet::default();
    env.pool.walk(value, &mut |_, n| {
        let (positions, condition) = match n {
            Expr::Load { index, guard, .. } => (index.as_slice(), guard.map(|(c, _)| c)),
            Expr::Call(_, args) => (args.as_slice(), None),
            _ => return,
        };
        for e in positions.iter().copied().chain(condition) {
            env.pool.walk(e, &mut |id, _| {
                found.insert(id);
            });
        }
    });
    found
}

/// Whether `0 <= e < end` wherever the loops get.
fn is_below(env: &mut Env, facts: &Facts, e: ExprId, end: ExprId) -> bool {
    if let Some(end) = env.pool.as_int(end) {
        let range = bounds(env, facts, e);
        return range.lo.is_some_and(|l| l >= 0) && range.hi.is_some_and(|h| h < end);
    }
    let zero = env.pool.int(0);
    let (above, below) = (env.pool.le(zero, e), env.pool.lt(e, end));
    let mut prover = Prover::new();
    prover.prove(env, facts, above).is_proved() && prover.prove(env, facts, below).is_proved()
}

/// Whether the index lies inside the tensor's storage whenever the loops get there.
fn within(env: &mut Env, facts: &Facts, tensor: TensorId, index: &[ExprId]) -> bool {
    let mut prover = Prover::new();
    index.iter().enumerate().all(|(d, &at)| {
        let storage = env.tensors[tensor].dims[d].storage;
        let storage = env.pool.instantiate(storage, index);
        let zero = env.pool.int(0);
        let (above, below) = (env.pool.le(zero, at), env.pool.lt(at, storage));
        prover.prove(env, facts, above).is_proved() && prover.prove(env, facts, below).is_proved()
    })
}
