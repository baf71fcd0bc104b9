//! Expressions as `.cora` text. Literals are bare where their neighbour gives them their type, and
//! cast where nothing does.

use super::is_gather;
use crate::elab::in_bounds;
use cora_ir::{BinOp, DimId, Env, Expr, ExprId, Literal, ScalarType, UnOp, VarId};
use std::collections::{BTreeMap, BTreeSet};

/// A copy of the environment (some checks make expressions) and the names of variables.
pub(super) struct Names {
    pub(super) env: Env,
    pub(super) var_names: BTreeMap<VarId, String>,
    /// The operands of the combiner that is printed.
    pub(super) operands: Vec<String>,
    taken: BTreeSet<String>,
}

impl Names {
    /// Dimensions of one name, which a graph may have and a program may not, are told apart.
    pub(super) fn new(env: &Env) -> Self {
        let env = env.clone();
        let others = env.params.iter().map(|(_, p)| &p.name).chain(env.ufs.iter().map(|(_, f)| &f.name));
        let others = others.chain(env.tensors.iter().map(|(_, t)| &t.name));
        let taken = others.chain(env.combiners.iter().map(|(_, c)| &c.name)).cloned().collect();
        let mut names = Self { env, var_names: BTreeMap::new(), operands: Vec::new(), taken };
        for d in names.env.dims.ids().collect::<Vec<DimId>>() {
            let (wanted, var) = (names.env.dims[d].name.clone(), names.env.dims[d].var);
            let name = names.fresh(&wanted);
            names.env.dims[d].name.clone_from(&name);
            names.var_names.insert(var, name);
        }
        names
    }

    /// The name, or one made from it, that nothing else has.
    pub(super) fn fresh(&mut self, wanted: &str) -> String {
        unused(&mut self.taken, wanted)
    }

    pub(super) fn dim(&self, d: DimId) -> &str {
        &self.env.dims[d].name
    }

    pub(super) fn var(&self, v: VarId) -> String {
        self.var_names.get(&v).cloned().unwrap_or_else(|| self.env.vars[v].name.clone())
    }
}

/// The name, or one made from it, that is not `taken` yet.
pub(super) fn unused(taken: &mut BTreeSet<String>, wanted: &str) -> String {
    let mut name = wanted.to_owned();
    for n in 2.. {
        if taken.insert(name.clone()) {
            break;
        }
        name = format!("{wanted}_{n}");
    }
    name
}

// How tightly an expression's outermost operator binds.
const OR: u8 = 0;
const AND: u8 = 1;
const NOT: u8 = 2;
const COMPARE: u8 = 3;
const ADD: u8 = 4;
const MUL: u8 = 5;
const UNARY: u8 = 6;
const PRIMARY: u8 = 7;

/// `e` where any expression may stand.
pub(super) fn text(names: &mut Names, e: ExprId) -> String {
    at_least(names, e, OR)
}

/// `e` as the body of a reduction over so many dimensions.
pub(super) fn term(names: &mut Names, e: ExprId, over: usize) -> String {
    let text = at_least(names, e, MUL);
    // A word after `max(i)` is not yet a term, and what is subtracted from `max(i, j)`, a function of two, is none.
    let difference = over == 2 && text.starts_with('-');
    if difference || names.env.pool.as_bool(e).is_some() { format!("({text})") } else { text }
}

/// `e`, in parentheses if it binds more loosely than `level`.
fn at_least(names: &mut Names, e: ExprId, level: u8) -> String {
    let (s, have) = print(names, e);
    if have < level { format!("({s})") } else { s }
}

/// Whether the expression is a literal, which takes its type from its neighbours.
pub(super) fn is_bare(env: &Env, e: ExprId) -> bool {
    match env.pool.get(e) {
        Expr::Int(_) => true,
        Expr::Lit(l) => l.ty != ScalarType::Bool,
        _ => false,
    }
}

/// `e`, with a literal cast to its type.
pub(super) fn anchored(names: &mut Names, e: ExprId, level: u8) -> String {
    if is_bare(&names.env, e) {
        let ty = names.env.pool.ty(e).scalar;
        return format!("{ty}({})", text(names, e));
    }
    at_least(names, e, level)
}

/// The operands of an operator, one of them cast if both are literals.
fn pair(names: &mut Names, a: ExprId, b: ExprId, left: u8, right: u8) -> (String, String) {
    let bare = is_bare(&names.env, a) && is_bare(&names.env, b);
    let sa = if bare { anchored(names, a, left) } else { at_least(names, a, left) };
    (sa, at_least(names, b, right))
}

fn print(names: &mut Names, e: ExprId) -> (String, u8) {
    match names.env.pool.get(e).clone() {
        Expr::Int(v) => (v.to_string(), if v < 0 { UNARY } else { PRIMARY }),
        Expr::Lit(l) => {
            let s = literal(l);
            let level = if s.starts_with('-') { UNARY } else { PRIMARY };
            (s, level)
        }
        Expr::Var(v) => (names.var(v), PRIMARY),
        Expr::Param(p) => (names.env.params[p].name.clone(), PRIMARY),
        Expr::Arg(n) => (format!("arg{n}"), PRIMARY),
        Expr::Operand(n, _) => (names.operands.get(n as usize).cloned().unwrap_or_default(), PRIMARY),
        Expr::Tuple(values) => {
            let values: Vec<String> = values.iter().map(|&v| text(names, v)).collect();
            (format!("({})", values.join(", ")), PRIMARY)
        }
        Expr::Call(f, args) => {
            let args: Vec<String> = args.iter().map(|&a| text(names, a)).collect();
            (format!("{}({})", names.env.ufs[f].name, args.join(", ")), PRIMARY)
        }
        Expr::Un(UnOp::Neg, a) => {
            let s = anchored(names, a, PRIMARY);
            (format!("-{s}"), UNARY)
        }
        Expr::Un(UnOp::Not, a) => (format!("not {}", at_least(names, a, NOT)), NOT),
        Expr::Un(op, a) => (format!("{}({})", op.name(), anchored(names, a, OR)), PRIMARY),
        Expr::Bin(op, a, b) => binary(names, op, a, b),
        Expr::Select(c, a, b) => {
            let c = text(names, c);
            let (a, b) = pair(names, a, b, OR, OR);
            (format!("select({c}, {a}, {b})"), PRIMARY)
        }
        Expr::Cast(to, a) => (format!("{to}({})", anchored(names, a, OR)), PRIMARY),
        Expr::Load { tensor, part, index, guard } => {
            let mut at = Vec::new();
            for &i in &index {
                at.push(position(names, i, guard.is_some()));
            }
            let mut s = format!("{}[{}]", super::read_name(&names.env, tensor, part), at.join(", "));
            if let Some((cond, other)) = guard {
                if in_bounds(&mut names.env, tensor, &index) != cond {
                    s.push_str(&format!(" when ({})", text(names, cond)));
                }
                s.push_str(&format!(" else {}", at_least(names, other, UNARY)));
            }
            (s, PRIMARY)
        }
        Expr::Ramp { base, stride, lanes } => (format!("ramp({}, {stride}, {lanes})", text(names, base)), PRIMARY),
        Expr::Splat(a, lanes) => (format!("splat({}, {lanes})", text(names, a)), PRIMARY),
        Expr::Search { table, base, len, value } => {
            let (base, len, value) = (text(names, base), text(names, len), text(names, value));
            (format!("search({}, {base}, {len}, {value})", names.env.tensors[table].name), PRIMARY)
        }
        Expr::Reduce(c, a) => (format!("lanes_{}({})", c.name(), text(names, a)), PRIMARY),
    }
}

/// A position of an access; an element of an index tensor needs no cast there.
fn position(names: &mut Names, i: ExprId, guarded: bool) -> String {
    if let Expr::Cast(ScalarType::Index, inner) = *names.env.pool.get(i)
        && let Expr::Load { tensor, .. } = *names.env.pool.get(inner)
        && is_gather(&names.env, tensor, guarded)
    {
        return text(names, inner);
    }
    text(names, i)
}

fn binary(names: &mut Names, op: BinOp, a: ExprId, b: ExprId) -> (String, u8) {
    let (left, right) = match op {
        BinOp::Or => (OR, AND),
        BinOp::And => (AND, NOT),
        BinOp::Lt | BinOp::Le | BinOp::Eq | BinOp::Ne => (ADD, ADD),
        BinOp::Add | BinOp::Sub => (ADD, MUL),
        BinOp::Mul | BinOp::Div | BinOp::FloorDiv | BinOp::Mod => (MUL, UNARY),
        BinOp::Min | BinOp::Max | BinOp::Pow => {
            let (a, b) = pair(names, a, b, OR, OR);
            return (format!("{}({a}, {b})", op.symbol()), PRIMARY);
        }
    };
    let symbol = if op == BinOp::FloorDiv { "/" } else { op.symbol() };
    let (a, b) = pair(names, a, b, left, right);
    let level = if op.is_comparison() { COMPARE } else { left };
    (format!("{a} {symbol} {b}"), level)
}

/// A literal's digits: the shortest that give exactly this value.
pub(super) fn literal(l: Literal) -> String {
    if l.ty == ScalarType::Bool {
        return (l.as_i64() != 0).to_string();
    }
    if !l.ty.is_float() {
        return l.as_i64().to_string();
    }
    let v = l.as_f64();
    if v.is_nan() {
        return "nan".to_owned();
    }
    if v.is_infinite() {
        return if v > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let short = format!("{:?}", v as f32);
    match short.parse::<f64>() {
        Ok(parsed) if l.ty == ScalarType::F32 && Literal::float(l.ty, parsed) == l => short,
        _ => format!("{v:?}"),
    }
}
