//! Batches at the edges of what a program accepts.

use cora::batch::{self, BatchValues, Source};
use cora::eval::Evaluator;
use cora::ir::interp::{self, Data};
use cora::ir::{Env, ExprId, Role, UfDef};
use cora::runtime::array::ValueRanges;

/// How to choose parameters and lengths, whatever the program.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For messages.
    pub name: String,
    /// The value of every parameter, where its range allows.
    pub param: i64,
    /// Entries of every extent function, over and over, where its range allows.
    pub lengths: Vec<i64>,
    /// By how many places each further function (or parameter) begins later in the list.
    pub shift: usize,
}

/// A plan in which all functions have the same entries.
pub fn plan(name: &str, param: i64, lengths: &[i64]) -> Plan {
    Plan { name: name.to_owned(), param, lengths: lengths.to_vec(), shift: 0 }
}

/// The plans that matter for a program: without extent functions only its parameters vary. Else also rows around tiles of
/// usual sizes.
pub fn edges(env: &Env) -> Vec<Plan> {
    edges_around(env, &[14, 16, 32, 64])
}

/// [`edges`] with rows around these sizes of tiles.
pub fn edges_around(env: &Env, tiles: &[i64]) -> Vec<Plan> {
    let functions = env.ufs.iter().filter(|(_, u)| matches!(u.def, UfDef::Extent { .. })).count();
    if functions == 0 {
        let sizes = [0, 1, 2, 13, 14, 15, 16, 17, 31, 32, 33, 63, 64, 65];
        return sizes.iter().map(|&n| plan(&format!("all parameters {n}"), n, &[0])).collect();
    }
    let mut one_long = vec![0; 40];
    one_long[20] = 90;
    let mut out = vec![
        plan("no row", 0, &[5]),
        plan("one row", 1, &[7]),
        plan("everything at its least", i64::MIN, &[i64::MIN]),
        plan("all rows empty", 4, &[0]),
        plan("first row empty", 3, &[0, 3, 5]),
        plan("last row empty", 3, &[4, 6, 0]),
        plan("rows of one", 5, &[1]),
        plan("equal rows", 3, &[6]),
        plan("one long row among empty ones", 40, &one_long),
        Plan { shift: 1, ..plan("many rows", 9, &[3, 0, 17, 8, 1, 30, 0, 2, 11]) },
    ];
    for &tile in tiles {
        let around = plan(&format!("rows around {tile}"), 4, &[1, tile - 1, tile, tile + 1]);
        if functions > 1 {
            out.push(Plan { shift: 1, name: format!("{}, shifted", around.name), ..around.clone() });
        }
        out.push(around);
    }
    out
}

/// Parameters and lengths as planned, moved into their ranges.
pub fn values(env: &Env, plan: &Plan) -> BatchValues {
    let at = |n: usize, i: usize| plan.lengths[(i + n * plan.shift) % plan.lengths.len()];
    let mut params = Vec::new();
    for (_, p) in env.params.iter() {
        params.push((p.name.clone(), plan.param.clamp(p.lo, p.hi)));
    }
    let values: Vec<i64> = params.iter().map(|p| p.1).collect();
    let mut lengths: Vec<(String, Vec<i64>)> = Vec::new();
    for (n, (f, u)) in env.ufs.iter().filter(|(_, u)| matches!(u.def, UfDef::Extent { .. })).enumerate() {
        let UfDef::Extent { lo, hi } = u.def else { continue };
        // How many entries it has follows from the functions before it.
        let source = Source { params: &params, lengths: &lengths, files: &[], skip: 0, seed: 0 };
        let count = batch::resolve(env, &source).expect("values in range").extents[&f].len();
        let (lo, hi) = (bound(env, &values, lo), bound(env, &values, hi));
        lengths.push((u.name.clone(), (0..count).map(|i| at(n, i).clamp(lo, hi.max(lo))).collect()));
    }
    batch::resolve(env, &Source { params: &params, lengths: &lengths, files: &[], skip: 0, seed: 0 })
        .expect("values in range")
}

/// The value of a bound over constants and parameters.
fn bound(env: &Env, params: &[i64], e: ExprId) -> i64 {
    Evaluator::new(env, params, &Default::default()).closed(e, &[])
}

/// Elements for an input, if not random ones: from its name and their number.
pub type Fill = fn(&str, usize) -> Option<Data>;

/// The interpreter's batch, with inputs from `fill`, else random. Const inputs depend on their size only.
pub fn with_inputs(env: &Env, values: &BatchValues, seed: u64, fill: Fill) -> interp::Batch {
    let mut out =
        interp::Batch { params: values.params.clone(), extents: values.extents.clone(), ..Default::default() };
    for (id, t) in env.tensors.iter().filter(|(_, t)| matches!(t.role, Role::Input | Role::ConstInput)) {
        let extents: Vec<ExprId> = t.dims.iter().map(|d| d.extent).collect();
        let count = batch::count(env, values, &extents).expect("a small tensor");
        let ranges = t.range.map(|(lo, hi)| {
            let known = Evaluator::new(env, &values.params, &values.extents);
            let mut each = Vec::new();
            known.each_point(&extents, &mut Vec::new(), &mut |at| {
                each.push((known.closed(lo, at), known.closed(hi, at)));
                true
            });
            ValueRanges::of_each(each)
        });
        let seed = if t.role == Role::ConstInput { 0 } else { seed };
        let data = fill(&t.name, count).unwrap_or_else(|| cora::inputs::random(env, id, count, ranges.as_ref(), seed));
        out.inputs.insert(id, data);
    }
    out
}
