//! Lowers calls of uninterpreted functions to reads of prelude tables.
//!
//! Only functions that are still called get a table, and each gets one: what simplification made
//! disappear is never built. A search becomes an inline search in its prefix sum's table.
//!
//! Requires: simplified offsets. Ensures: no `Call` is left in kernels, buffer sizes, offsets or
//! tables; tables are in the order in which they must be built. Runs after `to_storage`.

use super::layout::{Layout, sizes};
use cora_ir::expr::Args;
use cora_ir::storage::{StorageModule, Stmt, Table};
use cora_ir::{Env, Expr, ExprId, Role, ScalarType, Scope, Tensor, TensorDim, TensorId, UfDef, UfId};
use rustc_hash::FxHashMap;

/// Replaces every call in `m` by a table read, and makes the tables.
pub fn lower_functions(m: &mut StorageModule) {
    let mut cx = Functions { env: std::mem::take(&mut m.env), tables: Vec::new(), memo: FxHashMap::default() };
    // Extent functions are the batch's own tables; they are inputs whether read or not.
    for f in cx.env.ufs.ids().collect::<Vec<_>>() {
        if matches!(cx.env.ufs[f].def, UfDef::Extent { .. }) {
            cx.table(f);
        }
    }
    for b in &mut m.buffers {
        b.elems = cx.lower(b.elems);
        b.offset = b.offset.map(|o| cx.lower(o));
    }
    // Extents of the arguments' and results' dimensions: the host needs them.
    for t in cx.env.tensors.ids().collect::<Vec<_>>() {
        if cx.env.tensors[t].role != Role::Temp {
            for d in 0..cx.env.tensors[t].dims.len() {
                let dim = cx.env.tensors[t].dims[d].clone();
                cx.env.tensors[t].dims[d].extent = cx.lower(dim.extent);
                cx.env.tensors[t].dims[d].storage = cx.lower(dim.storage);
            }
        }
    }
    for k in &mut m.kernels {
        cx.stmts(&mut k.body);
    }
    m.tables = cx.tables;
    m.env = cx.env;
}

struct Functions {
    env: Env,
    tables: Vec<Table>,
    memo: FxHashMap<ExprId, ExprId>,
}

impl Functions {
    fn stmts(&mut self, body: &mut [Stmt]) {
        for s in body {
            match s {
                Stmt::For { extent, body, .. } => {
                    *extent = self.lower(*extent);
                    self.stmts(body);
                }
                Stmt::If { cond, then, other } => {
                    *cond = self.lower(*cond);
                    self.stmts(then);
                    self.stmts(other);
                }
                Stmt::Let { value, .. } => *value = self.lower(*value),
                Stmt::Store { index, value, mask, .. } => {
                    *index = self.lower(*index);
                    *value = self.lower(*value);
                    *mask = mask.map(|e| self.lower(e));
                }
            }
        }
    }

    fn lower(&mut self, e: ExprId) -> ExprId {
        if let Some(&done) = self.memo.get(&e) {
            return done;
        }
        let kids: Args = self.env.pool.children(e).iter().map(|&k| self.lower(k)).collect();
        let out = match *self.env.pool.get(e) {
            Expr::Call(f, _) => match self.env.ufs[f].def {
                UfDef::Search { sum } => self.search(sum, &kids),
                _ => {
                    let table = self.table(f);
                    let at = self.entry(f, &kids);
                    self.read(table, at)
                }
            },
            _ => self.env.pool.with_children(e, &kids),
        };
        self.memo.insert(e, out);
        out
    }

    fn read(&mut self, table: TensorId, at: ExprId) -> ExprId {
        let v = self.env.load(table, [at]);
        self.env.pool.cast(ScalarType::Index, v)
    }

    fn search(&mut self, sum: UfId, args: &[ExprId]) -> ExprId {
        let table = self.table(sum);
        let (&value, outer) = args.split_last().expect("a search has at least one argument");
        let extent = *self.env.ufs[sum].domain.last().expect("a prefix sum has at least one argument");
        let extent = self.env.pool.instantiate(extent, outer);
        let len = self.lower(extent);
        let zero = self.env.pool.int(0);
        let first: Vec<ExprId> = outer.iter().copied().chain([zero]).collect();
        let base = self.entry(sum, &first);
        self.env.pool.search(table, base, len, value)
    }

    /// The box of a function's table: its domain, one longer in the last dimension for sums.
    fn box_of(&mut self, f: UfId) -> Vec<ExprId> {
        let domain = self.env.ufs[f].domain.clone();
        let mut extents = sizes(&mut self.env, &domain);
        if matches!(self.env.ufs[f].def, UfDef::PrefixSum { .. })
            && let Some(last) = extents.last_mut()
        {
            let one = self.env.pool.int(1);
            *last = self.env.pool.add(*last, one);
        }
        if matches!(self.env.ufs[f].def, UfDef::Max { .. }) {
            extents.clear();
        }
        extents
    }

    /// Flat position of the entry for `args` (already lowered).
    fn entry(&mut self, f: UfId, args: &[ExprId]) -> ExprId {
        let extents = self.box_of(f);
        let name = format!("{}.row", self.env.ufs[f].name);
        let offset = Layout { extents: &extents, name: &name }.offset(&mut self.env);
        let offset = self.lower(offset);
        self.env.pool.instantiate(offset, args)
    }

    fn table(&mut self, f: UfId) -> TensorId {
        if let Some(t) = self.tables.iter().find(|t| t.uf == f) {
            return t.tensor;
        }
        let uf = self.env.ufs[f].clone();
        let extents = self.box_of(f);
        let name = format!("{}.row", uf.name);
        let entries = Layout { extents: &extents, name: &name }.volume(&mut self.env, 0);
        let entries = self.lower(entries);
        let domain = uf.domain.iter().map(|&e| self.lower(e)).collect();
        let body = uf.def.body().map(|b| self.lower(b));
        let ty = if fits_i32(&mut self.env, f) { ScalarType::I32 } else { ScalarType::I64 };
        let name = self.env.fresh_tensor_name(&uf.name);
        let dims = vec![TensorDim { name: "entry".to_owned(), extent: entries, storage: entries }];
        let tensor =
            self.env.tensors.push(Tensor { name, ty, dims, role: Role::Temp, scope: Scope::Global, range: None });
        self.tables.push(Table { uf: f, tensor, entries, domain, body });
        tensor
    }
}

/// Whether every value of the function provably fits 32 bits, from declared ranges alone.
fn fits_i32(env: &mut Env, f: UfId) -> bool {
    greatest_of(env, f).is_some_and(|v| v <= i64::from(i32::MAX)) && least_of(env, f)
}

fn least_of(env: &Env, f: UfId) -> bool {
    match env.ufs[f].def {
        UfDef::Extent { lo, .. } => env.pool.as_int(lo).is_some_and(|v| v >= i64::from(i32::MIN)),
        _ => true,
    }
}

fn greatest_of(env: &mut Env, f: UfId) -> Option<i64> {
    let uf = env.ufs[f].clone();
    match uf.def {
        UfDef::Extent { hi, .. } => greatest(env, hi, &[]),
        UfDef::PrefixSum { body } => {
            let n = domain_bounds(env, &uf.domain)?;
            let b = greatest(env, body, &n)?;
            n.last()?.checked_mul(b.max(0))
        }
        UfDef::Max { body } | UfDef::Map { body } => {
            let n = domain_bounds(env, &uf.domain)?;
            Some(greatest(env, body, &n)?.max(0))
        }
        UfDef::SortDesc { .. } | UfDef::Search { .. } => domain_bounds(env, &uf.domain)?.first().copied(),
    }
}

fn domain_bounds(env: &mut Env, domain: &[ExprId]) -> Option<Vec<i64>> {
    let mut out: Vec<i64> = Vec::new();
    for &d in domain {
        let b = greatest(env, d, &out)?.max(0);
        out.push(b);
    }
    Some(out)
}

/// The greatest value of `e`, from declared ranges, where argument j is below `args[j]`.
fn greatest(env: &mut Env, e: ExprId, args: &[i64]) -> Option<i64> {
    use cora_ir::BinOp;
    match env.pool.get(e).clone() {
        Expr::Int(v) => Some(v),
        Expr::Param(p) => Some(env.params[p].hi),
        Expr::Arg(n) => args.get(n as usize).map(|&b| (b - 1).max(0)),
        Expr::Call(f, _) => greatest_of(env, f),
        Expr::Bin(BinOp::Add, a, b) => greatest(env, a, args)?.checked_add(greatest(env, b, args)?),
        Expr::Bin(BinOp::Mul, a, b) => greatest(env, a, args)?.max(0).checked_mul(greatest(env, b, args)?.max(0)),
        Expr::Bin(BinOp::Sub, a, b) => {
            let c = env.pool.as_int(b).unwrap_or(0);
            greatest(env, a, args)?.checked_sub(c)
        }
        Expr::Bin(BinOp::FloorDiv, a, b) => {
            let c = env.pool.as_int(b).filter(|&c| c > 0).unwrap_or(1);
            Some(cora_ir::expr::floor_div(greatest(env, a, args)?, c))
        }
        Expr::Bin(BinOp::Min, a, b) => match (greatest(env, a, args), greatest(env, b, args)) {
            (Some(x), Some(y)) => Some(x.min(y)),
            (x, y) => x.or(y),
        },
        Expr::Bin(BinOp::Max, a, b) | Expr::Select(_, a, b) => {
            Some(greatest(env, a, args)?.max(greatest(env, b, args)?))
        }
        Expr::Bin(BinOp::Mod, a, b) => {
            env.pool.as_int(b).filter(|&c| c > 0).map(|c| c - 1).or_else(|| greatest(env, a, args))
        }
        _ => None,
    }
}
