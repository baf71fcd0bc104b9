//! What is known at a place of a kernel: the loops and branches around it, and what names stand for.

use super::Simplifier;
use cora_ir::storage::{Stmt, StorageModule, Table};
use cora_ir::{BinOp, Env, Expr, ExprId, ScalarType, TensorId, Type, UfDef, VarId};
use rustc_hash::{FxHashMap, FxHashSet};

/// More than any entry that an extent or an offset can be.
const MOST: i64 = 1 << 40;

/// The tables of a module.
pub(super) struct Tables {
    all: FxHashSet<TensorId>,
    /// Those of lengths that cannot be negative, of sums, of positions.
    never_negative: FxHashSet<TensorId>,
}

impl Tables {
    pub(super) fn of(m: &StorageModule) -> Self {
        let plain = |t: &&Table| match m.env.ufs[t.uf].def {
            UfDef::Extent { lo, .. } => m.env.pool.as_int(lo).is_some_and(|lo| lo >= 0),
            UfDef::Map { .. } => false,
            _ => true,
        };
        let never_negative = m.tables.iter().filter(plain).map(|t| t.tensor).collect();
        Self { all: m.tables.iter().map(|t| t.tensor).collect(), never_negative }
    }

    pub(super) fn contains(&self, t: TensorId) -> bool {
        self.all.contains(&t)
    }
}

/// A place of a kernel. Nothing that it holds has names in it: what they stand for is put in their place.
pub(super) struct Place<'a> {
    tables: &'a Tables,
    /// The loops around, outermost first.
    loops: Vec<(VarId, ExprId)>,
    /// Comparisons of indices that hold by the branches around.
    facts: Vec<ExprId>,
    /// What names stand for.
    lets: FxHashMap<VarId, ExprId>,
    /// Entries of tables that are not negative, as variables: a question that comes again is the same one.
    entries: FxHashMap<ExprId, VarId>,
}

/// What was known before a branch.
pub(super) struct Mark(usize);

impl<'a> Place<'a> {
    /// Outside of all loops.
    pub(super) fn new(tables: &'a Tables) -> Self {
        Self { tables, loops: Vec::new(), facts: Vec::new(), lets: FxHashMap::default(), entries: FxHashMap::default() }
    }

    /// The loops around, outermost first.
    pub(super) fn loops(&self) -> &[(VarId, ExprId)] {
        &self.loops
    }

    /// Into a loop.
    pub(super) fn enter(&mut self, env: &mut Env, var: VarId, extent: ExprId) {
        let extent = self.expanded(env, extent);
        self.loops.push((var, extent));
    }

    /// Out of the innermost loop.
    pub(super) fn leave(&mut self) {
        self.loops.pop();
    }

    /// A name stands for a value from here on.
    pub(super) fn define(&mut self, env: &mut Env, var: VarId, value: ExprId) {
        let value = self.expanded(env, value);
        self.lets.insert(var, value);
    }

    /// A condition holds until it is forgotten.
    pub(super) fn assume(&mut self, env: &mut Env, cond: ExprId) -> Mark {
        let mark = Mark(self.facts.len());
        let cond = self.expanded(env, cond);
        let mut all = Vec::new();
        all.extend(env.pool.conjuncts(cond));
        for c in all {
            let indices = match *env.pool.get(c) {
                Expr::Bin(BinOp::Lt | BinOp::Le, a, _) => env.pool.ty(a) == Type::scalar(ScalarType::Index),
                _ => false,
            };
            if indices && !self.reads_elements(env, c) {
                self.facts.push(c);
            }
        }
        mark
    }

    /// Whether a condition, without names, is one of those assumed.
    pub(super) fn assumed(&self, cond: ExprId) -> bool {
        self.facts.contains(&cond)
    }

    /// Out of a branch.
    pub(super) fn forget(&mut self, mark: Mark) {
        self.facts.truncate(mark.0);
    }

    /// An expression without names.
    pub(super) fn expanded(&self, env: &mut Env, e: ExprId) -> ExprId {
        env.pool.substitute(e, &self.lets)
    }

    /// Whether `e` reads something else than a table. Such an element may not be there before a loop or a branch, where
    /// its conditions are not known to hold.
    pub(super) fn reads_elements(&self, env: &mut Env, e: ExprId) -> bool {
        let e = self.expanded(env, e);
        env.pool.any(e, &mut |n| matches!(n, Expr::Load { tensor, .. } if !self.tables.contains(*tensor)))
    }

    /// Whether a condition provably holds here.
    pub(super) fn proved(&mut self, env: &mut Env, simplifier: &mut dyn Simplifier, goal: ExprId) -> bool {
        let goal = self.expanded(env, goal);
        let (mut loops, mut facts) = (self.loops.clone(), self.facts.clone());
        let mut reads = Vec::new();
        for e in loops.iter().map(|l| l.1).chain(facts.iter().copied()).chain([goal]) {
            env.pool.walk(e, &mut |id, n| {
                if let Expr::Cast(ScalarType::Index, x) = n
                    && matches!(env.pool.get(*x), Expr::Load { tensor, guard: None, .. } if self.tables.never_negative.contains(tensor))
                    && !reads.contains(&id)
                {
                    reads.push(id);
                }
            });
        }
        let most = env.pool.int(MOST);
        let mut ranges = Vec::new();
        let mut map: FxHashMap<ExprId, ExprId> = FxHashMap::default();
        for e in reads {
            let var = *self.entries.entry(e).or_insert_with(|| env.new_var("entry"));
            ranges.push((var, most));
            map.insert(e, env.pool.var(var));
        }
        let named = |env: &mut Env, e: ExprId| env.pool.rewrite(e, &mut |_, x| map.get(&x).copied());
        let goal = named(env, goal);
        for (_, extent) in &mut loops {
            *extent = named(env, *extent);
        }
        for fact in &mut facts {
            *fact = named(env, *fact);
        }
        ranges.extend(loops);
        simplifier.prove(env, &ranges, &facts, goal)
    }
}

/// A rewrite of statements that knows what holds where each of them stands.
pub(super) trait Rewrite<'a> {
    /// The module's names, and the place that the rewrite has come to.
    fn at(&mut self) -> (&mut Env, &mut Place<'a>);

    /// What stands for a statement; itself if only what is in it may change.
    fn replaced(&mut self, s: Stmt) -> Result<Vec<Stmt>, Stmt> {
        Err(s)
    }

    /// What stands for statements that follow one another.
    fn body(&mut self, stmts: Vec<Stmt>) -> Vec<Stmt> {
        let mut out = Vec::with_capacity(stmts.len());
        for s in stmts {
            match self.replaced(s) {
                Ok(new) => out.extend(new),
                Err(s) => out.push(self.inside(s)),
            }
        }
        out
    }

    /// A statement with what stands for those in it.
    fn inside(&mut self, s: Stmt) -> Stmt {
        match s {
            Stmt::For { var, extent, kind, body } => {
                let (env, place) = self.at();
                place.enter(env, var, extent);
                let body = self.body(body);
                self.at().1.leave();
                Stmt::For { var, extent, kind, body }
            }
            Stmt::If { cond, then, other } => {
                let (env, place) = self.at();
                let mark = place.assume(env, cond);
                let then = self.body(then);
                self.at().1.forget(mark);
                Stmt::If { cond, then, other: self.body(other) }
            }
            Stmt::Let { var, value } => {
                let (env, place) = self.at();
                place.define(env, var, value);
                Stmt::Let { var, value }
            }
            s => s,
        }
    }
}
