//! Steps that change loops.

use super::super::{Parsed, Parser};
use super::formula::formula;
use super::words::{arrow, loop_ref, loops, names, positive, same_line_name};
use cora_ir::schedule::{Remap, StepKind, Tail};

/// `split S.i 14 -> io, ii tail(mask)`.
pub(super) fn split(p: &mut Parser) -> Parsed<StepKind> {
    let target = loop_ref(p)?;
    let factor = positive(p)?;
    p.expect("->")?;
    let outer = p.name("the outer loop's name")?.name;
    p.expect(",")?;
    let inner = p.name("the inner loop's name")?.name;
    let mut tail = Tail::Exact;
    if p.eat("tail") {
        p.expect("(")?;
        tail = if p.eat("mask") {
            Tail::Mask
        } else if p.eat("exact") {
            Tail::Exact
        } else if p.eat("peel") {
            Tail::Peel
        } else {
            return p.unexpected("`mask`, `exact` or `peel`");
        };
        p.expect(")")?;
    }
    Ok(StepKind::Split { target, factor, outer, inner, tail })
}

/// `fuse S.b S.i -> f pad 14`.
pub(super) fn fuse(p: &mut Parser) -> Parsed<StepKind> {
    let loops = loops(p)?;
    let name = arrow(p, "the fused loop's name")?;
    let pad = if p.eat("pad") { positive(p)? } else { 1 };
    Ok(StepKind::Fuse { loops, name, pad })
}

/// `reorder S: b h i`.
pub(super) fn reorder(p: &mut Parser) -> Parsed<StepKind> {
    let stage = p.name("a stage")?.name;
    p.expect(":")?;
    Ok(StepKind::Reorder { stage, order: names(p, "a loop")? })
}

/// `tile S: i 14 j 32 -> io jo ii ji`.
pub(super) fn tile(p: &mut Parser) -> Parsed<StepKind> {
    let stage = p.name("a stage")?.name;
    p.expect(":")?;
    let mut loops = Vec::new();
    while !p.eat("->") {
        loops.push((p.name("a loop or `->`")?.name, positive(p)?));
    }
    Ok(StepKind::Tile { stage, loops, names: names(p, "the name of a new loop")? })
}

/// `remap S.b T.b longest_first`: one step a loop.
pub(super) fn remap(p: &mut Parser) -> Parsed<Vec<StepKind>> {
    let mut targets = vec![loop_ref(p)?];
    while same_line_name(p) && p.peek().text.contains('.') {
        targets.push(loop_ref(p)?);
    }
    let policy = if p.eat("longest_first") {
        Remap::LongestFirst
    } else if p.eat("round_robin") {
        Remap::RoundRobin(positive(p)?)
    } else if p.eat("by") {
        Remap::By(formula(p)?)
    } else if p.eat("order") {
        Remap::Order(formula(p)?)
    } else {
        return p.unexpected("`longest_first`, `round_robin`, `by` or `order`");
    };
    Ok(targets.into_iter().map(|target| StepKind::Remap { target, policy: policy.clone() }).collect())
}

/// `op_split S.q at 16 * floordiv(size(q), 16), S.k at 64`.
pub(super) fn op_split(p: &mut Parser) -> Parsed<StepKind> {
    let mut points = Vec::new();
    loop {
        let target = loop_ref(p)?;
        p.expect("at")?;
        points.push((target, formula(p)?));
        if !p.eat(",") {
            return Ok(StepKind::OpSplit { points });
        }
    }
}

/// `hfuse A.i B.i -> f`.
pub(super) fn hfuse(p: &mut Parser) -> Parsed<StepKind> {
    let loops = loops(p)?;
    Ok(StepKind::Hfuse { loops, name: arrow(p, "the new loop's name")? })
}

/// `rfactor S.ko -> Sf`.
pub(super) fn rfactor(p: &mut Parser) -> Parsed<StepKind> {
    let target = loop_ref(p)?;
    Ok(StepKind::Rfactor { target, name: arrow(p, "the new stage's name")? })
}
