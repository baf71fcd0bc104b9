//! Reads and writes of consecutive elements under a mask, in parts of one register at most.
//!
//! LLVM 22 splits those of longer vectors by itself, but not always their masks: of `<16 x float>` on a processor with
//! registers of eight, under a condition for all lanes and one that the last eight never meet, it reads the last eight
//! without a mask, and so beyond the end of a buffer.

use cora_ir::{Expr, ExprId, ExprPool};

use super::EmitFault;
use super::builder::{Ty, Val};
use super::expr::Emitter;

/// A condition for each lane.
pub(super) struct Mask {
    /// For all lanes.
    pub(super) whole: Val,
    /// For the lanes of each part, and its first lane.
    parts: Vec<(u32, Val)>,
}

impl Emitter<'_> {
    /// The mask of an access to a vector of this type.
    pub(super) fn mask(&mut self, cond: ExprId, ty: Ty) -> Result<Mask, EmitFault> {
        let whole = self.emit(cond)?;
        let counts = self.parts(ty);
        if counts.len() == 1 {
            return Ok(Mask { whole, parts: vec![(0, whole)] });
        }
        let mut parts = Vec::new();
        let mut first = 0;
        for count in counts {
            // A piece of the whole mask would be split no better.
            let mask = match part_of(self.pool, cond, first, count) {
                Some(e) => self.emit(e)?,
                None => self.b.slice(whole, first, count),
            };
            parts.push((first, self.b.broadcast(mask, count)));
            first += count;
        }
        Ok(Mask { whole, parts })
    }

    /// Lanes of the parts of a vector: no more than fill a register, and two at least.
    fn parts(&self, ty: Ty) -> Vec<u32> {
        let most = (self.library.masked_bytes() / (ty.elem.bits() / 8)).max(3);
        let mut parts = Vec::new();
        let mut rest = ty.lanes;
        while rest > most {
            let count = if rest == most + 1 { most - 1 } else { most };
            parts.push(count);
            rest -= count;
        }
        parts.push(rest);
        parts
    }

    /// Elements where the mask holds, lanes of `pass` elsewhere; `address` gives that of a lane.
    pub(super) fn read_under(
        &mut self,
        mask: &Mask,
        pass: Val,
        address: impl Fn(&mut Self, u32) -> Result<Val, EmitFault>,
    ) -> Result<Val, EmitFault> {
        let mut all: Option<Val> = None;
        for &(first, mask) in &mask.parts {
            let bits = self.b.ty(mask);
            let at = address(self, first)?;
            let pass = self.b.slice(pass, first, bits.lanes);
            let ty = self.b.ty(pass);
            let rhs = format!(
                "llvm.intr.masked.load {at}, {mask}, {pass} {{alignment = {} : i32}} : (!llvm.ptr, {bits}, {ty}) -> {ty}",
                ty.elem.bits() / 8,
            );
            let part = self.b.op(ty, &rhs);
            all = Some(all.map_or(part, |before| self.followed(before, part)));
        }
        all.ok_or(EmitFault::Lanes("a vector without lanes is read"))
    }

    /// Stores the lanes of `v` where the mask holds; `address` gives that of a lane.
    pub(super) fn write_under(
        &mut self,
        mask: &Mask,
        v: Val,
        address: impl Fn(&mut Self, u32) -> Result<Val, EmitFault>,
    ) -> Result<(), EmitFault> {
        for &(first, mask) in &mask.parts {
            let bits = self.b.ty(mask);
            let at = address(self, first)?;
            let v = self.b.slice(v, first, bits.lanes);
            let ty = self.b.ty(v);
            let align = ty.elem.bits() / 8;
            let masked = format!(
                "llvm.intr.masked.store {v}, {at}, {mask} {{alignment = {align} : i32}} : {ty}, {bits} into !llvm.ptr"
            );
            if !self.library.full_stores() {
                self.b.stmt(&masked);
                continue;
            }
            let all = format!("\"llvm.intr.vector.reduce.and\"({mask}) : ({bits}) -> i1");
            let all = self.b.pure(bits.with_lanes(1), &[mask], &all);
            let plain = format!("llvm.store {v}, {at} {{alignment = {align} : i64}} : {ty}, !llvm.ptr");
            let [plain, masked] = [plain, masked].map(|store| {
                self.open();
                self.b.stmt(&store);
                self.close()
            });
            self.b.splice(&format!("scf.if {all} {{"), &[(&plain, "} else {"), (&masked, "}")]);
        }
        Ok(())
    }

    /// The lanes of a vector and behind them those of one that is no longer.
    fn followed(&mut self, v: Val, by: Val) -> Val {
        let (ty, more) = (self.b.ty(v), self.b.ty(by).lanes);
        let longer = |l: u32| l.min(more - 1);
        let by = if more == ty.lanes { by } else { self.shuffled(by, by, ty, (0..ty.lanes).map(longer)) };
        self.shuffled(v, by, ty.with_lanes(ty.lanes + more), 0..ty.lanes + more)
    }
}

/// `count` lanes of a vector from `first` on, where what it is made of has them one by one.
fn part_of(pool: &mut ExprPool, e: ExprId, first: u32, count: u32) -> Option<ExprId> {
    if pool.ty(e).lanes == 1 {
        return Some(e);
    }
    match *pool.get(e) {
        Expr::Ramp { base, stride, .. } => {
            let scalar = pool.ty(base).lanes == 1;
            let by = pool.int(stride.checked_mul(first.into())?);
            let base = pool.add(base, by);
            scalar.then(|| pool.ramp(base, stride, count))
        }
        Expr::Splat(one, _) => (pool.ty(one).lanes == 1).then(|| pool.splat(one, count)),
        _ => {
            let children = pool.children(e);
            let mut parts = Vec::new();
            for child in children {
                parts.push(part_of(pool, child, first, count)?);
            }
            Some(pool.with_children(e, &parts))
        }
    }
}
