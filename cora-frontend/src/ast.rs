//! The syntax tree: what the text says, or what builder calls said, before names are resolved.

use crate::lex::Token;
use cora_ir::schedule::{Span, Step};
use cora_ir::{BinOp, Combiner, Diagnostic, ScalarType, UnOp};
use std::collections::HashSet;
use std::rc::Rc;

/// Deepest expression that is accepted: text or builder calls nested further are an error, so that
/// no later stage can run out of stack.
pub const MAX_DEPTH: u32 = 200;

/// A name and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Ident {
    /// The name; tensors' names may contain dots.
    pub name: String,
    /// Where it stands.
    pub span: Span,
}

impl Ident {
    /// A name without a place.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), span: Span::default() }
    }
}

/// Names behind handles, which say whose they are.
#[derive(Clone, Debug, Default)]
pub struct Handles {
    owner: u32,
    names: Vec<String>,
}

impl Handles {
    /// Those of the builder with this number.
    pub(crate) fn of(owner: u32) -> Self {
        Self { owner, names: Vec::new() }
    }

    /// A new handle.
    pub(crate) fn push(&mut self, name: &str) -> u64 {
        self.names.push(name.to_owned());
        (u64::from(self.owner) << 32) | (self.names.len() as u64 - 1)
    }

    /// What is said of a handle that is another builder's.
    pub(crate) fn foreign() -> Diagnostic {
        Diagnostic::new("E0239", "a handle of another builder, or not a name")
            .hint("take the handles that this builder gave; values are passed as they are")
    }

    /// The name behind a handle; nothing if it is another builder's.
    pub fn get(&self, handle: u64) -> Option<&str> {
        let own = handle >> 32 == u64::from(self.owner);
        let name = || self.names.get((handle & u64::from(u32::MAX)) as usize);
        own.then(name).flatten().map(String::as_str)
    }
}

/// A whole program.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Declarations, operators, outputs and schedules in source order.
    pub items: Vec<Item>,
    /// The names behind builder handles ([`ExprKind::Handle`]).
    pub handles: Handles,
    /// Names that unparsable items seem to declare: using them is no further error.
    pub broken: Vec<String>,
    /// What of a correct text may not mean what its writer thinks.
    pub doubtful: Vec<Diagnostic>,
}

/// One item.
#[derive(Clone, Debug)]
pub struct Item {
    /// What it is.
    pub kind: ItemKind,
    /// Where it stands.
    pub span: Span,
    /// For an item of the builder: the Rust source position of the call.
    pub origin: Option<String>,
}

/// What an item is.
#[derive(Clone, Debug)]
pub enum ItemKind {
    /// `param M in 0..=4096`
    Param(Ident, Range),
    /// `const H = 8`
    Const(Ident, Expr),
    /// `extent lens(batch) in 0..=512`
    Extent(Ident, Vec<DimUse>, Range),
    /// `dim q = lens(batch)`
    Dim(Ident, Expr),
    /// `input A[batch, q] : f32`
    Input(Input),
    /// `fn scaled(k)(x) = { ... }`
    Fn(Rc<FnDef>),
    /// `combiner online(m = -inf, s = 0.0)(a, b) = (...)`
    Combiner(Rc<CombinerDef>),
    /// `S[batch, q] = ...`
    Op(Def),
    /// `output O, P`
    Output(Vec<Ident>),
    /// `schedule cpu { ... }`, `schedule tiles for amx_bf16 { ... }`
    Schedule(Ident, Vec<Ident>, Steps),
    /// `schedule fn tiles(stage) { ... }`
    ScheduleFn(Ident, Vec<Ident>, Vec<Token>),
}

/// The steps of a schedule.
#[derive(Clone, Debug)]
pub enum Steps {
    /// From text: expanded and parsed once the tensors are known.
    Tokens(Vec<Token>),
    /// From builder calls.
    Parsed(Vec<Step>),
}

/// `lo..=hi` or `lo..hi`.
#[derive(Clone, Debug)]
pub struct Range {
    /// Least value.
    pub lo: Expr,
    /// Greatest value, or one more.
    pub hi: Expr,
    /// Whether `hi` itself belongs to it.
    pub inclusive: bool,
}

/// A dimension in a tensor's index list: `q`, `c = 3`, `q pad 4`.
#[derive(Clone, Debug)]
pub struct DimUse {
    /// The dimension.
    pub name: Ident,
    /// Its extent, where it is declared in place.
    pub extent: Option<Expr>,
    /// What the storage extent is rounded up to a multiple of.
    pub pad: Option<Expr>,
}

/// An input declaration.
#[derive(Clone, Debug)]
pub struct Input {
    /// The tensor.
    pub name: Ident,
    /// Its dimensions.
    pub dims: Vec<DimUse>,
    /// Element type.
    pub ty: ScalarType,
    /// Whether it is given once and kept (weights).
    pub constant: bool,
    /// Range of the values, for index tensors.
    pub range: Option<Range>,
}

/// `name[dims] : type = value`: an operator, or a local of a function.
#[derive(Clone, Debug)]
pub struct Def {
    /// The tensor that it defines.
    pub name: Ident,
    /// The index list; nothing = the free dimensions of the value.
    pub dims: Option<Vec<DimUse>>,
    /// Element type, if stated.
    pub ty: Option<ScalarType>,
    /// The element.
    pub value: Expr,
}

/// `fn name(dims)(params) = { locals; result }`
#[derive(Clone, Debug)]
pub struct FnDef {
    /// Its name.
    pub name: Ident,
    /// Dimension parameters.
    pub dims: Vec<Ident>,
    /// Expression parameters.
    pub params: Vec<Ident>,
    /// Local definitions, in order.
    pub locals: Vec<Def>,
    /// The value of a call.
    pub result: Expr,
}

/// `combiner name(parts)(left, right) commutative = { locals; (results) }`
#[derive(Clone, Debug)]
pub struct CombinerDef {
    /// Its name.
    pub name: Ident,
    /// The components of the tuples, at least one.
    pub parts: Vec<PartDef>,
    /// What the body calls the tuple of earlier terms.
    pub left: Ident,
    /// What the body calls the tuple of later terms.
    pub right: Ident,
    /// Whether the order of the terms does not matter.
    pub commutative: bool,
    /// Local definitions, in order.
    pub locals: Vec<Def>,
    /// The combined components, as many as there are parts.
    pub result: Vec<Expr>,
}

/// `m : f32 = -inf`: a component and its value over nothing.
#[derive(Clone, Debug)]
pub struct PartDef {
    /// Its name.
    pub name: Ident,
    /// Its type; nothing = that of the terms.
    pub ty: Option<ScalarType>,
    /// Its value in the identity.
    pub identity: Expr,
}

/// An expression; cheap to clone.
#[derive(Clone, Debug)]
pub struct Expr(Rc<Node>);

#[derive(Debug)]
struct Node {
    kind: ExprKind,
    span: Span,
    depth: u32,
}

/// What an expression is.
#[derive(Clone, Debug)]
pub enum ExprKind {
    /// An integer literal.
    Int(i128),
    /// A floating-point literal.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// A dimension, parameter, constant, tensor or local by name.
    Name(String),
    /// The same by builder handle; see [`Program::handles`].
    Handle(u64),
    /// `T[i, j]`, `T[i, j] else x`, `T[i, j] when c else x`; the base is a name or a handle.
    Access {
        /// The tensor.
        base: Expr,
        /// A position for each dimension.
        index: Vec<Expr>,
        /// `(condition, other)`; without a condition, "the position exists".
        guard: Option<(Option<Expr>, Expr)>,
    },
    /// `f(args)` or `f(dims)(args)`: an extent function, a builtin, a cast or a `fn`.
    Call {
        /// What is called: a name or a handle.
        base: Expr,
        /// Dimension arguments, where two lists are written.
        dims: Option<Vec<Expr>>,
        /// Arguments.
        args: Vec<Expr>,
    },
    /// A unary operator.
    Un(UnOp, Expr),
    /// A binary operator; `Div` on integers is floor division.
    Bin(BinOp, Expr, Expr),
    /// `if c then a else b`
    If(Expr, Expr, Expr),
    /// `f32(x)`
    Cast(ScalarType, Expr),
    /// `sum(d) x`
    Reduce(ReduceOp, Vec<Expr>, Expr),
    /// An expression nested deeper than [`MAX_DEPTH`]; its operands were dropped.
    TooDeep,
    /// A misuse of the builder, with an explanation.
    Misuse(&'static str),
}

/// The operator of a reduction expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// sum, prod, max, min
    Combine(Combiner),
    /// The least index of the greatest value.
    ArgMax,
    /// The least index of the least value.
    ArgMin,
}

impl ReduceOp {
    /// The reduction with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "argmax" => Some(Self::ArgMax),
            "argmin" => Some(Self::ArgMin),
            _ => Combiner::ALL.into_iter().find(|c| c.name() == name).map(Self::Combine),
        }
    }

    /// Its name in text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Combine(c) => c.name(),
            Self::ArgMax => "argmax",
            Self::ArgMin => "argmin",
        }
    }
}

impl Expr {
    /// An expression at a place.
    pub fn new(kind: ExprKind, span: Span) -> Self {
        let mut depth = 0;
        kind.for_each_child(&mut |c| depth = depth.max(c.0.depth));
        if depth >= MAX_DEPTH {
            return Self(Rc::new(Node { kind: ExprKind::TooDeep, span, depth: 0 }));
        }
        Self(Rc::new(Node { kind, span, depth: depth + 1 }))
    }

    /// What it is.
    pub fn kind(&self) -> &ExprKind {
        &self.0.kind
    }

    /// Where it stands.
    pub fn span(&self) -> Span {
        self.0.span
    }

    /// Whether a reduction in it is over the dimension called `dim`.
    pub(crate) fn reduces_over(&self, dim: &str) -> bool {
        fn go(e: &Expr, dim: &str, seen: &mut HashSet<usize>) -> bool {
            if e.shared_key().is_some_and(|key| !seen.insert(key)) {
                return false;
            }
            let named = |d: &Expr| matches!(d.kind(), ExprKind::Name(n) if n == dim);
            let mut found = matches!(e.kind(), ExprKind::Reduce(_, dims, _) if dims.iter().any(named));
            e.kind().for_each_child(&mut |e| found = found || go(e, dim, seen));
            found
        }
        go(self, dim, &mut HashSet::default())
    }

    /// The identity of a node that several expressions share, if it is shared.
    pub(crate) fn shared_key(&self) -> Option<usize> {
        (Rc::strong_count(&self.0) > 1).then_some(Rc::as_ptr(&self.0) as usize)
    }
}

impl ExprKind {
    fn for_each_child(&self, f: &mut dyn FnMut(&Expr)) {
        match self {
            Self::Int(_) | Self::Float(_) | Self::Bool(_) | Self::Name(_) | Self::Handle(_) => {}
            Self::TooDeep | Self::Misuse(_) => {}
            Self::Access { base, index, guard } => {
                f(base);
                index.iter().for_each(&mut *f);
                if let Some((c, o)) = guard {
                    c.iter().for_each(&mut *f);
                    f(o);
                }
            }
            Self::Call { base, dims, args } => {
                f(base);
                dims.iter().flatten().for_each(&mut *f);
                args.iter().for_each(f);
            }
            Self::Un(_, a) | Self::Cast(_, a) => f(a),
            Self::Bin(_, a, b) => {
                f(a);
                f(b);
            }
            Self::If(c, a, b) => {
                f(c);
                f(a);
                f(b);
            }
            Self::Reduce(_, dims, body) => {
                dims.iter().for_each(&mut *f);
                f(body);
            }
        }
    }
}
