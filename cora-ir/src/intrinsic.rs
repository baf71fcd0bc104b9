//! Tensor instructions as data: what they compute, which lane holds which element, where operands may be, which
//! processors have them.
//!
//! An intrinsic computes `C[i, j] += sum over p < k of read(A[i, p]) * read(B[p, j])` for a tile of fixed size, by one
//! thread, by the 32 lanes of a warp or by the 128 lanes of four warps together. Each of the three matrices is a
//! [`Fragment`]: every lane holds some of its elements in registers, and the lane map says which. A factor that the
//! instruction reads from shared memory by itself has no holders; there the fragment says in what blocks its elements lie,
//! and the lane map divides the reading. Scheduling (`tensorize`), lowering, both interpreters and the code generators
//! read this table; only the emission key stands for anything that is not in it.
//!
//! ```text
//! mma.m16n8k16.f32.bf16, C: lane l holds in register e the element of row l / 4 + e / 2 * 8, column l % 4 * 2 + e % 2
//! wgmma.m64n128k16.f32.bf16, A: blocks of 8 rows and 8 columns, 128 bytes one after the other
//! ```

use crate::env::Scope;
use crate::types::{ScalarType, UnOp};

/// An intrinsic: its place in [`INTRINSICS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct IntrinsicId(u8);

/// What a digit of a coordinate is a digit of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// The number of the lane.
    Lane,
    /// The number of the register in the lane.
    Register,
}

/// `of / divisor % modulus * times`: what one digit of a lane or register number adds to a row or column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digit {
    /// Which number.
    pub of: Of,
    /// The value of its last place.
    pub divisor: i64,
    /// How many values it has.
    pub modulus: i64,
    /// How far one step moves.
    pub times: i64,
}

/// Which lane holds which element of a matrix. Each element is in one register of one lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Element type.
    pub ty: ScalarType,
    /// Elements that each lane holds.
    pub registers: i64,
    /// The row of an element, as a sum of digits.
    pub row: &'static [Digit],
    /// The column of an element, as a sum of digits.
    pub column: &'static [Digit],
    /// Where the matrix may be.
    pub scopes: &'static [Scope],
    /// Rows and columns of a block, where the instruction finds the matrix by its address: a block's elements lie one
    /// after the other, rows or columns of it side by side, and blocks that are neighbours in rows or in columns are
    /// equally far apart. In shared memory a side of a block is 16 bytes.
    pub blocks: Option<[i64; 2]>,
}

/// How an element of a factor enters the product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// Converted to this type, exactly.
    Converted(ScalarType),
    /// Rounded.
    Rounded(UnOp),
}

/// What a processor must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// An NVIDIA GPU from this compute capability on, such as 80 for `sm_80`.
    Gpu(u32),
    /// NVIDIA GPUs of this architecture, and no later ones.
    GpuOnly(&'static str),
    /// A CPU; without this feature the same is computed by other instructions.
    Cpu(&'static str),
}

impl Needs {
    /// Whether GPUs of an architecture, such as `sm_90a`, have it.
    pub fn on_gpu(self, arch: &str) -> bool {
        match self {
            Self::Gpu(least) => capability(arch) >= least,
            Self::GpuOnly(only) => arch == only,
            Self::Cpu(_) => false,
        }
    }

    /// LLVM's name of the feature that a processor must have.
    pub fn feature(self) -> Option<&'static str> {
        match self {
            Self::Cpu(feature) => Some(feature),
            Self::Gpu(_) | Self::GpuOnly(_) => None,
        }
    }
}

/// The compute capability of a GPU architecture: 80 for `sm_80`, 90 for `sm_90a`.
pub fn capability(arch: &str) -> u32 {
    arch.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0)
}

/// A processor's vector registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vectors {
    /// LLVM's name of the feature that has them.
    pub feature: &'static str,
    /// Bytes of one.
    pub bytes: i64,
    /// How many there are.
    pub registers: i64,
}

/// The widest first.
const VECTORS: [Vectors; 4] = [
    Vectors { feature: "avx512f", bytes: 64, registers: 32 },
    Vectors { feature: "avx", bytes: 32, registers: 16 },
    Vectors { feature: "neon", bytes: 16, registers: 32 },
    Vectors { feature: "sse2", bytes: 16, registers: 16 },
];

impl Default for Vectors {
    /// The widest.
    fn default() -> Self {
        VECTORS[0]
    }
}

/// Features of a processor, as far as schedules depend on them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Features {
    /// A bit for each of [`INTRINSICS`] that the processor has instructions for.
    intrinsics: u32,
    /// Its vector registers.
    vectors: Vectors,
}

impl Features {
    /// Those that a processor has by LLVM's name; the widest vectors where it names none.
    pub fn of(has: impl Fn(&str) -> bool) -> Self {
        let found = |i: &IntrinsicId| i.get().needs.feature().is_some_and(&has);
        let intrinsics = IntrinsicId::ALL.into_iter().filter(found).map(|i| 1 << i.0).sum();
        Self { intrinsics, vectors: VECTORS.into_iter().find(|v| has(v.feature)).unwrap_or_default() }
    }

    /// The processor's vector registers.
    pub fn vectors(self) -> Vectors {
        self.vectors
    }

    /// Whether the processor has instructions for an intrinsic.
    pub fn contain(self, intrinsic: IntrinsicId) -> bool {
        self.intrinsics >> intrinsic.0 & 1 == 1
    }

    /// LLVM's names, that of the widest vectors left out.
    pub fn names(self) -> Vec<&'static str> {
        let own = IntrinsicId::ALL.into_iter().filter(|&i| self.contain(i));
        let mut names: Vec<&str> = own.filter_map(|i| i.get().needs.feature()).collect();
        names.dedup();
        let widest = Vectors::default();
        names.extend(Some(self.vectors.feature).filter(|&f| f != widest.feature));
        names
    }

    /// The names of all that schedules depend on.
    pub fn known() -> Vec<&'static str> {
        let mut names = Self::of(|_| true).names();
        names.extend(VECTORS.map(|v| v.feature));
        names
    }
}

/// How code generators write it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Emission {
    /// PTX `mma.sync.aligned`, rows of A and columns of B; the type of the factors.
    MmaSync(&'static str),
    /// PTX `wgmma.mma_async`, both factors in shared memory; the type of the factors.
    Wgmma(&'static str),
    /// AVX-512 BF16 `vdpbf16ps`, or products of what pairs are converted to.
    DotBf16,
    /// AVX-512 VNNI `vpdpbusd` with the left factor made unsigned for 16 columns, AVX2 `vpmaddwd` for 8, or products of what
    /// bytes are extended to.
    DotI8,
    /// AMX `tdpbf16ps` on tile registers, or the same by rows as [`Emission::DotBf16`].
    AmxBf16,
    /// AMX `tdpbssd` on tile registers, or the same by rows as [`Emission::DotI8`].
    AmxI8,
}

/// A tensor instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Intrinsic {
    /// Its name in schedules and IR.
    pub name: &'static str,
    /// Rows, columns and reduced positions of the tile.
    pub tile: [i64; 3],
    /// The result, `m` by `n`.
    pub c: Fragment,
    /// The left factor, `m` by `k`.
    pub a: Fragment,
    /// The right factor, `k` by `n`.
    pub b: Fragment,
    /// How elements of the factors enter the product.
    pub read: Read,
    /// Lanes that execute it together, threads along x: 1, the 32 of a warp, or the 128 of a group of four warps.
    pub lanes: i64,
    /// Whether it goes on while its threads do: until it has been waited for, its factors stay as they are, and its
    /// result is used by nothing but the next such instruction.
    pub beside: bool,
    /// Where there is such an instruction.
    pub needs: Needs,
    /// How it is written.
    pub emission: Emission,
}

const fn lane(divisor: i64, modulus: i64, times: i64) -> Digit {
    Digit { of: Of::Lane, divisor, modulus, times }
}

const fn register(divisor: i64, modulus: i64, times: i64) -> Digit {
    Digit { of: Of::Register, divisor, modulus, times }
}

/// What a warp can read together; a thread's own memory is not the same for all lanes.
const BY_WARP: &[Scope] = &[Scope::Global, Scope::Shared];
/// What a thread can read.
const BY_THREAD: &[Scope] = &[Scope::Global, Scope::Shared, Scope::Local];
const OF_WARP: &[Scope] = &[Scope::Reg, Scope::Global, Scope::Shared];
const OF_THREAD: &[Scope] = &[Scope::Reg, Scope::Global, Scope::Shared, Scope::Local];

/// The result of all `mma.sync` of 16 rows and 8 columns.
const MMA_C: Fragment = Fragment {
    ty: ScalarType::F32,
    registers: 4,
    row: &[lane(4, 8, 1), register(2, 2, 8)],
    column: &[lane(1, 4, 2), register(1, 2, 1)],
    scopes: OF_WARP,
    blocks: None,
};

/// `mma.sync.m16n8k16` of factors of 16 bits (PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type").
const fn mma_16(name: &'static str, ty: ScalarType, key: &'static str) -> Intrinsic {
    Intrinsic {
        name,
        tile: [16, 8, 16],
        c: MMA_C,
        a: Fragment {
            ty,
            registers: 8,
            row: const { &[lane(4, 8, 1), register(2, 2, 8)] },
            column: const { &[lane(1, 4, 2), register(1, 2, 1), register(4, 2, 8)] },
            scopes: BY_WARP,
            blocks: None,
        },
        b: Fragment {
            ty,
            registers: 4,
            row: const { &[lane(1, 4, 2), register(1, 2, 1), register(2, 2, 8)] },
            column: const { &[lane(4, 8, 1)] },
            scopes: BY_WARP,
            blocks: None,
        },
        read: Read::Converted(ScalarType::F32),
        lanes: 32,
        beside: false,
        needs: Needs::Gpu(80),
        emission: Emission::MmaSync(key),
    }
}

/// `wgmma.mma_async.m64nNk16` of factors of 16 bits in shared memory (PTX ISA, "Asynchronous warpgroup level matrix
/// instructions", "Register fragments and shared memory matrix layouts"; blocks are its core matrices, without swizzle).
/// The columns are those of the result and of the right factor.
const fn wgmma_16(
    name: &'static str,
    (ty, key): (ScalarType, &'static str),
    n: i64,
    [result, right]: [&'static [Digit]; 2],
) -> Intrinsic {
    Intrinsic {
        name,
        tile: [64, n, 16],
        c: Fragment {
            ty: ScalarType::F32,
            registers: n / 2,
            row: const { &[lane(32, 4, 16), lane(4, 8, 1), register(2, 2, 8)] },
            column: result,
            scopes: const { &[Scope::Reg] },
            blocks: None,
        },
        a: Fragment {
            ty,
            registers: 8,
            row: const { &[lane(1, 64, 1)] },
            column: const { &[register(1, 8, 1), lane(64, 2, 8)] },
            scopes: const { &[Scope::Shared] },
            blocks: Some([8, 8]),
        },
        b: Fragment {
            ty,
            registers: n / 8,
            row: const { &[register(1, 8, 1), lane(64, 2, 8)] },
            column: right,
            scopes: const { &[Scope::Shared] },
            blocks: Some([8, 8]),
        },
        read: Read::Converted(ScalarType::F32),
        lanes: 128,
        beside: true,
        needs: Needs::GpuOnly("sm_90a"),
        emission: Emission::Wgmma(key),
    }
}

/// Of one row: `K` elements of A with as many for each of `N` columns of B, which lie side by side in the instruction's operand;
/// the types of the result, to which factors are converted, and of the factors.
const fn dot<const N: i64, const K: i64>(
    name: &'static str,
    [result, ty]: [ScalarType; 2],
    feature: &'static str,
    emission: Emission,
) -> Intrinsic {
    Intrinsic {
        name,
        tile: [1, N, K],
        c: Fragment {
            ty: result,
            registers: N,
            row: &[],
            column: const { &[register(1, N, 1)] },
            scopes: OF_THREAD,
            blocks: None,
        },
        a: Fragment {
            ty,
            registers: K,
            row: &[],
            column: const { &[register(1, K, 1)] },
            scopes: BY_THREAD,
            blocks: None,
        },
        b: Fragment {
            ty,
            registers: N * K,
            row: const { &[register(1, K, 1)] },
            column: const { &[register(K, N, 1)] },
            scopes: BY_THREAD,
            blocks: None,
        },
        read: Read::Converted(result),
        lanes: 1,
        beside: false,
        needs: Needs::Cpu(feature),
        emission,
    }
}

/// A tile register has 16 rows of 64 bytes, of the left factor `K` elements; those of the right one are `TOGETHER` reduced
/// positions, side by side, of 16 columns.
const fn amx<const K: i64, const TOGETHER: i64>(
    name: &'static str,
    [result, ty]: [ScalarType; 2],
    feature: &'static str,
    emission: Emission,
) -> Intrinsic {
    Intrinsic {
        name,
        tile: [16, 16, K],
        c: Fragment {
            ty: result,
            registers: 256,
            row: const { &[register(16, 16, 1)] },
            column: const { &[register(1, 16, 1)] },
            scopes: OF_THREAD,
            blocks: Some([1, 16]),
        },
        a: Fragment {
            ty,
            registers: 16 * K,
            row: const { &[register(K, 16, 1)] },
            column: const { &[register(1, K, 1)] },
            scopes: BY_THREAD,
            blocks: Some([1, K]),
        },
        b: Fragment {
            ty,
            registers: 16 * K,
            row: const { &[register(1, TOGETHER, 1), register(16 * TOGETHER, 16, TOGETHER)] },
            column: const { &[register(TOGETHER, 16, 1)] },
            scopes: BY_THREAD,
            blocks: Some([TOGETHER, 16]),
        },
        read: Read::Converted(result),
        lanes: 1,
        beside: false,
        needs: Needs::Cpu(feature),
        emission,
    }
}

const F16: (ScalarType, &str) = (ScalarType::F16, "f16");
const BF16: (ScalarType, &str) = (ScalarType::BF16, "bf16");
const COLUMNS_64: [&[Digit]; 2] =
    [&[lane(1, 4, 2), register(1, 2, 1), register(4, 8, 8)], &[lane(1, 64, 1), register(8, 1, 64)]];
const COLUMNS_128: [&[Digit]; 2] =
    [&[lane(1, 4, 2), register(1, 2, 1), register(4, 16, 8)], &[lane(1, 64, 1), register(8, 2, 64)]];
const COLUMNS_256: [&[Digit]; 2] =
    [&[lane(1, 4, 2), register(1, 2, 1), register(4, 32, 8)], &[lane(1, 64, 1), register(8, 4, 64)]];

/// Every intrinsic.
pub const INTRINSICS: [Intrinsic; 14] = [
    mma_16("mma.m16n8k16.f32.f16", ScalarType::F16, "f16"),
    mma_16("mma.m16n8k16.f32.bf16", ScalarType::BF16, "bf16"),
    wgmma_16("wgmma.m64n64k16.f32.f16", F16, 64, COLUMNS_64),
    wgmma_16("wgmma.m64n128k16.f32.f16", F16, 128, COLUMNS_128),
    wgmma_16("wgmma.m64n256k16.f32.f16", F16, 256, COLUMNS_256),
    wgmma_16("wgmma.m64n64k16.f32.bf16", BF16, 64, COLUMNS_64),
    wgmma_16("wgmma.m64n128k16.f32.bf16", BF16, 128, COLUMNS_128),
    wgmma_16("wgmma.m64n256k16.f32.bf16", BF16, 256, COLUMNS_256),
    // PTX ISA, "Matrix fragments for mma.m16n8k8" with .tf32 factors.
    Intrinsic {
        name: "mma.m16n8k8.f32.tf32",
        tile: [16, 8, 8],
        c: MMA_C,
        a: Fragment {
            ty: ScalarType::F32,
            registers: 4,
            row: &[lane(4, 8, 1), register(1, 2, 8)],
            column: &[lane(1, 4, 1), register(2, 2, 4)],
            scopes: BY_WARP,
            blocks: None,
        },
        b: Fragment {
            ty: ScalarType::F32,
            registers: 2,
            row: &[lane(1, 4, 1), register(1, 2, 4)],
            column: &[lane(4, 8, 1)],
            scopes: BY_WARP,
            blocks: None,
        },
        read: Read::Rounded(UnOp::Tf32),
        lanes: 32,
        beside: false,
        needs: Needs::Gpu(80),
        emission: Emission::MmaSync("tf32"),
    },
    dot::<16, 2>("dot.n16k2.f32.bf16", [ScalarType::F32, ScalarType::BF16], "avx512bf16", Emission::DotBf16),
    dot::<16, 4>("dot.n16k4.i32.i8", [ScalarType::I32, ScalarType::I8], "avx512vnni", Emission::DotI8),
    dot::<8, 4>("dot.n8k4.i32.i8", [ScalarType::I32, ScalarType::I8], "avx2", Emission::DotI8),
    amx::<32, 2>("amx.m16n16k32.f32.bf16", [ScalarType::F32, ScalarType::BF16], "amx-bf16", Emission::AmxBf16),
    amx::<64, 4>("amx.m16n16k64.i32.i8", [ScalarType::I32, ScalarType::I8], "amx-int8", Emission::AmxI8),
];

impl IntrinsicId {
    /// Every intrinsic.
    pub const ALL: [IntrinsicId; INTRINSICS.len()] = {
        let mut all = [IntrinsicId(0); INTRINSICS.len()];
        let mut n = 0;
        while n < all.len() {
            all[n] = IntrinsicId(n as u8);
            n += 1;
        }
        all
    };

    /// The intrinsic of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|i| i.get().name == name)
    }

    /// What it is.
    pub fn get(self) -> &'static Intrinsic {
        &INTRINSICS[usize::from(self.0)]
    }
}

/// The names of all intrinsics, for messages.
pub fn names() -> String {
    INTRINSICS.iter().map(|i| format!("`{}`", i.name)).collect::<Vec<_>>().join(", ")
}

fn sum(digits: &[Digit], lane: i64, register: i64) -> i64 {
    let value = |d: &Digit| match d.of {
        Of::Lane => lane,
        Of::Register => register,
    };
    digits.iter().map(|d| value(d) / d.divisor % d.modulus * d.times).sum()
}

impl Fragment {
    /// Row and column of the element in a lane's register.
    pub fn element(&self, lane: i64, register: i64) -> (i64, i64) {
        (sum(self.row, lane, register), sum(self.column, lane, register))
    }

    /// The lane and the register that hold an element.
    pub fn holder(&self, row: i64, column: i64) -> (i64, i64) {
        let (mut lane, mut register) = (0, 0);
        for (digits, at) in [(self.row, row), (self.column, column)] {
            for d in digits {
                let place = at / d.times % d.modulus * d.divisor;
                match d.of {
                    Of::Lane => lane += place,
                    Of::Register => register += place,
                }
            }
        }
        (lane, register)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lanes and registers hold each element of the tile once, and `holder` finds it.
    #[test]
    fn lane_maps_are_bijections() {
        for i in INTRINSICS {
            let [m, n, k] = i.tile;
            for (f, rows, columns) in [(i.c, m, n), (i.a, m, k), (i.b, k, n)] {
                assert_eq!(i.lanes * f.registers, rows * columns, "{}", i.name);
                let mut seen = std::collections::BTreeSet::new();
                for lane in 0..i.lanes {
                    for register in 0..f.registers {
                        let (row, column) = f.element(lane, register);
                        assert!((0..rows).contains(&row) && (0..columns).contains(&column), "{}", i.name);
                        assert!(seen.insert((row, column)), "{}: {row}, {column} twice", i.name);
                        assert_eq!(f.holder(row, column), (lane, register), "{}", i.name);
                    }
                }
            }
        }
    }

    /// Some entries of the PTX ISA's tables.
    #[test]
    fn lane_maps_are_those_of_the_instruction_set() {
        let bf16 = IntrinsicId::named("mma.m16n8k16.f32.bf16").unwrap().get();
        // Lane 7: group 1, third of it.
        assert_eq!([0, 1, 2, 4, 7].map(|r| bf16.a.element(7, r)), [(1, 6), (1, 7), (9, 6), (1, 14), (9, 15)]);
        assert_eq!([0, 1, 2, 3].map(|r| bf16.b.element(7, r)), [(6, 1), (7, 1), (14, 1), (15, 1)]);
        assert_eq!([0, 1, 2, 3].map(|r| bf16.c.element(7, r)), [(1, 6), (1, 7), (9, 6), (9, 7)]);
        let tf32 = IntrinsicId::named("mma.m16n8k8.f32.tf32").unwrap().get();
        assert_eq!([0, 1, 2, 3].map(|r| tf32.a.element(7, r)), [(1, 3), (9, 3), (1, 7), (9, 7)]);
        assert_eq!([0, 1].map(|r| tf32.b.element(7, r)), [(3, 1), (7, 1)]);
        let wgmma = IntrinsicId::named("wgmma.m64n128k16.f32.bf16").unwrap().get();
        // The third warp's lane 7.
        assert_eq!([0, 1, 2, 4, 63].map(|r| wgmma.c.element(71, r)), [(33, 6), (33, 7), (41, 6), (33, 14), (41, 127)]);
    }
}
