//! Input tensors: from `.npy` files or at random from a seed.

use cora_ir::interp::Data;
use cora_ir::types::round_float;
use cora_ir::{EntityId, Env, Role, ScalarType, TensorId};
use cora_runtime::Result;
use cora_runtime::abi::DType;
use cora_runtime::array::{Element, RaggedArray, Shape, ValueRanges};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The runtime's name of an element type; none is an index.
pub fn dtype(ty: ScalarType) -> DType {
    cora_codegen_llvm::describe::dtype(ty).unwrap_or(DType::I64)
}

/// Random elements of one tensor: uniform in -1..1 for floats (weights are scaled so that sums over their longest
/// dimension keep that size), in the declared range for integers.
struct Random<'a> {
    rng: SmallRng,
    ty: ScalarType,
    scale: f64,
    ranges: Option<&'a ValueRanges>,
}

impl Random<'_> {
    fn new<'a>(env: &Env, tensor: TensorId, ranges: Option<&'a ValueRanges>, seed: u64) -> Random<'a> {
        let own = (tensor.index() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let ty = env.tensors[tensor].ty;
        Random { rng: SmallRng::seed_from_u64(seed ^ own), ty, scale: weight_scale(env, tensor), ranges }
    }

    fn float(&mut self) -> f64 {
        round_float(self.ty, self.rng.random_range(-1.0..1.0) * self.scale)
    }

    /// The element with that number.
    fn int(&mut self, number: usize) -> i64 {
        let ty = self.ty;
        let (lo, hi) = match self.ranges.and_then(|r| r.of(number as u64)) {
            _ if ty == ScalarType::Bool => (0, 2),
            // The declared range may go beyond the type's where it depends on parameters.
            Some((lo, hi)) => (lo.max(ty.int_min()), hi.min(ty.int_max().saturating_add(1))),
            None => (ty.int_min().max(-100), ty.int_max().min(100)),
        };
        if lo < hi { self.rng.random_range(lo..hi) } else { lo }
    }
}

fn weight_scale(env: &Env, tensor: TensorId) -> f64 {
    let t = &env.tensors[tensor];
    if t.role != Role::ConstInput || t.dims.len() < 2 {
        return 1.0;
    }
    let longest = t.dims.iter().filter_map(|d| env.pool.as_int(d.extent)).max().unwrap_or(1);
    (3.0 / longest.max(1) as f64).sqrt()
}

/// `count` random elements for `tensor`, as the interpreter holds them.
pub fn random(env: &Env, tensor: TensorId, count: usize, ranges: Option<&ValueRanges>, seed: u64) -> Data {
    let mut random = Random::new(env, tensor, ranges, seed);
    if random.ty.is_float() {
        return Data::F64((0..count).map(|_| random.float()).collect());
    }
    Data::I64((0..count).map(|n| random.int(n)).collect())
}

/// The elements of [`random`], as the runtime holds them.
///
/// # Errors
/// The runtime's, if there is too little memory.
pub fn random_array(
    env: &Env,
    tensor: TensorId,
    shape: Shape,
    ranges: Option<&ValueRanges>,
    seed: u64,
) -> Result<RaggedArray> {
    let mut random = Random::new(env, tensor, ranges, seed);
    if random.ty.is_float() {
        of_floats(random.ty, shape, |_| random.float())
    } else {
        of_integers(random.ty, shape, |n| random.int(n))
    }
}

/// Elements as the runtime holds them.
///
/// # Errors
/// The runtime's, if `data` does not have as many elements as `shape`, or there is too little memory.
pub fn to_array(ty: ScalarType, shape: Shape, data: &Data) -> Result<RaggedArray> {
    let (want, got) = (shape.elements().unwrap_or(u64::MAX), data.len() as u64);
    if want != got {
        return Err(cora_runtime::Error::Elements { what: "array".into(), want, got });
    }
    match data {
        Data::F64(v) if ty.is_float() => of_floats(ty, shape, |i| v[i]),
        Data::I64(v) if ty.is_float() => of_floats(ty, shape, |i| v[i] as f64),
        Data::F64(v) => of_integers(ty, shape, |i| v[i] as i64),
        Data::I64(v) => of_integers(ty, shape, |i| v[i]),
    }
}

/// Makes each element of an array by its number.
fn made<T: Element>(ty: ScalarType, shape: Shape, mut element: impl FnMut(usize) -> T) -> Result<RaggedArray> {
    let mut array = RaggedArray::zeros(dtype(ty), shape)?;
    array.as_mut_slice::<T>()?.iter_mut().enumerate().for_each(|(i, x)| *x = element(i));
    Ok(array)
}

fn of_floats(ty: ScalarType, shape: Shape, mut at: impl FnMut(usize) -> f64) -> Result<RaggedArray> {
    match ty {
        ScalarType::F32 => made(ty, shape, |i| at(i) as f32),
        ScalarType::F16 => made(ty, shape, |i| half::f16::from_f64(at(i)).to_bits()),
        ScalarType::BF16 => made(ty, shape, |i| half::bf16::from_f64(at(i)).to_bits()),
        _ => made(ty, shape, at),
    }
}

fn of_integers(ty: ScalarType, shape: Shape, mut at: impl FnMut(usize) -> i64) -> Result<RaggedArray> {
    match ty {
        ScalarType::Bool => made(ty, shape, |i| u8::from(at(i) != 0)),
        ScalarType::I8 => made(ty, shape, |i| at(i) as i8),
        ScalarType::I16 => made(ty, shape, |i| at(i) as i16),
        ScalarType::I32 => made(ty, shape, |i| at(i) as i32),
        _ => made(ty, shape, at),
    }
}

/// Elements as the interpreter holds them.
///
/// # Errors
/// The runtime's, if the array's type is not the one that its description says, or there is too little memory.
pub fn to_data(array: &RaggedArray) -> Result<Data> {
    fn each<T: Element, U>(array: &RaggedArray, value: impl Fn(T) -> U) -> Result<Vec<U>> {
        let elements = array.as_slice::<T>()?;
        let mut out: Vec<U> = Vec::new();
        out.try_reserve_exact(elements.len()).map_err(|_| cora_runtime::Error::Alloc {
            at: "elements for the reference interpreter".into(),
            bytes: (elements.len() as u64).saturating_mul(size_of::<U>() as u64),
        })?;
        out.extend(elements.iter().map(|&x| value(x)));
        Ok(out)
    }
    Ok(match array.dtype() {
        DType::F32 => Data::F64(each(array, |x: f32| x.into())?),
        DType::F64 => Data::F64(each(array, |x: f64| x)?),
        DType::F16 => Data::F64(each(array, |x| half::f16::from_bits(x).to_f64())?),
        DType::BF16 => Data::F64(each(array, |x| half::bf16::from_bits(x).to_f64())?),
        DType::Bool => Data::I64(each(array, |x: u8| x.into())?),
        DType::I8 => Data::I64(each(array, |x: i8| x.into())?),
        DType::I16 => Data::I64(each(array, |x: i16| x.into())?),
        DType::I32 => Data::I64(each(array, |x: i32| x.into())?),
        DType::I64 => Data::I64(each(array, |x: i64| x)?),
    })
}
