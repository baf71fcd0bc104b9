//! The bytecode: instructions on scalar registers and on registers of up to 256 lanes.

use crate::ids::{TensorId, UfId, VarId};
use crate::interp::contract::Factor;
use crate::interp::grid::{SlotSync, Sync};
use crate::loops::Axis;
use crate::types::{BinOp, Combiner, MAX_LANES, ScalarType, UnOp};

/// Lanes of a vector register: the longest strip.
pub(crate) const LANES: usize = MAX_LANES as usize;

/// An operand; its file (floats or integers) follows from the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Opd {
    /// A scalar register: the same value in each lane.
    S(u32),
    /// A vector register.
    V(u32),
    /// Integers `base + lane * stride`, both scalar registers, where a vector is not needed.
    A { base: u32, stride: u32 },
}

impl Opd {
    pub fn is_scalar(self) -> bool {
        matches!(self, Self::S(_))
    }
}

/// A tensor and an index.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub tensor: TensorId,
    pub index: Box<[Opd]>,
}

/// Number of lanes of an instruction: 0 = the current strip's, else fixed by a vector type.
pub(crate) type Width = u32;

/// One instruction. `float` says which file a value is in. A destination is written by one
/// instruction only (accumulators apart), after its operands.
#[derive(Clone, Debug)]
pub(crate) enum Instr {
    /// Binary operator; `ty` is the operands' type.
    Bin { op: BinOp, ty: ScalarType, dst: Opd, a: Opd, b: Opd, w: Width },
    /// Unary operator.
    Un { op: UnOp, ty: ScalarType, dst: Opd, a: Opd, w: Width },
    /// `cond ? a : b`
    Select { float: bool, dst: Opd, cond: Opd, a: Opd, b: Opd, w: Width },
    /// Conversion.
    Cast { from: ScalarType, to: ScalarType, dst: Opd, a: Opd, w: Width },
    /// `dst[lane] = base + lane * stride`
    Iota { dst: u32, base: u32, stride: u32, w: Width },
    /// A function's value.
    Call { uf: UfId, dst: Opd, args: Box<[Opd]>, w: Width },
    /// `Expr::Search`
    Search { table: TensorId, dst: Opd, base: Opd, len: Opd, value: Opd, w: Width },
    /// All lanes of `a` combined.
    Reduce { float: bool, ty: ScalarType, combiner: Combiner, dst: u32, a: Opd, w: Width },
    /// An element; where the guard's condition is false, its other value.
    Load { float: bool, dst: Opd, access: Box<Access>, guard: Option<(Opd, Opd)>, w: Width },
    /// Writes an element, which arrives later if it is a copy.
    Store { float: bool, access: Box<Access>, value: Opd, mask: Option<Opd>, copy: bool, w: Width },
    /// Combines into an element, lane after lane.
    Update { float: bool, access: Box<Access>, combiner: Combiner, value: Opd, atomic: bool, w: Width },
    /// Sets an accumulator: to a scalar in all lanes, or lane by lane.
    AccSet { float: bool, acc: Opd, value: Opd },
    /// `acc = combine(acc, value)`; a scalar accumulator takes all lanes.
    Acc { float: bool, ty: ScalarType, combiner: Combiner, acc: Opd, value: Opd, w: Width },
    /// `acc += a * b` on floats; a scalar accumulator takes all lanes.
    MulAcc { acc: Opd, a: Opd, b: Opd, w: Width },
}

/// A step of a program.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Do(Instr),
    /// Runs `body` with `var` = 0, 1, ... below `extent`.
    For {
        var: u32,
        extent: Opd,
        at: Option<TensorId>,
        outer: bool,
        axis: Option<Axis>,
        body: Vec<Step>,
    },
    /// What orders the accesses of threads.
    Sync(Sync),
    /// A box is asked for into a slot of a tensor, or waited for.
    Slot {
        tensor: TensorId,
        slot: Opd,
        how: SlotSync,
    },
    /// Runs `body` on strips of lanes: lane 0 stands for `base`.
    Strip {
        base: u32,
        extent: Opd,
        at: Option<TensorId>,
        outer: bool,
        body: Vec<Step>,
    },
    /// Runs `then` where `cond` holds and `other` where not (`other` is empty if `cond` has lanes).
    /// Lanes run as shorter strips, one for each run of lanes where it holds.
    Where {
        cond: Opd,
        base: Option<u32>,
        at: Option<TensorId>,
        then: Vec<Step>,
        other: Vec<Step>,
    },
    /// `acc += sum over extent of a * b`; where the addresses are not regular, `general` does the same.
    Contract {
        acc: Opd,
        factors: Box<(Factor, Factor)>,
        extent: Opd,
        general: Vec<Step>,
    },
    /// A new instance of a tensor that is attached here: its elements are undefined.
    Attach {
        tensor: TensorId,
        vars: Vec<(VarId, u32)>,
        resize: bool,
    },
}

/// A compiled nest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    pub steps: Vec<Step>,
    /// Initial integer scalars: constants, 0 elsewhere.
    pub ints: Vec<i64>,
    /// Initial float scalars.
    pub floats: Vec<f64>,
    /// Vector registers needed.
    pub int_vectors: u32,
    /// Vector registers needed.
    pub float_vectors: u32,
}
