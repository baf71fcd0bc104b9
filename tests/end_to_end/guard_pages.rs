//! Every example, and programs of narrow types and of long vectors, with every buffer and table at the end of a page,
//! before one that cannot be touched: a read or write past an end faults, even by one element.
//!
//! Kernels may take buffers for aligned, and those here are not: the code is the compiler's but for that promise. A fault
//! ends the process, so each example runs in one of its own.

use crate::examples::{LARGE, UNPADDED, load, small};
use crate::harness::{Case, message, report};
use crate::support::batches::{self, values, with_inputs};
use crate::support::skip::skip;
use crate::support::{files, in_parallel, stem};
use cora::codegen_llvm::compile::{CompileOptions, to_mlir};
use cora::codegen_llvm::describe::program_desc;
use cora::codegen_llvm::llvm::{CPU_PIPELINE, Jit, LlvmModule, MlirModule, TargetSpec};
use cora::driver::{Source, lower};
use cora::inputs;
use cora::ir::interp;
use cora::ir::schedule::Schedule;
use cora::runtime::Limits;
use cora::runtime::abi::{Ix, KernelDesc, KernelFn, ProgramDesc, Role};
use cora::runtime::array::{Fill, RaggedArray, TensorLayout};
use cora::runtime::eval::{TableData, eval};
use cora::runtime::prelude::Prelude;
use std::ffi::c_void;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

unsafe extern "C" {
    fn mmap(at: *mut c_void, bytes: usize, protection: i32, flags: i32, file: i32, offset: i64) -> *mut c_void;
    fn mprotect(at: *mut c_void, bytes: usize, protection: i32) -> i32;
    fn munmap(at: *mut c_void, bytes: usize) -> i32;
}

/// More than a page of any machine that this runs on, and a multiple of it.
const PAGE: usize = 1 << 16;

/// Bytes that end where a page without access begins.
struct Guarded {
    map: *mut c_void,
    whole: usize,
    bytes: usize,
}

impl Guarded {
    fn new(bytes: usize) -> Self {
        const READ_WRITE: i32 = 3;
        const PRIVATE_ANONYMOUS: i32 = 0x22;
        let whole = bytes.next_multiple_of(PAGE) + PAGE;
        // SAFETY: new memory wherever the system likes; its last page is taken away again.
        unsafe {
            let map = mmap(std::ptr::null_mut(), whole, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0);
            assert_ne!(map as isize, -1, "{whole} bytes");
            assert_eq!(mprotect(map.byte_add(whole - PAGE), PAGE, 0), 0);
            let new = Self { map, whole, bytes };
            // Memory that nobody writes shows, as under `--poison`.
            new.at().write_bytes(0xff, bytes);
            new
        }
    }

    fn at(&self) -> *mut u8 {
        // SAFETY: `bytes` bytes before the last page are part of the map.
        unsafe { self.map.byte_add(self.whole - PAGE - self.bytes).cast() }
    }

    fn slice(&self) -> &[u8] {
        // SAFETY: as above; they are initialised, and no kernel runs while the slice lives.
        unsafe { std::slice::from_raw_parts(self.at(), self.bytes) }
    }

    fn slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `slice`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at(), self.bytes) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the map is ours.
        unsafe { munmap(self.map, self.whole) };
    }
}

/// A program's code, without the promise of alignment.
struct Code {
    desc: Arc<ProgramDesc>,
    jit: Jit,
}

impl Code {
    fn new(source: &Source, schedule: Option<&Schedule>, padded: bool) -> Result<Self, String> {
        let storage = lower(source, schedule, padded, &mut |_| {}).map_err(message)?.storage;
        let desc = Arc::new(program_desc(&storage).map_err(|e| e.to_string())?);
        assert!(desc.imports.is_empty(), "examples call no libraries");
        let target = TargetSpec::host();
        let text = to_mlir(&storage, &target, &CompileOptions::default()).map_err(|e| e.to_string())?;
        const PROMISE: &str = "llvm.align = 64 : i64, ";
        assert!(text.contains(PROMISE), "buffers are no longer promised to be aligned in these words:\n{text}");
        let code = || {
            let mut mlir = MlirModule::parse(&text.replace(PROMISE, ""))?;
            mlir.run_pipeline(CPU_PIPELINE)?;
            let mut llvm = LlvmModule::from_mlir(&mlir, &target)?;
            llvm.optimize(&CompileOptions::default().llvm_pipeline)?;
            llvm.settle_masks();
            Jit::load(&llvm.emit_object()?)
        };
        let jit = code().map_err(|e: cora::codegen_llvm::llvm::CodegenError| e.to_string())?;
        Ok(Self { desc, jit })
    }

    /// Runs a batch; its outputs, in the order of the description.
    fn run(&self, source: &Source, batch: &interp::Batch) -> Result<Vec<RaggedArray>, String> {
        self.run_in_memory(source, batch).map_err(|e| e.to_string())
    }

    fn run_in_memory(&self, source: &Source, batch: &interp::Batch) -> cora::runtime::Result<Vec<RaggedArray>> {
        let (desc, limits) = (&*self.desc, Limits::default());
        let env = &source.graph.env;
        let tables = Prelude::new(self.desc.clone())?.build(&crate::harness::batch(desc, source, batch), &limits)?;
        let number = |ix: &Ix| eval(ix, tables.env(), &[]).expect("in range");
        let mut buffers = Vec::new();
        for b in &desc.buffers {
            buffers.push(Guarded::new(number(&b.elems) as usize * b.dtype.size()));
        }
        for t in desc.tensors.iter().filter(|t| t.role != Role::Output) {
            let layout = TensorLayout::new(t);
            let id = env.tensor_named(&t.name).expect("the program's own name");
            let array = inputs::to_array(env.tensors[id].ty, layout.shape(tables.env(), &limits)?, &batch.inputs[&id])?;
            let storage = buffers[t.buffer as usize].slice_mut();
            layout.pack(tables.env(), array.bytes(), storage, Fill::Poison, &limits)?;
        }
        let copies: Vec<Guarded> = tables.data().iter().map(guarded_table).collect();
        let bufs: Vec<*mut u8> = buffers.iter().map(Guarded::at).collect();
        let table_ptrs: Vec<*const u8> = copies.iter().map(|g| g.at().cast_const()).collect();
        let call = |k: &KernelDesc| {
            let address = self.jit.lookup(&k.symbol).expect("a kernel of its own");
            let trip = k.trip.as_ref().map_or(1, number);
            // SAFETY: the compiler gives its kernels this signature, and every buffer and table is as its description
            // says; what goes beyond them faults.
            unsafe {
                let kernel = std::mem::transmute::<*const (), KernelFn>(address);
                kernel(bufs.as_ptr(), table_ptrs.as_ptr(), tables.params().as_ptr(), 0, trip, 0);
            }
        };
        desc.setup_kernels.iter().for_each(call);
        desc.kernels.iter().for_each(call);
        let mut outputs = Vec::new();
        for t in desc.tensors.iter().filter(|t| t.role == Role::Output) {
            let layout = TensorLayout::new(t);
            let mut array = RaggedArray::zeros(t.dtype, layout.shape(tables.env(), &limits)?)?;
            layout.unpack(tables.env(), buffers[t.buffer as usize].slice(), array.bytes_mut(), &limits)?;
            outputs.push(array);
        }
        Ok(outputs)
    }
}

fn guarded_table(table: &TableData) -> Guarded {
    let mut copy = Guarded::new(table.bytes());
    match table {
        TableData::I32(v) => copy_entries(&mut copy, v.iter().map(|x| x.to_ne_bytes())),
        TableData::I64(v) => copy_entries(&mut copy, v.iter().map(|x| x.to_ne_bytes())),
    }
    copy
}

fn copy_entries<const N: usize>(to: &mut Guarded, entries: impl Iterator<Item = [u8; N]>) {
    to.slice_mut().chunks_exact_mut(N).zip(entries).for_each(|(to, e)| to.copy_from_slice(&e));
}

/// Every edge batch of an example in every form; each is named on standard error before it runs.
fn example(path: &Path) -> Vec<String> {
    let name = stem(path);
    let source = match load(path, small(&name)) {
        Ok(s) => s,
        Err(e) => return vec![e],
    };
    let large = LARGE.contains(&name.as_str());
    let own = source.graph.schedule("cpu");
    let mut forms = vec![("own schedule", own, false)];
    if !large {
        forms.extend(own.map(|_| ("default schedule", None, false)));
        forms.push(("padded", own.filter(|_| !UNPADDED.contains(&name.as_str())), true));
    }
    let mut complaints = Vec::new();
    for (form, schedule, padded) in forms {
        let code = match Code::new(&source, schedule, padded) {
            Ok(c) => c,
            Err(e) => {
                complaints.push(format!("{name} ({form}): {e}"));
                continue;
            }
        };
        for (n, plan) in batches::edges(&source.graph.env).iter().enumerate().step_by(if large { 4 } else { 1 }) {
            eprintln!("{name} ({form}), {}", plan.name);
            let batch = with_inputs(&source.graph.env, &values(&source.graph.env, plan), n as u64, |_, _| None);
            let wrong = match code.run(&source, &batch) {
                // Results are compared elsewhere; some here, so that this is known to run what it should.
                Ok(out) if n % 8 == 4 => Case::new(&source, plan, n as u64, |_, _| None)
                    .map_or_else(Some, |case| case.compare(&source, &code.desc, &out)),
                Ok(_) => None,
                Err(e) => Some(e),
            };
            complaints.extend(wrong.map(|w| format!("{name} ({form}), {}: {w}", plan.name)));
        }
    }
    complaints
}

/// Names the example that a process is to run.
const EXAMPLE: &str = "CORA_GUARDED_EXAMPLE";

/// The body of such a process; in others it does nothing.
#[test]
fn guarded_example() {
    if let Some(path) = std::env::var_os(EXAMPLE) {
        report(&example(Path::new(&path)));
    }
}

/// Runs this test binary on one example; what it says if it fails.
fn guarded(path: &Path) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().expect("this test binary"));
    command.args(["--exact", "guard_pages::guarded_example", "--nocapture", "--test-threads", "1"]);
    let out = command.env(EXAMPLE, path).output().expect("it starts");
    let text = String::from_utf8_lossy(&out.stderr);
    let last = text.lines().rev().take(3).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n");
    if out.status.success() { Vec::new() } else { vec![format!("{}: {}\n{last}", stem(path), out.status)] }
}

#[test]
fn nothing_is_touched_past_an_end() {
    if !cfg!(target_os = "linux") {
        skip("guard pages: they are taken from Linux");
        return;
    }
    let mut paths = files("examples", "cora");
    paths.extend(
        files("filetests/schedules", "cora")
            .into_iter()
            .filter(|p| ["last_lane", "wide_masks"].contains(&stem(p).as_str())),
    );
    report(&in_parallel(&paths, |path| guarded(path)));
}

/// The trap itself: one byte past the end of a buffer ends the process.
#[test]
fn the_guard_faults() {
    let trap = std::env::var_os(EXAMPLE).is_some_and(|e| e == "trap");
    if trap {
        let buffer = Guarded::new(12);
        // SAFETY: this is the fault that is asked for; nothing else uses the page.
        unsafe { buffer.at().add(12).read_volatile() };
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("this test binary"));
    command.args(["--exact", "guard_pages::the_guard_faults", "--test-threads", "1"]);
    let out = command.env(EXAMPLE, "trap").output().expect("it starts");
    assert!(!out.status.success() && out.status.code().is_none(), "{out:?}");
}
