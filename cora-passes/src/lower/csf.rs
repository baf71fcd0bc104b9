//! Addresses through the position arrays of sparse compilers, for comparison (paper section 7.4; CSF: Smith and Karypis).
//!
//! ```text
//! X[b, q, h, k], q and k < lens(b), 8 heads:
//!   X.pos1(r) = sum over b < r of lens(b)                      one entry a sequence
//!   X.pos3(r) = sum over p < r of lens(row of position p)      one entry a (b, q, h)
//!   X[b, q, h, k] at  X.pos3[(X.pos1[b] + q) * 8 + h] + k
//! ```
//!
//! A level whose rows differ in size has an array with one entry for each position of the level outside it, and one
//! for the end; each tensor has its own, and an access reads one of each level. That is what past work stores and
//! builds. The storage is the same as ours, element by element; only how it is found differs. Nothing is shared: not
//! with other tensors, nor with fused loops.

use cora_ir::{Env, Expr, ExprId, Uf, UfDef, UfId};

/// How a tensor is addressed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Positions {
    /// Flat offset of the element at `Arg(0..n)`.
    pub offset: ExprId,
    /// Number of elements.
    pub elems: ExprId,
}

/// A level of the storage.
enum Level {
    /// Rows of one size, a number over parameters.
    Dense(ExprId),
    /// Rows of their own sizes: the function of where each begins, and the search in it.
    Compressed(UfId, UfId),
}

impl Positions {
    /// Makes the arrays of a tensor with these sizes, the j-th over `Arg(0..j)`.
    pub fn new(env: &mut Env, name: &str, extents: &[ExprId]) -> Self {
        let mut levels: Vec<Level> = Vec::new();
        let (mut offset, mut elems) = (env.pool.int(0), env.pool.int(1));
        for (d, &extent) in extents.iter().enumerate() {
            let at = env.pool.arg(d as u32);
            if !env.pool.any(extent, &mut |e| matches!(e, Expr::Arg(_))) {
                levels.push(Level::Dense(extent));
                offset = env.pool.mul(offset, extent);
                elems = env.pool.mul(elems, extent);
            } else {
                let position = env.pool.arg(0);
                let index = unflatten(env, &levels, position);
                let body = env.pool.instantiate(extent, &index);
                let sum = own(env, format!("{name}.pos{d}"), elems, UfDef::PrefixSum { body });
                offset = env.pool.call(sum, [offset]);
                elems = env.pool.call(sum, [elems]);
                let search = own(env, format!("{name}.pos{d}.at"), elems, UfDef::Search { sum });
                levels.push(Level::Compressed(sum, search));
            }
            offset = env.pool.add(offset, at);
        }
        Self { offset, elems }
    }
}

/// A function that nothing else shares, whatever it means.
fn own(env: &mut Env, name: String, extent: ExprId, def: UfDef) -> UfId {
    let taken = |env: &Env, n: &str| env.ufs.iter().any(|(_, f)| f.name == n);
    let mut unique = name.clone();
    let mut n = 1;
    while taken(env, &unique) {
        unique = format!("{name}.{n}");
        n += 1;
    }
    env.ufs.push(Uf { name: unique, domain: vec![extent], def })
}

/// The index in each level of the element at a flat position.
fn unflatten(env: &mut Env, levels: &[Level], position: ExprId) -> Vec<ExprId> {
    let mut index = Vec::new();
    let mut position = position;
    for level in levels.iter().skip(1).rev() {
        match *level {
            Level::Dense(size) => {
                index.push(env.pool.modulo(position, size));
                position = env.pool.floor_div(position, size);
            }
            Level::Compressed(sum, search) => {
                let row = env.pool.call(search, [position]);
                let first = env.pool.call(sum, [row]);
                index.push(env.pool.sub(position, first));
                position = row;
            }
        }
    }
    index.push(position);
    index.reverse();
    index
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::layout::Layout;
    use crate::simplify::concrete::{Batch, Iteration};

    /// Every element of a tensor with these sizes, in each of some batches: both addresses are equal, and there are as
    /// many of them as elements.
    fn same_places(env: &mut Env, extents: &[ExprId]) {
        let csf = Positions::new(env, "T", extents);
        let layout = Layout { extents, name: "T.row" };
        let (offset, volume) = (layout.offset(env), layout.volume(env, 0));
        let mut elements = 0;
        for seed in 0..24 {
            let mut batch = Batch::new(seed);
            let mut value = |env: &mut Env, e: ExprId, index: &[i64]| {
                let index: Vec<ExprId> = index.iter().map(|&i| env.pool.int(i)).collect();
                let e = env.pool.instantiate(e, &index);
                batch.eval(env, e, &Iteration::default()).expect("a value")
            };
            let mut points = vec![Vec::new()];
            for &e in extents {
                let mut longer = Vec::new();
                for p in points {
                    let n = value(env, e, &p);
                    longer.extend((0..n).map(|i| [p.clone(), vec![i]].concat()));
                }
                points = longer;
            }
            for (n, p) in points.iter().enumerate() {
                assert_eq!(value(env, offset, p), n as i64, "ours, batch {seed}, {p:?}");
                assert_eq!(value(env, csf.offset, p), n as i64, "positions, batch {seed}, {p:?}");
            }
            assert_eq!(value(env, volume, &[]), points.len() as i64);
            assert_eq!(value(env, csf.elems, &[]), points.len() as i64);
            elements += points.len();
        }
        assert!(elements > 24, "{elements} elements");
    }

    #[test]
    fn places_are_ours() {
        let mut env = Env::default();
        let m = env.params.push(cora_ir::Param { name: "M".to_owned(), lo: 0, hi: 3 });
        let m = env.pool.param(m);
        let (zero, three) = (env.pool.int(0), env.pool.int(3));
        let lens = env.uf("lens", vec![m], UfDef::Extent { lo: zero, hi: three });
        let (x, y, one, two) = (env.pool.arg(0), env.pool.arg(1), env.pool.int(1), env.pool.int(2));
        let len = env.pool.call(lens, [x]);
        let words = env.uf("words", vec![m, len], UfDef::Extent { lo: zero, hi: two });
        let word = env.pool.call(words, [x, y]);
        let next = env.pool.add(y, one);
        same_places(&mut env, &[m, len]);
        same_places(&mut env, &[m, len, two, len]);
        same_places(&mut env, &[m, two, len, len]);
        same_places(&mut env, &[m, len, word, two]);
        same_places(&mut env, &[m, len, next, word]);
        same_places(&mut env, &[two, m, three]);
    }
}
