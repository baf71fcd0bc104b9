//! A tile given to a library, as data: which loops are rows, columns and reduced positions of which matrices.
//!
//! ```text
//! for %i in 0..m offload { for %j in 0..n { @C[c + %i*n + %j] = 0  for %p in 0..k { @C[..] += @A[a + %i*k + %p] * @B[b + %p*n + %j] } } }
//!   =>  gemm @C[c, n, 1] = @A[a, k, 1] * @B[b, n, 1] over m, n, k
//! ```
//!
//! A tile is one block that adds a product of two elements, inside loops whose extents do not depend on each other. A
//! loop that moves in the result and one factor counts rows or columns, one that moves in both factors is reduced. The
//! flat offset of each matrix must be affine in the loops, one of its two strides 1, and its rows apart. A condition on
//! one loop makes that loop shorter; one on none of them stands around the product.

use super::sum_of_products::{Nest, name, nest, product};
use super::to_storage::Lowering;
use cora_ir::affine::{Poly, build, normalize, poly};
use cora_ir::loops::{Block, For, LoopKind};
use cora_ir::storage::{Gemm, Matrix, Stmt};
use cora_ir::{BinOp, Diagnostic, Env, Expr, ExprId, ExprPool, ScalarType, Scope, TensorId, VarId};
use rustc_hash::FxHashMap;

/// A loop of the tile: its variable, its extent, and its stride in the result and both factors.
struct Axis {
    extent: ExprId,
    strides: [ExprId; 3],
}

const ROWS: [bool; 3] = [true, true, false];
const COLUMNS: [bool; 3] = [true, false, true];
const REDUCED: [bool; 3] = [false, true, true];

fn not_a_product(env: &Env, l: &For, fact: &str) -> Diagnostic {
    Diagnostic::new("E0455", format!("loop `{}` is no product of matrices: {fact}", name(env, l)))
        .hint("a tile is one sum of products of two elements, each loop in it a row, a column or a reduced position")
}

fn not_a_matrix(env: &Env, l: &For, fact: &str) -> Diagnostic {
    Diagnostic::new("E0456", format!("loop `{}` cannot be offloaded: {fact}", name(env, l))).hint(
        "a BLAS takes matrices of f32 or f64 in memory, one of whose dimensions is contiguous; copy with cache_read",
    )
}

fn not_a_box(env: &Env, l: &For, fact: &str) -> Diagnostic {
    Diagnostic::new("E0457", format!("loop `{}` cannot be offloaded: {fact}", name(env, l)))
        .hint("the extents of a tile's loops may depend on loops outside it only, and a mask on one of its loops")
}

/// The refusal of a tile in a kernel that runs on a grid.
pub(super) fn in_grid(env: &Env, l: &For) -> Diagnostic {
    Diagnostic::new("E0458", format!("loop `{}` is inside a grid, where no BLAS can be called", name(env, l)))
        .hint("offload in CPU schedules only")
}

/// The two elements whose product the block adds.
fn factors(env: &Env, b: &Block) -> Result<[(TensorId, Vec<ExprId>); 2], String> {
    let of = &env.tensors[b.tensor].name;
    let [x, y] = product(env, b)?;
    let element = |e: ExprId| match env.pool.get(e) {
        Expr::Load { tensor, index, guard: None, .. } => Ok((*tensor, index.to_vec())),
        Expr::Load { tensor, .. } => Err(format!("`{}` is read under a condition", env.tensors[*tensor].name)),
        _ => Err(format!("a factor of what is added to `{of}` is no element of a tensor")),
    };
    Ok([element(x)?, element(y)?])
}

/// `e` as `base + sum of stride * variable`; nothing if it is not affine in `vars`.
pub(super) fn strides(pool: &mut ExprPool, e: ExprId, vars: &[VarId]) -> Option<(ExprId, Vec<ExprId>)> {
    let (mut base, mut parts) = (Poly::default(), vec![Poly::default(); vars.len()]);
    for (mut atoms, c) in poly(pool, e).terms {
        let varying: Vec<usize> =
            (0..atoms.len()).filter(|&n| vars.iter().any(|&v| pool.uses_var(atoms[n], v))).collect();
        let part = match varying[..] {
            [] => &mut base,
            [n] => {
                let v = pool.as_var(atoms.remove(n))?;
                &mut parts[vars.iter().position(|&x| x == v)?]
            }
            _ => return None,
        };
        if !part.add_term(atoms, c) {
            return None;
        }
    }
    let parts = parts.iter().map(|p| build(pool, p)).collect();
    Some((build(pool, &base), parts))
}

impl Lowering<'_> {
    /// Lowers a loop of kind `offload`.
    pub(super) fn offload(&mut self, l: &For, out: &mut Vec<Stmt>) -> Result<(), Diagnostic> {
        let tile = nest(&self.env, l, &LoopKind::Serial).map_err(|fact| not_a_product(&self.env, l, &fact))?;
        let read = factors(&self.env, tile.block).map_err(|fact| not_a_product(&self.env, l, &fact))?;
        let b = tile.block;
        let tensors = [b.tensor, read[0].0, read[1].0];
        check_tensors(&self.env, tensors).map_err(|fact| not_a_matrix(&self.env, l, &fact))?;
        let vars: Vec<VarId> = tile.loops.iter().map(|l| l.var).collect();
        let outer = self.loops.len();
        for l in &tile.loops {
            let extent = self.value(l.extent, &mut FxHashMap::default());
            let extent = self.simplifier.simplify(&mut self.env, &self.loops, extent);
            self.loops.push((l.var, extent));
        }
        let result = self.product(l, &tile, &read, tensors, &vars);
        let inner = self.loops.split_off(outer);
        let (bases, strides, conds) = result?;
        let mut extents: Vec<ExprId> = inner.into_iter().map(|l| l.1).collect();
        let around = self.shorten(l, &vars, &mut extents, conds)?;
        let axes: Vec<Axis> = (0..vars.len())
            .map(|n| Axis { extent: extents[n], strides: [0, 1, 2].map(|t: usize| strides[t][n]) })
            .collect();
        let [rows, columns, reduced] = self.roles(l, &vars, axes)?;
        let matrix = |t: usize, row: &Axis, column: &Axis| Matrix {
            blocks: None,
            tensor: tensors[t],
            offset: bases[t],
            row: row.strides[t],
            column: column.strides[t],
        };
        let (c, a, b) = (matrix(0, &rows, &columns), matrix(1, &rows, &reduced), matrix(2, &reduced, &columns));
        let sizes = [rows.extent, columns.extent, reduced.extent];
        let g = Gemm { sizes, c, a, b, accumulate: !tile.init };
        self.check_apart(l, &g)?;
        let stmt = Stmt::Gemm(Box::new(g));
        out.extend(super::under(&mut self.env, around, vec![stmt]));
        Ok(())
    }

    /// Offset and strides of the result and both factors, and the conditions, inside the tile.
    #[allow(clippy::type_complexity, reason = "one list for each of the three matrices")]
    fn product(
        &mut self,
        l: &For,
        tile: &Nest<'_>,
        read: &[(TensorId, Vec<ExprId>); 2],
        tensors: [TensorId; 3],
        vars: &[VarId],
    ) -> Result<(Vec<ExprId>, Vec<Vec<ExprId>>, Vec<ExprId>), Diagnostic> {
        let map: FxHashMap<VarId, ExprId> = tile.block.iters.iter().map(|i| (i.var, i.binding)).collect();
        let (mut bases, mut all) = (Vec::new(), Vec::new());
        for (tensor, index) in tensors.into_iter().zip([&tile.block.index, &read[0].1, &read[1].1]) {
            let mut memo = FxHashMap::default();
            let index: Vec<ExprId> = index.iter().map(|&e| self.env.pool.substitute(e, &map)).collect();
            let index: Vec<ExprId> = index.into_iter().map(|e| self.value(e, &mut memo)).collect();
            let at = self.flat(tensor, &index);
            let Some((base, strides)) = strides(&mut self.env.pool, at, vars) else {
                let name = self.env.tensors[tensor].name.clone();
                let fact =
                    format!("the offset of `{name}` is not affine in the tile's loops, or a stride changes there");
                return Err(not_a_matrix(&self.env, l, &fact));
            };
            bases.push(base);
            all.push(strides);
        }
        let mut conds = Vec::new();
        for &p in &tile.block.predicate {
            let p = self.value(p, &mut FxHashMap::default());
            conds.push(self.simplifier.simplify(&mut self.env, &self.loops, p));
        }
        Ok((bases, all, conds))
    }

    /// Extents that depend on no loop of the tile, with the conditions on single loops in them; the other conditions.
    fn shorten(
        &mut self,
        l: &For,
        vars: &[VarId],
        extents: &mut [ExprId],
        conds: Vec<ExprId>,
    ) -> Result<Vec<ExprId>, Diagnostic> {
        let mut around = Vec::new();
        for (n, &e) in extents.iter().enumerate() {
            if vars.iter().any(|&v| self.env.pool.uses_var(e, v)) {
                let fact = format!("the extent of `{}` changes inside the tile", self.env.vars[vars[n]].name);
                return Err(not_a_box(&self.env, l, &fact));
            }
        }
        for cond in conds {
            if self.env.pool.as_bool(cond) == Some(true) {
                continue;
            }
            if !vars.iter().any(|&v| self.env.pool.uses_var(cond, v)) {
                around.push(cond);
                continue;
            }
            let Some((n, end)) = self.limit(cond, vars) else {
                return Err(not_a_box(&self.env, l, "a condition inside it is not the end of one of its loops"));
            };
            let shorter = self.env.pool.min(extents[n], end);
            extents[n] = self.simplifier.simplify(&mut self.env, &self.loops, shorter);
        }
        Ok(around)
    }

    /// `v < end` for one of `vars`, as which `cond` can be written.
    fn limit(&mut self, cond: ExprId, vars: &[VarId]) -> Option<(usize, ExprId)> {
        let pool = &mut self.env.pool;
        let (a, b, open) = match *pool.get(cond) {
            Expr::Bin(BinOp::Lt, a, b) => (a, b, true),
            Expr::Bin(BinOp::Le, a, b) => (a, b, false),
            _ => return None,
        };
        let room = pool.sub(b, a);
        let (mut end, parts) = strides(pool, room, vars)?;
        let moving: Vec<usize> = (0..vars.len()).filter(|&n| pool.as_int(parts[n]) != Some(0)).collect();
        let [n] = moving[..] else { return None };
        if pool.as_int(parts[n]) != Some(-1) {
            return None;
        }
        if !open {
            let one = pool.int(1);
            end = pool.add(end, one);
        }
        Some((n, normalize(pool, end)))
    }

    /// The loops as rows, columns and reduced positions. Loops of one role are one where the outer one goes on where
    /// the inner one ends; a role without a loop has one position.
    fn roles(&mut self, l: &For, vars: &[VarId], axes: Vec<Axis>) -> Result<[Axis; 3], Diagnostic> {
        let mut found: [Option<(usize, Axis)>; 3] = [None, None, None];
        // Innermost first, so that what is found is inside what comes.
        for (n, axis) in axes.into_iter().enumerate().rev() {
            let pool = &self.env.pool;
            let moves = axis.strides.map(|s| pool.as_int(s) != Some(0));
            let Some(role) = [ROWS, COLUMNS, REDUCED].iter().position(|&r| r == moves) else {
                let fact =
                    format!("loop `{}` is neither row nor column nor reduced position", self.env.vars[vars[n]].name);
                return Err(not_a_product(&self.env, l, &fact));
            };
            found[role] = Some(match found[role].take() {
                None => (n, axis),
                Some((inner, within)) => match self.joined(&axis, &within) {
                    Some(one) => (n, one),
                    None => {
                        let [x, y] = [vars[n], vars[inner]].map(|v| self.env.vars[v].name.clone());
                        let fact = format!(
                            "loops `{x}` and `{y}` move along one side of a matrix and do not follow on each other"
                        );
                        return Err(not_a_product(&self.env, l, &fact));
                    }
                },
            });
        }
        let one = self.env.pool.int(1);
        Ok(found.map(|f| f.map_or(Axis { extent: one, strides: [one; 3] }, |(_, axis)| axis)))
    }

    /// Two loops as one, if a step of the outer one is a whole round of the inner one.
    fn joined(&mut self, outer: &Axis, inner: &Axis) -> Option<Axis> {
        let pool = &mut self.env.pool;
        pool.as_int(inner.extent).filter(|&n| n > 0)?;
        for t in 0..3 {
            let round = pool.mul(inner.strides[t], inner.extent);
            if normalize(pool, round) != normalize(pool, outer.strides[t]) {
                return None;
            }
        }
        let extent = pool.mul(outer.extent, inner.extent);
        Some(Axis { extent: normalize(pool, extent), strides: inner.strides })
    }

    /// Each matrix has a contiguous dimension, and what is one step apart in the other does not overlap.
    fn check_apart(&mut self, l: &For, g: &Gemm) -> Result<(), Diagnostic> {
        let [m, n, k] = g.sizes;
        for (matrix, rows, columns) in [(&g.c, m, n), (&g.a, m, k), (&g.b, k, n)] {
            let int = |e| self.env.pool.as_int(e);
            let sides = [(matrix.column, columns, matrix.row, rows), (matrix.row, rows, matrix.column, columns)];
            let lines =
                sides.map(|(step, length, line, count)| (int(step) == Some(1)).then_some((length, line, int(count))));
            let of = self.env.tensors[matrix.tensor].name.clone();
            if lines == [None, None] {
                let fact = format!("no dimension of `{of}` is contiguous in the tile");
                return Err(not_a_matrix(&self.env, l, &fact));
            }
            let apart = lines.into_iter().flatten().any(|(length, line, count)| {
                let goal = self.env.pool.le(length, line);
                count == Some(1) || self.simplifier.prove(&mut self.env, &self.loops, &[], goal)
            });
            if !apart {
                let fact = format!("it is not proved that neighbouring rows of `{of}` are apart");
                return Err(not_a_matrix(&self.env, l, &fact));
            }
        }
        Ok(())
    }
}

/// What a BLAS can read and write.
fn check_tensors(env: &Env, tensors: [TensorId; 3]) -> Result<(), String> {
    let ty = env.tensors[tensors[0]].ty;
    for t in tensors {
        let t = &env.tensors[t];
        if !matches!(t.ty, ScalarType::F32 | ScalarType::F64) || t.ty != ty {
            return Err(format!("`{}` is of {}", t.name, t.ty));
        }
        if t.scope == Scope::Reg {
            return Err(format!("`{}` is in registers, which have no address", t.name));
        }
    }
    if tensors[1..].contains(&tensors[0]) {
        return Err(format!("`{}` is factor and result", env.tensors[tensors[0]].name));
    }
    Ok(())
}
