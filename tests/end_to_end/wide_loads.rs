//! Global memory is read by 16 bytes wherever a thread reads 16 neighbouring bytes that are known to begin at a multiple of
//! 16: no kernel of an example reads them piece by piece.
//!
//! What is known is in the text that kernels are emitted as: the alignment of each vector that a thread loads. What is
//! read is in the PTX, where neighbours are loads at consecutive distances from one register in one basic block. No
//! vector that is known to be aligned may fall apart, and a kernel that reads neighbours one by one must be in the table,
//! with the reason why nobody knows how they lie.

use crate::examples::{LARGE, load};
use crate::harness::{message, report};
use crate::support::{files, in_parallel, stem};
use cora::codegen_cuda::{GpuTarget, compile};
use cora::driver::lower_for;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// Kernels that read neighbouring elements piece by piece, and why nothing says that they are aligned.
const NARROW: &[(&str, &str, &str, &str)] = &[
    ("embedding_pool", "cuda", "Y", "a sequence's ids begin where the lengths before it end"),
    ("embedding_pool", "cuda_atomic", "Y_sum", "a sequence's ids begin where the lengths before it end"),
    ("row_statistics", "cuda", "piece", "a row's terms begin where the lengths before it end"),
    ("row_statistics", "cuda", "first", "a row's terms begin where the lengths before it end"),
    ("row_statistics", "cuda", "low", "a row's partial results begin where those of the rows before it end"),
];

/// Bytes of the widest load.
const WIDE: u64 = 16;

/// What a kernel's text says of the vectors that are loaded from global memory.
#[derive(Default, Debug, PartialEq, Eq)]
struct Known {
    /// At least 16 bytes, known to be aligned.
    aligned: usize,
    /// At least 16 bytes, not known to be, or loaded lane by lane under a mask.
    other: usize,
}

/// The text of each function, by its symbol.
fn functions<'t>(text: &'t str, begins: &str) -> BTreeMap<String, &'t str> {
    let mut out = BTreeMap::new();
    for part in text.split(begins).skip(1) {
        let name: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        out.insert(name, part);
    }
    out
}

/// The bytes of `vector<4xf32>`; 0 of a scalar.
fn bytes(ty: &str) -> u64 {
    let Some((n, elem)) = ty.strip_prefix("vector<").and_then(|t| t.trim_end_matches('>').split_once('x')) else {
        return 0;
    };
    let bits: u64 = elem.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
    n.parse::<u64>().unwrap_or(0) * bits / 8
}

/// The vectors that a function in MLIR loads from its arguments.
fn known(text: &str) -> Known {
    let mut out = Known::default();
    // Pointers that come of an argument: in the signature, and what is computed of them.
    let (signature, _) = text.split_once(" attributes ").unwrap_or((text, ""));
    let pointer = |s: &str| {
        s.contains("!llvm.ptr").then(|| s.trim_start_matches(['(', ' ']).split(':').next().map(str::to_owned)).flatten()
    };
    let mut global: BTreeSet<String> = signature.split("%").filter_map(|s| pointer(&format!("%{s}"))).collect();
    for line in text.lines() {
        let Some((to, how)) = line.trim_start().split_once(" = ") else { continue };
        let words: Vec<&str> = how.split([' ', '[', ',']).collect();
        let from = words.get(1).copied().unwrap_or_default();
        if how.starts_with("llvm.getelementptr") && global.contains(from) {
            global.insert(to.to_owned());
        }
        let loads = how.starts_with("llvm.load") || how.starts_with("llvm.intr.masked.load");
        let size = bytes(how.rsplit("-> ").next().unwrap_or_default().trim());
        if loads && global.contains(from) && size >= WIDE {
            let aligned = how.starts_with("llvm.load") && how.contains("{alignment = 16 ");
            if aligned { out.aligned += 1 } else { out.other += 1 }
        }
    }
    out
}

/// How many 16 neighbouring bytes a function in PTX reads at once, and how many piece by piece.
fn reads(text: &str) -> (usize, usize) {
    let (mut wide, mut narrow) = (0, 0);
    let mut pieces: BTreeMap<(String, u64), BTreeSet<i64>> = BTreeMap::new();
    let mut close = |pieces: &mut BTreeMap<(String, u64), BTreeSet<i64>>| {
        for ((_, size), mut at) in std::mem::take(pieces) {
            while let Some(first) = at.pop_first() {
                let run = (1..(WIDE / size) as i64).all(|n| at.contains(&(first + n * size as i64)));
                if run {
                    narrow += 1;
                    at.retain(|&o| o >= first + WIDE as i64);
                }
            }
        }
    };
    for line in text.lines().map(str::trim) {
        if line.starts_with('$') || line.starts_with("bra") || line.contains(" bra") || line.starts_with("bar.") {
            close(&mut pieces);
        }
        let line = line.split_once(' ').filter(|_| line.starts_with('@')).map_or(line, |x| x.1.trim_start());
        let Some(op) = line.split_whitespace().next().filter(|op| op.starts_with("ld.global")) else { continue };
        let bits: u64 = op.rsplit('.').next().unwrap_or_default()[1..].parse().unwrap_or(0);
        let lanes = if op.contains(".v4") {
            4
        } else if op.contains(".v2") {
            2
        } else {
            1
        };
        if bits / 8 * lanes >= WIDE {
            wide += 1;
            continue;
        }
        let Some(at) = line.split_once('[').and_then(|x| x.1.split_once(']')).map(|x| x.0) else { continue };
        let (register, offset) = at.split_once('+').unwrap_or((at, "0"));
        pieces
            .entry((register.to_owned(), bits / 8))
            .or_default()
            .extend((0..lanes as i64).map(|n| offset.parse::<i64>().unwrap_or(0) + n * (bits / 8) as i64));
    }
    close(&mut pieces);
    (wide, narrow)
}

#[test]
fn neighbours_are_counted() {
    let ptx = "ld.global.nc.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];\n ld.global.b32 %r1, [%rd2];\n ld.global.b32 %r2, [%rd2+4];\n\
               @%p1 ld.global.b32 %r3, [%rd2+8];\n ld.global.b32 %r4, [%rd2+12];\n ld.global.b32 %r4, [%rd2+-4];\n\
               ld.global.b16 %rs1, [%rd3];\n$L1:\n ld.global.b32 %r4, [%rd2+16];";
    assert_eq!(reads(ptx), (1, 1));
    let mlir = "(%0: !llvm.ptr {llvm.align = 64 : i64}, %1: i64) attributes {nvvm.kernel} {\n\
                %2 = llvm.getelementptr %0[%1] : (!llvm.ptr, i64) -> !llvm.ptr, f32\n\
                %3 = llvm.load %2 {alignment = 16 : i64} : !llvm.ptr -> vector<4xf32>\n\
                %4 = llvm.load %2 {alignment = 4 : i64} : !llvm.ptr -> vector<4xf32>\n\
                %5 = llvm.load %2 {alignment = 4 : i64} : !llvm.ptr -> f32\n\
                %6 = llvm.load %9 {alignment = 16 : i64} : !llvm.ptr -> vector<4xf32>\n";
    assert_eq!(known(mlir), Known { aligned: 1, other: 1 });
}

#[test]
fn aligned_neighbours_are_read_at_once() {
    let rows: Mutex<Vec<String>> = Mutex::default();
    let mut examples = files("examples", "cora");
    examples.retain(|p| !LARGE.contains(&stem(p).as_str()));
    let complaints = in_parallel(&examples, |path| {
        let name = stem(path);
        let source = match load(path, &[]) {
            Ok(s) => s,
            Err(e) => return vec![e],
        };
        let mut complaints = Vec::new();
        let own = source.graph.schedules.iter().filter(|s| s.name.starts_with("cuda"));
        for (form, schedule) in own.map(|s| (s.name.as_str(), s)) {
            let lowered = match lower_for(&source, Some(schedule), false, Some("sm_80"), &mut |_| {}) {
                Ok(l) => l,
                Err(e) => {
                    complaints.push(format!("{name} ({form}): {}", message(e)));
                    continue;
                }
            };
            // The oldest one that has the instructions: there what others copy beside their threads is loads as well.
            let target = |arch| GpuTarget::new(arch).expect("a known architecture");
            let programs = ["sm_70", "sm_80", "sm_90a"].map(target);
            let Some(program) = programs.iter().find_map(|t| compile(&lowered.storage, t).ok()) else {
                complaints.push(format!("{name} ({form}): no code"));
                continue;
            };
            let ptx = functions(&program.ptx, ".entry ");
            for (symbol, text) in functions(&program.mlir, "llvm.func @") {
                let Some(code) = ptx.get(&symbol) else { continue };
                let (known, (wide, narrow)) = (known(text), reads(code));
                let kernel = symbol.trim_start_matches("cora_");
                let row = format!(
                    "{name:<16} {form:<23} {kernel:<24} {:>4} {:>4} {wide:>4} {narrow:>4}",
                    known.aligned, known.other
                );
                let why = NARROW.iter().find(|x| (x.0, x.1, x.2) == (&name, form, kernel));
                if narrow > 0 && why.is_none() {
                    complaints.push(format!("{row}: neighbours are read piece by piece"));
                }
                if wide < known.aligned {
                    complaints.push(format!("{row}: vectors that are known to be aligned are not read at once"));
                }
                if narrow == 0 && why.is_some() {
                    complaints.push(format!("{row}: not narrow any more, and in the table"));
                }
                rows.lock().expect("no panic while it is held").push(row);
            }
        }
        complaints
    });
    let mut rows = rows.into_inner().expect("no panic while it was held");
    rows.sort();
    println!(
        "program, schedule, kernel; vectors of 16 bytes known to be aligned, and others; reads of 16 bytes, and in pieces"
    );
    println!("{}", rows.join("\n"));
    report(&complaints);
}
