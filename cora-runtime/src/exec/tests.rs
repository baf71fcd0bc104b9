//! A small ragged program with kernels written here: tables, padding, setup, slots, temporaries, poison.

use super::*;
use crate::abi::{
    ABI_VERSION, BufferDesc, BufferKind, DType, DimDesc, ExtentFn, ParamDesc, TableDesc, TableKind, TableWidth,
    TensorDesc,
};

const A: u32 = 0;
const W: u32 = 1;
const O: u32 = 2;
const T: u32 = 3;
const W2: u32 = 4;
const SLOT: u32 = 5;

/// `O[b, i] = A[b, i] * 2 * W + 1` over `i < lens(b)`; rows of A and O are padded to multiples of 4.
fn program() -> ProgramDesc {
    let m = || Ix::Param(0);
    let len = || Ix::table(0, Ix::Arg(0));
    let padded = || len().ceil_div(4) * 4;
    let total = || Ix::table(1, m());
    let table = |name: &str, width, kind| TableDesc { name: name.into(), width, kind };
    let tensor = |name: &str, role, buffer| TensorDesc {
        name: name.into(),
        dtype: DType::F32,
        dims: vec![DimDesc { extent: m(), storage: m() }, DimDesc { extent: len(), storage: padded() }],
        role,
        buffer,
        value_range: None,
        offset: Ix::table(1, Ix::Arg(0)) + Ix::Arg(1),
    };
    let buffer = |name: &str, elems, kind| BufferDesc { name: name.into(), dtype: DType::F32, elems, kind, align: 64 };
    let kernel = |name: &str, trip, reads: &[u32], writes: &[u32]| KernelDesc {
        name: name.into(),
        symbol: name.into(),
        trip,
        stage_flops: None,
        reads: reads.to_vec(),
        writes: writes.to_vec(),
    };
    ProgramDesc {
        version: ABI_VERSION,
        name: "axpb".into(),
        params: vec![ParamDesc { name: "M".into(), lo: 0, hi: 1000 }],
        extents: vec![ExtentFn { name: "lens".into(), domain: vec![m()], lo: 0.into(), hi: 100.into(), table: 0 }],
        tables: vec![
            table("lens", TableWidth::I32, TableKind::Input),
            table("start", TableWidth::I64, TableKind::PrefixSum { domain: vec![m()], value: padded() }),
            table("longest", TableWidth::I32, TableKind::ReduceMax { domain: vec![m()], value: len() }),
        ],
        tensors: vec![
            tensor("A", Role::Input, A),
            TensorDesc { dims: vec![], offset: 0.into(), ..tensor("W", Role::ConstInput, W) },
            tensor("O", Role::Output, O),
        ],
        buffers: vec![
            buffer("A", total(), BufferKind::Input(0)),
            buffer("W", 1.into(), BufferKind::Input(1)),
            buffer("O", total(), BufferKind::Output(2)),
            buffer("T", total(), BufferKind::Temp),
            buffer("W2", 1.into(), BufferKind::Temp),
            buffer("row", Ix::table(2, 0.into()), BufferKind::PerWorker),
        ],
        kernels: vec![
            kernel("scale", Some(m()), &[A, W2], &[SLOT, T]),
            KernelDesc { stage_flops: Some(total()), ..kernel("add_one", None, &[T], &[O]) },
        ],
        setup_kernels: vec![kernel("prepare", None, &[W], &[W2])],
        imports: vec![],
    }
}

/// The arguments of a kernel.
struct Call {
    bufs: *const *mut u8,
    tables: *const *const u8,
    scalars: *const i64,
}

impl Call {
    fn buf(&self, b: u32) -> *mut f32 {
        // SAFETY: the program has more than `b` buffers.
        unsafe { *self.bufs.add(b as usize) }.cast()
    }
    fn at(&self, b: u32, i: i64) -> f32 {
        // SAFETY: kernels below index within the extents that the program declares.
        unsafe { *self.buf(b).add(i as usize) }
    }
    fn put(&self, b: u32, i: i64, v: f32) {
        // SAFETY: as in `at`.
        unsafe { *self.buf(b).add(i as usize) = v }
    }
    fn len(&self, b: i64) -> i64 {
        // SAFETY: table 0 has an entry for each row.
        i64::from(unsafe { *(*self.tables).cast::<i32>().add(b as usize) })
    }
    fn start(&self, b: i64) -> i64 {
        // SAFETY: table 1 has an entry for each row and one more.
        unsafe { *(*self.tables.add(1)).cast::<i64>().add(b as usize) }
    }
}

macro_rules! kernel {
    ($name:ident, |$call:ident, $lo:ident, $hi:ident| $body:block) => {
        unsafe extern "C" fn $name(
            bufs: *const *mut u8,
            tables: *const *const u8,
            scalars: *const i64,
            $lo: i64,
            $hi: i64,
            _worker: i64,
        ) {
            let $call = Call { bufs, tables, scalars };
            $body
        }
    };
}

kernel!(prepare, |c, lo, hi| {
    assert_eq!((lo, hi), (0, 1));
    c.put(W2, 0, c.at(W, 0) * 2.0);
});
kernel!(scale, |c, lo, hi| {
    for b in lo..hi {
        let start = c.start(b);
        (0..c.len(b)).for_each(|i| c.put(SLOT, i, c.at(A, start + i) * c.at(W2, 0)));
        (0..c.len(b)).for_each(|i| c.put(T, start + i, c.at(SLOT, i)));
    }
});
kernel!(add_one, |c, _lo, _hi| {
    // SAFETY: there is one parameter.
    let m = unsafe { *c.scalars };
    for b in 0..m {
        (c.start(b)..c.start(b) + c.len(b)).for_each(|i| c.put(O, i, c.at(T, i) + 1.0));
    }
});

fn source() -> Arc<dyn KernelSource> {
    let all: [(&str, KernelFn); 3] = [("prepare", prepare), ("scale", scale), ("add_one", add_one)];
    Arc::new(all.map(|(name, f)| (name.to_owned(), f)).into_iter().collect::<HashMap<_, _>>())
}

fn make(desc: ProgramDesc, threads: usize, options: Options) -> Result<Instance> {
    let pool = Arc::new(Pool::new(threads)?);
    // SAFETY: the kernels above keep to the description of `program`; other descriptions in these tests are refused
    // before a kernel runs.
    unsafe { Instance::new(Arc::new(desc), source(), pool, options) }
}

fn batch(lens: &[i64]) -> Batch {
    Batch { params: vec![lens.len() as i64], lengths: vec![lens.to_vec()] }
}

fn ragged(values: &[f32]) -> RaggedArray {
    let shape = Shape::Ragged { rank: 2, elements: values.len() as u64 };
    RaggedArray::from_slice(DType::F32, shape, values).unwrap()
}

fn set_weight(instance: &mut Instance, w: f32) {
    let w = RaggedArray::from_slice(DType::F32, Shape::Dense(vec![]), &[w]).unwrap();
    instance.set_input(instance.tensor("W").unwrap(), &w).unwrap();
}

/// Runs a batch of these lengths and compares with the definition.
fn check(instance: &mut Instance, lens: &[i64], w: f32) {
    instance.bind(&batch(lens)).unwrap();
    let values: Vec<f32> = (0..lens.iter().sum()).map(|i| i as f32 + 0.5).collect();
    instance.set_input(0, &ragged(&values)).unwrap();
    instance.run().unwrap();
    let want: Vec<f32> = values.iter().map(|v| v * (2.0 * w) + 1.0).collect();
    let got = instance.output(2).unwrap();
    assert_eq!(got, ragged(&want), "{lens:?}");
}

#[test]
fn batches_of_any_shape() {
    for (threads, poison) in [(1, false), (1, true), (3, true), (4, false)] {
        let mut instance = make(program(), threads, Options { poison, ..Options::default() }).unwrap();
        instance.bind(&batch(&[1])).unwrap();
        set_weight(&mut instance, 3.0);
        let many: Vec<i64> = (0..300).map(|i| (i * 37) % 101).collect();
        for lens in [&[3, 0, 5, 1][..], &[], &[0, 0], &[100], &many, &[1], &[0, 7, 0]] {
            check(&mut instance, lens, 3.0);
            check(&mut instance, lens, 3.0);
        }
    }
}

#[test]
fn setup_runs_again_when_const_inputs_are_given_again() {
    let mut instance = make(program(), 2, Options::default()).unwrap();
    instance.bind(&batch(&[4])).unwrap();
    set_weight(&mut instance, 1.0);
    check(&mut instance, &[4], 1.0);
    set_weight(&mut instance, -2.0);
    check(&mut instance, &[5, 2], -2.0);
    assert_eq!(instance.setup_times().count(), 1);
}

#[test]
fn const_inputs_are_asked_for_again_when_their_size_changes() {
    let mut desc = program();
    desc.buffers[W as usize].elems = Ix::Param(0).max(1);
    let mut instance = make(desc, 1, Options::default()).unwrap();
    instance.bind(&batch(&[4])).unwrap();
    set_weight(&mut instance, 1.0);
    check(&mut instance, &[4], 1.0);
    check(&mut instance, &[9], 1.0);
    instance.bind(&batch(&[4, 4])).unwrap();
    instance.set_input(0, &ragged(&[0.0; 8])).unwrap();
    assert_eq!(instance.run().unwrap_err().to_string(), "input `W` has not been given for this batch");
}

#[test]
fn the_order_of_calls_is_checked() {
    let mut i = make(program(), 1, Options::default()).unwrap();
    let code = |r: Result<()>| r.unwrap_err().code();
    assert_eq!(code(i.run()), "E0322");
    assert_eq!(code(i.set_input(0, &ragged(&[]))), "E0322");
    assert!(!i.bind(&batch(&[2])).unwrap());
    assert_eq!(code(i.run()), "E0320");
    assert_eq!(code(i.set_input(0, &ragged(&[1.0]))), "E0316");
    assert_eq!(code(i.set_input(2, &ragged(&[1.0, 2.0]))), "E0321");
    assert_eq!(code(i.set_input(7, &ragged(&[1.0, 2.0]))), "E0304");
    let doubles = RaggedArray::zeros(DType::F64, Shape::Dense(vec![2])).unwrap();
    assert_eq!(code(i.set_input(0, &doubles)), "E0317");
    i.set_input(0, &ragged(&[1.0, 2.0])).unwrap();
    set_weight(&mut i, 1.0);
    assert_eq!(i.output(2).unwrap_err().code(), "E0332");
    i.run().unwrap();
    assert_eq!(i.output(0).unwrap_err().code(), "E0321");
    assert!(i.bind(&batch(&[2])).unwrap(), "the same batch stays bound, inputs too");
    i.run().unwrap();
    assert_eq!(i.output(2).unwrap(), ragged(&[3.0, 5.0]));
    assert_eq!(i.bind(&batch(&[101])).unwrap_err().code(), "E0306");
    assert_eq!(code(i.run()), "E0322");
    assert!(!i.bind(&batch(&[2])).unwrap());
    assert_eq!(code(i.run()), "E0320");
}

/// As the files of inputs, an array has the tensor's form, or one dimension.
#[test]
fn arrays_have_the_form_of_their_tensor() {
    let mut desc = program();
    desc.tensors[W as usize].dims =
        [3, 2].map(|n| DimDesc { extent: Ix::from(n) * Ix::Param(0), storage: Ix::from(n) * Ix::Param(0) }).to_vec();
    desc.tensors[W as usize].offset = Ix::Arg(0) * 2 + Ix::Arg(1);
    desc.buffers[W as usize].elems = 6.into();
    let mut i = make(desc, 1, Options::default()).unwrap();
    i.bind(&batch(&[4])).unwrap();
    let mut set = |tensor, shape: Shape| {
        let array = RaggedArray::zeros(DType::F32, shape).unwrap();
        i.set_input(tensor, &array).map_err(|e| (e.code(), e.to_string()))
    };
    let dense = |dims: &[u64]| Shape::Dense(dims.to_vec());
    let ragged = |rank, elements| Shape::Ragged { rank, elements };
    for shape in [dense(&[3, 2]), dense(&[6]), ragged(2, 6)] {
        set(W as usize, shape).unwrap();
    }
    for shape in [dense(&[4]), ragged(2, 4)] {
        set(A as usize, shape).unwrap();
    }
    let (code, text) = set(W as usize, dense(&[2, 3])).unwrap_err();
    assert_eq!((code, text.as_str()), ("E0333", "the array for tensor `W` has shape [2, 3], [3, 2] is needed"));
    for shape in [dense(&[3, 2, 1]), ragged(1, 6)] {
        assert_eq!(set(W as usize, shape).unwrap_err().0, "E0333");
    }
    assert_eq!(set(W as usize, dense(&[3, 3])).unwrap_err().0, "E0316", "the number of elements is said first");
    // Rows that happen to be of one length are no reason to take a matrix for them.
    let (code, text) = set(A as usize, dense(&[1, 4])).unwrap_err();
    assert_eq!((code, text.contains("[1, 4], ragged with 2 dims and 4 elements is needed")), ("E0333", true), "{text}");
    assert_eq!(set(A as usize, ragged(3, 4)).unwrap_err().0, "E0333");
}

#[test]
fn reports() {
    let mut i = make(program(), 2, Options::default()).unwrap();
    i.bind(&batch(&[3, 5])).unwrap();
    let want = MemoryReport { tables: 8 + 24 + 4, inputs: 12 * 4 + 4 + 4, outputs: 48, temps: 128, slots: 256 };
    assert_eq!(i.memory(), want);
    assert_eq!(i.kernel_flops().collect::<Vec<_>>(), [None, Some(12)]);
    assert_eq!(i.kernel_times().map(|(n, _)| n).collect::<Vec<_>>(), ["scale", "add_one"]);
    assert_eq!(i.shape(0).unwrap(), Shape::Ragged { rank: 2, elements: 8 });
}

#[test]
fn hostile_programs_are_refused() {
    let bind = |edit: &dyn Fn(&mut ProgramDesc)| {
        let mut desc = program();
        edit(&mut desc);
        let limits = Limits { buffer_bytes: 1 << 20, ..Limits::default() };
        let options = Options { limits, ..Options::default() };
        make(desc, 2, options).and_then(|mut i| {
            i.bind(&batch(&[2, 3]))?;
            i.set_input(0, &ragged(&[0.0; 5]))
        })
    };
    let code = |edit: &dyn Fn(&mut ProgramDesc)| bind(edit).unwrap_err().code();
    assert!(bind(&|_| {}).is_ok());
    assert_eq!(code(&|d| d.buffers[3].elems = i64::MAX.into()), "E0312");
    assert_eq!(code(&|d| d.buffers[5].elems = (1 << 17).into()), "E0312");
    assert_eq!(code(&|d| d.buffers[3].elems = (-1).into()), "E0308");
    assert_eq!(code(&|d| d.buffers[0].elems = 4.into()), "E0315");
    assert_eq!(code(&|d| d.kernels[0].trip = Some((-1).into())), "E0308");
    assert_eq!(code(&|d| d.kernels[0].trip = Some(Ix::from(i64::MAX) + 1)), "E0309");
    assert_eq!(code(&|d| d.kernels[0].symbol = "nothing".into()), "E0323");
    assert_eq!(code(&|d| d.kernels[0].reads.push(6)), "E0301");
    assert_eq!(code(&|d| d.kernels[0].trip = Some(Ix::Arg(0))), "E0301");
    assert_eq!(code(&|d| d.tensors[0].buffer = 9), "E0301");
    assert_eq!(code(&|d| d.tensors[0].buffer = 2), "E0301");
    assert_eq!(code(&|d| d.tensors[0].dtype = DType::F64), "E0301");
    assert_eq!(code(&|d| d.tensors[0].value_range = Some((0.into(), 1.into()))), "E0301");
    assert_eq!(code(&|d| d.tensors[0].dims[0].extent = Ix::Arg(0)), "E0301");
    assert_eq!(code(&|d| d.buffers[3].align = 3), "E0301");
    assert_eq!(code(&|d| d.buffers[3].align = 1 << 20), "E0301");
    assert_eq!(code(&|d| d.buffers[3].kind = BufferKind::Input(0)), "E0301");
    assert_eq!(code(&|d| d.buffers[3].kind = BufferKind::Output(77)), "E0301");
}

#[test]
fn a_failed_bind_leaves_nothing_behind() {
    let limits = Limits { buffer_bytes: 2000, ..Limits::default() };
    let mut i = make(program(), 1, Options { limits, ..Options::default() }).unwrap();
    i.bind(&batch(&[4])).unwrap();
    set_weight(&mut i, 1.0);
    check(&mut i, &[4], 1.0);
    for _ in 0..2 {
        assert_eq!(i.bind(&batch(&[100, 100])).unwrap_err().code(), "E0312");
        assert_eq!(i.run().unwrap_err().code(), "E0322");
    }
    check(&mut i, &[8], 1.0);
}

#[test]
fn an_instance_can_move_between_threads() {
    fn check<T: Send>() {}
    check::<Instance>();
}

unsafe extern "C" fn nothing(_: *const *mut u8, _: *const *const u8, _: *const i64, _: i64, _: i64, _: i64) {}

/// Code in which every kernel does nothing.
struct Nothing;

impl KernelSource for Nothing {
    fn kernel(&self, _: &str) -> Option<KernelFn> {
        Some(nothing)
    }
}

#[test]
fn damaged_descriptions_never_panic() {
    let bytes = program().to_bytes().unwrap();
    assert_eq!(ProgramDesc::from_bytes(&bytes).unwrap(), program());
    (0..bytes.len()).for_each(|n| assert!(ProgramDesc::from_bytes(&bytes[..n]).is_err()));
    assert_eq!(ProgramDesc::from_bytes(&[&bytes[..], &[0]].concat()).unwrap_err().code(), "E0302");

    let pool = Arc::new(Pool::new(2).unwrap());
    let limits = Limits { table_bytes: 1 << 16, buffer_bytes: 1 << 20, steps: 1 << 16 };
    let (mut refused, mut ran) = (0, 0);
    for round in 0..bytes.len() * 40 {
        let mut damaged = bytes.clone();
        damaged[round % bytes.len()] = (round / bytes.len() * 101 + round * 7) as u8;
        let result = ProgramDesc::from_bytes(&damaged).and_then(|desc| {
            let desc = Arc::new(desc);
            let options = Options { limits, poison: true };
            // SAFETY: these kernels touch nothing.
            let mut i = unsafe { Instance::new(desc, Arc::new(Nothing), Arc::clone(&pool), options) }?;
            i.bind(&batch(&[3, 0, 5]))?;
            for t in 0..i.desc().tensors.len() {
                if i.desc().tensors[t].role != Role::Output {
                    let array = RaggedArray::zeros(i.desc().tensors[t].dtype, i.shape(t)?)?;
                    i.set_input(t, &array)?;
                }
            }
            i.run()?;
            (0..i.desc().tensors.len()).try_for_each(|t| i.output(t).map(drop))
        });
        match result {
            Ok(()) | Err(Error::Role { .. }) => ran += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(ran > 100 && refused > 100, "{ran} {refused}");
}
