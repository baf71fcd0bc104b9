//! What both test binaries need: the repository's root, batches at the edges, blessed files.

pub mod batches;
pub mod skip;
pub mod stand_in;

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files in `dir` (below the root) with that extension, sorted.
pub fn files(dir: &str, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(dir)).expect("the folder exists");
    let mut out: Vec<PathBuf> = entries.map(|e| e.expect("readable").path()).collect();
    out.retain(|p| p.extension().is_some_and(|e| e == extension));
    out.sort();
    assert!(!out.is_empty(), "no .{extension} files in {dir}");
    out
}

/// A path's last part without its extension.
pub fn stem(path: &Path) -> String {
    path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Sizes that keep the reference interpreter fast; no tile of a schedule divides them.
#[allow(dead_code, reason = "not every test binary runs examples")]
const SMALL: &[(&str, &[(&str, i64)])] = &[
    ("attnv", &[("H", 3), ("D", 24)]),
    ("cross_attention", &[("H", 3), ("D", 24)]),
    ("embedding_pool", &[("V", 50), ("D", 24)]),
    ("encoder6", &[("H", 2), ("D", 12), ("DM", 20), ("FF", 36)]),
    ("encoder_layer", &[("H", 3), ("D", 24), ("DM", 40), ("FF", 72)]),
    ("encoder_layer_bf16", &[("H", 3), ("D", 16), ("DM", 48), ("FF", 80)]),
    ("gru", &[("D", 40)]),
    ("layer_norm", &[("DM", 72)]),
    ("masked_sdpa", &[("H", 3), ("D", 24)]),
    ("mha", &[("H", 3), ("D", 24), ("DM", 40)]),
    ("moe", &[("DM", 40), ("FF", 72)]),
    ("nested", &[("D", 24)]),
    ("projection_bf16", &[("DI", 40), ("DO", 80)]),
    ("projection_f16", &[("DI", 128), ("DO", 72)]),
    ("qkt", &[("H", 3), ("D", 24)]),
    ("sdpa", &[("H", 3), ("D", 24)]),
];

/// The constants of an example that keep it small.
#[allow(dead_code, reason = "not every test binary runs examples")]
pub fn small(name: &str) -> &'static [(&'static str, i64)] {
    SMALL.iter().find(|(n, _)| *n == name).map_or(&[], |(_, consts)| consts)
}

/// Fails with all complaints, if there are any.
#[allow(dead_code, reason = "not every test binary runs many things")]
pub fn report(complaints: &[String]) {
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

/// Calls `one` for each item on as many threads as there are cores and gives all complaints, in the
/// order of the items.
#[allow(dead_code, reason = "not every test binary runs things in parallel")]
pub fn in_parallel<T: Sync>(items: &[T], one: impl Fn(&T) -> Vec<String> + Sync) -> Vec<String> {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|s| {
        for _ in 0..workers {
            s.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(n) else { break };
                    let complaints = one(item);
                    all.lock().expect("no panic while it is held").push((n, complaints));
                }
            });
        }
    });
    let mut all = all.into_inner().expect("no panic while it was held");
    all.sort_by_key(|(n, _)| *n);
    all.into_iter().flat_map(|(_, complaints)| complaints).collect()
}

/// Compares `text` with a file, or writes it there if `CORA_BLESS` is set; gives a complaint if they differ.
#[allow(dead_code, reason = "not every test binary has expected files")]
pub fn compare(path: &Path, text: &str) -> Option<String> {
    if std::env::var_os("CORA_BLESS").is_some() {
        std::fs::write(path, text).expect("writable");
        return None;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    let name = path.strip_prefix(root()).unwrap_or(path).display();
    (expected != text)
        .then(|| format!("{name} differs (CORA_BLESS=1 accepts):\n--- expected\n{expected}\n--- found\n{text}"))
}
