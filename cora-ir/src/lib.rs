//! Ids, types, hash-consed expressions, uninterpreted functions; the op graph, dimension graphs and
//! schedules as data; the loop and storage dialects with printer, parser, verifier and interpreter
//! for each; diagnostics as data.
//!
//! Every stage has a text, and a meaning that the interpreter gives it:
//!
//! ```
//! use cora_ir::interp::{Batch, Data, Options, run_graph};
//!
//! let graph = cora_ir::text::parse_graph(
//!     "graph.module @sums {
//!        param M in 0..=64
//!        uf @lens($0 < M) = extent in 0..=128
//!        dim %b = M
//!        dim %i = @lens(%b)
//!        tensor @A[b: M, i: @lens($0)] : f32 input
//!        tensor @S[b: M] : f32 output
//!
//!        op @S[%b] = sum[%i] @A[%b, %i]
//!        output @S
//!      }",
//! )?;
//! let mut batch = Batch { params: vec![3], ..Batch::default() };
//! batch.extents.extend(graph.env.ufs.ids().map(|lens| (lens, vec![2, 0, 3])));
//! batch.inputs.extend(graph.env.tensor_named("A").map(|a| (a, Data::F64(vec![1.0, 2.0, 3.0, 4.0, 5.0]))));
//! let results = run_graph(&graph, &batch, &Options::default())?;
//! assert_eq!(results.outputs[0].data, Data::F64(vec![3.0, 0.0, 12.0]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Absent from this crate: LLVM, solvers, equality saturation, files and other I/O, lowering.
#![forbid(unsafe_code)]

pub mod affine;
mod branches;
pub mod diag;
pub mod dimgraph;
pub mod env;
pub mod expr;
mod full_rows;
pub mod graph;
pub mod ids;
pub mod interp;
pub mod intrinsic;
pub mod layout;
pub mod loops;
pub mod recurrence;
pub mod schedule;
pub mod storage;
pub mod tensor_set;
pub mod text;
pub mod tuple;
pub mod types;
pub mod verify;

pub use diag::Diagnostic;
pub use env::{Dim, Env, Param, Role, Scope, Tensor, TensorDim, Uf, UfDef};
pub use expr::{Args, Expr, ExprPool, PoolState};
pub use graph::{Graph, Op};
pub use ids::{Arena, CombinerId, DimId, EntityId, ExprId, ParamId, TensorId, UfId, VarId};
pub use intrinsic::{Intrinsic, IntrinsicId};
pub use tensor_set::TensorSet;
pub use tuple::{Reduction, TupleCombiner};
pub use types::{BinOp, Combiner, Literal, MAX_LANES, ScalarType, Type, UnOp};
