//! Statements, and the two functions of a kernel.

use cora_ir::loops::LoopKind;
use cora_ir::storage::{Kernel, Stmt, StorageModule};
use cora_ir::{Expr, ExprId, ExprPool, TensorId, VarId};

use super::EmitFault;
use super::builder::{Builder, Elem, Ty, Val};
use super::convert::memory_elem;
use super::expr::{Emitter, Formal, TensorOrParam};
use super::library::Library;
use super::slots::Slots;

/// The two functions of a kernel: a private one, which takes its buffers, and a public one, which finds them.
pub(super) struct Functions {
    /// The private one, from its arguments on. Arguments are in the order of their first use, so that kernels of one text
    /// differ in what they are given alone.
    body: String,
    /// What the public one reads of its arrays.
    reads: String,
    /// What it calls the private one with.
    call: String,
}

impl Functions {
    /// The private function but for remarks: kernels of the same one compute the same of what they are given.
    pub(super) fn key(&self) -> String {
        without_remarks(&self.body)
    }

    /// The text of a kernel's functions, the private one of which stands at `owner`'s.
    pub(super) fn text(&self, kernel: &Kernel, symbol: &str, owner: &str) -> String {
        let Self { body, reads, call } = self;
        let name = comment(&kernel.name);
        let private = if symbol == owner {
            format!("// kernel {name}\nllvm.func internal @{symbol}.body{body}")
        } else {
            format!("// kernel {name}, of the same code as {owner}\n")
        };
        format!(
            "{private}llvm.func @{symbol}(%bufs: !llvm.ptr {{llvm.readonly}}, %tables: !llvm.ptr {{llvm.readonly}}, \
             %scalars: !llvm.ptr {{llvm.readonly}}, %lo: i64, %hi: i64, %worker: i64) attributes {{no_unwind}} {{\n\
             {reads}  llvm.call @{owner}.body{call}\n  llvm.return\n}}\n"
        )
    }
}

/// Emits a kernel.
pub(super) fn emit(
    module: &StorageModule,
    slots: &Slots,
    scratch: (&mut Library, &mut ExprPool),
    kernel: &Kernel,
) -> Result<Functions, EmitFault> {
    let mut b = Builder::new(scratch.0.fma());
    let bound = Ty::scalar(Elem::I64);
    let range = (b.value(bound, 0), b.value(bound, 0));
    let stored = stored(&kernel.body);
    let mut s = Emitter::new(module, slots, scratch, b, stored);
    s.find_bases(&kernel.body);
    for (i, stmt) in kernel.body.iter().enumerate() {
        match stmt {
            Stmt::For { var, kind: LoopKind::Parallel, body, .. } => {
                let lets_before = kernel.body[..i].iter().all(|s| matches!(s, Stmt::Let { .. }));
                if !lets_before || i + 1 != kernel.body.len() {
                    return Err(EmitFault::NotLegal("a parallel loop that is not the kernel's last statement"));
                }
                s.repeat(*var, range, body)?;
            }
            _ => s.stmt(stmt)?,
        }
    }
    Ok(functions(s, kernel, range))
}

/// The tensors that statements write, ascending.
pub(super) fn stored(body: &[Stmt]) -> Vec<TensorId> {
    let mut all = Vec::new();
    for s in body {
        s.walk(&mut |s| all.extend(s.writes()));
    }
    all.sort_unstable();
    all.dedup();
    all
}

impl Emitter<'_> {
    pub(super) fn stmts(&mut self, body: &[Stmt]) -> Result<(), EmitFault> {
        let mut follows = false;
        self.forget_factors();
        let mut done = 0;
        while let [s, ..] = &body[done..] {
            done += 1;
            match s {
                Stmt::Tile(t) => self.tile(t, follows)?,
                s => {
                    let rest = &body[done - 1..];
                    if let Some(square) = self.square(rest) {
                        self.transposed(&square)?;
                        done += square.len() - 1;
                    } else if let Some(sums) = self.sums(rest) {
                        self.sum_together(&sums)?;
                        done += sums.len() - 1;
                    } else if let Some(vectors) = self.interleaved(rest) {
                        self.write_interleaved(&vectors)?;
                        done += vectors.len() - 1;
                    } else if let Some(zeros) = self.cleared(rest) {
                        done += zeros - 1;
                    } else {
                        self.stmt(s)?;
                    }
                    self.forget_factors();
                }
            }
            follows = s.goes_on();
        }
        self.forget_factors();
        Ok(())
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<(), EmitFault> {
        match stmt {
            Stmt::For { var, extent, kind: LoopKind::Serial, body } => {
                let end = self.emit_scalar(*extent, "the extent of a loop is a vector")?;
                let start = self.b.i64(0);
                self.repeat(*var, (start, end), body)
            }
            Stmt::For { kind: LoopKind::Parallel, .. } => Err(EmitFault::NotLegal("a parallel loop inside another")),
            Stmt::For { var, extent, kind: LoopKind::Bound(axis), body } => self.bound_loop(*axis, *var, *extent, body),
            Stmt::For { .. } => Err(EmitFault::NotLegal("a vector or unrolled loop")),
            Stmt::Barrier => self.barrier(),
            Stmt::Commit => self.commit(),
            Stmt::Wait { pending } => self.wait(*pending),
            Stmt::Atomic { tensor, index, combiner, value } => self.atomic((*tensor, *index), *combiner, *value),
            Stmt::Copy { tensor, index, value, mask } => self.copy(*tensor, *index, *value, *mask),
            Stmt::Shuffle { to, from, xor } => self.shuffle((*to, *from), *xor),
            Stmt::Gemm(g) => self.gemm(g),
            Stmt::Tile(t) => self.tile(t, false),
            Stmt::Beside(b) => self.beside(b),
            Stmt::Bulk(b) => self.bulk(b),
            Stmt::Await { tensor, slot } => self.await_box(*tensor, *slot),
            Stmt::Prefetch { tensor, index, locality } => self.prefetch(*tensor, *index, *locality),
            Stmt::If { cond, then, other } => self.branch(*cond, then, other),
            Stmt::Let { var, .. } if self.of_host.contains(var) => Ok(()),
            Stmt::Let { var, value } => {
                let nonnegative = self.nonnegative(*value);
                self.divisors.insert(*var, self.divisor(*value));
                let v = self.emit(*value)?;
                self.bind(*var, v, nonnegative);
                Ok(())
            }
            Stmt::Store { tensor, index, value, mask, rest } => {
                let stored: Vec<(TensorId, ExprId)> = [(*tensor, *value)].iter().chain(rest).copied().collect();
                match mask.filter(|&m| self.pool.ty(m).lanes == 1) {
                    // Everything below a false mask stays unread as well.
                    Some(cond) => self.guarded(cond, |s| s.store(&stored, *index, None))?,
                    None => self.store(&stored, *index, *mask)?,
                }
                let written: Vec<TensorId> = stored.iter().map(|s| s.0).collect();
                self.forget(&written);
                Ok(())
            }
        }
    }

    pub(super) fn guarded(
        &mut self,
        cond: ExprId,
        body: impl FnOnce(&mut Self) -> Result<(), EmitFault>,
    ) -> Result<(), EmitFault> {
        match self.pool.as_bool(cond) {
            Some(true) => return body(self),
            Some(false) => return Ok(()),
            None => {}
        }
        let cond = self.emit_scalar(cond, "a condition is a vector")?;
        self.open();
        body(self)?;
        let text = self.close();
        self.b.splice(&format!("scf.if {cond} {{"), &[(&text, "}")]);
        Ok(())
    }

    fn branch(&mut self, cond: ExprId, then: &[Stmt], other: &[Stmt]) -> Result<(), EmitFault> {
        if let Some(holds) = self.pool.as_bool(cond) {
            return self.stmts(if holds { then } else { other });
        }
        if other.is_empty() {
            return self.guarded(cond, |s| s.stmts(then));
        }
        let cond = self.emit_scalar(cond, "a condition is a vector")?;
        self.open();
        self.stmts(then)?;
        let then = self.close();
        self.open();
        self.stmts(other)?;
        let other = self.close();
        self.b.splice(&format!("scf.if {cond} {{"), &[(&then, "} else {"), (&other, "}")]);
        Ok(())
    }

    /// `for var in start..end`; nothing where `end <= start`.
    fn repeat(&mut self, var: VarId, (start, end): (Val, Val), body: &[Stmt]) -> Result<(), EmitFault> {
        let step = self.b.i64(1);
        let carried = self.carry_tiles(body)?;
        let sums = self.byte_sums(body).and_then(|sums| Some((self.known_surplus(&sums, var)?, sums)));
        let surplus = self.surplus_before(var, (start, end), body)?;
        // What the body writes is not what it was before, from the second iteration on and after the loop.
        self.forget(&stored(body));
        let i = self.b.value(Ty::scalar(Elem::I64), self.b.depth() + 1);
        self.bind(var, i, true);
        self.open();
        let around = self.more;
        self.more = sums.as_ref().map(|(surplus, _)| surplus.more).or(around);
        self.stmts(body)?;
        self.more = around;
        let text = self.close();
        let name = comment(&self.module.env.vars[var].name);
        // On a GPU code is fetched by every warp anew: what a schedule has unrolled is not unrolled once more.
        let whole = self.threads.is_some() && body.iter().map(statements).sum::<usize>() >= UNROLLED;
        let end_of_loop =
            if whole { "} {loop_annotation = #llvm.loop_annotation<unroll = <disable = true>>}" } else { "}" };
        let head = format!("scf.for {i} = {start} to {end} step {step} : i64 {{  // {name}");
        self.b.splice(&head, &[(&text, end_of_loop)]);
        self.surplus.truncate(self.surplus.len() - surplus);
        if let Some((surplus, sums)) = sums {
            self.take_off(&sums, &surplus)?;
        }
        self.store_carried(carried)
    }
}

/// Statements from which on a body counts as unrolled by its schedule.
const UNROLLED: usize = 32;

fn statements(s: &Stmt) -> usize {
    let mut n = 0;
    s.walk(&mut |_| n += 1);
    n
}

/// A text without its comments.
pub(super) fn without_remarks(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        out.push_str(line.split("  //").next().unwrap_or_default());
        out.push('\n');
    }
    out
}

/// A name that cannot end a comment.
pub(super) fn comment(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).collect()
}

/// Whether a statement writes other values than it reads. What a kernel copies or fills beside such statements are tiles: a
/// call takes longer, and loses the configuration of tile registers. What only moves elements moves many, which the library's
/// functions do without reading lines that they write.
fn computes(module: &StorageModule, s: &Stmt) -> bool {
    match s {
        Stmt::Store { value, .. } => {
            matches!(module.env.pool.get(*value), Expr::Un(..) | Expr::Bin(..) | Expr::Select(..) | Expr::Cast(..))
        }
        _ => false,
    }
}

/// The functions around the text.
fn functions(s: Emitter<'_>, kernel: &Kernel, (lo, hi): (Val, Val)) -> Functions {
    let Emitter { module, b, formals, registers, rows, tile_registers, stored, bases, .. } = s;
    let mut signature = Vec::new();
    let mut reads = String::new();
    let (mut actuals, mut types) = (Vec::new(), Vec::new());
    let mut formals: Vec<_> = formals.into_iter().collect();
    formals.sort_by_key(|f| f.1.0);
    for (n, (formal, (v, what))) in formals.iter().enumerate() {
        let (array, index, ty) = match formal {
            Formal::Buffer(i) => ("%bufs", i, "!llvm.ptr"),
            Formal::Table(i) => ("%tables", i, "!llvm.ptr"),
            Formal::Param(i) => ("%scalars", i, "i64"),
        };
        let attributes = match what {
            TensorOrParam::Param => " {llvm.noundef}".to_owned(),
            TensorOrParam::Tensor(t) => {
                let align = if matches!(formal, Formal::Buffer(_)) { "llvm.align = 64 : i64, " } else { "" };
                let readonly = if stored.contains(t) { "" } else { ", llvm.readonly" };
                format!(" {{{align}llvm.noalias, llvm.noundef{readonly}}}")
            }
        };
        signature.push(format!("{v}: {ty}{attributes}"));
        let size = if ty == "i64" { "i64" } else { "!llvm.ptr" };
        reads.push_str(&format!(
            "  %at{n} = llvm.getelementptr {array}[{index}] : (!llvm.ptr) -> !llvm.ptr, {size}\n  \
             %arg{n} = llvm.load %at{n} {{alignment = 8 : i64}} : !llvm.ptr -> {ty}{}\n",
            match what {
                TensorOrParam::Tensor(t) => format!("  // {}", comment(&module.env.tensors[*t].name)),
                TensorOrParam::Param => String::new(),
            },
        ));
        match what {
            TensorOrParam::Tensor(t) if bases.contains_key(t) => {
                let elem = memory_elem(module.env.tensors[*t].ty);
                reads.push_str(&format!(
                    "  %first{n} = llvm.mlir.constant({} : i64) : i64\n  \
                     %part{n} = llvm.getelementptr %arg{n}[%first{n}] : (!llvm.ptr, i64) -> !llvm.ptr, {elem}\n",
                    bases[t],
                ));
                actuals.push(format!("%part{n}"));
            }
            _ => actuals.push(format!("%arg{n}")),
        }
        types.push(ty);
    }
    signature.extend([lo, hi].map(|v| format!("{v}: i64 {{llvm.noundef}}")));
    actuals.extend(["%lo".to_owned(), "%hi".to_owned()]);
    types.extend(["i64", "i64"]);
    let mut entry = String::new();
    if !registers.is_empty() || !rows.is_empty() || !tile_registers.slots.is_empty() {
        entry.push_str("  %one = arith.constant 1 : i64\n");
        registers.iter().for_each(|(_, _, text)| entry.push_str(text));
        rows.iter().for_each(|text| entry.push_str(text));
        tile_registers.slots.iter().for_each(|text| entry.push_str(text));
    }
    let tiles = !tile_registers.slots.is_empty() || kernel.body.iter().any(|s| s.any(&mut |s| computes(module, s)));
    let calls = if tiles { ", passthrough = [\"no-builtin-memset\", \"no-builtin-memcpy\"]" } else { "" };
    let body = format!(
        "({}) attributes {{no_inline, no_unwind{calls}}} {{\n{entry}{}  llvm.return\n}}\n",
        signature.join(", "),
        b.finish(),
    );
    Functions { body, reads, call: format!("({}) : ({}) -> ()", actuals.join(", "), types.join(", ")) }
}
