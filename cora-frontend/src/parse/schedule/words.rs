//! What steps are written with: loops, tensors, numbers, scopes.

use super::super::{Parsed, Parser};
use super::step::STEPS;
use crate::lex::TokenKind;
use cora_ir::schedule::{Binding, LoopRef};
use cora_ir::{Diagnostic, IntrinsicId, Scope};

/// Splits `stage.loop` at the last dot.
pub(crate) fn split_loop(path: &str) -> Option<LoopRef> {
    path.rsplit_once('.').map(|(stage, name)| LoopRef { stage: stage.to_owned(), name: name.to_owned() })
}

pub(super) fn loop_ref(p: &mut Parser) -> Parsed<LoopRef> {
    let begins = p.pos.checked_sub(1).is_none_or(|before| STEPS.contains(&p.tokens[before].text.as_str()));
    let id = p.name("a loop `stage.loop`")?;
    match split_loop(&id.name) {
        Some(r) => Ok(r),
        None => {
            let hint = if STEPS.contains(&id.name.as_str()) && !begins {
                format!("put `;` before `{}`: a step ends with its line", id.name)
            } else {
                format!(
                    "write a loop with its stage: `{0}.i` for a stage `{0}`, `S.{0}` for a loop `{0}` of S",
                    id.name
                )
            };
            p.fail(Diagnostic::new("E0122", format!("`{}` does not name a loop", id.name)).at(id.span).hint(hint))
        }
    }
}

pub(super) fn loops(p: &mut Parser) -> Parsed<Vec<LoopRef>> {
    let mut out = vec![loop_ref(p)?];
    let words = ["pad", "zero", "on", "off", "to", "few"];
    while same_line_name(p) && !words.iter().any(|w| p.at(w)) {
        out.push(loop_ref(p)?);
    }
    Ok(out)
}

/// A reading stage and what it reads: `S.T`, or `S:T` where the tensor's name has dots.
pub(super) fn stage_and_tensor(p: &mut Parser) -> Parsed<(String, String)> {
    if p.peek_at(1).text == ":" {
        let stage = p.name("a stage")?.name;
        p.expect(":")?;
        return Ok((stage, p.name("a tensor")?.name));
    }
    let r = loop_ref(p)?;
    Ok((r.stage, r.name))
}

/// `A B C` up to the end of the line.
pub(super) fn names(p: &mut Parser, what: &str) -> Parsed<Vec<String>> {
    let mut names = vec![p.name(what)?.name];
    while same_line_name(p) {
        names.push(p.name(what)?.name);
    }
    Ok(names)
}

/// `-> a`
pub(super) fn arrow(p: &mut Parser, what: &str) -> Parsed<String> {
    p.expect("->")?;
    Ok(p.name(what)?.name)
}

pub(super) fn same_line_name(p: &Parser) -> bool {
    let t = p.peek();
    t.kind == TokenKind::Name && !t.first
}

pub(super) fn positive(p: &mut Parser) -> Parsed<i64> {
    let t = p.peek().clone();
    if t.kind != TokenKind::Int {
        return p.unexpected("a number");
    }
    p.advance();
    match t.text.parse::<i64>() {
        Ok(n) if n > 0 => Ok(n),
        n => {
            let what = if n.is_ok() { "is not a positive number" } else { "is too great a number" };
            let d = Diagnostic::new("E0121", format!("`{}` {what}", t.text)).at(t.span);
            p.fail(d.hint("write an integer from 1 to 9223372036854775807"))
        }
    }
}

/// A number that may be 0.
pub(super) fn whole(p: &mut Parser) -> Parsed<i64> {
    let t = p.peek();
    if t.kind == TokenKind::Int && t.text.parse() == Ok(0) {
        p.advance();
        return Ok(0);
    }
    positive(p)
}

pub(super) fn scope(p: &mut Parser) -> Parsed<Scope> {
    for s in Scope::ALL {
        if p.eat(s.name()) {
            return Ok(s);
        }
    }
    if p.at("at") { Ok(Scope::Local) } else { p.unexpected("`local`, `shared`, `reg`, `global` or `at`") }
}

pub(super) fn binding(p: &mut Parser) -> Parsed<Binding> {
    let t = p.peek().clone();
    match Binding::ALL.into_iter().find(|b| b.name() == t.text) {
        Some(b) => {
            p.advance();
            Ok(b)
        }
        None => {
            let names = Binding::ALL.map(Binding::name).join("`, `");
            p.unexpected(&format!("`{names}`"))
        }
    }
}

pub(super) fn intrinsic(p: &mut Parser) -> Parsed<IntrinsicId> {
    match IntrinsicId::named(&p.peek().text) {
        Some(i) => {
            p.advance();
            Ok(i)
        }
        None => p.unexpected(&format!("an intrinsic: {}", cora_ir::intrinsic::names())),
    }
}
