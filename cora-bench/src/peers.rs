//! Peers: other libraries on the same batch, each in a Python process that speaks JSON lines (`peers/serve.py`).
//!
//! Inputs and results go through `.npy` files, so a peer has the same weights and its result is compared with ours.
//! A process is stopped while others are timed: a library's idle threads may spin.

use cora::driver::Failure;
use cora::runtime::abi::DType;
use cora::runtime::array::RaggedArray;
use cora::runtime::npy::NpyArray;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long a peer may take to answer; compilation and the search for a micro-batch size are the longest.
const PATIENCE: Duration = Duration::from_secs(900);

const SCRIPTS: [(&str, &str); 7] = [
    ("serve.py", include_str!("../peers/serve.py")),
    ("common.py", include_str!("../peers/common.py")),
    ("torch_peers.py", include_str!("../peers/torch_peers.py")),
    ("tf_peers.py", include_str!("../peers/tf_peers.py")),
    ("openvino_peers.py", include_str!("../peers/openvino_peers.py")),
    ("blas_peers.py", include_str!("../peers/blas_peers.py")),
    ("sparse_peers.py", include_str!("../peers/sparse_peers.py")),
];

const LAYERS: &[&str] = &["encoder", "mha", "sdpa", "masked-sdpa"];
const PROJECTED: &[&str] = &["encoder", "mha"];
const LINEAR: &[&str] = &["proj1", "proj2", "ff1", "ff2"];
const TRIANGLES: &[&str] = &["trmm", "tradd", "trmul"];
const OPERATORS: &[&str] = &["proj1", "qkt", "softmax", "attnv", "proj2", "layer-norm", "ff1", "ff2"];

/// Each peer in a process of its own, with the workloads that it has a form of.
pub const PEERS: &[(&str, &[&[&str]])] = &[
    ("torch-padded", &[LAYERS]),
    ("torch-micro", &[LAYERS]),
    ("torch-packed", &[LAYERS, OPERATORS]),
    ("torch-nested", &[LAYERS]),
    ("torch-compile", &[PROJECTED]),
    ("torch-bf16", &[LAYERS]),
    ("torch-flat", &[&["tradd", "trmul"]]),
    ("tf-padded", &[&["mha"]]),
    ("tf-micro", &[&["mha"]]),
    ("openvino", &[PROJECTED, LINEAR]),
    ("mkl-batch", &[&["vgemm"]]),
    ("mkl-padded", &[&["vgemm"]]),
    ("mkl-loop", &[&["vgemm"]]),
    ("openblas-loop", &[&["vgemm"]]),
    ("mkl-trmm", &[&["trmm"]]),
    ("mkl-gemm", &[&["trmm"]]),
    ("openblas-trmm", &[&["trmm"]]),
    ("openblas-gemm", &[&["trmm"]]),
    ("scipy-csr", &[TRIANGLES]),
    ("mlir-csr", &[TRIANGLES]),
    ("mlir-bsr", &[TRIANGLES]),
];

/// The peers that have a form of `workload`.
pub fn of_workload(workload: &str) -> impl Iterator<Item = &'static str> {
    PEERS.iter().filter(move |p| p.1.iter().any(|w| w.contains(&workload))).map(|p| p.0)
}

/// The greatest error of a peer's result relative to the greatest value of that of `workload`; bf16 has 8 bits.
pub fn tolerance(workload: &str, peer: &str) -> f64 {
    if [workload, peer].iter().any(|n| n.ends_with("bf16")) { 0.05 } else { 1e-4 }
}

unsafe extern "C" {
    safe fn kill(pid: i32, signal: i32) -> i32;
}

const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// A folder for the files of one run, removed with it.
pub struct Folder(PathBuf);

impl Folder {
    /// A new folder with the peers' scripts.
    ///
    /// # Errors
    /// `E0600` it cannot be written.
    pub fn new() -> Result<Self, Failure> {
        // Several in one process have names of their own.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("cora-bench-{}-{count}", std::process::id()));
        let fail = |e: std::io::Error| Failure::User(format!("error[E0600]: cannot write `{}`: {e}", path.display()));
        std::fs::create_dir_all(&path).map_err(fail)?;
        for (name, text) in SCRIPTS {
            std::fs::write(path.join(name), text).map_err(fail)?;
        }
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The interpreter of the environment that `scripts/setup_peers.sh` makes: in a folder above this program.
pub fn python() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    exe.ancestors().map(|d| d.join("peers/venv/bin/python")).find(|p| p.exists())
}

/// A peer's process with the workload set up.
pub struct Peer {
    /// Its name, one of [`PEERS`].
    pub name: String,
    /// What it says of its form.
    pub detail: String,
    child: Child,
    to: ChildStdin,
    from: Receiver<String>,
    output: PathBuf,
}

/// A started peer, or why there is none.
pub enum Started {
    /// It has run once.
    Ready(Peer),
    /// Not installed, or without a form of the workload; or it failed.
    Skipped(String),
}

impl Peer {
    /// Starts `name` on `case`, the fields of the `open` message that say what to run.
    ///
    /// # Errors
    /// `E0600` the process cannot be started.
    pub fn start(name: &str, mut case: Value, folder: &Folder) -> Result<Started, Failure> {
        let Some(python) = python() else {
            return Ok(Started::Skipped("not installed; run scripts/setup_peers.sh".to_owned()));
        };
        let log = std::fs::File::create(folder.path().join(format!("{name}.log")));
        let mut command = Command::new(&python);
        command.arg("-u").arg(folder.path().join("serve.py")).current_dir(folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log.map_or_else(|_| Stdio::null(), Stdio::from));
        let fail = |e: std::io::Error| {
            Failure::User(format!("error[E0600]: cannot start `{}` for peer `{name}`: {e}", python.display()))
        };
        let mut child = command.spawn().map_err(fail)?;
        let (Some(to), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::Bug("a child process without pipes".to_owned()));
        };
        let (send, from) = channel();
        std::thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).try_for_each(|l| send.send(l)));
        let output = folder.path().join(format!("{name}-output.npy"));
        let mut peer = Self { name: name.to_owned(), detail: String::new(), child, to, from, output };
        case["cmd"] = json!("open");
        case["peer"] = json!(name);
        case["folder"] = json!(folder.path());
        Ok(match peer.ask(&case) {
            Ok(r) => {
                peer.detail = r["detail"].as_str().unwrap_or_default().to_owned();
                Started::Ready(peer)
            }
            Err(why) => Started::Skipped(why),
        })
    }

    /// The times of one turn, in milliseconds.
    ///
    /// # Errors
    /// What went wrong in the peer.
    pub fn turn(&mut self, min_ms: f64, max_runs: usize) -> Result<Vec<f64>, String> {
        let reply = self.ask(&json!({ "cmd": "turn", "min_ms": min_ms, "max_runs": max_runs }))?;
        let times = reply["ms"].as_array().map(|a| a.iter().filter_map(Value::as_f64).collect::<Vec<_>>());
        times.filter(|t| !t.is_empty()).ok_or_else(|| "it gave no times".to_owned())
    }

    /// The greatest difference between its last result and `ours`, relative to the greatest value of `ours`.
    ///
    /// # Errors
    /// What went wrong in the peer; a result of another size.
    pub fn error(&mut self, ours: &RaggedArray) -> Result<f64, String> {
        self.ask(&json!({ "cmd": "output", "file": self.output }))?;
        let theirs = NpyArray::read(&self.output).and_then(|a| a.into_array(DType::F32, ours.shape().clone()));
        let theirs = theirs.map_err(|e| e.to_string())?;
        let _ = std::fs::remove_file(&self.output);
        difference(ours, &theirs)
    }

    fn ask(&mut self, message: &Value) -> Result<Value, String> {
        let pid = i32::try_from(self.child.id()).map_err(|e| e.to_string())?;
        kill(pid, SIGCONT);
        let sent = writeln!(self.to, "{message}").and_then(|()| self.to.flush());
        let line = sent.map_err(|e| e.to_string()).and_then(|()| {
            self.from.recv_timeout(PATIENCE).map_err(|e| match e {
                std::sync::mpsc::RecvTimeoutError::Timeout => format!("no answer in {} s", PATIENCE.as_secs()),
                std::sync::mpsc::RecvTimeoutError::Disconnected => "its process ended".to_owned(),
            })
        })?;
        kill(pid, SIGSTOP);
        let reply: Value = serde_json::from_str(&line).map_err(|e| format!("`{line}`: {e}"))?;
        match (reply["skip"].as_str(), reply["error"].as_str()) {
            (Some(why), _) => Err(why.to_owned()),
            (_, Some(why)) => Err(format!("it failed: {why}")),
            _ => Ok(reply),
        }
    }
}

/// The greatest difference between two `f32` arrays of one shape, relative to the greatest value of `a`.
///
/// # Errors
/// Another element type, or another number of elements.
pub fn difference(a: &RaggedArray, b: &RaggedArray) -> Result<f64, String> {
    let values = |x: &RaggedArray| -> Result<Vec<f64>, String> {
        let data = cora::inputs::to_data(x).map_err(|e| e.to_string())?;
        Ok((0..data.len()).filter_map(|i| data.get(i)).collect())
    };
    let (a, b) = (values(a)?, values(b)?);
    if a.len() != b.len() {
        return Err(format!("{} and {} elements", a.len(), b.len()));
    }
    let greatest = a.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
    let worst = a.iter().zip(&b).map(|(x, y)| (x - y).abs());
    // A NaN is an error, which `max` would drop.
    let worst = worst.fold(0.0_f64, |m, e| if e.is_nan() || e > m { e } else { m });
    Ok(if greatest > 0.0 { worst / greatest } else { worst })
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
