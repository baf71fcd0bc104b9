//! Boxes that the copy engine brings into shared memory: `cp.async.bulk.tensor`, which completes on an `mbarrier`.
//!
//! ```text
//! bulk @L[%o] slot %s = @X[%k of 512 by 1 for 64, %f of %n by 512 for 128]   await @L slot %s
//!   =>  if thread 0 { mbarrier.arrive.expect_tx [bar + 8 * %s], 16384
//!                     cp.async.bulk.tensor.2d [L + %o], [map, {%k, %f}], [bar + 8 * %s] }
//!       do { p = mbarrier.try_wait.parity [bar + 8 * %s], phase >> %s & 1 } while !p;  phase ^= 1 << %s
//! ```
//!
//! The source and the sizes are in a tensor map, which the runtime encodes for each batch and the kernel takes by value.
//! Each slot of a buffer has a barrier of one arrival a box: that of the thread that asks, with the bytes to expect, so that
//! a phase ends when the box is there. Each thread keeps the parity of the next phase of each slot in a word of its own.
//! Barriers are made by the first thread when the kernel begins, seen by the engine through a fence and by the other threads
//! through a barrier. Waiting acquires what the engine wrote (PTX ISA, "mbarrier", "Async proxy"); that it must not be
//! overwritten before, barriers of the block see to.

use cora_ir::storage::{BOX_BEGIN, Bulk, BulkDim, Kernel, SWIZZLED_BEGIN, Stmt, StorageModule};
use cora_ir::{ExprId, TensorId};

use super::EmitFault;
use super::builder::{Cmp, Elem, Ty, Val};
use super::convert::memory_elem;
use super::expr::Emitter;

/// Bytes of a barrier.
const BARRIER: u64 = 8;
/// A word has so many bits: the parities of slots.
const MOST_SLOTS: i64 = 32;

const WORD: Ty = Ty { elem: Elem::I32, lanes: 1 };
const LONG: Ty = Ty { elem: Elem::I64, lanes: 1 };

/// What a tensor map describes: a buffer in dimensions, the box's innermost first, and how boxes lie in shared memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorMap {
    /// The global buffer.
    pub tensor: TensorId,
    /// Size over parameters, tables and the kernel's names, elements from one position to the next, positions of the box.
    pub dims: Vec<(ExprId, i64, i64)>,
    /// Whether lines of 128 bytes are swizzled.
    pub swizzled: bool,
}

impl TensorMap {
    fn of(module: &StorageModule, b: &Bulk) -> Self {
        let dims = b.dims.iter().map(|&BulkDim { size, step, extent, .. }| (size, step, extent)).collect();
        Self { tensor: b.from, dims, swizzled: module.env.tensors[b.to].is_swizzled() }
    }

    /// The maps of a kernel in order of first use, each once.
    pub fn all(module: &StorageModule, kernel: &Kernel) -> Vec<TensorMap> {
        let mut out = Vec::new();
        for s in &kernel.body {
            s.walk(&mut |s| {
                if let Stmt::Bulk(b) = s {
                    let map = Self::of(module, b);
                    if !out.contains(&map) {
                        out.push(map);
                    }
                }
            });
        }
        out
    }
}

/// A buffer that boxes fill: its barriers in shared memory, and each thread's word of parities.
pub(super) struct Ring {
    pub tensor: TensorId,
    /// The address of the first slot's barrier.
    pub barriers: Val,
    pub slots: u64,
    /// The address of the word, and the text that makes it.
    phases: Val,
    pub phases_text: String,
}

impl Ring {
    /// Bytes of the barriers.
    pub fn bytes(&self) -> u64 {
        self.slots * BARRIER
    }

    /// The text that makes the barriers, by one thread.
    pub fn init(&self) -> String {
        let one = |n: u64| {
            format!(
                "    llvm.inline_asm has_side_effects \"mbarrier.init.shared::cta.b64 [$0+{}], 1;\", \"r,~{{memory}}\" {} : (i32) -> ()\n",
                n * BARRIER,
                self.barriers
            )
        };
        (0..self.slots).map(one).collect()
    }
}

/// What makes the barriers of all rings seen by the threads and by the copy engine; `init` makes them.
pub(super) fn entry(init: &str) -> String {
    let fence = |what: &str| format!("llvm.inline_asm has_side_effects \"{what}\", \"~{{memory}}\" : () -> ()\n");
    format!(
        "  %first_x = nvvm.read.ptx.sreg.tid.x : i32\n  %first_y = nvvm.read.ptx.sreg.tid.y : i32\n  %first_z = nvvm.read.ptx.sreg.tid.z : i32\n  \
         %first_xy = arith.ori %first_x, %first_y : i32\n  %first_xyz = arith.ori %first_xy, %first_z : i32\n  \
         %first_zero = arith.constant 0 : i32\n  %first = arith.cmpi eq, %first_xyz, %first_zero : i32\n  \
         scf.if %first {{\n{init}    {}    {}  }}\n  nvvm.barrier\n",
        fence("fence.mbarrier_init.release.cluster;"),
        fence("fence.proxy.async.shared::cta;"),
    )
}

impl Emitter<'_> {
    /// The alignment of a shared buffer.
    pub(super) fn shared_align(&self, tensor: TensorId, least: u64) -> u64 {
        match (self.rings.iter().any(|r| r.tensor == tensor), self.module.env.tensors[tensor].is_swizzled()) {
            (_, true) => SWIZZLED_BEGIN as u64,
            (true, false) => BOX_BEGIN as u64,
            (false, false) => least,
        }
    }

    /// The number of a buffer's ring.
    fn ring(&mut self, tensor: TensorId) -> Result<usize, EmitFault> {
        if let Some(n) = self.rings.iter().position(|r| r.tensor == tensor) {
            return Ok(n);
        }
        let slots = self.module.env.tensors[tensor].slots().unwrap_or(1);
        if !(1..=MOST_SLOTS).contains(&slots) {
            return Err(EmitFault::NotLegal("more slots than a word has bits"));
        }
        let (barriers, phases) = (self.b.value(WORD, 0), self.b.value(Ty::scalar(Elem::Ptr), 0));
        let n = self.rings.len();
        let phases_text = format!(
            "  {phases} = llvm.alloca %one x i32 {{alignment = 4 : i64}} : (i64) -> !llvm.ptr\n  \
             %phases{n} = arith.constant 0 : i32\n  llvm.store %phases{n}, {phases} : i32, !llvm.ptr\n"
        );
        self.rings.push(Ring { tensor, barriers, slots: slots as u64, phases, phases_text });
        Ok(n)
    }

    /// A slot's number, and the address of its barrier.
    fn barrier_of(&mut self, ring: usize, slot: ExprId) -> Result<(Val, Val), EmitFault> {
        let slot = self.emit_scalar(slot, "a slot is a vector")?;
        let slot = self.b.convert("arith.trunci", slot, Elem::I32);
        let size = self.b.int(WORD, BARRIER as i64);
        let offset = self.b.bin("arith.muli", slot, size);
        let first = self.rings[ring].barriers;
        Ok((slot, self.b.bin("arith.addi", first, offset)))
    }

    /// One thread asks for a box.
    pub(super) fn bulk(&mut self, b: &Bulk) -> Result<(), EmitFault> {
        let Some(threads) = self.threads else { return Err(EmitFault::NotLegal("a box that a copy engine brings")) };
        let wanted = TensorMap::of(self.module, b);
        let builder = &mut self.b;
        let map = self.maps.iter_mut().find(|m| m.0 == wanted);
        let map = map.map(|m| *m.1.get_or_insert_with(|| builder.value(Ty::scalar(Elem::Ptr), 0)));
        let map = map.ok_or(EmitFault::NotLegal("a box without a tensor map"))?;
        let ring = self.ring(b.to)?;
        let size = i64::from(memory_elem(self.module.env.tensors[b.to].ty).bits() / 8);
        let bytes = b.elems() * size;
        let mut number = self.b.int(WORD, 0);
        for (axis, _) in ["x", "y", "z"].iter().zip(threads).filter(|(_, n)| *n > 1) {
            let along = self.b.op(WORD, &format!("nvvm.read.ptx.sreg.tid.{axis} : i32"));
            number = self.b.bin("arith.ori", number, along);
        }
        let zero = self.b.int(WORD, 0);
        let first = self.b.cmpi(Cmp::Eq, false, number, zero);
        self.open();
        let (_, barrier) = self.barrier_of(ring, b.slot)?;
        let to = self.address(b.to, b.offset)?;
        let near = self.b.calls();
        self.b.stmt(&format!("%box{near} = llvm.addrspacecast {to} : !llvm.ptr to !llvm.ptr<3>"));
        let to = self.b.op(WORD, &format!("llvm.ptrtoint %box{near} : !llvm.ptr<3> to i32"));
        let map = self.b.op(LONG, &format!("llvm.ptrtoint {map} : !llvm.ptr to i64"));
        let mut operands = vec![(to, "r"), (map, "l")];
        for d in &b.dims {
            let at = self.emit_scalar(d.at, "a position is a vector")?;
            operands.push((self.b.convert("arith.trunci", at, Elem::I32), "r"));
        }
        operands.push((barrier, "r"));
        let rank = b.dims.len();
        let at = (0..rank).map(|n| format!("${}", n + 2)).collect::<Vec<_>>().join(", ");
        self.b.stmt(&format!(
            "llvm.inline_asm has_side_effects \"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {bytes};\", \"r,~{{memory}}\" {barrier} : (i32) -> ()"
        ));
        let constraints = operands.iter().map(|o| o.1).collect::<Vec<_>>().join(",");
        let values = operands.iter().map(|o| o.0.to_string()).collect::<Vec<_>>().join(", ");
        let types = operands.iter().map(|o| if o.1 == "l" { "i64" } else { "i32" }).collect::<Vec<_>>().join(", ");
        self.b.stmt(&format!(
            "llvm.inline_asm has_side_effects \"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes \
             [$0], [$1, {{{at}}}], [${}];\", \"{constraints},~{{memory}}\" {values} : ({types}) -> ()",
            rank + 2,
        ));
        let text = self.close();
        self.b.splice(&format!("scf.if {first} {{"), &[(&text, "}")]);
        self.forget(&[b.to]);
        Ok(())
    }

    /// Each thread waits for the box in a slot.
    pub(super) fn await_box(&mut self, tensor: TensorId, slot: ExprId) -> Result<(), EmitFault> {
        if self.threads.is_none() {
            return Err(EmitFault::NotLegal("a box that a copy engine brings"));
        }
        let ring = self.ring(tensor)?;
        let (slot, barrier) = self.barrier_of(ring, slot)?;
        let phases = self.rings[ring].phases;
        let one = self.b.int(WORD, 1);
        let all = self.load_at(phases, WORD);
        let parity = self.b.bin("arith.shrui", all, slot);
        let parity = self.b.bin("arith.andi", parity, one);
        self.b.stmt(&format!(
            "llvm.inline_asm has_side_effects \"{{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; \
             @p bra THERE; bra AGAIN; THERE: }}\", \"r,r,~{{memory}}\" {barrier}, {parity} : (i32, i32) -> ()"
        ));
        let bit = self.b.bin("arith.shli", one, slot);
        let next = self.b.bin("arith.xori", all, bit);
        self.store_at(next, phases);
        self.forget(&[tensor]);
        Ok(())
    }
}
