//! Verifiers of every stage: the invariants that passes rely on. A failure is a compiler bug.
//!
//! Each error names the rule that it breaks. Declarations, in every stage:
//!
//! | rule | invariant |
//! |---|---|
//! | `names` | parameters, functions, tensors, kernels: no two of a kind have one name |
//! | `param-range` | a parameter's least value is at most its greatest |
//! | `uf-order` | a function's definition refers to earlier functions only |
//! | `uf-args` | an argument's extent uses earlier arguments, a body all arguments, the bounds of an extent function none |
//! | `uf-pure` | definitions consist of scalar `Index` parameters, arguments, calls and operators: no variables, no loads |
//! | `uf-shape` | `prefix_sum`, `search` and `map` have arguments; `search` inverts a prefix sum with as many; `sort_desc` has one |
//! | `tensor-dims` | extents are scalar `Index` expressions over the indices of outer dimensions, without loads (but of tables, in the storage dialect); variables occur only for tensors attached in a loop |
//! | `tensor-layout` | layout steps fit the dimensions before them; inputs and outputs have none |
//! | `tensor-type` | elements are not `Index`; a range is over parameters, functions and the position, and of an integer tensor |
//!
//! | `combiner` | a combiner has components, combines each from operands, constants, operators, conversions and choices |
//! | `tensor-tuple` | tensors of tuples are temporary, have their combiner's types, and do not occur in the storage dialect |
//!
//! Expressions, in every stage:
//!
//! | rule | invariant |
//! |---|---|
//! | `entities` | every id exists |
//! | `types` | operands agree; conditions are `Bool`; indices and arguments are `Index`; a load has its tensor's type |
//! | `lanes` | operands have equally many lanes; what must be scalar is |
//! | `arity` | a call has an argument for each of the function's (none for `max`); a load an index for each dimension, in the storage dialect exactly one |
//! | `literals` | a literal is not `Index`, and its value fits its type |
//! | `vectors` | ramps, splats, searches and lane reductions occur in the storage dialect only |
//! | `formal-args` | `$n` occurs in definitions only, `$n:type` in combiners only |
//! | `tuples` | a tuple is the whole value of an operator or block on tuples, with a component of each of their types; a load names a component that exists |
//!
//! Op graph:
//!
//! | rule | invariant |
//! |---|---|
//! | `dim-order` | a dimension owns its variable; its extent uses variables of earlier dimensions only |
//! | `op-order` | an operator defines a tensor that is no input, once, and reads inputs and earlier results only, or in a [recurrence](crate::recurrence) what is computed before |
//! | `op-dims` | an operator has as many spatial dimensions as its tensor; none occurs twice; their extents use outer ones only |
//! | `op-size` | a value has at most [`MAX_VALUE_SIZE`] nodes when written out as a tree |
//! | `op-range` | what is computed has no declared range: only given elements are checked to be in theirs |
//! | `op-reduce` | there is a combiner exactly when there are reduced dimensions; it is the tensor's, if that is of tuples |
//! | `op-laws` | a user's combiner obeys the laws of a reduction on samples of the terms ([`crate::tuple::check_laws`]) |
//! | `op-bound` | the value uses variables of the operator's own dimensions only |
//! | `depth` | no expression is deeper than [`MAX_VALUE_DEPTH`] |
//! | `op-type` | the value is a scalar of the tensor's type |
//! | `outputs` | outputs are the tensors with that role, once each, and operators define them |
//!
//! Loop dialect:
//!
//! | rule | invariant |
//! |---|---|
//! | `bound` | an extent uses variables of enclosing loops only |
//! | `bound-once` | no loop or iterator binds a variable that is already bound around it |
//! | `extent-type` | extents, bindings and indices are scalar `Index`, predicates scalar `Bool` |
//! | `parallel-outermost` | a parallel loop is the outermost of its nest |
//! | `init-loops` | an `init` loop contains init blocks and `init` loops only |
//! | `iter-extents` | an iterator's extent uses earlier iterators only |
//! | `bindings` | bindings and predicates use enclosing loops' variables only |
//! | `block-body` | index and value use the block's own iterators only |
//! | `block-index` | there is an index for each dimension, over spatial iterators only |
//! | `block-type` | the value is a scalar of the tensor's type |
//! | `block-role` | compute and init blocks have no reduced iterators; no block writes an input; tuples are combined by their tensor's combiner, other elements by an operator; an atomic update is of one that goes on |
//! | `attached` | the variables in the extents of a tensor are bound wherever it is accessed |
//! | `prefetch` | stage and tensor exist; iterations of this loop or of one around are counted; the distance is at least 1, the locality from 0 to 3 |
//! | `written` | every output is written |
//!
//! Storage dialect:
//!
//! | rule | invariant |
//! |---|---|
//! | `buffers` | a tensor that is accessed has one buffer or is a table; sizes and offsets read tables only; offsets belong to inputs and outputs; a `reg` buffer has a constant size |
//! | `tables` | a table reads earlier tables only, calls nothing, is `i32` or `i64`, and has its function's shape; no two hold one function or share a buffer |
//! | `kernel-parallel` | a parallel loop is a kernel's last statement, after `let`s only |
//! | `barrier` | a barrier stands outside thread loops |
//! | `bound` | an expression uses variables of enclosing loops and earlier `let`s only |
//! | `bound-once` | as in the loop dialect |
//! | `scalars` | extents and `let`s are scalar `Index`; conditions of `if` scalar `Bool` |
//! | `store-type` | index `Index`, mask `Bool`, value of the tensor's type, all with equally many lanes |
//! | `store-target` | no store to an input, a constant input or a table; no statement writes a buffer twice |
//! | `bulk` | no loop is of kind `bulk`; a `bulk` stands outside thread loops and copies a box of 1 to 5 dimensions of at most 256 positions, the first contiguous, from a global buffer to a shared one of the same type; steps and the first dimension are multiples of 16 bytes, that is one line of 128 where lines are swizzled, and a slot has room for the box |
//! | `offload` | no loop is of kind `offload`; a `gemm` is of `f32` or `f64` buffers outside registers, and the result is not a factor |
//! | `tile` | no loop is of a tensor instruction's kind; operands have the instruction's types and scopes, the result is no factor; a warp's instruction stands outside loops over `thread.x`, and its result in registers has no strides |
//! | `atomic` | one element of a global buffer of a grid, combined as memory can |
//! | `written` | every output is written |
//! | `legal` | (form [`StorageForm::Legal`]) no vector, unrolled or `vthread` loops, no calls, constant indices into `reg` buffers |

mod decls;
mod empty;
mod exprs;
mod graph;
mod loops;
mod storage;
#[cfg(test)]
mod tests;

use crate::env::{Env, Role};
use crate::expr::{MAX_VALUE_DEPTH, MAX_VALUE_SIZE};
use crate::ids::{EntityId, ExprId, TensorId, VarId};
use crate::storage::Table;
use crate::text::{Names, print_expr};
use crate::types::ScalarType;
use rustc_hash::FxHashSet;

pub use graph::verify_graph;
pub use loops::verify_loops;
pub use storage::{StorageForm, verify_storage};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message} [{rule}]")]
pub struct VerifyError {
    /// The rule's name in this module's header.
    pub rule: &'static str,
    /// The statement or declaration, outermost first.
    pub place: String,
    /// What is wrong.
    pub message: String,
}

/// Which tensors an expression may read, and how.
#[derive(Clone, Copy)]
enum Loads<'a> {
    /// None; the rule that says so.
    No(&'static str),
    /// With an index for each dimension.
    MultiDim,
    /// With one flat offset.
    Flat,
    /// With one flat offset, from these; the rule that says so.
    Only(&'a FxHashSet<TensorId>, &'static str),
}

/// What an expression may consist of where it stands.
#[derive(Clone, Copy)]
struct Allow<'a> {
    loads: Loads<'a>,
    /// How many formal arguments there are, and the rule that says so.
    args: (u32, &'static str),
    /// The variables in scope and the rule that says so; nothing = any.
    vars: Option<(&'a FxHashSet<VarId>, &'static str)>,
    /// The rule that forbids calls, if they are forbidden.
    no_calls: Option<&'static str>,
    /// Whether vectors may occur.
    vectors: bool,
}

/// A verification under way.
struct Checker<'a> {
    env: &'a Env,
    place: Vec<String>,
    errors: Vec<VerifyError>,
    /// Expressions whose types were checked.
    typed: FxHashSet<ExprId>,
    /// Types of the operands of the combiner that is being checked.
    operands: Vec<ScalarType>,
    /// How deep each expression is, where there is a limit, and how many nodes it has when written out.
    depths: Vec<u32>,
    sizes: Vec<u64>,
}

impl<'a> Checker<'a> {
    fn new(env: &'a Env) -> Self {
        let (typed, operands) = Default::default();
        Self { env, place: Vec::new(), errors: Vec::new(), typed, operands, depths: Vec::new(), sizes: Vec::new() }
    }

    /// Refuses values that stages could not walk (rule `depth`), or print (`op-size`).
    fn limit_depth(&mut self) {
        let pool = &self.env.pool;
        self.depths.reserve(pool.len());
        self.sizes.reserve(pool.len());
        for e in (0..pool.len()).map(ExprId::from_index) {
            // Operands come before what is made of them.
            let operands = pool.children(e);
            let below = operands.iter().filter_map(|k| self.depths.get(k.index())).max();
            let inside =
                operands.iter().filter_map(|k| self.sizes.get(k.index())).fold(0, |n: u64, k| n.saturating_add(*k));
            self.depths.push(below.map_or(1, |d| d.saturating_add(1)));
            self.sizes.push(inside.saturating_add(1));
        }
    }

    fn is_too_deep(&self, e: ExprId) -> bool {
        self.depths.get(e.index()).is_some_and(|&d| d > MAX_VALUE_DEPTH)
    }

    /// Whether it would fill more nodes than are printed, when written out as a tree.
    fn is_too_large(&self, e: ExprId) -> bool {
        self.sizes.get(e.index()).is_some_and(|&n| n > MAX_VALUE_SIZE)
    }

    fn finish(self) -> Result<(), Vec<VerifyError>> {
        if self.errors.is_empty() { Ok(()) } else { Err(self.errors) }
    }

    fn error(&mut self, rule: &'static str, message: impl Into<String>) {
        let place = if self.place.is_empty() { "module".to_owned() } else { self.place.join(", ") };
        let error = VerifyError { rule, place, message: message.into() };
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// Runs `f` with `place` as the innermost place.
    fn within(&mut self, place: String, f: impl FnOnce(&mut Self)) {
        self.place.push(place);
        f(self);
        self.place.pop();
    }

    /// Whether the expression exists.
    fn known(&self, e: ExprId) -> bool {
        e.index() < self.env.pool.len()
    }

    fn show(&self, e: ExprId) -> String {
        if self.known(e) && !self.is_too_deep(e) && !self.is_too_large(e) {
            print_expr(self.env, e, &Names::default())
        } else {
            "?".into()
        }
    }

    fn tensor_name(&self, t: TensorId) -> String {
        self.env.tensors.get(t).map_or_else(|| format!("@?{t:?}"), |t| format!("@{}", t.name))
    }

    fn var_name(&self, v: VarId) -> String {
        self.env.vars.get(v).map_or_else(|| format!("%?{v:?}"), |v| format!("%{}", v.name))
    }

    /// Whether tensor `t` exists; an error if not.
    fn exists(&mut self, t: TensorId) -> bool {
        let there = self.env.tensors.get(t).is_some();
        if !there {
            self.error("entities", format!("there is no tensor {t:?}"));
        }
        there
    }

    /// Every output that has elements must be among `written`; `tables` hold functions of the batch.
    fn all_written(&mut self, written: &FxHashSet<TensorId>, tables: &[Table]) {
        for (id, t) in self.env.tensors.iter() {
            if t.role == Role::Output && !written.contains(&id) && !empty::is_empty(self.env, tables, t) {
                self.error("written", format!("output `@{}` is never written", t.name));
            }
        }
    }
}
