//! A few concrete iterations in which the facts hold. A polynomial that is negative in one of them
//! cannot be proved to be at least 0, so no search is spent on it.

use super::concrete::{Batch, Iteration};
use super::context::Cx;
use cora_ir::ExprId;
use cora_ir::affine::Poly;
use std::rc::Rc;

/// Iterations kept, batches tried to find them, and iterations tried in each.
const SAMPLES: usize = 12;
const BATCHES: u64 = 24;
const ITERATIONS: u64 = 2;

/// A batch and an iteration.
pub(super) struct Sample {
    batch: Batch,
    vars: Iteration,
}

impl Cx<'_> {
    /// Whether `p < 0` in a sample in which all of `cases` are at least 0.
    pub(super) fn falsified(&mut self, p: &Poly, cases: &[Poly]) -> bool {
        let values = self.sampled_poly(p);
        let negative = |v: &Option<i64>| v.is_some_and(|v| v < 0);
        if !values.iter().any(negative) {
            return false;
        }
        let cases: Vec<Vec<Option<i64>>> = cases.iter().map(|c| self.sampled_poly(c)).collect();
        (0..values.len()).any(|i| negative(&values[i]) && cases.iter().all(|c| c[i].is_some_and(|v| v >= 0)))
    }

    fn sampled_poly(&mut self, p: &Poly) -> Vec<Option<i64>> {
        let n = self.sample_count();
        let mut sum = vec![Some(0i64); n];
        for (m, &k) in &p.terms {
            let mut product = vec![Some(k); n];
            for &atom in m {
                let values = self.sampled(atom);
                for (x, v) in product.iter_mut().zip(values.iter()) {
                    *x = x.and_then(|x| v.and_then(|v| x.checked_mul(v)));
                }
            }
            for (s, x) in sum.iter_mut().zip(product) {
                *s = s.and_then(|s| x.and_then(|x| s.checked_add(x)));
            }
        }
        sum
    }

    fn sampled(&mut self, e: ExprId) -> Rc<[Option<i64>]> {
        if let Some(v) = self.cache.values.get(&(self.id, e)) {
            return Rc::clone(v);
        }
        let env = &*self.env;
        let samples = self.cache.samples.get_mut(&self.id).map(Vec::as_mut_slice).unwrap_or_default();
        let v: Rc<[Option<i64>]> = samples.iter_mut().map(|s| s.batch.eval(env, e, &s.vars)).collect();
        self.cache.values.insert((self.id, e), Rc::clone(&v));
        v
    }

    fn sample_count(&mut self) -> usize {
        if let Some(s) = self.cache.samples.get(&self.id) {
            return s.len();
        }
        let mut found = Vec::new();
        // Inside a definition there are no iterations to sample.
        let batches = if self.body_of.is_some() { 0 } else { BATCHES };
        for seed in 0..batches {
            let mut batch = Batch::new(seed);
            for i in 0..ITERATIONS {
                if found.len() < SAMPLES
                    && let Some(vars) = batch.iteration(self.env, self.facts, seed * ITERATIONS + i)
                {
                    found.push(Sample { batch: batch.clone(), vars });
                }
            }
        }
        let n = found.len();
        self.cache.samples.insert(self.id, found);
        n
    }
}
