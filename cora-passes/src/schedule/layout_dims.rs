//! What the primitives that change a tensor's stored dimensions have in common.

use super::tensor_called;
use crate::lower::layout::sizes;
use crate::lower::stored::Stored;
use cora_ir::layout::{LayoutStep, stored_names};
use cora_ir::loops::LoopModule;
use cora_ir::{Diagnostic, Expr, ExprId, Role, Scope, TensorId};

/// A tensor whose layout may change.
pub(super) struct Target {
    pub tensor: TensorId,
    /// Names of its stored dimensions as they are.
    pub names: Vec<String>,
    /// The same, with the other name of each dimension that has one.
    others: Vec<String>,
}

impl Target {
    /// # Errors
    /// `E0463` unknown tensor, `E0475` one that the host sees.
    pub(super) fn find(m: &LoopModule, name: &str) -> Result<Self, Diagnostic> {
        let tensor = tensor_called(m, name)?;
        let t = &m.env.tensors[tensor];
        if t.role != Role::Temp {
            let (kind, hint) = match t.role {
                Role::Output => {
                    ("an output", "compute it in a stage of another layout, by `cache_write` or an operator")
                }
                _ => ("an input", "read it through a copy of another layout, by `cache_read`"),
            };
            return Err(Diagnostic::new("E0475", format!("`{name}` is {kind}: its storage is row-major as declared"))
                .hint(hint));
        }
        let own = t.dims.iter().map(|d| d.name.clone()).collect();
        let names = stored_names(&t.layout, own).unwrap_or_default();
        let own = t.dims.iter().map(|d| d.also.as_ref().unwrap_or(&d.name).clone()).collect();
        let others = stored_names(&t.layout, own).unwrap_or_default();
        Ok(Self { tensor, names, others })
    }

    /// The position of a stored dimension.
    ///
    /// # Errors
    /// `E0470` there is none of that name.
    pub(super) fn position(&self, m: &LoopModule, dim: &str) -> Result<usize, Diagnostic> {
        let position = |names: &[String]| names.iter().position(|n| n == dim);
        position(&self.names).or_else(|| position(&self.others)).ok_or_else(|| {
            let name = &m.env.tensors[self.tensor].name;
            Diagnostic::new("E0470", format!("tensor `{name}` has no dimension `{dim}`"))
                .hint(format!("its stored dimensions are: {}", self.names.join(", ")))
        })
    }

    /// # Errors
    /// `E0478` a dimension that the step leaves has the name already.
    pub(super) fn fresh(&self, m: &LoopModule, name: &str, replaced: &[usize]) -> Result<(), Diagnostic> {
        let taken = self.names.iter().enumerate().any(|(d, n)| n == name && !replaced.contains(&d));
        if taken {
            let tensor = &m.env.tensors[self.tensor].name;
            return Err(Diagnostic::new("E0478", format!("tensor `{tensor}` already has a dimension `{name}`"))
                .hint("choose another name for the new dimension"));
        }
        Ok(())
    }

    /// The stored sizes as they are, the j-th over `Arg(0..j)`. A buffer inside a loop is a box: its
    /// sizes depend on nothing, and there is no list.
    pub(super) fn extents(&self, m: &mut LoopModule) -> Option<Vec<ExprId>> {
        let t = m.env.tensors[self.tensor].clone();
        if t.scope != Scope::Global {
            return None;
        }
        let own: Vec<ExprId> = t.dims.iter().map(|d| d.storage).collect();
        let own = sizes(&mut m.env, &own);
        Some(Stored::new(&mut m.env, &format!("{}.row", t.name), own, &t.layout).extents)
    }

    pub(super) fn push(&self, m: &mut LoopModule, step: LayoutStep) {
        m.env.tensors[self.tensor].layout.push(step);
    }
}

/// Whether `e` depends on the index in dimension `d`.
pub(super) fn depends(m: &LoopModule, e: ExprId, d: usize) -> bool {
    m.env.pool.any(e, &mut |n| *n == Expr::Arg(d as u32))
}
