//! A batch: parameters and the values of extent functions, from options, files or at random.

use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, ParamId, UfDef, UfId};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustc_hash::FxHashMap;

/// Greatest number of entries of one extent function.
const MAX_ENTRIES: usize = 1 << 26;
/// Lengths made at random spread over at most this many values from the least.
const RANDOM_SPREAD: i64 = 48;
/// A parameter that is not given is this, where its range allows it.
const DEFAULT_PARAM: i64 = 8;

/// Values of everything that a program's shapes depend on.
#[derive(Clone, Debug, Default)]
pub struct BatchValues {
    /// By parameter id.
    pub params: Vec<i64>,
    /// Entries of each extent function in row-major ragged order of its domain.
    pub extents: FxHashMap<UfId, Vec<i64>>,
}

/// Where lengths come from.
pub struct Source<'a> {
    /// Values of parameters by name.
    pub params: &'a [(String, i64)],
    /// Entries of extent functions by name: at least as many as needed.
    pub lengths: &'a [(String, Vec<i64>)],
    /// How many entries to leave out at the front.
    pub skip: usize,
    /// For what is not given.
    pub seed: u64,
}

/// Chooses parameters, then the entries of each extent function in order of declaration.
///
/// # Errors
/// `E0310` a parameter or function that the program does not have, `E0311` a parameter outside its
/// range, `E0312` too few entries, `E0313` a table too large.
pub fn resolve(env: &Env, source: &Source) -> Result<BatchValues, Diagnostic> {
    let mut values = BatchValues::default();
    for (name, _) in source.params {
        if !env.params.iter().any(|(_, p)| p.name == *name) {
            let known: Vec<&str> = env.params.iter().map(|(_, p)| p.name.as_str()).collect();
            return Err(Diagnostic::new("E0310", format!("the program has no parameter `{name}`"))
                .hint(format!("its parameters: {}", known.join(", "))));
        }
    }
    for (name, _) in source.lengths {
        if !env.ufs.iter().any(|(_, u)| u.name == *name && matches!(u.def, UfDef::Extent { .. })) {
            let known: Vec<&str> = env
                .ufs
                .iter()
                .filter(|(_, u)| matches!(u.def, UfDef::Extent { .. }))
                .map(|(_, u)| u.name.as_str())
                .collect();
            return Err(Diagnostic::new("E0310", format!("the program has no extent function `{name}`"))
                .hint(format!("its extent functions: {}", known.join(", "))));
        }
    }
    for (_, p) in env.params.iter() {
        let given = source.params.iter().rev().find(|(n, _)| *n == p.name).map(|g| g.1);
        let v = given.unwrap_or_else(|| DEFAULT_PARAM.clamp(p.lo, p.hi));
        if v < p.lo || v > p.hi {
            return Err(Diagnostic::new("E0311", format!("parameter `{}` = {v} is outside {}..={}", p.name, p.lo, p.hi)));
        }
        values.params.push(v);
    }
    let mut rng = SmallRng::seed_from_u64(source.seed);
    for f in env.ufs.ids() {
        let UfDef::Extent { lo, hi } = env.ufs[f].def else { continue };
        let name = env.ufs[f].name.clone();
        let mut points = Vec::new();
        let eval = Evaluator { env, values: &values, points: Default::default() };
        let eval = eval.with_points();
        eval.domain(f, &mut Vec::new(), &mut points).map_err(|()| {
            Diagnostic::new("E0313", format!("extent function `{name}` has more than {MAX_ENTRIES} entries"))
        })?;
        let entries = match source.lengths.iter().rev().find(|(n, _)| *n == name) {
            Some((_, given)) => {
                let end = source.skip + points.len();
                if given.len() < end {
                    return Err(Diagnostic::new(
                        "E0312",
                        format!(
                            "extent function `{name}` needs {} entries after skipping {}, but there are {}",
                            points.len(),
                            source.skip,
                            given.len()
                        ),
                    )
                    .hint("give a longer file, a smaller parameter, or a smaller --skip"));
                }
                given[source.skip..end].to_vec()
            }
            None => {
                let (l, h) = (eval.value(lo, &[]), eval.value(hi, &[]));
                let h = h.min(l.saturating_add(RANDOM_SPREAD)).max(l);
                points.iter().map(|()| rng.random_range(l..=h)).collect()
            }
        };
        values.extents.insert(f, entries);
    }
    Ok(values)
}

/// Evaluates index expressions by definition, for counting entries before any table exists.
struct Evaluator<'a> {
    env: &'a Env,
    values: &'a BatchValues,
    points: FxHashMap<(UfId, Vec<i64>), i64>,
}

impl<'a> Evaluator<'a> {
    /// Knows the value of each earlier extent function at each point of its domain.
    fn with_points(mut self) -> Self {
        let done: Vec<UfId> = self.env.ufs.ids().filter(|f| self.values.extents.contains_key(f)).collect();
        for f in done {
            let mut at = Vec::new();
            self.enumerate(f, &mut Vec::new(), &mut at);
            for (point, &v) in at.into_iter().zip(&self.values.extents[&f]) {
                self.points.insert((f, point), v);
            }
        }
        self
    }

    fn enumerate(&self, f: UfId, args: &mut Vec<i64>, out: &mut Vec<Vec<i64>>) {
        let domain = &self.env.ufs[f].domain;
        if args.len() == domain.len() {
            out.push(args.clone());
            return;
        }
        for i in 0..self.value(domain[args.len()], args) {
            args.push(i);
            self.enumerate(f, args, out);
            args.pop();
        }
    }

    fn domain(&self, f: UfId, args: &mut Vec<i64>, out: &mut Vec<()>) -> Result<(), ()> {
        let domain = &self.env.ufs[f].domain;
        if args.len() == domain.len() {
            out.push(());
            return if out.len() > MAX_ENTRIES { Err(()) } else { Ok(()) };
        }
        for i in 0..self.value(domain[args.len()], args) {
            args.push(i);
            self.domain(f, args, out)?;
            args.pop();
        }
        Ok(())
    }

    fn value(&self, e: ExprId, args: &[i64]) -> i64 {
        let pool = &self.env.pool;
        match pool.get(e) {
            Expr::Int(v) => *v,
            Expr::Param(p) => self.param(*p),
            Expr::Arg(n) => args.get(*n as usize).copied().unwrap_or(0),
            Expr::Call(f, a) => {
                let a: Vec<i64> = a.iter().map(|&x| self.value(x, args)).collect();
                self.points.get(&(*f, a)).copied().unwrap_or(0)
            }
            Expr::Lit(l) => l.as_i64(),
            Expr::Select(c, a, b) => self.value(if self.value(*c, args) != 0 { *a } else { *b }, args),
            Expr::Bin(op, a, b) => {
                let (x, y) = (self.value(*a, args), self.value(*b, args));
                match op {
                    BinOp::Add => x.saturating_add(y),
                    BinOp::Sub => x.saturating_sub(y),
                    BinOp::Mul => x.saturating_mul(y),
                    BinOp::FloorDiv => cora_ir::expr::floor_div(x, y),
                    BinOp::Mod => cora_ir::expr::floor_mod(x, y),
                    BinOp::Min => x.min(y),
                    BinOp::Max => x.max(y),
                    BinOp::Lt => i64::from(x < y),
                    BinOp::Le => i64::from(x <= y),
                    BinOp::Eq => i64::from(x == y),
                    BinOp::Ne => i64::from(x != y),
                    BinOp::And => i64::from(x != 0 && y != 0),
                    BinOp::Or => i64::from(x != 0 || y != 0),
                    BinOp::Div | BinOp::Pow => 0,
                }
            }
            _ => 0,
        }
    }

    fn param(&self, p: ParamId) -> i64 {
        use cora_ir::EntityId;
        self.values.params.get(p.index()).copied().unwrap_or(0)
    }
}
