//! Ids, types, hash-consed expressions, uninterpreted functions; the op graph, dimension graphs and
//! schedules as data; the loop and storage dialects with printer, parser, verifier and interpreter
//! for each; diagnostics as data.
//!
//! Absent from this crate: LLVM, solvers, equality saturation, files and other I/O, lowering.
#![forbid(unsafe_code)]

pub mod affine;
pub mod diag;
pub mod dimgraph;
pub mod env;
pub mod expr;
pub mod graph;
pub mod ids;
pub mod interp;
pub mod intrinsic;
pub mod layout;
pub mod loops;
pub mod schedule;
pub mod storage;
pub mod text;
pub mod tuple;
pub mod types;
pub mod verify;

pub use diag::Diagnostic;
pub use env::{Dim, Env, Param, Role, Scope, Tensor, TensorDim, Uf, UfDef};
pub use expr::{Args, Expr, ExprPool};
pub use graph::{Graph, Op};
pub use ids::{Arena, CombinerId, DimId, EntityId, ExprId, ParamId, TensorId, UfId, VarId};
pub use intrinsic::{Intrinsic, IntrinsicId};
pub use tuple::{Reduction, TupleCombiner};
pub use types::{BinOp, Combiner, Literal, MAX_LANES, ScalarType, Type, UnOp};
