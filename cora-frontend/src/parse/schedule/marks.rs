//! Steps that say how loops and buffers run.

use super::super::{Parsed, Parser};
use super::formula::formula;
use super::words::{binding, intrinsic, loop_ref, loops, names, positive, stage_and_tensor, whole};
use crate::lex::TokenKind;
use cora_ir::schedule::{LoopRef, StepKind};

/// One step for each of the loops that follow.
pub(super) fn each_loop(p: &mut Parser, step: impl Fn(LoopRef) -> StepKind) -> Parsed<Vec<StepKind>> {
    Ok(loops(p)?.into_iter().map(step).collect())
}

/// `vectorize S.i T.j 16`.
pub(super) fn vectorize(p: &mut Parser) -> Parsed<Vec<StepKind>> {
    let targets = loops(p)?;
    let width = if p.peek().kind == TokenKind::Int { Some(positive(p)?) } else { None };
    Ok(targets.into_iter().map(|target| StepKind::Vectorize { target, width }).collect())
}

/// `bind S.i block.x atomic`.
pub(super) fn bind(p: &mut Parser) -> Parsed<StepKind> {
    let target = loop_ref(p)?;
    let to = binding(p)?;
    Ok(StepKind::Bind { target, to, atomic: p.eat("atomic") })
}

/// `tensorize S.i mma.m16n8k16.f32.bf16`.
pub(super) fn tensorize(p: &mut Parser) -> Parsed<StepKind> {
    let target = loop_ref(p)?;
    Ok(StepKind::Tensorize { target, intrinsic: intrinsic(p)? })
}

/// `peel S.io few 3`.
pub(super) fn peel(p: &mut Parser) -> Parsed<Vec<StepKind>> {
    let targets = loops(p)?;
    let few = if p.eat("few") { Some(positive(p)?) } else { None };
    Ok(targets.into_iter().map(|target| StepKind::Peel { target, few }).collect())
}

/// `relax S.i zero`.
pub(super) fn relax(p: &mut Parser) -> Parsed<Vec<StepKind>> {
    let targets = loops(p)?;
    let zero = p.eat("zero");
    Ok(targets.into_iter().map(|target| StepKind::Relax { target, zero }).collect())
}

/// `hoist_loads S.i S.j off`.
pub(super) fn hoist_loads(p: &mut Parser) -> Parsed<Vec<StepKind>> {
    let targets = loops(p)?;
    let on = p.eat("on") || !p.eat("off");
    Ok(targets.into_iter().map(|target| StepKind::HoistLoads { target, on }).collect())
}

/// `pad_loop S.i 2`, `pad_loop S.k to 8 * floordiv(i, 8) + 8`.
pub(super) fn pad_loop(p: &mut Parser) -> Parsed<Vec<StepKind>> {
    let targets = loops(p)?;
    if p.eat("to") {
        let extent = formula(p)?;
        return Ok(targets.into_iter().map(|target| StepKind::PadLoopTo { target, extent: extent.clone() }).collect());
    }
    let multiple = positive(p)?;
    Ok(targets.into_iter().map(|target| StepKind::PadLoop { target, multiple }).collect())
}

/// `prefetch S.A at S.n 1 in S.k locality 2`.
pub(super) fn prefetch(p: &mut Parser) -> Parsed<StepKind> {
    let (stage, tensor) = stage_and_tensor(p)?;
    p.expect("at")?;
    let (at, distance) = (loop_ref(p)?, positive(p)?);
    let inside = if p.eat("in") { Some(loop_ref(p)?) } else { None };
    let locality = if p.eat("locality") { whole(p)? } else { 3 };
    Ok(StepKind::Prefetch { stage, tensor, at, inside, distance, locality })
}

/// `double_buffer Al Bl 3`.
pub(super) fn double_buffer(p: &mut Parser) -> Parsed<Vec<StepKind>> {
    let stages = names(p, "a stage")?;
    let slots = if p.peek().kind == TokenKind::Int { positive(p)? } else { 2 };
    Ok(stages.into_iter().map(|stage| StepKind::DoubleBuffer { stage, slots }).collect())
}
