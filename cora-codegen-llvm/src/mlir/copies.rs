//! Copies into shared memory that go on beside the threads: `cp.async` where the target has it, else a load and a store.
//!
//! ```text
//! copy @L[ramp(%i, 1, 4)] = (@A[ramp(%j, 1, 4)] if ramp(%j, 1, 4) < splat(%n, 4) else splat(0.0:f32, 4))
//!   =>  nvvm.cp.async.shared.global %l, %a, 16, cache = cg, %bytes      // %bytes = 4 * min(max(%n - %j, 0), 4)
//! ```
//!
//! An instruction copies 16 bytes, or 8 or 4, from and to addresses that are multiples of that; what is beyond the given
//! number of bytes is not read, and becomes zero. So tails need neither padding nor a branch.

use cora_ir::{BinOp, Expr, ExprId, TensorId};

use super::EmitFault;
use super::builder::{Elem, Ty, Val};
use super::convert::memory_elem;
use super::expr::Emitter;
use super::lanes::affine;

/// What one instruction may copy, in bytes.
const SIZES: [u32; 3] = [16, 8, 4];

/// A copy by instructions of `piece` bytes each.
struct Pieces {
    from: TensorId,
    /// The first element that is read, and the first that is written.
    source: ExprId,
    target: ExprId,
    /// Bytes of an element.
    size: u32,
    lanes: u32,
    piece: u32,
    there: There,
}

/// Which elements there are; the others are zeros.
enum There {
    All,
    /// All or none; nothing of the address is known where there are none.
    Where(ExprId),
    AllOrNone(ExprId),
    /// The first ones: as many as this, at least 0 and at most all.
    First(ExprId),
    /// Each by itself.
    Each(ExprId),
}

impl Emitter<'_> {
    /// `tensor[index] = value` where `mask` holds, some time before the group has been waited for.
    pub(super) fn copy(
        &mut self,
        tensor: TensorId,
        index: ExprId,
        value: ExprId,
        mask: Option<ExprId>,
    ) -> Result<(), EmitFault> {
        if self.threads.is_none() {
            return Err(EmitFault::NotLegal("a copy into shared memory"));
        }
        match mask.filter(|&m| self.pool.ty(m).lanes == 1) {
            Some(cond) => self.guarded(cond, |s| s.copy_where(tensor, index, value, None))?,
            None => self.copy_where(tensor, index, value, mask)?,
        }
        self.forget(&[tensor]);
        Ok(())
    }

    fn copy_where(
        &mut self,
        tensor: TensorId,
        index: ExprId,
        value: ExprId,
        mask: Option<ExprId>,
    ) -> Result<(), EmitFault> {
        match self.pieces(tensor, index, value).filter(|_| self.async_copies && mask.is_none()) {
            None => self.store(&[(tensor, value)], index, mask),
            Some(p) => {
                self.read.push(p.from);
                match p.there {
                    There::Where(cond) => {
                        let cond = self.emit(cond)?;
                        self.open();
                        self.copy_pieces(tensor, &p)?;
                        let then = self.close();
                        self.open();
                        let zero = self.zeros(value);
                        self.store(&[(tensor, zero)], index, None)?;
                        let other = self.close();
                        self.b.splice(&format!("scf.if {cond} {{"), &[(&then, "} else {"), (&other, "}")]);
                        Ok(())
                    }
                    _ => self.copy_pieces(tensor, &p),
                }
            }
        }
    }

    /// The value of a guarded load where its guard does not hold.
    fn zeros(&self, value: ExprId) -> ExprId {
        match *self.pool.get(value) {
            Expr::Load { guard: Some((_, other)), .. } => other,
            _ => value,
        }
    }

    /// The pieces of a copy of neighbours to neighbours whose addresses are known to be multiples of a piece.
    fn pieces(&mut self, tensor: TensorId, index: ExprId, value: ExprId) -> Option<Pieces> {
        let Expr::Load { tensor: from, index: source, guard, .. } = self.pool.get(value).clone() else { return None };
        let lanes = self.pool.ty(index).lanes;
        let (to, source) = (affine(self, index)?, affine(self, source[0]).filter(|_| source.len() == 1)?);
        let step = i64::from(lanes > 1);
        if to.stride != step || source.stride != step {
            return None;
        }
        let elem = memory_elem(self.module.env.tensors[tensor].ty);
        let (ty, size) = (Ty { elem, lanes }, elem.bits() / 8);
        let align = self.alignment(to.base, ty).min(self.alignment(source.base, ty));
        let fits = |p: &u32| u64::from(*p) <= align && (lanes * size).is_multiple_of(*p) && p.is_multiple_of(size);
        let mut piece = SIZES.into_iter().find(fits)?;
        let there = match guard {
            None => There::All,
            Some((cond, _)) => match (self.of_all_lanes(cond), self.first_lanes(cond)) {
                (Some(cond), _) => {
                    let reads = |n: &Expr| matches!(n, Expr::Load { .. } | Expr::Search { .. });
                    let known = !self.pool.any(source.base, &mut |n| reads(n));
                    if known { There::AllOrNone(cond) } else { There::Where(cond) }
                }
                (None, Some(count)) => There::First(count),
                (None, None) if size == 4 => {
                    piece = size;
                    There::Each(cond)
                }
                (None, None) => return None,
            },
        };
        Some(Pieces { from, source: source.base, target: to.base, size, lanes, piece, there })
    }

    /// The condition that a mask is in each of its lanes, if it is one.
    fn of_all_lanes(&mut self, cond: ExprId) -> Option<ExprId> {
        if self.pool.ty(cond).lanes == 1 {
            return Some(cond);
        }
        match *self.pool.get(cond) {
            Expr::Splat(c, _) => Some(c),
            Expr::Bin(op @ (BinOp::Lt | BinOp::Le), x, y) => {
                let (x, y) = (affine(self, x)?, affine(self, y)?);
                (x.stride == y.stride).then(|| self.pool.bin(op, x.base, y.base))
            }
            Expr::Bin(op @ (BinOp::And | BinOp::Or), x, y) => {
                let (x, y) = (self.of_all_lanes(x)?, self.of_all_lanes(y)?);
                Some(self.pool.bin(op, x, y))
            }
            _ => None,
        }
    }

    /// How many lanes a mask lets through, not limited to those that there are, if these are the first ones.
    fn first_lanes(&mut self, cond: ExprId) -> Option<ExprId> {
        if let Expr::Bin(BinOp::And, a, b) = *self.pool.get(cond) {
            for (all, first) in [(a, b), (b, a)] {
                if let (Some(all), Some(count)) = (self.of_all_lanes(all), self.first_lanes(first)) {
                    let none = self.pool.int(0);
                    return Some(self.pool.select(all, count, none));
                }
            }
            return None;
        }
        let Expr::Bin(op @ (BinOp::Lt | BinOp::Le), x, y) = *self.pool.get(cond) else { return None };
        let (x, y) = (affine(self, x)?, affine(self, y)?);
        if x.stride - y.stride != 1 {
            return None;
        }
        let (count, more) = (self.pool.sub(y.base, x.base), self.pool.int(i64::from(op == BinOp::Le)));
        Some(self.pool.add(count, more))
    }

    fn copy_pieces(&mut self, tensor: TensorId, p: &Pieces) -> Result<(), EmitFault> {
        let each = p.piece / p.size;
        for n in 0..p.lanes / each {
            let by = self.pool.int(i64::from(n * each));
            let (to, from) = (self.pool.add(p.target, by), self.pool.add(p.source, by));
            let (to, from) = (self.address(tensor, to)?, self.address(p.from, from)?);
            let bytes = self.bytes(p, n)?;
            self.copy_piece((to, from), p.piece, bytes);
        }
        Ok(())
    }

    /// The bytes of piece `n` that are read; nothing = all of them.
    fn bytes(&mut self, p: &Pieces, n: u32) -> Result<Option<Val>, EmitFault> {
        let word = Ty::scalar(Elem::I32);
        let some = match p.there {
            There::All | There::Where(_) => return Ok(None),
            There::AllOrNone(cond) => self.emit(cond)?,
            There::Each(cond) => {
                let all = self.emit(cond)?;
                self.b.extract(all, n)
            }
            There::First(count) => {
                let each = p.piece / p.size;
                let before = self.pool.int(i64::from(n * each));
                let left = self.pool.sub(count, before);
                let left = self.emit_scalar(left, "the bound of a mask is a vector")?;
                let (least, most) = (self.b.i64(0), self.b.i64(each.into()));
                let left = self.b.bin("arith.minsi", left, most);
                let left = self.b.bin("arith.maxsi", left, least);
                let left = self.b.convert("arith.trunci", left, Elem::I32);
                let size = self.b.int(word, p.size.into());
                return Ok(Some(self.b.bin("arith.muli", left, size)));
            }
        };
        let (all, none) = (self.b.int(word, p.piece.into()), self.b.int(word, 0));
        Ok(Some(self.b.select(some, all, none)))
    }

    fn copy_piece(&mut self, (to, from): (Val, Val), piece: u32, bytes: Option<Val>) {
        let pointer = Ty::scalar(Elem::Ptr);
        let to = self.b.op(pointer, &format!("llvm.addrspacecast {to} : !llvm.ptr to !llvm.ptr<3>"));
        let from = self.b.op(pointer, &format!("llvm.addrspacecast {from} : !llvm.ptr to !llvm.ptr<1>"));
        // Only whole cache sectors may pass by the first level.
        let cache = if piece == 16 { "cg" } else { "ca" };
        let (bytes, ty) = match bytes {
            Some(b) => (format!(", {b}"), ", i32"),
            None => (String::new(), ""),
        };
        self.b.stmt(&format!(
            "nvvm.cp.async.shared.global {to}, {from}, {piece}, cache = {cache}{bytes} : !llvm.ptr<3>, !llvm.ptr<1>{ty}"
        ));
    }

    pub(super) fn commit(&mut self) -> Result<(), EmitFault> {
        if self.async_copies {
            self.b.stmt("nvvm.cp.async.commit.group");
        }
        Ok(())
    }

    pub(super) fn wait(&mut self, pending: u32) -> Result<(), EmitFault> {
        if self.async_copies {
            self.b.stmt(&format!("nvvm.cp.async.wait.group {pending}"));
            let all = self.stored.clone();
            self.forget(&all);
        }
        Ok(())
    }
}
