//! Index expressions as a language of e-graphs.

use super::term::{Family, Term, binary};
use cora_ir::expr::Args;
use cora_ir::{BinOp, EntityId, Env, Expr, ExprId, Literal, ScalarType, UfDef, UfId, UnOp};
use egg::{ENodeOrVar, Id, Language, Pattern, RecExpr, Var};
use rustc_hash::FxHashMap;
use std::fmt;

/// An operator or a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Op {
    Int(i64),
    Bool(bool),
    /// An expression that rules do not look into.
    Leaf(ExprId),
    Call(UfId),
    Un(UnOp),
    Bin(BinOp),
    Select,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Node {
    pub(super) op: Op,
    pub(super) kids: Vec<Id>,
}

impl Language for Node {
    type Discriminant = (Op, usize);

    fn discriminant(&self) -> Self::Discriminant {
        (self.op, self.kids.len())
    }
    fn matches(&self, other: &Self) -> bool {
        self.op == other.op && self.kids.len() == other.kids.len()
    }
    fn children(&self) -> &[Id] {
        &self.kids
    }
    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.kids
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op {
            Op::Int(v) => write!(f, "{v}"),
            Op::Bool(b) => write!(f, "{b}"),
            Op::Leaf(e) => write!(f, "e{}", e.index()),
            Op::Call(u) => write!(f, "f{}", u.index()),
            Op::Un(op) => f.write_str(op.name()),
            Op::Bin(op) => f.write_str(op.symbol()),
            Op::Select => f.write_str("select"),
        }
    }
}

/// Whether rules look into expressions of this type.
fn is_open(env: &Env, e: ExprId) -> bool {
    let t = env.pool.ty(e);
    t.lanes == 1 && matches!(t.scalar, ScalarType::Index | ScalarType::Bool)
}

/// The operator of an expression, a leaf if rules do not look into it.
fn op_of(env: &Env, e: ExprId) -> Op {
    match env.pool.get(e) {
        Expr::Int(v) => Op::Int(*v),
        Expr::Lit(l) if l.ty == ScalarType::Bool => Op::Bool(l.as_i64() != 0),
        Expr::Call(f, _) if is_open(env, e) => Op::Call(*f),
        Expr::Un(op @ (UnOp::Neg | UnOp::Not), _) if is_open(env, e) => Op::Un(*op),
        Expr::Bin(op, a, _) if is_open(env, e) && is_open(env, *a) => Op::Bin(*op),
        Expr::Select(..) if is_open(env, e) => Op::Select,
        _ => Op::Leaf(e),
    }
}

/// The expression as a term of the language.
pub(super) fn to_nodes(env: &Env, e: ExprId) -> RecExpr<Node> {
    let mut out = RecExpr::default();
    let mut memo = FxHashMap::default();
    add_nodes(env, e, &mut out, &mut memo);
    out
}

fn add_nodes(env: &Env, e: ExprId, out: &mut RecExpr<Node>, memo: &mut FxHashMap<ExprId, Id>) -> Id {
    if let Some(&id) = memo.get(&e) {
        return id;
    }
    let op = op_of(env, e);
    let kids = match op {
        Op::Leaf(_) => Args::new(),
        _ => env.pool.children(e),
    };
    let kids = kids.into_iter().map(|k| add_nodes(env, k, out, memo)).collect();
    let id = out.add(Node { op, kids });
    memo.insert(e, id);
    id
}

/// The expression of one operator over operands.
pub(super) fn to_expr(env: &mut Env, op: Op, kids: &[ExprId]) -> ExprId {
    match op {
        Op::Int(v) => env.pool.int(v),
        Op::Bool(b) => env.pool.lit(Literal::int(ScalarType::Bool, b.into())),
        Op::Leaf(e) => e,
        Op::Call(f) => env.pool.call(f, kids.iter().copied()),
        Op::Un(op) => env.pool.un(op, kids[0]),
        Op::Bin(op) => env.pool.bin(op, kids[0], kids[1]),
        Op::Select => env.pool.select(kids[0], kids[1], kids[2]),
    }
}

/// The pattern variable of a rule's variable.
pub(super) fn pattern_var(name: &str) -> Option<Var> {
    format!("?{name}").parse().ok()
}

/// The pattern variable of outer argument `j`.
pub(super) fn outer_var(j: usize) -> String {
    format!("outer{j}")
}

/// The pattern of a rule's term; `family.outer` is ignored, outer arguments are variables.
pub(super) fn to_pattern(env: &Env, term: &Term, family: Option<&Family>) -> Option<Pattern<Node>> {
    let mut out = RecExpr::default();
    add_pattern(env, term, family, &mut out)?;
    Some(Pattern::new(out))
}

type PatternNodes = RecExpr<ENodeOrVar<Node>>;

fn add_pattern(env: &Env, term: &Term, family: Option<&Family>, out: &mut PatternNodes) -> Option<Id> {
    let add = |out: &mut PatternNodes, op, kids| out.add(ENodeOrVar::ENode(Node { op, kids }));
    Some(match term {
        Term::Var(v) => out.add(ENodeOrVar::Var(pattern_var(v)?)),
        Term::Int(v) => add(out, Op::Int(*v), Vec::new()),
        Term::App(op, kids) => {
            let ids: Option<Vec<Id>> = kids.iter().map(|k| add_pattern(env, k, family, out)).collect();
            let ids = ids?;
            let function = match (op.as_str(), family) {
                ("P", Some(f)) => Some(f.sum),
                ("S", Some(f)) => Some(f.search?),
                _ => None,
            };
            if let Some(f) = function {
                let mut all = outer_patterns(env, family?, out)?;
                all.extend(ids);
                return Some(add(out, Op::Call(f), all));
            }
            match op.as_str() {
                "T" => {
                    let UfDef::PrefixSum { body } = env.ufs[family?.sum].def else { return None };
                    let mut all = outer_patterns(env, family?, out)?;
                    all.extend(ids);
                    add_definition(env, body, &all, out)?
                }
                "N" => {
                    let rows = *env.ufs[family?.sum].domain.last()?;
                    let all = outer_patterns(env, family?, out)?;
                    add_definition(env, rows, &all, out)?
                }
                "not" => add(out, Op::Un(UnOp::Not), ids),
                "select" => add(out, Op::Select, ids),
                _ => add(out, Op::Bin(binary(op)?), ids),
            }
        }
    })
}

fn outer_patterns(env: &Env, family: &Family, out: &mut PatternNodes) -> Option<Vec<Id>> {
    let n = env.ufs[family.sum].domain.len() - 1;
    (0..n).map(|j| Some(out.add(ENodeOrVar::Var(pattern_var(&outer_var(j))?)))).collect()
}

/// A defining expression with patterns in the place of its formal arguments.
fn add_definition(env: &Env, e: ExprId, args: &[Id], out: &mut PatternNodes) -> Option<Id> {
    if let Expr::Arg(n) = env.pool.get(e) {
        return args.get(*n as usize).copied();
    }
    let op = op_of(env, e);
    if let Op::Leaf(_) = op
        && env.pool.any(e, &mut |x| matches!(x, Expr::Arg(_)))
    {
        return None;
    }
    let kids = if matches!(op, Op::Leaf(_)) { Args::new() } else { env.pool.children(e) };
    let kids: Option<Vec<Id>> = kids.into_iter().map(|k| add_definition(env, k, args, out)).collect();
    Some(out.add(ENodeOrVar::ENode(Node { op, kids: kids? })))
}
