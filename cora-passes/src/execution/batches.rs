//! Batches for any program: edge cases by name, and random ones.

use super::world::{Entries, World};
use cora_ir::interp::{Batch, Data};
use cora_ir::types::round_float;
use cora_ir::{EntityId, Env, Expr, ExprId, ParamId, Role, TensorId, UfDef, VarId};
use rand::prelude::*;
use rustc_hash::FxHashMap;

/// How the lengths of a batch are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Nothing at all.
    NoRows,
    /// A single row.
    OneRow,
    /// More rows than most tiles, short ones.
    ManyRows,
    /// Rows without elements only.
    AllEmpty,
    /// The first row is empty.
    FirstEmpty,
    /// The last row is empty.
    LastEmpty,
    /// Rows of one element.
    LengthOne,
    /// Rows of the same length.
    AllEqual,
    /// Lengths one below, at and one above a tile.
    AroundTile(i64),
    /// One long row among empty ones.
    OneLong,
    /// So many rows, short ones, and great sizes.
    Tall(i64),
    /// Short rows at random.
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
            Self::Tall(n) => n,
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
            Self::ManyRows | Self::Tall(_) => rng.random_range(0..=3),
            _ => rng.random_range(0..=6),
        }
    }
}

/// Nested loops, outermost first: variables and extents.
pub type Nest = Vec<(VarId, ExprId)>;

/// A batch for `env` by `pattern`, its lengths lowered until no nest runs more than `most` times, if they can be.
/// Nothing if a size of an input depends on data, or if constant sizes alone are too many.
pub fn batch(env: &Env, nests: &[Nest], most: u64, pattern: Pattern, rng: &mut SmallRng) -> Option<Batch> {
    let mut limit = match pattern {
        Pattern::AroundTile(n) | Pattern::Tall(n) => n.max(31) + 1,
        _ => 32,
    };
    loop {
        let world = sizes(env, pattern, limit, rng)?;
        let longest = nests.iter().filter_map(|n| world.trips(n)).max().unwrap_or(0);
        if longest <= most || limit == 0 && longest <= MOST_TRIPS {
            return fill(env, &world, rng);
        }
        if limit == 0 {
            return None;
        }
        limit /= 2;
    }
}

/// Whether a parameter is a number of rows: the domain of an extent function depends on it.
fn counts_rows(env: &Env, p: ParamId) -> bool {
    env.ufs.iter().any(|(_, f)| {
        let extent = matches!(f.def, UfDef::Extent { .. });
        extent && f.domain.iter().any(|&e| env.pool.any(e, &mut |n| *n == Expr::Param(p)))
    })
}

/// Iterations of a nest of constant sizes, at most.
const MOST_TRIPS: u64 = 1 << 22;
/// Elements of an input of a batch, at most.
const MOST_ELEMENTS: usize = 1 << 24;

/// Greatest value of a parameter that is not a number of rows, above its least.
const SPREAD: i64 = 8;

fn sizes<'a>(env: &'a Env, pattern: Pattern, limit: i64, rng: &mut SmallRng) -> Option<World<'a>> {
    let params = env.params.iter().map(|(id, p)| {
        let hi = p.hi.min(p.lo.saturating_add(SPREAD));
        let wanted = match pattern {
            _ if counts_rows(env, id) => pattern.rows(rng),
            Pattern::Tall(_) => hi,
            _ => rng.random_range(p.lo..=hi),
        };
        wanted.min(limit).clamp(p.lo, p.hi)
    });
    let params: Vec<i64> = params.collect();
    let mut world = World { env, params, tables: FxHashMap::default() };
    for (id, f) in env.ufs.iter() {
        let UfDef::Extent { lo, hi } = f.def else { continue };
        let (lo, hi) = (world.eval(lo, &[], &[])?, world.eval(hi, &[], &[])?);
        let mut entries = Entries::default();
        for at in world.points(&f.domain, &[])? {
            let (&i, outer) = at.split_last().unwrap_or((&0, &[]));
            let n = f.domain.last().map_or(Some(1), |&e| world.eval(e, outer, &[]))?;
            let wanted = pattern.length(rng, i, n).min(limit);
            entries.insert(at, wanted.clamp(lo, hi.max(lo)));
        }
        world.tables.insert(id, entries);
    }
    Some(world)
}

fn fill(env: &Env, world: &World, rng: &mut SmallRng) -> Option<Batch> {
    let mut extents = FxHashMap::default();
    for (&f, entries) in &world.tables {
        let points = world.points(&env.ufs[f].domain, &[])?;
        extents.insert(f, points.iter().map(|p| entries[p]).collect());
    }
    let mut inputs = FxHashMap::default();
    for (t, tensor) in env.tensors.iter().filter(|(_, t)| matches!(t.role, Role::Input | Role::ConstInput)) {
        let extents: Vec<_> = tensor.dims.iter().map(|d| d.extent).collect();
        let count = usize::try_from(world.count(&extents, &[])?).ok().filter(|&n| n <= MOST_ELEMENTS)?;
        // What is given once is the same in every batch of the same sizes.
        let mut fixed = SmallRng::seed_from_u64(t.index() as u64);
        let rng = if tensor.role == Role::ConstInput { &mut fixed } else { &mut *rng };
        inputs.insert(t, elements(env, world, t, count, rng)?);
    }
    Some(Batch { params: world.params.clone(), extents, inputs })
}

/// Small whole numbers, so that sums are exact in any order.
fn elements(env: &Env, world: &World, t: TensorId, count: usize, rng: &mut SmallRng) -> Option<Data> {
    let tensor = &env.tensors[t];
    if let (Some((lo, hi)), true) = (tensor.range, tensor.range_by_position(&env.pool)) {
        let extents: Vec<_> = tensor.dims.iter().map(|d| d.extent).collect();
        let mut value = |at: &[i64]| {
            let range = world.eval(lo, at, &[])?..world.eval(hi, at, &[])?;
            (!range.is_empty()).then(|| rng.random_range(range))
        };
        return Some(Data::I64(world.points(&extents, &[])?.iter().map(|at| value(at)).collect::<Option<_>>()?));
    }
    let range = match tensor.range {
        Some((lo, hi)) => world.eval(lo, &[], &[])?..world.eval(hi, &[], &[])?,
        None if tensor.ty == cora_ir::ScalarType::Bool => 0..2,
        None => -4..5,
    };
    // Nothing is in an empty range; a tensor of such elements has none.
    if range.is_empty() && count > 0 {
        return None;
    }
    let mut next = || rng.random_range(range.clone());
    Some(if tensor.ty.is_float() {
        Data::F64((0..count).map(|_| round_float(tensor.ty, next() as f64)).collect())
    } else {
        Data::I64((0..count).map(|_| next()).collect())
    })
}
