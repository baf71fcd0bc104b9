//! Processes that find `cora-ptxsim` where they look for the CUDA driver; and `cora-exec`, which needs no compiler there.

use super::root;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The binary beside `cora`; built if only the root package's tests are.
pub fn exec() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let path = PathBuf::from(env!("CARGO_BIN_EXE_cora")).with_file_name("cora-exec");
        let args = ["build", "--quiet", "--offline", "-p", "cora-runtime", "--bin", "cora-exec"];
        let built = Command::new(env!("CARGO")).args(args).current_dir(root()).status();
        assert!(built.is_ok_and(|s| s.success()) && path.exists(), "cora-exec is not at {}", path.display());
        path
    })
}

/// A folder with the stand-in under the name of the driver's library.
fn folder() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        // Cargo builds libraries for tests where it puts the tests.
        let tests = std::env::current_exe().expect("a path");
        let library = tests.with_file_name("libcora_ptxsim.so");
        assert!(library.exists(), "the stand-in is not at {}", library.display());
        let name = tests.file_stem().expect("a name");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in").join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        std::os::unix::fs::symlink(library, folder.join("libcuda.so")).expect("a link");
        folder
    })
}

/// A device of its own for each process that is started with it, and the log of the driver's calls.
pub struct StandIn {
    log: PathBuf,
    device: &'static str,
}

impl StandIn {
    /// `device` as in `PTXSIM_DEVICE`; the log is in a new file of this name.
    pub fn new(name: &str, device: &'static str) -> StandIn {
        let log = folder().join(format!("{name}.log"));
        let _ = std::fs::remove_file(&log);
        StandIn { log, device }
    }

    /// A command for which the stand-in is the driver.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let others = std::env::var_os("LD_LIBRARY_PATH");
        let paths = std::iter::once(folder().to_path_buf()).chain(others.iter().flat_map(std::env::split_paths));
        let mut command = Command::new(program);
        command.current_dir(root());
        command.env("LD_LIBRARY_PATH", std::env::join_paths(paths).expect("no colon in a path"));
        command.env("PTXSIM_LOG", &self.log).env("PTXSIM_DEVICE", self.device);
        command
    }

    /// The log of what was run so far.
    pub fn lines(&self) -> Vec<String> {
        std::fs::read_to_string(&self.log).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}
