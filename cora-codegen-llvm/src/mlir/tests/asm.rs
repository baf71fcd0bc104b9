//! What the machine code of small kernels looks like, without running it.

use cora_ir::storage::{Matrix, Stmt, Tile};
use cora_ir::{IntrinsicId, Literal, ScalarType};

use super::kit::{Kit, parallel, serial, store};
use crate::llvm::{CPU_PIPELINE, LlvmModule, MlirModule, TargetSpec};
use crate::mlir::{EmitOptions, emit};

const F32: ScalarType = ScalarType::F32;

fn optimized(k: &Kit, cpu: &str) -> LlvmModule {
    let target = TargetSpec::new(cpu).unwrap();
    let text = emit(&k.m, &EmitOptions::for_target(&target)).unwrap();
    let mut module = MlirModule::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    module.run_pipeline(CPU_PIPELINE).unwrap();
    let mut llvm = LlvmModule::from_mlir(&module, &target).unwrap();
    llvm.optimize("default<O3>").unwrap();
    llvm.settle_masks();
    llvm
}

pub(super) fn llvm_ir(k: &Kit, cpu: &str) -> String {
    optimized(k, cpu).to_ir_string()
}

/// The instructions of the loop with the most of those that start with `marker`, without loops inside.
fn hot_loop<'a>(asm: &'a str, marker: &str) -> Vec<&'a str> {
    let lines: Vec<&str> = asm.lines().map(|l| l.split_once(" //").map_or(l, |(code, _)| code).trim()).collect();
    let mut best = (0, vec![]);
    for (end, line) in lines.iter().enumerate() {
        let Some(target) =
            line.split_whitespace().last().filter(|t| line.starts_with(['j', 'b']) && t.starts_with(".L"))
        else {
            continue;
        };
        let Some(start) = lines[..end].iter().position(|l| l.strip_prefix(target).is_some_and(|r| r.starts_with(':')))
        else {
            continue;
        };
        let body: Vec<&str> = lines[start + 1..=end]
            .iter()
            .copied()
            .filter(|l| !l.is_empty() && !l.starts_with(['.', '#', '/']))
            .collect();
        let jumps_back = |l: &&&str| l.split_whitespace().last().is_some_and(|t| t == target);
        let count = body.iter().filter(|l| l.starts_with(marker)).count();
        if count > best.0 && lines[start..=end].iter().filter(jumps_back).count() == 1 {
            best = (count, body);
        }
    }
    assert!(best.0 > 0, "no loop with {marker}\n{asm}");
    best.1
}

/// `C[i, j] = sum over p < K of A[p, i] * B[p, j]` for one tile of `rows` x `columns`, accumulators in registers.
fn tile(rows: i64, columns: i64, lanes: u32) -> Kit {
    let mut k = Kit::default();
    let [a, b, c] = ["A", "B", "C"].map(|n| k.buffer(n, F32));
    let acc = k.registers("acc", F32, rows * columns);
    let depth = k.param("K");
    let depth = k.m.env.pool.param(depth);
    let (vp, p) = k.var("p");
    let zero = k.m.env.pool.lit(Literal::float(F32, 0.0));
    let zero = k.m.env.pool.splat(zero, lanes);
    let (mut init, mut update, mut write) = (vec![], vec![], vec![]);
    for i in 0..rows {
        for j in (0..columns).step_by(lanes as usize) {
            let pool = &mut k.m.env.pool;
            let at = pool.int(i * columns + j);
            let at = pool.ramp(at, 1, lanes);
            let (ka, kb) = (pool.int(rows), pool.int(columns));
            let (ia, ib) = (pool.mul(p, ka), pool.mul(p, kb));
            let (ci, cj) = (pool.int(i), pool.int(j));
            let (ia, ib) = (pool.add(ia, ci), pool.add(ib, cj));
            let ib = pool.ramp(ib, 1, lanes);
            let (x, y, sum) = (k.load(a, ia), k.load(b, ib), k.load(acc, at));
            let x = k.m.env.pool.splat(x, lanes);
            let product = k.m.env.pool.mul(x, y);
            let next = k.m.env.pool.add(sum, product);
            init.push(store(acc, at, zero));
            update.push(store(acc, at, next));
            write.push(store(c, at, sum));
        }
    }
    let mut body = init;
    body.push(serial(vp, depth, update));
    body.extend(write);
    k.kernel("tile", body);
    k
}

#[test]
fn register_tiles_stay_in_registers() {
    for (cpu, rows, columns, lanes) in [
        ("znver4", 4, 32, 16),
        ("skylake-avx512", 4, 32, 16),
        ("skylake-avx512", 12, 32, 16),
        ("znver4", 14, 32, 16),
        ("haswell", 6, 16, 8),
        ("haswell", 4, 24, 8),
    ] {
        let asm = optimized(&tile(rows, columns, lanes), cpu).emit_asm().unwrap();
        let inner = hot_loop(&asm, "vfmadd");
        println!("{cpu} {rows}x{columns}: {} instructions", inner.len());
        let count = inner.iter().filter(|l| l.starts_with("vfmadd")).count() as i64;
        let wanted = rows * columns / i64::from(lanes);
        // LLVM may unroll small loops.
        assert!(count >= wanted && count % wanted == 0, "{cpu} {rows}x{columns}: {count}\n{asm}");
        let stack = inner.iter().filter(|l| l.contains("rsp") || l.contains("rbp")).count();
        assert_eq!(stack, 0, "{cpu} {rows}x{columns}\n{}", inner.join("\n"));
    }
}

/// `C[r, i, j] += A[r, i, k] * B[k, j]` of bytes for two tiles of 2 x 32 one after the other, by an instruction for one row.
fn tiles_of_bytes() -> Kit {
    let mut k = Kit::default();
    let [a, b] = ["A", "B"].map(|n| k.buffer(n, ScalarType::I8));
    let c = k.buffer("C", ScalarType::I32);
    let acc = k.registers("acc", ScalarType::I32, 64);
    let depth = k.param("K");
    let depth = k.m.env.pool.param(depth);
    let ((vr, r), (vp, p)) = (k.var("r"), k.var("p"));
    let zero = k.m.env.pool.lit(Literal::int(ScalarType::I32, 0));
    let zero = k.m.env.pool.splat(zero, 16);
    let (mut body, mut update, mut write) = (vec![], vec![], vec![]);
    for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let pool = &mut k.m.env.pool;
        let [zero_at, one, four, panel, tile] = [0, 1, 4, 128, 64].map(|n| pool.int(n));
        let (place, first, row) = (pool.int(32 * i + 16 * j), pool.int(64 * j), pool.int(i));
        // Row 2 r + i of A, 4 K bytes each.
        let (pair, bytes) = (pool.add(r, r), pool.mul(depth, four));
        let row = pool.add(pair, row);
        let (row, step) = (pool.mul(row, bytes), pool.mul(p, four));
        let left = pool.add(row, step);
        let (lines, tiles) = (pool.mul(p, panel), pool.mul(r, tile));
        let (right, to) = (pool.add(lines, first), pool.add(tiles, place));
        let (at, to) = (pool.ramp(place, 1, 16), pool.ramp(to, 1, 16));
        let matrix = |tensor, offset, row, column| Matrix { tensor, offset, row, column, blocks: None };
        update.push(Stmt::Tile(Box::new(Tile {
            intrinsic: IntrinsicId::named("dot.n16k4.i32.i8").unwrap(),
            a: matrix(a, left, zero_at, one),
            b: matrix(b, right, one, four),
            c: matrix(acc, place, zero_at, one),
        })));
        body.push(store(acc, at, zero));
        let sum = k.load(acc, at);
        write.push(store(c, to, sum));
    }
    body.push(serial(vp, depth, update));
    body.extend(write);
    let two = k.int(2);
    k.kernel("tiles", vec![serial(vr, two, body)]);
    k
}

#[test]
fn bytes_without_signs_are_corrected_once() {
    let asm = optimized(&tiles_of_bytes(), "znver4").emit_asm().unwrap();
    let inner = hot_loop(&asm, "vpxor");
    let of = |name: &str| inner.iter().filter(|l| l.starts_with(name)).count();
    assert_eq!((of("vpsub"), of("vpadd")), (0, 0), "{}", inner.join("\n"));
    // 128 is added to each word in the load that puts it into all lanes.
    assert_eq!(2 * of("vpxor"), of("vpdpbusd"), "{}", inner.join("\n"));
    assert!(asm.contains("vpsubd"), "{asm}");
}

#[test]
fn neon_tiles_too() {
    let asm = optimized(&tile(8, 12, 4), "neoverse-n1").emit_asm().unwrap();
    let inner = hot_loop(&asm, "fmla");
    println!("{}", inner.len());
    assert_eq!(inner.iter().filter(|l| l.starts_with("fmla")).count(), 24, "{}", inner.join("\n"));
    assert!(!inner.iter().any(|l| l.contains("[sp")), "{}", inner.join("\n"));
}

#[test]
fn a_maximum_costs_a_few_instructions() {
    let mut k = Kit::default();
    let (a, b, o) = (k.buffer("A", F32), k.buffer("B", F32), k.buffer("O", F32));
    let (v, i) = k.var("i");
    let index = k.lanes(i, 16);
    let (x, y) = (k.load(a, index), k.load(b, index));
    let value = k.m.env.pool.max(x, y);
    let extent = k.int(0);
    k.kernel("k", vec![parallel(v, extent, vec![store(o, index, value)])]);
    let asm = optimized(&k, "skylake-avx512").emit_asm().unwrap();
    let inner = hot_loop(&asm, "vmaxps");
    let maxima = inner.iter().filter(|l| l.starts_with("vmaxps")).count();
    // Beside the maximum, its load and its store: one comparison and one masked move for NaN.
    assert!(inner.len() <= 5 * maxima + 4, "{}", inner.join("\n"));
}

#[test]
fn masks_are_one_comparison_and_masked_moves() {
    let mut k = Kit::default();
    let (a, o) = (k.buffer("A", F32), k.buffer("O", F32));
    let n = k.param("n");
    let n = k.m.env.pool.param(n);
    let (v, i) = k.var("i");
    let index = k.lanes(i, 16);
    let bound = k.m.env.pool.splat(n, 16);
    let cond = k.m.env.pool.lt(index, bound);
    let zero = k.m.env.pool.lit(Literal::float(F32, 0.0));
    let zero = k.m.env.pool.splat(zero, 16);
    let value = k.guarded(a, index, cond, zero);
    let extent = k.int(0);
    let masked = cora_ir::storage::Stmt::Store { tensor: o, index, value, mask: Some(cond), rest: vec![] };
    k.kernel("k", vec![parallel(v, extent, vec![masked])]);
    let asm = optimized(&k, "skylake-avx512").emit_asm().unwrap();
    let inner = hot_loop(&asm, "vpcmp");
    let masks = inner.iter().filter(|l| l.starts_with("vpcmp")).count();
    assert_eq!(inner.iter().filter(|l| l.ends_with("{%k1}")).count(), masks, "{}", inner.join("\n"));
    assert!(inner.iter().any(|l| l.contains("{%k1} {z}")), "{}", inner.join("\n"));
}

#[test]
fn a_mask_is_computed_outside_of_loops_that_keep_it() {
    let mut k = Kit::default();
    let (a, o) = (k.buffer("A", F32), k.buffer("O", F32));
    let (n, steps) = (k.param("n"), k.param("steps"));
    let (n, steps) = (k.m.env.pool.param(n), k.m.env.pool.param(steps));
    let ((v, i), (w, j)) = (k.var("i"), k.var("j"));
    let zero = k.int(0);
    let lanes = k.lanes(zero, 16);
    let bound = k.m.env.pool.splat(n, 16);
    let cond = k.m.env.pool.lt(lanes, bound);
    let other = k.m.env.pool.lit(Literal::float(F32, 0.0));
    let other = k.m.env.pool.splat(other, 16);
    let index = k.lanes(j, 16);
    let term = k.guarded(a, index, cond, other);
    let place = k.lanes(i, 16);
    let sum = k.load(o, place);
    let value = k.m.env.pool.add(sum, term);
    let sixteen = k.int(16);
    k.kernel("k", vec![parallel(v, sixteen, vec![serial(w, steps, vec![store(o, place, value)])])]);
    let frozen = |cpu| llvm_ir(&k, cpu).contains("freeze <16 x i1>");
    assert!(frozen("skylake-avx512"));
    assert!(!frozen("haswell"));
    let asm = optimized(&k, "skylake-avx512").emit_asm().unwrap();
    let inner = hot_loop(&asm, "vaddps");
    assert!(!inner.iter().any(|l| l.starts_with("vpcmp")), "{}", inner.join("\n"));
}

#[test]
fn exp_of_a_vector_stays_in_vectors() {
    let mut k = Kit::default();
    let (a, o) = (k.buffer("A", F32), k.buffer("O", F32));
    let (v, i) = k.var("i");
    let index = k.lanes(i, 16);
    let x = k.load(a, index);
    let value = k.m.env.pool.un(cora_ir::UnOp::Exp, x);
    let extent = k.int(0);
    k.kernel("k", vec![parallel(v, extent, vec![store(o, index, value)])]);
    let asm = optimized(&k, "skylake-avx512").emit_asm().unwrap();
    let inner = hot_loop(&asm, "vfmadd");
    println!("{}", inner.join("\n"));
    let stores = inner.iter().filter(|l| l.starts_with("vmov") && l.ends_with(')')).count();
    assert!(inner.len() <= 24 * stores, "{}", inner.join("\n"));
    assert!(inner.iter().any(|l| l.starts_with("vscalefps")), "{}", inner.join("\n"));
    assert!(!asm.contains("expf"), "{asm}");
}
