//! The Rust builder: the language without text. Handles are typed and `Copy`; expressions are
//! values with overloaded operators.
//!
//! The paper's Listing 1:
//!
//! ```
//! use cora_frontend::builder::*;
//!
//! let mut b = ProgramBuilder::new("listing1");
//! let m = b.param("M", 0..=4096);
//! let batch = b.dim("batch", m);
//! let lens = b.extent("lens", &[batch], 0..=512);
//! let len = b.dim("len", lens.at(batch));
//! let a = b.input("A", &[batch, len.padded(4)], ScalarType::F32);
//! let out = b.compute("B", &[batch, len.padded(4)], |ix| 2.0 * a.at(ix));
//! b.output(out);
//! b.schedule("cpu", |s| {
//!     s.fuse(&[(out, batch), (out, len)], "f", 1);
//!     s.parallel((out, "f"));
//! });
//! let graph = b.finish()?;
//!
//! let text = cora_frontend::print_program(&graph);
//! assert!(text.contains("B[batch, len pad 4] : f32 = 2.0 * A[batch, len]"));
//! assert!(text.contains("fuse B.batch B.len -> f"));
//! # Ok::<(), Vec<Diagnostic>>(())
//! ```

mod ops;
mod schedule;
mod value;

pub use cora_ir::loops::Axis;
pub use cora_ir::schedule::{Binding, DimRef, LayoutDim, LoopRef, PackDim, Part, Tail};
pub use cora_ir::{Combiner, Diagnostic, Graph, ScalarType, Scope};
pub use schedule::{ScheduleBuilder, ToLoop, ToStage};
pub use value::{Indices, Value, argmax, argmin, max, max_over, min, min_over, prod, select, size, sum};

use crate::ast::{
    CombinerDef, Def, DimUse, Expr, ExprKind, Handles, Ident, Input, Item, ItemKind, PartDef, Program, Range, ReduceOp,
    Steps,
};
use cora_ir::schedule::Span;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::panic::Location;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A run-time size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Param(pub(crate) u64);

/// An extent function: its values come with each batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent(pub(crate) u64);

/// A named dimension; used as a value it is the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    pub(crate) handle: u64,
    pad: i64,
}

impl Dim {
    /// The dimension in an index list, stored rounded up to a multiple of `pad` elements.
    #[must_use]
    pub fn padded(self, pad: i64) -> Self {
        Self { pad, ..self }
    }
}

/// An input or the result of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor(pub(crate) u64);

/// A user's combiner of tuples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TupleCombiner(pub(crate) u64);

impl Extent {
    /// Its value at `args`.
    pub fn at(self, args: impl Indices) -> Value {
        Value::new(ExprKind::Call { base: Value::handle(self.0).0, dims: None, args: args.into_exprs() })
    }
}

impl Tensor {
    /// The element at `index`.
    pub fn at(self, index: impl Indices) -> Value {
        Value::new(ExprKind::Access { base: Value::handle(self.0).0, index: index.into_exprs(), guard: None })
    }
}

/// Builds a program call by call, with handles of its own: those of another builder are an error (`E0239`). Mistakes are
/// reported by [`ProgramBuilder::finish`], with the place of the call.
#[derive(Clone, Debug)]
pub struct ProgramBuilder {
    name: String,
    program: Program,
    /// The types of results that are read before they are defined.
    later: BTreeMap<String, ScalarType>,
    diags: Vec<Diagnostic>,
}

/// The place of a call.
fn place(at: &Location) -> String {
    format!("{}:{}:{}", at.file(), at.line(), at.column())
}

impl ProgramBuilder {
    /// An empty program called `name`.
    pub fn new(name: impl Into<String>) -> Self {
        static BUILDERS: AtomicU32 = AtomicU32::new(0);
        let handles = Handles::of(BUILDERS.fetch_add(1, Relaxed));
        Self {
            name: name.into(),
            program: Program { handles, ..Program::default() },
            later: BTreeMap::new(),
            diags: Vec::new(),
        }
    }

    fn handle(&mut self, name: &str) -> u64 {
        self.program.handles.push(name)
    }

    fn push(&mut self, kind: ItemKind, at: &Location) {
        let origin = Some(place(at));
        self.program.items.push(Item { kind, span: Span::default(), origin });
    }

    /// The name behind a handle; an error if it is another builder's.
    fn name_of(&mut self, handle: u64, at: &Location) -> Option<String> {
        let name = self.program.handles.get(handle).map(str::to_owned);
        if name.is_none() {
            self.diags.push(Handles::foreign().note(format!("at {}", place(at))));
        }
        name
    }

    fn dim_uses(&mut self, dims: &[Dim], at: &Location) -> Vec<DimUse> {
        let one = |d: &Dim| {
            let name = self.name_of(d.handle, at)?;
            let pad = (d.pad != 1).then(|| Expr::new(ExprKind::Int(d.pad.into()), Span::default()));
            Some(DimUse { name: Ident::new(name), extent: None, pad })
        };
        dims.iter().filter_map(one).collect()
    }

    /// A run-time size with its range.
    #[track_caller]
    pub fn param(&mut self, name: &str, range: RangeInclusive<i64>) -> Param {
        let range = Range { lo: Value::from(*range.start()).0, hi: Value::from(*range.end()).0, inclusive: true };
        self.push(ItemKind::Param(Ident::new(name), range), Location::caller());
        Param(self.handle(name))
    }

    /// A named constant; it can be overridden by name when the program is built from text again.
    #[track_caller]
    pub fn constant(&mut self, name: &str, value: i64) -> Value {
        self.push(ItemKind::Const(Ident::new(name), Value::from(value).0), Location::caller());
        Value::handle(self.handle(name))
    }

    /// An extent function over the indices of `args`, with the range of its values.
    #[track_caller]
    pub fn extent<V: Into<Value> + Clone>(&mut self, name: &str, args: &[Dim], range: RangeInclusive<V>) -> Extent {
        let (lo, hi) = range.into_inner();
        let range = Range { lo: lo.into().0, hi: hi.into().0, inclusive: true };
        let args = self.dim_uses(args, Location::caller());
        self.push(ItemKind::Extent(Ident::new(name), args, range), Location::caller());
        Extent(self.handle(name))
    }

    /// A dimension with its extent, over parameters and the indices of other dimensions.
    #[track_caller]
    pub fn dim(&mut self, name: &str, extent: impl Into<Value>) -> Dim {
        self.push(ItemKind::Dim(Ident::new(name), extent.into().0), Location::caller());
        Dim { handle: self.handle(name), pad: 1 }
    }

    /// An input that is given with each call.
    #[track_caller]
    pub fn input(&mut self, name: &str, dims: &[Dim], ty: ScalarType) -> Tensor {
        self.any_input(name, dims, ty, false, Location::caller())
    }

    /// An input that is given once and kept: weights.
    #[track_caller]
    pub fn const_input(&mut self, name: &str, dims: &[Dim], ty: ScalarType) -> Tensor {
        self.any_input(name, dims, ty, true, Location::caller())
    }

    fn any_input(&mut self, name: &str, dims: &[Dim], ty: ScalarType, constant: bool, at: &Location) -> Tensor {
        let dims = self.dim_uses(dims, at);
        let input = Input { name: Ident::new(name), dims, ty, constant, range: None };
        self.push(ItemKind::Input(input), at);
        Tensor(self.handle(name))
    }

    /// Declares that all elements of the integer input `tensor` lie in `range`, so that they may be
    /// used as indices.
    #[track_caller]
    pub fn range<V: Into<Value>>(&mut self, tensor: Tensor, range: std::ops::Range<V>) {
        let Some(name) = self.name_of(tensor.0, Location::caller()) else { return };
        let range = Range { lo: range.start.into().0, hi: range.end.into().0, inclusive: false };
        for item in &mut self.program.items {
            if let ItemKind::Input(input) = &mut item.kind
                && input.name.name == name
            {
                input.range = Some(range);
                return;
            }
        }
        let d = Diagnostic::new("E0239", format!("`{name}` is not an input, so it has no declared range"));
        self.diags.push(d.hint("give the range to the handle that `input` returns"));
    }

    /// The result of an operator `name` that is defined later on, for the operators of a recurrence: those that it is made of, and
    /// itself. Its elements are of type `ty`.
    ///
    /// ```
    /// # use cora_frontend::builder::*;
    /// let mut b = ProgramBuilder::new("running");
    /// let t = b.dim("t", 8);
    /// let x = b.input("X", &[t], ScalarType::F32);
    /// let h = b.later("H", ScalarType::F32);
    /// let h = b.compute("H", &[t], |[t]| x.at(t.clone()) - h.at(t - 1).or_else(0.0));
    /// b.output(h);
    /// assert!(b.finish().is_ok());
    /// ```
    pub fn later(&mut self, name: &str, ty: ScalarType) -> Tensor {
        self.later.insert(name.to_owned(), ty);
        Tensor(self.handle(name))
    }

    /// `name[dims] = f(indices)`
    #[track_caller]
    pub fn compute<const N: usize, V: Into<Value>>(
        &mut self,
        name: &str,
        dims: &[Dim; N],
        f: impl FnOnce([Value; N]) -> V,
    ) -> Tensor {
        let value = f(dims.map(Value::from)).into().0;
        self.define(name, dims, value, Location::caller())
    }

    /// `name[dims] = combiner over reduce of f(indices, reduced indices)`
    #[track_caller]
    pub fn reduce<const N: usize, const R: usize, V: Into<Value>>(
        &mut self,
        name: &str,
        dims: &[Dim; N],
        combiner: Combiner,
        reduce: &[Dim; R],
        f: impl FnOnce([Value; N], [Value; R]) -> V,
    ) -> Tensor {
        let body = f(dims.map(Value::from), reduce.map(Value::from)).into().0;
        let over = reduce.iter().map(|&d| Value::from(d).0).collect();
        let value = Expr::new(ExprKind::Reduce(ReduceOp::Combine(combiner), over, body), Span::default());
        self.define(name, dims, value, Location::caller())
    }

    /// A combiner of tuples: components with their types and identities, and how two tuples, of earlier and of
    /// later terms, are combined. It must be associative, and the identity neutral; both are tried on samples.
    #[track_caller]
    pub fn combiner<const N: usize>(
        &mut self,
        name: &str,
        parts: [(&str, ScalarType, Value); N],
        f: impl FnOnce([Value; N], [Value; N]) -> [Value; N],
    ) -> TupleCombiner {
        self.any_combiner(name, parts, false, f, Location::caller())
    }

    /// [`ProgramBuilder::combiner`] for which the order of terms does not matter.
    #[track_caller]
    pub fn commutative_combiner<const N: usize>(
        &mut self,
        name: &str,
        parts: [(&str, ScalarType, Value); N],
        f: impl FnOnce([Value; N], [Value; N]) -> [Value; N],
    ) -> TupleCombiner {
        self.any_combiner(name, parts, true, f, Location::caller())
    }

    fn any_combiner<const N: usize>(
        &mut self,
        name: &str,
        parts: [(&str, ScalarType, Value); N],
        commutative: bool,
        f: impl FnOnce([Value; N], [Value; N]) -> [Value; N],
        at: &Location,
    ) -> TupleCombiner {
        let sides =
            ["a", "b"].map(|s| std::array::from_fn(|k| Value::new(ExprKind::Name(format!("{s}.{}", parts[k].0)))));
        let [l, r] = sides;
        let result = f(l, r).map(|v| v.0).to_vec();
        let part = |(n, ty, identity): (&str, ScalarType, Value)| PartDef {
            name: Ident::new(n),
            ty: Some(ty),
            identity: identity.0,
        };
        let def = CombinerDef {
            name: Ident::new(name),
            parts: parts.map(part).to_vec(),
            left: Ident::new("a"),
            right: Ident::new("b"),
            commutative,
            locals: Vec::new(),
            result,
        };
        self.push(ItemKind::Combiner(Rc::new(def)), at);
        TupleCombiner(self.handle(name))
    }

    /// `name[dims] = combiner(reduce)(f(indices, reduced indices))`; [`ProgramBuilder::part`] gives the components.
    #[track_caller]
    pub fn reduce_tuples<const N: usize, const R: usize, const K: usize>(
        &mut self,
        name: &str,
        dims: &[Dim; N],
        combiner: TupleCombiner,
        reduce: &[Dim; R],
        f: impl FnOnce([Value; N], [Value; R]) -> [Value; K],
    ) -> Tensor {
        let args = f(dims.map(Value::from), reduce.map(Value::from)).map(|v| v.0).to_vec();
        let over = Some(reduce.iter().map(|&d| Value::from(d).0).collect());
        let base = Value::handle(combiner.0).0;
        let value = Expr::new(ExprKind::Call { base, dims: over, args }, Span::default());
        self.define(name, dims, value, Location::caller())
    }

    /// A component of a tensor of tuples.
    #[track_caller]
    pub fn part(&mut self, tensor: Tensor, part: &str) -> Tensor {
        let name = self.name_of(tensor.0, Location::caller()).unwrap_or_default();
        Tensor(self.handle(&format!("{name}.{part}")))
    }

    fn define(&mut self, name: &str, dims: &[Dim], value: Expr, at: &Location) -> Tensor {
        let dims = Some(self.dim_uses(dims, at));
        self.push(ItemKind::Op(Def { name: Ident::new(name), dims, ty: self.later.get(name).copied(), value }), at);
        Tensor(self.handle(name))
    }

    /// Makes the result of an operator a result of the program.
    #[track_caller]
    pub fn output(&mut self, tensor: Tensor) {
        let Some(name) = self.name_of(tensor.0, Location::caller()) else { return };
        self.push(ItemKind::Output(vec![Ident::new(name)]), Location::caller());
    }

    /// Adds a named schedule.
    #[track_caller]
    pub fn schedule(&mut self, name: &str, f: impl FnOnce(&mut ScheduleBuilder)) {
        self.schedule_for(name, &[], f);
    }

    /// Adds a schedule that is the default of machines with all of these features, `-` and `.` in their names written as `_`:
    /// `amx_bf16`, `sm_90a`.
    #[track_caller]
    pub fn schedule_for(&mut self, name: &str, features: &[&str], f: impl FnOnce(&mut ScheduleBuilder)) {
        let at = Location::caller();
        let mut s = ScheduleBuilder::new(&self.program.handles);
        f(&mut s);
        let (steps, diags) = s.into_parts();
        self.diags.extend(diags.into_iter().map(|d| d.note(format!("at {}", place(at)))));
        let features = features.iter().map(|f| Ident::new(*f)).collect();
        self.push(ItemKind::Schedule(Ident::new(name), features, Steps::Parsed(steps)), at);
    }

    /// The syntax tree built so far.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The op graph, or everything that is wrong with it.
    ///
    /// # Errors
    /// `E0239` a misuse of the builder, `E0122` a loop in a schedule without its stage; as [`crate::elaborate`].
    pub fn finish(self) -> Result<Graph, Vec<Diagnostic>> {
        let mut diags = self.diags;
        match crate::elaborate(&self.name, &self.program, &[]) {
            Ok(e) if diags.is_empty() => return Ok(e.graph),
            Ok(_) => {}
            Err(more) => diags.extend(more),
        }
        Err(diags)
    }
}
