//! The names that the rules give to loops, and a program's names beside them.

use cora_ir::loops::LoopModule;
use rustc_hash::{FxHashMap, FxHashSet};

/// What the rules call loops; beside these, parts of a loop or dimension `x` are `x_o` and `x_i`.
pub const NAMES: [&str; 67] = [
    "batches", "block", "cb", "cc", "ci", "cl", "co", "cp", "cr", "cv", "flat", "ip", "jp", "kb", "ki", "kk", "ko",
    "kq", "ku", "kv", "lane", "main", "mi", "mj", "mk", "near", "part", "pitch", "place", "ri", "ro", "row", "rr",
    "rs", "spread", "steps", "tail", "task", "term", "terms", "thread", "ti", "tile", "to", "tx", "ty", "tz", "warp",
    "wi", "wj", "wo", "wy", "wz", "xl", "xs", "xt", "xv", "xw", "yl", "ys", "yt", "yw", "zl", "zs", "zt", "zv", "zw",
];

/// Whether a rule may call a loop so.
pub fn reserved(name: &str) -> bool {
    NAMES.contains(&name) || name.ends_with("_o") || name.ends_with("_i")
}

/// What the parts of a loop or dimension are called.
pub(super) fn parts_of(name: &str) -> [String; 2] {
    [format!("{name}_o"), format!("{name}_i")]
}

/// Renames loops and dimensions of the program that are called as the rules would call others.
pub(crate) fn keep_apart(m: &mut LoopModule) {
    let dims = m.env.tensors.iter().flat_map(|(_, t)| t.dims.iter().map(|d| &d.name));
    let all: FxHashSet<String> = m.env.vars.iter().map(|(_, v)| &v.name).chain(dims).cloned().collect();
    let mut apart = FxHashMap::default();
    for name in all.iter().filter(|n| reserved(n)) {
        let new = std::iter::successors(Some(format!("{name}_dim")), |n| Some(format!("{n}_dim")));
        apart.extend(new.into_iter().find(|n| !all.contains(n)).map(|new| (name.clone(), new)));
    }
    let rename = |name: &mut String| {
        if let Some(new) = apart.get(name) {
            name.clone_from(new);
        }
    };
    for v in m.env.vars.ids() {
        rename(&mut m.env.vars[v].name);
    }
    for t in m.env.tensors.ids() {
        m.env.tensors[t].dims.iter_mut().for_each(|d| rename(&mut d.name));
    }
}
