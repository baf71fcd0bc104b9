//! Comparison with the reference interpreter.
//!
//! The tolerance follows from the element type and from how long the sums behind an output are:
//! rounding errors of a sum of n terms grow like `eps * sqrt(n)` relative to the size of the terms,
//! so an element may differ by `8 eps + 2 sqrt(sum of n e^2)` of the greater of its own magnitude and the
//! usual one of the output's elements (their root mean square or their median, whichever is less): the
//! sum is over the longest chain of operators up to the output, n their reduction lengths, e the epsilon
//! that they accumulate in, and eps the greatest on the way of what is computed. Inputs are exact, and so
//! is what is only read, chosen or copied: it counts whatever its type is.
//!
//! That measure knows nothing of cancellation: a small sum of large terms may be off by more. Where it
//! fails, [`reconsider`] compares with the bounds that error analysis of the operators gives for each
//! element ([`error_bounds`]), which follow from the magnitudes of the summands. Infinities, NaNs and exact integers are
//! wanted as they are.

use cora_ir::interp::{Batch, Data, InterpError, Options, Output, run_graph};
use cora_ir::{Expr, ExprId, Graph, TensorId, UnOp};
use cora_passes::graph::error_bounds::{allowed, epsilon, error_bounds, within};
use rustc_hash::FxHashMap;

/// How one output compares.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Comparison {
    /// The output's name.
    pub output: String,
    /// Elements compared.
    pub elements: usize,
    /// Greatest difference, relative as described above; infinite where one is NaN or infinite and
    /// the other is not the same.
    pub max_error: f64,
    /// The element (row-major ragged order) where it is.
    pub at: usize,
    /// Greatest error allowed.
    pub tolerance: f64,
    /// Whether every element is within the bound of its own, although the greatest error is not allowed.
    pub within_bounds: bool,
}

impl Comparison {
    /// Whether the output is as it should be.
    pub fn passes(&self) -> bool {
        self.max_error <= self.tolerance || self.within_bounds
    }
}

/// The tolerance for each output of `graph` for this batch.
pub fn tolerances(graph: &Graph, batch: &Batch) -> FxHashMap<TensorId, f64> {
    // For each tensor the sum of `n eps^2` over the longest chain of operators before it, and the greatest epsilon there.
    let mut chain: FxHashMap<TensorId, (f64, f64)> = FxHashMap::default();
    for op in &graph.ops {
        let (mut longest, mut eps): (f64, f64) = (0.0, 0.0);
        let mut rounds = op.combiner.is_some();
        graph.env.pool.walk(op.value, &mut |id, e| match e {
            Expr::Load { tensor, .. } => {
                let (n, e) = chain.get(tensor).copied().unwrap_or_default();
                (longest, eps) = (longest.max(n), eps.max(e));
            }
            Expr::Lit(_) | Expr::Select(..) => {}
            _ => {
                let here = epsilon(graph.env.pool.ty(id).scalar);
                rounds |= here > 0.0;
                eps = eps.max(here);
            }
        });
        let own = if rounds { epsilon(graph.env.tensors[op.tensor].ty) } else { 0.0 };
        eps = eps.max(own);
        let terms: f64 = op.reduce.iter().map(|&d| greatest(graph, batch, graph.env.dims[d].extent)).product();
        // An integer may be cut from a float: its operands' epsilon counts.
        let rounding = if own > 0.0 { own } else { eps };
        chain.insert(op.tensor, (longest + terms * rounding * rounding, eps));
    }
    graph
        .outputs
        .iter()
        .map(|&t| {
            let (squares, eps) = chain.get(&t).copied().unwrap_or((0.0, 0.0));
            let exact = !graph.env.tensors[t].ty.is_float();
            (t, if exact { 0.0 } else { 8.0 * eps + 2.0 * squares.sqrt() })
        })
        .collect()
}

/// A bound on an extent for this batch: functions at their greatest given value.
fn greatest(graph: &Graph, batch: &Batch, e: cora_ir::ExprId) -> f64 {
    use cora_ir::{BinOp, EntityId};
    let pool = &graph.env.pool;
    match pool.get(e) {
        Expr::Int(v) => *v as f64,
        Expr::Param(p) => batch.params.get(p.index()).copied().unwrap_or(0) as f64,
        Expr::Call(f, _) => batch.extents.get(f).and_then(|t| t.iter().max()).copied().unwrap_or(0) as f64,
        Expr::Bin(BinOp::Add, a, b) => greatest(graph, batch, *a) + greatest(graph, batch, *b),
        Expr::Bin(BinOp::Mul, a, b) => greatest(graph, batch, *a) * greatest(graph, batch, *b),
        Expr::Bin(BinOp::Min, a, b) => greatest(graph, batch, *a).min(greatest(graph, batch, *b)),
        Expr::Bin(BinOp::Max, a, b) => greatest(graph, batch, *a).max(greatest(graph, batch, *b)),
        Expr::Bin(_, a, _) => greatest(graph, batch, *a),
        Expr::Var(v) => {
            graph.env.dims.iter().find(|(_, d)| d.var == *v).map_or(1.0, |(_, d)| greatest(graph, batch, d.extent))
        }
        _ => 1.0,
    }
}

/// Compares a whole output with what the reference evaluated of it.
pub fn compare(name: &str, got: &Data, want: &Output, tolerance: f64) -> Comparison {
    let mut worst =
        Comparison { output: name.to_owned(), elements: 0, max_error: 0.0, at: 0, tolerance, within_bounds: false };
    let usual = usual_magnitude(&want.data);
    let mut k = 0;
    for range in &want.ranges {
        for at in range.clone() {
            let error = match (got.get(at), want.data.get(k)) {
                _ if tolerance == 0.0 && !same_integer(got, at, &want.data, k) => f64::INFINITY,
                (Some(g), Some(w)) => difference(g, w, usual, tolerance == 0.0),
                _ => f64::INFINITY,
            };
            k += 1;
            worst.elements += 1;
            if error > worst.max_error {
                worst.max_error = error;
                worst.at = at;
            }
        }
    }
    worst
}

/// Compares an output that is not close to the reference with the bound on the error of each element,
/// for which the program is interpreted once more.
///
/// # Errors
/// The interpreter's.
pub fn reconsider(
    graph: &Graph,
    batch: &Batch,
    options: &Options,
    comparison: &mut Comparison,
    got: &Data,
    want: &Output,
) -> Result<(), InterpError> {
    let (bounded, of) = error_bounds(graph);
    let Some(&bound) = of.get(&want.tensor) else { return Ok(()) };
    let found = run_graph(&bounded, batch, options)?;
    let Some(bound) = found.output(bound) else { return Ok(()) };
    let usual = usual_magnitude(&want.data);
    let near = |(k, at): (usize, usize)| match (got.get(at), want.data.get(k)) {
        (Some(g), Some(w)) => {
            within(g, w, bound.data.get(k), unknown(comparison.tolerance) * w.abs().max(usual).max(f64::MIN_POSITIVE))
        }
        _ => false,
    };
    comparison.within_bounds = want.ranges.iter().cloned().flatten().enumerate().all(near);
    Ok(())
}

/// For each output that need not be exact, the difference allowed of each element: by the tolerance or by the element's own
/// bound, whichever is greater.
///
/// # Errors
/// The interpreter's.
pub fn allowed_differences(
    source: &Graph,
    graph: &Graph,
    batch: &Batch,
    options: &Options,
    want: &[Output],
) -> Result<FxHashMap<TensorId, Vec<f64>>, InterpError> {
    let tolerances = tolerances(source, batch);
    let (bounded, of) = error_bounds(graph);
    let bounds = run_graph(&bounded, batch, options)?;
    let mut out = FxHashMap::default();
    for w in want {
        let bound = of.get(&w.tensor).and_then(|&b| bounds.output(b));
        let tolerance = tolerances.get(&w.tensor).copied().unwrap_or(0.0);
        if bound.is_none() && tolerance == 0.0 {
            continue;
        }
        let usual = usual_magnitude(&w.data);
        let element = |i: usize| {
            let size = w.data.get(i).unwrap_or(0.0).abs().max(usual).max(f64::MIN_POSITIVE);
            let size = if size.is_finite() { size } else { 0.0 };
            let bound = bound.and_then(|b| b.data.get(i));
            (tolerance * size).max(allowed(bound, unknown(tolerance) * size))
        };
        out.insert(w.tensor, (0..w.data.len()).map(element).collect());
    }
    Ok(out)
}

/// The tolerance where a bound says nothing, since so much may cancel or grow: half of the digits, which a wrong program
/// has hardly right, either.
fn unknown(tolerance: f64) -> f64 {
    // Eight times the rounding, and more.
    (tolerance / 8.0).sqrt().max(tolerance)
}

/// What elements are measured against that are small because terms cancelled: the root mean square of the finite ones, or
/// the median magnitude of those that are not 0 if it is less. A few great elements do not hide the errors of all others.
fn usual_magnitude(data: &Data) -> f64 {
    let finite = || (0..data.len()).filter_map(|i| data.get(i)).map(f64::abs).filter(|x| x.is_finite());
    let mut found: Vec<f64> = finite().filter(|x| *x > 0.0).collect();
    let middle = found.len() / 2;
    if found.is_empty() {
        return 0.0;
    }
    let median = *found.select_nth_unstable_by(middle, f64::total_cmp).1;
    // Squares of great elements overflow: then the median is less.
    let mean_square = finite().map(|x| x * x).sum::<f64>() / finite().count() as f64;
    median.min(mean_square.sqrt())
}

/// Whether two elements are the same if both are integers, not all of which are floats.
fn same_integer(a: &Data, i: usize, b: &Data, k: usize) -> bool {
    match (a, b) {
        (Data::I64(a), Data::I64(b)) => a.get(i) == b.get(k),
        _ => true,
    }
}

fn difference(g: f64, w: f64, usual: f64, exact: bool) -> f64 {
    if g == w || (g.is_nan() && w.is_nan()) {
        return 0.0;
    }
    if !g.is_finite() || !w.is_finite() || exact {
        return f64::INFINITY;
    }
    (g - w).abs() / w.abs().max(usual).max(f64::MIN_POSITIVE)
}

/// Whether results may jump where a floating-point number changes little.
pub fn has_steps(graph: &Graph) -> bool {
    let pool = &graph.env.pool;
    let float = |e: ExprId| pool.ty(e).scalar.is_float();
    let steps = |e: &Expr| match *e {
        Expr::Un(op, _) => matches!(op, UnOp::Floor | UnOp::Ceil | UnOp::Round),
        Expr::Bin(op, a, _) => op.is_comparison() && float(a),
        Expr::Cast(to, a) => float(a) && !to.is_float(),
        _ => false,
    };
    graph.ops.iter().any(|op| pool.any(op.value, &mut |e| steps(e)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cora_ir::EntityId;

    /// The tolerance of the output of a program on one row of 100.
    fn tolerance(of: &str) -> f64 {
        let text = format!("dim k = 100\ninput X[k] : f16\ninput W[k] : f32\n{of}\noutput Y\n");
        let graph = crate::frontend::parse_program("test", &text, &[]).unwrap_or_else(|e| panic!("{e:?}"));
        tolerances(&graph, &Batch::default())[&graph.outputs[0]]
    }

    /// The largest error that is found of `got` where `want` is right.
    fn error(got: Data, want: Data, tolerance: f64) -> f64 {
        let ranges = std::iter::once(0..want.len()).collect();
        let want = Output { tensor: TensorId::from_index(0), data: want, outer: None, ranges };
        compare("Y", &got, &want, tolerance).max_error
    }

    #[test]
    fn great_elements_hide_no_errors() {
        let row = |x: f64| Data::F64(vec![1e200, x, 1.0, 2.0, 0.0]);
        assert!(error(row(1.5), row(1.0), 1e-6) > 0.1);
        assert_eq!(error(row(1.0), row(1.0), 1e-6), 0.0);
        let one = |x: f64| Data::F64(vec![x]);
        assert_eq!(error(one(7.0), one(f64::NEG_INFINITY), 1e-6), f64::INFINITY);
        assert!(!within(7.0, f64::NEG_INFINITY, Some(f64::INFINITY), f64::INFINITY), "infinities are exact");
    }

    /// Where nothing bounds the errors half of the digits are asked for, and wrong ones are found.
    #[test]
    fn half_of_the_digits_where_nothing_is_known() {
        let asked = unknown(8.0 * f64::from(f32::EPSILON));
        assert!((1e-4..1e-3).contains(&asked), "{asked}");
        assert!(unknown(0.5) >= 0.5 && within(1.0001, 1.0, None, asked) && !within(1.01, 1.0, None, asked));
    }

    /// Only places that rounding cannot tell apart are taken for each other.
    #[test]
    fn places_of_extremes_are_known() {
        let graph = "dim k = 4\ninput X[k] : f32\nY = argmax(k) exp(X)\noutput Y\n";
        let graph = crate::frontend::parse_program("test", graph, &[]).unwrap_or_else(|e| panic!("{e:?}"));
        let (input, output) = (graph.env.tensor_named("X").expect("the input"), graph.outputs[0]);
        let near = |x: Vec<f64>, got: i64| {
            let batch = Batch { inputs: [(input, Data::F64(x))].into_iter().collect(), ..Batch::default() };
            let found = run_graph(&graph, &batch, &Options::default()).expect("it is evaluated");
            let (want, got) = (found.output(output).expect("Y"), Data::I64(vec![got]));
            let mut c = compare("Y", &got, want, 0.0);
            reconsider(&graph, &batch, &Options::default(), &mut c, &got, want).expect("it is evaluated");
            c.passes()
        };
        assert_eq!([-1, 0, 1, 2, 3].map(|y| near(vec![0.5, 2.0, 1.0, 0.0], y)), [false, false, true, false, false]);
        let twin = 2.0 + 2.0 * f64::from(f32::EPSILON);
        assert_eq!([1, 3].map(|y| near(vec![0.5, 2.0, 1.0, twin], y)), [true, true]);
    }

    #[test]
    fn integers_are_no_floats() {
        let one = |x: i64| Data::I64(vec![x]);
        assert_eq!(error(one((1 << 60) + 1), one(1 << 60), 0.0), f64::INFINITY);
        assert_eq!(error(one(1 << 60), one(1 << 60), 0.0), 0.0);
    }

    #[test]
    fn inputs_are_exact() {
        let single = f64::from(f32::EPSILON);
        assert_eq!(tolerance("Y[k] = X"), 0.0, "copied");
        assert_eq!(tolerance("Y = sum(k) f32(X) * W"), 8.0 * single + 2.0 * 10.0 * single, "accumulated in f32");
        assert!(tolerance("Y[k] = X * X") > 8.0 * epsilon(cora_ir::ScalarType::F16), "rounded to f16");
        assert!(tolerance("Z[k] = X * X\nY[k] = f32(Z)") > 8.0 * epsilon(cora_ir::ScalarType::F16), "rounded before");
    }
}
