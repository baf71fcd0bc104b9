//! Steps that say where stages are computed and what is copied.

use super::super::{Parsed, Parser};
use super::words::{arrow, loop_ref, names, positive, scope, stage_and_tensor};
use crate::lex::TokenKind;
use cora_ir::Scope;
use cora_ir::schedule::{CopyAt, DimRef, LayoutDim, PackDim, Part, StepKind};

/// `compute_at P Q at S.i`.
pub(super) fn compute_at(p: &mut Parser) -> Parsed<Vec<StepKind>> {
    let mut stages = vec![p.name("a stage")?.name];
    while !p.at("at") {
        stages.push(p.name("a stage or `at`")?.name);
    }
    p.expect("at")?;
    let at = loop_ref(p)?;
    Ok(stages.into_iter().map(|stage| StepKind::ComputeAt { stage, at: at.clone() }).collect())
}

/// `compute_inline P Q`.
pub(super) fn compute_inline(p: &mut Parser) -> Parsed<Vec<StepKind>> {
    Ok(names(p, "a stage")?.into_iter().map(|stage| StepKind::ComputeInline { stage }).collect())
}

/// `precompute S.X -> F`; `S:X` where a name has dots.
pub(super) fn precompute(p: &mut Parser) -> Parsed<StepKind> {
    let (stage, tensor) = stage_and_tensor(p)?;
    Ok(StepKind::Precompute { stage, tensor, name: arrow(p, "the new stage's name")? })
}

/// `set_scope P reg`.
pub(super) fn set_scope(p: &mut Parser) -> Parsed<StepKind> {
    let stage = p.name("a stage")?.name;
    Ok(StepKind::SetScope { stage, scope: scope(p)? })
}

/// `cache_write S -> Sr reg at S.ko`.
pub(super) fn cache_write(p: &mut Parser) -> Parsed<StepKind> {
    let stage = p.name("a stage")?.name;
    let name = arrow(p, "the new stage's name")?;
    let scope = scope(p)?;
    p.expect("at")?;
    Ok(StepKind::CacheWrite { stage, name, scope, at: loop_ref(p)? })
}

/// `S.T -> Tl reg at S.i layout(d, k/8, k%8)` or `S.T -> Tl setup layout(..)`, also `before`; `S:T` where a
/// name has dots.
pub(super) fn cache_read(p: &mut Parser) -> Parsed<StepKind> {
    let (stage, tensor) = stage_and_tensor(p)?;
    let name = arrow(p, "the new stage's name")?;
    let (scope, at) = place(p)?;
    let mut layout = Vec::new();
    if p.eat("layout") {
        p.expect("(")?;
        layout = p.list(")", &mut layout_entry)?;
    }
    Ok(StepKind::CacheRead { stage, tensor, name, scope, at, layout, access: access(p)? })
}

/// `S.W -> Wp setup tiles(k, n 32)` or `S.T -> Tp local at S.i tiles(i 14, k)`.
pub(super) fn pack(p: &mut Parser) -> Parsed<StepKind> {
    let (stage, tensor) = stage_and_tensor(p)?;
    let name = arrow(p, "the new stage's name")?;
    let (scope, at) = place(p)?;
    p.expect("tiles")?;
    p.expect("(")?;
    let tiles = p.list(")", &mut |p| {
        let dim = dimension(p)?;
        let size = if p.peek().kind == TokenKind::Int { Some(positive(p)?) } else { None };
        Ok(PackDim { dim, size })
    })?;
    Ok(StepKind::Pack { stage, tensor, name, scope, at, tiles, access: access(p)? })
}

/// `setup`, `before`, or a scope and the loop at which something is copied.
fn place(p: &mut Parser) -> Parsed<(Scope, CopyAt)> {
    if p.eat("setup") {
        return Ok((Scope::Global, CopyAt::Setup));
    }
    if p.eat("before") {
        return Ok((Scope::Global, CopyAt::Before));
    }
    let scope = scope(p)?;
    p.expect("at")?;
    Ok((scope, CopyAt::Loop(loop_ref(p)?)))
}

/// `access(1)`, or nothing.
fn access(p: &mut Parser) -> Parsed<Option<usize>> {
    if !p.eat("access") {
        return Ok(None);
    }
    p.expect("(")?;
    let t = p.advance();
    let Ok(n) = t.text.parse() else { return p.unexpected("the position of a read, counted from 0") };
    p.expect(")")?;
    Ok(Some(n))
}

fn layout_entry(p: &mut Parser) -> Parsed<LayoutDim> {
    let dim = dimension(p)?;
    let part = if p.eat("/") {
        Part::Div(positive(p)?)
    } else if p.eat("%") {
        Part::Mod(positive(p)?)
    } else {
        Part::Whole
    };
    Ok(LayoutDim { dim, part })
}

/// A dimension of a tensor by its name, or by its position.
fn dimension(p: &mut Parser) -> Parsed<DimRef> {
    let t = p.advance();
    match t.kind {
        TokenKind::Int if let Ok(position) = t.text.parse() => Ok(DimRef::At(position)),
        TokenKind::Name => Ok(DimRef::Named(t.text)),
        _ => p.unexpected("a dimension's name or position"),
    }
}
