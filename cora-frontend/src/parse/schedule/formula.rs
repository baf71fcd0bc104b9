//! Formulas of `remap`, `op_split` and `pad_loop`.

use super::super::{Parsed, Parser};
use crate::ast::MAX_DEPTH;
use crate::lex::TokenKind;
use cora_ir::Diagnostic;
use cora_ir::schedule::Formula;

/// Sums of products of loops, parameters and calls.
pub(super) fn formula(p: &mut Parser) -> Parsed<Formula> {
    Ok(sum(p)?.0)
}

/// A formula and how deep it is: what walks it later recurses.
type Measured = (Formula, u32);

fn combined(p: &mut Parser, op: char, a: Measured, b: Measured) -> Parsed<Measured> {
    let depth = a.1.max(b.1) + 1;
    if depth > MAX_DEPTH {
        let d = Diagnostic::new("E0113", format!("formula nested deeper than {MAX_DEPTH} levels"));
        let d = d.at(p.peek().span).hint("each operator is a level; write a formula of fewer terms");
        return p.fail(d);
    }
    Ok((Formula::Bin(op, Box::new(a.0), Box::new(b.0)), depth))
}

fn sum(p: &mut Parser) -> Parsed<Measured> {
    let mut sum = product(p)?;
    loop {
        let op = match p.peek().text.as_str() {
            "+" => '+',
            "-" => '-',
            _ => return Ok(sum),
        };
        p.advance();
        let next = product(p)?;
        sum = combined(p, op, sum, next)?;
    }
}

fn product(p: &mut Parser) -> Parsed<Measured> {
    let mut product = factor(p)?;
    while p.eat("*") {
        let next = factor(p)?;
        product = combined(p, '*', product, next)?;
    }
    if ["/", "%"].contains(&p.peek().text.as_str()) {
        let d = Diagnostic::new("E0106", format!("expected the end of the formula, found `{}`", p.peek().text));
        let hint = if p.at("%") {
            "write `a - b * floordiv(a, b)`, by a positive constant b"
        } else {
            "write `floordiv(a, b)`, rounded down, or `ceildiv(a, b)`"
        };
        return p.fail(d.at(p.peek().span).hint(hint));
    }
    Ok(product)
}

fn factor(p: &mut Parser) -> Parsed<Measured> {
    let t = p.peek().clone();
    if p.eat("(") {
        let inside = p.nested(sum)?;
        p.expect(")")?;
        return Ok(inside);
    }
    if p.eat("-") {
        return match p.nested(factor)? {
            (Formula::Int(n), depth) => Ok((Formula::Int(-n), depth)),
            f => combined(p, '*', (Formula::Int(-1), 0), f),
        };
    }
    if t.kind == TokenKind::Int {
        p.advance();
        return match t.text.parse() {
            Ok(n) => Ok((Formula::Int(n), 0)),
            Err(_) => p.fail(
                Diagnostic::new("E0121", format!("`{}` is too great a number", t.text))
                    .at(t.span)
                    .hint("numbers of schedules have 64 bits"),
            ),
        };
    }
    let name = p.name("a loop, a parameter, a function or a number")?.name;
    if p.eat("(") {
        let args = p.list(")", &mut |p| p.nested(sum))?;
        let depth = args.iter().map(|a| a.1 + 1).max().unwrap_or(0);
        return Ok((Formula::Call(name, args.into_iter().map(|a| a.0).collect()), depth));
    }
    Ok((Formula::Name(name), 0))
}
