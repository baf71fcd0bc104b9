//! Accesses of threads to what they share, and when two of them need a barrier between them.

use cora_ir::intrinsic::IntrinsicId;
use cora_ir::{BinOp, Env, Expr, ExprId, TensorId, VarId};
use rustc_hash::FxHashMap;

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    Read,
    Write,
    /// Copies of each thread have arrived, and other threads have yet to know.
    Arrive,
    /// The copy engine brings a box, for which everybody waits by itself.
    Box,
    /// It is asked for a box, which ends a phase of its slot.
    Ask,
    /// A phase of a slot is waited for.
    Await,
}

/// An access to a tensor that threads share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Access {
    pub tensor: TensorId,
    pub how: How,
    pub own: Option<Own>,
    /// For a buffer of `n` slots: the access is in slot `slot % n`.
    pub slot: Option<(ExprId, i64)>,
    /// For the result of a tensor instruction: which lane accesses which element.
    pub held: Option<Held>,
    /// Of such a result, inside a loop over lanes: the index.
    pub lane: Option<ExprId>,
}

impl Access {
    /// An access to any element, or to one of a slot.
    pub(super) fn to(tensor: TensorId, how: How, slot: Option<(ExprId, i64)>) -> Self {
        Self { tensor, how, own: None, slot, held: None, lane: None }
    }
}

/// The elements of a tile's result, each of which one lane reads and writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub intrinsic: IntrinsicId,
    pub offset: ExprId,
    pub row: ExprId,
    pub column: ExprId,
}

impl Held {
    /// Whether each element that both tiles have is the same lane's.
    pub(super) fn same_lanes(&self, env: &mut Env, other: &Held) -> bool {
        if self.intrinsic != other.intrinsic || self.row != other.row || self.column != other.column {
            return false;
        }
        let distance = env.pool.sub(self.offset, other.offset);
        let distance = cora_ir::affine::normalize(&mut env.pool, distance);
        let numbers = [distance, self.row, self.column].map(|e| env.pool.as_int(e));
        let ([Some(0), ..] | [Some(_), Some(_), Some(_)]) = numbers else { return false };
        let [Some(distance), Some(row), Some(column)] = numbers else { return true };
        let holders = self.holders(row, column);
        holders.iter().all(|(at, lane)| holders.get(&(at + distance)).is_none_or(|other| other == lane))
    }

    /// Whether each lane `x` has no element at `index` but its own.
    pub(super) fn is_of_lane(&self, env: &mut Env, index: ExprId, x: VarId) -> bool {
        let ([Some(row), Some(column)], at) =
            ([self.row, self.column].map(|e| env.pool.as_int(e)), env.pool.sub(index, self.offset))
        else {
            return false;
        };
        let (at, holders) = (cora_ir::affine::normalize(&mut env.pool, at), self.holders(row, column));
        (0..self.intrinsic.get().lanes).all(|lane| {
            let number = env.pool.int(lane);
            let here = env.pool.substitute(at, &[(x, number)].into_iter().collect());
            let here = cora_ir::affine::normalize(&mut env.pool, here);
            env.pool.as_int(here).is_some_and(|here| holders.get(&here).is_none_or(|&holder| holder == lane))
        })
    }

    /// The lane of each element, by its distance from the first one.
    fn holders(&self, row: i64, column: i64) -> FxHashMap<i64, i64> {
        let i = self.intrinsic.get();
        let elements = (0..i.lanes).flat_map(|lane| (0..i.c.registers).map(move |register| (lane, register)));
        let holder = |(lane, register)| {
            let (r, c) = i.c.element(lane, register);
            (r * row + c * column, lane)
        };
        elements.map(holder).collect()
    }
}

/// An index that is an affine function of the thread and tells threads apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Own {
    pub index: ExprId,
    /// The factor of each axis and its number of threads, by factor.
    pub strides: Vec<(i128, i128)>,
    /// The axes, in the order of `strides`.
    pub axes: Vec<ExprId>,
}

/// Accesses since the last barrier.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Pending(pub Vec<Access>);

impl Pending {
    pub(super) fn add(&mut self, more: impl IntoIterator<Item = Access>) {
        for a in more {
            if !self.0.contains(&a) {
                self.0.push(a);
            }
        }
    }

    pub(super) fn conflicts(&self, env: &mut Env, with: &[Access]) -> bool {
        self.0.iter().any(|a| with.iter().any(|b| meet(env, a, b)))
    }
}

/// Whether two different threads may access one element, one of them writing, or one phase of a slot, of which the next
/// one ends only after all threads have seen the last one end.
///
/// Two writes alone do not meet: every store to an element stores the one value that the program defines for it, and a
/// buffer's next contents are kept apart from the last by those who read these. An update is a read as well.
pub(super) fn meet(env: &mut Env, a: &Access, b: &Access) -> bool {
    let order = matches!(
        (a.how, b.how),
        (How::Read, How::Write | How::Box) | (How::Write | How::Arrive, How::Read) | (How::Await, How::Ask)
    );
    if a.tensor != b.tensor || !order {
        return false;
    }
    if let (Some((x, n)), Some((y, _))) = (a.slot, b.slot) {
        let distance = env.pool.sub(x, y);
        let distance = cora_ir::affine::normalize(&mut env.pool, distance);
        if env.pool.as_int(distance).is_some_and(|d| d % n != 0) {
            return false;
        }
    }
    let (Some(x), Some(y)) = (&a.own, &b.own) else { return true };
    if x.strides != y.strides || x.axes != y.axes {
        return true;
    }
    let distance = env.pool.sub(x.index, y.index);
    let distance = cora_ir::affine::normalize(&mut env.pool, distance);
    match env.pool.as_int(distance) {
        Some(d) => reaches(&x.strides, i128::from(d), false),
        None => true,
    }
}

/// Whether `sum of stride * delta = d` for deltas below the numbers of threads, not all of them 0.
fn reaches(strides: &[(i128, i128)], d: i128, other: bool) -> bool {
    let Some((&(c, n), smaller)) = strides.split_last() else { return d == 0 && other };
    let rest: i128 = smaller.iter().map(|&(c, n)| c * (n - 1)).sum();
    // Strides do not overlap, so few deltas come near.
    let middle = d / c;
    (middle - 1 - rest / c..=middle + 1 + rest / c)
        .filter(|delta| delta.abs() < n && (d - c * delta).abs() <= rest)
        .any(|delta| reaches(smaller, d - c * delta, other || delta != 0))
}

/// `x` and `n` if an index into a buffer of `n` slots, with `elems` elements in all, is in slot `x % n`.
pub(in crate::lower) fn slot_of(env: &mut Env, (tensor, elems): (TensorId, i64), at: ExprId) -> Option<(ExprId, i64)> {
    let slots = env.tensors[tensor].slots()?;
    let mut found = None;
    for (atoms, c) in cora_ir::affine::poly(&env.pool, at).terms {
        for &a in &atoms {
            if let Expr::Bin(BinOp::Mod, x, n) = *env.pool.get(a)
                && env.pool.as_int(n) == Some(slots)
            {
                // The slot is the one remainder in the index, times the elements of a slot.
                let whole = atoms.len() == 1 && slots * c == elems && found.is_none();
                found = whole.then_some((x, slots));
                found?;
            }
        }
    }
    found
}
