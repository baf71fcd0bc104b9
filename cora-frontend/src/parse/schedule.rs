//! Schedules: expands calls of schedule functions, then parses steps.

use super::{Failed, Parsed, Parser};
use crate::ast::{Ident, ItemKind, MAX_DEPTH, Program, Steps};
use crate::lex::{Token, TokenKind};
use crate::names::suggest;
use cora_ir::schedule::{Binding, Formula, LayoutDim, LoopRef, Part, Remap, Schedule, Span, Step, StepKind, Tail};
use cora_ir::{Diagnostic, Env, Scope};

/// Calls of schedule functions may nest this deep.
const MAX_CALLS: u32 = 32;
/// A schedule may have this many steps after expansion.
const MAX_STEPS: usize = 100_000;

/// Every step.
pub(crate) const STEPS: &[&str] = &[
    "split",
    "fuse",
    "reorder",
    "vectorize",
    "unroll",
    "parallel",
    "bind",
    "pad_loop",
    "pad_dim",
    "split_dim",
    "fuse_dims",
    "reorder_dims",
    "compute_at",
    "compute_inline",
    "cache_write",
    "cache_read",
    "set_scope",
    "rfactor",
    "relax",
    "peel",
    "offload",
    "prefetch",
    "double_buffer",
    "storage_align",
    "remap",
    "op_split",
    "hfuse",
    "tile",
];
/// Words inside steps, which are no parameters.
const WORDS: &[&str] = &[
    "by",
    "order",
    "longest_first",
    "round_robin",
    "peel",
    "access",
    "at",
    "tail",
    "mask",
    "exact",
    "layout",
    "global",
    "local",
    "shared",
    "reg",
    "warp",
    "vthread",
    "setup",
    "locality",
    "offset",
];

/// The schedules of `program`; `env` gives tensors' dimension names for `layout(...)`.
pub(crate) fn schedules(program: &Program, env: &Env, diags: &mut Vec<Diagnostic>) -> Vec<Schedule> {
    let mut functions = Vec::new();
    for item in &program.items {
        if let ItemKind::ScheduleFn(name, params, body) = &item.kind {
            check_function(name, params, &functions, diags);
            functions.push(Function { name, params, body });
        }
    }
    let mut out: Vec<Schedule> = Vec::new();
    for item in &program.items {
        let ItemKind::Schedule(name, steps) = &item.kind else { continue };
        if out.iter().any(|s| s.name == name.name) {
            diags.push(
                Diagnostic::new("E0119", format!("there are two schedules called `{}`", name.name)).at(name.span),
            );
            continue;
        }
        let steps = match steps {
            Steps::Parsed(steps) => steps.clone(),
            Steps::Tokens(tokens) => {
                let mut steps = Vec::new();
                let mut cx = Cx { functions: &functions, env, steps: &mut steps, depth: 0, calls: 0, call: None };
                cx.body(tokens.clone(), diags);
                steps
            }
        };
        out.push(Schedule { name: name.name.clone(), steps });
    }
    out
}

/// The steps of some text by themselves.
pub(crate) fn steps_of(text: &str) -> (Vec<Step>, Vec<Diagnostic>) {
    let (mut tokens, mut diags) = crate::lex::lex(text);
    tokens.pop();
    let (env, mut steps) = (Env::default(), Vec::new());
    let mut cx = Cx { functions: &[], env: &env, steps: &mut steps, depth: 0, calls: 0, call: None };
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
            diags.push(Diagnostic::new("E0204", format!("parameter `{}` is declared twice", p.name)).at(p.span));
        }
    }
}

struct Cx<'a> {
    functions: &'a [Function<'a>],
    env: &'a Env,
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
        tokens.push(Token { kind: TokenKind::End, text: String::new(), span: end, first: true });
        let mut p = Parser::new(tokens);
        let endless = |p: &Parser| p.diags.iter().any(|d| d.code == "E0118");
        while !p.at_end() && p.diags.len() < super::MAX_ERRORS && !endless(&p) {
            if p.eat(";") {
                continue;
            }
            let before = p.pos;
            if self.step(&mut p).and_then(|()| p.end_of_statement()).is_err() {
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

    fn call(&mut self, p: &mut Parser, name: &Ident) -> Parsed<()> {
        let Some(f) = self.functions.iter().find(|f| f.name.name == name.name) else {
            let known = STEPS.iter().copied().chain(self.functions.iter().map(|f| f.name.name.as_str()));
            let mut d = Diagnostic::new("E0116", format!("`{}` is not a schedule step", name.name)).at(name.span);
            d = match suggest(&name.name, known) {
                Some(s) => d.hint(format!("did you mean `{s}`?")),
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
                .at(span),
            );
        }
        if self.depth >= MAX_CALLS {
            let d = Diagnostic::new("E0118", format!("calls of schedule functions nest deeper than {MAX_CALLS}"));
            return p.fail(d.at(span).hint("does the function call itself?"));
        }
        self.calls += 1;
        if self.calls > MAX_STEPS || self.steps.len() > MAX_STEPS {
            let d = Diagnostic::new("E0118", format!("a schedule of more than {MAX_STEPS} steps and calls"));
            return p.fail(d.at(span));
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

    fn step(&mut self, p: &mut Parser) -> Parsed<()> {
        let word = p.name("a schedule step")?;
        let mut kinds = Vec::new();
        match word.name.as_str() {
            "split" => kinds.push(split(p)?),
            "fuse" => {
                let loops = loops(p)?;
                p.expect("->")?;
                let name = p.name("the fused loop's name")?.name;
                let pad = if p.eat("pad") { positive(p)? } else { 1 };
                kinds.push(StepKind::Fuse { loops, name, pad });
            }
            "reorder" => {
                let stage = p.name("a stage")?.name;
                p.expect(":")?;
                let mut order = vec![p.name("a loop")?.name];
                while same_line_name(p) {
                    order.push(p.name("a loop")?.name);
                }
                kinds.push(StepKind::Reorder { stage, order });
            }
            "vectorize" => {
                let targets = loops(p)?;
                let width = if p.peek().kind == TokenKind::Int { Some(positive(p)?) } else { None };
                kinds.extend(targets.into_iter().map(|target| StepKind::Vectorize { target, width }));
            }
            "unroll" => kinds.extend(loops(p)?.into_iter().map(|target| StepKind::Unroll { target })),
            "parallel" => kinds.extend(loops(p)?.into_iter().map(|target| StepKind::Parallel { target })),
            "bind" => {
                let target = loop_ref(p)?;
                kinds.push(StepKind::Bind { target, to: binding(p)? });
            }
            "remap" => kinds.extend(remap(p)?),
            "op_split" => kinds.push(op_split(p)?),
            "hfuse" => {
                let loops = loops(p)?;
                p.expect("->")?;
                kinds.push(StepKind::Hfuse { loops, name: p.name("the new loop's name")?.name });
            }
            "tile" => kinds.push(tile(p)?),
            "prefetch" => {
                let (stage, tensor) = stage_and_tensor(p)?;
                p.expect("at")?;
                let (at, distance) = (loop_ref(p)?, positive(p)?);
                let inside = if p.eat("in") { Some(loop_ref(p)?) } else { None };
                let locality = if p.eat("locality") { whole(p)? } else { 3 };
                kinds.push(StepKind::Prefetch { stage, tensor, at, inside, distance, locality });
            }
            "double_buffer" => {
                let mut stages = vec![p.name("a stage")?.name];
                while same_line_name(p) {
                    stages.push(p.name("a stage")?.name);
                }
                kinds.extend(stages.into_iter().map(|stage| StepKind::DoubleBuffer { stage }));
            }
            "storage_align" => {
                let LoopRef { stage: tensor, name: dim } = loop_ref(p)?;
                let multiple = positive(p)?;
                let offset = if p.eat("offset") { whole(p)? } else { 0 };
                kinds.push(StepKind::StorageAlign { tensor, dim, multiple, offset });
            }
            "offload" => kinds.extend(loops(p)?.into_iter().map(|target| StepKind::Offload { target })),
            "peel" => kinds.extend(loops(p)?.into_iter().map(|target| StepKind::Peel { target })),
            "relax" => {
                let targets = loops(p)?;
                let zero = p.eat("zero");
                kinds.extend(targets.into_iter().map(|target| StepKind::Relax { target, zero }));
            }
            "pad_loop" => {
                let targets = loops(p)?;
                let multiple = positive(p)?;
                kinds.extend(targets.into_iter().map(|target| StepKind::PadLoop { target, multiple }));
            }
            "pad_dim" => {
                let LoopRef { stage: tensor, name: dim } = loop_ref(p)?;
                kinds.push(StepKind::PadDim { tensor, dim, multiple: positive(p)? });
            }
            "split_dim" => {
                let LoopRef { stage: tensor, name: dim } = loop_ref(p)?;
                let factor = positive(p)?;
                p.expect("->")?;
                let outer = p.name("the block dimension's name")?.name;
                p.expect(",")?;
                let inner = p.name("the inner dimension's name")?.name;
                kinds.push(StepKind::SplitDim { tensor, dim, factor, outer, inner });
            }
            "fuse_dims" => {
                let (tensor, dims) = dims(p)?;
                p.expect("->")?;
                kinds.push(StepKind::FuseDims { tensor, dims, name: p.name("the fused dimension's name")?.name });
            }
            "reorder_dims" => {
                let (tensor, order) = dims(p)?;
                kinds.push(StepKind::ReorderDims { tensor, order });
            }
            "compute_at" => {
                let mut stages = vec![p.name("a stage")?.name];
                while !p.at("at") {
                    stages.push(p.name("a stage or `at`")?.name);
                }
                p.expect("at")?;
                let at = loop_ref(p)?;
                kinds.extend(stages.into_iter().map(|stage| StepKind::ComputeAt { stage, at: at.clone() }));
            }
            "compute_inline" => {
                let mut stages = vec![p.name("a stage")?.name];
                while same_line_name(p) {
                    stages.push(p.name("a stage")?.name);
                }
                kinds.extend(stages.into_iter().map(|stage| StepKind::ComputeInline { stage }));
            }
            "cache_write" => {
                let stage = p.name("a stage")?.name;
                p.expect("->")?;
                let name = p.name("the new stage's name")?.name;
                let scope = scope(p)?;
                p.expect("at")?;
                let at = loop_ref(p)?;
                kinds.push(StepKind::CacheWrite { stage, name, scope, at });
            }
            "rfactor" => {
                let target = loop_ref(p)?;
                p.expect("->")?;
                kinds.push(StepKind::Rfactor { target, name: p.name("the new stage's name")?.name });
            }
            "set_scope" => {
                let stage = p.name("a stage")?.name;
                kinds.push(StepKind::SetScope { stage, scope: scope(p)? });
            }
            "cache_read" => kinds.push(self.cache_read(p)?),
            _ => return self.call(p, &word),
        }
        let span = self.call.unwrap_or_else(|| p.span_from(word.span));
        self.steps.extend(kinds.into_iter().map(|kind| Step { kind, span }));
        Ok(())
    }

    /// `S.T -> Tl reg at S.i layout(d, k/8, k%8)` or `S.T -> Tl setup layout(..)`; `S:T` where a name has dots.
    fn cache_read(&mut self, p: &mut Parser) -> Parsed<StepKind> {
        let (stage, tensor) = stage_and_tensor(p)?;
        p.expect("->")?;
        let name = p.name("the new stage's name")?.name;
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
            let dims: Option<Vec<String>> = self
                .env
                .tensor_named(&tensor)
                .map(|t| self.env.tensors[t].dims.iter().map(|d| d.name.clone()).collect());
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
}

/// A reading stage and what it reads: `S.T`, or `S:T` where the tensor's name has dots.
fn stage_and_tensor(p: &mut Parser) -> Parsed<(String, String)> {
    if p.peek_at(1).text == ":" {
        let stage = p.name("a stage")?.name;
        p.expect(":")?;
        return Ok((stage, p.name("a tensor")?.name));
    }
    let r = loop_ref(p)?;
    Ok((r.stage, r.name))
}

/// A number that may be 0.
fn whole(p: &mut Parser) -> Parsed<i64> {
    if p.eat("0") { Ok(0) } else { positive(p) }
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

/// `T: b i d`
fn dims(p: &mut Parser) -> Parsed<(String, Vec<String>)> {
    let tensor = p.name("a tensor")?.name;
    p.expect(":")?;
    let mut dims = vec![p.name("a dimension")?.name];
    while same_line_name(p) {
        dims.push(p.name("a dimension")?.name);
    }
    Ok((tensor, dims))
}

/// `remap S.b T.b longest_first`: one step a loop.
fn remap(p: &mut Parser) -> Parsed<Vec<StepKind>> {
    let mut targets = vec![loop_ref(p)?];
    let policies = ["longest_first", "round_robin", "by", "order"];
    while same_line_name(p) && !policies.iter().any(|w| p.at(w)) {
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
fn op_split(p: &mut Parser) -> Parsed<StepKind> {
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

/// `tile S: i 14 j 32 -> io jo ii ji`.
fn tile(p: &mut Parser) -> Parsed<StepKind> {
    let stage = p.name("a stage")?.name;
    p.expect(":")?;
    let mut loops = Vec::new();
    while !p.eat("->") {
        loops.push((p.name("a loop or `->`")?.name, positive(p)?));
    }
    let mut names = vec![p.name("the name of a new loop")?.name];
    while same_line_name(p) {
        names.push(p.name("the name of a new loop")?.name);
    }
    Ok(StepKind::Tile { stage, loops, names })
}

/// Sums of products of loops, parameters and calls.
fn formula(p: &mut Parser) -> Parsed<Formula> {
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
            Err(_) => p.fail(Diagnostic::new("E0121", format!("`{}` is too great a number", t.text)).at(t.span)),
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

fn split(p: &mut Parser) -> Parsed<StepKind> {
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

fn scope(p: &mut Parser) -> Parsed<Scope> {
    for s in Scope::ALL {
        if p.eat(s.name()) {
            return Ok(s);
        }
    }
    if p.at("at") { Ok(Scope::Local) } else { p.unexpected("`local`, `shared`, `reg`, `global` or `at`") }
}

fn binding(p: &mut Parser) -> Parsed<Binding> {
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

fn positive(p: &mut Parser) -> Parsed<i64> {
    let t = p.peek().clone();
    if t.kind != TokenKind::Int {
        return p.unexpected("a number");
    }
    p.advance();
    match t.text.parse::<i64>() {
        Ok(n) if n > 0 => Ok(n),
        _ => p.fail(Diagnostic::new("E0121", format!("`{}` is not a positive number", t.text)).at(t.span)),
    }
}

fn same_line_name(p: &Parser) -> bool {
    let t = p.peek();
    t.kind == TokenKind::Name && !t.first
}

fn loops(p: &mut Parser) -> Parsed<Vec<LoopRef>> {
    let mut out = vec![loop_ref(p)?];
    while same_line_name(p) && !p.at("pad") && !p.at("zero") {
        out.push(loop_ref(p)?);
    }
    Ok(out)
}

/// Splits `stage.loop` at the last dot.
pub(crate) fn split_loop(path: &str) -> Option<LoopRef> {
    path.rsplit_once('.').map(|(stage, name)| LoopRef { stage: stage.to_owned(), name: name.to_owned() })
}

fn loop_ref(p: &mut Parser) -> Parsed<LoopRef> {
    let id = p.name("a loop `stage.loop`")?;
    match split_loop(&id.name) {
        Some(r) => Ok(r),
        None => p.fail(
            Diagnostic::new("E0122", format!("`{}` does not name a loop", id.name))
                .at(id.span)
                .hint(format!("write the stage before it: `stage.{}`", id.name)),
        ),
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

    fn steps(text: &str) -> (Vec<StepKind>, Vec<Diagnostic>) {
        let (program, mut diags) = parse_ast(text);
        let s = schedules(&program, &Env::default(), &mut diags);
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
