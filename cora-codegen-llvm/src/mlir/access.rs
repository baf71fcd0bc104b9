//! Loads and stores: addresses, whole vectors, masks, gathers and scatters.

use cora_ir::affine::{gcd, normalize};
use cora_ir::{BinOp, Expr, ExprId, ScalarType, TensorId, Type};

use super::EmitFault;
use super::bases::constant_term;
use super::builder::{Elem, Ty, Val};
use super::convert::{from_memory, memory_elem, register_type, same_in_memory, to_memory};
use super::expr::{Emitter, Formal, TensorOrParam};
use super::lanes::{affine, distances};
use super::masked::Mask;
use super::slots::Slot;

/// Vectors that are read for one whose elements are near each other, at most.
const MOST_VECTORS: i64 = 4;

/// Which elements an index names.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// One, for all lanes.
    One(ExprId),
    /// Consecutive ones from here.
    Run(ExprId),
    /// Constant positions of a register buffer: first and distance.
    Fixed(i64, i64),
    /// Any.
    Each(ExprId),
}

impl Emitter<'_> {
    /// Which element [`Emitter::pointer`] is the address of.
    fn base(&self, tensor: TensorId) -> i64 {
        self.bases.get(&tensor).copied().unwrap_or(0)
    }

    /// The address of a tensor's first element, or of the first one of its part that the kernel accesses.
    pub(super) fn pointer(&mut self, tensor: TensorId) -> Result<Val, EmitFault> {
        let name = || self.module.env.tensors[tensor].name.clone();
        let formal = match self.slots.get(tensor) {
            Some(Slot::Buffer(n)) => Formal::Buffer(n),
            Some(Slot::Table(n)) => Formal::Table(n),
            Some(Slot::Registers) => return self.registers(tensor),
            Some(Slot::Shared) => return self.shared(tensor),
            None => return Err(EmitFault::NoBuffer(name())),
        };
        let b = &mut self.b;
        let value = || (b.value(Ty::scalar(Elem::Ptr), 0), TensorOrParam::Tensor(tensor));
        Ok(self.formals.entry(formal).or_insert_with(value).0)
    }

    fn registers(&mut self, tensor: TensorId) -> Result<Val, EmitFault> {
        if let Some((_, v, _)) = self.registers.iter().find(|(t, ..)| *t == tensor) {
            return Ok(*v);
        }
        let t = &self.module.env.tensors[tensor];
        let size = self.module.buffer(tensor).and_then(|b| self.pool.as_int(b.elems)).filter(|&n| n > 0);
        let size = size.ok_or_else(|| EmitFault::BufferSize(t.name.clone()))?;
        let v = self.b.value(Ty::scalar(Elem::Ptr), 0);
        let text = format!(
            "  {v} = llvm.alloca %one x !llvm.array<{size} x {}> {{alignment = 64 : i64}} : (i64) -> !llvm.ptr  // {}\n",
            memory_elem(t.ty),
            super::kernel::comment(&t.name),
        );
        self.registers.push((tensor, v, text));
        Ok(v)
    }

    /// The address of element `index` (a scalar); constant terms come last, so that neighbours share the rest.
    pub(super) fn address(&mut self, tensor: TensorId, index: ExprId) -> Result<Val, EmitFault> {
        let (rest, offset) = constant_term(self.pool, index);
        let offset = offset.wrapping_sub(self.base(tensor));
        let elem = memory_elem(self.module.env.tensors[tensor].ty);
        let mut at = self.pointer(tensor)?;
        if let Some(e) = rest {
            let i = self.emit_scalar(e, "the index of a scalar access is a vector")?;
            at = self.element_pointer(at, i, elem);
        }
        if offset == 0 {
            return Ok(at);
        }
        // The least one stands for an index that is no constant.
        if i32::try_from(offset).is_ok_and(|o| o != i32::MIN) {
            let rhs = format!("llvm.getelementptr {at}[{offset}] : (!llvm.ptr) -> !llvm.ptr, {elem}");
            return Ok(self.b.pure(Ty::scalar(Elem::Ptr), &[at], &rhs));
        }
        let i = self.b.i64(offset);
        Ok(self.element_pointer(at, i, elem))
    }

    /// Asks the caches for an element; nothing where that is registers, or on a GPU.
    pub(super) fn prefetch(&mut self, tensor: TensorId, index: ExprId, locality: i64) -> Result<(), EmitFault> {
        if self.threads.is_some() || self.slots.get(tensor) == Some(Slot::Registers) {
            return Ok(());
        }
        let at = self.address(tensor, index)?;
        self.b.stmt(&format!(
            "\"llvm.intr.prefetch\"({at}) <{{cache = 1 : i32, hint = {locality} : i32, rw = 0 : i32}}> : (!llvm.ptr) -> ()"
        ));
        Ok(())
    }

    fn element_pointer(&mut self, at: Val, index: Val, elem: Elem) -> Val {
        let from = self.b.ty(index);
        let ty = from.with_elem(Elem::Ptr);
        let rhs = format!("llvm.getelementptr {at}[{index}] : (!llvm.ptr, {from}) -> {ty}, {elem}");
        self.b.pure(ty, &[at, index], &rhs)
    }

    fn place(&mut self, tensor: TensorId, index: ExprId) -> Place {
        match affine(self, index) {
            Some(a) if a.stride == 0 => Place::One(a.base),
            Some(a) if a.stride == 1 => Place::Run(a.base),
            Some(a) if self.slots.get(tensor) == Some(Slot::Registers) => match self.pool.as_int(a.base) {
                Some(first) => Place::Fixed(first, a.stride),
                None => Place::Each(index),
            },
            _ => Place::Each(index),
        }
    }

    /// The addresses of the elements in each lane.
    fn addresses(&mut self, tensor: TensorId, index: ExprId, lanes: u32) -> Result<Val, EmitFault> {
        let at = self.pointer(tensor)?;
        let i = self.emit(index)?;
        let i = self.b.broadcast(i, lanes);
        let elem = memory_elem(self.module.env.tensors[tensor].ty);
        let at = match self.base(tensor) {
            0 => at,
            base => {
                let first = self.b.i64(base.wrapping_neg());
                self.element_pointer(at, first, elem)
            }
        };
        Ok(self.element_pointer(at, i, elem))
    }

    pub(super) fn load(
        &mut self,
        tensor: TensorId,
        index: ExprId,
        guard: Option<(ExprId, ExprId)>,
        ty: Type,
    ) -> Result<Val, EmitFault> {
        let elements = self.module.env.tensors[tensor].ty;
        let widens = ty.scalar == ScalarType::Index && matches!(elements, ScalarType::I32 | ScalarType::I64);
        if elements != ty.scalar && !widens {
            return Err(self.element_type(tensor, ty.scalar));
        }
        // A GPU reads all lanes at once or none, where they agree: under a mask each would be read by itself.
        let guard = guard.map(|(cond, other)| match *self.pool.get(cond) {
            Expr::Splat(one, _) if self.threads.is_some() => (one, other),
            _ => (cond, other),
        });
        match guard {
            None => {
                let v = self.load_all(tensor, index, ty.lanes)?;
                Ok(self.loaded(elements, ty, v))
            }
            Some((cond, other)) if self.pool.ty(cond).lanes == 1 => {
                let cond = self.emit(cond)?;
                self.if_value(
                    cond,
                    ty.lanes,
                    |s| {
                        let v = s.load_all(tensor, index, ty.lanes)?;
                        Ok(s.loaded(elements, ty, v))
                    },
                    |s| s.emit(other),
                )
            }
            Some((cond, other)) => {
                let other = self.emit(other)?;
                let other = self.b.broadcast(other, ty.lanes);
                let direct = same_in_memory(elements) && self.b.ty(other).elem == memory_elem(elements);
                let memory = Ty { elem: memory_elem(elements), lanes: ty.lanes };
                if self.is_whole(tensor, index, ty.lanes) {
                    let cond = self.emit(cond)?;
                    let v = self.load_all(tensor, index, ty.lanes)?;
                    let v = self.loaded(elements, ty, v);
                    return Ok(self.b.select(cond, v, other));
                }
                let pass = match (direct, memory.elem.is_float()) {
                    (true, _) => other,
                    (false, true) => self.b.float(memory, 0.0),
                    (false, false) => self.b.int(memory, 0),
                };
                let mask = self.mask(cond, memory)?;
                let whole = mask.whole;
                let v = self.load_masked(tensor, index, mask, pass)?;
                if direct {
                    return Ok(v);
                }
                let v = self.loaded(elements, ty, v);
                Ok(self.b.select(whole, v, other))
            }
        }
    }

    /// From memory form to register form, `i32` table entries to `index`.
    fn loaded(&mut self, elements: ScalarType, ty: Type, v: Val) -> Val {
        let v = from_memory(&mut self.b, elements, v);
        let wanted = register_type(ty);
        if ty.scalar == ScalarType::Index { self.b.convert("arith.extsi", v, wanted.elem) } else { v }
    }

    pub(super) fn load_all(&mut self, tensor: TensorId, index: ExprId, lanes: u32) -> Result<Val, EmitFault> {
        let elem = memory_elem(self.module.env.tensors[tensor].ty);
        let ty = Ty { elem, lanes };
        match self.place(tensor, index) {
            Place::One(base) => {
                let at = self.address(tensor, base)?;
                let v = self.load_at(at, ty.with_lanes(1));
                Ok(self.b.broadcast(v, lanes))
            }
            Place::Run(base) => {
                let at = self.address(tensor, base)?;
                let align = self.alignment(base, ty);
                Ok(self.b.op(ty, &format!("llvm.load {at} {{alignment = {align} : i64}} : !llvm.ptr -> {ty}")))
            }
            Place::Fixed(first, stride) => {
                let mut out = if elem.is_float() { self.b.float(ty, 0.0) } else { self.b.int(ty, 0) };
                for lane in 0..lanes {
                    let at = self.fixed(tensor, first, stride, lane)?;
                    let v = self.load_at(at, ty.with_lanes(1));
                    out = self.b.insert(v, out, lane);
                }
                Ok(out)
            }
            Place::Each(index) => {
                if let Some(v) = self.near_each_other(tensor, index, ty)? {
                    return Ok(v);
                }
                let at = self.addresses(tensor, index, lanes)?;
                let pass = if elem.is_float() { self.b.float(ty, 0.0) } else { self.b.int(ty, 0) };
                let mask = self.b.int(ty.with_elem(Elem::I1), 1);
                Ok(self.gather(at, mask, pass))
            }
        }
    }

    /// Elements near each other, as `d / 2` or `3 * d` are: whole vectors around them and shuffles, not a read for each lane.
    /// What lies between two elements of a tensor can be read. Nothing where they are too far apart, or on a GPU.
    fn near_each_other(&mut self, tensor: TensorId, index: ExprId, ty: Ty) -> Result<Option<Val>, EmitFault> {
        if self.threads.is_some() || !ty.lanes.is_power_of_two() || ty.lanes < 4 {
            return Ok(None);
        }
        let Some((first, apart)) = distances(self, index) else { return Ok(None) };
        let (Some(&least), Some(&most)) = (apart.iter().min(), apart.iter().max()) else { return Ok(None) };
        let lanes = i64::from(ty.lanes);
        let Some(span) = most.checked_sub(least).and_then(|n| n.checked_add(1)).filter(|&n| n <= MOST_VECTORS * lanes)
        else {
            return Ok(None);
        };
        let width = span.min(lanes);
        if width < lanes && !(width as u64).is_power_of_two() {
            return Ok(None);
        }
        // The last one ends where the elements do.
        let starts: Vec<i64> = (0..(span + width - 1) / width).map(|n| (n * width).min(span - width)).collect();
        let part = ty.with_lanes(width as u32);
        let mut out: Option<Val> = None;
        for (n, &start) in starts.iter().enumerate() {
            let by = self.pool.int(least + start);
            let at = self.pool.add(first, by);
            let at = normalize(self.pool, at);
            let at = self.address(tensor, at)?;
            let v = self.load_at(at, part);
            // Lanes that this part has; the others as they are.
            let own = |k: i64| starts.iter().rposition(|&s| s <= k) == Some(n);
            let lane_of = |(lane, &d): (usize, &i64)| match (own(d - least), out.is_some()) {
                (true, held) => d - least - start + if held { lanes } else { 0 },
                (false, held) => {
                    if held {
                        lane as i64
                    } else {
                        0
                    }
                }
            };
            let mask: Vec<u32> = apart.iter().enumerate().map(|x| lane_of(x) as u32).collect();
            out = Some(self.shuffled(out.unwrap_or(v), v, ty, mask.into_iter()));
        }
        Ok(out)
    }

    fn fixed(&mut self, tensor: TensorId, first: i64, stride: i64, lane: u32) -> Result<Val, EmitFault> {
        let index = self.pool.int(first.wrapping_add(stride.wrapping_mul(lane.into())));
        self.address(tensor, index)
    }

    /// The alignment of consecutive elements from `base`. A processor loads vectors from anywhere; a GPU splits those
    /// that are not known to be aligned.
    pub(super) fn alignment(&self, base: ExprId, ty: Ty) -> u64 {
        let bytes = u64::from(ty.elem.bits() / 8);
        if self.threads.is_none() {
            return bytes;
        }
        let elements = match self.divisor(base) {
            0 => 16,
            d => 1 << d.trailing_zeros().min(4),
        };
        (bytes * elements).min(16)
    }

    /// A number that divides every value of an index, by its form; 0 for 0 itself.
    pub(super) fn divisor(&self, e: ExprId) -> i64 {
        match *self.pool.get(e) {
            Expr::Int(v) => v.checked_abs().unwrap_or(1),
            Expr::Var(v) => self.divisors.get(&v).copied().unwrap_or(1),
            Expr::Bin(BinOp::Add | BinOp::Sub | BinOp::Min | BinOp::Max, a, b) => gcd(self.divisor(a), self.divisor(b)),
            Expr::Bin(BinOp::Mul, a, b) => self.divisor(a).checked_mul(self.divisor(b)).unwrap_or(1),
            Expr::Select(_, a, b) => gcd(self.divisor(a), self.divisor(b)),
            _ => 1,
        }
    }

    pub(super) fn load_at(&mut self, at: Val, ty: Ty) -> Val {
        self.b.op(ty, &format!("llvm.load {at} {{alignment = {} : i64}} : !llvm.ptr -> {ty}", ty.elem.bits() / 8))
    }

    fn load_masked(&mut self, tensor: TensorId, index: ExprId, mask: Mask, pass: Val) -> Result<Val, EmitFault> {
        if let Place::Run(base) = self.place(tensor, index)
            && !self.library.masked_by_lane(self.b.ty(pass).lanes)
        {
            return self.read_under(&mask, pass, |s, first| s.address_after(tensor, base, first));
        }
        let at = self.addresses(tensor, index, self.b.ty(pass).lanes)?;
        Ok(self.gather(at, mask.whole, pass))
    }

    /// Whether a vector of registers lies within them whatever a mask says: it is a value then, selected from by the mask. An
    /// access under a mask would keep the registers in memory.
    fn is_whole(&mut self, tensor: TensorId, index: ExprId, lanes: u32) -> bool {
        if self.slots.get(tensor) != Some(Slot::Registers) {
            return false;
        }
        let elements = self.module.buffer(tensor).and_then(|b| self.pool.as_int(b.elems)).unwrap_or(0);
        let Place::Run(base) = self.place(tensor, index) else { return false };
        self.pool.as_int(base).is_some_and(|first| first >= 0 && first + i64::from(lanes) <= elements)
    }

    /// The address of the element that many after the one at `base`.
    fn address_after(&mut self, tensor: TensorId, base: ExprId, elements: u32) -> Result<Val, EmitFault> {
        let by = self.pool.int(elements.into());
        let at = self.pool.add(base, by);
        self.address(tensor, at)
    }

    fn gather(&mut self, at: Val, mask: Val, pass: Val) -> Val {
        let (addresses, bits, ty) = (self.b.ty(at), self.b.ty(mask), self.b.ty(pass));
        let rhs = format!(
            "llvm.intr.masked.gather {at}, {mask}, {pass} {{alignment = {} : i32}} : ({addresses}, {bits}, {ty}) -> {ty}",
            ty.elem.bits() / 8,
        );
        self.b.op(ty, &rhs)
    }

    /// `tensor[index] = value` where `mask` holds (a vector of lanes, or nothing for all).
    /// Writes elements of several tensors at one index, after all of them are computed.
    pub(super) fn store(
        &mut self,
        stored: &[(TensorId, ExprId)],
        index: ExprId,
        mask: Option<ExprId>,
    ) -> Result<(), EmitFault> {
        let mut values = Vec::new();
        for &(tensor, value) in stored {
            values.push((tensor, self.stored_value(tensor, index, value)?));
        }
        let mut stores = Vec::new();
        for (tensor, v) in values {
            let ty = self.b.ty(v);
            stores.push((tensor, v, mask.map(|m| self.mask(m, ty)).transpose()?));
        }
        stores.into_iter().try_for_each(|(tensor, v, mask)| self.write(tensor, index, v, mask))
    }

    /// A value in the form that memory has, with the index's lanes.
    pub(super) fn stored_value(&mut self, tensor: TensorId, index: ExprId, value: ExprId) -> Result<Val, EmitFault> {
        let elements = self.module.env.tensors[tensor].ty;
        let given = self.pool.ty(value);
        if given.scalar != elements {
            return Err(self.element_type(tensor, given.scalar));
        }
        let lanes = self.pool.ty(index).lanes;
        if given.lanes > 1 && given.lanes != lanes {
            return Err(EmitFault::Lanes("a vector is stored to an index of another number of lanes"));
        }
        if let Some(v) = self.copied(elements, value)? {
            return Ok(self.b.broadcast(v, lanes));
        }
        // The store rounds by itself what would be rounded to its type just before.
        let wide = match *self.pool.get(value) {
            Expr::Cast(ScalarType::F16 | ScalarType::BF16, x) if self.pool.ty(x).scalar == ScalarType::F32 => x,
            _ => value,
        };
        let v = self.emit(wide)?;
        let v = to_memory(&mut self.b, elements, v);
        Ok(self.b.broadcast(v, lanes))
    }

    /// A copied element as it is in memory, where that is not what registers hold; 0 in lanes whose condition fails.
    fn copied(&mut self, elements: ScalarType, value: ExprId) -> Result<Option<Val>, EmitFault> {
        let Expr::Load { tensor, index, guard, .. } = self.pool.get(value).clone() else { return Ok(None) };
        let (ty, lanes) = (self.module.env.tensors[tensor].ty, self.pool.ty(value).lanes);
        let [index] = index[..] else { return Ok(None) };
        if ty != elements || ty != ScalarType::BF16 || self.threads.is_some() {
            return Ok(None);
        }
        let Some((cond, other)) = guard else { return self.load_all(tensor, index, lanes).map(Some) };
        if self.pool.ty(cond).lanes == 1 || !self.pool.is_zero_bits(other) {
            return Ok(None);
        }
        let memory = Ty { elem: memory_elem(ty), lanes };
        let pass = self.b.int(memory, 0);
        let mask = self.mask(cond, memory)?;
        self.load_masked(tensor, index, mask, pass).map(Some)
    }

    pub(super) fn write(
        &mut self,
        tensor: TensorId,
        index: ExprId,
        v: Val,
        mask: Option<Mask>,
    ) -> Result<(), EmitFault> {
        let lanes = self.pool.ty(index).lanes;
        let ty = self.b.ty(v);
        let align = ty.elem.bits() / 8;
        match (self.place(tensor, index), mask) {
            (Place::One(base), None) if lanes == 1 => {
                let at = self.address(tensor, base)?;
                self.store_at(v, at);
            }
            (Place::Run(base), None) => {
                let at = self.address(tensor, base)?;
                let align = self.alignment(base, ty);
                self.b.stmt(&format!("llvm.store {v}, {at} {{alignment = {align} : i64}} : {ty}, !llvm.ptr"));
            }
            (Place::Run(base), Some(mask)) if self.is_whole(tensor, index, lanes) => {
                let before = self.load_all(tensor, index, lanes)?;
                let v = self.b.select(mask.whole, v, before);
                let at = self.address(tensor, base)?;
                let align = self.alignment(base, ty);
                self.b.stmt(&format!("llvm.store {v}, {at} {{alignment = {align} : i64}} : {ty}, !llvm.ptr"));
            }
            (Place::Run(base), Some(mask)) if !self.library.masked_by_lane(lanes) => {
                self.write_under(&mask, v, |s, first| s.address_after(tensor, base, first))?;
            }
            (Place::Fixed(first, stride), None) => {
                for lane in 0..lanes {
                    let at = self.fixed(tensor, first, stride, lane)?;
                    let lane_value = self.b.extract(v, lane);
                    self.store_at(lane_value, at);
                }
            }
            (_, mask) => {
                let at = self.addresses(tensor, index, lanes)?;
                let mask = match mask {
                    Some(mask) => mask.whole,
                    None => self.b.int(ty.with_elem(Elem::I1), 1),
                };
                let (bits, addresses) = (self.b.ty(mask), self.b.ty(at));
                self.b.stmt(&format!(
                    "llvm.intr.masked.scatter {v}, {at}, {mask} {{alignment = {align} : i32}} : {ty}, {bits} into {addresses}"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn store_at(&mut self, v: Val, at: Val) {
        let ty = self.b.ty(v);
        self.b.stmt(&format!("llvm.store {v}, {at} {{alignment = {} : i64}} : {ty}, !llvm.ptr", ty.elem.bits() / 8));
    }
}
