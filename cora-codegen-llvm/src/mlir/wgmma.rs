//! Tiles that four warps compute from shared memory while they go on: `wgmma`.
//!
//! The factors are read by 64-bit descriptors: address, and the distances of neighbouring blocks along rows and columns
//! (PTX ISA, "Matrix descriptor format"; no swizzle). Accumulators go through the instruction, tied to its registers; so they
//! do through the wait, so that nothing that uses them is moved before it. A `wgmma.fence` stands before the first tile of
//! those that follow each other, which hands the registers over.

use cora_ir::storage::{Beside, Matrix, Tile};
use cora_ir::{ExprId, Scope, TensorId};

use super::EmitFault;
use super::builder::{Elem, Ty, Val};
use super::convert::memory_elem;
use super::expr::Emitter;

const F32: Ty = Ty { elem: Elem::F32, lanes: 1 };
const LONG: Ty = Ty { elem: Elem::I64, lanes: 1 };

/// The part of a descriptor that counts in units of 16 bytes.
const UNIT: i64 = 16;

impl Emitter<'_> {
    pub(super) fn wgmma(&mut self, t: &Tile, key: &str, follows: bool) -> Result<(), EmitFault> {
        if self.threads.is_none() {
            return Err(EmitFault::NotLegal("an instruction of a GPU's warps"));
        }
        let i = t.intrinsic.get();
        // The distance along rows (of the left factor) or columns is the stride, that along reduced positions the leading one.
        let [of_rows, of_columns] = [0, 1].map(|n| move |m: &Matrix| m.blocks.map(|b| b[n]));
        let a = self.descriptor(&t.a, of_columns(&t.a), of_rows(&t.a))?;
        let b = self.descriptor(&t.b, of_rows(&t.b), of_columns(&t.b))?;
        let along = |e: ExprId| self.pool.as_int(e) == Some(1);
        // Whether rows of the left factor, or columns of the right one, are neighbours instead of reduced positions.
        let (transposed_a, transposed_b) = (along(t.a.row), along(t.b.column));
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

    /// Where a factor is in shared memory: blocks so many elements apart along reduced positions, and along the other side.
    fn descriptor(&mut self, m: &Matrix, leading: Option<ExprId>, stride: Option<ExprId>) -> Result<Val, EmitFault> {
        let t = &self.module.env.tensors[m.tensor];
        let size = i64::from(memory_elem(t.ty).bits() / 8);
        if t.scope != Scope::Shared || self.divisor(m.offset) * size % UNIT != 0 {
            return Err(EmitFault::NotLegal("a factor that does not lie in blocks of shared memory"));
        }
        let mut fields = 0;
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
