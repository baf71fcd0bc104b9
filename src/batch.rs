//! A batch: parameters and the values of extent functions, from options, files or at random.

use crate::driver::list;
use crate::eval::Evaluator;
use cora_ir::{Diagnostic, Env, ExprId, UfDef, UfId};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustc_hash::FxHashMap;
use std::path::PathBuf;

/// Greatest number of entries of one extent function.
const MAX_ENTRIES: usize = 1 << 26;
/// Lengths made at random spread over at most this many values from the least.
const RANDOM_SPREAD: i64 = 48;
/// A parameter that is not given is this, where its range allows it.
const DEFAULT_PARAM: i64 = 8;

/// Values of everything that a program's shapes depend on.
#[derive(Clone, Debug, Default)]
pub struct BatchValues {
    /// By parameter id.
    pub params: Vec<i64>,
    /// Entries of each extent function in row-major ragged order of its domain.
    pub extents: FxHashMap<UfId, Vec<i64>>,
}

/// Where lengths come from.
pub struct Source<'a> {
    /// Values of parameters by name.
    pub params: &'a [(String, i64)],
    /// Entries of extent functions by name: at least as many as needed.
    pub lengths: &'a [(String, Vec<i64>)],
    /// The files that they come from, for messages.
    pub files: &'a [(String, PathBuf)],
    /// How many entries to leave out at the front.
    pub skip: usize,
    /// For what is not given.
    pub seed: u64,
}

/// Whether the program has these parameters, and these values are in their ranges.
///
/// # Errors
/// `E0304` a parameter that the program does not have, `E0305` a parameter outside its range.
pub fn check_params(env: &Env, given: &[(String, i64)]) -> Result<(), Diagnostic> {
    for (name, v) in given {
        let Some((_, p)) = env.params.iter().find(|(_, p)| p.name == *name) else {
            let known = list("parameter", env.params.iter().map(|(_, p)| p.name.as_str()));
            return Err(Diagnostic::new("E0304", format!("the program has no parameter `{name}`")).hint(known));
        };
        if *v < p.lo || *v > p.hi {
            return Err(Diagnostic::new(
                "E0305",
                format!("parameter `{}` = {v} is outside its declared range {}..={}", p.name, p.lo, p.hi),
            )
            .hint("correct the value, or widen the declared range"));
        }
    }
    Ok(())
}

/// Chooses parameters, then the entries of each extent function in order of declaration.
///
/// # Errors
/// As [`check_params`]; `E0304` a function that the program does not have, `E0306` an entry outside its range, `E0311` a table too large, `E0329` too few entries: the runtime's codes for the same mistakes.
pub fn resolve(env: &Env, source: &Source) -> Result<BatchValues, Diagnostic> {
    check_params(env, source.params)?;
    for (name, _) in source.lengths {
        if !env.ufs.iter().any(|(_, u)| u.name == *name && matches!(u.def, UfDef::Extent { .. })) {
            let given = env.ufs.iter().filter(|(_, u)| matches!(u.def, UfDef::Extent { .. }));
            let known = list("extent function", given.map(|(_, u)| u.name.as_str()));
            return Err(Diagnostic::new("E0304", format!("the program has no extent function `{name}`")).hint(known));
        }
    }
    let mut params = Vec::new();
    for (_, p) in env.params.iter() {
        let given = source.params.iter().rev().find(|(n, _)| *n == p.name).map(|g| g.1);
        params.push(given.unwrap_or_else(|| DEFAULT_PARAM.clamp(p.lo, p.hi)));
    }
    let mut rng = SmallRng::seed_from_u64(source.seed);
    let mut extents: FxHashMap<UfId, Vec<i64>> = FxHashMap::default();
    let mut eval = Evaluator::new(env, &params, &extents);
    for f in env.ufs.ids() {
        let UfDef::Extent { lo, hi } = env.ufs[f].def else { continue };
        let name = env.ufs[f].name.clone();
        let count = eval.count_points(&env.ufs[f].domain, MAX_ENTRIES).ok_or_else(|| {
            Diagnostic::new("E0311", format!("extent function `{name}` has more than {MAX_ENTRIES} entries and rows"))
                .hint("use a smaller parameter")
        })?;
        let entries = match source.lengths.iter().rev().find(|(n, _)| *n == name) {
            Some((_, given)) => {
                let end = source.skip.saturating_add(count);
                if given.len() < end {
                    let file = source.files.iter().rev().find(|(n, _)| *n == name);
                    let e = cora_runtime::Error::LengthsTooFew {
                        path: file.map_or_else(|| "the batch".to_owned(), |(_, path)| path.display().to_string()),
                        function: name,
                        need: count as u64,
                        skip: source.skip as u64,
                        have: given.len() as u64,
                    };
                    return Err(Diagnostic::new(e.code(), e.to_string()).hint(e.hint()));
                }
                given[source.skip..end].to_vec()
            }
            None => {
                let (l, h) = (eval.closed(lo, &[]), eval.closed(hi, &[]));
                let h = h.min(l.saturating_add(RANDOM_SPREAD)).max(l);
                (0..count).map(|_| rng.random_range(l..=h)).collect()
            }
        };
        // The runtime checks all of them; how many entries the next function needs depends on those of one index.
        let (lo, hi) = (eval.closed(lo, &[]), eval.closed(hi, &[]));
        let wrong = entries.iter().position(|v| !(lo..=hi).contains(v)).filter(|_| env.ufs[f].domain.len() == 1);
        if let Some(n) = wrong {
            let (index, value) = (vec![n as i64], entries[n]);
            let e = cora_runtime::Error::LengthRange { function: name, index, value, lo, hi };
            return Err(Diagnostic::new(e.code(), e.to_string()).hint(e.hint()));
        }
        eval.add(f, &entries);
        extents.insert(f, entries);
    }
    drop(eval);
    Ok(BatchValues { params, extents })
}

/// How many points a space has whose extents are given outermost first, each over the indices of the
/// ones before it as arguments.
///
/// # Errors
/// `E0311` more than fit in memory.
pub fn count(env: &Env, values: &BatchValues, extents: &[ExprId]) -> Result<usize, Diagnostic> {
    Evaluator::new(env, &values.params, &values.extents).count_points(extents, MAX_ENTRIES).ok_or_else(|| {
        Diagnostic::new("E0311", format!("more than {MAX_ENTRIES} elements")).hint("use a smaller parameter")
    })
}
