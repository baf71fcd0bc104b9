//! The engine: runs a compiled nest.

use crate::env::Role;
use crate::ids::{EntityId, TensorId, VarId};
use crate::interp::access::next_run;
use crate::interp::banks::Site;
use crate::interp::buffer::{Held, Memory};
use crate::interp::context::{Context, OUTSIDE, Size, held_bytes};
use crate::interp::contract::Factor;
use crate::interp::error::{InterpError, Use};
use crate::interp::eval::{greatest_not_above, table_row};
use crate::interp::grid::{How, Shadow};
use crate::interp::instr::{Access, Instr, LANES, Opd, Program, Step};
use crate::interp::regs::{Fault, Regs, Src, Und};
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Which iterations of the outermost loop to run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outer<'a> {
    All,
    /// `lo..hi`
    Range(i64, i64),
    List(&'a [i64]),
}

/// One run of a program on some memory.
pub(crate) struct Machine<'m, 'd> {
    context: &'m Context<'m>,
    memory: &'m mut Memory<'d>,
    regs: Regs,
    outer: Outer<'m>,
    /// The undefined element that was read last.
    origin: Option<(TensorId, i64)>,
    args: Vec<i64>,
    /// In a grid, which iteration of the serial loops around this is.
    iteration: u64,
}

/// Runs `program`.
pub(crate) fn execute<'m, 'd>(
    context: &'m Context<'m>,
    program: &Program,
    memory: &'m mut Memory<'d>,
    outer: Outer<'m>,
) -> Result<(), InterpError> {
    let regs = Regs::new(program);
    let mut machine = Machine { context, memory, regs, outer, origin: None, args: Vec::new(), iteration: 0 };
    let done = machine.run(&program.steps);
    context.overflow.fetch_or(machine.regs.overflow, Ordering::Relaxed);
    done
}

impl<'m> Machine<'m, '_> {
    fn run(&mut self, steps: &[Step]) -> Result<(), InterpError> {
        for step in steps {
            match step {
                Step::Do(instr) => self.exec(instr)?,
                Step::For { var, extent, at, axis: Some(axis), body, .. } if self.context.shadow.is_some() => {
                    let n = self.trip(*extent, *at)?;
                    if let Some(most) = axis.most_blocks().filter(|&most| n > most) {
                        return Err(InterpError::Grid { axis: axis.name(), found: n, most });
                    }
                    self.shadow(|s| s.begin(*axis));
                    for i in 0..n {
                        self.shadow(|s| s.enter(*axis, i));
                        self.each(*var, i..i + 1, body)?;
                    }
                    self.shadow(|s| s.leave(*axis));
                }
                Step::For { var, extent, at, body, .. } if self.context.shadow.is_some() => {
                    let (n, outside) = (self.trip(*extent, *at)?, self.iteration);
                    for i in 0..n {
                        self.iteration = FxBuildHasher.hash_one((outside, i));
                        self.each(*var, i..i + 1, body)?;
                    }
                    self.iteration = outside;
                }
                Step::Sync(sync) => self.shadow(|s| s.sync(*sync)),
                Step::Slot { tensor, slot, how } => {
                    let slot = self.regs.int_at(*slot, 0);
                    if let Some(s) = &self.context.shadow {
                        let name = || self.context.tensor_name(*tensor);
                        s.lock().unwrap_or_else(PoisonError::into_inner).slot((*tensor, slot), *how, name)?;
                    }
                }
                Step::For { var, extent, at, outer, body, .. } => {
                    let n = self.trip(*extent, *at)?;
                    match self.outer {
                        Outer::List(list) if *outer => self.each(*var, list.iter().copied(), body)?,
                        Outer::Range(lo, hi) if *outer => self.each(*var, lo..hi.min(n), body)?,
                        _ => self.each(*var, 0..n, body)?,
                    }
                }
                Step::Strip { base, extent, at, outer, body } => {
                    let n = self.trip(*extent, *at)?;
                    match self.outer {
                        Outer::List(list) if *outer => {
                            for &i in list {
                                self.strips(*base, i, i + 1, body)?;
                            }
                        }
                        Outer::Range(lo, hi) if *outer => self.strips(*base, lo, hi.min(n), body)?,
                        _ => self.strips(*base, 0, n, body)?,
                    }
                }
                Step::Where { cond, base, at, then, other } => self.branch(*cond, *base, *at, then, other)?,
                Step::Contract { acc, factors, extent, general } => self.contract(*acc, factors, *extent, general)?,
                Step::Attach { tensor, vars, resize } => self.attach(*tensor, vars, *resize)?,
            }
        }
        Ok(())
    }

    fn shadow(&self, f: impl FnOnce(&mut Shadow)) {
        if let Some(s) = &self.context.shadow {
            f(&mut s.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Records the accesses of lanes `lo..lo + n` in a grid.
    fn shadowed(&self, access: &Access, how: How, lo: usize, n: usize) -> Result<(), InterpError> {
        let (Some(shadow), Some(held)) = (&self.context.shadow, self.memory.get(access.tensor)) else { return Ok(()) };
        // What the interpreter itself has added is nobody's.
        if access.tensor.index() >= self.context.declared {
            return Ok(());
        }
        let mut shadow = shadow.lock().unwrap_or_else(PoisonError::into_inner);
        let mut elements = Vec::with_capacity(n);
        for lane in lo..lo + n {
            let index: Vec<i64> = access.index.iter().map(|&o| self.regs.int_at(o, lane)).collect();
            if let Some(at) = held.levels.position(&index) {
                shadow.check(access.tensor, at, how, || self.context.tensor_name(access.tensor))?;
                elements.push(at);
            }
        }
        let instruction = std::ptr::from_ref(access) as usize;
        let site = Site { tensor: access.tensor, at: instruction, iteration: self.iteration, write: how != How::Read };
        shadow.banks(site, &elements, held.buf.ty.bytes() as i64);
        Ok(())
    }

    fn trip(&self, extent: Opd, at: Option<TensorId>) -> Result<i64, InterpError> {
        if self.regs.int_undefined(extent, 0) {
            return Err(self.undefined(Use::Extent, at, vec![]));
        }
        Ok(self.regs.int_at(extent, 0))
    }

    fn each(&mut self, var: u32, range: impl Iterator<Item = i64>, body: &[Step]) -> Result<(), InterpError> {
        for i in range {
            self.regs.i.set(var, i, false);
            self.run(body)?;
        }
        Ok(())
    }

    fn strips(&mut self, base: u32, lo: i64, hi: i64, body: &[Step]) -> Result<(), InterpError> {
        let outside = self.regs.n;
        let mut at = lo;
        while at < hi {
            let n = (hi - at).min(LANES as i64);
            self.regs.i.set(base, at, false);
            self.regs.n = n as usize;
            self.run(body)?;
            at += n;
        }
        self.regs.n = outside;
        Ok(())
    }

    fn branch(
        &mut self,
        cond: Opd,
        base: Option<u32>,
        at: Option<TensorId>,
        then: &[Step],
        other: &[Step],
    ) -> Result<(), InterpError> {
        let n = self.regs.n;
        let (Opd::V(c), Some(base)) = (cond, base) else {
            if self.regs.int_undefined(cond, 0) {
                return Err(self.undefined(Use::Condition, at, vec![]));
            }
            return self.run(if self.regs.int_at(cond, 0) != 0 { then } else { other });
        };
        let c = c as usize;
        let first = self.regs.i.s[base as usize];
        if let Some(lane) = self.regs.i.vund[c].first(0, n) {
            return Err(self.undefined(Use::Condition, at, vec![first + lane as i64]));
        }
        let mut from = 0;
        while let Some((lo, hi)) = next_run(|l| self.regs.i.v[c * LANES + l] != 0, from, n) {
            self.regs.i.s[base as usize] = first + lo as i64;
            self.regs.n = hi - lo;
            self.run(then)?;
            from = hi;
        }
        self.regs.i.s[base as usize] = first;
        self.regs.n = n;
        Ok(())
    }

    fn contract(
        &mut self,
        acc: Opd,
        factors: &(Factor, Factor),
        extent: Opd,
        general: &[Step],
    ) -> Result<(), InterpError> {
        let count = self.trip(extent, None)?;
        if count <= 0 {
            return Ok(());
        }
        let n = if acc.is_scalar() { 1 } else { self.regs.n };
        if self.context.shadow.is_some() {
            return self.run(general);
        }
        let held = |f: &Factor| self.memory.get(f.access.tensor);
        if let (Some(a), Some(b)) = (held(&factors.0), held(&factors.1))
            && let Some(sa) = self.regs.span(a, &factors.0, n, count)
            && let Some(sb) = self.regs.span(b, &factors.1, n, count)
        {
            self.regs.contract(acc, (a, sa), (b, sb), count as usize);
            return Ok(());
        }
        self.run(general)
    }

    fn attach(&mut self, tensor: TensorId, vars: &[(VarId, u32)], resize: bool) -> Result<(), InterpError> {
        if resize {
            let bindings: Vec<(VarId, i64)> = vars.iter().map(|&(v, r)| (v, self.regs.i.s[r as usize])).collect();
            let levels = self.context.levels(tensor, Size::Storage, &bindings, None, None)?;
            if held_bytes(&levels) / 8 > usize::try_from(self.context.room()).unwrap_or(usize::MAX) {
                return Err(self.context.too_large(tensor));
            }
            match self.memory.get_mut(tensor) {
                Some(held) if held.levels.total == levels.total => held.levels = levels.into(),
                _ => {
                    let (ty, len) = (self.context.env.tensors[tensor].ty, levels.total as usize);
                    let buf = crate::interp::buffer::Buffer::undefined(ty, len)?;
                    self.memory.put(tensor, Held { levels: levels.into(), buf });
                }
            }
        }
        if let Some(held) = self.memory.get_mut(tensor) {
            held.buf.poison();
        }
        Ok(())
    }

    fn exec(&mut self, instr: &Instr) -> Result<(), InterpError> {
        let r = &mut self.regs;
        match instr {
            Instr::Bin { op, ty, dst, a, b, w } => r.bin(*op, *ty, *dst, *a, *b, *w),
            Instr::Un { op, ty, dst, a, w } => r.un(*op, *ty, *dst, *a, *w),
            Instr::Select { float: true, dst, cond, a, b, w } => r.select::<f64>(*dst, *cond, *a, *b, *w),
            Instr::Select { float: false, dst, cond, a, b, w } => r.select::<i64>(*dst, *cond, *a, *b, *w),
            Instr::Cast { from, to, dst, a, w } => r.cast(*from, *to, *dst, *a, *w),
            Instr::Iota { dst, base, stride, w } => r.iota(*dst, *base, *stride, *w),
            Instr::Reduce { float: true, combiner, dst, a, w, .. } => {
                let n = r.width(*w);
                let identity = combiner.identity(crate::types::ScalarType::F64).as_f64();
                let values = r.f.src(*a, n);
                let x = (0..n).fold(identity, |acc, l| crate::interp::ops::combine_f(*combiner, acc, values.at(l)));
                let und = r.f.und(*a).first(0, n).is_some();
                r.f.set(*dst, x, und);
            }
            Instr::Reduce { float: false, ty, combiner, dst, a, w } => {
                let n = r.width(*w);
                let values = r.i.src(*a, n);
                let combine = |acc, l| crate::interp::ops::combine_i(*combiner, *ty, acc, values.at(l));
                let x = (0..n).fold(combiner.identity(*ty).as_i64(), combine);
                let und = r.i.und(*a).first(0, n).is_some();
                r.i.set(*dst, x, und);
            }
            Instr::AccSet { float: true, acc, value } => r.acc_set::<f64>(*acc, *value),
            Instr::AccSet { float: false, acc, value } => r.acc_set::<i64>(*acc, *value),
            Instr::Acc { float: true, combiner, acc, value, w, .. } => r.acc_f(*combiner, *acc, *value, *w),
            Instr::Acc { float: false, ty, combiner, acc, value, w } => r.acc_i(*combiner, *ty, *acc, *value, *w),
            Instr::MulAcc { acc, a, b, w } => r.mul_acc(*acc, *a, *b, *w),
            Instr::Call { uf, dst, args, w } => {
                let n = if dst.is_scalar() { 1 } else { r.width(*w) };
                for lane in 0..n {
                    self.args.clear();
                    self.args.extend(args.iter().map(|&a| r.int_at(a, lane)));
                    let known = !args.iter().any(|&a| r.int_undefined(a, lane));
                    let value = if known { self.context.functions.get(*uf, &self.args) } else { None };
                    put_int(r, *dst, lane, value);
                }
            }
            Instr::Search { table, dst, base, len, value, w } => {
                return self.search(*table, *dst, [*base, *len, *value], *w);
            }
            Instr::Load { float, dst, access, guard, w } => return self.load(*float, *dst, access, *guard, *w),
            Instr::Store { float, access, value, mask, copy, w } => {
                let how = if *copy { How::Copy } else { How::Write };
                return self.store(*float, access, *value, *mask, (how, *w));
            }
            Instr::Update { float, access, combiner, value, atomic, w } => {
                let n = r.width(*w);
                if *atomic {
                    self.shadowed(access, How::Atomic, 0, n)?;
                } else {
                    self.shadowed(access, How::Read, 0, n)?;
                    self.shadowed(access, How::Write, 0, n)?;
                }
                let r = &mut self.regs;
                let Some(held) = self.memory.get_mut(access.tensor) else { return Err(self.absent(access.tensor)) };
                let done = if *float {
                    r.update_f(held, access, *combiner, *value, *w)
                } else {
                    r.update_i(held, access, *combiner, *value, *w)
                };
                return self.stored(done, access);
            }
        }
        Ok(())
    }

    fn search(&mut self, table: TensorId, dst: Opd, operands: [Opd; 3], w: u32) -> Result<(), InterpError> {
        let n = if dst.is_scalar() { 1 } else { self.regs.width(w) };
        for lane in 0..n {
            if operands.iter().any(|&o| self.regs.int_undefined(o, lane)) {
                put_int(&mut self.regs, dst, lane, None);
                continue;
            }
            let [base, len, value] = operands.map(|o| self.regs.int_at(o, lane));
            if len <= 0 {
                // Nothing is read, and nothing found.
                put_int(&mut self.regs, dst, lane, None);
                continue;
            }
            let Some(held) = self.memory.get(table) else { return Err(self.absent(table)) };
            let Some(row) = table_row(held.buf.len(), base, len) else {
                return Err(self.fault(Fault::Outside(vec![base, len]), table, false));
            };
            if !held.buf.range_defined(row.start, row.len()) {
                return Err(self.fault(Fault::Undefined(vec![base, len]), table, false));
            }
            let found = greatest_not_above(row.len() - 1, value, |i| held.buf.int_at(row.start + i));
            // As in compiled code, the first row where there is none: a hoisted search may look for too little.
            put_int(&mut self.regs, dst, lane, found.or(Some(0)));
        }
        Ok(())
    }

    fn load(
        &mut self,
        float: bool,
        dst: Opd,
        access: &Access,
        guard: Option<(Opd, Opd)>,
        w: u32,
    ) -> Result<(), InterpError> {
        let n = if dst.is_scalar() { 1 } else { self.regs.width(w) };
        if let Opd::V(d) = dst {
            let und = if float { &mut self.regs.f.vund } else { &mut self.regs.i.vund };
            und[d as usize] = Und::NONE;
        }
        let Some((cond, other)) = guard else { return self.load_lanes(float, dst, access, 0, n) };
        let mask = self.condition(cond, access, n)?;
        let mut from = 0;
        while let Some((lo, hi)) = next_run(|l| mask[l], from, n) {
            self.load_lanes(float, dst, access, lo, hi - lo)?;
            from = hi;
        }
        from = 0;
        while let Some((lo, hi)) = next_run(|l| !mask[l], from, n) {
            if float {
                self.regs.copy_lanes::<f64>(dst, other, lo, hi);
            } else {
                self.regs.copy_lanes::<i64>(dst, other, lo, hi);
            }
            from = hi;
        }
        Ok(())
    }

    fn load_lanes(&mut self, float: bool, dst: Opd, access: &Access, lo: usize, n: usize) -> Result<(), InterpError> {
        self.shadowed(access, How::Read, lo, n)?;
        let Some(held) = self.memory.get(access.tensor) else { return Err(self.absent(access.tensor)) };
        let loaded = if float {
            self.regs.load::<f64>(held, access, dst, lo, n)
        } else {
            self.regs.load::<i64>(held, access, dst, lo, n)
        };
        match loaded {
            Ok(None) => Ok(()),
            Ok(Some(lane)) => {
                let index: Vec<i64> = access.index.iter().map(|&o| self.regs.int_at(o, lane)).collect();
                self.origin = held.levels.position(&index).map(|at| (access.tensor, at));
                self.regs.overflow = false;
                Ok(())
            }
            Err(f) => Err(self.fault(f, access.tensor, false)),
        }
    }

    fn store(
        &mut self,
        float: bool,
        access: &Access,
        value: Opd,
        mask: Option<Opd>,
        (how, w): (How, u32),
    ) -> Result<(), InterpError> {
        let n = self.regs.width(w);
        let Some(mask) = mask else { return self.store_lanes(float, access, value, how, 0..n) };
        let lanes = self.condition(mask, access, n)?;
        let mut from = 0;
        while let Some((lo, hi)) = next_run(|l| lanes[l], from, n) {
            self.store_lanes(float, access, value, how, lo..hi)?;
            from = hi;
        }
        Ok(())
    }

    fn store_lanes(
        &mut self,
        float: bool,
        access: &Access,
        value: Opd,
        how: How,
        lanes: std::ops::Range<usize>,
    ) -> Result<(), InterpError> {
        let (lo, n) = (lanes.start, lanes.len());
        self.shadowed(access, how, lo, n)?;
        let Some(held) = self.memory.get_mut(access.tensor) else { return Err(self.absent(access.tensor)) };
        let done = if float {
            self.regs.store::<f64>(held, access, value, lo, n)
        } else {
            self.regs.store::<i64>(held, access, value, lo, n)
        };
        self.stored(done, access)
    }

    /// A condition on each of `n` lanes of an access; all must be defined.
    fn condition(&self, cond: Opd, access: &Access, n: usize) -> Result<[bool; LANES], InterpError> {
        if let Some(lane) = self.regs.i.und(cond).first(0, n) {
            let index = access.index.iter().map(|&o| self.regs.int_at(o, lane)).collect();
            return Err(self.undefined(Use::Condition, Some(access.tensor), index));
        }
        let mut lanes = [false; LANES];
        match self.regs.i.src(cond, n) {
            Src::S(c) => lanes[..n].fill(c != 0),
            Src::V(c) => lanes.iter_mut().zip(c).for_each(|(m, &c)| *m = c != 0),
        }
        Ok(lanes)
    }

    /// An undefined value may be stored only where definedness is tracked.
    fn stored(&self, done: Result<Option<usize>, Fault>, access: &Access) -> Result<(), InterpError> {
        match done {
            Ok(None) => Ok(()),
            Ok(Some(lane)) => match self.memory.get(access.tensor) {
                Some(held) if !held.buf.tracked() => {
                    let index = access.index.iter().map(|&o| self.regs.int_at(o, lane)).collect();
                    Err(self.undefined(Use::Output, Some(access.tensor), index))
                }
                _ => Ok(()),
            },
            Err(f) => Err(self.fault(f, access.tensor, true)),
        }
    }

    fn fault(&self, fault: Fault, tensor: TensorId, write: bool) -> InterpError {
        let stage = self.context.stage;
        match fault {
            Fault::Outside(index) => {
                InterpError::OutOfBounds { stage, tensor: self.context.tensor_name(tensor), index, write }
            }
            Fault::Undefined(index) => self.undefined(Use::Index, Some(tensor), index),
        }
    }

    fn absent(&self, tensor: TensorId) -> InterpError {
        if matches!(self.context.env.tensors[tensor].role, Role::Input | Role::ConstInput) {
            return InterpError::MissingInput { tensor: self.context.tensor_name(tensor) };
        }
        self.context.unsupported(format!("`{}` is used where it cannot be", self.context.tensor_name(tensor)))
    }

    fn undefined(&self, usage: Use, at: Option<TensorId>, index: Vec<i64>) -> InterpError {
        let name = at.map_or_else(|| "a statement".to_owned(), |t| self.context.tensor_name(t));
        let read = || {
            let (t, at) = self.origin?;
            let held = self.memory.get(t)?;
            Some(format!("{}{:?}", self.context.tensor_name(t), held.levels.index_of(at)))
        };
        let origin = if self.regs.overflow { Some(OUTSIDE.to_owned()) } else { read() };
        InterpError::Undefined { stage: self.context.stage, usage, name, index, origin }
    }
}

fn put_int(r: &mut Regs, dst: Opd, lane: usize, value: Option<i64>) {
    match dst {
        Opd::S(d) => r.i.set(d, value.unwrap_or(0), value.is_none()),
        Opd::V(d) => {
            let d = d as usize;
            if lane == 0 {
                r.i.vund[d] = Und::NONE;
            }
            r.i.v[d * LANES + lane] = value.unwrap_or(0);
            if value.is_none() {
                r.i.vund[d].set(lane);
            }
        }
        Opd::A { .. } => {}
    }
}
