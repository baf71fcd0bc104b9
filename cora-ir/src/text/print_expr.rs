//! Printer of expressions: infix with the fewest parentheses, every literal typed and exact.

use super::names::{EntityNames, Names, quote, quote_param};
use crate::env::Env;
use crate::expr::Expr;
use crate::ids::{ExprId, VarId};
use crate::types::{BinOp, Literal, ScalarType, UnOp, round_float};

/// How tightly an expression holds together in text; a looser one inside a tighter place is put in
/// parentheses.
pub(super) mod level {
    pub const OR: u8 = 1;
    pub const AND: u8 = 2;
    pub const NOT: u8 = 3;
    pub const COMPARE: u8 = 4;
    pub const SUM: u8 = 5;
    pub const PRODUCT: u8 = 6;
    pub const NEGATE: u8 = 7;
    pub const PRIMARY: u8 = 8;
}

/// The level of an operator that prints infix.
pub(super) fn infix_level(op: BinOp) -> Option<u8> {
    match op {
        BinOp::Or => Some(level::OR),
        BinOp::And => Some(level::AND),
        BinOp::Lt | BinOp::Le | BinOp::Eq | BinOp::Ne => Some(level::COMPARE),
        BinOp::Add | BinOp::Sub => Some(level::SUM),
        BinOp::Mul | BinOp::Div | BinOp::FloorDiv | BinOp::Mod => Some(level::PRODUCT),
        BinOp::Min | BinOp::Max | BinOp::Pow => None,
    }
}

/// The text of one expression, for messages: variables as `%name`.
pub fn print_expr(env: &Env, id: ExprId, names: &Names) -> String {
    let mut printer = ExprPrinter {
        env,
        params: EntityNames::new(env.params.iter().map(|(i, p)| (i, p.name.as_str())), quote_param),
        ufs: EntityNames::new(env.ufs.iter().map(|(i, f)| (i, f.name.as_str())), quote),
        tensors: EntityNames::new(env.tensors.iter().map(|(i, t)| (i, t.name.as_str())), quote),
        combiners: EntityNames::default(),
        names: names.clone(),
        free: None,
    };
    let mut out = String::new();
    printer.expr(&mut out, id);
    out
}

/// What the printer of expressions knows about names.
pub(super) struct ExprPrinter<'a> {
    pub env: &'a Env,
    pub params: EntityNames,
    pub ufs: EntityNames,
    pub tensors: EntityNames,
    pub combiners: EntityNames,
    /// Variables in scope.
    pub names: Names,
    /// Variables that nothing binds (`%?x`), where that makes a difference.
    pub free: Option<Names>,
}

impl ExprPrinter<'_> {
    /// Writes the whole expression.
    pub(super) fn expr(&mut self, out: &mut String, id: ExprId) {
        self.at(out, id, 0);
    }

    /// Writes expressions separated by commas.
    pub(super) fn list(&mut self, out: &mut String, ids: &[ExprId]) {
        for (i, &id) in ids.iter().enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            self.expr(out, id);
        }
    }

    fn at(&mut self, out: &mut String, id: ExprId, min: u8) {
        let env = self.env;
        let node = env.pool.get(id);
        let own = level_of(node);
        if own < min {
            out.push('(');
            self.node(out, node);
            out.push(')');
        } else {
            self.node(out, node);
        }
    }

    fn node(&mut self, out: &mut String, node: &Expr) {
        match node {
            Expr::Int(v) => out.push_str(&v.to_string()),
            Expr::Lit(l) => out.push_str(&literal(*l)),
            Expr::Var(v) => self.var(out, *v),
            Expr::Param(p) => out.push_str(&self.params.get(*p)),
            Expr::Arg(n) => out.push_str(&format!("${n}")),
            Expr::Operand(n, ty) => out.push_str(&format!("${n}:{ty}")),
            Expr::Tuple(values) => {
                out.push('(');
                self.list(out, values);
                out.push_str(if values.len() == 1 { ",)" } else { ")" });
            }
            Expr::Call(f, args) => {
                out.push_str(&format!("@{}", self.ufs.get(*f)));
                self.function(out, "", args);
            }
            Expr::Un(op, a) => self.unary(out, *op, *a),
            Expr::Bin(op, a, b) => self.binary(out, *op, *a, *b),
            Expr::Select(c, a, b) => self.function(out, "select", &[*c, *a, *b]),
            Expr::Cast(to, a) => self.function(out, to.name(), &[*a]),
            Expr::Load { tensor, part, index, guard } => self.load(out, (*tensor, *part), index, *guard),
            Expr::Ramp { base, stride, lanes } => {
                out.push_str("ramp(");
                self.expr(out, *base);
                out.push_str(&format!(", {stride}, {lanes})"));
            }
            Expr::Splat(a, lanes) => {
                out.push_str("splat(");
                self.expr(out, *a);
                out.push_str(&format!(", {lanes})"));
            }
            Expr::Search { table, base, len, value } => {
                out.push_str("search ");
                self.load(out, (*table, 0), &[*base, *len, *value], None);
            }
            Expr::Reduce(c, a) => self.function(out, &format!("reduce_{}", c.name()), &[*a]),
        }
    }

    fn function(&mut self, out: &mut String, name: &str, args: &[ExprId]) {
        out.push_str(name);
        out.push('(');
        self.list(out, args);
        out.push(')');
    }

    fn var(&mut self, out: &mut String, v: VarId) {
        let (mark, name) = match (self.names.get(v), &mut self.free) {
            (Some(name), _) => ("", name),
            (None, Some(free)) => ("?", free.add(self.env, v)),
            (None, None) => ("", self.names.add(self.env, v)),
        };
        out.push_str(&format!("%{mark}{name}"));
    }

    fn unary(&mut self, out: &mut String, op: UnOp, a: ExprId) {
        match op {
            UnOp::Neg => {
                // `-3` is a literal, so the negation of a literal needs parentheses.
                let literal = match self.env.pool.get(a) {
                    Expr::Int(_) => true,
                    Expr::Lit(l) => l.ty != ScalarType::Bool,
                    _ => false,
                };
                out.push('-');
                self.at(out, a, if literal { level::PRIMARY + 1 } else { level::NEGATE });
            }
            UnOp::Not => {
                out.push_str("not ");
                self.at(out, a, level::NOT);
            }
            _ => self.function(out, op.name(), &[a]),
        }
    }

    fn binary(&mut self, out: &mut String, op: BinOp, a: ExprId, b: ExprId) {
        let Some(own) = infix_level(op) else {
            return self.function(out, op.symbol(), &[a, b]);
        };
        self.at(out, a, if op.is_comparison() { own + 1 } else { own });
        out.push_str(&format!(" {} ", op.symbol()));
        self.at(out, b, own + 1);
    }

    fn load(
        &mut self,
        out: &mut String,
        (tensor, part): (crate::ids::TensorId, u32),
        index: &[ExprId],
        guard: Option<(ExprId, ExprId)>,
    ) {
        if guard.is_some() {
            out.push('(');
        }
        // Each load of a tuple names its component.
        let of_tuple = part > 0 || self.env.tensors.get(tensor).is_some_and(|t| t.tuple.is_some());
        if of_tuple {
            out.push_str(&format!("part {part} of "));
        }
        out.push_str(&format!("@{}[", self.tensors.get(tensor)));
        self.list(out, index);
        out.push(']');
        if let Some((cond, other)) = guard {
            out.push_str(" if ");
            self.expr(out, cond);
            out.push_str(" else ");
            self.expr(out, other);
            out.push(')');
        }
    }
}

fn level_of(node: &Expr) -> u8 {
    match node {
        Expr::Bin(op, ..) => infix_level(*op).unwrap_or(level::PRIMARY),
        Expr::Un(UnOp::Not, _) => level::NOT,
        Expr::Un(UnOp::Neg, _) => level::NEGATE,
        _ => level::PRIMARY,
    }
}

/// The text of a typed constant; reading it gives back the same bits.
pub(super) fn literal(l: Literal) -> String {
    let ty = l.ty;
    if ty == ScalarType::Bool {
        return if l.as_i64() != 0 { "true".into() } else { "false".into() };
    }
    if !ty.is_float() {
        return format!("{}:{ty}", l.as_i64());
    }
    let value = round_float(ty, l.as_f64());
    if value.is_nan() {
        let bits = value.to_bits();
        return if bits == f64::NAN.to_bits() { format!("nan:{ty}") } else { format!("nan(0x{bits:x}):{ty}") };
    }
    // Halves are exact in f32, whose shortest text is the shorter one.
    if ty == ScalarType::F64 { format!("{value:?}:{ty}") } else { format!("{:?}:{ty}", value as f32) }
}
