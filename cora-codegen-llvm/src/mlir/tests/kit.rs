//! Builds storage modules by hand and runs their kernels on raw memory.

use cora_ir::env::{Param, Tensor, Uf};
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Buffer, Kernel, Stmt, StorageModule, Table};
use cora_ir::{ExprId, ParamId, Role, ScalarType, Scope, TensorId, UfDef, VarId};
use cora_runtime::abi::KernelFn;

use crate::llvm::{CPU_PIPELINE, Jit, LlvmModule, MlirModule, TargetSpec};
use crate::mlir::{EmitOptions, Slots, emit};

#[derive(Default)]
pub(super) struct Kit {
    pub(super) m: StorageModule,
}

impl Kit {
    pub(super) fn param(&mut self, name: &str) -> ParamId {
        self.m.env.params.push(Param { name: name.into(), lo: 0, hi: 1 << 20 })
    }

    fn push(&mut self, name: &str, ty: ScalarType, elems: i64, role: Role, scope: Scope) -> TensorId {
        let tensor = self.m.env.tensors.push(Tensor { role, scope, ..Tensor::temp(name, ty, vec![]) });
        let elems = self.int(elems);
        self.m.buffers.push(Buffer { tensor, elems, offset: None });
        tensor
    }

    pub(super) fn buffer(&mut self, name: &str, ty: ScalarType) -> TensorId {
        self.push(name, ty, 0, Role::Temp, Scope::Global)
    }

    pub(super) fn registers(&mut self, name: &str, ty: ScalarType, elems: i64) -> TensorId {
        self.push(name, ty, elems, Role::Temp, Scope::Reg)
    }

    /// A table of an extent function of one argument.
    pub(super) fn table(&mut self, name: &str, ty: ScalarType) -> TensorId {
        let dims = vec![];
        let tensor = self.m.env.tensors.push(Tensor::temp(name, ty, dims));
        let (entries, lo, hi) = (self.int(8), self.int(0), self.int(1 << 20));
        let uf = self.m.env.ufs.push(Uf { name: name.into(), domain: vec![entries], def: UfDef::Extent { lo, hi } });
        self.m.tables.push(Table { uf, tensor, entries, domain: vec![entries], body: None });
        tensor
    }

    pub(super) fn int(&mut self, v: i64) -> ExprId {
        self.m.env.pool.int(v)
    }

    pub(super) fn var(&mut self, name: &str) -> (VarId, ExprId) {
        let v = self.m.env.new_var(name);
        (v, self.m.env.pool.var(v))
    }

    pub(super) fn load(&mut self, t: TensorId, index: ExprId) -> ExprId {
        self.m.env.load(t, [index])
    }

    /// A table entry as an index.
    pub(super) fn entry(&mut self, t: TensorId, index: ExprId) -> ExprId {
        self.m.env.pool.load(t, ScalarType::Index, [index])
    }

    pub(super) fn guarded(&mut self, t: TensorId, index: ExprId, cond: ExprId, other: ExprId) -> ExprId {
        let ty = self.m.env.tensors[t].ty;
        self.m.env.pool.load_guarded((t, 0), ty, [index], Some((cond, other)))
    }

    /// `ramp(i * lanes)`, or `i` itself for one lane.
    pub(super) fn lanes(&mut self, i: ExprId, lanes: u32) -> ExprId {
        let k = self.int(lanes.into());
        let base = self.m.env.pool.mul(i, k);
        if lanes == 1 { base } else { self.m.env.pool.ramp(base, 1, lanes) }
    }

    pub(super) fn kernel(&mut self, name: &str, body: Vec<Stmt>) {
        self.m.kernels.push(Kernel { name: name.into(), body });
    }

    pub(super) fn mlir(&self) -> String {
        emit(&self.m, &EmitOptions::default()).unwrap()
    }

    /// Runs the first kernel over `lo..hi` for every target of this machine in turn, each time on fresh copies, and gives
    /// the buffers after the last one; all targets must agree where `exact`.
    pub(super) fn run(
        &self,
        exact: bool,
        bufs: &[Buf],
        tables: &[Buf],
        scalars: &[i64],
        range: (i64, i64),
    ) -> Vec<Buf> {
        let mut last: Option<Vec<Buf>> = None;
        for target in targets() {
            let mut now = bufs.to_vec();
            Loaded::new(&self.m, &target).call(&mut now, tables, scalars, range);
            if let Some(last) = last
                && exact
            {
                assert!(last == now, "targets disagree at {target}");
            }
            last = Some(now);
        }
        last.unwrap()
    }
}

/// This machine, a machine with AVX2 and one with neither that nor FMA, as far as they run here.
pub(super) fn targets() -> Vec<TargetSpec> {
    let host = TargetSpec::host();
    let mut all = vec![host.clone()];
    for (name, feature) in [("haswell", "avx2"), ("x86-64-v2", "sse4.2")] {
        if host.has_feature(feature) {
            all.push(TargetSpec::new(name).unwrap());
        }
    }
    all.reverse();
    all
}

/// A loaded module.
pub(super) struct Loaded {
    jit: Jit,
    symbols: Vec<String>,
}

impl Loaded {
    pub(super) fn new(m: &StorageModule, target: &TargetSpec) -> Self {
        let text = emit(m, &EmitOptions::for_target(target)).unwrap();
        let mut module = MlirModule::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        module.run_pipeline(CPU_PIPELINE).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let mut llvm = LlvmModule::from_mlir(&module, target).unwrap_or_else(|e| panic!("{e}\n{text}"));
        llvm.optimize("default<O3>").unwrap();
        let jit = Jit::load(&llvm.emit_object().unwrap()).unwrap();
        Self { jit, symbols: Slots::new(m).symbols().to_vec() }
    }

    /// Runs the first kernel.
    pub(super) fn call(&self, bufs: &mut [Buf], tables: &[Buf], scalars: &[i64], range: (i64, i64)) {
        self.call_nth(0, bufs, tables, scalars, range);
    }

    pub(super) fn call_nth(&self, nth: usize, bufs: &mut [Buf], tables: &[Buf], scalars: &[i64], (lo, hi): (i64, i64)) {
        let address = self.jit.lookup(&self.symbols[nth]).unwrap();
        let pointers: Vec<*mut u8> = bufs.iter_mut().map(|b| b.lines.as_mut_ptr().cast()).collect();
        let tables: Vec<*const u8> = tables.iter().map(|b| b.lines.as_ptr().cast()).collect();
        // SAFETY: the symbol has the kernel signature; the tests give it as many buffers, tables and scalars as its module
        // has, of the sizes that it uses (`Buf` notices writes shortly behind the end).
        unsafe {
            let kernel: KernelFn = std::mem::transmute(address);
            kernel(pointers.as_ptr(), tables.as_ptr(), scalars.as_ptr(), lo, hi, 0);
        }
        bufs.iter().for_each(Buf::check);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
struct Line([u8; 64]);

/// Aligned memory with some lines behind its end that nobody may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Buf {
    lines: Vec<Line>,
    bytes: usize,
}

const GUARD: u8 = 0xA5;

macro_rules! typed {
    ($of:ident, $get:ident, $ty:ty) => {
        #[allow(dead_code, reason = "one for each type")]
        pub(super) fn $of(values: &[$ty]) -> Self {
            Self::new(values.iter().flat_map(|v| v.to_le_bytes()))
        }

        #[allow(dead_code, reason = "one for each type")]
        pub(super) fn $get(&self) -> Vec<$ty> {
            let bytes: Vec<u8> = (0..self.bytes).map(|i| self.lines[i / 64].0[i % 64]).collect();
            bytes.chunks_exact(size_of::<$ty>()).map(|c| <$ty>::from_le_bytes(c.try_into().unwrap())).collect()
        }
    };
}

impl Buf {
    fn new(values: impl Iterator<Item = u8>) -> Self {
        let mut all: Vec<u8> = values.collect();
        let bytes = all.len();
        all.resize((bytes / 64 + 4) * 64, GUARD);
        let lines = all.chunks_exact(64).map(|c| Line(c.try_into().unwrap())).collect();
        Self { lines, bytes }
    }

    fn check(&self) {
        let clean = (self.bytes..self.lines.len() * 64).all(|i| self.lines[i / 64].0[i % 64] == GUARD);
        assert!(clean, "written behind the end");
    }

    typed!(f32, as_f32, f32);
    typed!(f64, as_f64, f64);
    typed!(i8, as_i8, i8);
    typed!(i16, as_i16, i16);
    typed!(i32, as_i32, i32);
    typed!(i64, as_i64, i64);

    /// Elements of any type from numbers: exact integers for integer types, rounded for floats.
    pub(super) fn of(ty: ScalarType, values: &[f64]) -> Self {
        let each = |bytes: &dyn Fn(f64) -> Vec<u8>| {
            Self::new(values.iter().flat_map(|&v| bytes(v)).collect::<Vec<_>>().into_iter())
        };
        match ty {
            ScalarType::Bool | ScalarType::I8 => each(&|v| (v as i8).to_le_bytes().to_vec()),
            ScalarType::I16 => each(&|v| (v as i16).to_le_bytes().to_vec()),
            ScalarType::I32 => each(&|v| (v as i32).to_le_bytes().to_vec()),
            ScalarType::I64 | ScalarType::Index => each(&|v| (v as i64).to_le_bytes().to_vec()),
            ScalarType::F16 | ScalarType::BF16 => each(&|v| narrow(ty, v).to_le_bytes().to_vec()),
            ScalarType::F32 => each(&|v| (v as f32).to_le_bytes().to_vec()),
            ScalarType::F64 => each(&|v| v.to_le_bytes().to_vec()),
        }
    }

    /// The elements as numbers.
    pub(super) fn numbers(&self, ty: ScalarType) -> Vec<f64> {
        match ty {
            ScalarType::Bool | ScalarType::I8 => self.as_i8().into_iter().map(f64::from).collect(),
            ScalarType::I16 => self.as_i16().into_iter().map(f64::from).collect(),
            ScalarType::I32 => self.as_i32().into_iter().map(f64::from).collect(),
            ScalarType::I64 | ScalarType::Index => self.as_i64().into_iter().map(|v| v as f64).collect(),
            ScalarType::F16 | ScalarType::BF16 => self.as_i16().into_iter().map(|v| wide(ty, v as u16)).collect(),
            ScalarType::F32 => self.as_f32().into_iter().map(f64::from).collect(),
            ScalarType::F64 => self.as_f64(),
        }
    }
}

/// `v` rounded once to a floating-point type; unchanged for other types.
pub(super) fn round(ty: ScalarType, v: f64) -> f64 {
    let (bits, least, most) = match ty {
        ScalarType::F16 => (10, -14, 65504.0),
        ScalarType::BF16 => (7, -126, 3.3895313892515355e38),
        ScalarType::F32 => return f64::from(v as f32),
        _ => return v,
    };
    if v == 0.0 || !v.is_finite() {
        return v;
    }
    let exponent = ((v.to_bits() >> 52 & 0x7FF) as i32 - 1023).max(least);
    let unit = 2f64.powi(exponent - bits);
    let near = (v / unit).round_ties_even() * unit;
    if near.abs() > most { f64::INFINITY.copysign(v) } else { near }
}

/// The bits of `v` rounded to a 16-bit float.
fn narrow(ty: ScalarType, v: f64) -> u16 {
    let v = round(ty, v);
    if ty == ScalarType::BF16 {
        return ((v as f32).to_bits() >> 16) as u16;
    }
    let sign = u16::from(v.is_sign_negative()) << 15;
    let size = v.abs();
    sign | match size {
        s if s.is_nan() => 0x7E00,
        s if s.is_infinite() => 0x7C00,
        s if s < 2f64.powi(-14) => (s * 2f64.powi(24)) as u16,
        s => ((s.to_bits() >> 42) - ((1023 - 15) << 10)) as u16,
    }
}

/// The value of the bits of a 16-bit float.
fn wide(ty: ScalarType, bits: u16) -> f64 {
    if ty == ScalarType::BF16 {
        return f32::from_bits(u32::from(bits) << 16).into();
    }
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        e => (1024.0 + fraction) * 2f64.powi(e - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

pub(super) fn serial(var: VarId, extent: ExprId, body: Vec<Stmt>) -> Stmt {
    Stmt::For { var, extent, kind: LoopKind::Serial, body }
}

pub(super) fn parallel(var: VarId, extent: ExprId, body: Vec<Stmt>) -> Stmt {
    Stmt::For { var, extent, kind: LoopKind::Parallel, body }
}

pub(super) fn store(tensor: TensorId, index: ExprId, value: ExprId) -> Stmt {
    Stmt::Store { tensor, index, value, mask: None, rest: vec![] }
}

/// Pseudo-random numbers in `0..1`, the same each time.
pub(super) fn random(n: usize) -> Vec<f64> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1_u64 << 53) as f64
        })
        .collect()
}
