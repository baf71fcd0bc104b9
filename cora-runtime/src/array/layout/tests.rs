//! Round trips through padded, permuted and scattered layouts, and what is refused.

use super::*;
use crate::abi::{DimDesc, Role};
use crate::eval::TableData;

/// Rows of 3, 0, 5 and 1 elements; table 1 has their starts when padded to multiples of 4.
const LENS: [i32; 4] = [3, 0, 5, 1];
const STARTS: [i64; 5] = [0, 4, 4, 12, 16];

fn tables() -> Vec<TableData> {
    vec![TableData::I32(LENS.to_vec()), TableData::I64(STARTS.to_vec())]
}

fn len() -> Ix {
    Ix::table(0, Ix::Arg(0))
}

fn start() -> Ix {
    Ix::table(1, Ix::Arg(0))
}

fn tensor(dtype: DType, dims: Vec<(Ix, Ix)>, offset: Ix) -> TensorDesc {
    let dims = dims.into_iter().map(|(extent, storage)| DimDesc { extent, storage }).collect();
    let role = Role::Input;
    TensorDesc { name: "A".into(), dtype, dims, role, buffer: 0, value_range: None, offset }
}

fn padded() -> TensorDesc {
    let dims = vec![(4.into(), 4.into()), (len(), len().ceil_div(4) * 4)];
    tensor(DType::I16, dims, start() + Ix::Arg(1))
}

/// Packs 1, 2, 3, … into `elems` elements and back.
fn round_trip(desc: &TensorDesc, elems: usize, fill: Fill) -> Result<Vec<i16>> {
    let tables = tables();
    let env = Env { params: &[], tables: &tables };
    let limits = Limits::default();
    let layout = TensorLayout::new(desc);
    let n = layout.elements(env, &limits)? as usize;
    let logical: Vec<u8> = (1..=n as i16).flat_map(i16::to_ne_bytes).collect();
    let mut storage = vec![0xAA; elems * 2];
    layout.pack(env, &logical, &mut storage, fill, &limits)?;
    let mut back = vec![0; logical.len()];
    layout.unpack(env, &storage, &mut back, &limits)?;
    assert_eq!(back, logical);
    Ok(storage.chunks_exact(2).map(|c| i16::from_ne_bytes([c[0], c[1]])).collect())
}

#[test]
fn padded_rows() {
    let zero = round_trip(&padded(), 16, Fill::Zero).unwrap();
    assert_eq!(zero, [1, 2, 3, 0, 4, 5, 6, 7, 8, 0, 0, 0, 9, 0, 0, 0]);
    let poison = round_trip(&padded(), 16, Fill::Poison).unwrap();
    assert_eq!(poison, [1, 2, 3, -1, 4, 5, 6, 7, 8, -1, -1, -1, 9, -1, -1, -1]);
    let kept = round_trip(&padded(), 16, Fill::Keep).unwrap();
    assert_eq!(kept[3], i16::from_ne_bytes([0xAA; 2]));
    assert!(matches!(TensorLayout::new(&padded()).copy, Copying::Rows(_)));
}

#[test]
fn element_wise_layouts() {
    // Columns first: the element (i, j) is at 4 j + i.
    let dims = vec![(4.into(), 4.into()), (len(), 5.into())];
    let transposed = tensor(DType::I16, dims, Ix::Arg(1) * 4 + Ix::Arg(0));
    let got = round_trip(&transposed, 20, Fill::Zero).unwrap();
    assert_eq!(got, [1, 0, 4, 9, 2, 0, 5, 0, 3, 0, 6, 0, 0, 0, 7, 0, 0, 0, 8, 0]);
    assert!(matches!(TensorLayout::new(&transposed).copy, Copying::Elements(_)));
    // Panels of 2: (j / 2, j % 2) is no line in j.
    let panels = Ix::Arg(0).floor_div(2) * 4 + Ix::Arg(1) * 2 + Ix::Arg(0).modulo(2);
    let dims = vec![(4.into(), 4.into()), (2.into(), 2.into())];
    let got = round_trip(&tensor(DType::I16, dims, panels), 8, Fill::Keep).unwrap();
    assert_eq!(got, [1, 3, 2, 4, 5, 7, 6, 8]);
    let scalar = tensor(DType::I16, vec![], 3.into());
    assert_eq!(round_trip(&scalar, 4, Fill::Zero).unwrap(), [0, 0, 0, 1]);
}

#[test]
fn neighbouring_rows_are_one_copy() {
    let dims = vec![(6.into(), 6.into()), (7.into(), 7.into())];
    let layout = TensorLayout::new(&tensor(DType::F32, dims, Ix::Arg(0) * 7 + Ix::Arg(1)));
    let mut runs = Vec::new();
    let env = Env { params: &[], tables: &[] };
    layout
        .copy(env, 42, &Limits::default(), &mut |a, b, n| {
            runs.push((a, b, n));
            true
        })
        .unwrap();
    assert_eq!(runs, [(0, 0, 168)]);
    assert_eq!(layout.shape(env, &Limits::default()).unwrap(), Shape::Dense(vec![6, 7]));
    let ragged = TensorLayout::new(&padded());
    let tables = tables();
    let env = Env { params: &[], tables: &tables };
    let shape = ragged.shape(env, &Limits::default()).unwrap();
    assert_eq!(shape, Shape::Ragged { rank: 2, elements: 9 });
}

/// A copy that cannot be made is an error, in the first run as in the last.
#[test]
fn no_copy_is_dropped() {
    let tables = tables();
    let (env, limits) = (Env { params: &[], tables: &tables }, Limits::default());
    let layout = TensorLayout::new(&padded());
    for refused in [0, 3, 12] {
        let copied = layout.copy(env, 16, &limits, &mut |_, storage, _| storage != 2 * refused);
        match copied {
            Err(Error::Offset { offset, elems: 16, .. }) => assert_eq!(offset, refused as i64),
            other => assert!(other.is_ok() && refused == 3, "{refused}: {other:?}"),
        }
    }
    let (mut to, from) = ([0; 4], [1, 2, 3, 4]);
    assert!(copy_run(&mut to, 1, &from, 0, 3) && to == [0, 1, 2, 3]);
    for (at, start, n) in [(2, 0, 3), (0, 2, 3), (usize::MAX, 0, 2), (0, usize::MAX, 2)] {
        assert!(!copy_run(&mut to, at, &from, start, n));
    }
    assert_eq!(to, [0, 1, 2, 3]);
}

#[test]
fn out_of_bounds_is_refused() {
    let code = |desc: &TensorDesc, elems| round_trip(desc, elems, Fill::Zero).unwrap_err().code();
    assert_eq!(code(&padded(), 12), "E0315");
    let dims = || vec![(4.into(), 4.into()), (len(), len())];
    assert_eq!(code(&tensor(DType::I16, dims(), Ix::Arg(1) - 1), 16), "E0315");
    assert_eq!(code(&tensor(DType::I16, dims(), Ix::Arg(1) + i64::MAX), 16), "E0315");
    assert_eq!(code(&tensor(DType::I16, dims(), Ix::Arg(1) * i64::MAX), 16), "E0309");
    let tight = vec![(4.into(), 4.into()), (len(), 4.into())];
    assert_eq!(code(&tensor(DType::I16, tight, Ix::Arg(1)), 16), "E0314");
    let huge = vec![(i64::MAX.into(), i64::MAX.into()), (2.into(), 2.into())];
    assert_eq!(code(&tensor(DType::I16, huge, Ix::Arg(1)), 16), "E0311");
    let minus = vec![(Ix::from(-1), 0.into())];
    assert_eq!(code(&tensor(DType::I16, minus, Ix::Arg(0)), 16), "E0308");
}

#[test]
fn values_are_checked() {
    let tables = tables();
    let env = Env { params: &[40], tables: &tables };
    let check = |desc: &TensorDesc, logical: &[u8]| TensorLayout::new(desc).check(env, logical, &Limits::default());
    let row = |dtype| tensor(dtype, vec![(3.into(), 3.into())], Ix::Arg(0));
    let ids = TensorDesc { value_range: Some((0.into(), Ix::Param(0))), ..row(DType::I64) };
    let bytes = |v: [i64; 3]| v.map(i64::to_ne_bytes).concat();
    assert!(check(&ids, &bytes([0, 39, 7])).is_ok());
    let e = check(&ids, &bytes([0, 40, 7])).unwrap_err();
    assert_eq!((e.code(), e.to_string().contains("element 1 is 40, outside")), ("E0318", true));
    assert_eq!(check(&ids, &bytes([0, 3, -1])).unwrap_err().code(), "E0318");
    assert_eq!(check(&ids, &[0; 23]).unwrap_err().code(), "E0316");
    assert_eq!(check(&row(DType::Bool), &[0, 1, 2]).unwrap_err().code(), "E0319");
    // Each element has a range of its own.
    let up = TensorDesc { value_range: Some((Ix::from(-1), Ix::Arg(0))), ..row(DType::I64) };
    assert!(check(&up, &bytes([-1, 0, 1])).is_ok());
    let e = check(&up, &bytes([-1, 0, 2])).unwrap_err();
    assert!(e.to_string().contains("element 2 is 2, outside its declared range -1..2"), "{e}");
    let ranges = TensorLayout::new(&up).value_ranges(env, &Limits::default()).unwrap().unwrap();
    assert_eq!((0..4).map(|n| ranges.of(n)).collect::<Vec<_>>(), [Some((-1, 0)), Some((-1, 1)), Some((-1, 2)), None]);
    let none = TensorDesc { value_range: Some((0.into(), Ix::Arg(0))), ..row(DType::I64) };
    assert_eq!(check(&none, &bytes([0, 0, 0])).unwrap_err().code(), "E0318");
    let small = TensorDesc { value_range: Some((0.into(), 9.into())), ..row(DType::I8) };
    assert_eq!(check(&small, &[0, 1, 0xFE]).unwrap_err().code(), "E0318");
}

#[test]
fn slopes() {
    let check = |ix: Ix, want| assert_eq!(slope(&ix, 1), want, "{ix:?}");
    check(start() + Ix::Arg(1), Some(1));
    check(Ix::Arg(1) * 3 - Ix::Arg(1) * 2 + Ix::Arg(0) * Ix::Param(0), Some(1));
    check(Ix::from(2) * (Ix::Arg(1) + 5), Some(2));
    check(Ix::Arg(1) * Ix::Param(0), None);
    check(Ix::Arg(1) * Ix::Arg(1), None);
    check(Ix::Arg(1).floor_div(1), None);
    check(Ix::table(1, Ix::Arg(1)), None);
    check(Ix::Const(4), Some(0));
}
