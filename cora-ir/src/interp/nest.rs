//! What the engine compiles: loops, conditions and leaves, the common form of all stages.

use crate::env::Env;
use crate::expr::Expr;
use crate::ids::{ExprId, TensorId, VarId};
use crate::interp::grid::{SlotSync, Sync};
use crate::loops::Axis;
use crate::types::{BinOp, Combiner, Literal};
use rustc_hash::{FxHashMap, FxHashSet};

/// A statement.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    For(Loop),
    If {
        cond: ExprId,
        then: Vec<Node>,
        other: Vec<Node>,
    },
    Let {
        var: VarId,
        value: ExprId,
    },
    Leaf(Leaf),
    /// What only the reads in it matter of: nothing is done there.
    Address(ExprId),
    /// What orders the accesses of threads.
    Sync(Sync),
    /// A box is asked for into a slot of a tensor, or waited for.
    Slot {
        tensor: TensorId,
        slot: ExprId,
        how: SlotSync,
    },
}

/// `for var in 0..extent`.
#[derive(Clone, Debug)]
pub(crate) struct Loop {
    pub var: VarId,
    pub extent: ExprId,
    /// The tensor that errors about the loop name.
    pub at: Option<TensorId>,
    /// Whether the machine chooses which iterations run.
    pub outer: bool,
    /// Whether it runs in strips of lanes.
    pub strip: bool,
    /// Tensors of which each iteration has its own instance.
    pub attach: Vec<TensorId>,
    /// The axis of the grid that the iterations are spread over.
    pub axis: Option<Axis>,
    pub body: Vec<Node>,
}

impl Loop {
    pub fn new(var: VarId, extent: ExprId, at: Option<TensorId>, body: Vec<Node>) -> Self {
        Self { var, extent, at, outer: false, strip: false, attach: Vec::new(), axis: None, body }
    }
}

/// Writes one element (a vector of them, where the index is one).
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    /// Variables of the leaf and their values.
    pub binds: Vec<(VarId, ExprId)>,
    /// Nothing happens unless all hold.
    pub predicate: Vec<ExprId>,
    pub tensor: TensorId,
    pub index: Vec<ExprId>,
    pub value: ExprId,
    /// Other tensors written at the same index, after all values are computed.
    pub rest: Vec<(TensorId, ExprId)>,
    /// Lanes to write; the value is computed in any case.
    pub mask: Option<ExprId>,
    /// Combines with the old element.
    pub combine: Option<Combiner>,
    /// The element is the combination of `value` over these loops.
    pub fold: Option<Fold>,
    /// Whether it goes on after the statement.
    pub copy: bool,
    /// The combination with the old element is indivisible.
    pub atomic: bool,
}

/// How a fold combines.
#[derive(Clone, Debug)]
pub(crate) enum Folding {
    /// By an operator.
    Op(Combiner),
    /// The leaf's values are the new components, over `Operand(0..)` for the old ones; these are the first.
    Tuple(Vec<Literal>),
}

/// A reduction held in registers.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    pub combiner: Folding,
    pub loops: Vec<(VarId, ExprId)>,
    /// Whether the last loop runs in strips of lanes.
    pub strip: bool,
}

impl Leaf {
    pub fn store(tensor: TensorId, index: Vec<ExprId>, value: ExprId) -> Self {
        let (binds, predicate, mask, combine, fold) = (Vec::new(), Vec::new(), None, None, None);
        Self {
            binds,
            predicate,
            tensor,
            index,
            value,
            rest: Vec::new(),
            mask,
            combine,
            fold,
            copy: false,
            atomic: false,
        }
    }

    /// The tensors written.
    pub fn targets(&self) -> impl Iterator<Item = TensorId> {
        [self.tensor].into_iter().chain(self.rest.iter().map(|r| r.0))
    }

    fn exprs(&self) -> impl Iterator<Item = ExprId> {
        let binds = self.binds.iter().map(|b| b.1);
        binds
            .chain(self.predicate.iter().copied())
            .chain(self.index.iter().copied())
            .chain([self.value])
            .chain(self.rest.iter().map(|r| r.1))
            .chain(self.mask)
    }
}

/// Tensors that an expression reads, remembered.
#[derive(Default)]
struct Reads {
    memo: FxHashMap<ExprId, Vec<TensorId>>,
}

impl Reads {
    fn of(&mut self, env: &Env, e: ExprId) -> &[TensorId] {
        self.memo.entry(e).or_insert_with(|| {
            let mut out = Vec::new();
            env.pool.walk(e, &mut |_, n| {
                if let Expr::Load { tensor: t, .. } | Expr::Search { table: t, .. } = n
                    && !out.contains(t)
                {
                    out.push(*t);
                }
            });
            out
        })
    }

    /// In how many leaves, lets, conditions and extents `t` occurs.
    fn count(&mut self, env: &Env, nodes: &[Node], t: TensorId) -> usize {
        let mut n = 0;
        for node in nodes {
            n += match node {
                Node::For(l) => usize::from(self.of(env, l.extent).contains(&t)) + self.count(env, &l.body, t),
                Node::If { cond, then, other } => {
                    let here = usize::from(self.of(env, *cond).contains(&t));
                    here + self.count(env, then, t) + self.count(env, other, t)
                }
                Node::Let { value, .. } | Node::Address(value) => usize::from(self.of(env, *value).contains(&t)),
                Node::Sync(_) | Node::Slot { .. } => 0,
                Node::Leaf(leaf) => {
                    usize::from(leaf.targets().any(|w| w == t) || leaf.exprs().any(|e| self.of(env, e).contains(&t)))
                }
            };
        }
        n
    }
}

/// Whether the loop may run in strips, where nothing can be attached.
fn single_leaf(l: &Loop) -> bool {
    matches!(l.body.split_last(), Some((Node::Leaf(_), lets)) if lets.iter().all(|n| matches!(n, Node::Let { .. })))
}

/// The tensors that nests read or write.
pub(crate) fn used_tensors(env: &Env, nests: &[Vec<Node>]) -> FxHashSet<TensorId> {
    fn collect(env: &Env, nodes: &[Node], reads: &mut Reads, used: &mut FxHashSet<TensorId>) {
        for node in nodes {
            match node {
                Node::For(l) => {
                    used.extend(reads.of(env, l.extent));
                    collect(env, &l.body, reads, used);
                }
                Node::If { cond, then, other } => {
                    used.extend(reads.of(env, *cond));
                    collect(env, then, reads, used);
                    collect(env, other, reads, used);
                }
                Node::Let { value, .. } | Node::Address(value) => used.extend(reads.of(env, *value)),
                Node::Sync(_) | Node::Slot { .. } => {}
                Node::Leaf(leaf) => {
                    used.extend(leaf.targets());
                    leaf.exprs().for_each(|e| used.extend(reads.of(env, e)));
                }
            }
        }
    }
    let (mut reads, mut used) = (Reads::default(), FxHashSet::default());
    nests.iter().for_each(|n| collect(env, n, &mut reads, &mut used));
    used
}

/// Attaches each of `locals` to the innermost loop around all of its uses: a new, undefined
/// instance in each iteration. One used in no single loop, or with slots that later iterations use, lives for the whole run.
pub(crate) fn place_attachments(env: &Env, nests: &mut [Vec<Node>], locals: &[TensorId]) {
    let mut reads = Reads::default();
    for &t in locals.iter().filter(|&&t| env.tensors[t].slots().is_none()) {
        let counts: Vec<usize> = nests.iter().map(|n| reads.count(env, n, t)).collect();
        let total = counts.iter().sum();
        for (nest, &count) in nests.iter_mut().zip(&counts) {
            if count == total && total > 0 {
                place(env, nest, t, total, &mut reads);
            }
        }
    }
}

fn place(env: &Env, nodes: &mut [Node], t: TensorId, total: usize, reads: &mut Reads) -> bool {
    for node in nodes {
        match node {
            Node::For(l) if !single_leaf(l) && reads.count(env, &l.body, t) == total => {
                if !place(env, &mut l.body, t, total, reads) {
                    l.attach.push(t);
                }
                return true;
            }
            Node::If { then, other, .. } => {
                let placed = place(env, then, t, total, reads) || place(env, other, t, total, reads);
                if placed {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

/// Lets innermost loops run in strips where that changes nothing: a single leaf, no vectors, and no
/// iteration reads what another one writes.
pub(crate) fn mark_strips(env: &Env, nodes: &mut [Node]) {
    for node in nodes {
        match node {
            Node::For(l) => {
                mark_strips(env, &mut l.body);
                l.strip = l.attach.is_empty() && may_strip(env, l);
            }
            Node::If { then, other, .. } => {
                mark_strips(env, then);
                mark_strips(env, other);
            }
            Node::Let { .. } | Node::Leaf(_) | Node::Address(_) | Node::Sync(_) | Node::Slot { .. } => {}
        }
    }
}

fn may_strip(env: &Env, l: &Loop) -> bool {
    let Some((Node::Leaf(leaf), lets)) = l.body.split_last() else { return false };
    let mut aliases: FxHashMap<VarId, ExprId> = leaf.binds.iter().copied().collect();
    let mut exprs: Vec<ExprId> = leaf.exprs().collect();
    for node in lets {
        let Node::Let { var, value } = node else { return false };
        aliases.insert(*var, *value);
        exprs.push(*value);
    }
    let mut seen = FxHashSet::default();
    let (mut vectors, mut reads_target, mut other_element) = (false, false, false);
    for e in exprs {
        env.pool.walk_seen(e, &mut seen, &mut |id, node| {
            vectors |= env.pool.ty(id).lanes > 1;
            match node {
                Expr::Load { tensor, index, .. } if leaf.targets().any(|t| t == *tensor) => {
                    reads_target = true;
                    other_element |= index.as_slice() != leaf.index.as_slice();
                }
                Expr::Search { table, .. } => other_element |= leaf.targets().any(|t| t == *table),
                _ => {}
            }
        });
    }
    if vectors || other_element {
        return false;
    }
    let mut coefficients = Coefficients { env, var: l.var, aliases: &aliases, memo: FxHashMap::default() };
    !reads_target || leaf.index.iter().any(|&e| coefficients.of(e).is_some_and(|c| c != 0))
}

/// Finds `c` such that an expression is `c * var + something without var`.
pub(crate) struct Coefficients<'c> {
    pub env: &'c Env,
    pub var: VarId,
    /// Variables that stand for expressions.
    pub aliases: &'c FxHashMap<VarId, ExprId>,
    pub memo: FxHashMap<ExprId, Option<i64>>,
}

impl Coefficients<'_> {
    pub fn of(&mut self, e: ExprId) -> Option<i64> {
        if let Some(&c) = self.memo.get(&e) {
            return c;
        }
        let pool = &self.env.pool;
        let c = match pool.get(e) {
            Expr::Var(v) if *v == self.var => Some(1),
            Expr::Var(v) => match self.aliases.get(v) {
                Some(&alias) => self.of(alias),
                None => Some(0),
            },
            Expr::Bin(BinOp::Add, a, b) => self.of(*a).zip(self.of(*b)).and_then(|(a, b)| a.checked_add(b)),
            Expr::Bin(BinOp::Sub, a, b) => self.of(*a).zip(self.of(*b)).and_then(|(a, b)| a.checked_sub(b)),
            Expr::Bin(BinOp::Mul, a, b) => match (pool.as_int(*a), pool.as_int(*b), self.of(*a), self.of(*b)) {
                (_, _, Some(0), Some(0)) => Some(0),
                (Some(k), _, _, Some(c)) | (_, Some(k), Some(c), _) => k.checked_mul(c),
                _ => None,
            },
            _ => pool.children(e).iter().all(|&k| self.of(k) == Some(0)).then_some(0),
        };
        self.memo.insert(e, c);
        c
    }
}
