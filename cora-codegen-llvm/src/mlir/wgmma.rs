//! Tiles that four warps compute from shared memory while they go on: `wgmma`.
//!
//! The factors are read by 64-bit descriptors: address, and the distances of neighbouring blocks along rows and columns
//! (PTX ISA, "Matrix descriptor format"; without swizzle, or with that of 128 bytes). Accumulators go through the instruction, tied to its registers; so they
//! do through the wait, so that nothing that uses them is moved before it. A `wgmma.fence` stands before the first tile of
//! those that follow each other, which hands the registers over.

use cora_ir::layout::LayoutStep;
use cora_ir::storage::{Beside, Matrix, Tile};
use cora_ir::{ExprId, Scope, TensorId};

use super::EmitFault;
use super::builder::{Elem, Ty, Val};
use super::convert::memory_elem;
use super::expr::Emitter;

const F32: Ty = Ty { elem: Elem::F32, lanes: 1 };
const LONG: Ty = Ty { elem: Elem::I64, lanes: 1 };

/// The layout type of lines of 128 bytes, in bits 62 and 63.
const SWIZZLE_128: i64 = 1 << 62;

/// The part of a descriptor that counts in units of 16 bytes.
const UNIT: i64 = 16;

impl Emitter<'_> {
    pub(super) fn wgmma(&mut self, t: &Tile, key: &str, follows: bool) -> Result<(), EmitFault> {
        if self.threads.is_none() {
            return Err(EmitFault::NotLegal("an instruction of a GPU's warps"));
        }
        let i = t.intrinsic.get();
        // Whether rows of the left factor, or columns of the right one, are neighbours instead of reduced positions.
        let along = |e: ExprId| self.pool.as_int(e) == Some(1);
        let (transposed_a, transposed_b) = (along(t.a.row), along(t.b.column));
        let a = self.descriptor(&t.a, [1, 0], transposed_a)?;
        let b = self.descriptor(&t.b, [0, 1], transposed_b)?;
        if !follows {
            self.b.stmt("llvm.inline_asm has_side_effects \"wgmma.fence.sync.aligned;\", \"\" : () -> ()");
        }
        let places = self.registers_of(&t.c, i.c.registers)?;
        let n = places.len();
        let list = (0..n).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ");
        let [rows, columns, reduced] = i.tile;
        let text = format!(
            "{{ .reg .pred p; setp.ne.b32 p, 1, 0; \
             wgmma.mma_async.sync.aligned.m{rows}n{columns}k{reduced}.f32.{key}.{key} {{{list}}}, ${}, ${}, p, 1, 1, {}, {}; }}",
            2 * n,
            2 * n + 1,
            u8::from(transposed_a),
            u8::from(transposed_b),
        );
        self.through(&text, &places, &[a, b]);
        Ok(())
    }

    /// What threads do about such tiles.
    pub(super) fn beside(&mut self, b: &Beside) -> Result<(), EmitFault> {
        let alone = |text: &str| format!("llvm.inline_asm has_side_effects \"{text}\", \"\" : () -> ()");
        match b {
            Beside::Fence => self.b.stmt(&alone("fence.proxy.async.shared::cta;")),
            Beside::Commit => self.b.stmt(&alone("wgmma.commit_group.sync.aligned;")),
            Beside::Wait { pending, results } => {
                let mut places = Vec::new();
                for &t in results {
                    places.extend(self.all_registers(t)?);
                }
                self.through(&format!("wgmma.wait_group.sync.aligned {pending};"), &places, &[]);
                self.forget(results);
            }
        }
        Ok(())
    }

    /// Inline assembly that changes the registers, which are its operands first.
    fn through(&mut self, text: &str, places: &[Val], more: &[Val]) {
        let values: Vec<Val> = places.iter().map(|&at| self.load_at(at, F32)).collect();
        let outputs = values.iter().map(|_| "=f".to_owned());
        let tied = (0..values.len()).map(|n| n.to_string());
        let constraints = outputs.chain(tied).chain(more.iter().map(|_| "l".to_owned())).collect::<Vec<_>>().join(",");
        let operands = values.iter().chain(more).map(Val::to_string).collect::<Vec<_>>().join(", ");
        let types = values.iter().map(|_| "f32").chain(more.iter().map(|_| "i64")).collect::<Vec<_>>().join(", ");
        let ty = format!("!llvm.struct<({})>", vec!["f32"; values.len()].join(", "));
        let all = format!("%group{}", self.b.calls());
        self.b.stmt(&format!(
            "{all} = llvm.inline_asm has_side_effects \"{text}\", \"{constraints}\" {operands} : ({types}) -> {ty}"
        ));
        for (n, &at) in places.iter().enumerate() {
            let v = self.b.op(F32, &format!("llvm.extractvalue {all}[{n}] : {ty}"));
            self.store_at(v, at);
        }
    }

    /// Where the accumulators of a tile are.
    fn registers_of(&mut self, m: &Matrix, count: i64) -> Result<Vec<Val>, EmitFault> {
        let first = self.pool.as_int(m.offset).ok_or(EmitFault::NotLegal("registers of variable number"))?;
        (first..first + count)
            .map(|r| {
                let at = self.pool.int(r);
                self.address(m.tensor, at)
            })
            .collect()
    }

    /// Where all elements of a buffer in registers are.
    fn all_registers(&mut self, tensor: TensorId) -> Result<Vec<Val>, EmitFault> {
        let count = self.module.buffer(tensor).and_then(|b| self.pool.as_int(b.elems));
        let count = count.ok_or(EmitFault::NotLegal("registers of variable number"))?;
        let zero = self.pool.int(0);
        self.registers_of(&Matrix { tensor, offset: zero, row: zero, column: zero, blocks: None }, count)
    }

    /// Where a factor is in shared memory; `reduced` and `other` are the sides of blocks along reduced positions and along
    /// rows (of the left factor) or columns. The distance along reduced positions is the leading one, the other the stride;
    /// with lines of 128 bytes that which goes on where a line ends is the leading one, and where a line has all reduced
    /// positions there is none.
    fn descriptor(&mut self, m: &Matrix, [reduced, other]: [usize; 2], transposed: bool) -> Result<Val, EmitFault> {
        let t = &self.module.env.tensors[m.tensor];
        let size = i64::from(memory_elem(t.ty).bits() / 8);
        let swizzled = t.layout.contains(&LayoutStep::Swizzle);
        let side = |n: usize| m.blocks.map(|b| b[n]);
        let (leading, stride) = match (swizzled, transposed) {
            (false, _) => (side(reduced), side(other)),
            (true, true) => (side(other), side(reduced)),
            // Taken for one piece.
            (true, false) => (Some(self.pool.int(UNIT / size)), side(other)),
        };
        if t.scope != Scope::Shared || self.divisor(m.offset) * size % UNIT != 0 {
            return Err(EmitFault::NotLegal("a factor that does not lie in blocks of shared memory"));
        }
        let mut fields = if swizzled { SWIZZLE_128 } else { 0 };
        for (distance, shift) in [(leading, 16), (stride, 32)] {
            let bytes = distance.and_then(|e| self.pool.as_int(e)).and_then(|n| n.checked_mul(size));
            let units = bytes.filter(|n| n % UNIT == 0).map(|n| n / UNIT).filter(|n| (0..1 << 14).contains(n));
            fields |= units.ok_or(EmitFault::NotLegal("blocks of shared memory that are too far apart"))? << shift;
        }
        let at = self.address(m.tensor, m.offset)?;
        let near = self.b.calls();
        self.b.stmt(&format!("%factor{near} = llvm.addrspacecast {at} : !llvm.ptr to !llvm.ptr<3>"));
        let bytes = self.b.op(LONG, &format!("llvm.ptrtoint %factor{near} : !llvm.ptr<3> to i64"));
        let (window, four, fields) = (self.b.i64((1 << 18) - 1), self.b.i64(4), self.b.i64(fields));
        let here = self.b.bin("arith.andi", bytes, window);
        let here = self.b.bin("arith.shrui", here, four);
        Ok(self.b.bin("arith.ori", here, fields))
    }
}
