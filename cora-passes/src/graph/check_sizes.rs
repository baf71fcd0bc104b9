//! Operators compute every element of their tensors and no other, and memory has room for them: a graph from the front end
//! is so by construction, one that was built or parsed need not be.

use crate::lower::Simplifier;
use cora_ir::{BinOp, Diagnostic, ExprId, Graph, VarId};

/// What is wrong with the sizes of tensors.
pub(super) fn check_sizes(graph: &mut Graph, simplifier: &mut dyn Simplifier) -> Vec<Diagnostic> {
    let mut errors = Vec::new();
    for n in 0..graph.ops.len() {
        let (tensor, spatial) = (graph.ops[n].tensor, graph.ops[n].spatial.clone());
        let env = &mut graph.env;
        let (mut loops, mut index): (Vec<(VarId, ExprId)>, Vec<ExprId>) = (Vec::new(), Vec::new());
        for (j, &d) in spatial.iter().enumerate() {
            let (var, extent) = (env.dims[d].var, env.dims[d].extent);
            let declared = env.pool.instantiate(env.tensors[tensor].dims[j].extent, &index);
            let same = env.pool.bin(BinOp::Eq, declared, extent);
            if declared != extent && !simplifier.prove(env, &loops, &[], same) {
                let (of, dim) = (env.tensors[tensor].name.clone(), env.dims[d].name.clone());
                errors.push(
                    Diagnostic::new(
                        "E0509",
                        format!("dimension `{dim}` of operator `{of}` is not as long as that of tensor `{of}`"),
                    )
                    .hint("give the tensor's dimension the same extent"),
                );
            }
            loops.push((var, extent));
            index.push(env.pool.var(var));
        }
    }
    for t in graph.env.tensors.ids().collect::<Vec<_>>() {
        let env = &mut graph.env;
        let (mut loops, mut index): (Vec<(VarId, ExprId)>, Vec<ExprId>) = (Vec::new(), Vec::new());
        for j in 0..env.tensors[t].dims.len() {
            let dim = env.tensors[t].dims[j].clone();
            let [extent, storage] = [dim.extent, dim.storage].map(|e| env.pool.instantiate(e, &index));
            let enough = env.pool.le(extent, storage);
            if extent != storage && !simplifier.prove(env, &loops, &[], enough) {
                let of = env.tensors[t].name.clone();
                errors.push(
                    Diagnostic::new(
                        "E0509",
                        format!("tensor `{of}` may store less of dimension `{}` than there is", dim.name),
                    )
                    .hint("pad it to a size that is no less than its extent"),
                );
            }
            let var = env.new_var(&dim.name);
            loops.push((var, extent));
            index.push(env.pool.var(var));
        }
    }
    errors
}
