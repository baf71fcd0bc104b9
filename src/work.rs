//! How much work kernels do: multiply-adds of the unpadded program, and those issued.
//!
//! A multiply-add is one term of a sum whose term is a product of two different values that are
//! read. Useful ones are counted on the op graph for the batch's true lengths, without what masks that compare positions
//! leave out, and where each term counts at one position only, there; issued ones on the scheduled loops, surplus iterations
//! and masked lanes included.

use crate::driver::Lowered;
use crate::eval::{Evaluator, Vars};
use cora_ir::interp::Batch;
use cora_ir::loops::{Block, BlockRole, IterKind, LoopKind, LoopModule, Stmt};
use cora_ir::{BinOp, Combiner, Expr, ExprId, ExprPool, Reduction, UnOp, VarId};
use cora_passes::lower::scatter_terms::positions_of_terms;
use cora_passes::schedule::tree::{stages_below, writes_below};

/// `(useful, issued)` floating-point operations (two for a multiply-add) of each kernel, that is of
/// each top-level nest of its loops. What is useful of an operator in several nests is shared out as the issued ones are.
pub fn kernel_flops(lowered: &Lowered, batch: &Batch) -> Vec<(f64, f64)> {
    let (graph, loops) = (&lowered.counted, &lowered.loops);
    let truth = Evaluator::new(&graph.env, &batch.params, &batch.extents);
    let scheduled = Evaluator::new(&loops.env, &batch.params, &batch.extents);
    let mut work: Vec<(f64, f64)> =
        loops.body.iter().map(|s| (0.0, 2.0 * issued(&scheduled, (loops, lowered.grid), s, &mut Vec::new()))).collect();
    // The operator that a stage is of: a tensor of that name, or one that was made for it.
    let of_operator = |name: &str| {
        let made_for = |op: &str| name.strip_prefix(op).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let names = graph.ops.iter().map(|op| graph.env.tensors[op.tensor].name.as_str());
        names.filter(|op| made_for(op)).max_by_key(|op| op.len()).map(str::to_owned)
    };
    let operators = |s: &Stmt| -> Vec<String> {
        let s = std::slice::from_ref(s);
        // One stage may go on with another one's sums.
        let written = writes_below(s).into_iter().chain(stages_below(s));
        written.filter_map(|t| of_operator(&loops.env.tensors[t].name)).collect()
    };
    let written: Vec<Vec<String>> = loops.body.iter().map(operators).collect();
    for op in &graph.ops {
        if op.combiner != Some(Reduction::Op(Combiner::Sum)) || !is_product(&graph.env.pool, op.value) {
            continue;
        }
        let own = |v| op.spatial.iter().any(|&d| graph.env.dims[d].var == v);
        let positions = positions_of_terms(&graph.env.pool, Combiner::Sum, op.value, own);
        let dims = op.spatial.iter().chain(&op.reduce).map(|&d| &graph.env.dims[d]);
        let nest: Nest = dims.filter(|d| !positions.contains(&d.var)).map(|d| (d.var, d.extent, None)).collect();
        let useful = 2.0 * points(&truth, &graph.env.pool, &nest, &mut Vars::default());
        let name = &graph.env.tensors[op.tensor].name;
        let parts: Vec<usize> = (0..work.len()).filter(|&n| written[n].contains(name)).collect();
        let all: f64 = parts.iter().map(|&n| work[n].1).sum();
        for &n in &parts {
            work[n].0 += useful * if all > 0.0 { work[n].1 / all } else { 1.0 / parts.len() as f64 };
        }
    }
    work
}

/// Whether a term of a sum is a product of two things that are read; factors that are not, signs and casts do not count.
fn is_product(pool: &ExprPool, e: ExprId) -> bool {
    let reads = |x| pool.any(x, &mut |n| matches!(n, Expr::Load { .. }));
    match *pool.get(e) {
        Expr::Select(_, a, _) | Expr::Un(UnOp::Neg, a) | Expr::Cast(_, a) => is_product(pool, a),
        Expr::Bin(BinOp::Mul, a, b) => match (reads(a), reads(b)) {
            (true, true) => a != b,
            (true, false) => is_product(pool, a),
            (false, true) => is_product(pool, b),
            (false, false) => false,
        },
        _ => false,
    }
}

type Nest = Vec<(VarId, ExprId, Option<i64>)>;

fn issued(eval: &Evaluator, (m, on_grid): (&LoopModule, bool), s: &Stmt, nest: &mut Nest) -> f64 {
    match s {
        Stmt::For(l) => {
            let lanes = if l.kind == LoopKind::Vector { m.env.pool.constant_bound(l.extent) } else { None };
            nest.push((l.var, l.extent, lanes));
            let sum = l.body.iter().map(|s| issued(eval, (m, on_grid), s, nest)).sum();
            nest.pop();
            sum
        }
        Stmt::Block(b)
            if b.role == BlockRole::Update(Reduction::Op(Combiner::Sum)) && is_product(&m.env.pool, b.value) =>
        {
            let positions = if on_grid { Vec::new() } else { positions(m, b) };
            let nest: Nest = nest.iter().filter(|l| !positions.contains(&l.0)).copied().collect();
            points(eval, &m.env.pool, &nest, &mut Vars::default())
        }
        Stmt::Block(_) => 0.0,
    }
}

/// The loops over positions that terms go to at once, one of all: on a processor.
fn positions(m: &LoopModule, b: &Block) -> Vec<VarId> {
    let pool = &m.env.pool;
    let spatial = |v| b.iters.iter().any(|i| i.var == v && i.kind == IterKind::Spatial);
    let found = positions_of_terms(pool, Combiner::Sum, b.value, spatial);
    b.iters.iter().filter(|i| found.contains(&i.var)).flat_map(|i| pool.vars_of(i.binding)).collect()
}

/// Iterations of a nest; a loop on which no inner extent depends is a factor.
fn points(eval: &Evaluator, pool: &ExprPool, nest: &[(VarId, ExprId, Option<i64>)], vars: &mut Vars) -> f64 {
    let Some((&(var, extent, lanes), inner)) = nest.split_first() else { return 1.0 };
    let n = eval.value(extent, &[], vars).max(0);
    if n == 0 {
        return 0.0;
    }
    if !inner.iter().any(|(_, e, fixed)| fixed.is_none() && pool.uses_var(*e, var)) {
        return lanes.unwrap_or(n) as f64 * points(eval, pool, inner, vars);
    }
    let mut sum = 0.0;
    for i in 0..n {
        vars.insert(var, i);
        sum += points(eval, pool, inner, vars);
    }
    vars.remove(&var);
    sum
}
