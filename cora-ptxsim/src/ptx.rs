//! PTX as instructions that can be interpreted.
//!
//! What compilers for one-file programs write: kernels, registers, shared and local arrays, and the instructions that
//! `decode` names. Anything else is an error that says what and where.

mod alu;
mod convert;
mod decode;
mod lex;
mod parse;

use rustc_hash::FxHashMap;

/// Text that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ParseError {
    /// Where, from 1.
    pub line: u32,
    /// What is wrong there.
    pub what: String,
}

/// The kernels of a text.
#[derive(Debug)]
pub struct Module {
    target: String,
    kernels: FxHashMap<String, Kernel>,
}

impl Module {
    /// Reads a module.
    ///
    /// # Errors
    /// [`ParseError`] for what is not PTX, and for instructions that are not interpreted.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        parse::module(text)
    }

    /// The architecture that the text is for, such as `sm_80`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// A kernel by name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.get(name)
    }
}

/// A function that is launched on a grid.
#[derive(Debug)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// What it takes, in order.
    pub params: Vec<Param>,
    /// The threads of a block, where the text says them.
    pub threads: Option<[u32; 3]>,
    /// Where shared memory of every block ends, which begins at [`SHARED_BEGIN`]; what a launch adds comes after it.
    pub shared: u64,
    /// Bytes of memory of each thread.
    pub local: u64,
    pub(crate) registers: usize,
    pub(crate) code: Vec<Instr>,
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its bytes.
    pub bytes: usize,
    /// Where it begins in the kernel's parameter space.
    pub offset: usize,
}

/// Shared memory begins here in its window, so that address 0 is nobody's.
pub const SHARED_BEGIN: u64 = 1024;

/// The number of a register.
pub(crate) type Reg = u32;

/// What an instruction reads: a register's bits or a number's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Src {
    Reg(Reg),
    Bits(u64),
}

/// An address: what `base` holds, and so much more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub base: Src,
    pub offset: i64,
}

/// Where an address points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// What a thread knows of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Lane,
    Warp,
}

pub(crate) type Fn1 = fn(u64) -> u64;
pub(crate) type Fn2 = fn(u64, u64) -> u64;
pub(crate) type Fn3 = fn(u64, u64, u64) -> u64;
pub(crate) type Fn4 = fn(u64, u64, u64, u64) -> u64;

/// An instruction; where there is a guard, it happens only if the register is not 0 (or is, if negated).
#[derive(Debug)]
pub(crate) struct Instr {
    pub guard: Option<(Reg, bool)>,
    pub op: Op,
    pub line: u32,
}

/// A function of registers and numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Compute {
    One(Fn1, Src),
    Two(Fn2, Src, Src),
    Three(Fn3, Src, Src, Src),
    Four(Fn4, [Src; 4]),
}

impl Compute {
    /// Its value, where `get` gives the operands'.
    pub(crate) fn value(&self, get: impl Fn(Src) -> u64) -> u64 {
        match *self {
            Compute::One(f, a) => f(get(a)),
            Compute::Two(f, a, b) => f(get(a), get(b)),
            Compute::Three(f, a, b, c) => f(get(a), get(b), get(c)),
            Compute::Four(f, [a, b, c, d]) => f(get(a), get(b), get(c), get(d)),
        }
    }
}

/// What an instruction does.
#[derive(Debug)]
pub(crate) enum Op {
    Compute(Reg, Compute),
    /// The same for the low and the high 16 bits of 32.
    Halves(Reg, Compute),
    /// A register for the low 16 bits of 32, and one for the high.
    OfHalves([Option<Reg>; 2], Compute),
    Special(Reg, Special),
    /// Each register a part of so many bits of the last operand.
    Unpack(Box<[Option<Reg>]>, u32, Src),
    Pack(Reg, u32, Box<[Src]>),
    /// From a space's own addresses to generic ones.
    ToGeneric(Space, Reg, Src),
    FromGeneric(Space, Reg, Src),
    Load(Load),
    Store {
        space: Space,
        bytes: u64,
        from: Box<[Src]>,
        at: Address,
    },
    /// An element of global or shared memory is replaced by a function of it.
    Atomic {
        space: Space,
        bytes: u64,
        f: Fn2,
        to: Option<Reg>,
        at: Address,
        value: Src,
    },
    Branch(usize),
    Return,
    /// All threads of the block wait for each other.
    Barrier,
    /// All lanes of the warp do it together.
    Warp(Box<Warp>),
    /// All lanes of four warps do it together.
    Group(Box<Group>),
    Async(Box<Async>),
    /// An order of accesses that the interpreter keeps anyway.
    Nothing,
}

/// Elements from memory to registers, each of them `bytes` long.
#[derive(Debug)]
pub(crate) struct Load {
    pub space: Space,
    pub bytes: u64,
    /// The bits that the element's sign fills, if it has one.
    pub signed: bool,
    pub to: Box<[Option<Reg>]>,
    pub at: Address,
}

/// The types of a matrix instruction's factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    F16,
    BF16,
    TF32,
}

/// How lanes are paired by a shuffle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pairing {
    Up,
    Down,
    Butterfly,
    Index,
}

/// What a warp does together.
#[derive(Debug)]
pub(crate) enum Warp {
    Sync,
    Shuffle {
        pairing: Pairing,
        to: Reg,
        inside: Option<Reg>,
        value: Src,
        by: Src,
        clamp: Src,
    },
    /// `d = a * b + c`, 16 rows, 8 columns.
    Mma {
        factor: Factor,
        d: Vec<Reg>,
        a: Vec<Src>,
        b: Vec<Src>,
        c: Vec<Src>,
    },
    /// Matrices of 8 rows of 16 bytes.
    LoadMatrix {
        transposed: bool,
        to: Vec<Reg>,
        at: Address,
    },
}

/// What four warps do together.
#[derive(Debug)]
pub(crate) enum Group {
    Fence,
    Mma { columns: usize, factor: Factor, d: Vec<Reg>, a: Src, b: Src, adds: Src, transposed: [bool; 2] },
    Commit,
    Wait(usize),
}

/// Copies that go on beside the program, and how they are waited for.
#[derive(Debug)]
pub(crate) enum Async {
    /// `bytes` bytes to shared memory, those from `given` on zeros.
    Copy {
        bytes: u64,
        to: Address,
        from: Address,
        given: Option<Src>,
    },
    Commit,
    Wait(usize),
    Init {
        at: Address,
        count: Src,
    },
    /// One thread arrives, and so many bytes are yet to come.
    Expect {
        at: Address,
        bytes: Src,
    },
    TryWait {
        to: Reg,
        at: Address,
        parity: Src,
    },
    /// A box of the tensor that a map describes.
    Box {
        to: Address,
        map: Src,
        at: Vec<Src>,
        barrier: Address,
    },
}
