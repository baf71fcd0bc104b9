//! Terms of rules: parsing, commuted variants, and their instances as expressions.

use cora_ir::{BinOp, Env, ExprId, UfDef, UfId, UnOp};

/// An s-expression of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// `?x`, without the question mark.
    Var(String),
    /// A number.
    Int(i64),
    /// An operator or a function, by name, and its operands; `N` has none.
    App(String, Vec<Term>),
}

/// The prefix sum, term and search that `P`, `T`, `S` and `N` stand for, at given outer arguments.
#[derive(Clone, Debug)]
pub struct Family {
    /// The prefix sum.
    pub sum: UfId,
    /// A search in it, if the program has one.
    pub search: Option<UfId>,
    /// Arguments of both before the last.
    pub outer: Vec<ExprId>,
}

impl Term {
    /// Parses one term; nothing if the text is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let mut tokens = spaced.split_whitespace().peekable();
        let t = Self::parse_tokens(&mut tokens)?;
        tokens.next().is_none().then_some(t)
    }

    fn parse_tokens<'a>(tokens: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> Option<Self> {
        let t = tokens.next()?;
        if t == "(" {
            let op = tokens.next()?.to_owned();
            let mut kids = Vec::new();
            while *tokens.peek()? != ")" {
                kids.push(Self::parse_tokens(tokens)?);
            }
            tokens.next();
            return Some(Self::App(op, kids));
        }
        if let Some(name) = t.strip_prefix('?') {
            return Some(Self::Var(name.to_owned()));
        }
        match t.parse() {
            Ok(v) => Some(Self::Int(v)),
            Err(_) if t == "N" => Some(Self::App(t.to_owned(), Vec::new())),
            Err(_) => None,
        }
    }

    /// Whether any of these operators occurs.
    pub fn mentions(&self, ops: &[&str]) -> bool {
        match self {
            Self::App(op, kids) => ops.contains(&op.as_str()) || kids.iter().any(|k| k.mentions(ops)),
            _ => false,
        }
    }

    /// The variables, in order of first occurrence.
    pub fn vars(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect_vars(&mut out);
        out
    }

    fn collect_vars(&self, out: &mut Vec<String>) {
        match self {
            Self::Var(v) if !out.contains(v) => out.push(v.clone()),
            Self::App(_, kids) => kids.iter().for_each(|k| k.collect_vars(out)),
            _ => {}
        }
    }

    /// This term with the operands of commutative operators in every order (itself first).
    pub fn commuted(&self) -> Vec<Self> {
        let Self::App(op, kids) = self else { return vec![self.clone()] };
        let mut lists: Vec<Vec<Self>> = vec![Vec::new()];
        for k in kids {
            let forms = k.commuted();
            lists = lists
                .iter()
                .flat_map(|l| forms.iter().map(move |f| [l.as_slice(), std::slice::from_ref(f)].concat()))
                .collect();
        }
        let commutes = matches!(op.as_str(), "+" | "*" | "min" | "max" | "and" | "or" | "==" | "!=");
        let mut out: Vec<Self> = lists.iter().map(|l| Self::App(op.clone(), l.clone())).collect();
        if commutes {
            out.extend(lists.into_iter().map(|l| Self::App(op.clone(), l.into_iter().rev().collect())));
        }
        let mut unique: Vec<Self> = Vec::new();
        for t in out {
            if !unique.contains(&t) {
                unique.push(t);
            }
        }
        unique
    }

    /// The expression with variables replaced by `var` and functions taken from `family`; nothing
    /// if a variable or function is missing.
    pub fn build(
        &self,
        env: &mut Env,
        var: &dyn Fn(&str) -> Option<ExprId>,
        family: Option<&Family>,
    ) -> Option<ExprId> {
        match self {
            Self::Var(v) => var(v),
            Self::Int(v) => Some(env.pool.int(*v)),
            Self::App(op, kids) => {
                let kids: Option<Vec<ExprId>> = kids.iter().map(|k| k.build(env, var, family)).collect();
                apply(env, op, &kids?, family)
            }
        }
    }
}

/// The operator with that name, of rule terms.
pub(super) fn binary(op: &str) -> Option<BinOp> {
    BinOp::ALL.into_iter().find(|b| b.symbol() == op)
}

fn apply(env: &mut Env, op: &str, kids: &[ExprId], family: Option<&Family>) -> Option<ExprId> {
    match (op, kids) {
        ("not", &[a]) => Some(env.pool.un(UnOp::Not, a)),
        ("select", &[c, a, b]) => Some(env.pool.select(c, a, b)),
        ("P", &[x]) => {
            let f = family?;
            Some(env.pool.call(f.sum, f.outer.iter().copied().chain([x])))
        }
        ("S", &[r]) => {
            let f = family?;
            Some(env.pool.call(f.search?, f.outer.iter().copied().chain([r])))
        }
        ("T", &[x]) => {
            let f = family?;
            let UfDef::PrefixSum { body } = env.ufs[f.sum].def else { return None };
            let args: Vec<ExprId> = f.outer.iter().copied().chain([x]).collect();
            Some(env.pool.instantiate(body, &args))
        }
        ("N", []) => {
            let f = family?;
            let rows = *env.ufs[f.sum].domain.last()?;
            Some(env.pool.instantiate(rows, &f.outer))
        }
        (_, &[a, b]) => {
            let op = binary(op)?;
            Some(env.pool.bin(op, a, b))
        }
        _ => None,
    }
}
