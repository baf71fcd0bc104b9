//! Batches for a random graph: the edge cases by name, and random ones.

use crate::eval::{Entries, World};
use cora_ir::interp::{Batch, Data};
use cora_ir::types::round_float;
use cora_ir::{Env, Graph, Role, TensorId, UfDef};
use rand::prelude::*;
use rustc_hash::FxHashMap;

/// Operators with more iterations than this get a smaller batch.
const MAX_TRIPS: u64 = 2500;

/// How the lengths of a batch are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    NoRows,
    OneRow,
    ManyRows,
    AllEmpty,
    FirstEmpty,
    LastEmpty,
    LengthOne,
    AllEqual,
    AroundTile(i64),
    OneLong,
    Random,
}

impl Pattern {
    /// Every edge case, and some random batches.
    pub const ALL: [Pattern; 13] = [
        Self::Random,
        Self::NoRows,
        Self::AroundTile(4),
        Self::OneRow,
        Self::AllEmpty,
        Self::OneLong,
        Self::FirstEmpty,
        Self::ManyRows,
        Self::LastEmpty,
        Self::LengthOne,
        Self::AroundTile(8),
        Self::AllEqual,
        Self::Random,
    ];

    fn rows(self, rng: &mut SmallRng) -> i64 {
        match self {
            Self::NoRows => 0,
            Self::OneRow => 1,
            Self::ManyRows => 7,
            Self::Random => rng.random_range(1..=4),
            _ => 3,
        }
    }

    /// A length at position `i` of `n`.
    fn length(self, rng: &mut SmallRng, i: i64, n: i64) -> i64 {
        match self {
            Self::AllEmpty => 0,
            Self::FirstEmpty if i == 0 => 0,
            Self::LastEmpty if i + 1 == n => 0,
            Self::LengthOne => 1,
            Self::AllEqual => 3,
            Self::AroundTile(t) => t + i % 3 - 1,
            Self::OneLong if i != n / 2 => 0,
            Self::OneLong => 17,
            Self::ManyRows => rng.random_range(0..=3),
            _ => rng.random_range(0..=6),
        }
    }
}

/// A batch of `graph` with lengths by `pattern`, shrunk until no operator is too long.
pub fn batch(graph: &Graph, pattern: Pattern, rng: &mut SmallRng) -> Batch {
    let mut limit = 32;
    loop {
        let sizes = sizes(&graph.env, pattern, limit, rng);
        let world = World { env: &graph.env, params: sizes.0, tables: sizes.1 };
        if limit == 0 || longest(graph, &world) <= MAX_TRIPS {
            return fill(&graph.env, world, rng);
        }
        limit /= 2;
    }
}

fn longest(graph: &Graph, world: &World) -> u64 {
    let dims = |op: &cora_ir::Op| {
        op.spatial
            .iter()
            .chain(&op.reduce)
            .map(|&d| (graph.env.dims[d].var, graph.env.dims[d].extent))
            .collect::<Vec<_>>()
    };
    graph.ops.iter().map(|op| world.trips(&dims(op))).max().unwrap_or(0)
}

type Sizes = (Vec<i64>, FxHashMap<cora_ir::UfId, Entries>);

fn sizes(env: &Env, pattern: Pattern, limit: i64, rng: &mut SmallRng) -> Sizes {
    let params = env.params.iter().map(|(_, p)| {
        let wanted = if p.name == "M" { pattern.rows(rng) } else { rng.random_range(p.lo..=p.hi) };
        wanted.min(limit).clamp(p.lo, p.hi)
    });
    let params: Vec<i64> = params.collect();
    let mut world = World { env, params, tables: FxHashMap::default() };
    for (id, f) in env.ufs.iter() {
        let UfDef::Extent { lo, hi } = f.def else { continue };
        let (lo, hi) = (world.eval(lo, &[], &[]), world.eval(hi, &[], &[]));
        let mut entries = Entries::default();
        for at in world.points(&f.domain, &[]) {
            let (&i, outer) = at.split_last().unwrap_or((&0, &[]));
            let n = f.domain.last().map_or(1, |&e| world.eval(e, outer, &[]));
            entries.insert(at, pattern.length(rng, i, n).min(limit).clamp(lo, hi));
        }
        world.tables.insert(id, entries);
    }
    (world.params, world.tables)
}

fn fill(env: &Env, world: World, rng: &mut SmallRng) -> Batch {
    let mut extents = FxHashMap::default();
    for (&f, entries) in &world.tables {
        let points = world.points(&env.ufs[f].domain, &[]);
        extents.insert(f, points.iter().map(|p| entries[p]).collect());
    }
    let mut inputs = FxHashMap::default();
    for (t, tensor) in env.tensors.iter().filter(|(_, t)| matches!(t.role, Role::Input | Role::ConstInput)) {
        let extents: Vec<_> = tensor.dims.iter().map(|d| d.extent).collect();
        let count = world.points(&extents, &[]).len();
        inputs.insert(t, elements(env, &world, t, count, rng));
    }
    Batch { params: world.params, extents, inputs }
}

/// Small whole numbers, so that sums are exact in any order.
fn elements(env: &Env, world: &World, t: TensorId, count: usize, rng: &mut SmallRng) -> Data {
    let tensor = &env.tensors[t];
    let range = match tensor.range {
        Some((lo, hi)) => world.eval(lo, &[], &[])..world.eval(hi, &[], &[]),
        None if tensor.ty == cora_ir::ScalarType::Bool => 0..2,
        None => -4..5,
    };
    let mut next = || rng.random_range(range.clone());
    if tensor.ty.is_float() {
        Data::F64((0..count).map(|_| round_float(tensor.ty, next() as f64)).collect())
    } else {
        Data::I64((0..count).map(|_| next()).collect())
    }
}
