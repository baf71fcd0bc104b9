//! Input tensors: from `.npy` files or at random from a seed.

use cora_ir::interp::Data;
use cora_ir::types::round_float;
use cora_ir::{Env, Role, ScalarType, TensorId};
use cora_runtime::abi::DType;
use cora_runtime::array::{RaggedArray, Shape};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The runtime's name of an element type; none is an index.
pub fn dtype(ty: ScalarType) -> DType {
    cora_codegen_llvm::describe::dtype(ty).unwrap_or(DType::I64)
}

/// `count` random elements for `tensor`: uniform in -1..1 for floats (weights are scaled so that
/// sums over their longest dimension keep that size), in the declared range for integers.
pub fn random(env: &Env, tensor: TensorId, count: usize, range: Option<(i64, i64)>, seed: u64) -> Data {
    use cora_ir::EntityId;
    let t = &env.tensors[tensor];
    let mut rng = SmallRng::seed_from_u64(seed ^ (tensor.index() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    if t.ty.is_float() {
        let scale = weight_scale(env, tensor);
        let ty = t.ty;
        return Data::F64((0..count).map(|_| round_float(ty, rng.random_range(-1.0..1.0) * scale)).collect());
    }
    let (lo, hi) = match (t.ty, range) {
        (ScalarType::Bool, _) => (0, 2),
        // The declared range may go beyond the type's where it depends on parameters.
        (ty, Some((lo, hi))) => (lo.max(ty.int_min()), hi.min(ty.int_max().saturating_add(1))),
        (ty, None) => (ty.int_min().max(-100), ty.int_max().min(100)),
    };
    Data::I64((0..count).map(|_| if lo < hi { rng.random_range(lo..hi) } else { lo }).collect())
}

fn weight_scale(env: &Env, tensor: TensorId) -> f64 {
    let t = &env.tensors[tensor];
    if t.role != Role::ConstInput || t.dims.len() < 2 {
        return 1.0;
    }
    let longest = t.dims.iter().filter_map(|d| env.pool.as_int(d.extent)).max().unwrap_or(1);
    (3.0 / longest.max(1) as f64).sqrt()
}

/// Elements as the runtime holds them.
///
/// # Errors
/// The runtime's, if `data` does not have as many elements as `shape`.
pub fn to_array(ty: ScalarType, shape: Shape, data: &Data) -> cora_runtime::Result<RaggedArray> {
    let d = dtype(ty);
    let floats = |data: &Data| -> Vec<f64> { (0..data.len()).map(|i| data.get(i).unwrap_or(0.0)).collect() };
    let ints = |data: &Data| -> Vec<i64> {
        match data {
            Data::I64(v) => v.clone(),
            Data::F64(v) => v.iter().map(|&x| x as i64).collect(),
        }
    };
    match ty {
        ScalarType::F32 => {
            let v: Vec<f32> = floats(data).into_iter().map(|x| x as f32).collect();
            RaggedArray::from_slice(d, shape, &v)
        }
        ScalarType::F64 => RaggedArray::from_slice(d, shape, &floats(data)),
        ScalarType::F16 => {
            let v: Vec<u16> = floats(data).into_iter().map(|x| half::f16::from_f64(x).to_bits()).collect();
            RaggedArray::from_slice(d, shape, &v)
        }
        ScalarType::BF16 => {
            let v: Vec<u16> = floats(data).into_iter().map(|x| half::bf16::from_f64(x).to_bits()).collect();
            RaggedArray::from_slice(d, shape, &v)
        }
        ScalarType::Bool => {
            let v: Vec<u8> = ints(data).into_iter().map(|x| u8::from(x != 0)).collect();
            RaggedArray::from_slice(d, shape, &v)
        }
        ScalarType::I8 => {
            let v: Vec<i8> = ints(data).into_iter().map(|x| x as i8).collect();
            RaggedArray::from_slice(d, shape, &v)
        }
        ScalarType::I16 => {
            let v: Vec<i16> = ints(data).into_iter().map(|x| x as i16).collect();
            RaggedArray::from_slice(d, shape, &v)
        }
        ScalarType::I32 => {
            let v: Vec<i32> = ints(data).into_iter().map(|x| x as i32).collect();
            RaggedArray::from_slice(d, shape, &v)
        }
        ScalarType::I64 | ScalarType::Index => RaggedArray::from_slice(d, shape, &ints(data)),
    }
}

/// Elements as the interpreter holds them.
///
/// # Errors
/// The runtime's, if the array's type is not the one that its description says.
pub fn to_data(array: &RaggedArray) -> cora_runtime::Result<Data> {
    Ok(match array.dtype() {
        DType::F32 => Data::F64(array.as_slice::<f32>()?.iter().map(|&x| x.into()).collect()),
        DType::F64 => Data::F64(array.as_slice::<f64>()?.to_vec()),
        DType::F16 => Data::F64(array.as_slice::<u16>()?.iter().map(|&x| half::f16::from_bits(x).to_f64()).collect()),
        DType::BF16 => Data::F64(array.as_slice::<u16>()?.iter().map(|&x| half::bf16::from_bits(x).to_f64()).collect()),
        DType::Bool => Data::I64(array.as_slice::<u8>()?.iter().map(|&x| x.into()).collect()),
        DType::I8 => Data::I64(array.as_slice::<i8>()?.iter().map(|&x| x.into()).collect()),
        DType::I16 => Data::I64(array.as_slice::<i16>()?.iter().map(|&x| x.into()).collect()),
        DType::I32 => Data::I64(array.as_slice::<i32>()?.iter().map(|&x| x.into()).collect()),
        DType::I64 => Data::I64(array.as_slice::<i64>()?.to_vec()),
    })
}
