//! Kernels that run on a grid of blocks and threads: one function each, for NVIDIA GPUs.
//!
//! ```text
//! for %b in 0..%n block.x { for %t in 0..256 thread.x { if %t < %m { .. } } barrier .. }
//!
//! llvm.func @k(%0: !llvm.ptr {..}, ..) attributes {nvvm.kernel, nvvm.reqntid = array<i32: 256, 1, 1>} {
//!   %1 = nvvm.read.ptx.sreg.ctaid.x : i32  ..  %2 = nvvm.read.ptx.sreg.tid.x : i32  ..
//!   scf.if .. { .. }   nvvm.barrier
//! ```
//!
//! A block loop becomes the block's number: the launch has as many blocks as the loop has iterations.
//! A thread loop becomes the thread's number, under a condition where the block has more threads.
//! Private buffers become stack slots, which LLVM turns into registers; shared ones are in the block's
//! shared memory, statically up to 48 KiB, else all in one dynamic array.

use cora_ir::loops::Axis;
use cora_ir::storage::{Kernel, Stmt, StorageModule};
use cora_ir::{Combiner, Expr, ExprId, ExprPool, ScalarType, TensorId, VarId};

use super::EmitFault;
use super::builder::{Builder, Cmp, Elem, Ty, Val};
use super::bulk::{Ring, TensorMap};
use super::convert::memory_elem;
use super::expr::{Emitter, Formal, TensorOrParam};
use super::kernel::{comment, stored, without_remarks};
use super::library::Library;
use super::slots::Slots;
use std::collections::HashSet;

/// Shared memory that a kernel may have without asking for it at launch.
const STATIC_SHARED: u64 = 48 << 10;

/// Alignment of shared buffers: the widest access.
const SHARED_ALIGN: u64 = 16;

/// What a kernel takes, in the order of its arguments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum GridArg {
    /// The address in a buffer that lies so many bytes behind its first element's.
    Buffer(u32, u64),
    /// The address of a table.
    Table(u32),
    /// The value of a parameter.
    Param(u32),
    /// A tensor map of the kernel's, 128 bytes: its place in [`TensorMap::all`].
    Map(u32),
}

/// What a GPU has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GridOptions {
    /// Copies from global to shared memory that go on beside the threads (`cp.async`).
    pub async_copies: bool,
}

/// How a kernel is launched, as far as its text decides it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GridKernel {
    /// The kernel's symbol.
    pub symbol: String,
    /// The symbol of the function that it runs, which kernels of the same code share: the first one's.
    pub function: String,
    /// What it takes.
    pub args: Vec<GridArg>,
    /// Threads of a block along x, y, z.
    pub threads: [u32; 3],
    /// Bytes of shared memory.
    pub shared: u64,
    /// Whether the launch must ask for them.
    pub dynamic: bool,
}

/// Stands for the symbol of the function in its text.
const OWN: &str = "@own.function";

/// A kernel's function, and what it is launched with.
pub(super) struct Function {
    /// [`OWN`] stands for its symbol.
    text: String,
    args: Vec<GridArg>,
    threads: [u32; 3],
    shared: u64,
    dynamic: bool,
}

impl Function {
    /// The function but for remarks: kernels of the same one compute the same of what they are given.
    pub(super) fn key(&self) -> String {
        without_remarks(&self.text)
    }

    pub(super) fn text(&self, kernel: &Kernel, symbol: &str) -> String {
        format!("// kernel {}\n{}", comment(&kernel.name), self.text.replace(OWN, &format!("@{symbol}")))
    }

    /// How a kernel is launched whose function has the symbol of `owner`.
    pub(super) fn launch(self, symbol: &str, owner: &str) -> GridKernel {
        let Self { args, threads, shared, dynamic, .. } = self;
        GridKernel { symbol: symbol.to_owned(), function: owner.to_owned(), args, threads, shared, dynamic }
    }
}

/// Emits a kernel.
pub(super) fn emit(
    module: &StorageModule,
    slots: &Slots,
    scratch: (&mut Library, &mut ExprPool),
    kernel: &Kernel,
    options: &GridOptions,
) -> Result<Function, EmitFault> {
    check_functions(module, kernel)?;
    let threads = kernel.threads(&module.env).ok_or(EmitFault::NotLegal("a thread loop of variable extent"))?;
    let mut b = Builder::new(scratch.0.fma());
    b.without_libm();
    let mut s = Emitter::new(module, slots, scratch, b, stored(&kernel.body));
    s.threads = Some(threads);
    s.async_copies = options.async_copies;
    s.of_host = of_host(module, kernel);
    s.maps = TensorMap::all(module, kernel).into_iter().map(|m| (m, None)).collect();
    s.find_bases(&kernel.body);
    s.stmts(&kernel.body)?;
    Ok(function(s, threads))
}

/// Names that only numbers of blocks need. The host computes those, so the kernel takes no table for them.
fn of_host(module: &StorageModule, kernel: &Kernel) -> Vec<VarId> {
    let (mut lets, mut exprs) = (Vec::new(), Vec::new());
    for s in &kernel.body {
        s.walk(&mut |s| match s {
            Stmt::Let { var, value } => lets.push((*var, *value)),
            Stmt::For { kind, .. } if kind.is_block() => {}
            _ => exprs.extend(s.exprs()),
        });
    }
    let mut used = HashSet::new();
    let visit = |used: &mut HashSet<VarId>, e| {
        module.env.pool.walk(e, &mut |_, n| {
            if let Expr::Var(v) = n {
                used.insert(*v);
            }
        });
    };
    exprs.into_iter().for_each(|e| visit(&mut used, e));
    // A name may be in the value of a later one.
    for (var, value) in lets.iter().rev() {
        if used.contains(var) {
            visit(&mut used, *value);
        }
    }
    lets.into_iter().map(|l| l.0).filter(|v| !used.contains(v)).collect()
}

/// Functions that have no expansion end as calls of libm, which a GPU does not have.
fn check_functions(module: &StorageModule, kernel: &Kernel) -> Result<(), EmitFault> {
    let mut fault = None;
    let pool = &module.env.pool;
    let mut check = |e| {
        pool.walk(e, &mut |id, n| {
            if matches!(n, Expr::Bin(cora_ir::BinOp::Pow, ..)) && pool.ty(id).scalar == ScalarType::F64 {
                fault = Some(EmitFault::NoDeviceFunction("pow"));
            }
        });
    };
    for s in &kernel.body {
        s.walk(&mut |s| s.exprs().into_iter().for_each(&mut check));
    }
    fault.map_or(Ok(()), Err)
}

impl Emitter<'_> {
    /// A loop whose iterations are blocks or threads.
    pub(super) fn bound_loop(
        &mut self,
        axis: Axis,
        var: VarId,
        extent: cora_ir::ExprId,
        body: &[Stmt],
    ) -> Result<(), EmitFault> {
        let Some(threads) = self.threads else { return Err(EmitFault::NotLegal("a loop bound to a grid")) };
        let name = ["x", "y", "z"][axis.dimension()];
        let register = if axis.is_thread() { "tid" } else { "ctaid" };
        let read = format!("nvvm.read.ptx.sreg.{register}.{name} : i32");
        let narrow = self.b.op(Ty::scalar(Elem::I32), &read);
        let number = self.b.convert("arith.extui", narrow, Elem::I64);
        self.bind(var, number, true);
        if !axis.is_thread() {
            return self.stmts(body);
        }
        let n = self.pool.as_int(extent).ok_or(EmitFault::NotLegal("a thread loop of variable extent"))?;
        if n == threads[axis.dimension()] {
            return self.stmts(body);
        }
        let end = self.b.i64(n);
        let inside = self.b.cmpi(Cmp::Lt, false, number, end);
        self.open();
        self.stmts(body)?;
        let text = self.close();
        self.b.splice(&format!("scf.if {inside} {{"), &[(&text, "}")]);
        Ok(())
    }

    pub(super) fn barrier(&mut self) -> Result<(), EmitFault> {
        if self.threads.is_none() {
            return Err(EmitFault::NotLegal("a barrier"));
        }
        self.b.stmt("nvvm.barrier");
        self.barriers = true;
        // Other threads may have written any of them.
        let all = self.stored.clone();
        self.forget(&all);
        Ok(())
    }

    /// An exchange between the lanes of a warp, all of which come by: what stands outside loops over lanes is uniform.
    pub(super) fn shuffle(&mut self, (to, from): (TensorId, TensorId), xor: u32) -> Result<(), EmitFault> {
        if self.threads.is_none_or(|t| t[0] != cora_ir::storage::WARP) {
            return Err(EmitFault::NotLegal("an exchange between lanes in a block whose rows are no warps"));
        }
        let (source, target) = (self.pointer(from)?, self.pointer(to)?);
        let ty = Ty::scalar(memory_elem(self.module.env.tensors[from].ty));
        let v = self.load_at(source, ty);
        let v = match ty.elem.bits() {
            64 => {
                let whole = self.b.bitcast(v, Elem::I64);
                let by = self.b.i64(32);
                let low = self.b.convert("arith.trunci", whole, Elem::I32);
                let high = self.b.bin("arith.shrui", whole, by);
                let high = self.b.convert("arith.trunci", high, Elem::I32);
                let (low, high) = (self.butterfly(low, xor), self.butterfly(high, xor));
                let low = self.b.convert("arith.extui", low, Elem::I64);
                let high = self.b.convert("arith.extui", high, Elem::I64);
                let high = self.b.bin("arith.shli", high, by);
                self.b.bin("arith.ori", low, high)
            }
            32 => {
                let bits = self.b.bitcast(v, Elem::I32);
                self.butterfly(bits, xor)
            }
            n => {
                let small = if n == 16 { Elem::I16 } else { Elem::I8 };
                let bits = if ty.elem.is_float() { self.b.bitcast(v, small) } else { v };
                let wide = self.b.convert("arith.extui", bits, Elem::I32);
                let other = self.butterfly(wide, xor);
                self.b.convert("arith.trunci", other, small)
            }
        };
        let v = self.b.bitcast(v, ty.elem);
        self.store_at(v, target);
        self.forget(&[to]);
        Ok(())
    }

    /// An element combined with a value by one operation of memory, which other threads and blocks see whole. Nothing is
    /// ordered by it; its result is not used, so that the assembler takes the form without one (`RED`).
    pub(super) fn atomic(
        &mut self,
        (tensor, index): (TensorId, ExprId),
        combiner: Combiner,
        value: ExprId,
    ) -> Result<(), EmitFault> {
        if self.threads.is_none() {
            return Err(EmitFault::NotLegal("an atomic update"));
        }
        let v = self.stored_value(tensor, index, value)?;
        let ty = self.b.ty(v);
        let op = match (combiner, ty.elem.is_float()) {
            (Combiner::Sum, true) => "fadd",
            (Combiner::Sum, false) => "add",
            (Combiner::Min, false) => "min",
            (Combiner::Max, false) => "max",
            _ => return Err(EmitFault::NotLegal("an atomic update that memory does not do")),
        };
        let at = self.address(tensor, index)?;
        let pointer = Ty::scalar(Elem::Ptr);
        let at = self.b.op(pointer, &format!("llvm.addrspacecast {at} : !llvm.ptr to !llvm.ptr<1>"));
        self.b.op(ty, &format!("llvm.atomicrmw {op} {at}, {v} syncscope(\"device\") monotonic : !llvm.ptr<1>, {ty}"));
        self.forget(&[tensor]);
        Ok(())
    }

    /// A word of the lane whose number differs in the bits of `xor`.
    fn butterfly(&mut self, v: Val, xor: u32) -> Val {
        let word = Ty::scalar(Elem::I32);
        let (all, distance, clamp) = (self.b.int(word, -1), self.b.int(word, xor.into()), self.b.int(word, 31));
        self.b.op(word, &format!("nvvm.shfl.sync bfly {all}, {v}, {distance}, {clamp} : i32 -> i32"))
    }

    /// The address of a shared buffer.
    pub(super) fn shared(&mut self, tensor: TensorId) -> Result<Val, EmitFault> {
        if let Some(&(_, v, _)) = self.in_shared.iter().find(|s| s.0 == tensor) {
            return Ok(v);
        }
        let t = &self.module.env.tensors[tensor];
        let size = self.module.buffer(tensor).and_then(|b| self.pool.as_int(b.elems)).filter(|&n| n > 0);
        let size = size.ok_or_else(|| EmitFault::BufferSize(t.name.clone()))?;
        let bytes = u64::try_from(size).unwrap_or(u64::MAX).saturating_mul(u64::from(memory_elem(t.ty).bits() / 8));
        let v = self.b.value(Ty::scalar(Elem::Ptr), 0);
        self.in_shared.push((tensor, v, bytes));
        Ok(v)
    }
}

fn function(s: Emitter<'_>, threads: [i64; 3]) -> Function {
    let aligns: Vec<u64> = s.in_shared.iter().map(|x| s.shared_align(x.0, SHARED_ALIGN)).collect();
    let Emitter { module, b, formals, registers, stored, in_shared, rings, maps, read, barriers, bases, .. } = s;
    // A pointer to a buffer, or the address of the barriers of a ring.
    let shared: Vec<(TensorId, Val, u64, u64, bool)> = in_shared
        .iter()
        .zip(aligns)
        .map(|(&(t, v, bytes), align)| (t, v, bytes, align, false))
        .chain(rings.iter().map(|r| (r.tensor, r.barriers, r.bytes(), SHARED_ALIGN, true)))
        .collect();
    let mut signature = Vec::new();
    let mut args = Vec::new();
    let mut formals: Vec<_> = formals.into_iter().collect();
    formals.sort_by_key(|f| f.1.0);
    for (formal, (v, what)) in &formals {
        let first = match what {
            TensorOrParam::Tensor(t) => {
                let size = u64::from(memory_elem(module.env.tensors[*t].ty).bits() / 8);
                bases.get(t).map_or(0, |&n| n.unsigned_abs() * size)
            }
            TensorOrParam::Param => 0,
        };
        let (arg, ty) = match *formal {
            Formal::Buffer(i) => (GridArg::Buffer(i as u32, first), "!llvm.ptr"),
            Formal::Table(i) => (GridArg::Table(i as u32), "!llvm.ptr"),
            Formal::Param(i) => (GridArg::Param(i as u32), "i64"),
        };
        let attributes = match what {
            TensorOrParam::Param => " {llvm.noundef}".to_owned(),

            TensorOrParam::Tensor(t) => {
                let written = stored.contains(t);
                // A barrier changes what other threads wrote, which `noalias` would deny.
                let alone = if written && barriers && read.contains(t) { "" } else { "llvm.noalias, " };
                let readonly = if written { "" } else { ", llvm.readonly" };
                format!(" {{llvm.align = 64 : i64, {alone}llvm.noundef{readonly}}}")
            }
        };
        signature.push(format!("{v}: {ty}{attributes}"));
        args.push(arg);
    }
    for (n, v) in maps.iter().enumerate().filter_map(|(n, m)| Some((n, m.1?))) {
        signature.push(format!(
            "{v}: !llvm.ptr {{llvm.byval = !llvm.array<16 x i64>, llvm.align = 64 : i64, nvvm.grid_constant}}"
        ));
        args.push(GridArg::Map(n as u32));
    }
    let offsets: Vec<u64> = shared
        .iter()
        .scan(0u64, |at, s| {
            let here = at.next_multiple_of(s.3);
            *at = here + s.2.next_multiple_of(SHARED_ALIGN);
            Some(here)
        })
        .collect();
    let total = offsets.last().zip(shared.last()).map_or(0, |(at, s)| at + s.2.next_multiple_of(SHARED_ALIGN));
    let widest = shared.iter().map(|s| s.3).max().unwrap_or(SHARED_ALIGN);
    let dynamic = total > STATIC_SHARED;
    let (mut globals, mut entry) = (String::new(), String::new());
    if !registers.is_empty() || !rings.is_empty() {
        entry.push_str("  %one = arith.constant 1 : i64\n");
        registers.iter().for_each(|(_, _, text)| entry.push_str(text));
        rings.iter().for_each(|r| entry.push_str(&r.phases_text));
    }
    if dynamic {
        globals.push_str(&format!(
            "llvm.mlir.global external {OWN}_shared() {{addr_space = 3 : i32, alignment = {widest} : i64}} : !llvm.array<0 x i8>\n"
        ));
    }
    for (n, ((t, v, bytes, align, number), at)) in shared.iter().zip(&offsets).enumerate() {
        let name = comment(&module.env.tensors[*t].name);
        let global = if dynamic { format!("{OWN}_shared") } else { format!("{OWN}_shared{n}") };
        if !dynamic {
            globals.push_str(&format!(
                "llvm.mlir.global internal {global}() {{addr_space = 3 : i32, alignment = {align} : i64}} : !llvm.array<{bytes} x i8>  // {name}\n"
            ));
        }
        entry.push_str(&format!("  %shared{n} = llvm.mlir.addressof {global} : !llvm.ptr<3>\n"));
        let at = if dynamic { *at } else { 0 };
        entry.push_str(&format!(
            "  %slot{n} = llvm.getelementptr %shared{n}[{at}] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8\n"
        ));
        entry.push_str(&match number {
            true => format!("  {v} = llvm.ptrtoint %slot{n} : !llvm.ptr<3> to i32\n"),
            false => format!("  {v} = llvm.addrspacecast %slot{n} : !llvm.ptr<3> to !llvm.ptr\n"),
        });
    }
    if !rings.is_empty() {
        let init: String = rings.iter().map(Ring::init).collect();
        entry.push_str(&super::bulk::entry(&init));
    }
    let [x, y, z] = threads;
    // One block at a time is enough: else the assembler spills registers to make room for more.
    let text = format!(
        "{globals}llvm.func {OWN}({}) attributes {{nvvm.kernel, nvvm.reqntid = array<i32: {x}, {y}, {z}>, nvvm.minctasm = 1 : i32, no_unwind}} {{\n{entry}{}  llvm.return\n}}\n",
        signature.join(", "),
        b.finish(),
    );
    let threads = threads.map(|n| n as u32);
    Function { text, args, threads, shared: total, dynamic }
}
