//! What several tests need: the examples, and blessing of expected files.

use std::path::{Path, PathBuf};

/// The repository's root.
#[allow(dead_code)]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// `(stem, text)` of every `.cora` file in `dir`, sorted.
#[allow(dead_code)]
pub fn programs(dir: &Path) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).expect("the folder exists") {
        let path = entry.expect("readable").path();
        if path.extension().is_some_and(|e| e == "cora") {
            let stem = path.file_stem().and_then(|s| s.to_str()).expect("UTF-8 name").to_owned();
            out.push((stem, std::fs::read_to_string(&path).expect("readable")));
        }
    }
    out.sort();
    assert!(!out.is_empty(), "no programs in {}", dir.display());
    out
}

/// Whether expected files are being written again.
#[allow(dead_code)]
pub fn blessing() -> bool {
    std::env::var_os("CORA_BLESS").is_some()
}

/// Compares `text` with the file at `path`, or writes it there if `CORA_BLESS` is set.
/// Gives a complaint if they differ.
#[allow(dead_code)]
pub fn compare(path: &Path, text: &str) -> Option<String> {
    if blessing() {
        std::fs::write(path, text).expect("writable");
        return None;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    (expected != text).then(|| {
        format!(
            "{} differs (set CORA_BLESS=1 to accept):\n--- expected\n{expected}\n--- found\n{text}\n",
            path.display()
        )
    })
}
