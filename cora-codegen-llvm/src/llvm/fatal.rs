//! LLVM fatal errors: one line on stderr, a reproducer file, exit code 70.
//!
//! LLVM reports some failures through `report_fatal_error`, which must not return. The handler cannot unwind through
//! C++ either, so the best it can do is to leave everything needed to repeat the failure and end the process.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;

use mlir_sys::LLVMInstallFatalErrorHandler;

/// Exit code after an LLVM fatal error: a bug of ours, not of the user.
pub const FATAL_EXIT_CODE: i32 = 70;

/// The MLIR text that a module came from and the steps done with it since: what it takes to repeat them.
#[derive(Clone)]
pub(super) struct Trace {
    source: Arc<str>,
    steps: Vec<String>,
}

thread_local! {
    // The C handler gets no user data, and LLVM calls it on the thread that runs the failing pass: thread-local state
    // is the only channel to it. It is written before every step and read by nothing else.
    static CURRENT: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

impl Trace {
    /// The trace of a module about to be parsed from `source`.
    pub(super) fn new(source: &str) -> Self {
        let trace = Self { source: source.into(), steps: Vec::new() };
        trace.clone().publish();
        trace
    }

    /// Adds a step that changes the module, before it runs.
    pub(super) fn step(&mut self, description: impl Into<String>) {
        self.steps.push(description.into());
        self.clone().publish();
    }

    /// Announces a step that leaves the module as it is, before it runs.
    pub(super) fn side_step(&self, description: impl Into<String>) {
        let mut trace = self.clone();
        trace.steps.push(description.into());
        trace.publish();
    }

    fn publish(self) {
        CURRENT.set(Some(self));
    }
}

/// Makes LLVM call [`on_fatal_error`] in place of aborting. LLVM allows one installation a process.
pub(super) fn install_handler() {
    // SAFETY: the handler has the C signature LLVM asks for and never returns or unwinds; `ffi::initialize`, the only
    // caller, runs this once.
    unsafe { LLVMInstallFatalErrorHandler(Some(on_fatal_error)) };
}

extern "C" fn on_fatal_error(reason: *const c_char) {
    // SAFETY: LLVM passes a NUL-terminated string that lives for the whole call.
    let reason = unsafe { CStr::from_ptr(reason) }.to_string_lossy();
    let reason = reason.lines().next().unwrap_or("").trim_end();
    match write_reproducer(reason) {
        Ok(path) => eprintln!("internal error: LLVM: {reason} (reproducer: {})", path.display()),
        Err(error) => eprintln!("internal error: LLVM: {reason} (no reproducer: {error})"),
    }
    unsafe extern "C" {
        fn _exit(status: c_int) -> !;
    }
    // SAFETY: `_exit` takes any status and ends the process. Unlike `exit` it runs no destructors, which must not see
    // LLVM in the middle of a pass.
    unsafe { _exit(FATAL_EXIT_CODE) }
}

/// Writes the last MLIR text with the steps as comments, so that the file is itself valid MLIR.
fn write_reproducer(reason: &str) -> std::io::Result<PathBuf> {
    let mut text = format!("// LLVM fatal error: {reason}\n");
    // Both lookups can fail only while the thread ends or publishes; the reproducer is then only the reason.
    let _ = CURRENT.try_with(|current| {
        if let Ok(Some(trace)) = current.try_borrow().as_deref() {
            for step in &trace.steps {
                let _ = writeln!(text, "// step: {}", step.replace('\n', " "));
            }
            text.push_str(&trace.source);
        }
    });
    let path = std::env::temp_dir().join(format!("cora-{}.mlir.reproducer", process::id()));
    std::fs::write(&path, text)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::FATAL_EXIT_CODE;
    use crate::llvm::{CPU_PIPELINE, LlvmModule, MlirModule, TargetSpec};

    const CHILD: &str = "CORA_TEST_FATAL_CHILD";

    /// An AArch64 intrinsic that the X86 back end cannot select.
    const UNSELECTABLE: &str = r#"
llvm.func @bad(%a: vector<4xi32>) -> vector<4xi32> {
  %r = llvm.call_intrinsic "llvm.aarch64.neon.urecpe.v4i32"(%a) : (vector<4xi32>) -> vector<4xi32>
  llvm.return %r : vector<4xi32>
}
"#;

    /// The fatal error ends the process, so the test runs itself again as a child that provokes it.
    #[test]
    fn fatal_error_leaves_a_reproducer_and_exits_70() {
        if std::env::var_os(CHILD).is_some() {
            let mut module = MlirModule::parse(UNSELECTABLE).unwrap();
            module.run_pipeline(CPU_PIPELINE).unwrap();
            // Asking LLVM about a CPU works on a module of its own; the reproducer is still of this one.
            let target = TargetSpec::new("haswell").unwrap();
            let _ = LlvmModule::from_mlir(&module, &target).unwrap().emit_object();
            unreachable!("LLVM accepted an intrinsic of another architecture");
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "llvm::fatal::tests::fatal_error_leaves_a_reproducer_and_exits_70", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(FATAL_EXIT_CODE), "{stderr}");
        let line = stderr.lines().find(|line| line.starts_with("internal error: LLVM: ")).expect("the error line");
        let path = line.split("(reproducer: ").nth(1).and_then(|rest| rest.strip_suffix(')')).expect("a path");
        let reproducer = std::fs::read_to_string(path).unwrap();
        std::fs::remove_file(path).unwrap();
        assert!(reproducer.starts_with("// LLVM fatal error: Cannot select"), "{reproducer}");
        assert!(reproducer.contains("// step: emit object"), "{reproducer}");
        assert!(reproducer.ends_with(UNSELECTABLE), "{reproducer}");
        MlirModule::parse(&reproducer).expect("the reproducer is valid MLIR");
    }
}
