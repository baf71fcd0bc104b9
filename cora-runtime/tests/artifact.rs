//! Artifacts: round trip, and every way in which a file can be wrong.

use cora_runtime::Error;
use cora_runtime::abi::{
    ABI_VERSION, BufferDesc, BufferKind, DType, DimDesc, ExtentFn, GridArg, GridDesc, GridLaunch, GridMap, Ix,
    KernelDesc, MapDim, ParamDesc, ProgramDesc, Role, TableDesc, TableKind, TableWidth, TensorDesc,
};
use cora_runtime::artifact::{Artifact, Machine, Manifest, Sample};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// `O[b, i] = f(A[b, i])` over `i < lens(b)`.
fn program() -> ProgramDesc {
    let m = || Ix::Param(0);
    let tensor = |name: &str, role, buffer| TensorDesc {
        name: name.into(),
        dtype: DType::F32,
        dims: vec![DimDesc { extent: m(), storage: m() }, DimDesc { extent: len(), storage: len() }],
        role,
        buffer,
        value_range: None,
        offset: Ix::table(1, Ix::Arg(0)) + Ix::Arg(1),
    };
    fn len() -> Ix {
        Ix::table(0, Ix::Arg(0))
    }
    let buffer = |name: &str, kind| BufferDesc {
        name: name.into(),
        dtype: DType::F32,
        elems: Ix::table(1, m()),
        kind,
        align: 64,
    };
    ProgramDesc {
        version: ABI_VERSION,
        name: "f".into(),
        params: vec![ParamDesc { name: "M".into(), lo: 0, hi: 1000 }],
        extents: vec![ExtentFn { name: "lens".into(), domain: vec![m()], lo: 0.into(), hi: 100.into(), table: 0 }],
        tables: vec![
            TableDesc { name: "lens".into(), width: TableWidth::I32, kind: TableKind::Input },
            TableDesc {
                name: "row".into(),
                width: TableWidth::I64,
                kind: TableKind::PrefixSum { domain: vec![m()], value: len() },
            },
        ],
        tensors: vec![tensor("A", Role::Input, 0), tensor("O", Role::Output, 1)],
        buffers: vec![buffer("A", BufferKind::Input(0)), buffer("O", BufferKind::Output(1))],
        kernels: vec![KernelDesc {
            name: "O".into(),
            symbol: "cora_O".into(),
            trip: None,
            stage_flops: None,
            reads: vec![0],
            writes: vec![1],
        }],
        setup_kernels: vec![],
        imports: vec![],
    }
}

fn dim(size: Ix, step: u64, extent: u32) -> MapDim {
    MapDim { size, step, extent }
}

fn artifact() -> Artifact {
    let launch = GridLaunch {
        symbol: "cora_O".into(),
        function: "cora_O".into(),
        blocks: [Ix::Param(0), Ix::Const(1), Ix::Const(1)],
        threads: [256, 1, 1],
        shared: 1024,
        args: vec![
            GridArg::Buffer { buffer: 0, first: 0 },
            GridArg::Buffer { buffer: 1, first: 64 },
            GridArg::Table(1),
            GridArg::Param(0),
            GridArg::Map(0),
        ],
        maps: vec![GridMap {
            buffer: 0,
            dims: vec![dim(Ix::Const(4), 1, 4), dim(Ix::table(1, Ix::Param(0)), 4, 64)],
            swizzled: false,
        }],
    };
    Artifact {
        manifest: Manifest {
            program: "f".into(),
            compiler: "0.1.0".into(),
            abi: ABI_VERSION,
            machine: Machine::Cuda { arch: "sm_80".into() },
        },
        desc: program(),
        grid: Some(GridDesc { launches: vec![launch], builds: vec![] }),
        code: b".version 7.0".to_vec(),
        samples: (1..=2)
            .map(|n| Sample {
                params: vec![2],
                lengths: vec![vec![1, n]],
                tensors: vec![vec![0; 4 + 4 * n as usize], vec![0; 4 + 4 * n as usize]],
                allowed: vec![vec![], vec![1e-6; 1 + n as usize]],
            })
            .collect(),
    }
}

/// The bytes with the checksum that belongs to them: damage that a checksum cannot find.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let hash = *blake3::hash(&bytes[48..]).as_bytes();
    bytes[16..48].copy_from_slice(&hash);
    bytes
}

#[test]
fn round_trip() {
    let a = artifact();
    let bytes = a.to_bytes().expect("encodes");
    assert_eq!(Artifact::from_bytes(&bytes).expect("decodes"), a);
    assert_eq!(bytes, a.to_bytes().expect("encodes"));
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = artifact().to_bytes().expect("encodes");
    for n in 0..bytes.len() {
        assert!(matches!(Artifact::from_bytes(&bytes[..n]), Err(Error::Artifact(_) | Error::NotArtifact)), "{n} bytes");
        if n >= 48 {
            assert!(Artifact::from_bytes(&sealed(bytes[..n].to_vec())).is_err(), "{n} bytes, sealed");
        }
    }
    let mut longer = bytes;
    longer.push(0);
    assert!(Artifact::from_bytes(&sealed(longer)).is_err());
}

#[test]
fn every_bit_flip_is_an_error() {
    let bytes = artifact().to_bytes().expect("encodes");
    for n in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[n / 8] ^= 1 << (n % 8);
        assert!(matches!(Artifact::from_bytes(&damaged), Err(Error::Artifact(_) | Error::NotArtifact)), "bit {n}");
    }
}

#[test]
fn other_versions_and_shapes() {
    let says = |a: &Artifact, what: &str| {
        let e = Artifact::from_bytes(&a.to_bytes().expect("encodes")).expect_err(what);
        assert!(e.to_string().contains(what), "{e}");
    };
    let mut bytes = artifact().to_bytes().expect("encodes");
    bytes[8] = 99;
    assert!(Artifact::from_bytes(&bytes).is_err_and(|e| e.to_string().contains("version 99")));
    let mut a = artifact();
    a.manifest.abi += 1;
    says(&a, "version");
    let mut a = artifact();
    a.grid = None;
    says(&a, "come together");
    let mut a = artifact();
    a.samples[1].lengths.clear();
    says(&a, "sample");
    let change = |f: &dyn Fn(&mut GridLaunch)| {
        let mut a = artifact();
        f(&mut a.grid.as_mut().expect("there").launches[0]);
        a
    };
    says(&change(&|l| l.threads = [1024, 1024, 1024]), "impossible shape");
    says(&change(&|l| l.threads = [0, 1, 1]), "impossible shape");
    says(&change(&|l| l.shared = u32::MAX), "impossible shape");
    says(&change(&|l| l.args.push(GridArg::Table(7))), "argument 7 of 2");
    says(&change(&|l| l.blocks[1] = Ix::Arg(0)), "cannot be computed");
    says(&change(&|l| l.blocks[1] = Ix::table(9, 0.into())), "cannot be computed");
    says(&change(&|l| l.symbol = "other".into()), "has no launch");
    says(&change(&|l| l.args.push(GridArg::Map(1))), "argument 1 of 1");
    let wrong: [&dyn Fn(&mut GridMap); 12] = [
        &|m: &mut GridMap| m.buffer = 2,
        &|m: &mut GridMap| m.dims.clear(),
        &|m: &mut GridMap| m.dims.extend((0..4).map(|_| dim(Ix::Const(1), 4, 1))),
        &|m: &mut GridMap| m.dims[0].step = 2,
        &|m: &mut GridMap| m.dims[0].extent = 3,
        &|m: &mut GridMap| m.dims[1].step = 5,
        &|m: &mut GridMap| m.dims[1].step = 0,
        &|m: &mut GridMap| m.dims[1].step = u64::MAX,
        &|m: &mut GridMap| m.dims[1].extent = 257,
        &|m: &mut GridMap| m.dims[1].extent = 0,
        &|m: &mut GridMap| m.dims[1].size = Ix::Arg(0),
        &|m: &mut GridMap| m.swizzled = true,
    ];
    for damage in wrong {
        says(&change(&|l| damage(&mut l.maps[0])), "impossible tensor map");
    }
}

/// The system's allocator, which counts what each thread has.
struct Counting;

thread_local! {
    /// Bytes that the thread has now, and the most that it had.
    static BYTES: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (now, most) = BYTES.get();
        let now = now.wrapping_add(layout.size());
        BYTES.set((now, most.max(now)));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let (now, most) = BYTES.get();
        BYTES.set((now.saturating_sub(layout.size()), most));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `f` gives, and the most bytes that it had allocated at one time.
fn counted<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = BYTES.get().0;
    BYTES.set((before, before));
    let out = f();
    (out, BYTES.get().1 - before)
}

/// Most bytes that reading a file may take for each of its own: what it holds as values of the language.
const BYTES_FOR_EACH: usize = 64;

/// Random damage under a right checksum: whatever is inside gives an error or a valid artifact. A length that claims
/// more than the file holds must not make memory for it.
///
/// `CORA_ARTIFACT_SECONDS` is how long it goes on, at least for 60000 files; `CORA_ARTIFACT_SEED` is where it begins.
#[test]
fn damage_under_a_right_checksum() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let bytes = artifact().to_bytes().expect("encodes");
    let mut state = 0x1234_5678_9abc_def1_u64 ^ setting("CORA_ARTIFACT_SEED").unwrap_or(0);
    let mut random = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % n
    };
    let (mut valid, mut wrong, mut most) = (0, 0, 0);
    let (start, time) = (Instant::now(), Duration::from_secs(setting("CORA_ARTIFACT_SECONDS").unwrap_or(0)));
    while valid + wrong < 60_000 || start.elapsed() < time {
        let mut damaged = bytes.clone();
        for _ in 0..=random(4) {
            let at = 12 + random(damaged.len() - 12);
            damaged[at] = match random(4) {
                0 => 0xff,
                1 => 0,
                2 => random(256) as u8,
                _ => damaged[at] ^ 1 << random(8),
            };
        }
        if random(8) == 0 {
            damaged.truncate(48 + random(damaged.len() - 48));
        }
        let damaged = sealed(damaged);
        let (read, taken) = counted(|| Artifact::from_bytes(&damaged));
        most = most.max(taken);
        assert!(taken <= BYTES_FOR_EACH * bytes.len(), "{taken} bytes for a file of {}", damaged.len());
        match read {
            Ok(a) => {
                valid += 1;
                assert!(a.code.len() <= bytes.len());
            }
            Err(e) => {
                wrong += 1;
                assert!(!e.to_string().is_empty());
            }
        }
    }
    let files = valid + wrong;
    println!(
        "{files} files of {} bytes in {:.0?}: {valid} valid, {wrong} refused; at most {most} bytes allocated",
        bytes.len(),
        start.elapsed()
    );
    assert!(valid > 100 && wrong > 10_000, "{valid} valid, {wrong} wrong");
}

/// Bytes that no linker made.
#[test]
fn code_that_cannot_be_loaded() {
    let machine = Machine::Cpu { arch: std::env::consts::ARCH.into(), cpu: "any".into(), features: Default::default() };
    // SAFETY: nothing of it is run; the loader refuses it.
    let loaded = unsafe { cora_runtime::library::load(&machine, &program(), b"no library") };
    let Err(e) = loaded else { panic!("it is no library") };
    assert_eq!(e.code(), "E0335", "{e}");
}
