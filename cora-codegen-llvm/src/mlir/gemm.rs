//! Products of matrices: calls of functions that the runtime finds in a library.
//!
//! The code has a variable for each function, named by [`Import::symbol`], which the runtime sets before the first run.

use cora_ir::ScalarType;
use cora_ir::storage::{Gemm, Matrix};
use cora_runtime::abi::Import;

use super::EmitFault;
use super::builder::Val;
use super::expr::Emitter;

/// The function that multiplies matrices of a type.
pub(crate) fn import(ty: ScalarType) -> Option<Import> {
    match ty {
        ScalarType::F32 => Some(Import::GemmF32),
        ScalarType::F64 => Some(Import::GemmF64),
        _ => None,
    }
}

impl Emitter<'_> {
    /// A call of [`GemmFn`](cora_runtime::abi::GemmFn).
    pub(super) fn gemm(&mut self, g: &Gemm) -> Result<(), EmitFault> {
        if self.threads.is_some() {
            return Err(EmitFault::NoLibrary);
        }
        let ty = self.module.env.tensors[g.c.tensor].ty;
        let import = import(ty).ok_or(EmitFault::NotLegal("a product of matrices that are not f32 or f64"))?;
        let mut args: Vec<(Val, &str)> = Vec::new();
        for e in g.sizes {
            args.push((self.emit_scalar(e, "a size of a matrix is a vector")?, "i64"));
        }
        for m in [&g.c, &g.a, &g.b] {
            self.matrix(m, &mut args)?;
        }
        let accumulate = self.b.i64(i64::from(g.accumulate));
        args.push((accumulate, "i64"));
        let variable = self.library.import(import);
        let values: Vec<String> = args.iter().map(|a| a.0.to_string()).collect();
        let types: Vec<&str> = args.iter().map(|a| a.1).collect();
        // The names of the two values are the text's own: the builder's are numbers.
        let n = self.b.calls();
        self.b.stmt(&format!("%import{n} = llvm.mlir.addressof @{variable} : !llvm.ptr"));
        self.b.stmt(&format!("%callee{n} = llvm.load %import{n} {{alignment = 8 : i64}} : !llvm.ptr -> !llvm.ptr"));
        let call = format!("llvm.call %callee{n}({}) : !llvm.ptr, ({}) -> ()", values.join(", "), types.join(", "));
        self.b.stmt(&call);
        self.forget(&[g.c.tensor]);
        Ok(())
    }

    fn matrix(&mut self, m: &Matrix, args: &mut Vec<(Val, &str)>) -> Result<(), EmitFault> {
        args.push((self.address(m.tensor, m.offset)?, "!llvm.ptr"));
        for e in [m.row, m.column] {
            args.push((self.emit_scalar(e, "a stride of a matrix is a vector")?, "i64"));
        }
        Ok(())
    }
}
