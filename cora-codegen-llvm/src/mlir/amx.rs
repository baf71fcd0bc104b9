//! Products on AMX's tile registers.
//!
//! LLVM configures the eight registers and gives them out. Around a loop that only adds to tiles of a result they are
//! loaded once and stored once: inside, each is a stack slot of 1024 bytes, which LLVM turns into a register.

use cora_ir::intrinsic::Emission;
use cora_ir::storage::{Matrix, Stmt, Tile};
use cora_ir::{Expr, ExprId, TensorId};

use super::EmitFault;
use super::builder::{Elem, Ty, Val};
use super::expr::Emitter;

/// A tile of a result that is in a slot.
#[derive(Clone, Debug)]
struct Carried {
    result: Matrix,
    slot: Val,
}

/// What the emission of a kernel knows of tile registers.
#[derive(Debug, Default)]
pub(super) struct TileRegisters {
    /// Those around, outermost first.
    carried: Vec<Carried>,
    /// Factors in registers: the tensor, the offset, the distance of rows, the value's name. Nothing writes them meanwhile.
    factors: Vec<(TensorId, ExprId, ExprId, String)>,
    /// Those to which the next loop adds that hold zeros.
    zeros: Vec<Matrix>,
    /// The text of slots, those of other sums (`bytes.rs`) included, for the function's entry.
    pub(super) slots: Vec<String>,
}

const TILE: &str = "!llvm.x86_amx";
const SLOT: &str = "vector<256xi32>";
/// Rows of a register, and bytes of a row.
const ROWS: i64 = 16;
const ROW_BYTES: i64 = 64;
/// Rows and columns of sums, of 4 bytes, in a register.
pub(super) const SUMS: [i64; 2] = [ROWS, ROW_BYTES / 4];

impl Emitter<'_> {
    /// Tiles of factors that are in registers are not known to be any more.
    pub(super) fn forget_factors(&mut self) {
        self.tile_registers.factors.clear();
    }

    pub(super) fn amx(&mut self, t: &Tile) -> Result<(), EmitFault> {
        let a = self.tile_of(&t.a)?;
        let b = self.tile_of(&t.b)?;
        let [rows, bytes] = self.shape();
        let slot = self.tile_registers.carried.iter().find(|c| c.result == t.c).map(|c| c.slot);
        let old = match slot {
            Some(slot) => self.load_slot(slot),
            None => self.load_tile(&t.c)?,
        };
        let product = if t.intrinsic.get().emission == Emission::AmxI8 { "tdpbssd" } else { "tdpbf16ps" };
        let sum = self.aggregate(&format!(
            "llvm.call_intrinsic \"llvm.x86.{product}.internal\"({rows}, {bytes}, {bytes}, {old}, {a}, {b}) : \
             (i16, i16, i16, {TILE}, {TILE}, {TILE}) -> {TILE}"
        ));
        match slot {
            Some(slot) => self.store_slot(&sum, slot),
            None => self.store_tile(&sum, &t.c)?,
        }
        Ok(())
    }

    /// A factor, from memory unless it is in a register already.
    fn tile_of(&mut self, m: &Matrix) -> Result<String, EmitFault> {
        let row = distance(m)?;
        let known = self.tile_registers.factors.iter().find(|f| (f.0, f.1, f.2) == (m.tensor, m.offset, row));
        if let Some(f) = known {
            return Ok(f.3.clone());
        }
        let v = self.load_tile(m)?;
        self.tile_registers.factors.push((m.tensor, m.offset, row, v.clone()));
        Ok(v)
    }

    fn shape(&mut self) -> [Val; 2] {
        [ROWS, ROW_BYTES].map(|n| self.b.int(Ty::scalar(Elem::I16), n))
    }

    /// The address and the bytes from one row to the next.
    fn rows_of(&mut self, m: &Matrix) -> Result<[Val; 2], EmitFault> {
        let at = self.address(m.tensor, m.offset)?;
        let row = self.emit_scalar(distance(m)?, "a stride of a matrix is a vector")?;
        let bytes = self.b.i64(self.module.env.tensors[m.tensor].ty.bytes() as i64);
        let row = self.b.bin("arith.muli", row, bytes);
        Ok([at, row])
    }

    /// The same by rows: 16 words of terms of a row of the left factor, each with those of all columns.
    pub(super) fn rows_of_dots(&mut self, t: &Tile) -> Result<(), EmitFault> {
        let [c, a, b] = [self.rows_of(&t.c)?, self.rows_of(&t.a)?, self.rows_of(&t.b)?];
        let columns = t.intrinsic.get().tile[1] as u32;
        let [start, end, step] = [0, ROWS, 1].map(|n| self.b.i64(n));
        let i = self.b.value(Ty::scalar(Elem::I64), self.b.depth() + 1);
        self.open();
        let [to, left] = [c, a].map(|[at, row]| {
            let by = self.b.bin("arith.muli", i, row);
            self.moved_by(at, by)
        });
        let bytes = t.intrinsic.get().emission == Emission::AmxI8;
        let ty = Ty { elem: if bytes { Elem::I32 } else { Elem::F32 }, lanes: columns };
        let mut sum = self.b.op(ty, &format!("llvm.load {to} {{alignment = 4 : i64}} : !llvm.ptr -> {ty}"));
        for word in 0..ROWS {
            let n = self.b.i64(word);
            let by = self.b.bin("arith.muli", n, b[1]);
            let first = self.b.i64(4 * word);
            let (at, right) = (self.moved_by(left, first), self.moved_by(b[0], by));
            let [x, y] = [(at, 1), (right, columns)].map(|(at, lanes)| {
                let ty = Ty { elem: Elem::I32, lanes };
                self.b.op(ty, &format!("llvm.load {at} {{alignment = 1 : i64}} : !llvm.ptr -> {ty}"))
            });
            sum = if bytes { self.dot_of_fours(x, y, sum) } else { self.dot_of_pairs(x, y, sum) };
        }
        self.b.stmt(&format!("llvm.store {sum}, {to} {{alignment = 4 : i64}} : {ty}, !llvm.ptr"));
        let text = self.close();
        self.b.splice(&format!("scf.for {i} = {start} to {end} step {step} : i64 {{"), &[(&text, "}")]);
        Ok(())
    }

    fn moved_by(&mut self, at: Val, bytes: Val) -> Val {
        let rhs = format!("llvm.getelementptr {at}[{bytes}] : (!llvm.ptr, i64) -> !llvm.ptr, i8");
        self.b.pure(Ty::scalar(Elem::Ptr), &[at, bytes], &rhs)
    }

    fn load_tile(&mut self, m: &Matrix) -> Result<String, EmitFault> {
        let ([rows, bytes], [at, row]) = (self.shape(), self.rows_of(m)?);
        Ok(self.aggregate(&format!(
            "llvm.call_intrinsic \"llvm.x86.tileloadd64.internal\"({rows}, {bytes}, {at}, {row}) : \
             (i16, i16, !llvm.ptr, i64) -> {TILE}"
        )))
    }

    fn zero_tile(&mut self) -> String {
        let [rows, bytes] = self.shape();
        self.aggregate(&format!(
            "llvm.call_intrinsic \"llvm.x86.tilezero.internal\"({rows}, {bytes}) : (i16, i16) -> {TILE}"
        ))
    }

    /// The loop that follows finds zeros in these tiles.
    pub(super) fn clear_tiles(&mut self, tiles: Vec<Matrix>) {
        self.tile_registers.zeros = tiles;
    }

    fn store_tile(&mut self, v: &str, m: &Matrix) -> Result<(), EmitFault> {
        let ([rows, bytes], [at, row]) = (self.shape(), self.rows_of(m)?);
        self.b.stmt(&format!(
            "llvm.call_intrinsic \"llvm.x86.tilestored64.internal\"({rows}, {bytes}, {at}, {row}, {v}) : \
             (i16, i16, !llvm.ptr, i64, {TILE}) -> ()"
        ));
        Ok(())
    }

    fn load_slot(&mut self, slot: Val) -> String {
        let v = self.aggregate(&format!("llvm.load {slot} {{alignment = 64 : i64}} : !llvm.ptr -> {SLOT}"));
        self.aggregate(&format!(
            "llvm.call_intrinsic \"llvm.x86.cast.vector.to.tile.v256i32\"({v}) : ({SLOT}) -> {TILE}"
        ))
    }

    fn store_slot(&mut self, v: &str, slot: Val) {
        let v = self.aggregate(&format!(
            "llvm.call_intrinsic \"llvm.x86.cast.tile.to.vector.v256i32\"({v}) : ({TILE}) -> {SLOT}"
        ));
        self.b.stmt(&format!("llvm.store {v}, {slot} {{alignment = 64 : i64}} : {SLOT}, !llvm.ptr"));
    }

    /// A slot on the stack, which LLVM turns into a register.
    pub(super) fn slot(&mut self, ty: &str) -> Val {
        let slot = self.b.value(Ty::scalar(Elem::Ptr), 0);
        let text = format!("  {slot} = llvm.alloca %one x {ty} {{alignment = 64 : i64}} : (i64) -> !llvm.ptr\n");
        self.tile_registers.slots.push(text);
        slot
    }

    /// Loads the tiles to which a loop adds, and nothing else, into slots: how many.
    pub(super) fn carry_tiles(&mut self, body: &[Stmt]) -> Result<usize, EmitFault> {
        let found = self.added_to(body);
        let count = found.len();
        for result in found {
            let slot = self.slot(SLOT);
            let is_zero = self.tile_registers.zeros.contains(&result);
            let v = if is_zero { self.zero_tile() } else { self.load_tile(&result)? };
            self.store_slot(&v, slot);
            self.tile_registers.carried.push(Carried { result, slot });
        }
        self.tile_registers.zeros.clear();
        Ok(count)
    }

    /// Stores the last `count` of the tiles that are carried.
    pub(super) fn store_carried(&mut self, count: usize) -> Result<(), EmitFault> {
        let first = self.tile_registers.carried.len() - count;
        for c in self.tile_registers.carried.split_off(first) {
            let v = self.load_slot(c.slot);
            self.store_tile(&v, &c.result)?;
        }
        Ok(())
    }

    /// The tiles of results that `body` adds to in each iteration, where nothing else in it touches their buffers.
    pub(super) fn added_to(&self, body: &[Stmt]) -> Vec<Matrix> {
        let (mut tiles, mut touched): (Vec<&Tile>, Vec<TensorId>) = Default::default();
        for s in body {
            s.walk(&mut |s| match s {
                Stmt::Tile(t) if self.library.has_tiles(t.intrinsic.get().emission) => {
                    tiles.push(t);
                    touched.extend([t.a.tensor, t.b.tensor]);
                }
                s => {
                    touched.extend(s.writes());
                    touched.extend(s.named_reads());
                    for e in s.exprs() {
                        self.pool.walk(e, &mut |_, e| {
                            if let Expr::Load { tensor, .. } = e {
                                touched.push(*tensor);
                            }
                        });
                    }
                }
            });
        }
        let mut out: Vec<Matrix> = Vec::new();
        let mut left: Vec<TensorId> = Vec::new();
        for t in tiles {
            let c = &t.c;
            let around = self.tile_registers.carried.iter().any(|x| x.result.tensor == c.tensor);
            if around || touched.contains(&c.tensor) || !self.in_a_grid(c) {
                left.push(c.tensor);
            } else if !out.contains(c) {
                out.push(c.clone());
            }
        }
        out.retain(|c| !left.contains(&c.tensor));
        let one_pitch = |c: &Matrix| out.iter().all(|x| x.tensor != c.tensor || distance(x) == distance(c));
        let alone: Vec<bool> = out.iter().map(one_pitch).collect();
        out.into_iter().zip(alone).filter(|x| x.1).map(|x| x.0).collect()
    }

    /// Whether a tile begins at constants that are multiples of its sizes, so that no other such tile shares elements with it.
    fn in_a_grid(&self, c: &Matrix) -> bool {
        let known = |e: Result<ExprId, EmitFault>| e.ok().and_then(|e| self.pool.as_int(e));
        let (Some(at), Some(row)) = (known(Ok(c.offset)), known(distance(c))) else { return false };
        let [rows, columns] = SUMS;
        row > 0 && row % columns == 0 && at >= 0 && at % row % columns == 0 && at / row % rows == 0
    }
}

/// Elements from one row of a tile to the next, as its register has them.
fn distance(m: &Matrix) -> Result<ExprId, EmitFault> {
    m.blocks.map(|b| b[0]).ok_or(EmitFault::NotLegal("a tile that does not lie in rows"))
}
