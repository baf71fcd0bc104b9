//! Tiles of tensor instructions, by the emission key of each (`cora_ir::intrinsic`).
//!
//! `mma.sync`: each lane loads its elements of the factors as the lane map says, pairs of 16 bits as one word; where rows
//! of a factor in shared memory begin at multiples of 16 bytes, `ldmatrix` loads what a warp needs at once. The result is
//! in registers (stack slots of constant index, which LLVM turns into registers), or in memory.
//!
//! `vdpbf16ps`: a pair of the left factor in all lanes, 16 pairs of the right one; without the instruction the same products,
//! each added by itself. The instruction flushes denormals to zero.
//!
//! `vpdpbusd`: four bytes of the left factor in all lanes, four for each of 16 columns; `vpmaddwd`: the same bytes, for each of 8
//! columns, every other one as an integer of 16 bits. Without the instruction the same products.
//!
//! `tdpbf16ps`: see `amx.rs`.

use cora_ir::intrinsic::{Digit, Emission, Fragment, Of};
use cora_ir::storage::{Matrix, Tile};
use cora_ir::{ExprId, ScalarType, Scope};

use super::EmitFault;
use super::builder::{Elem, Ty, Val};
use super::bytes::MORE;
use super::convert::memory_elem;
use super::expr::Emitter;

const WORD: Ty = Ty { elem: Elem::I32, lanes: 1 };
const F32: Ty = Ty { elem: Elem::F32, lanes: 1 };

/// Which way neighbours lie in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Contiguous {
    Rows,
    Columns,
}

impl Emitter<'_> {
    /// `follows`: the statement before is a tile that goes on as well.
    pub(super) fn tile(&mut self, t: &Tile, follows: bool) -> Result<(), EmitFault> {
        self.read.extend(t.reads());
        match t.intrinsic.get().emission {
            Emission::MmaSync(key) => self.mma(t, key)?,
            Emission::Wgmma(key) => self.wgmma(t, key, follows)?,
            Emission::DotBf16 => self.dot(t)?,
            Emission::DotI8 => self.dot_of_bytes(t)?,
            emission @ (Emission::AmxBf16 | Emission::AmxI8) if self.library.has_tiles(emission) => self.amx(t)?,
            Emission::AmxBf16 | Emission::AmxI8 => self.rows_of_dots(t)?,
        }
        self.forget(&[t.c.tensor]);
        Ok(())
    }

    fn mma(&mut self, t: &Tile, key: &str) -> Result<(), EmitFault> {
        if self.threads.is_none() {
            return Err(EmitFault::NotLegal("an instruction of a GPU's warps"));
        }
        let i = t.intrinsic.get();
        let lane = self.b.op(WORD, "nvvm.read.ptx.sreg.tid.x : i32");
        let lane = self.b.convert("arith.extui", lane, Elem::I64);
        let a = self.factor(&t.a, &i.a, lane, true)?;
        let b = self.factor(&t.b, &i.b, lane, false)?;
        let places = self.result_places(&t.c, &i.c, lane)?;
        let c: Vec<Val> = places.iter().map(|&at| self.load_at(at, F32)).collect();
        let list = |vs: &[Val]| vs.iter().map(Val::to_string).collect::<Vec<_>>().join(", ");
        let [m, n, k] = i.tile;
        let register = if key == "f16" { "vector<2xf16>" } else { "i32" };
        let rhs = format!(
            "nvvm.mma.sync A[{}] B[{}] C[{}] {{layoutA = #nvvm.mma_layout<row>, layoutB = #nvvm.mma_layout<col>, \
             multiplicandAPtxType = #nvvm.mma_type<{key}>, multiplicandBPtxType = #nvvm.mma_type<{key}>, \
             shape = #nvvm.shape<m = {m}, n = {n}, k = {k}>}} : ({register}, {register}, f32) -> {RESULT}",
            list(&a),
            list(&b),
            list(&c),
        );
        let result = self.aggregate(&rhs);
        for (r, at) in places.into_iter().enumerate() {
            let v = self.b.op(F32, &format!("llvm.extractvalue {result}[{r}] : {RESULT}"));
            self.store_at(v, at);
        }
        Ok(())
    }

    /// A value of a type that is no vector: its name, which is the text's own.
    pub(super) fn aggregate(&mut self, rhs: &str) -> String {
        let name = format!("%tile{}", self.b.calls());
        self.b.stmt(&format!("{name} = {rhs}"));
        name
    }

    /// The words in which a lane holds its part of a factor.
    fn factor(&mut self, m: &Matrix, f: &Fragment, lane: Val, left: bool) -> Result<Vec<Val>, EmitFault> {
        if f.ty == ScalarType::F32 {
            let mut out = Vec::new();
            for at in self.places(m, f, lane)? {
                let v = self.load_at(at, F32);
                let round = format!("llvm.inline_asm \"cvt.rna.tf32.f32 $0, $1;\", \"=r,f\" {v} : (f32) -> i32");
                out.push(self.b.op(WORD, &round));
            }
            return Ok(out);
        }
        let words = match self.row_of_matrices(m) {
            Some(way) => self.load_matrices(m, way, lane, left)?,
            None => self.pairs(m, f, lane)?,
        };
        if f.ty != ScalarType::F16 {
            return Ok(words);
        }
        let pair = Ty { elem: Elem::F16, lanes: 2 };
        Ok(words.into_iter().map(|w| self.b.pure(pair, &[w], &format!("llvm.bitcast {w} : i32 to {pair}"))).collect())
    }

    /// Which way 8 elements lie side by side at a multiple of 16 bytes in shared memory, for `ldmatrix`.
    fn row_of_matrices(&self, m: &Matrix) -> Option<Contiguous> {
        if self.module.env.tensors[m.tensor].scope != Scope::Shared || self.divisor(m.offset) % 8 != 0 {
            return None;
        }
        match [m.row, m.column].map(|e| self.pool.as_int(e)) {
            [Some(row), Some(1)] if row % 8 == 0 => Some(Contiguous::Columns),
            [Some(1), Some(column)] if column % 8 == 0 => Some(Contiguous::Rows),
            _ => None,
        }
    }

    /// All of a factor of 16 rows (of A) or 8 columns (of B) and 16 reduced positions, in matrices of 8 by 8: each lane
    /// gives the address of one of their rows in memory.
    fn load_matrices(&mut self, m: &Matrix, way: Contiguous, lane: Val, left: bool) -> Result<Vec<Val>, EmitFault> {
        let (count, digits) = match (left, way) {
            // Lanes 0 to 15 the 16 rows, 16 to 31 the same 8 positions on.
            (true, Contiguous::Columns) => (4, [&[(1, 16, 1)][..], &[(16, 2, 8)]]),
            (true, Contiguous::Rows) => (4, [&[(8, 2, 8)][..], &[(1, 8, 1), (16, 2, 8)]]),
            // Lanes 16 to 31 repeat the addresses of the others.
            (false, Contiguous::Rows) => (2, [&[(8, 2, 8)][..], &[(1, 8, 1)]]),
            (false, Contiguous::Columns) => (2, [&[(1, 16, 1)][..], &[]]),
        };
        let base = self.address(m.tensor, m.offset)?;
        let mut at = base;
        for (digits, step) in digits.into_iter().zip([m.row, m.column]) {
            for &(divisor, modulus, times) in digits {
                at = self.moved(m, at, (lane, divisor, modulus), times, step)?;
            }
        }
        let shared = self.b.calls();
        self.b.stmt(&format!("%shared_row{shared} = llvm.addrspacecast {at} : !llvm.ptr to !llvm.ptr<3>"));
        // Memory's rows are rows of the 8 by 8 matrices: those of A hold reduced positions, those of B too.
        let along = if left { Contiguous::Columns } else { Contiguous::Rows };
        let layout = if way == along { "row" } else { "col" };
        let ty = format!("!llvm.struct<({})>", vec!["i32"; count].join(", "));
        let loaded = self.aggregate(&format!(
            "nvvm.ldmatrix %shared_row{shared} {{num = {count} : i32, layout = #nvvm.mma_layout<{layout}>, \
             shape = #nvvm.ld_st_matrix_shape<m = 8, n = 8>, eltType = #nvvm.ld_st_matrix_elt_type<b16>}} : \
             (!llvm.ptr<3>) -> {ty}"
        ));
        Ok((0..count).map(|n| self.b.op(WORD, &format!("llvm.extractvalue {loaded}[{n}] : {ty}"))).collect())
    }

    /// The elements that a lane holds, two in each word.
    fn pairs(&mut self, m: &Matrix, f: &Fragment, lane: Val) -> Result<Vec<Val>, EmitFault> {
        let places = self.places(m, f, lane)?;
        let side_by_side = {
            let (step, other) = steps_of_pair(m, f);
            // Along the pair lanes and registers move by even numbers.
            self.pool.as_int(step) == Some(1) && self.divisor(m.offset) % 2 == 0 && self.divisor(other) % 2 == 0
        };
        let mut out = Vec::new();
        for pair in places.chunks(2) {
            let [low, high] = pair else { return Err(EmitFault::NotLegal("half a pair")) };
            if side_by_side {
                out.push(self.load_word(*low));
                continue;
            }
            let half = WORD.with_elem(Elem::I16);
            let [low, high] = [*low, *high].map(|at| {
                let v = self.load_at(at, half);
                self.b.convert("arith.extui", v, Elem::I32)
            });
            let sixteen = self.b.int(WORD, 16);
            let high = self.b.bin("arith.shli", high, sixteen);
            out.push(self.b.bin("arith.ori", low, high));
        }
        Ok(out)
    }

    fn load_word(&mut self, at: Val) -> Val {
        self.b.op(WORD, &format!("llvm.load {at} {{alignment = 4 : i64}} : !llvm.ptr -> i32"))
    }

    /// Where a lane's elements of the result are.
    fn result_places(&mut self, m: &Matrix, f: &Fragment, lane: Val) -> Result<Vec<Val>, EmitFault> {
        if self.module.env.tensors[m.tensor].scope != Scope::Reg {
            return self.places(m, f, lane);
        }
        let mut out = Vec::new();
        for r in 0..f.registers {
            let at = self.sum(m.offset, r);
            out.push(self.address(m.tensor, at)?);
        }
        Ok(out)
    }

    fn sum(&mut self, e: ExprId, n: i64) -> ExprId {
        match self.pool.as_int(e) {
            Some(base) => self.pool.int(base.wrapping_add(n)),
            None => {
                let n = self.pool.int(n);
                self.pool.add(e, n)
            }
        }
    }

    /// The addresses of a lane's elements of a matrix in memory.
    fn places(&mut self, m: &Matrix, f: &Fragment, lane: Val) -> Result<Vec<Val>, EmitFault> {
        let mut base = self.address(m.tensor, m.offset)?;
        for (digits, step) in [(f.row, m.row), (f.column, m.column)] {
            for d in digits.iter().filter(|d| d.of == Of::Lane) {
                base = self.moved(m, base, (lane, d.divisor, d.modulus), d.times, step)?;
            }
        }
        let mut out = Vec::new();
        for r in 0..f.registers {
            let (row, column) = f.element(0, r);
            let (known, mut rest) = (self.constant_step(m, row, column), base);
            let elem = memory_elem(self.module.env.tensors[m.tensor].ty);
            let ptr = Ty::scalar(Elem::Ptr);
            match known {
                Some(0) => {}
                Some(n) => {
                    let rhs = format!("llvm.getelementptr {rest}[{n}] : (!llvm.ptr) -> !llvm.ptr, {elem}");
                    rest = self.b.pure(ptr, &[rest], &rhs);
                }
                None => {
                    for (n, step) in [(row, m.row), (column, m.column)] {
                        let (n, step) = (self.b.i64(n), self.emit_scalar(step, "a stride of a matrix is a vector")?);
                        let by = self.b.bin("arith.muli", n, step);
                        let rhs = format!("llvm.getelementptr {rest}[{by}] : (!llvm.ptr, i64) -> !llvm.ptr, {elem}");
                        rest = self.b.pure(ptr, &[rest, by], &rhs);
                    }
                }
            }
            out.push(rest);
        }
        Ok(out)
    }

    /// `row` rows and `column` columns on, if that is a number that fits an address.
    fn constant_step(&self, m: &Matrix, row: i64, column: i64) -> Option<i64> {
        let step = |n: i64, e: ExprId| if n == 0 { Some(0) } else { self.pool.as_int(e)?.checked_mul(n) };
        let sum = step(row, m.row)?.checked_add(step(column, m.column)?)?;
        i32::try_from(sum).ok().filter(|&n| n != i32::MIN).map(i64::from)
    }

    /// `at + lane / divisor % modulus * times * step`.
    fn moved(
        &mut self,
        m: &Matrix,
        at: Val,
        (lane, divisor, modulus): (Val, i64, i64),
        times: i64,
        step: ExprId,
    ) -> Result<Val, EmitFault> {
        if self.pool.as_int(step) == Some(0) {
            return Ok(at);
        }
        let (divisor, modulus, times) = (self.b.i64(divisor), self.b.i64(modulus), self.b.i64(times));
        let step = self.emit_scalar(step, "a stride of a matrix is a vector")?;
        let digit = self.b.bin("arith.divui", lane, divisor);
        let digit = self.b.bin("arith.remui", digit, modulus);
        let by = self.b.bin("arith.muli", times, step);
        let by = self.b.bin("arith.muli", digit, by);
        let elem = memory_elem(self.module.env.tensors[m.tensor].ty);
        let rhs = format!("llvm.getelementptr {at}[{by}] : (!llvm.ptr, i64) -> !llvm.ptr, {elem}");
        Ok(self.b.pure(Ty::scalar(Elem::Ptr), &[at, by], &rhs))
    }

    fn dot(&mut self, t: &Tile) -> Result<(), EmitFault> {
        let columns = t.intrinsic.get().tile[1] as u32;
        let a = self.left_pair(&t.a)?;
        let b = self.right_pairs(&t.b, columns)?;
        let at = self.in_lanes(t.c.offset, t.c.column, columns);
        let c = self.load_all(t.c.tensor, at, columns)?;
        let v = self.dot_of_pairs(a, b, c);
        self.write(t.c.tensor, at, v, None)
    }

    /// `c` and the products of a pair of the left factor with pairs of the right one, in a word each.
    pub(super) fn dot_of_pairs(&mut self, a: Val, b: Val, c: Val) -> Val {
        let (wide, columns) = (self.b.ty(c), self.b.ty(c).lanes);
        let a = self.b.broadcast(a, columns);
        if self.library.dot_bf16() {
            let halves = format!("vector<{}xbf16>", 2 * columns);
            let [a, b] =
                [a, b].map(|v| self.aggregate(&format!("llvm.bitcast {v} : vector<{columns}xi32> to {halves}")));
            self.b.op(
                wide,
                &format!(
                    "llvm.call_intrinsic \"llvm.x86.avx512bf16.dpbf16ps.512\"({c}, {a}, {b}) : ({wide}, {halves}, {halves}) -> {wide}"
                ),
            )
        } else {
            let sum = self.product(a, b, c, |s, v| {
                let kept = s.b.int(s.b.ty(v), -1 << 16);
                s.b.bin("arith.andi", v, kept)
            });
            self.product(a, b, sum, |s, v| {
                let sixteen = s.b.int(s.b.ty(v), 16);
                s.b.bin("arith.shli", v, sixteen)
            })
        }
    }

    /// `c + a * b` of one half of each word.
    fn product(&mut self, a: Val, b: Val, c: Val, half: impl Fn(&mut Self, Val) -> Val) -> Val {
        let [x, y] = [a, b].map(|v| {
            let bits = half(self, v);
            self.b.bitcast(bits, Elem::F32)
        });
        self.b.fma(x, y, c)
    }

    /// The products of four bytes of the left factor with four for each column.
    fn dot_of_bytes(&mut self, t: &Tile) -> Result<(), EmitFault> {
        let columns = t.intrinsic.get().tile[1] as u32;
        let a = self.left_bytes(&t.a)?;
        let b = self.right_bytes(&t.b, columns)?;
        let at = self.in_lanes(t.c.offset, t.c.column, columns);
        let c = self.load_all(t.c.tensor, at, columns)?;
        let v = self.dot_of_fours(a, b, c);
        self.write(t.c.tensor, at, v, None)
    }

    /// `c` and the products of four bytes of the left factor with four bytes of the right one, in a word each.
    ///
    /// `vpdpbusd` takes bytes without a sign on the left: those of A plus 128, and what that adds is taken off again, here or
    /// after the loop (`bytes.rs`).
    pub(super) fn dot_of_fours(&mut self, a: Val, b: Val, c: Val) -> Val {
        let (wide, columns) = (self.b.ty(c), self.b.ty(c).lanes);
        if self.library.dot_i8() && columns == 16 {
            let a = self.b.broadcast(a, columns);
            let signs = self.more.unwrap_or_else(|| self.b.int(wide, MORE));
            let a = self.b.bin("arith.xori", a, signs);
            let sum = self.dot_of_words(c, a, b);
            if self.more.is_some() {
                return sum;
            }
            let none = self.b.int(wide, 0);
            let surplus = self.dot_of_words(none, signs, b);
            self.b.bin("arith.subi", sum, surplus)
        } else if self.library.pairs_i16() && columns == 8 {
            let a = self.b.broadcast(a, columns);
            let [low, high] = [8, 0].map(|up| {
                let [x, y] = [a, b].map(|v| self.every_other_byte(v, up));
                self.pairs_of_words(x, y)
            });
            let sum = self.b.bin("arith.addi", c, low);
            self.b.bin("arith.addi", sum, high)
        } else {
            let a = self.b.broadcast(a, columns);
            let mut sum = c;
            for byte in 0..4 {
                let [x, y] = [a, b].map(|v| {
                    let (up, down) = (self.b.int(wide, 24 - 8 * byte), self.b.int(wide, 24));
                    let high = self.b.bin("arith.shli", v, up);
                    self.b.bin("arith.shrsi", high, down)
                });
                let product = self.b.bin("arith.muli", x, y);
                sum = self.b.bin("arith.addi", sum, product);
            }
            sum
        }
    }

    /// The bytes of `v` at even places, shifted up by 8 bits first, or at odd ones as they are, in 16 bits each.
    fn every_other_byte(&mut self, v: Val, up: i64) -> Val {
        let whole = self.b.ty(v);
        let half = Ty { elem: Elem::I16, lanes: 2 * whole.lanes };
        let v = self.b.op(half, &format!("llvm.bitcast {v} : {whole} to {half}"));
        let (up, down) = (self.b.int(half, up), self.b.int(half, 8));
        let high = self.b.bin("arith.shli", v, up);
        self.b.bin("arith.shrsi", high, down)
    }

    /// Sums of two neighbouring products of 16 bits.
    fn pairs_of_words(&mut self, a: Val, b: Val) -> Val {
        let halves = self.b.ty(a);
        let wide = Ty { elem: Elem::I32, lanes: halves.lanes / 2 };
        self.b.op(
            wide,
            &format!("llvm.call_intrinsic \"llvm.x86.avx2.pmadd.wd\"({a}, {b}) : ({halves}, {halves}) -> {wide}"),
        )
    }

    pub(super) fn dot_of_words(&mut self, c: Val, a: Val, b: Val) -> Val {
        let wide = self.b.ty(c);
        let bytes = format!("vector<{}xi8>", 4 * wide.lanes);
        let [x, y] = [a, b].map(|v| self.aggregate(&format!("llvm.bitcast {v} : {wide} to {bytes}")));
        self.b.op(
            wide,
            &format!(
                "llvm.call_intrinsic \"llvm.x86.avx512.vpdpbusd.512\"({c}, {x}, {y}) : ({wide}, {bytes}, {bytes}) -> {wide}"
            ),
        )
    }

    /// The four elements of the left factor in one word.
    fn left_bytes(&mut self, m: &Matrix) -> Result<Val, EmitFault> {
        if self.pool.as_int(m.column) == Some(1) {
            let first = self.address(m.tensor, m.offset)?;
            return Ok(self.b.op(WORD, &format!("llvm.load {first} {{alignment = 1 : i64}} : !llvm.ptr -> i32")));
        }
        let mut index = m.offset;
        let mut bytes = Vec::new();
        for _ in 0..4 {
            let at = self.address(m.tensor, index)?;
            bytes.push(self.load_at(at, WORD.with_elem(Elem::I8)));
            index = self.pool.add(index, m.column);
        }
        Ok(self.word_of(&bytes))
    }

    /// Four elements of the right factor in a word for each column.
    pub(super) fn right_bytes(&mut self, m: &Matrix, columns: u32) -> Result<Val, EmitFault> {
        let words = WORD.with_lanes(columns);
        if self.pool.as_int(m.row) == Some(1) && self.pool.as_int(m.column) == Some(4) {
            let at = self.address(m.tensor, m.offset)?;
            return Ok(self.b.op(words, &format!("llvm.load {at} {{alignment = 1 : i64}} : !llvm.ptr -> {words}")));
        }
        let mut index = m.offset;
        let mut bytes = Vec::new();
        for _ in 0..4 {
            let at = self.in_lanes(index, m.column, columns);
            bytes.push(self.load_all(m.tensor, at, columns)?);
            index = self.pool.add(index, m.row);
        }
        Ok(self.word_of(&bytes))
    }

    /// Bytes in words, the first one lowest.
    fn word_of(&mut self, bytes: &[Val]) -> Val {
        let mut word = None;
        for (n, &v) in bytes.iter().enumerate() {
            let v = self.b.convert("arith.extui", v, Elem::I32);
            let by = self.b.int(self.b.ty(v), 8 * n as i64);
            let v = self.b.bin("arith.shli", v, by);
            word = Some(word.map_or(v, |w| self.b.bin("arith.ori", w, v)));
        }
        word.unwrap_or_else(|| self.b.int(WORD, 0))
    }

    /// The index of elements `step` apart, a lane each.
    fn in_lanes(&mut self, first: ExprId, step: ExprId, lanes: u32) -> ExprId {
        if let Some(step) = self.pool.as_int(step) {
            return self.pool.ramp(first, step, lanes);
        }
        let (first, step, zero) = (self.pool.splat(first, lanes), self.pool.splat(step, lanes), self.pool.int(0));
        let numbers = self.pool.ramp(zero, 1, lanes);
        let by = self.pool.mul(numbers, step);
        self.pool.add(first, by)
    }

    /// The two elements of the left factor in one word.
    fn left_pair(&mut self, m: &Matrix) -> Result<Val, EmitFault> {
        let first = self.address(m.tensor, m.offset)?;
        if self.pool.as_int(m.column) == Some(1) {
            return Ok(self.b.op(WORD, &format!("llvm.load {first} {{alignment = 2 : i64}} : !llvm.ptr -> i32")));
        }
        let next = self.pool.add(m.offset, m.column);
        let next = self.address(m.tensor, next)?;
        let [low, high] = [first, next].map(|at| self.load_at(at, WORD.with_elem(Elem::I16)));
        Ok(self.joined(low, high))
    }

    /// The pairs of the right factor in a word for each column.
    fn right_pairs(&mut self, m: &Matrix, columns: u32) -> Result<Val, EmitFault> {
        let words = WORD.with_lanes(columns);
        if self.pool.as_int(m.row) == Some(1) && self.pool.as_int(m.column) == Some(2) {
            let at = self.address(m.tensor, m.offset)?;
            return Ok(self.b.op(words, &format!("llvm.load {at} {{alignment = 2 : i64}} : !llvm.ptr -> {words}")));
        }
        let next = self.pool.add(m.offset, m.row);
        let low = self.in_lanes(m.offset, m.column, columns);
        let high = self.in_lanes(next, m.column, columns);
        let (low, high) = (self.load_all(m.tensor, low, columns)?, self.load_all(m.tensor, high, columns)?);
        Ok(self.joined(low, high))
    }

    fn joined(&mut self, low: Val, high: Val) -> Val {
        let [low, high] = [low, high].map(|v| self.b.convert("arith.extui", v, Elem::I32));
        let sixteen = self.b.int(self.b.ty(high), 16);
        let high = self.b.bin("arith.shli", high, sixteen);
        self.b.bin("arith.ori", low, high)
    }
}

/// The distance of a pair's elements in memory, and that of neighbours in the other coordinate.
fn steps_of_pair(m: &Matrix, f: &Fragment) -> (ExprId, ExprId) {
    let is_pair = |d: &Digit| d.of == Of::Register && d.divisor == 1 && d.modulus == 2 && d.times == 1;
    if f.row.iter().any(is_pair) { (m.row, m.column) } else { (m.column, m.row) }
}

/// What `mma.sync` gives.
const RESULT: &str = "!llvm.struct<(f32, f32, f32, f32)>";
