//! A tile by four warps with tensor instructions, 32 x 32 elements each.

use super::{Copy, STEPS, TILE};
use crate::default_grid::lanes::LANES;
use crate::default_schedule::step;
use crate::default_schedule::steps::Steps;
use crate::schedule::tree::{find_loop, loop_at};
use cora_ir::IntrinsicId;
use cora_ir::intrinsic::{Digit, Of};
use cora_ir::loops::Axis;
use cora_ir::schedule::{StepKind, Tail};

/// Rows and columns of a warp's part of a tile; two such parts are as high, and two as wide, as it.
const PART: i64 = TILE / 2;
/// Bytes that a thread copies at a time.
const VECTOR: i64 = 16;
/// Elements between rows of a copy whose neighbours are columns: what the lanes read of four rows falls into different banks.
const APART: i64 = 8;

/// Spreads the sums of a tile, its copies, and the stage that they leave it to, over four warps.
pub(super) fn by_warps(sums: &mut Steps<'_>, result: &str, copies: &[Copy; 2], unit: IntrinsicId) -> Option<()> {
    let shape = unit.get();
    let [rows, columns, steps] = shape.tile;
    for l in ["ki", "ri", "ci"] {
        sums.relax(l, false)?;
    }
    for copy in copies {
        copied(sums, copy)?;
    }
    part(sums, "ri", rows, ["wi", "ip"])?;
    part(sums, "ci", columns, ["wj", "jp"])?;
    sums.split("ip", rows, "rr", "mi", Tail::Exact)?;
    sums.split("jp", columns, "cc", "mj", Tail::Exact)?;
    sums.full("ki", steps, "kq", "mk", false)?;
    reorder(sums, &["wi", "wj", "kq", "rr", "cc", "mi", "mj", "mk"])?;
    bind_warps(sums)?;
    step(sums.m, StepKind::Tensorize { target: sums.named("mi"), intrinsic: unit })?;
    sums.unroll(&["kq", "rr", "cc"])?;
    let mut s = sums.of(result);
    s.split("ri", PART, "wi", "ip", Tail::Mask)?;
    s.split("ci", PART, "wj", "jp", Tail::Mask)?;
    reorder(&mut s, &["wi", "wj", "ip", "jp"])?;
    bind_warps(&mut s)?;
    let (mut lanes, mut own) = held(&mut s, "ip", shape.c.row)?;
    let (more_lanes, more) = held(&mut s, "jp", shape.c.column)?;
    lanes.extend(more_lanes);
    own.extend(more);
    // The lane's number has the greatest divisor's digit first.
    lanes.sort_by_key(|l| -l.0);
    let lanes: Vec<String> = lanes.into_iter().map(|l| l.1).collect();
    s.reorder([lanes.clone(), own.clone()].concat())?;
    s.fuse(&lanes, "lane")?;
    s.bind("lane", Axis::ThreadX)?;
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let (last, others) = own.split_last()?;
    s.unroll(others)?;
    s.vectorize(last, None)
}

/// A loop over a tile's rows or columns into one over warps and one over a warp's own: of a constant size as many as there
/// are, if those fill instructions.
fn part(s: &mut Steps<'_>, l: &str, filled: i64, [warp, own]: [&str; 2]) -> Option<()> {
    let at = find_loop(s.m, &s.named(l)).ok()?;
    let extent = loop_at(&s.m.body, &at).extent;
    match s.m.env.pool.as_int(extent) {
        Some(n) if n % filled == 0 => s.split(l, PART, warp, own, Tail::Exact),
        _ => s.full(l, PART, warp, own, false),
    }
}

fn bind_warps(s: &mut Steps<'_>) -> Option<()> {
    s.bind("wi", Axis::ThreadZ)?;
    s.bind("wj", Axis::ThreadY)
}

fn reorder(s: &mut Steps<'_>, order: &[&str]) -> Option<()> {
    s.reorder(order.iter().map(|l| (*l).to_owned()).collect())
}

/// A copy by neighbours of a row: by vectors, where rows of the tensor may begin at multiples of them, and by as many rows at
/// a time as a warp has lanes for.
fn copied(sums: &mut Steps<'_>, copy: &Copy) -> Option<()> {
    let Copy { stage, of, high, wide, along } = copy;
    let of = &sums.m.env.tensors[*of];
    let full = VECTOR / of.ty.bytes() as i64;
    let even = sums.m.env.pool.as_int(of.dims.last()?.extent).is_some_and(|n| n % full == 0);
    let vector = if even { full } else { 1 };
    let (width, apart) = if copy.steps_are_near() { (STEPS, full) } else { (TILE, APART) };
    copy.pitch(sums.m, width + apart)?;
    let across = LANES.min(width / vector);
    let near = LANES / across;
    let mut s = sums.of(stage);
    s.full(high, 4 * near, "ys", "yw", high == along)?;
    s.split("yw", 2 * near, "wz", "y2", Tail::Exact)?;
    s.split("y2", near, "wy", "yl", Tail::Exact)?;
    s.full(wide, across * vector, "xs", "xw", wide == along)?;
    s.split("xw", vector, "xl", "xv", Tail::Exact)?;
    reorder(&mut s, &["wz", "wy", "yl", "xl", "ys", "xs", "xv"])?;
    s.fuse(&["yl".to_owned(), "xl".to_owned()], "lane")?;
    s.bind("wz", Axis::ThreadZ)?;
    s.bind("wy", Axis::ThreadY)?;
    s.bind("lane", Axis::ThreadX)?;
    s.unroll(&["ys", "xs"])?;
    if vector > 1 { s.vectorize("xv", None) } else { Some(()) }
}

/// Loops over the digits of a lane's number, each with its divisor, and loops over a lane's own elements.
type Held = (Vec<(i64, String)>, Vec<String>);

/// Splits a loop over rows or columns as an instruction's lanes and registers hold them.
fn held(s: &mut Steps<'_>, l: &str, digits: &[Digit]) -> Option<Held> {
    let (mut lanes, mut own) = (Vec::new(), Vec::new());
    let mut digits = digits.to_vec();
    digits.sort_by_key(|d| -d.times);
    let first = digits.first()?;
    let (mut rest, repeat) = (format!("{l}t"), format!("{l}r"));
    s.split(l, first.times * first.modulus, &repeat, &rest, Tail::Mask)?;
    own.push(repeat);
    for (n, d) in digits.iter().enumerate() {
        let mut digit = rest.clone();
        if d.times > 1 {
            let (outer, inner) = (format!("{l}{n}"), format!("{l}{n}t"));
            s.split(&rest, d.times, &outer, &inner, Tail::Mask)?;
            (digit, rest) = (outer, inner);
        }
        match d.of {
            Of::Lane => lanes.push((d.divisor, digit)),
            Of::Register => own.push(digit),
        }
    }
    Some((lanes, own))
}
