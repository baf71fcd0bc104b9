//! Schedules: expands calls of schedule functions, then parses steps (`step`, by kinds).

mod formula;
mod loops;
mod marks;
mod stages;
mod step;
mod tensors;
mod words;

pub(crate) use step::STEPS;
pub(crate) use words::split_loop;

use super::{Failed, Parsed, Parser};
use crate::ast::{Ident, ItemKind, Program, Steps};
use crate::lex::{Token, TokenKind};
use crate::names::suggest;
use crate::print::print_step;
use cora_ir::Diagnostic;
use cora_ir::schedule::{Schedule, Span, Step, StepKind};
use step::WORDS;

/// Calls of schedule functions may nest this deep.
const MAX_CALLS: u32 = 32;
/// A schedule may have this many steps after expansion.
const MAX_STEPS: usize = 100_000;

/// The schedules of `program`.
pub(crate) fn schedules(program: &Program, diags: &mut Vec<Diagnostic>) -> Vec<Schedule> {
    let mut functions = Vec::new();
    for item in &program.items {
        if let ItemKind::ScheduleFn(name, params, body) = &item.kind {
            check_function(name, params, &functions, diags);
            functions.push(Function { name, params, body });
        }
    }
    let mut out: Vec<Schedule> = Vec::new();
    for item in &program.items {
        let ItemKind::Schedule(name, features, steps) = &item.kind else { continue };
        if out.iter().any(|s| s.name == name.name) {
            diags.push(
                Diagnostic::new("E0119", format!("there are two schedules called `{}`", name.name))
                    .at(name.span)
                    .hint("give one of them another name"),
            );
            continue;
        }
        let steps = match steps {
            Steps::Parsed(steps) => steps.clone(),
            Steps::Tokens(tokens) => {
                let mut steps = Vec::new();
                let mut cx = Cx { functions: &functions, steps: &mut steps, depth: 0, calls: 0, call: None };
                cx.body(tokens.clone(), diags);
                steps
            }
        };
        let features = features.iter().map(|f| f.name.clone()).collect();
        out.push(Schedule { name: name.name.clone(), features, steps });
    }
    out
}

/// The steps of some text by themselves.
pub(crate) fn steps_of(text: &str) -> (Vec<Step>, Vec<Diagnostic>) {
    let (mut tokens, mut diags) = crate::lex::lex(text);
    tokens.pop();
    let mut steps = Vec::new();
    let mut cx = Cx { functions: &[], steps: &mut steps, depth: 0, calls: 0, call: None };
    cx.body(tokens, &mut diags);
    (steps, diags)
}

struct Function<'a> {
    name: &'a Ident,
    params: &'a [Ident],
    body: &'a [Token],
}

fn check_function(name: &Ident, params: &[Ident], earlier: &[Function], diags: &mut Vec<Diagnostic>) {
    if STEPS.contains(&name.name.as_str()) || earlier.iter().any(|f| f.name.name == name.name) {
        let d = Diagnostic::new("E0119", format!("`{}` is already a schedule step", name.name));
        diags.push(d.at(name.span).hint("choose another name"));
    }
    for (i, p) in params.iter().enumerate() {
        if STEPS.contains(&p.name.as_str()) || WORDS.contains(&p.name.as_str()) {
            let d = Diagnostic::new("E0105", format!("`{}` is a word of schedules and cannot be a parameter", p.name));
            diags.push(d.at(p.span).hint("choose another name"));
        }
        if params[..i].iter().any(|q| q.name == p.name) {
            diags.push(
                Diagnostic::new("E0204", format!("parameter `{}` is declared twice", p.name))
                    .at(p.span)
                    .hint("choose another name"),
            );
        }
    }
}

struct Cx<'a> {
    functions: &'a [Function<'a>],
    steps: &'a mut Vec<Step>,
    depth: u32,
    /// Calls expanded so far.
    calls: usize,
    /// The outermost call being expanded: its steps are reported there.
    call: Option<Span>,
}

impl Cx<'_> {
    fn body(&mut self, mut tokens: Vec<Token>, diags: &mut Vec<Diagnostic>) {
        let end = tokens.last().map_or(Span::default(), |t| Span { start: t.span.end, end: t.span.end });
        tokens.push(Token { kind: TokenKind::End, text: "the schedule".to_owned(), span: end, first: true });
        let mut p = Parser::new(tokens);
        let endless = |p: &Parser| p.diags.iter().any(|d| d.code == "E0118");
        while !p.at_end() && p.diags.len() < super::MAX_ERRORS && !endless(&p) {
            if p.eat(";") {
                continue;
            }
            let (before, errors, word) = (p.pos, p.diags.len(), p.peek().text.clone());
            if self.step(&mut p).and_then(|()| p.end_of_statement()).is_err() {
                let separated = p.at(":") || p.at(",");
                let syntax = p.diags[errors..].last_mut().filter(|d| ["E0103", "E0106", "E0107"].contains(&d.code));
                if let (Some(form), Some(d)) = (step::form(&word), syntax) {
                    d.notes.push(format!("the step is written like `{form}`"));
                    if separated && d.code == "E0106" {
                        d.hint = Some("what a step names is separated by spaces".to_owned());
                    }
                }
                if p.pos == before {
                    p.advance();
                }
                while !p.at_end() && !p.peek().first && !p.at(";") {
                    p.advance();
                }
            }
        }
        diags.append(&mut p.diags);
    }

    fn step(&mut self, p: &mut Parser) -> Parsed<()> {
        let word = p.name("a schedule step")?;
        let Some(kinds) = step::kinds(&word.name, p)? else { return self.call(p, &word) };
        let span = self.call.unwrap_or_else(|| p.span_from(word.span));
        let called = |kind: &StepKind| self.call.map(|_| print_step(kind));
        self.steps.extend(kinds.into_iter().map(|kind| Step { span, called: called(&kind), kind }));
        Ok(())
    }

    fn call(&mut self, p: &mut Parser, name: &Ident) -> Parsed<()> {
        let Some(f) = self.functions.iter().find(|f| f.name.name == name.name) else {
            let known = STEPS.iter().copied().chain(self.functions.iter().map(|f| f.name.name.as_str()));
            let mut d = Diagnostic::new("E0116", format!("`{}` is not a schedule step", name.name)).at(name.span);
            d = match suggest(&name.name, known) {
                Some(s) => d.hint(format!("did you mean `{s}`?")),
                None if p.at("(") => d.hint(format!("define it before: `schedule fn {}(..) {{ .. }}`", name.name)),
                None => d.hint(format!("the steps are {}", STEPS.join(", "))),
            };
            return p.fail(d);
        };
        p.expect("(")?;
        let args = p.list(")", &mut |p| match p.peek().kind {
            TokenKind::Name | TokenKind::Int => Ok(p.advance()),
            _ => p.unexpected("a stage, a loop or a number"),
        })?;
        let span = p.span_from(name.span);
        if args.len() != f.params.len() {
            let (want, got) = (f.params.len(), args.len());
            return p.fail(
                Diagnostic::new(
                    "E0117",
                    format!("schedule function `{}` takes {want} arguments, {got} given", name.name),
                )
                .at(span)
                .hint("give it an argument for each of its parameters"),
            );
        }
        if self.depth >= MAX_CALLS {
            let d = Diagnostic::new("E0118", format!("calls of schedule functions nest deeper than {MAX_CALLS}"));
            return p.fail(d.at(span).hint("does the function call itself?"));
        }
        self.calls += 1;
        if self.calls > MAX_STEPS || self.steps.len() > MAX_STEPS {
            let d = Diagnostic::new("E0118", format!("a schedule of more than {MAX_STEPS} steps and calls"));
            return p.fail(d.at(span).hint("does a schedule function call others more often than it seems?"));
        }
        let body = f.body.iter().map(|t| substitute(t, f.params, &args)).collect();
        let outer = self.call;
        self.call = outer.or(Some(span));
        self.depth += 1;
        let mut diags = Vec::new();
        self.body(body, &mut diags);
        self.depth -= 1;
        self.call = outer;
        let failed = !diags.is_empty();
        p.diags.append(&mut diags);
        if failed { Err(Failed) } else { Ok(()) }
    }
}

/// `t` with each dot-separated part that is a parameter replaced by its argument.
fn substitute(t: &Token, params: &[Ident], args: &[Token]) -> Token {
    let arg = |part: &str| params.iter().position(|p| p.name == part).map(|i| &args[i]);
    if t.kind != TokenKind::Name {
        return t.clone();
    }
    if let Some(a) = arg(&t.text) {
        return Token { kind: a.kind, text: a.text.clone(), span: t.span, first: t.first };
    }
    let parts: Vec<&str> = t.text.split('.').map(|part| arg(part).map_or(part, |a| a.text.as_str())).collect();
    Token { text: parts.join("."), ..t.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse_ast;
    use cora_ir::schedule::{LoopRef, StepKind, Tail};

    fn steps(text: &str) -> (Vec<StepKind>, Vec<Diagnostic>) {
        let (program, mut diags) = parse_ast(text);
        let s = schedules(&program, &mut diags);
        (s.into_iter().flat_map(|s| s.steps).map(|s| s.kind).collect(), diags)
    }

    #[test]
    fn several_loops_give_several_steps() {
        let (s, d) = steps("schedule cpu { unroll A.x P.sum.y; vectorize A.z 16\n parallel A.w }");
        assert!(d.is_empty(), "{d:?}");
        assert_eq!(s.len(), 4);
        let target = LoopRef { stage: "P.sum".into(), name: "y".into() };
        assert_eq!(s[1], StepKind::Unroll { target });
    }

    #[test]
    fn schedule_functions_substitute_stages_loops_and_numbers() {
        let text = "schedule fn tiles(s, l, n) { split s.l n -> lo, li tail(mask); parallel s.lo }
            schedule cpu { tiles(P.sum, k, 8) }";
        let (s, d) = steps(text);
        assert!(d.is_empty(), "{d:?}");
        let loop_ref = |name: &str| LoopRef { stage: "P.sum".into(), name: name.into() };
        let split = StepKind::Split {
            target: loop_ref("k"),
            factor: 8,
            outer: "lo".into(),
            inner: "li".into(),
            tail: Tail::Mask,
        };
        assert_eq!(s, [split, StepKind::Parallel { target: loop_ref("lo") }]);
    }

    #[test]
    fn endless_schedule_functions_are_refused() {
        let (_, d) = steps("schedule fn f(s) { f(s); f(s) }\nschedule cpu { f(A) }");
        assert!(d.iter().any(|d| d.code == "E0118"), "{d:?}");
    }
}
