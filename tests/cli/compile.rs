//! `cora compile` and `cora explain`.

use crate::tool::{cora, file, refuses, scratch, succeeds};

const LISTING: &str = "examples/listing1.cora";

#[test]
fn every_form_is_printed_and_the_same_each_time() {
    let forms = [
        ("graph", "graph.module @listing1"),
        ("loop", "loop.module @listing1"),
        ("storage", "storage.module @listing1"),
        ("prelude", "table @"),
        ("mlir", "func"),
        ("llvm", "define"),
        ("asm", ".text"),
        ("dot", "digraph"),
        ("svg", "<svg"),
        ("cora", "param M in 0..=4096"),
        ("rust", "ProgramBuilder"),
    ];
    for (form, word) in forms {
        let first = succeeds(&["compile", LISTING, "--emit", form, "-o", "-"]);
        assert!(first.contains(word), "{form} without `{word}`:\n{first}");
        assert_eq!(first, succeeds(&["compile", LISTING, "--emit", form]), "{form} is not deterministic");
    }
    let object = |name: &str| {
        let path = scratch(name);
        let ran = cora(&["compile", LISTING, "--emit", "object", "-o", path.to_str().expect("UTF-8")]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stdout.is_empty());
        std::fs::read(path).expect("an object")
    };
    let first = object("first.o");
    assert!(first.len() > 64, "an object file");
    assert!(first == object("second.o"), "objects are not deterministic");
}

/// Canonical text of the language is a program again, with the same code.
#[test]
fn printed_programs_compile_to_the_same() {
    for name in ["listing1", "sdpa", "nested", "trmm"] {
        let path = format!("examples/{name}.cora");
        let storage = succeeds(&["compile", &path, "--emit", "storage"]);
        let printed = file(&format!("{name}.cora"), succeeds(&["compile", &path, "--emit", "cora"]));
        assert_eq!(storage, succeeds(&["compile", &printed, "--emit", "storage"]), "{name}");
    }
}

/// The schedule of a machine: that for most of its features, or the target's, or that which is asked for.
#[test]
fn machines_have_schedules_of_their_own() {
    let text = "param N in 0..=64
        dim i = N
        input X[i] : f32
        Y[i] = exp(X[i])
        output Y
        schedule wide for avx512f { split Y.i 5 -> io, ii }
        schedule cpu { split Y.i 2 -> io, ii }
        schedule wider for avx512f, avx512bf16 { split Y.i 7 -> io, ii }
        schedule hopper for sm_90a { split Y.i 3 -> io, ii;  bind Y.io block.x }
        schedule cuda { split Y.i 4 -> io, ii;  bind Y.io block.x }\n";
    let program = file("machines.cora", text);
    let parts = |args: &[&str], size: i64| {
        let loops = succeeds(&[&["compile", &program, "--emit", "loop"], args].concat());
        assert!(loops.contains(&format!("min({size}, ")), "{args:?}: {loops}");
    };
    for (cpu, size) in [("haswell", 2), ("skylake-avx512", 5), ("znver4", 7), ("neoverse-n1", 2)] {
        parts(&["--target-cpu", cpu], size);
        parts(&["--target-cpu", cpu, "--schedule", "wide"], 5);
    }
    for (target, size) in [("cuda:sm_80", 4), ("cuda:sm_90", 4), ("cuda:sm_90a", 3)] {
        parts(&["--target", target], size);
    }
    let printed = succeeds(&["compile", &program, "--emit", "cora"]);
    assert!(printed.contains("schedule wider for avx512f, avx512bf16 {"), "{printed}");
    let built = succeeds(&["compile", &program, "--emit", "rust"]);
    assert!(built.contains("b.schedule_for(\"wider\", &[\"avx512f\", \"avx512bf16\"], |s| {"), "{built}");
    // One for features that a machine lacks is no default of it, whatever its name.
    let named = file("named.cora", text.replace("schedule cpu {", "schedule cpu for avx2 {"));
    let lacks = ["compile", &named, "--emit", "loop", "--target-cpu", "neoverse-n1"];
    assert_eq!(succeeds(&lacks), succeeds(&[&lacks[..], &["--schedule", "default"]].concat()));
    let without = file("no-feature.cora", text.replace("for avx512f {", "for {"));
    refuses(&["compile", &without], "E0103", &["a feature of a machine"]);
}

/// A stage that a schedule for a GPU forgets is slow, not wrong.
#[test]
fn kernels_of_one_thread_are_told() {
    let text = "param N in 0..=64
        dim i = N
        input X[i] : f32
        Y[i] = exp(X[i])
        Z[i] = Y[i] + 1.0
        output Z
        schedule cuda { bind Y.i block.x }
        schedule cpu { split Y.i 4 -> io, ii }\n";
    let program = file("forgotten.cora", text);
    let told = |args: &[&str]| {
        let ran = cora(&[&["compile", &program, "-o", "-"], args].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stderr.lines().filter(|l| l.starts_with("warning[W0401]")).count()
    };
    assert_eq!(told(&["--target", "cuda:sm_80", "--emit", "ptx"]), 1);
    assert_eq!(told(&["--target", "cuda:sm_80", "--emit", "ptx", "--schedule", "cpu"]), 2);
    assert_eq!(told(&["--target", "cuda:sm_80", "--emit", "ptx", "--schedule", "default"]), 0);
    assert_eq!(told(&["--emit", "llvm"]), 0);
    let ran = cora(&["explain", &program, "--target", "cuda:sm_80"]);
    assert!(ran.stderr.contains("one thread of the GPU runs all of `Z`"), "{}", ran.stderr);
}

/// Neither is a vector that is none.
#[test]
fn vectors_that_are_none_are_told() {
    let text = "param M in 0..=64
        extent lens(b) in 0..=40
        dim b = M, q = lens(b), k = lens(b)
        input A[b, q] : f32
        input s[b] : f32
        Y[b, q] = A * s
        Z[b, k] = A[b, k] * s
        output Y, Z
        schedule cpu {
          fuse Y.b Y.q -> t;  split Y.t 8 -> o, i tail(mask);  reorder Y: i o;  vectorize Y.o 8
          vectorize Z.k 8
        }\n";
    let program = file("lanes.cora", text);
    let ran = cora(&["run", &program, "--check", "--param", "M=5"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let told: Vec<&str> = ran.stderr.lines().filter(|l| l.starts_with("warning[W0402]")).collect();
    assert_eq!(told, ["warning[W0402]: the lanes of `Y.o` are computed one after the other"]);
}

#[test]
fn passes_are_dumped_and_timed() {
    let dir = scratch("dumps");
    let _ = std::fs::remove_dir_all(&dir);
    let path = dir.to_str().expect("UTF-8");
    let ran = cora(&["compile", LISTING, "--print-ir-after-all", "--dump-dir", path, "--time-passes", "-o", "-"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let passes = ["check-accesses", "lower-to-loops", "to-storage", "lower-functions", "hoist-loads", "legalize"];
    let mut dumped: Vec<String> = std::fs::read_dir(&dir)
        .expect("the folder is made")
        .map(|e| e.expect("readable").file_name().to_string_lossy().into_owned())
        .collect();
    dumped.sort();
    let mut last = 0;
    for pass in passes {
        assert!(ran.stderr.contains(&format!("// after {pass}")), "{pass} is not printed:\n{}", ran.stderr);
        assert!(ran.stderr.contains(&format!(" ms  {pass}")), "{pass} is not timed:\n{}", ran.stderr);
        let at = dumped.iter().position(|f| f.contains(pass)).unwrap_or_else(|| panic!("{pass} is not in {dumped:?}"));
        assert!(at >= last, "{pass} is dumped out of order: {dumped:?}");
        last = at;
    }
    // The last dump is what is printed.
    let text = std::fs::read_to_string(dir.join(&dumped[dumped.len() - 1])).expect("readable");
    assert_eq!(text.as_bytes(), ran.stdout);
}

#[test]
fn guards_are_explained() {
    let program = file(
        "guards.cora",
        "param M in 0..=9\nextent lens(b) in 0..=20\ndim b = M, i = lens(b)\ninput A[b, i] : f32\n\
         Y[b, i] = A[b, i - 1] else 0\noutput Y\n",
    );
    let ran = cora(&["compile", &program, "--explain-guards", "-o", "-"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("kernel Y") && ran.stderr.contains("guarded read"), "{}", ran.stderr);
}

/// What masks tails is decided outside the innermost loops, or cut off them.
#[test]
fn inner_loops_of_the_examples_have_no_guards() {
    // The fully padded form is what a ragged one is compared with: its inner loops are to be as free.
    let forms = [
        ("encoder_layer", &[][..]),
        ("encoder6", &[]),
        ("vgemm", &[]),
        ("trmm", &[]),
        ("encoder_layer", &["--padded"]),
    ];
    for (name, flags) in forms {
        let file = format!("examples/{name}.cora");
        let mut args = vec!["compile", &file, "--emit", "prelude", "--explain-guards"];
        args.extend(flags);
        let ran = cora(&args);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let kernels: Vec<&str> = ran.stderr.lines().filter(|l| l.starts_with("kernel ")).collect();
        assert!(!kernels.is_empty(), "{}", ran.stderr);
        let inner = kernels.iter().find(|l| !l.ends_with(" 0 of them in inner loops"));
        assert!(inner.is_none(), "{name} {flags:?}: {inner:?}\n{}", ran.stderr);
    }
}

#[test]
fn nests_are_explained_after_each_step() {
    let program = file(
        "explain.cora",
        "param M in 0..=9\nextent lens(b) in 0..=20\ndim b = M, i = lens(b)\ninput A[b, i] : f32\n\
         Y[b, i] = 2 * A[b, i]\noutput Y\nschedule cpu { fuse Y.b Y.i -> f; parallel Y.f }\n",
    );
    let out = succeeds(&["explain", &program]);
    let places: Vec<usize> =
        ["// lower-to-loops", "// step{fuse", "// step{parallel"].iter().map(|w| out.find(w).unwrap_or(0)).collect();
    assert!(places.is_sorted() && out.contains("for %f in"), "{out}");
    assert!(out[places[1]..].contains("for %f in") && !out[..places[1]].contains("%f"), "{out}");
    assert_eq!(out, succeeds(&["explain", &program]));
    let plain = succeeds(&["explain", &program, "--schedule", "default"]);
    assert!(plain.contains("// default-schedule") && !plain.contains("%f"), "{plain}");
}

#[test]
fn files_that_cannot_be_used() {
    refuses(&["compile", "examples/nothing.cora"], "E0600", &["examples/nothing.cora"]);
    refuses(&["explain", "examples/nothing.cora"], "E0600", &["examples/nothing.cora"]);
    refuses(&["compile", LISTING, "--target", "abacus"], "E0605", &["abacus"]);
    refuses(&["compile", LISTING, "--target-cpu", "abacus", "--emit", "asm"], "E0605", &["abacus"]);
    refuses(&["compile", LISTING, "-o", "no/such/folder/x"], "E0600", &["no/such/folder"]);
    refuses(&["compile", LISTING, "--schedule", "fast"], "E0603", &["`fast`"]);
    refuses(&["explain", LISTING, "--schedule", "fast"], "E0603", &["`fast`"]);
    let binary = file("binary.cora", [0xff, 0xfe, 0x00, 0x41]);
    refuses(&["compile", &binary], "E0600", &["binary.cora"]);
    let several = file("several.cora", "param M in 0..=9\ndim b = N\nY[b] = Q[b]\noutput Y, Z\n");
    let text = refuses(&["compile", &several], "E0201", &["`N`", "`Q`", "several.cora:2:9"]);
    assert!(text.matches("error[").count() >= 2, "every mistake is reported: {text}");
}

/// What the target lacks is said before anything is lowered: the program has a mistake that lowering would find.
#[test]
fn forms_of_other_targets_are_refused_first() {
    let program = file("late.cora", "param M in 0..=8\ndim i = M\ninput A[i] : f32\nB[i] = A[i + 1]\noutput B\n");
    refuses(&["compile", &program, "--emit", "storage"], "E0243", &[]);
    refuses(&["compile", &program, "--emit", "ptx"], "E0610", &["no PTX"]);
    refuses(&["compile", &program, "--target", "cuda", "--emit", "object"], "E0610", &["--emit ptx"]);
}

/// MLIR is printed before it is lowered, so phases after its emission do not run.
#[test]
fn each_form_goes_only_as_far_as_it_needs() {
    let phases = |emit: &str| {
        let ran = cora(&["compile", "examples/listing1.cora", "--emit", emit, "--time-passes"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ["translate", "optimize", "object"]
            .map(|p| ran.stderr.lines().filter(|l| l.ends_with(&format!(" {p}"))).count())
    };
    assert_eq!(phases("mlir"), [0, 0, 0]);
    assert_eq!(phases("llvm"), [1, 1, 0]);
    assert_eq!(phases("asm"), [1, 1, 0]);
    assert_eq!(phases("object"), [1, 1, 1]);
}

/// Instructions of processors and GPUs that have them, what stands for them elsewhere, and the refusal of a GPU without.
#[test]
fn tensor_instructions_are_emitted() {
    let path = "examples/projection_bf16.cora";
    let assembly = |cpu: &str| succeeds(&["compile", path, "--target-cpu", cpu, "--emit", "asm"]);
    assert!(assembly("znver4").contains("vdpbf16ps"));
    assert!(assembly("sapphirerapids").contains("tdpbf16ps"), "the schedule for machines with AMX");
    let tiles = |cpu: &str| succeeds(&["compile", path, "--schedule", "cpu_amx", "--target-cpu", cpu, "--emit", "asm"]);
    let on_tiles = tiles("sapphirerapids");
    // Sums stay in tile registers while the loop runs, and nothing is called between.
    let inner = on_tiles.split("tdpbf16ps").skip(1).take(3).collect::<String>();
    assert!(!inner.contains("tilestored") && inner.contains("tileloadd") && !on_tiles.contains("memset"), "{inner}");
    // They begin with zeros that no memory has had.
    assert_eq!(on_tiles.matches("tilezero").count(), 4);
    assert_eq!(on_tiles.matches("tileloadd").count(), on_tiles.matches("tdpbf16ps").count(), "of factors alone");
    for (cpu, instruction) in [("znver4", "vdpbf16ps"), ("haswell", "vfmadd")] {
        let elsewhere = tiles(cpu);
        assert!(elsewhere.contains(instruction) && !elsewhere.contains("tileload"), "{cpu}");
    }
    let without = assembly("skylake-avx512");
    assert!(!without.contains("vdpbf16ps") && without.contains("vfmadd"), "products of converted pairs");
    let ptx = |arch: &str| succeeds(&["compile", path, "--target", &format!("cuda:{arch}"), "--emit", "ptx"]);
    for arch in ["sm_80", "sm_90a"] {
        let text = ptx(arch);
        for word in ["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "ldmatrix.sync.aligned.m8n8.x2.trans"] {
            assert!(text.contains(word), "{arch} without {word}");
        }
    }
    refuses(
        &["compile", path, "--target", "cuda:sm_70", "--emit", "ptx"],
        "E0611",
        &["sm_80", "mma.m16n8k16.f32.bf16"],
    );
}

/// A thread has 512 KiB of its own.
#[test]
fn local_memory_has_a_limit() {
    let text = |n: u32| {
        format!(
            "param M in 0..=64\nextent lens(b) in 0..=20\ndim b = M, i = lens(b), j = {n}\ninput A[b, i, j] : f32\n\
             Y[b, i, j] = A * 2.0\noutput Y\n\
             schedule z {{\n  bind Y.b block.x\n  cache_read Y:A -> As local at Y.i\n}}"
        )
    };
    let run = |name: &str, n: u32| {
        cora(&["compile", &file(name, text(n)), "--schedule", "z", "--target", "cuda:sm_90", "--emit", "ptx"])
    };
    assert_eq!(run("local_fits.cora", 1000).code, Some(0));
    let refused = run("local.cora", 1_000_000);
    assert!(refused.code == Some(1) && refused.stderr.contains("error[E0611]: kernel `cora_Y` needs 4000000 bytes"));
}

/// What no GPU launches is refused by the interpreter that stands in for one.
#[test]
fn emulated_grids_have_a_gpus_limits() {
    let text = "param M in 0..=80000\nparam N in 0..=65536\ndim b = M, j = N\n\
                input A[b] : f32\ninput W[j] : f32\nY[b] = sum(j) A * W[j]\noutput Y\n\
                schedule z {\n  bind Y.b block.y\n  cache_read Y:W -> Ws shared at Y.b\n}\n\
                schedule y {\n  bind Y.b block.y\n}";
    let path = file("grid_limits.cora", text);
    let emulated = |schedule: &str, m: u32| {
        let m = format!("M={m}");
        let target = ["--target", "cuda:sm_70", "--emulate", "--schedule", schedule];
        cora(&[&["run", &path, "--param", &m, "--param", "N=1"], &target[..]].concat())
    };
    assert_eq!(emulated("y", 65_535).code, Some(0));
    let refused = |schedule: &str, m: u32, words: &str| {
        let out = emulated(schedule, m);
        assert!(
            out.code == Some(1) && out.stderr.contains("error[E0611]") && out.stderr.contains(words),
            "{}",
            out.stderr
        );
    };
    refused("y", 65_536, "65536 blocks along block.y, there are at most 65535");
    refused("z", 2, "needs 262144 bytes of shared memory");
}

/// Copies and zeros of tiles are vectors in place, a kernel that only moves elements leaves them to the library.
#[test]
fn tiles_are_copied_without_calls() {
    let calls = |path: &str| {
        let assembly = succeeds(&["compile", path, "--target-cpu", "skylake-avx512", "--emit", "asm"]);
        assembly.lines().filter(|l| l.contains("memcpy") || l.contains("memset")).count()
    };
    assert_eq!(calls("examples/trmm.cora"), 0);
    let text = "param M in 0..=64\nextent lens(b) in 0..=100000\ndim b = M, i = lens(b)\ninput X[b, i] : f32\n\
                Y[b, i] = X[b, i]\noutput Y";
    assert!(calls(&file("moves.cora", text)) > 0);
}

/// The compiler's own schedule chooses tiles by the processor's vector registers: those of a sum stay in them, whatever
/// the order of a constant factor.
#[test]
fn tiles_fit_the_registers_of_the_processor() {
    for (ty, weights) in [("f32", "W[k, n]"), ("f32", "W[n, k]"), ("f64", "W[k, n]")] {
        let text = format!(
            "param M in 0..=64
            extent lens(b) in 0..=512
            dim b = M, q = lens(b), k = 256, n = 512
            input X[b, q, k] : {ty}
            const input {weights} : {ty}
            Y[b, q, n] = sum(k) X[b, q, k] * {weights}
            output Y"
        );
        let path = file("projection.cora", text);
        // Four steps of so many accumulators.
        let processors = [
            ("znver4", "vfmadd", 24),
            ("haswell", "vfmadd", 12),
            ("znver2", "vfmadd", 12),
            ("neoverse-n1", "fmla", 16),
        ];
        for (cpu, fma, accumulators) in processors {
            let asm = succeeds(&["compile", &path, "--target-cpu", cpu, "--emit", "asm"]);
            let blocks: Vec<Vec<&str>> =
                asm.split("\n.L").map(|b| b.lines().skip(1).map(str::trim).collect()).collect();
            let count = |b: &[&str]| b.iter().filter(|l| l.starts_with(fma)).count();
            let hot = blocks.iter().max_by_key(|b| count(b)).expect("code");
            assert_eq!(count(hot), 4 * accumulators, "{cpu} {ty} {weights}:\n{}", hot.join("\n"));
            let vector = |l: &str| {
                let short = l.split_whitespace().nth(1).is_some_and(|r| r.starts_with('q'));
                short || l.contains("%ymm") || l.contains("%zmm")
            };
            let spilled = |l: &str| (l.contains("(%rsp)") || l.contains("[sp")) && vector(l);
            assert!(!hot.iter().any(|l| spilled(l)), "{cpu} {ty} {weights}:\n{}", hot.join("\n"));
        }
    }
}
