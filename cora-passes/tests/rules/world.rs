//! Programs' worth of parameters, functions and loops for the tests of this directory.

use cora_ir::env::Param;
use cora_ir::{Env, ExprId, ParamId, UfDef, UfId, VarId};

/// A batch of `M` sequences: lens, its prefix sums, searches, a maximum and a sorted order.
pub struct World {
    pub env: Env,
    pub m: ExprId,
    pub lens: UfId,
    /// Sum of `lens`.
    pub p: UfId,
    /// Inverse of `p`.
    pub s: UfId,
    /// Sum of `lens` squared.
    pub p2: UfId,
    /// Sum of `lens` rounded up to 16.
    pub p16: UfId,
    /// Inverse of `p16`.
    pub s16: UfId,
    /// Greatest `lens`.
    pub longest: UfId,
    /// Order of rows by length.
    pub order: UfId,
}

impl World {
    pub fn new() -> Self {
        let mut env = Env::default();
        let m: ParamId = env.params.push(Param { name: "M".into(), lo: 0, hi: 4096 });
        let m = env.pool.param(m);
        let (zero, most) = (env.pool.int(0), env.pool.int(512));
        let lens = env.uf("lens", vec![m], UfDef::Extent { lo: zero, hi: most });
        let a0 = env.pool.arg(0);
        let len = env.pool.call(lens, [a0]);
        let p = env.uf("p", vec![m], UfDef::PrefixSum { body: len });
        let total = env.pool.call(p, [m]);
        let s = env.uf("s", vec![total], UfDef::Search { sum: p });
        let square = env.pool.mul(len, len);
        let p2 = env.uf("p2", vec![m], UfDef::PrefixSum { body: square });
        let padded = env.pool.round_up(len, 16);
        let p16 = env.uf("p16", vec![m], UfDef::PrefixSum { body: padded });
        let total16 = env.pool.call(p16, [m]);
        let s16 = env.uf("s16", vec![total16], UfDef::Search { sum: p16 });
        let longest = env.uf("longest", vec![m], UfDef::Max { body: len });
        let order = env.uf("order", vec![m], UfDef::SortDesc { key: len });
        Self { env, m, lens, p, s, p2, p16, s16, longest, order }
    }

    pub fn var(&mut self, name: &str) -> (VarId, ExprId) {
        let v = self.env.new_var(name);
        (v, self.env.pool.var(v))
    }
    pub fn int(&mut self, v: i64) -> ExprId {
        self.env.pool.int(v)
    }
    pub fn call(&mut self, f: UfId, x: ExprId) -> ExprId {
        self.env.pool.call(f, [x])
    }
    /// `x * k + y`
    pub fn tile(&mut self, x: ExprId, k: i64, y: ExprId) -> ExprId {
        let k = self.env.pool.int(k);
        let xk = self.env.pool.mul(x, k);
        self.env.pool.add(xk, y)
    }
}

/// The expression in infix text.
pub fn show(env: &Env, e: ExprId) -> String {
    use cora_ir::Expr;
    let kids: Vec<String> = env.pool.children(e).iter().map(|&k| show(env, k)).collect();
    match env.pool.get(e) {
        Expr::Int(v) => v.to_string(),
        Expr::Lit(l) => l.as_f64().to_string(),
        Expr::Var(v) => env.vars[*v].name.clone(),
        Expr::Param(p) => env.params[*p].name.clone(),
        Expr::Arg(n) => format!("arg{n}"),
        Expr::Call(f, _) => format!("{}({})", env.ufs[*f].name, kids.join(", ")),
        Expr::Un(op, _) => format!("{}({})", op.name(), kids[0]),
        Expr::Bin(op, ..) => format!("({} {} {})", kids[0], op.symbol(), kids[1]),
        Expr::Select(..) => format!("select({})", kids.join(", ")),
        other => format!("{other:?}"),
    }
}
