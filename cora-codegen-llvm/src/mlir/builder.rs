//! Writes the text of one MLIR function: typed values, nested regions, textual common subexpressions.
//!
//! A region's text is finished only when the region is closed, so code may still be added to an *outer* region while an
//! inner one is open: what is added there comes before the loop or branch that the inner region belongs to. Pure integer
//! operations use that: they are placed in the outermost region where all their operands exist, so that index arithmetic
//! leaves inner loops without a pass of its own. Every pure operation is written once per region (its text is the key).

use std::collections::HashMap;
use std::fmt;
use std::fmt::Write as _;

/// The type of one lane of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Elem {
    I1,
    I8,
    I16,
    I32,
    I64,
    F16,
    F32,
    F64,
    Ptr,
}

impl Elem {
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::I1 => 1,
            Self::I8 => 8,
            Self::I16 | Self::F16 => 16,
            Self::I32 | Self::F32 => 32,
            Self::I64 | Self::F64 | Self::Ptr => 64,
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64)
    }
}

impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F16 | Self::F32 | Self::F64 => write!(f, "f{}", self.bits()),
            Self::Ptr => f.write_str("!llvm.ptr"),
            _ => write!(f, "i{}", self.bits()),
        }
    }
}

/// The type of a value; one lane is a scalar.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ty {
    pub(crate) elem: Elem,
    pub(crate) lanes: u32,
}

impl Ty {
    pub(crate) fn scalar(elem: Elem) -> Self {
        Self { elem, lanes: 1 }
    }

    pub(crate) fn with_elem(self, elem: Elem) -> Self {
        Self { elem, ..self }
    }

    pub(crate) fn with_lanes(self, lanes: u32) -> Self {
        Self { lanes, ..self }
    }
}

impl fmt::Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lanes == 1 { write!(f, "{}", self.elem) } else { write!(f, "vector<{}x{}>", self.lanes, self.elem) }
    }
}

/// An SSA value; prints as `%12`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Val(u32);

impl fmt::Display for Val {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

#[derive(Default)]
struct Region {
    text: String,
    written: HashMap<String, Val>,
}

/// Integer comparisons.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
}

/// The text of one function under construction.
pub(crate) struct Builder {
    regions: Vec<Region>,
    /// Type of each value and the region it is defined in.
    values: Vec<(Ty, usize)>,
    /// Whether `a * b + c` is one rounding.
    pub(crate) fma: bool,
    /// Whether 16 lanes are scaled by powers of two in one instruction.
    pub(crate) scalef: bool,
    /// Whether functions of libm may be called.
    libm: bool,
    /// Calls through variables so far.
    calls: u32,
}

impl Builder {
    pub(crate) fn new(fma: bool) -> Self {
        Self { regions: vec![Region::default()], values: Vec::new(), fma, scalef: false, libm: true, calls: 0 }
    }

    /// For a target that has no libm.
    pub(crate) fn without_libm(&mut self) {
        self.libm = false;
    }

    pub(crate) fn libm(&self) -> bool {
        self.libm
    }

    /// A number for the next call through a variable.
    pub(crate) fn calls(&mut self) -> u32 {
        self.calls += 1;
        self.calls
    }

    /// The number of open regions inside the function's own.
    pub(crate) fn depth(&self) -> usize {
        self.regions.len() - 1
    }

    /// A value that is defined outside the text: an argument (depth 0) or a loop variable (the depth of the body).
    pub(crate) fn value(&mut self, ty: Ty, depth: usize) -> Val {
        self.values.push((ty, depth));
        Val(u32::try_from(self.values.len() - 1).unwrap_or(u32::MAX))
    }

    pub(crate) fn ty(&self, v: Val) -> Ty {
        self.values[v.0 as usize].0
    }

    pub(crate) fn depth_of(&self, v: Val) -> usize {
        self.values[v.0 as usize].1
    }

    pub(crate) fn open(&mut self) {
        self.regions.push(Region::default());
    }

    /// Closes the innermost region and gives its text.
    pub(crate) fn close(&mut self) -> String {
        self.regions.pop().map(|r| r.text).unwrap_or_default()
    }

    /// The text of the function's body.
    pub(crate) fn finish(mut self) -> String {
        self.close()
    }

    fn line(&mut self, depth: usize, text: &str) {
        let out = &mut self.regions[depth].text;
        for _ in 0..=depth {
            out.push_str("  ");
        }
        out.push_str(text);
        out.push('\n');
    }

    /// A line of text in the innermost region.
    pub(crate) fn stmt(&mut self, text: &str) {
        self.line(self.depth(), text);
    }

    /// An op with an effect or a region, in the innermost region.
    pub(crate) fn op(&mut self, ty: Ty, rhs: &str) -> Val {
        let depth = self.depth();
        let v = self.value(ty, depth);
        self.line(depth, &format!("{v} = {rhs}"));
        v
    }

    /// Closed text (of a nested region) in the innermost region, with a line before and after it.
    pub(crate) fn splice(&mut self, head: &str, bodies: &[(&str, &str)]) {
        self.stmt(head);
        for (body, tail) in bodies {
            let depth = self.depth();
            self.regions[depth].text.push_str(body);
            self.stmt(tail);
        }
    }

    /// The value of a pure op that an open region already holds.
    fn written(&self, rhs: &str) -> Option<Val> {
        self.regions.iter().rev().find_map(|r| r.written.get(rhs)).copied()
    }

    fn write(&mut self, depth: usize, ty: Ty, rhs: &str) -> Val {
        let v = self.value(ty, depth);
        self.line(depth, &format!("{v} = {rhs}"));
        self.regions[depth].written.insert(rhs.to_owned(), v);
        v
    }

    /// A pure op: integers and addresses as far out as the operands allow, floats here.
    pub(crate) fn pure(&mut self, ty: Ty, operands: &[Val], rhs: &str) -> Val {
        if let Some(v) = self.written(rhs) {
            return v;
        }
        let depth = if ty.elem.is_float() {
            self.depth()
        } else {
            operands.iter().map(|&v| self.depth_of(v)).max().unwrap_or(0)
        };
        self.write(depth, ty, rhs)
    }

    /// A constant, in the function's own region; `value` is MLIR's text for one lane or all.
    fn constant(&mut self, ty: Ty, value: &str) -> Val {
        let rhs = match ty {
            // A truth value prints without its type.
            Ty { elem: Elem::I1, lanes: 1 } => format!("arith.constant {value}"),
            Ty { lanes: 1, .. } => format!("arith.constant {value} : {ty}"),
            _ => format!("arith.constant dense<{value}> : {ty}"),
        };
        self.written(&rhs).unwrap_or_else(|| self.write(0, ty, &rhs))
    }

    pub(crate) fn int(&mut self, ty: Ty, value: i64) -> Val {
        match ty.elem {
            Elem::I1 => self.constant(ty, if value != 0 { "true" } else { "false" }),
            _ => self.constant(ty, &value.to_string()),
        }
    }

    pub(crate) fn i64(&mut self, value: i64) -> Val {
        self.int(Ty::scalar(Elem::I64), value)
    }

    /// A floating-point constant, rounded to the type.
    pub(crate) fn float(&mut self, ty: Ty, value: f64) -> Val {
        let value = if ty.elem == Elem::F32 { f64::from(value as f32) } else { value };
        let text = if value.is_finite() {
            // The digits denote exactly this f64, and MLIR reads literals as f64.
            let digits = format!("{value:?}");
            if digits.contains('.') { digits } else { digits.replace('e', ".0e") }
        } else {
            match ty.elem {
                Elem::F64 => format!("0x{:016X}", value.to_bits()),
                _ => format!("0x{:08X}", (value as f32).to_bits()),
            }
        };
        self.constant(ty, &text)
    }

    /// A constant with `lane(i)` in lane `i`.
    pub(crate) fn int_lanes(&mut self, ty: Ty, lane: impl Fn(i64) -> i64) -> Val {
        let mut text = String::from("[");
        for i in 0..i64::from(ty.lanes) {
            let comma = if i == 0 { "" } else { ", " };
            let _ = write!(text, "{comma}{}", lane(i));
        }
        text.push(']');
        if ty.lanes == 1 { self.int(ty, lane(0)) } else { self.constant(ty, &text) }
    }

    /// `v` in each of `lanes` lanes; a vector of that many lanes stays as it is.
    pub(crate) fn broadcast(&mut self, v: Val, lanes: u32) -> Val {
        let ty = self.ty(v);
        if ty.lanes == lanes {
            return v;
        }
        let to = ty.with_lanes(lanes);
        self.pure(to, &[v], &format!("vector.broadcast {v} : {ty} to {to}"))
    }

    /// Both operands with the lanes of the wider one.
    pub(crate) fn same_lanes(&mut self, a: Val, b: Val) -> (Val, Val) {
        let lanes = self.ty(a).lanes.max(self.ty(b).lanes);
        (self.broadcast(a, lanes), self.broadcast(b, lanes))
    }

    /// `op a, b` with operands and result of one type; a scalar is repeated for a vector.
    pub(crate) fn bin(&mut self, op: &str, a: Val, b: Val) -> Val {
        self.bin_with(op, "", a, b)
    }

    /// [`Builder::bin`] with attributes such as `overflow<nsw>` after the operands.
    pub(crate) fn bin_with(&mut self, op: &str, attributes: &str, a: Val, b: Val) -> Val {
        let (a, b) = self.same_lanes(a, b);
        let ty = self.ty(a);
        self.pure(ty, &[a, b], &format!("{op} {a}, {b}{attributes} : {ty}"))
    }

    /// `op a` with a result of the operand's type.
    pub(crate) fn un(&mut self, op: &str, a: Val) -> Val {
        let ty = self.ty(a);
        self.pure(ty, &[a], &format!("{op} {a} : {ty}"))
    }

    /// A conversion op such as `arith.extsi` to another element type; the same type is no conversion.
    pub(crate) fn convert(&mut self, op: &str, a: Val, to: Elem) -> Val {
        let from = self.ty(a);
        if from.elem == to {
            return a;
        }
        let ty = from.with_elem(to);
        self.pure(ty, &[a], &format!("{op} {a} : {from} to {ty}"))
    }

    pub(crate) fn bitcast(&mut self, a: Val, to: Elem) -> Val {
        self.convert("arith.bitcast", a, to)
    }

    /// An integer comparison, signed unless `unsigned`.
    pub(crate) fn cmpi(&mut self, cmp: Cmp, unsigned: bool, a: Val, b: Val) -> Val {
        let sign = if unsigned { 'u' } else { 's' };
        let name = match cmp {
            Cmp::Eq => "eq".to_owned(),
            Cmp::Ne => "ne".to_owned(),
            Cmp::Lt => format!("{sign}lt"),
            Cmp::Le => format!("{sign}le"),
        };
        self.compare("arith.cmpi", &name, a, b)
    }

    /// A floating-point comparison by MLIR's name (`olt`, `une`).
    pub(crate) fn cmpf(&mut self, name: &str, a: Val, b: Val) -> Val {
        self.compare("arith.cmpf", name, a, b)
    }

    fn compare(&mut self, op: &str, name: &str, a: Val, b: Val) -> Val {
        let (a, b) = self.same_lanes(a, b);
        let ty = self.ty(a);
        self.pure(ty.with_elem(Elem::I1), &[a, b], &format!("{op} {name}, {a}, {b} : {ty}"))
    }

    pub(crate) fn select(&mut self, cond: Val, a: Val, b: Val) -> Val {
        let (a, b) = self.same_lanes(a, b);
        let lanes = self.ty(cond).lanes;
        let (a, b) = if lanes > 1 { (self.broadcast(a, lanes), self.broadcast(b, lanes)) } else { (a, b) };
        let (ct, ty) = (self.ty(cond), self.ty(a));
        let types = if ct.lanes == 1 { ty.to_string() } else { format!("{ct}, {ty}") };
        self.pure(ty, &[cond, a, b], &format!("arith.select {cond}, {a}, {b} : {types}"))
    }

    /// `a * b + c`, rounded once where [`Builder::fma`] says so.
    pub(crate) fn fma(&mut self, a: Val, b: Val, c: Val) -> Val {
        if !self.fma {
            let product = self.bin("arith.mulf", a, b);
            return self.bin("arith.addf", product, c);
        }
        let lanes = [a, b, c].into_iter().map(|v| self.ty(v).lanes).max().unwrap_or(1);
        let [a, b, c] = [a, b, c].map(|v| self.broadcast(v, lanes));
        let ty = self.ty(a);
        self.pure(ty, &[a, b, c], &format!("math.fma {a}, {b}, {c} : {ty}"))
    }

    /// Lane `lane` of a vector.
    pub(crate) fn extract(&mut self, v: Val, lane: u32) -> Val {
        let ty = self.ty(v);
        if ty.lanes == 1 {
            return v;
        }
        self.pure(ty.with_lanes(1), &[v], &format!("vector.extract {v}[{lane}] : {} from {ty}", ty.elem))
    }

    /// `v` with lane `lane` replaced.
    pub(crate) fn insert(&mut self, lane_value: Val, v: Val, lane: u32) -> Val {
        let ty = self.ty(v);
        if ty.lanes == 1 {
            return lane_value;
        }
        let rhs = format!("vector.insert {lane_value}, {v}[{lane}] : {} into {ty}", ty.elem);
        self.pure(ty, &[lane_value, v], &rhs)
    }

    /// `count` lanes from `first` on.
    pub(crate) fn slice(&mut self, v: Val, first: u32, count: u32) -> Val {
        if count == 1 {
            return self.extract(v, first);
        }
        let ty = self.ty(v);
        if count == ty.lanes {
            return v;
        }
        let to = ty.with_lanes(count);
        let lanes: Vec<String> = (first..first + count).map(|l| l.to_string()).collect();
        let rhs = format!("vector.shuffle {v}, {v} [{}] : {ty}, {ty}", lanes.join(", "));
        self.pure(to, &[v], &rhs)
    }

    /// `if cond { then } else { other }` as a value; both give the same type.
    pub(crate) fn if_else(
        &mut self,
        cond: Val,
        then: impl FnOnce(&mut Self) -> Val,
        other: impl FnOnce(&mut Self) -> Val,
    ) -> Val {
        let a = self.branch(then);
        let b = self.branch(other);
        self.finish_if(cond, a, b)
    }

    fn branch(&mut self, body: impl FnOnce(&mut Self) -> Val) -> (Ty, String) {
        self.open();
        let v = body(self);
        self.close_with(v)
    }

    /// Closes the innermost region, which yields `v`.
    pub(crate) fn close_with(&mut self, v: Val) -> (Ty, String) {
        let ty = self.ty(v);
        self.stmt(&format!("scf.yield {v} : {ty}"));
        (ty, self.close())
    }

    /// The value of an `scf.if` whose two regions were closed by [`Builder::close_with`].
    pub(crate) fn finish_if(&mut self, cond: Val, (ty, then): (Ty, String), (_, other): (Ty, String)) -> Val {
        let v = self.value(ty, self.depth());
        self.splice(&format!("{v} = scf.if {cond} -> ({ty}) {{"), &[(&then, "} else {"), (&other, "}")]);
        v
    }
}
