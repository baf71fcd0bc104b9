//! Sums of products of bytes by `vpdpbusd`, which takes bytes without a sign on the left: those of A plus 128. What that adds is
//! the same for all rows. Where it is the same for all iterations of a loop over rows, it is summed once before that, and taken off
//! at the end of the loop inside, which only adds.
//!
//! ```text
//! for %k { tile dot.n16k4.i32.i8 @C[..] += @A[..] * @B[..] .. }
//!   =>  for %k { %s += 128 * @B .. }                  (before the loop around)
//!       for %k { @C += (@A + 128) * @B .. }
//!       @C = @C - %s ..
//! ```

use cora_ir::intrinsic::Emission;
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Matrix, Stmt, Tile};
use cora_ir::{Expr, Scope, VarId};

use super::EmitFault;
use super::builder::{Cmp, Elem, Ty, Val};
use super::expr::Emitter;
use super::kernel::stored;

const SUMS: Ty = Ty { elem: Elem::I32, lanes: 16 };
/// 128 in each byte of a word.
pub(super) const MORE: i64 = 0x8080_8080_u32 as i32 as i64;

/// What a loop over `of` adds too much for each of some columns.
#[derive(Clone)]
pub(super) struct Surplus {
    of: VarId,
    columns: Vec<Matrix>,
    /// 128 in all bytes.
    pub(super) more: Val,
    slots: Vec<Val>,
}

/// The sums that a loop adds to.
pub(super) struct ByteSums {
    /// Factors of the columns.
    columns: Vec<Matrix>,
    /// Tiles of the result, each with the columns that it is multiplied with.
    results: Vec<(Matrix, Vec<usize>)>,
}

impl Emitter<'_> {
    /// The sums that `body` adds to, if it does nothing else, several with the same columns, in a buffer of their own.
    pub(super) fn byte_sums(&self, body: &[Stmt]) -> Option<ByteSums> {
        if !self.library.dot_i8() || self.more.is_some() {
            return None;
        }
        let mut found = ByteSums { columns: Vec::new(), results: Vec::new() };
        for s in body {
            let Stmt::Tile(t) = s else { return None };
            self.is_of_bytes(t).then_some(())?;
            let of = |c: &Matrix| c == &t.b;
            let column = found.columns.iter().position(of).unwrap_or_else(|| {
                found.columns.push(t.b.clone());
                found.columns.len() - 1
            });
            match found.results.iter_mut().find(|r| r.0 == t.c) {
                Some(r) => r.1.push(column),
                None => found.results.push((t.c.clone(), vec![column])),
            }
        }
        let mut at: Vec<i64> = found.results.iter().filter_map(|r| self.pool.as_int(r.0.offset)).collect();
        at.sort_unstable();
        let one = found.results.iter().all(|r| r.0.tensor == found.results[0].0.tensor);
        let apart = at.windows(2).all(|w| w[1] - w[0] >= i64::from(SUMS.lanes));
        (one && apart && found.results.len() > found.columns.len()).then_some(found)
    }

    /// Whether a tile is one row of 16 sums at a constant place of a buffer that is a thread's own.
    fn is_of_bytes(&self, t: &Tile) -> bool {
        let i = t.intrinsic.get();
        i.emission == Emission::DotI8
            && i.tile[1] == i64::from(SUMS.lanes)
            && matches!(self.module.env.tensors[t.c.tensor].scope, Scope::Reg | Scope::Local)
            && ![t.a.tensor, t.b.tensor].contains(&t.c.tensor)
            && self.pool.as_int(t.c.offset).is_some()
            && self.pool.as_int(t.c.column) == Some(1)
    }

    /// Sums what loops directly inside the next one will have too much, where it is the same in all its iterations: how many are
    /// known then.
    pub(super) fn surplus_before(
        &mut self,
        var: VarId,
        (start, end): (Val, Val),
        body: &[Stmt],
    ) -> Result<usize, EmitFault> {
        let before = self.surplus.len();
        for s in body {
            let Stmt::For { var: inner, extent, kind: LoopKind::Serial, body: adds } = s else { continue };
            let Some(sums) = self.byte_sums(adds) else { continue };
            let written = stored(body);
            let columns = sums.columns.iter().flat_map(|m| [m.offset, m.row, m.column]);
            let mut still = true;
            for e in columns.chain([*extent]) {
                self.pool.walk(e, &mut |_, n| {
                    still &= match n {
                        Expr::Var(v) => v == inner || *v != var && !defines(body, *v),
                        Expr::Load { tensor, .. } => !written.contains(tensor),
                        _ => true,
                    };
                });
            }
            if !still || sums.columns.iter().any(|m| written.contains(&m.tensor)) {
                continue;
            }
            let more = self.more_in_bytes();
            let slots: Vec<Val> = sums.columns.iter().map(|_| self.slot(&SUMS.to_string())).collect();
            let runs = self.b.cmpi(Cmp::Lt, false, start, end);
            self.open();
            let (none, end) = (self.b.i64(0), self.emit_scalar(*extent, "the extent of a loop is a vector")?);
            self.sum_columns((&sums.columns, &slots), more, *inner, (none, end))?;
            let text = self.close();
            self.b.splice(&format!("scf.if {runs} {{"), &[(&text, "}")]);
            self.surplus.push(Surplus { of: *inner, columns: sums.columns, more, slots });
        }
        Ok(self.surplus.len() - before)
    }

    /// What a loop over `of` will have too much, if it is known.
    pub(super) fn known_surplus(&self, sums: &ByteSums, of: VarId) -> Option<Surplus> {
        self.surplus.iter().find(|s| s.of == of && s.columns == sums.columns).cloned()
    }

    /// 128 in all bytes, which LLVM does not know: it would add it to each word of the left factor before it is in all lanes, where
    /// one instruction does both to what it loads.
    pub(super) fn more_in_bytes(&mut self) -> Val {
        let (slot, more) = (self.slot(&SUMS.to_string()), self.b.int(SUMS, MORE));
        self.b.stmt(&format!("llvm.store volatile {more}, {slot} {{alignment = 64 : i64}} : {SUMS}, !llvm.ptr"));
        self.b.op(SUMS, &format!("llvm.load volatile {slot} {{alignment = 64 : i64}} : !llvm.ptr -> {SUMS}"))
    }

    fn sum_columns(
        &mut self,
        (columns, slots): (&[Matrix], &[Val]),
        more: Val,
        var: VarId,
        (start, end): (Val, Val),
    ) -> Result<(), EmitFault> {
        let (step, none) = (self.b.i64(1), self.b.int(SUMS, 0));
        slots.iter().for_each(|&slot| self.store_sums(none, slot));
        let i = self.b.value(Ty::scalar(Elem::I64), self.b.depth() + 1);
        self.bind(var, i, true);
        self.open();
        for (column, &slot) in columns.iter().zip(slots) {
            let b = self.right_bytes(column, SUMS.lanes)?;
            let sum = self.load_sums(slot);
            let sum = self.dot_of_words(sum, more, b);
            self.store_sums(sum, slot);
        }
        let text = self.close();
        self.b.splice(&format!("scf.for {i} = {start} to {end} step {step} : i64 {{"), &[(&text, "}")]);
        Ok(())
    }

    /// Takes the surplus off.
    pub(super) fn take_off(&mut self, sums: &ByteSums, surplus: &Surplus) -> Result<(), EmitFault> {
        for (result, columns) in &sums.results {
            let at = self.pool.ramp(result.offset, 1, SUMS.lanes);
            let mut v = self.load_all(result.tensor, at, SUMS.lanes)?;
            for &n in columns {
                let more = self.load_sums(surplus.slots[n]);
                v = self.b.bin("arith.subi", v, more);
            }
            self.write(result.tensor, at, v, None)?;
        }
        let results: Vec<_> = sums.results.iter().map(|r| r.0.tensor).collect();
        self.forget(&results);
        Ok(())
    }

    fn load_sums(&mut self, slot: Val) -> Val {
        self.b.op(SUMS, &format!("llvm.load {slot} {{alignment = 64 : i64}} : !llvm.ptr -> {SUMS}"))
    }

    fn store_sums(&mut self, v: Val, slot: Val) {
        self.b.stmt(&format!("llvm.store {v}, {slot} {{alignment = 64 : i64}} : {SUMS}, !llvm.ptr"));
    }
}

/// Whether statements give a name its value.
fn defines(body: &[Stmt], v: VarId) -> bool {
    body.iter().any(|s| s.any(&mut |s| matches!(s, Stmt::Let { var, .. } | Stmt::For { var, .. } if *var == v)))
}
