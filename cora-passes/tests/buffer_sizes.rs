//! No buffer that is attached in a loop is larger than its largest tile needs: in one of the batches its last element is
//! written. What the user asked for beyond that is left out: storage in whole blocks or rows apart (`split_dim`,
//! `storage_align`), padding, masked tiles, of which perhaps no batch has a full one, and grids, whose memory is of a
//! size fixed by declared ranges. For very few the region is looser: where positions come from `remap` or from elements
//! of tensors, and in loops that were fused after a stage was attached to them, bounds are those of the dimension.

#[path = "random/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod random;

use cora_ir::interp::{BufferUse, Options, run_storage};
use cora_ir::layout::LayoutStep;
use cora_ir::schedule::Step;
use cora_ir::storage::{Stmt, StorageModule};
use cora_ir::text::print_storage;
use cora_ir::{Env, Graph, Tensor, TensorId};
use cora_passes::execution::verify_each::nests_of_graph;
use cora_passes::execution::{Nest, Pattern, batch};
use cora_passes::lower::to_loops::lower_to_loops;
use cora_passes::lower::to_storage::lower_to_storage;
use cora_passes::schedule::apply_step;
use cora_passes::standard::StandardSimplifier;
use rand::prelude::*;
use random::check;
use random::steps::Proposer;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Batches with rows longer than tiles, and with more rows.
const PATTERNS: [Pattern; 7] = [
    Pattern::AroundTile(48),
    Pattern::Tall(48),
    Pattern::AroundTile(12),
    Pattern::OneLong,
    Pattern::AllEqual,
    Pattern::ManyRows,
    Pattern::Random,
];

/// Most iterations of an operator.
const MAX_TRIPS: u64 = 40_000;

/// What each batch uses of each buffer in a loop.
fn uses(env: &Env, nests: &[Nest], m: &StorageModule, rng: &mut SmallRng) -> Vec<Vec<BufferUse>> {
    let options = Options { threads: 1, usage: true, ..Options::default() };
    let batches = PATTERNS.into_iter().filter_map(|p| batch(env, nests, MAX_TRIPS, p, rng));
    batches.filter_map(|b| Some(run_storage(m, &b, &options).ok()?.used)).collect()
}

/// The storage of `graph` after random steps, right after lowering; nothing if that is refused.
fn lowered(graph: &Graph, rng: &mut SmallRng, steps: usize) -> Option<StorageModule> {
    let mut m = lower_to_loops(graph);
    let mut proposer = Proposer::new(rng);
    for _ in 0..steps {
        if let Some(kind) = proposer.propose(&m) {
            // Those that are refused change nothing.
            let _ = apply_step(&mut m, &Step::from(kind));
        }
    }
    lower_to_storage(&m, &mut StandardSimplifier::new()).ok()
}

/// Whether a schedule asked for room beyond what a tile needs.
fn is_padded(t: &Tensor) -> bool {
    let apart = t.layout.iter().any(|s| matches!(s, LayoutStep::Split { .. } | LayoutStep::Align { .. }));
    apart || t.dims.iter().any(|d| d.storage != d.extent)
}

/// Whether the tensor is written under a condition.
fn is_masked(m: &StorageModule, t: TensorId) -> bool {
    fn go(s: &Stmt, t: TensorId, inside: bool) -> bool {
        let here = inside && s.bodies().next().is_none() && s.writes().contains(&t);
        here || s.bodies().flatten().any(|s2| go(s2, t, inside || matches!(s, Stmt::If { .. })))
    }
    m.kernels.iter().flat_map(|k| &k.body).any(|s| go(s, t, false))
}

/// Of so many buffers one may be larger than needed.
const ONE_OF: usize = 20;

#[test]
fn random_buffers() {
    let (first, count) = (setting("CORA_RANDOM_SEED", 1), setting("CORA_RANDOM_CASES", 250));
    let (mut seen, mut loose) = (0, Vec::new());
    for seed in first..first + count {
        let mut rng = SmallRng::seed_from_u64(seed);
        let Ok(Some(case)) = check::case(&mut rng, 1) else { continue };
        let graph = &case.made.graph;
        let Some(m) = lowered(graph, &mut rng, 25).filter(|m| !m.is_grid()) else { continue };
        let found = uses(&graph.env, &nests_of_graph(graph), &m, &mut rng);
        for n in 0..found.first().map_or(0, Vec::len) {
            let id = found[0][n].tensor;
            let tensor = &m.env.tensors[id];
            let last = |u: &BufferUse| u.written.iter().rposition(|&w| w).map_or(0, |at| at + 1);
            let sizes: Vec<(usize, usize)> = found.iter().map(|f| (f[n].written.len(), last(&f[n]))).collect();
            if is_padded(tensor) || is_masked(&m, id) || sizes.iter().all(|s| s.1 == 0) {
                continue;
            }
            seen += 1;
            if !sizes.iter().any(|s| s.0 == s.1) {
                loose.push(format!("seed {seed}: `{}` {sizes:?}\n{}", tensor.name, print_storage(&m)));
            }
        }
    }
    println!("{seen} buffers, {} larger than needed", loose.len());
    assert!(
        loose.len() * ONE_OF <= seen && (seen > 100 || count < 250),
        "{} of {seen} are too large:\n{}",
        loose.len(),
        loose.join("\n")
    );
}
