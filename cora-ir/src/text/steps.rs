//! Scheduling steps in the text of the op graph: printer and parser.

use super::lex::Tok;
use super::names::quote;
use super::parse::{MAX_DEPTH, Parse, Parser, display, out_of_range, too_deep};
use crate::diag::Diagnostic;
use crate::env::Scope;
use crate::intrinsic::IntrinsicId;
use crate::schedule::{Binding, CopyAt, DimRef, Formula, LayoutDim, LoopRef, PackDim, Part, Remap, StepKind, Tail};

const SCOPES: [(&str, Scope); 4] =
    [("global", Scope::Global), ("local", Scope::Local), ("shared", Scope::Shared), ("reg", Scope::Reg)];
const TAILS: [(&str, Tail); 3] = [("exact", Tail::Exact), ("mask", Tail::Mask), ("peel", Tail::Peel)];

fn loop_ref(l: &LoopRef) -> String {
    format!("@{}[{}]", quote(&l.stage), quote(&l.name))
}

fn place(scope: Scope, at: &CopyAt) -> String {
    match at {
        CopyAt::Loop(at) => format!("{} at {}", scope.name(), loop_ref(at)),
        CopyAt::Setup => "setup".to_owned(),
        CopyAt::Before => "before".to_owned(),
    }
}

fn dim_ref(d: &DimRef) -> String {
    match d {
        DimRef::At(position) => position.to_string(),
        DimRef::Named(name) => quote(name),
    }
}

/// A mark that is set or not.
pub(super) fn switch(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn tail_name(tail: Tail) -> &'static str {
    TAILS.iter().find(|(_, t)| *t == tail).map_or("exact", |(n, _)| n)
}

fn bare(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|n| quote(n)).collect();
    names.join(", ")
}

/// The canonical text of one scheduling step: a loop is `@stage[loop]`.
pub fn print_step(step: &StepKind) -> String {
    match step {
        StepKind::Split { target, factor, outer, inner, tail } => {
            let (outer, inner) = (quote(outer), quote(inner));
            format!("split {} {factor} -> {outer}, {inner} tail({})", loop_ref(target), tail_name(*tail))
        }
        StepKind::Fuse { loops, name, pad } => {
            let loops: String = loops.iter().map(|l| format!(" {}", loop_ref(l))).collect();
            let pad = if *pad == 1 { String::new() } else { format!(" pad {pad}") };
            format!("fuse{loops} -> {}{pad}", quote(name))
        }
        StepKind::Reorder { stage, order } => format!("reorder @{}[{}]", quote(stage), bare(order)),
        StepKind::Vectorize { target, width } => {
            format!("vectorize {}{}", loop_ref(target), width.map_or(String::new(), |w| format!(" {w}")))
        }
        StepKind::Rfactor { target, name } => format!("rfactor {} -> @{}", loop_ref(target), quote(name)),
        StepKind::Unroll { target } => format!("unroll {}", loop_ref(target)),
        StepKind::Parallel { target } => format!("parallel {}", loop_ref(target)),
        StepKind::Bind { target, to, atomic } => {
            format!("bind {} {}{}", loop_ref(target), to.name(), if *atomic { " atomic" } else { "" })
        }
        StepKind::PadLoop { target, multiple } => format!("pad_loop {} {multiple}", loop_ref(target)),
        StepKind::PadLoopTo { target, extent } => format!("pad_loop {} to {}", loop_ref(target), formula(extent)),
        StepKind::PadDim { tensor, dim, multiple } => {
            format!("pad_dim @{}[{}] {multiple}", quote(tensor), quote(dim))
        }
        StepKind::SplitDim { tensor, dim, factor, outer, inner } => {
            format!("split_dim @{}[{}] {factor} -> {}, {}", quote(tensor), quote(dim), quote(outer), quote(inner))
        }
        StepKind::FuseDims { tensor, dims, name } => {
            format!("fuse_dims @{}[{}] -> {}", quote(tensor), bare(dims), quote(name))
        }
        StepKind::ReorderDims { tensor, order } => format!("reorder_dims @{}[{}]", quote(tensor), bare(order)),
        StepKind::ComputeAt { stage, at } => format!("compute_at @{} at {}", quote(stage), loop_ref(at)),
        StepKind::ComputeInline { stage } => format!("compute_inline @{}", quote(stage)),
        StepKind::Precompute { stage, tensor, name } => {
            format!("precompute @{} @{} -> @{}", quote(stage), quote(tensor), quote(name))
        }
        StepKind::CacheWrite { stage, name, scope, at } => {
            format!("cache_write @{} -> @{} {} at {}", quote(stage), quote(name), scope.name(), loop_ref(at))
        }
        StepKind::CacheRead { stage, tensor, name, scope, at, layout, access } => {
            let access = access.map_or(String::new(), |n| format!(" access({n})"));
            let (stage, tensor, name) = (quote(stage), quote(tensor), quote(name));
            let order: Vec<String> = layout.iter().map(|d| format!("{}{}", dim_ref(&d.dim), d.suffix())).collect();
            let layout = if layout.is_empty() { String::new() } else { format!(" layout({})", order.join(", ")) };
            let place = place(*scope, at);
            format!("cache_read @{stage} @{tensor} -> @{name} {place}{layout}{access}")
        }
        StepKind::Pack { stage, tensor, name, scope, at, tiles, access } => {
            let access = access.map_or(String::new(), |n| format!(" access({n})"));
            let (stage, tensor, name) = (quote(stage), quote(tensor), quote(name));
            let place = place(*scope, at);
            let size = |t: &PackDim| t.size.map_or(String::new(), |n| format!(" {n}"));
            let tiles: Vec<String> = tiles.iter().map(|t| format!("{}{}", dim_ref(&t.dim), size(t))).collect();
            format!("pack @{stage} @{tensor} -> @{name} {place} tiles({}){access}", tiles.join(", "))
        }
        StepKind::HoistLoads { target, on } => format!("hoist_loads {} {}", loop_ref(target), switch(*on)),
        StepKind::Relax { target, zero } => {
            format!("relax {}{}", loop_ref(target), if *zero { " zero" } else { "" })
        }
        StepKind::Remap { target, policy } => {
            let policy = match policy {
                Remap::LongestFirst => "longest_first".to_owned(),
                Remap::RoundRobin(n) => format!("round_robin {n}"),
                Remap::By(key) => format!("by {}", formula(key)),
                Remap::Order(at) => format!("order {}", formula(at)),
            };
            format!("remap {} {policy}", loop_ref(target))
        }
        StepKind::OpSplit { points } => {
            let points: Vec<String> =
                points.iter().map(|(l, at)| format!("{} at {}", loop_ref(l), formula(at))).collect();
            format!("op_split {}", points.join(", "))
        }
        StepKind::Hfuse { loops, name } => {
            let loops: String = loops.iter().map(|l| format!(" {}", loop_ref(l))).collect();
            format!("hfuse{loops} -> {}", quote(name))
        }
        StepKind::Tile { stage, loops, names } => {
            let loops: Vec<String> = loops.iter().map(|(l, n)| format!("{} {n}", quote(l))).collect();
            let names: Vec<String> = names.iter().map(|n| quote(n)).collect();
            format!("tile @{}[{}] -> {}", quote(stage), loops.join(", "), names.join(", "))
        }
        StepKind::Tensorize { target, intrinsic } => format!("tensorize {} {}", loop_ref(target), intrinsic.get().name),
        StepKind::Offload { target } => format!("offload {}", loop_ref(target)),
        StepKind::BulkCopy { target } => format!("bulk_copy {}", loop_ref(target)),
        StepKind::Swizzle { tensor } => format!("swizzle @{}", quote(tensor)),
        StepKind::Prefetch { stage, tensor, at, inside, distance, locality } => {
            let (stage, tensor) = (quote(stage), quote(tensor));
            let inside = inside.as_ref().map(|l| format!(" in {}", loop_ref(l))).unwrap_or_default();
            format!("prefetch @{stage} @{tensor} at {} {distance}{inside} locality {locality}", loop_ref(at))
        }
        StepKind::DoubleBuffer { stage, slots: 2 } => format!("double_buffer @{}", quote(stage)),
        StepKind::DoubleBuffer { stage, slots } => format!("double_buffer @{} {slots}", quote(stage)),
        StepKind::StorageAlign { tensor, dim, multiple, offset } => {
            format!("storage_align @{}[{}] {multiple} offset {offset}", quote(tensor), quote(dim))
        }
        StepKind::Peel { target, few: None } => format!("peel {}", loop_ref(target)),
        StepKind::Peel { target, few: Some(n) } => format!("peel {} few {n}", loop_ref(target)),
        StepKind::SetScope { stage, scope } => format!("set_scope @{} {}", quote(stage), scope.name()),
    }
}

/// A formula with its names quoted where they must be.
fn formula(f: &Formula) -> String {
    fn quoted(f: &Formula) -> Formula {
        match f {
            Formula::Int(n) => Formula::Int(*n),
            Formula::Name(n) => Formula::Name(quote(n)),
            Formula::Call(n, args) => Formula::Call(quote(n), args.iter().map(quoted).collect()),
            Formula::Bin(op, a, b) => Formula::Bin(*op, Box::new(quoted(a)), Box::new(quoted(b))),
        }
    }
    quoted(f).to_string()
}

/// Reads one scheduling step, as [`print_step`] writes it.
///
/// # Errors
/// E0501 to E0508, with the place in `text`.
pub fn parse_step(text: &str) -> Result<StepKind, Diagnostic> {
    let mut p = Parser::new(text)?;
    let step = p.step()?;
    p.end()?;
    Ok(step)
}

/// The word of every scheduling step that [`parse_step`] reads.
pub fn step_words() -> impl Iterator<Item = &'static str> {
    Parser::RULES.iter().map(|r| r.0)
}

type Rule = fn(&mut Parser) -> Parse<StepKind>;

impl Parser {
    /// Each step by its word.
    const RULES: &[(&str, Rule)] = &[
        ("split", Self::split),
        ("fuse", Self::fuse),
        ("reorder", Self::reorder),
        ("vectorize", Self::vectorize),
        ("unroll", |p| Ok(StepKind::Unroll { target: p.loop_ref()? })),
        ("parallel", |p| Ok(StepKind::Parallel { target: p.loop_ref()? })),
        ("bind", |p| {
            let target = p.loop_ref()?;
            let to = p.choice("a binding", &Binding::ALL.map(|b| (b.name(), b)))?;
            Ok(StepKind::Bind { target, to, atomic: p.eat_word("atomic") })
        }),
        ("pad_loop", |p| {
            let target = p.loop_ref()?;
            if p.eat_word("to") {
                return Ok(StepKind::PadLoopTo { target, extent: p.formula()? });
            }
            Ok(StepKind::PadLoop { target, multiple: p.signed()? })
        }),
        ("pad_dim", Self::pad_dim),
        ("split_dim", Self::split_dim),
        ("fuse_dims", Self::fuse_dims),
        ("reorder_dims", Self::reorder_dims),
        ("compute_at", Self::compute_at),
        ("compute_inline", |p| Ok(StepKind::ComputeInline { stage: p.stage_name()? })),
        ("precompute", Self::precompute),
        ("cache_write", Self::cache_write),
        ("cache_read", Self::cache_read),
        ("pack", Self::pack),
        ("hoist_loads", |p| Ok(StepKind::HoistLoads { target: p.loop_ref()?, on: p.switch()? })),
        ("rfactor", Self::rfactor),
        ("relax", |p| Ok(StepKind::Relax { target: p.loop_ref()?, zero: p.eat_word("zero") })),
        ("remap", Self::remap),
        ("op_split", Self::op_split),
        ("hfuse", |p| {
            let mut loops = Vec::new();
            while !p.eat_punct("->") {
                loops.push(p.loop_ref()?);
            }
            Ok(StepKind::Hfuse { loops, name: p.loop_name()? })
        }),
        ("tile", Self::tile),
        ("tensorize", |p| {
            let target = p.loop_ref()?;
            let all = IntrinsicId::ALL.map(|i| (i.get().name, i));
            Ok(StepKind::Tensorize { target, intrinsic: p.choice("an intrinsic", &all)? })
        }),
        ("offload", |p| Ok(StepKind::Offload { target: p.loop_ref()? })),
        ("bulk_copy", |p| Ok(StepKind::BulkCopy { target: p.loop_ref()? })),
        ("swizzle", |p| Ok(StepKind::Swizzle { tensor: p.stage_name()? })),
        ("prefetch", |p| {
            let (stage, tensor) = (p.stage_name()?, p.stage_name()?);
            p.word("at")?;
            let (at, distance) = (p.loop_ref()?, p.signed()?);
            let inside = if p.eat_word("in") { Some(p.loop_ref()?) } else { None };
            p.word("locality")?;
            Ok(StepKind::Prefetch { stage, tensor, at, inside, distance, locality: p.signed()? })
        }),
        ("double_buffer", |p| {
            let stage = p.stage_name()?;
            let slots = if matches!(p.peek(), Tok::Int(_)) { p.signed()? } else { 2 };
            Ok(StepKind::DoubleBuffer { stage, slots })
        }),
        ("storage_align", |p| {
            let LoopRef { stage: tensor, name: dim } = p.loop_ref()?;
            let multiple = p.signed()?;
            p.word("offset")?;
            Ok(StepKind::StorageAlign { tensor, dim, multiple, offset: p.signed()? })
        }),
        ("peel", |p| {
            let target = p.loop_ref()?;
            Ok(StepKind::Peel { target, few: if p.eat_word("few") { Some(p.signed()?) } else { None } })
        }),
        ("set_scope", |p| Ok(StepKind::SetScope { stage: p.stage_name()?, scope: p.choice("a scope", &SCOPES)? })),
    ];

    /// One scheduling step.
    pub(super) fn step(&mut self) -> Parse<StepKind> {
        let rule = self.choice("a scheduling step", Self::RULES)?;
        rule(self)
    }

    fn stage_name(&mut self) -> Parse<String> {
        Ok(display(&self.at_name("a stage")?.0))
    }

    fn loop_name(&mut self) -> Parse<String> {
        Ok(display(&self.bare_name("a loop's name")?.0))
    }

    fn loop_ref(&mut self) -> Parse<LoopRef> {
        let stage = self.stage_name()?;
        self.punct("[")?;
        let name = self.loop_name()?;
        self.punct("]")?;
        Ok(LoopRef { stage, name })
    }

    fn split(&mut self) -> Parse<StepKind> {
        let target = self.loop_ref()?;
        let factor = self.signed()?;
        self.punct("->")?;
        let outer = self.loop_name()?;
        self.punct(",")?;
        let inner = self.loop_name()?;
        self.word("tail")?;
        self.punct("(")?;
        let tail = self.choice("a tail policy", &TAILS)?;
        self.punct(")")?;
        Ok(StepKind::Split { target, factor, outer, inner, tail })
    }

    fn remap(&mut self) -> Parse<StepKind> {
        let target = self.loop_ref()?;
        let policies = [("longest_first", 0), ("round_robin", 1), ("by", 2), ("order", 3)];
        let policy = match self.choice("an order of iterations", &policies)? {
            0 => Remap::LongestFirst,
            1 => Remap::RoundRobin(self.signed()?),
            2 => Remap::By(self.formula()?),
            _ => Remap::Order(self.formula()?),
        };
        Ok(StepKind::Remap { target, policy })
    }

    fn op_split(&mut self) -> Parse<StepKind> {
        let mut points = Vec::new();
        loop {
            let target = self.loop_ref()?;
            self.word("at")?;
            points.push((target, self.formula()?));
            if !self.eat_punct(",") {
                return Ok(StepKind::OpSplit { points });
            }
        }
    }

    fn tile(&mut self) -> Parse<StepKind> {
        let stage = self.stage_name()?;
        self.punct("[")?;
        let loops = self.list("]", &mut |p| Ok((p.loop_name()?, p.signed()?)))?;
        self.punct("->")?;
        let mut names = vec![self.loop_name()?];
        while self.eat_punct(",") {
            names.push(self.loop_name()?);
        }
        Ok(StepKind::Tile { stage, loops, names })
    }

    /// Sums of products.
    fn formula(&mut self) -> Parse<Formula> {
        Ok(self.sum()?.0)
    }

    /// An operator on formulas, each with its depth: what walks them later recurses.
    fn combined(&mut self, op: char, a: (Formula, u32), b: (Formula, u32)) -> Parse<(Formula, u32)> {
        let depth = a.1.max(b.1) + 1;
        if depth > MAX_DEPTH {
            return Err(too_deep(self.span()));
        }
        Ok((Formula::Bin(op, Box::new(a.0), Box::new(b.0)), depth))
    }

    fn sum(&mut self) -> Parse<(Formula, u32)> {
        let mut sum = self.product()?;
        while let Some(op) = ['+', '-'].into_iter().find(|c| self.is_punct(&c.to_string())) {
            self.next();
            let next = self.product()?;
            sum = self.combined(op, sum, next)?;
        }
        Ok(sum)
    }

    fn product(&mut self) -> Parse<(Formula, u32)> {
        let mut product = self.factor()?;
        while self.eat_punct("*") {
            let next = self.factor()?;
            product = self.combined('*', product, next)?;
        }
        Ok(product)
    }

    fn factor(&mut self) -> Parse<(Formula, u32)> {
        if self.eat_punct("(") {
            let inside = self.nested(&mut |p| p.sum())?;
            self.punct(")")?;
            return Ok(inside);
        }
        if self.is_punct("-") || matches!(self.peek(), super::lex::Tok::Int(_)) {
            return Ok((Formula::Int(self.signed()?), 0));
        }
        let name = self.loop_name()?;
        if self.eat_punct("(") {
            let args = self.list(")", &mut |p| p.nested(&mut |p| p.sum()))?;
            let depth = args.iter().map(|a| a.1 + 1).max().unwrap_or(0);
            return Ok((Formula::Call(name, args.into_iter().map(|a| a.0).collect()), depth));
        }
        Ok((Formula::Name(name), 0))
    }

    fn fuse(&mut self) -> Parse<StepKind> {
        let mut loops = Vec::new();
        while !self.eat_punct("->") {
            loops.push(self.loop_ref()?);
        }
        let name = self.loop_name()?;
        let pad = if self.eat_word("pad") { self.signed()? } else { 1 };
        Ok(StepKind::Fuse { loops, name, pad })
    }

    fn reorder(&mut self) -> Parse<StepKind> {
        let stage = self.stage_name()?;
        self.punct("[")?;
        let order = self.list("]", &mut |p| p.loop_name())?;
        Ok(StepKind::Reorder { stage, order })
    }

    fn vectorize(&mut self) -> Parse<StepKind> {
        let target = self.loop_ref()?;
        let number = self.is_punct("-") || matches!(self.peek(), super::lex::Tok::Int(_));
        Ok(StepKind::Vectorize { target, width: if number { Some(self.signed()?) } else { None } })
    }

    fn pad_dim(&mut self) -> Parse<StepKind> {
        let LoopRef { stage: tensor, name: dim } = self.loop_ref()?;
        Ok(StepKind::PadDim { tensor, dim, multiple: self.signed()? })
    }

    fn split_dim(&mut self) -> Parse<StepKind> {
        let LoopRef { stage: tensor, name: dim } = self.loop_ref()?;
        let factor = self.signed()?;
        self.punct("->")?;
        let outer = self.loop_name()?;
        self.punct(",")?;
        Ok(StepKind::SplitDim { tensor, dim, factor, outer, inner: self.loop_name()? })
    }

    fn fuse_dims(&mut self) -> Parse<StepKind> {
        let tensor = self.stage_name()?;
        self.punct("[")?;
        let dims = self.list("]", &mut |p| p.loop_name())?;
        self.punct("->")?;
        Ok(StepKind::FuseDims { tensor, dims, name: self.loop_name()? })
    }

    fn reorder_dims(&mut self) -> Parse<StepKind> {
        let tensor = self.stage_name()?;
        self.punct("[")?;
        Ok(StepKind::ReorderDims { tensor, order: self.list("]", &mut |p| p.loop_name())? })
    }

    fn compute_at(&mut self) -> Parse<StepKind> {
        let stage = self.stage_name()?;
        self.word("at")?;
        Ok(StepKind::ComputeAt { stage, at: self.loop_ref()? })
    }

    fn rfactor(&mut self) -> Parse<StepKind> {
        let target = self.loop_ref()?;
        self.punct("->")?;
        Ok(StepKind::Rfactor { target, name: self.stage_name()? })
    }

    fn precompute(&mut self) -> Parse<StepKind> {
        let (stage, tensor) = (self.stage_name()?, self.stage_name()?);
        self.punct("->")?;
        Ok(StepKind::Precompute { stage, tensor, name: self.stage_name()? })
    }

    fn cache_write(&mut self) -> Parse<StepKind> {
        let stage = self.stage_name()?;
        self.punct("->")?;
        let name = self.stage_name()?;
        let scope = self.choice("a scope", &SCOPES)?;
        self.word("at")?;
        Ok(StepKind::CacheWrite { stage, name, scope, at: self.loop_ref()? })
    }

    /// `on` or `off`.
    pub(super) fn switch(&mut self) -> Parse<bool> {
        self.choice("`on` or `off`", &[("on", true), ("off", false)])
    }

    /// Where a copy is made.
    fn place(&mut self) -> Parse<(Scope, CopyAt)> {
        if self.eat_word("setup") {
            return Ok((Scope::Global, CopyAt::Setup));
        }
        if self.eat_word("before") {
            return Ok((Scope::Global, CopyAt::Before));
        }
        let scope = self.choice("a scope", &SCOPES)?;
        self.word("at")?;
        Ok((scope, CopyAt::Loop(self.loop_ref()?)))
    }

    /// `access(1)`, or nothing.
    fn access(&mut self) -> Parse<Option<usize>> {
        if !self.eat_word("access") {
            return Ok(None);
        }
        self.punct("(")?;
        let span = self.span();
        let n = usize::try_from(self.signed()?).map_err(|_| out_of_range("the stage's reads", span))?;
        self.punct(")")?;
        Ok(Some(n))
    }

    fn pack(&mut self) -> Parse<StepKind> {
        let (stage, tensor) = (self.stage_name()?, self.stage_name()?);
        self.punct("->")?;
        let name = self.stage_name()?;
        let (scope, at) = self.place()?;
        self.word("tiles")?;
        self.punct("(")?;
        let tiles = self.list(")", &mut |p| {
            let dim = p.dim_ref()?;
            let sized = p.is_punct("-") || matches!(p.peek(), super::lex::Tok::Int(_));
            Ok(PackDim { dim, size: if sized { Some(p.signed()?) } else { None } })
        })?;
        Ok(StepKind::Pack { stage, tensor, name, scope, at, tiles, access: self.access()? })
    }

    fn cache_read(&mut self) -> Parse<StepKind> {
        let stage = self.stage_name()?;
        let tensor = self.stage_name()?;
        self.punct("->")?;
        let name = self.stage_name()?;
        let (scope, at) = self.place()?;
        let mut layout = Vec::new();
        if self.eat_word("layout") {
            self.punct("(")?;
            layout = self.list(")", &mut |p| p.layout_dim())?;
        }
        Ok(StepKind::CacheRead { stage, tensor, name, scope, at, layout, access: self.access()? })
    }

    /// A dimension's name or position.
    fn dim_ref(&mut self) -> Parse<DimRef> {
        if !matches!(self.peek(), super::lex::Tok::Int(_)) && !self.is_punct("-") {
            return Ok(DimRef::Named(display(&self.bare_name("a dimension's name or position")?.0)));
        }
        let span = self.span();
        usize::try_from(self.signed()?).map(DimRef::At).map_err(|_| out_of_range("the tensor's dimensions", span))
    }

    /// `k`, `2`, `2/32` or `2%32`.
    fn layout_dim(&mut self) -> Parse<LayoutDim> {
        let dim = self.dim_ref()?;
        let part = if self.eat_punct("/") {
            Part::Div(self.signed()?)
        } else if self.eat_punct("%") {
            Part::Mod(self.signed()?)
        } else {
            Part::Whole
        };
        Ok(LayoutDim { dim, part })
    }
}
