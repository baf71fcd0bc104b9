//! Builds the prelude's tables on the device, so that new lengths need no word from the host.
//!
//! ```text
//! table @row.t = @row entries = M + 1 domain = [M] body = index(@lens.t[$0])
//!   =>  kernel @row.table { for %t in 0..256 thread.x { .. } for %t in 0..256 thread.x { .. @row.t[..] = .. } }
//!       kernel @S { for %f in 0..(index(@row.t[M]) + 63) // 64 block.x { if %f < (index(@row.t[M]) + 63) // 64 { .. } } }
//! ```
//!
//! Each table but those that a batch gives has a kernel, in the order in which the host would build them, before all other
//! kernels: a prefix sum in one block, each thread a stretch; a greatest value likewise; the entries of a map one by one;
//! of a permutation each index by how many go before it. Of a function of several arguments each thread makes the rows of a
//! stretch of the first one: threads first count the entries of theirs, so that each knows where its own begin. What the
//! host computes from its own tables, sizes of buffers and numbers of blocks, is then for the longest rows that may come
//! (`capacity`): blocks beyond the present ones do nothing. Tables that only the host reads have no kernel.
//!
//! Requires: tables made, block loops shaped, sizes enough for shorter rows. Ensures: on any lengths of which none is above
//! those that sizes were computed for, the same results. Runs after `shape-blocks` where it is asked for.

use super::layout::sizes;
use cora_ir::loops::{Axis, LoopKind};
use cora_ir::storage::{Buffer, Kernel, Stmt, StorageModule, Table};
use cora_ir::types::Combiner;
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, ScalarType, Scope, Tensor, TensorDim, TensorId, UfDef, VarId};

/// Threads of a block that builds a table.
const THREADS: i64 = 256;

/// Adds the kernels that build the tables.
///
/// # Errors
/// `E0614` boxes that end with zeros where a tensor does whose size comes with the lengths.
pub fn device_prelude(m: &mut StorageModule) -> Result<(), Diagnostic> {
    let tables: Vec<TensorId> = m.tables.iter().map(|t| t.tensor).collect();
    for k in &m.kernels {
        let mut copied = None;
        k.body.iter().for_each(|s| {
            s.walk(&mut |s| {
                let Stmt::Bulk(b) = s else { return };
                let from_tables = |e| {
                    m.env.pool.any(e, &mut |n| matches!(n, Expr::Load { .. } | Expr::Search { .. } | Expr::Call(..)))
                };
                if b.zeros && b.dims.iter().any(|d| from_tables(d.size)) {
                    copied = Some(b.from);
                }
            });
        });
        if let Some(t) = copied {
            let what = format!("the host tells the copy engine how large `{}` is", m.env.tensors[t].name);
            return Err(refusal(what, "build the prelude on the host, or copy without bulk_copy"));
        }
    }
    for k in &mut m.kernels {
        guard_blocks(&mut m.env, &tables, &mut k.body);
    }
    let built = needed(m);
    let mut kernels = Vec::new();
    for t in &built {
        let mut b = Build::new(m, t);
        let body = b.table(t);
        let name = format!("{}.table", m.env.ufs[t.uf].name);
        kernels.push(Kernel { name, body });
    }
    m.kernels.splice(0..0, kernels);
    Ok(())
}

fn refusal(what: String, hint: &str) -> Diagnostic {
    Diagnostic::new("E0614", format!("the prelude cannot be built on the device: {what}")).hint(hint)
}

/// Whether the values of a table come with the batch.
fn given(env: &Env, t: &Table) -> bool {
    matches!(env.ufs[t.uf].def, UfDef::Extent { .. })
}

/// Blocks that the present lengths have no use for do nothing.
fn guard_blocks(env: &mut Env, tables: &[TensorId], body: &mut [Stmt]) {
    for s in body {
        s.bodies_mut().for_each(|b| guard_blocks(env, tables, b));
        if let Stmt::For { var, extent, kind, body } = s
            && kind.is_block()
            && env.pool.any(*extent, &mut |n| matches!(n, Expr::Load { tensor, .. } if tables.contains(tensor)))
            && !guarded(env, *var, body)
        {
            let v = env.pool.var(*var);
            let cond = env.pool.lt(v, *extent);
            let then = std::mem::take(body);
            *body = vec![Stmt::If { cond, then, other: Vec::new() }];
        }
    }
}

/// Whether blocks beyond the present lengths already do nothing.
fn guarded(env: &Env, var: VarId, body: &[Stmt]) -> bool {
    matches!(body, [Stmt::If { cond, other, .. }] if other.is_empty()
        && matches!(*env.pool.get(*cond), Expr::Bin(BinOp::Lt, a, _) if env.pool.as_var(a) == Some(var)))
}

/// The tables that kernels read, and those from which these are made, but the given ones. The others say how large
/// something is, and only the host reads them.
fn needed(m: &StorageModule) -> Vec<Table> {
    let mut read: Vec<TensorId> = Vec::new();
    let mut note = |e: ExprId| {
        m.env.pool.walk(e, &mut |_, n| match n {
            Expr::Load { tensor, .. } | Expr::Search { table: tensor, .. } => read.push(*tensor),
            _ => {}
        });
    };
    for s in m.kernels.iter().flat_map(|k| &k.body) {
        s.walk(&mut |s| match s {
            Stmt::For { kind, .. } if kind.is_block() => {}
            s => s.exprs().into_iter().for_each(&mut note),
        });
    }
    let mut out: Vec<Table> = Vec::new();
    for t in m.tables.iter().rev().filter(|t| !given(&m.env, t)) {
        if read.contains(&t.tensor) {
            for &e in t.domain.iter().chain(&t.body).chain([&t.entries]) {
                m.env.pool.walk(e, &mut |_, n| match n {
                    Expr::Load { tensor, .. } | Expr::Search { table: tensor, .. } => read.push(*tensor),
                    _ => {}
                });
            }
            out.push(t.clone());
        }
    }
    out.reverse();
    out
}

/// The kernel of one table under way.
struct Build<'a> {
    env: &'a mut Env,
    buffers: &'a mut Vec<Buffer>,
    /// A thread's sum so far, where its next entry goes, and a sum of each thread.
    own: TensorId,
    place: TensorId,
    each: TensorId,
}

/// Makes the statements of a row from its arguments and the number of its values.
type EachRow<'f, 'a> = dyn FnMut(&mut Build<'a>, &[ExprId], ExprId) -> Vec<Stmt> + 'f;

impl<'a> Build<'a> {
    fn new(m: &'a mut StorageModule, t: &Table) -> Self {
        let env = &mut m.env;
        let name = env.ufs[t.uf].name.clone();
        let mut buffer = |what: &str, scope: Scope, elems: i64| {
            let elems = env.pool.int(elems);
            let name = env.fresh_tensor_name(&format!("{name}.{what}"));
            let dims = vec![TensorDim::new("entry", elems)];
            let tensor = env.tensors.push(Tensor { scope, ..Tensor::temp(name, ScalarType::I64, dims) });
            m.buffers.push(Buffer { tensor, elems, offset: None });
            tensor
        };
        let own = buffer("own", Scope::Reg, 1);
        let (place, each) = (buffer("place", Scope::Reg, 1), buffer("each", Scope::Shared, THREADS));
        Self { env, buffers: &mut m.buffers, own, place, each }
    }

    fn table(&mut self, t: &Table) -> Vec<Stmt> {
        let domain = sizes(self.env, &t.domain);
        let body = t.body.unwrap_or_else(|| self.env.pool.int(0));
        let stmts = match (self.env.ufs[t.uf].def.clone(), domain.as_slice()) {
            (UfDef::Max { .. }, _) => self.greatest(t.tensor, &domain, body),
            (UfDef::PrefixSum { .. }, &[n]) => self.sums(t.tensor, n, body),
            (UfDef::SortDesc { .. }, &[n]) => self.entries(n, |b, x| {
                let zero = b.env.pool.int(0);
                b.ranked((t.tensor, zero), n, (body, &[]), x)
            }),
            (_, []) => {
                let (zero, one) = (self.env.pool.int(0), self.env.pool.int(1));
                self.entries(one, |b, _| vec![b.put(t.tensor, zero, body)])
            }
            (_, &[n]) => self.entries(n, |b, x| {
                let value = b.env.pool.instantiate(body, &[x]);
                vec![b.put(t.tensor, x, value)]
            }),
            (def, _) => self.rows(t.tensor, &domain, body, &def),
        };
        // What no statement uses any more is no buffer.
        let used = |b: TensorId| stmts.iter().any(|s| s.any(&mut |s| s.writes().contains(&b)));
        let own = [self.own, self.place, self.each];
        self.buffers.retain(|b| !own.contains(&b.tensor) || used(b.tensor));
        stmts
    }

    fn for_loop(
        &mut self,
        name: &str,
        extent: ExprId,
        kind: LoopKind,
        body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>,
    ) -> Stmt {
        let var = self.env.new_var(name);
        let v = self.env.pool.var(var);
        Stmt::For { var, extent, kind, body: body(self, v) }
    }

    fn threads(&mut self, body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>) -> Stmt {
        let n = self.env.pool.int(THREADS);
        self.for_loop("t", n, LoopKind::Bound(Axis::ThreadX), body)
    }

    /// `to = to op value`, or `to = value`.
    fn set(&mut self, to: TensorId, op: Option<Combiner>, value: ExprId) -> Stmt {
        let index = self.env.pool.int(0);
        let value = self.env.pool.cast(ScalarType::I64, value);
        let old = self.env.load(to, [index]);
        let value = op.map_or(value, |c| self.env.pool.bin(c.op(), old, value));
        Stmt::Store { tensor: to, index, value, mask: None, rest: vec![] }
    }

    fn collect(&mut self, op: Option<Combiner>, value: ExprId) -> Stmt {
        self.set(self.own, op, value)
    }

    fn get(&mut self, of: TensorId) -> ExprId {
        let zero = self.env.pool.int(0);
        let value = self.env.load(of, [zero]);
        self.env.pool.cast(ScalarType::Index, value)
    }

    fn own(&mut self) -> ExprId {
        self.get(self.own)
    }

    fn put(&mut self, tensor: TensorId, index: ExprId, value: ExprId) -> Stmt {
        let value = self.env.pool.cast(self.env.tensors[tensor].ty, value);
        Stmt::Store { tensor, index, value, mask: None, rest: vec![] }
    }

    /// The positions below `n` of a thread's stretch, one after the other.
    fn stretch(&mut self, t: ExprId, n: ExprId, body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>) -> Stmt {
        let (more, threads) = (self.env.pool.int(THREADS - 1), self.env.pool.int(THREADS));
        let up = self.env.pool.add(n, more);
        let each = self.env.pool.floor_div(up, threads);
        self.for_loop("j", each, LoopKind::Serial, |b, j| {
            let first = b.env.pool.mul(t, each);
            let x = b.env.pool.add(first, j);
            let cond = b.env.pool.lt(x, n);
            vec![Stmt::If { cond, then: body(b, x), other: Vec::new() }]
        })
    }

    /// Each thread combines its stretch of `0..n`, and leaves the result to all.
    fn partial(&mut self, n: ExprId, term: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>) -> Stmt {
        self.threads(|b, t| {
            let zero = b.env.pool.int(0);
            let begin = b.collect(None, zero);
            let terms = b.stretch(t, n, term);
            let own = b.own();
            vec![begin, terms, b.put(b.each, t, own)]
        })
    }

    /// `own` combined with what threads before `end` left.
    fn others(&mut self, op: Combiner, end: ExprId) -> Stmt {
        self.for_loop("u", end, LoopKind::Serial, |b, u| {
            let theirs = b.env.load(b.each, [u]);
            vec![b.collect(Some(op), theirs)]
        })
    }

    fn sums(&mut self, table: TensorId, n: ExprId, body: ExprId) -> Vec<Stmt> {
        let one = self.env.pool.int(1);
        let entries = self.env.pool.add(n, one);
        let add = |b: &mut Self, x: ExprId| {
            let value = b.env.pool.instantiate(body, &[x]);
            let cond = b.env.pool.lt(x, n);
            Stmt::If { cond, then: vec![b.collect(Some(Combiner::Sum), value)], other: Vec::new() }
        };
        let first = self.partial(entries, |b, x| vec![add(b, x)]);
        let second = self.threads(|b, t| {
            let zero = b.env.pool.int(0);
            let begin = b.collect(None, zero);
            let before = b.others(Combiner::Sum, t);
            let rest = b.stretch(t, entries, |b, x| {
                let own = b.own();
                vec![b.put(table, x, own), add(b, x)]
            });
            vec![begin, before, rest]
        });
        vec![first, second]
    }

    fn greatest(&mut self, table: TensorId, domain: &[ExprId], body: ExprId) -> Vec<Stmt> {
        let n = domain.first().copied().unwrap_or_else(|| self.env.pool.int(1));
        let inner = domain.get(1..).unwrap_or_default().to_vec();
        let first = self.partial(n, |b, x| b.over(&inner, vec![x], body));
        let second = self.threads(|b, t| {
            let (zero, one, all) = (b.env.pool.int(0), b.env.pool.int(1), b.env.pool.int(THREADS));
            let begin = b.collect(None, zero);
            let before = b.others(Combiner::Max, all);
            let own = b.own();
            let cond = b.env.pool.lt(t, one);
            let then = vec![begin, before, b.put(table, zero, own)];
            vec![Stmt::If { cond, then, other: Vec::new() }]
        });
        vec![first, second]
    }

    /// The entries of a function of several arguments, in order: each thread those of a stretch of the first one.
    fn rows(&mut self, table: TensorId, domain: &[ExprId], body: ExprId, def: &UfDef) -> Vec<Stmt> {
        let (n, inner) = (domain[0], &domain[1..]);
        let sums = matches!(def, UfDef::PrefixSum { .. });
        let first = self.partial(n, |b, x| {
            b.each_row(inner, vec![x], &mut |b, _, n| {
                let more = b.env.pool.int(i64::from(sums));
                let entries = b.env.pool.add(n, more);
                vec![b.collect(Some(Combiner::Sum), entries)]
            })
        });
        let second = self.threads(|b, t| {
            let zero = b.env.pool.int(0);
            let begin = b.collect(None, zero);
            let before = b.others(Combiner::Sum, t);
            let own = b.own();
            let here = b.set(b.place, None, own);
            let rest = b.stretch(t, n, |b, x| {
                b.each_row(inner, vec![x], &mut |b, args, n| match def {
                    UfDef::PrefixSum { .. } => b.sums_of_row(table, args, n, body),
                    UfDef::SortDesc { .. } => b.order_of_row(table, args, n, body),
                    _ => b.row(table, args, n, body),
                })
            });
            vec![begin, before, here, rest]
        });
        vec![first, second]
    }

    /// A statement for each row: of the arguments but the last, and of the number of values of that.
    fn each_row(&mut self, inner: &[ExprId], args: Vec<ExprId>, row: &mut EachRow<'_, 'a>) -> Vec<Stmt> {
        let Some((&extent, rest)) = inner.split_first() else { return Vec::new() };
        let extent = self.env.pool.instantiate(extent, &args);
        if rest.is_empty() {
            return row(self, &args, extent);
        }
        let body = |b: &mut Self, i| b.each_row(rest, args.iter().copied().chain([i]).collect(), row);
        vec![self.for_loop("i", extent, LoopKind::Serial, body)]
    }

    /// A value to where the thread's next entry goes.
    fn append(&mut self, table: TensorId, value: ExprId) -> Vec<Stmt> {
        let (at, one) = (self.get(self.place), self.env.pool.int(1));
        vec![self.put(table, at, value), self.set(self.place, Some(Combiner::Sum), one)]
    }

    fn row(&mut self, table: TensorId, args: &[ExprId], n: ExprId, body: ExprId) -> Vec<Stmt> {
        vec![self.for_loop("x", n, LoopKind::Serial, |b, x| {
            let all: Vec<ExprId> = args.iter().copied().chain([x]).collect();
            let value = b.env.pool.instantiate(body, &all);
            b.append(table, value)
        })]
    }

    /// The sums of a row: 0, and then what is before each further position.
    fn sums_of_row(&mut self, table: TensorId, args: &[ExprId], n: ExprId, body: ExprId) -> Vec<Stmt> {
        let zero = self.env.pool.int(0);
        let mut out = vec![self.collect(None, zero)];
        out.extend(self.append(table, zero));
        out.push(self.for_loop("x", n, LoopKind::Serial, |b, x| {
            let all: Vec<ExprId> = args.iter().copied().chain([x]).collect();
            let value = b.env.pool.instantiate(body, &all);
            let mut each = vec![b.collect(Some(Combiner::Sum), value)];
            let own = b.own();
            each.extend(b.append(table, own));
            each
        }));
        out
    }

    /// The order of a row: each index at its place.
    fn order_of_row(&mut self, table: TensorId, args: &[ExprId], n: ExprId, key: ExprId) -> Vec<Stmt> {
        let ranks = self.for_loop("x", n, LoopKind::Serial, |b, x| {
            let first = b.get(b.place);
            b.ranked((table, first), n, (key, args), x)
        });
        vec![ranks, self.set(self.place, Some(Combiner::Sum), n)]
    }

    /// The greatest of `own` and `body` over the dimensions that are left, whose extents are over `args`.
    fn over(&mut self, inner: &[ExprId], args: Vec<ExprId>, body: ExprId) -> Vec<Stmt> {
        let Some((&extent, rest)) = inner.split_first() else {
            let value = self.env.pool.instantiate(body, &args);
            return vec![self.collect(Some(Combiner::Max), value)];
        };
        let extent = self.env.pool.instantiate(extent, &args);
        vec![
            self.for_loop("i", extent, LoopKind::Serial, |b, i| {
                b.over(rest, args.into_iter().chain([i]).collect(), body)
            }),
        ]
    }

    /// A thread for each of `n` entries.
    fn entries(&mut self, n: ExprId, entry: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>) -> Vec<Stmt> {
        let (more, threads) = (self.env.pool.int(THREADS - 1), self.env.pool.int(THREADS));
        let up = self.env.pool.add(n, more);
        let blocks = self.env.pool.floor_div(up, threads);
        vec![self.for_loop("b", blocks, LoopKind::Bound(Axis::BlockX), |b, block| {
            vec![b.threads(|b, t| {
                let first = b.env.pool.mul(block, threads);
                let x = b.env.pool.add(first, t);
                let cond = b.env.pool.lt(x, n);
                vec![Stmt::If { cond, then: entry(b, x), other: Vec::new() }]
            })]
        })]
    }

    /// Index `x` of a row of `n` at its place in the table from `first`: after all with a greater key, and those before it
    /// with the same.
    fn ranked(
        &mut self,
        (table, first): (TensorId, ExprId),
        n: ExprId,
        (key, args): (ExprId, &[ExprId]),
        x: ExprId,
    ) -> Vec<Stmt> {
        let zero = self.env.pool.int(0);
        let begin = self.collect(None, zero);
        let count = self.for_loop("j", n, LoopKind::Serial, |b, j| {
            let [own, other] = [x, j].map(|i| {
                let all: Vec<ExprId> = args.iter().copied().chain([i]).collect();
                b.env.pool.instantiate(key, &all)
            });
            let p = &mut b.env.pool;
            let (greater, same, earlier) = (p.lt(own, other), p.bin(BinOp::Eq, own, other), p.lt(j, x));
            let tie = p.and(same, earlier);
            let cond = p.bin(BinOp::Or, greater, tie);
            let one = p.int(1);
            vec![Stmt::If { cond, then: vec![b.collect(Some(Combiner::Sum), one)], other: Vec::new() }]
        });
        let place = self.own();
        let at = self.env.pool.add(first, place);
        vec![begin, count, self.put(table, at, x)]
    }
}
