//! A tile by 128 threads, 4 x 8 elements each.
//!
//! Where rows of the tile end elsewhere, a thread's rows are among 16 neighbours, and 16 steps are unrolled: only the last of
//! these have conditions.

use super::{Copy, STEPS};
use crate::default_schedule::steps::Steps;
use cora_ir::loops::Axis;
use cora_ir::schedule::Tail;

/// Threads along the rows, and along the columns, of a block.
const HIGH: i64 = 16;
const WIDE: i64 = 8;
/// Neighbouring elements that one thread copies or computes.
const VECTOR: i64 = 4;
/// Of the threads along the rows, those in a warp.
const NEAR: i64 = 4;

/// Which elements a thread has.
struct Spread {
    /// Whether a thread's rows are neighbours.
    near: bool,
    /// Whether a thread's columns are not: those of neighbouring threads are rows of a copy then, which fall into different
    /// banks.
    apart: bool,
}

/// Spreads the sums of a tile, its copies, and the stage that they leave it to, over the threads of a block; `near` where rows
/// end elsewhere.
pub(super) fn by_threads(sums: &mut Steps<'_>, result: &str, copies: &[Copy; 2], near: bool) -> Option<()> {
    let spread = Spread { near, apart: copies[1].steps_are_near() };
    spread.warps(sums, Tail::Exact)?;
    for l in ["ki", if near { "rs" } else { "ri" }, "ci"] {
        sums.relax(l, false)?;
    }
    for (n, copy) in copies.iter().enumerate() {
        if copy.steps_are_near() {
            // Neighbouring rows fall into different banks: where each thread of eight reads its own row, vectors of them;
            // otherwise, as they are written, eight elements of each.
            let apart = if n == 0 { 2 * VECTOR } else { VECTOR };
            copy.pitch(sums.m, STEPS + apart)?;
        }
    }
    for copy @ Copy { stage, high, wide, along, .. } in copies {
        let mut s = sums.of(stage);
        // Steps beyond the last are zeros.
        s.full(high, HIGH, "ys", "yt", high == along)?;
        s.full(wide, WIDE, "xs", "xt", wide == along)?;
        if near {
            s.split("yt", NEAR, "tz", "ty", Tail::Exact)?;
        }
        if copy.steps_are_near() && !near {
            // Whether there is a step is decided once for all of a thread's rows.
            s.reorder(["yt", "xt", "xs", "ys"].map(str::to_owned).to_vec())?;
        }
        spread.bind_threads(&mut s, if near { "ty" } else { "yt" }, "xt")?;
    }
    // Rows of a thread that end elsewhere end in the same iteration.
    let at_once = if near { HIGH } else { VECTOR };
    sums.full("ki", at_once, "kq", "kv", false)?;
    spread.elements_to_threads(sums, Tail::Exact)?;
    let elements = spread.elements();
    spread.threads_between(sums, &["kq"], &[&["kv"], elements].concat())?;
    spread.bind_threads(sums, "ty", "tx")?;
    sums.unroll(&[&["kv"], elements].concat())?;
    let mut s = sums.of(result);
    spread.warps(&mut s, Tail::Mask)?;
    spread.elements_to_threads(&mut s, Tail::Mask)?;
    spread.threads_between(&mut s, &[], elements)?;
    spread.bind_threads(&mut s, "ty", "tx")?;
    s.unroll(elements)
}

impl Spread {
    fn bind_threads(&self, s: &mut Steps<'_>, y: &str, x: &str) -> Option<()> {
        if self.near {
            s.bind("tz", Axis::ThreadZ)?;
        }
        s.bind(y, Axis::ThreadY)?;
        s.bind(x, Axis::ThreadX)
    }

    /// Where a thread's rows are neighbours, a tile's rows over warps: one without rows does nothing.
    fn warps(&self, s: &mut Steps<'_>, tail: Tail) -> Option<()> {
        if self.near { s.part("ri", HIGH, "tz", "rs", tail) } else { Some(()) }
    }

    /// The loops over a thread's elements.
    fn elements(&self) -> &'static [&'static str] {
        if self.apart { &["rr", "cc"] } else { &["rr", "cc", "cv"] }
    }

    /// A tile's rows and columns over the threads: every sixteenth row, or every fourth of a warp's sixteen neighbours, and
    /// of each 32 columns four neighbours, or every eighth column.
    fn elements_to_threads(&self, s: &mut Steps<'_>, tail: Tail) -> Option<()> {
        if self.near {
            s.part("rs", NEAR, "rr", "ty", tail)?;
        } else {
            s.part("ri", HIGH, "rr", "ty", tail)?;
        }
        if self.apart {
            return s.part("ci", WIDE, "cc", "tx", tail);
        }
        s.part("ci", WIDE * VECTOR, "cc", "cr", tail)?;
        s.split("cr", VECTOR, "tx", "cv", Tail::Exact)
    }

    /// The loops over threads inside the loops `outer`, and outside the loops `inner`.
    fn threads_between(&self, s: &mut Steps<'_>, outer: &[&str], inner: &[&str]) -> Option<()> {
        let threads: &[&str] = if self.near { &["tz", "ty", "tx"] } else { &["ty", "tx"] };
        s.reorder([outer, threads, inner].concat().into_iter().map(str::to_owned).collect())
    }
}
