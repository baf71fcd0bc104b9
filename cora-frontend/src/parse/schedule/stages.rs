//! Steps that say where stages are computed and what is copied.

use super::super::{Parsed, Parser};
use super::words::{arrow, loop_ref, names, positive, scope, stage_and_tensor};
use crate::lex::TokenKind;
use cora_ir::schedule::{LayoutDim, Part, StepKind};
use cora_ir::{Diagnostic, Env, Scope};

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

/// `S.T -> Tl reg at S.i layout(d, k/8, k%8)` or `S.T -> Tl setup layout(..)`; `S:T` where a name has dots.
pub(super) fn cache_read(p: &mut Parser, env: &Env) -> Parsed<StepKind> {
    let (stage, tensor) = stage_and_tensor(p)?;
    let name = arrow(p, "the new stage's name")?;
    let (scope, at) = if p.eat("setup") {
        (Scope::Global, None)
    } else {
        let scope = scope(p)?;
        p.expect("at")?;
        (scope, Some(loop_ref(p)?))
    };
    let mut layout = Vec::new();
    if p.eat("layout") {
        p.expect("(")?;
        let dims: Option<Vec<String>> =
            env.tensor_named(&tensor).map(|t| env.tensors[t].dims.iter().map(|d| d.name.clone()).collect());
        layout = p.list(")", &mut |p| layout_entry(p, &tensor, dims.as_deref()))?;
    }
    let mut access = None;
    if p.eat("access") {
        p.expect("(")?;
        let t = p.advance();
        match t.text.parse() {
            Ok(n) => access = Some(n),
            Err(_) => return p.unexpected("the position of a read, counted from 0"),
        }
        p.expect(")")?;
    }
    Ok(StepKind::CacheRead { stage, tensor, name, scope, at, layout, access })
}

fn layout_entry(p: &mut Parser, tensor: &str, dims: Option<&[String]>) -> Parsed<LayoutDim> {
    let t = p.advance();
    let position = match t.kind {
        TokenKind::Int => t.text.parse().ok(),
        TokenKind::Name => dims.and_then(|dims| dims.iter().position(|d| *d == t.text)),
        _ => None,
    };
    if let Some(dim) = position {
        let part = if p.eat("/") {
            Part::Div(positive(p)?)
        } else if p.eat("%") {
            Part::Mod(positive(p)?)
        } else {
            Part::Whole
        };
        return Ok(LayoutDim { dim, part });
    }
    let d = Diagnostic::new("E0120", format!("`{}` is not a dimension of `{tensor}`", t.text)).at(t.span);
    p.fail(match dims {
        Some(dims) => d.hint(format!("its dimensions are {}", dims.join(", "))),
        None => d.hint("its dimensions are not known here: give positions, counted from 0"),
    })
}
