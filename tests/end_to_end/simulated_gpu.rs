//! Programs on GPUs, executed: PTX through the runtime on the stand-in for the driver, results compared with the reference
//! interpreter.
//!
//! Each test starts itself again in a process that finds the stand-in where the driver would be.

use crate::boxes::{SIZES, product, rings};
use crate::device_artifacts;
use crate::examples::{BOXES, LARGE, load, small};
use crate::harness::{self, Case, batch, message, program, report};
use crate::random_native::setting;
use crate::support::batches::{self, Plan};
use crate::support::stand_in::{StandIn, exec};
use crate::support::{files, in_parallel, root, stem};
use cora::codegen_cuda::{CompileError, GpuTarget, compile};
use cora::driver::{Form, Source, lower_form};
use cora::inputs;
use cora::ir::UfDef;
use cora::ir::interp::Data;
use cora::ir::schedule::Schedule;
use cora::runtime::abi::Role;
use cora::runtime::array::{RaggedArray, Shape, TensorLayout};
use cora::runtime::cuda::Device;
use cora::runtime::{Error, Limits};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Set in the process for which the stand-in is the driver.
const INSIDE: &str = "CORA_INSIDE_STAND_IN";

/// Runs `body`, of the test of this name, where the stand-in is the driver, with settings as in `PTXSIM_DEVICE`. No call of
/// the driver may fail, and no memory be left when the last device is gone.
pub fn on_the_stand_in(test: &str, settings: &'static str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let driver = StandIn::new(test, settings);
    let mut command = driver.command(std::env::current_exe().expect("a path"));
    let out = command.args([test, "--exact", "--nocapture"]).env(INSIDE, "1").output().expect("it starts");
    let text = [String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)].concat();
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
    println!("{text}");
    let lines = driver.lines();
    assert!(lines.iter().any(|l| l.starts_with("launch")), "nothing was launched");
    let wrong = |l: &&String| l.contains("->") || l.starts_with("leak") || l.starts_with("kernel");
    assert_eq!(lines.iter().find(wrong), None);
}

/// A program on the stand-in; nothing where the architecture lacks what it needs.
pub fn device(
    source: &Source,
    schedule: Option<&Schedule>,
    by_kernels: bool,
    arch: &str,
) -> Result<Option<Device>, String> {
    let target = GpuTarget::new(arch).expect("a known architecture");
    let form = Form { grid: Some(target.name()), device_prelude: by_kernels, ..Form::default() };
    let storage = lower_form(source, schedule, form, &mut |_| {}).map_err(message)?.storage;
    let made = match compile(&storage, &target) {
        Err(CompileError::Intrinsic { .. } | CompileError::Architecture { .. }) => return Ok(None),
        made => made.map_err(|e| e.to_string())?,
    };
    // SAFETY: description, launches and code come from one compilation.
    let device = unsafe { Device::new(Arc::new(made.desc), made.grid, &made.ptx) };
    let mut device = device.map_err(|e| e.to_string())?;
    device.poison(true);
    Ok(Some(device))
}

/// Gives the inputs of a role.
fn give(device: &mut Device, source: &Source, case: &Case, role: Role) -> Result<(), Error> {
    let desc = device.desc().clone();
    let limits = Limits::default();
    let tables = device.prelude().prelude().build(&batch(&desc, source, &case.batch), &limits)?;
    for (n, t) in desc.tensors.iter().enumerate().filter(|(_, t)| t.role == role) {
        let id = source.graph.env.tensor_named(&t.name).expect("the program's own name");
        let shape = TensorLayout::new(t).shape(tables.env(), &limits)?;
        let data = &case.batch.inputs[&id];
        let array = inputs::to_array(source.graph.env.tensors[id].ty, shape, data)?;
        let form = Shape::Ragged { rank: t.dims.len() + 1, elements: array.elements() };
        let other = RaggedArray::from_bytes(array.dtype(), form, array.bytes())?;
        assert_eq!(device.set_input(n, &other).expect_err("another rank").code(), "E0333");
        device.set_input(n, &array)?;
    }
    Ok(())
}

fn outputs(device: &Device) -> Result<Vec<RaggedArray>, Error> {
    let outputs = device.desc().tensors.iter().enumerate().filter(|(_, t)| t.role == Role::Output);
    outputs.map(|(n, _)| device.output(n)).collect()
}

/// Binds, gives inputs, runs: what is wrong with the results.
pub fn run(device: &mut Device, source: &Source, case: &Case) -> Result<Option<String>, Error> {
    let desc = device.desc().clone();
    device.bind(&batch(&desc, source, &case.batch))?;
    give(device, source, case, Role::Input)?;
    match device.run() {
        // Const inputs stay where nothing changed that they depend on.
        Err(Error::InputMissing { .. }) => {
            give(device, source, case, Role::ConstInput)?;
            device.run()?;
        }
        ran => ran?,
    }
    Ok(case.compare(source, &desc, &outputs(device)?))
}

/// The batches of an example that are run here; the interpreters take long for large programs.
fn cases(source: &Source, name: &str) -> Result<Vec<Case>, String> {
    let each = if LARGE.contains(&name) { 12 } else { 1 };
    let plans: Vec<Plan> = batches::edges(&source.graph.env).into_iter().step_by(each).collect();
    Case::all(source, &plans, |_, _| None)
}

/// The forms of an example: its own schedules for grids, and the compiler's.
fn forms<'a>(source: &'a Source, name: &str) -> Vec<(&'a str, Option<&'a Schedule>)> {
    let boxes = |s: &&Schedule| BOXES.contains(&(name, s.name.as_str()));
    let own = source.graph.schedules.iter().filter(|s| s.name.starts_with("cuda") && !boxes(s));
    let mut forms: Vec<_> = own.map(|s| (s.name.as_str(), Some(s))).collect();
    if !LARGE.contains(&name) {
        forms.push(("default", None));
    }
    forms
}

/// The architectures that code is made for, that of most examples first.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_70", "sm_90a"];

/// Runs the batches on each architecture that has what the form needs.
fn on(archs: &[&str], source: &Source, (form, schedule): (&str, Option<&Schedule>), cases: &[Case]) -> Vec<String> {
    let (mut complaints, mut ran) = (Vec::new(), false);
    for arch in archs {
        let what = format!("{} ({form}, {arch})", source.graph.name);
        let mut device = match device(source, schedule, false, arch) {
            Ok(Some(d)) => d,
            Ok(None) => continue,
            Err(e) => {
                complaints.push(format!("{what}: {e}"));
                continue;
            }
        };
        for case in cases {
            let wrong = run(&mut device, source, case).unwrap_or_else(|e| Some(e.to_string()));
            complaints.extend(wrong.map(|w| format!("{what}, {}: {w}", case.name)));
        }
        ran = true;
    }
    if !ran {
        complaints.push(format!("{} ({form}): no architecture has what it needs", source.graph.name));
    }
    complaints
}

#[test]
fn examples_run() {
    on_the_stand_in("simulated_gpu::examples_run", "", || {
        report(&in_parallel(&files("examples", "cora"), |path| {
            let name = stem(path);
            let loaded = load(path, small(&name)).and_then(|s| cases(&s, &name).map(|c| (s, c)));
            // Code generation takes long for large programs.
            let archs = if LARGE.contains(&name.as_str()) { &ARCHITECTURES[..1] } else { &ARCHITECTURES };
            match loaded {
                Ok((source, cases)) => {
                    forms(&source, &name).into_iter().flat_map(|f| on(archs, &source, f, &cases)).collect()
                }
                Err(e) => vec![e],
            }
        }));
    });
}

/// Boxes of the copy engine, with tables from the host.
#[test]
fn boxes_are_copied() {
    on_the_stand_in("simulated_gpu::boxes_are_copied", "", || {
        let mut complaints = Vec::new();
        for &(name, schedule) in BOXES {
            let sizes = SIZES.iter().find(|s| s.0 == name).map_or(&[][..], |s| s.1);
            let source = load(&root().join(format!("examples/{name}.cora")), sizes).expect("an example");
            let plan = batches::plan("rows that end in the middle of a tile", 3, &[100, 0, 40]);
            let case = Case::new(&source, &plan, 1, |_, _| None).expect("inputs");
            complaints.extend(on(&ARCHITECTURES, &source, (schedule, source.graph.schedule(schedule)), &[case]));
        }
        for (what, copies, _) in rings() {
            let source = program("product", &product(&copies), &[]).expect("a program");
            let plan = batches::plan("rows that end in the middle of a tile", 3, &[40, 0, 5]);
            let case = Case::new(&source, &plan, 1, |_, _| None).expect("inputs");
            complaints.extend(on(&ARCHITECTURES, &source, (what, source.graph.schedule("cuda")), &[case]));
        }
        report(&complaints);
    });
}

/// Where kernels build the tables, new lengths are a copy of lengths: results are those of the new lengths, in their shapes,
/// from runs that were captured for the longest rows. The batch that was bound is there again when it is bound again.
#[test]
fn lengths_change_without_a_bind() {
    on_the_stand_in("simulated_gpu::lengths_change_without_a_bind", "", || {
        let mut examples = files("examples", "cora");
        examples.retain(|p| !LARGE.contains(&stem(p).as_str()));
        let changed = AtomicUsize::new(0);
        report(&in_parallel(&examples, |path| {
            let name = stem(path);
            let source = match load(path, small(&name)) {
                Ok(s) => s,
                Err(e) => return vec![e],
            };
            let functions = source.graph.env.ufs.iter().filter(|(_, u)| matches!(u.def, UfDef::Extent { .. })).count();
            if functions != 1 {
                return Vec::new();
            }
            let plans = [&[33, 20, 17, 40][..], &[7, 0, 17, 33], &[33, 20, 17, 40]];
            let plans = plans.map(|rows| batches::plan(&format!("rows of {rows:?}"), 4, rows));
            let cases = match Case::all(&source, &plans, |_, _| None) {
                Ok(c) => c,
                Err(e) => return vec![e],
            };
            let mut complaints = Vec::new();
            for (form, schedule) in forms(&source, &name) {
                match new_lengths(&source, schedule, &cases) {
                    Ok(wrong) => complaints.extend(wrong.iter().map(|w| format!("{name} ({form}), {w}"))),
                    Err(e) => complaints.push(format!("{name} ({form}): {e}")),
                }
                changed.fetch_add(1, Ordering::Relaxed);
            }
            complaints
        }));
        let changed = changed.into_inner();
        assert!(changed >= 20, "{changed} programs have new lengths");
    });
}

/// Binds the first case, which has the longest rows, and replays it with the lengths of each of them.
fn new_lengths(source: &Source, schedule: Option<&Schedule>, cases: &[Case]) -> Result<Vec<String>, String> {
    let text = |e: Error| e.to_string();
    let first = ARCHITECTURES.iter().find_map(|arch| device(source, schedule, true, arch).transpose());
    let mut device = first.ok_or("no architecture has what it needs")??;
    if !device.builds_tables() {
        return Err("the host builds its tables".to_owned());
    }
    let mut wrong = Vec::new();
    let mut check = |device: &Device, case: &Case, when: &str| {
        let wrongly = outputs(device).map(|o| case.compare(source, device.desc(), &o));
        let wrongly = wrongly.unwrap_or_else(|e| Some(e.to_string()));
        wrong.extend(wrongly.map(|w| format!("{} {when}: {w}", case.name)));
    };
    let desc = device.desc().clone();
    let longest = &cases[0];
    let bound = batch(&desc, source, &longest.batch);
    device.bind(&bound).map_err(text)?;
    give(&mut device, source, longest, Role::Input).map_err(text)?;
    give(&mut device, source, longest, Role::ConstInput).map_err(text)?;
    device.capture().map_err(text)?;
    check(&device, longest, "captured");
    for case in cases {
        device.set_lengths(&batch(&desc, source, &case.batch).lengths).map_err(text)?;
        assert!(matches!(device.output(desc.tensors.len() - 1), Err(Error::NotRun | Error::Role { .. })));
        give(&mut device, source, case, Role::Input).map_err(text)?;
        device.replay().map_err(text)?;
        check(&device, case, "replayed");
        device.run().map_err(text)?;
        check(&device, case, "run");
    }
    // A bind of what is bound already undoes other lengths.
    // How many rows of rows there are stays.
    let deepest = desc.extents.iter().map(|f| f.domain.len()).max();
    let mut short = bound.lengths.clone();
    for (_, lengths) in desc.extents.iter().zip(&mut short).filter(|(f, _)| Some(f.domain.len()) == deepest) {
        lengths.iter_mut().for_each(|n| *n = (*n).min(1));
    }
    device.set_lengths(&short).map_err(text)?;
    assert!(device.bind(&bound).map_err(text)?, "it was bound");
    give(&mut device, source, longest, Role::Input).map_err(text)?;
    device.run().map_err(text)?;
    check(&device, longest, "bound again");
    Ok(wrong)
}

/// A schedule of a product whose weights setup packs.
const PACKED: &str = "  fuse Y.batch Y.q -> f
  split Y.f 8 -> fo, fi
  cache_read Y.W -> Wp setup
  bind Wp.k block.x;  bind Wp.n thread.x
  bind Y.fo block.x;  bind Y.fi thread.y;  bind Y.n thread.x";

/// Const inputs that are given after a capture are prepared before the next replay.
#[test]
fn weights_change_after_a_capture() {
    on_the_stand_in("simulated_gpu::weights_change_after_a_capture", "", || {
        let source = program("packed", &harness::product(24, 40, PACKED), &[]).expect("a program");
        let plan = batches::plan("some rows", 3, &[5, 0, 9]);
        let first = Case::new(&source, &plan, 1, |_, _| None).expect("inputs");
        let ones = |name: &str, n: usize| (name == "W").then(|| Data::F64((0..n).map(|i| i as f64 / 64.0).collect()));
        let second = Case::new(&source, &plan, 1, ones).expect("inputs");
        let mut device =
            device(&source, source.graph.schedule("cuda"), false, "sm_80").expect("it compiles").expect("code");
        assert_eq!(device.desc().setup_kernels.len(), 1, "{PACKED}");
        assert_eq!(run(&mut device, &source, &first).expect("it runs"), None);
        device.capture().expect("it can be captured");
        for case in [&first, &second, &first] {
            give(&mut device, &source, case, Role::ConstInput).expect("weights");
            device.replay().expect("it was captured");
            let outputs = outputs(&device).expect("it ran");
            assert_eq!(case.compare(&source, &device.desc().clone(), &outputs), None);
        }
    });
}

/// Memory is kept from batch to batch, whatever order they come in, and a batch that is refused leaves nothing behind.
#[test]
fn batches_grow_shrink_and_fail() {
    on_the_stand_in("simulated_gpu::batches_grow_shrink_and_fail", "", || {
        let source = load(&root().join("examples/sdpa.cora"), small("sdpa")).expect("an example");
        let rows: [&[i64]; 6] = [&[5], &[40, 3], &[0], &[17, 17, 17], &[1], &[64, 0, 2]];
        let plans = rows.map(|r| batches::plan(&format!("rows of {r:?}"), r.len() as i64, r));
        let cases = Case::all(&source, &plans, |_, _| None).expect("inputs");
        let own = source.graph.schedule("cuda");
        let mut device = device(&source, own, false, "sm_80").expect("it compiles").expect("code");
        for case in cases.iter().chain(cases.iter().rev()) {
            assert_eq!(run(&mut device, &source, case).expect("it runs"), None, "{}", case.name);
            let desc = device.desc().clone();
            let mut wrong = batch(&desc, &source, &case.batch);
            wrong.lengths[0].push(3);
            assert!(matches!(device.bind(&wrong), Err(Error::LengthCount { .. })));
            assert!(matches!(device.run(), Err(Error::Unbound)) && outputs(&device).is_err());
        }
    });
}

/// Random programs on random batches, half of them under random steps: what `scripts/gpu` carries to a device.
///
/// `CORA_SIMULATED_SEED` is the seed of the first, `CORA_SIMULATED_KERNELS` how many kernels there are at least,
/// `CORA_SIMULATED_ARCH` the architecture.
#[test]
fn random_programs_run() {
    let arch = std::env::var("CORA_SIMULATED_ARCH").unwrap_or_else(|_| "sm_80".to_owned());
    let target = GpuTarget::new(&arch).expect("a known architecture");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("simulated");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a folder");
    let seeds = (setting("CORA_SIMULATED_SEED", 1000), setting("CORA_SIMULATED_KERNELS", 150));
    let (_, kernels, samples) = device_artifacts::make(Some(&dir), seeds, 4, &target).unwrap_or_else(|e| panic!("{e}"));
    let mut artifacts: Vec<_> = std::fs::read_dir(&dir).expect("ours").map(|e| e.expect("readable").path()).collect();
    artifacts.sort();
    let driver = StandIn::new("random_programs_run", "");
    for options in [&["--poison"][..], &["--graph"]] {
        let out = driver.command(exec()).args(&artifacts).args(options).output().expect("cora-exec starts");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    let lines = driver.lines();
    let wrong = |l: &&String| l.contains("->") || l.starts_with("leak") || l.starts_with("kernel");
    assert_eq!(lines.iter().find(wrong), None);
    println!("{} programs, {kernels} kernels, {samples} samples", artifacts.len());
}
