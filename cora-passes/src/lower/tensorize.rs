//! A tile given to a tensor instruction, as data: which matrices it multiplies, where they are, and where the lanes of a
//! warp hold the result.
//!
//! ```text
//! for %i in 0..16 mma.m16n8k16.f32.bf16 { for %j in 0..8 .. { for %p in 0..16 .. { @R[%x + %i, %y + %j] += f32(@A[..]) * f32(@B[..]) } } }
//!   =>  tile mma.m16n8k16.f32.bf16 @R[r, 0, 0] = @A[a, ar, ac] * @B[b, br, bc]
//! ```
//!
//! A tile is one block that adds a product of two elements, as the instruction reads them, inside loops of its sizes. A
//! loop that moves in the result and one factor counts rows or columns, one that moves in both factors is reduced; their
//! order is of no account. Addresses in memory must be affine in the loops.
//!
//! A warp's result in registers is spread over its lanes (`Spread`): tiles of such a buffer follow each other in each
//! lane's registers, and in a tile the lane map says which lane holds an element and in which register. Where a block
//! outside of tiles uses an element, the thread that runs it must be the lane that holds it: so the loops there are bound
//! in the order of the map, or the program is refused.

use super::grid;
use super::offload::strides;
use super::spread::{Spread, equal_everywhere, not_spread};
use super::sum_of_products::{self, Nest, name, nest};
use super::to_storage::Lowering;
use cora_ir::affine::normalize;
use cora_ir::intrinsic::{Digit, Of, Read};
use cora_ir::loops::{Axis, Block, For, LoopKind, LoopModule, Stmt as LoopStmt};
use cora_ir::storage::{Matrix, SWIZZLED_LINE, Stmt, Tile};
use cora_ir::text::{Names, print_expr};
use cora_ir::{Combiner, Diagnostic, Env, Expr, ExprId, Intrinsic, IntrinsicId, Scope, TensorId, VarId};
use rustc_hash::FxHashMap;

/// The loops of a tile and what they compute.
pub(crate) struct Shape<'a> {
    loops: Vec<&'a For>,
    block: &'a Block,
    /// Whether the result begins at 0 inside the tile.
    init: bool,
    /// The rows, the columns and the reduced positions; nothing for a size of 1.
    vars: [Option<VarId>; 3],
    /// The left and the right factor.
    factors: [(TensorId, Vec<ExprId>); 2],
}

fn not_a_product(env: &Env, l: &For, i: &Intrinsic, fact: &str) -> Diagnostic {
    let how = match i.read {
        Read::Converted(ty) => format!("{ty}(x) * {ty}(y)"),
        Read::Rounded(op) => format!("{0}(x) * {0}(y)", op.name()),
    };
    Diagnostic::new("E0425", format!("loop `{}` is no tile of `{}`: {fact}", name(env, l), i.name))
        .hint(format!("the instruction adds {how} over rows, columns and reduced positions, one loop for each"))
}

fn wrong_size(env: &Env, l: &For, i: &Intrinsic, fact: &str) -> Diagnostic {
    let [m, n, k] = i.tile;
    Diagnostic::new("E0426", format!("loop `{}` is no tile of `{}`: {fact}", name(env, l), i.name)).hint(format!(
        "its tile has {m} rows, {n} columns and {k} reduced positions, all of them: split loops so, and relax partial \
         tiles (`zero` where they are reduced)"
    ))
}

fn wrong_operand(env: &Env, l: &For, i: &Intrinsic, fact: &str) -> Diagnostic {
    let [a, b, c] = [i.a, i.b, i.c].map(|f| {
        let scopes: Vec<&str> = f.scopes.iter().map(|s| s.name()).collect();
        format!("{} ({})", f.ty, scopes.join(", "))
    });
    Diagnostic::new("E0427", format!("loop `{}` is no tile of `{}`: {fact}", name(env, l), i.name))
        .hint(format!("factors are {a} and {b}, the result is {c}; copy with cache_read, cache_write"))
}

/// Elements of a line of a block.
fn side_of(sizes: [i64; 2]) -> i64 {
    sizes[0].max(sizes[1])
}

fn not_in_blocks(env: &Env, l: &For, i: &Intrinsic, [rows, columns]: [i64; 2], fact: &str) -> Diagnostic {
    let how = if rows == 1 {
        "keep columns side by side, and rows at multiples of that, as in `pad_dim T.k`".to_owned()
    } else if rows < columns {
        format!("store the copy so before, as in `split_dim T.k {rows} -> ko, ki` and `reorder_dims T: ko j ki`")
    } else {
        format!("store the copy so before, as in `split_dim T.k {columns} -> ko, ki` and `reorder_dims T: ko i ki`")
    };
    Diagnostic::new("E0427", format!("loop `{}` is no tile of `{}`: {fact}", name(env, l), i.name))
        .hint(format!("the instruction takes blocks of {rows} rows and {columns} columns, each in one piece: {how}"))
}

fn wrong_place(env: &Env, l: &For, i: &Intrinsic, fact: &str) -> Diagnostic {
    let hint = if i.lanes > 1 {
        format!(
            "{} threads along x execute it together: bind loops around it to blocks, thread.y and thread.z, and loops of \
             other stages to thread.x",
            i.lanes
        )
    } else {
        "use it in CPU schedules only".to_owned()
    };
    Diagnostic::new("E0428", format!("loop `{}`: `{}` {fact}", name(env, l), i.name)).hint(hint)
}

/// The tile of a loop of kind `tensorize`.
///
/// # Errors
/// `E0425` no sum of products as the instruction reads them, `E0426` another size, `E0427` an operand of another type or
/// place.
pub(crate) fn shape<'a>(env: &Env, l: &'a For, id: IntrinsicId) -> Result<Shape<'a>, Diagnostic> {
    let i = id.get();
    let Nest { loops, block, init } = nest(env, l, &l.kind).map_err(|fact| not_a_product(env, l, i, &fact))?;
    let factors = factors(env, l, block, i)?;
    let (vars, swapped) = roles(env, l, &loops, block, &factors, i)?;
    let [x, y] = factors;
    let factors = if swapped { [y, x] } else { [x, y] };
    let all = [(block.tensor, i.c), (factors[0].0, i.a), (factors[1].0, i.b)];
    for (t, f) in all {
        let t = &env.tensors[t];
        if t.ty != f.ty {
            return Err(wrong_operand(env, l, i, &format!("`{}` is of {}", t.name, t.ty)));
        }
        if !f.scopes.contains(&t.scope) {
            return Err(wrong_operand(env, l, i, &format!("`{}` is {}", t.name, t.scope.name())));
        }
    }
    if factors.iter().any(|f| f.0 == block.tensor) {
        let fact = format!("`{}` is factor and result", env.tensors[block.tensor].name);
        return Err(wrong_operand(env, l, i, &fact));
    }
    Ok(Shape { loops, block, init, vars, factors })
}

/// The two elements whose product the block adds.
fn factors(env: &Env, l: &For, b: &Block, i: &Intrinsic) -> Result<[(TensorId, Vec<ExprId>); 2], Diagnostic> {
    let of = &env.tensors[b.tensor].name;
    let product = |fact: String| Err(not_a_product(env, l, i, &fact));
    let [x, y] = sum_of_products::product(env, b).map_err(|fact| not_a_product(env, l, i, &fact))?;
    let mut out = Vec::new();
    for e in [x, y] {
        let (read, inner) = match *env.pool.get(e) {
            Expr::Cast(ty, a) => (Some(Read::Converted(ty)), a),
            Expr::Un(op, a) => (Some(Read::Rounded(op)), a),
            _ => (None, e),
        };
        let Expr::Load { tensor, index, guard, .. } = env.pool.get(inner) else {
            return product(format!("a factor of what is added to `{of}` is no element of a tensor"));
        };
        let t = &env.tensors[*tensor];
        // Which factor it is does not matter: both are of one type.
        if t.ty != i.a.ty {
            return Err(wrong_operand(env, l, i, &format!("`{}` is of {}", t.name, t.ty)));
        }
        if guard.is_some() {
            let fact = format!("`{}` is read under a condition, and what is not read is not zero", t.name);
            return Err(wrong_operand(env, l, i, &fact));
        }
        if read != Some(i.read) {
            let how = match i.read {
                Read::Converted(ty) => format!("converted to {ty}"),
                Read::Rounded(op) => format!("rounded by {}", op.name()),
            };
            return product(format!("an element of `{}` enters the product without being {how}", t.name));
        }
        out.push((*tensor, index.to_vec()));
    }
    let mut out = out.into_iter();
    match (out.next(), out.next()) {
        (Some(x), Some(y)) => Ok([x, y]),
        _ => product("there are no two factors".to_owned()),
    }
}

type Roles = ([Option<VarId>; 3], bool);

/// The loops of rows, columns and reduced positions, and whether the first factor is the right one.
fn roles(
    env: &Env,
    l: &For,
    loops: &[&For],
    b: &Block,
    factors: &[(TensorId, Vec<ExprId>); 2],
    i: &Intrinsic,
) -> Result<Roles, Diagnostic> {
    let uses = |index: &[ExprId], v: VarId| {
        index.iter().any(|&e| {
            let bound = |it: &&cora_ir::loops::Iter| env.pool.uses_var(e, it.var);
            b.iters.iter().filter(bound).any(|it| env.pool.uses_var(it.binding, v))
        })
    };
    // Of the first factor, of the second, and reduced.
    let mut found: [Option<(VarId, i64)>; 3] = [None; 3];
    for x in loops {
        let shown = format!("loop `{}`", env.vars[x.var].name);
        let extent = env.pool.as_int(x.extent);
        let Some(n) = extent else {
            let text = print_expr(env, x.extent, &Names::of(env, &[x.extent]));
            return Err(wrong_size(env, l, i, &format!("{shown} has {text} iterations")));
        };
        let moves = [uses(&b.index, x.var), uses(&factors[0].1, x.var), uses(&factors[1].1, x.var)];
        let role = match moves {
            [true, true, false] => 0,
            [true, false, true] => 1,
            [false, true, true] => 2,
            _ => {
                let fact = format!("{shown} is neither row nor column nor reduced position");
                return Err(not_a_product(env, l, i, &fact));
            }
        };
        if let Some((other, _)) = found[role] {
            let fact = format!("{shown} and `{}` move along one side of a matrix", env.vars[other].name);
            return Err(not_a_product(env, l, i, &fact));
        }
        found[role] = Some((x.var, n));
    }
    let [first, second, reduced] = found.map(|f| f.map_or(1, |f| f.1));
    let [m, n, k] = i.tile;
    let [x, y, p] = found.map(|f| f.map(|f| f.0));
    if reduced == k && (first, second) == (m, n) {
        return Ok(([x, y, p], false));
    }
    if reduced == k && (second, first) == (m, n) {
        return Ok(([y, x, p], true));
    }
    let fact = format!("it has {first} by {second} elements and {reduced} reduced positions");
    Err(wrong_size(env, l, i, &fact))
}

/// The buffers that are spread over the lanes of warps.
///
/// # Errors
/// As [`shape`]; `E0439` tiles of one buffer that are spread in different ways.
pub(super) fn spreads(m: &LoopModule) -> Result<FxHashMap<TensorId, Spread>, Diagnostic> {
    let mut tiles = Vec::new();
    for s in &m.body {
        s.walk(&mut |s| {
            if let LoopStmt::For(l) = s
                && let LoopKind::Tensorize(id) = l.kind
                && !l.init
            {
                tiles.push((l, id));
            }
        });
    }
    let mut inside: Vec<VarId> = Vec::new();
    let mut out: FxHashMap<TensorId, Spread> = FxHashMap::default();
    for (l, intrinsic) in tiles {
        if inside.contains(&l.var) {
            continue;
        }
        let shape = shape(&m.env, l, intrinsic)?;
        inside.extend(shape.loops.iter().map(|l| l.var));
        let t = shape.block.tensor;
        if m.env.tensors[t].scope != Scope::Reg || intrinsic.get().lanes == 1 {
            continue;
        }
        let map: FxHashMap<VarId, ExprId> = shape.block.iters.iter().map(|i| (i.var, i.binding)).collect();
        let of = |v: Option<VarId>| {
            let moves = |&e: &ExprId| {
                let vars = m.env.pool.vars_of(e);
                vars.iter().any(|x| map.get(x).is_some_and(|&b| v.is_some_and(|v| m.env.pool.uses_var(b, v))))
            };
            let mut dims = (0..shape.block.index.len()).filter(|&d| moves(&shape.block.index[d]));
            dims.next().filter(|_| dims.next().is_none())
        };
        let (Some(row), Some(column)) = (of(shape.vars[0]), of(shape.vars[1])) else {
            return Err(not_spread(&m.env, t, "a tile has not one dimension of rows and one of columns"));
        };
        let spread = Spread { intrinsic, dims: [row, column] };
        if row == column || !m.env.tensors[t].layout.is_empty() {
            return Err(not_spread(&m.env, t, "its tiles are not those of its own dimensions"));
        }
        if *out.entry(t).or_insert(spread) != spread {
            return Err(not_spread(&m.env, t, "its tiles are spread in different ways"));
        }
    }
    Ok(out)
}

/// The refusal of an intrinsic in a kernel of the other kind of machine.
pub(super) fn check_place(env: &Env, nest: &LoopStmt, is_grid: bool) -> Result<(), Diagnostic> {
    let mut fault = None;
    nest.walk(&mut |s| {
        if let LoopStmt::For(l) = s
            && let LoopKind::Tensorize(id) = l.kind
            && (id.get().lanes > 1) != is_grid
        {
            let fact = if is_grid { "is no instruction of a GPU" } else { "is an instruction of a GPU" };
            fault.get_or_insert_with(|| wrong_place(env, l, id.get(), fact));
        }
    });
    fault.map_or(Ok(()), Err)
}

impl Lowering<'_> {
    /// Lowers a loop of kind `tensorize`.
    pub(super) fn tensorize(&mut self, l: &For, id: IntrinsicId, out: &mut Vec<Stmt>) -> Result<(), Diagnostic> {
        if l.init {
            return self.init_tile(l, id, out);
        }
        if id.get().lanes > 1 && self.threads.iter().any(|t| t.0 == Axis::ThreadX) {
            return Err(wrong_place(&self.env, l, id.get(), "stands inside a loop over thread.x"));
        }
        let shape = shape(&self.env, l, id)?;
        let outer = self.loops.len();
        self.loops.extend(shape.loops.iter().map(|l| (l.var, l.extent)));
        let lowered = self.tile(l, id, &shape);
        self.loops.truncate(outer);
        let (tile, conditions) = lowered?;
        let mut stmts = Vec::new();
        if shape.init {
            self.zeros(id, &tile.c, &mut stmts);
        }
        stmts.push(Stmt::Tile(Box::new(tile)));
        out.extend(super::under(&mut self.env, conditions, stmts));
        Ok(())
    }

    /// The matrices, and the conditions that all of the tile shares.
    fn tile(&mut self, l: &For, id: IntrinsicId, shape: &Shape<'_>) -> Result<(Tile, Vec<ExprId>), Diagnostic> {
        let map: FxHashMap<VarId, ExprId> = shape.block.iters.iter().map(|i| (i.var, i.binding)).collect();
        let [i, j, p] = shape.vars;
        let c = self.result(l, id, (shape.block.tensor, &shape.block.index), &map, [i, j])?;
        let mut read = Vec::new();
        let (a, b) = (id.get().a.blocks, id.get().b.blocks);
        for (((tensor, index), vars), blocks) in shape.factors.iter().zip([[i, p], [p, j]]).zip([a, b]) {
            read.push(match blocks {
                Some(sizes) if self.env.tensors[*tensor].is_swizzled() => {
                    self.swizzled(l, id, (*tensor, index), &map, (vars, sizes))?
                }
                Some(sizes) => self.blocks(l, id, (*tensor, index), &map, (vars, sizes))?,
                None => self.matrix(l, id, (*tensor, index), &map, vars)?,
            });
        }
        let vars: Vec<VarId> = shape.loops.iter().map(|l| l.var).collect();
        let mut around = Vec::new();
        for &cond in &shape.block.predicate {
            let cond = self.value(cond, &mut FxHashMap::default());
            let cond = self.simplifier.simplify(&mut self.env, &self.loops, cond);
            if self.env.pool.as_bool(cond) == Some(true) {
                continue;
            }
            if vars.iter().any(|&v| self.env.pool.uses_var(cond, v)) {
                let text = print_expr(&self.env, cond, &Names::of(&self.env, &[cond]));
                let fact = format!("only positions with {text} count");
                return Err(wrong_size(&self.env, l, id.get(), &fact).hint(
                    "the instruction computes all positions of its tile: split its loops without `tail(mask)` and relax \
                     them (`zero` where they are reduced); those of the stage that copies the result may then be split again, with masks",
                ));
            }
            around.push(cond);
        }
        let b = read.pop();
        match (read.pop(), b) {
            (Some(a), Some(b)) => Ok((Tile { intrinsic: id, c, a, b }, around)),
            _ => Err(not_a_product(&self.env, l, id.get(), "there are no two factors")),
        }
    }

    /// A matrix in memory whose rows and columns two loops count.
    fn matrix(
        &mut self,
        l: &For,
        id: IntrinsicId,
        (tensor, index): (TensorId, &[ExprId]),
        map: &FxHashMap<VarId, ExprId>,
        vars: [Option<VarId>; 2],
    ) -> Result<Matrix, Diagnostic> {
        let index = self.bound(index, map);
        let at = self.flat(tensor, &index);
        let all: Vec<VarId> = vars.into_iter().flatten().collect();
        let Some((offset, steps)) = strides(&mut self.env.pool, at, &all) else {
            let name = self.env.tensors[tensor].name.clone();
            let fact = format!("the offset of `{name}` is not affine in the tile's loops");
            return Err(wrong_operand(&self.env, l, id.get(), &fact));
        };
        let zero = self.env.pool.int(0);
        let step = |v: Option<VarId>| v.and_then(|v| all.iter().position(|&x| x == v)).map_or(zero, |n| steps[n]);
        Ok(Matrix { tensor, offset, row: step(vars[0]), column: step(vars[1]), blocks: None })
    }

    /// A matrix that the instruction reads in blocks of `sizes`: within one, rows or columns are neighbours, and the
    /// lines that they make follow each other.
    fn blocks(
        &mut self,
        l: &For,
        id: IntrinsicId,
        (tensor, index): (TensorId, &[ExprId]),
        map: &FxHashMap<VarId, ExprId>,
        (vars, sizes): ([Option<VarId>; 2], [i64; 2]),
    ) -> Result<Matrix, Diagnostic> {
        let i = id.get();
        let swizzled = self.env.tensors[tensor].is_swizzled();
        let name = self.env.tensors[tensor].name.clone();
        let refuse = |cx: &Self, fact: &str| Err(not_in_blocks(&cx.env, l, i, sizes, &format!("`{name}` {fact}")));
        let outer = self.loops.len();
        let (mut digits, mut extents) = (Vec::new(), Vec::new());
        let mut split: FxHashMap<VarId, ExprId> = FxHashMap::default();
        for (v, size) in vars.into_iter().zip(sizes) {
            let extent = v.and_then(|v| self.loops.iter().find(|x| x.0 == v)).and_then(|x| self.env.pool.as_int(x.1));
            let (Some(v), Some(extent)) = (v, extent) else { return refuse(self, "has no rows or no columns") };
            let (block, inside) = (self.env.new_var("block"), self.env.new_var("inside"));
            let (count, c) = (self.env.pool.int((extent / size).max(1)), self.env.pool.int(size));
            let part = self.env.pool.int(size.min(extent));
            extents.push(extent);
            self.loops.extend([(block, count), (inside, part)]);
            let (x, y) = (self.env.pool.var(block), self.env.pool.var(inside));
            let whole = self.env.pool.mul(x, c);
            split.insert(v, self.env.pool.add(whole, y));
            digits.extend([block, inside]);
        }
        let index: Vec<ExprId> = index.iter().map(|&e| self.env.pool.substitute(e, map)).collect();
        let index: Vec<ExprId> = index.iter().map(|&e| self.env.pool.substitute(e, &split)).collect();
        let index = self.bound(&index, &FxHashMap::default());
        let at = self.flat(tensor, &index);
        let found = strides(&mut self.env.pool, at, &digits);
        let begins = match &found {
            Some(f) if swizzled => self.begins_in_line(f.0, sizes, &extents),
            Some(f) => {
                let side = self.env.pool.int(side_of(sizes));
                let rest = self.env.pool.modulo(f.0, side);
                let rest = self.simplifier.simplify(&mut self.env, &self.loops, rest);
                self.env.pool.as_int(rest) == Some(0)
            }
            None => false,
        };
        self.loops.truncate(outer);
        let Some((offset, steps)) = found else {
            return refuse(self, "is stored at offsets that are not affine in blocks, rows and columns");
        };
        if !begins {
            return refuse(self, "has tiles that may begin within a block's line");
        }
        let int = |e: ExprId| self.env.pool.as_int(e);
        let [rows, row, columns, column] = [0, 1, 2, 3].map(|n| steps[n]);
        // Of a single row the distance to the next is of no account.
        let lines = [if sizes[0] == 1 { Some(sizes[1]) } else { int(row) }, int(column)];
        let along = if swizzled { sizes[0] < sizes[1] } else { lines[1] == Some(1) };
        if lines != if along { [Some(sizes[1]), Some(1)] } else { [Some(1), Some(sizes[0])] } {
            let [row, column] = lines.map(|n| n.map_or("a variable number of".to_owned(), |n| n.to_string()));
            return refuse(self, &format!("has rows {row} elements apart and columns {column}"));
        }
        let whole = if swizzled { sizes[0] * sizes[1] } else { side_of(sizes) };
        let apart = |(e, n): (ExprId, bool)| n && !int(e).is_some_and(|n| n > 0 && n % whole == 0);
        // Rows that are blocks by themselves may be any distance apart.
        let several = [0, 1].map(|d| extents[d] > sizes[d] && sizes[d] > 1);
        if [(rows, several[0]), (columns, several[1])].into_iter().any(apart) {
            return refuse(self, "has blocks that are not whole lines apart");
        }
        Ok(Matrix { tensor, offset, row, column, blocks: Some([rows, columns]) })
    }

    /// A matrix in blocks of a swizzled buffer: 8 lines of 128 bytes, along rows or along columns.
    fn swizzled(
        &mut self,
        l: &For,
        id: IntrinsicId,
        of: (TensorId, &[ExprId]),
        map: &FxHashMap<VarId, ExprId>,
        (vars, [rows, columns]): ([Option<VarId>; 2], [i64; 2]),
    ) -> Result<Matrix, Diagnostic> {
        let line = self.env.tensors[of.0].ty.elems_of(SWIZZLED_LINE);
        let along_columns = self.blocks(l, id, of, map, (vars, [rows, line]));
        along_columns.or_else(|_| self.blocks(l, id, of, map, (vars, [line, columns])))
    }

    /// Whether a tile that begins at an offset begins with the first of 8 lines, and ends in each where it or the line ends.
    fn begins_in_line(&mut self, offset: ExprId, sizes: [i64; 2], extents: &[i64]) -> bool {
        let along = usize::from(sizes[1] > sizes[0]);
        let (line, part) = (sizes[along], extents[along].min(sizes[along]));
        let of = |cx: &mut Self, e: ExprId, n: i64| {
            let n = cx.env.pool.int(n);
            let rest = cx.env.pool.modulo(e, n);
            cx.simplifier.simplify(&mut cx.env, &cx.loops, rest)
        };
        let inside = of(self, offset, sizes[0] * sizes[1]);
        let rest = of(self, inside, part);
        let last = self.env.pool.int(line - part);
        let goal = self.env.pool.le(inside, last);
        self.env.pool.as_int(rest) == Some(0) && self.simplifier.prove(&mut self.env, &self.loops, &[], goal)
    }

    fn bound(&mut self, index: &[ExprId], map: &FxHashMap<VarId, ExprId>) -> Vec<ExprId> {
        let mut memo = FxHashMap::default();
        let index: Vec<ExprId> = index.iter().map(|&e| self.env.pool.substitute(e, map)).collect();
        index.into_iter().map(|e| self.value(e, &mut memo)).collect()
    }

    /// The result of a tile: a matrix in memory, or the registers of lanes.
    fn result(
        &mut self,
        l: &For,
        id: IntrinsicId,
        (tensor, index): (TensorId, &[ExprId]),
        map: &FxHashMap<VarId, ExprId>,
        vars: [Option<VarId>; 2],
    ) -> Result<Matrix, Diagnostic> {
        let Some(&spread) = self.spreads.get(&tensor) else {
            return match id.get().c.blocks {
                Some(sizes) => self.blocks(l, id, (tensor, index), map, (vars, sizes)),
                None => self.matrix(l, id, (tensor, index), map, vars),
            };
        };
        let index = self.bound(index, map);
        let (sizes, at) = self.inside_box(tensor, &index);
        let all: Vec<VarId> = vars.into_iter().flatten().collect();
        let mut corner = Vec::new();
        for (d, &e) in at.iter().enumerate() {
            let wanted = |v: VarId| i64::from(spread.dims.iter().zip(vars).any(|(&x, w)| x == d && w == Some(v)));
            let found = strides(&mut self.env.pool, e, &all).filter(|(base, steps)| {
                let pool = &self.env.pool;
                let one_by_one = all.iter().zip(steps).all(|(&v, &s)| pool.as_int(s) == Some(wanted(v)));
                one_by_one && !all.iter().any(|&v| pool.uses_var(*base, v))
            });
            let base = found.map(|f| f.0).filter(|&base| {
                let (tile, zero) = (self.env.pool.int(spread.tile(d)), self.env.pool.int(0));
                let left = self.env.pool.modulo(base, tile);
                let left = self.simplifier.simplify(&mut self.env, &self.loops, left);
                left == zero
            });
            let Some(base) = base else {
                return Err(not_spread(&self.env, tensor, "a tile does not begin where one of its own tiles begins"));
            };
            corner.push(base);
        }
        let offset = spread.first(&mut self.env, &sizes, &corner);
        let offset = self.simplifier.simplify(&mut self.env, &self.loops, offset);
        let zero = self.env.pool.int(0);
        Ok(Matrix { tensor, offset, row: zero, column: zero, blocks: None })
    }

    /// Loops around the block that begins a tile's sum.
    fn init_tile(&mut self, l: &For, id: IntrinsicId, out: &mut Vec<Stmt>) -> Result<(), Diagnostic> {
        let mut loops = vec![l];
        let block = loop {
            match loops[loops.len() - 1].body.as_slice() {
                [LoopStmt::For(inner)] if inner.kind == l.kind => loops.push(inner),
                [LoopStmt::Block(b)] => break b,
                _ => return Err(not_a_product(&self.env, l, id.get(), "its sum does not begin alone")),
            }
        };
        let [m, n, _] = id.get().tile;
        let map: FxHashMap<VarId, ExprId> = block.iters.iter().map(|i| (i.var, i.binding)).collect();
        // Of a square tile in registers the dimension says which loop counts rows.
        let in_row = |v: VarId| {
            let Some(row) = self.spreads.get(&block.tensor).map(|s| block.index[s.dims[0]]) else { return true };
            let bound = |x: &VarId| map.get(x).is_some_and(|&b| self.env.pool.uses_var(b, v));
            self.env.pool.vars_of(row).iter().any(bound)
        };
        let sized = |n: i64, other: Option<VarId>, rows: bool| {
            let here = |l: &&&For| self.env.pool.as_int(l.extent) == Some(n) && Some(l.var) != other;
            let of_role = |l: &&&For| here(l) && (!rows || in_row(l.var));
            loops.iter().find(of_role).or_else(|| loops.iter().find(here)).map(|l| l.var)
        };
        let row = sized(m, None, true).filter(|_| m > 1);
        let vars = [row, sized(n, row, false)];
        let outer = self.loops.len();
        self.loops.extend(loops.iter().map(|l| (l.var, l.extent)));
        let c = self.result(l, id, (block.tensor, &block.index), &map, vars);
        let mut conditions = Vec::new();
        for &cond in &block.predicate {
            let cond = self.value(cond, &mut FxHashMap::default());
            let cond = self.simplifier.simplify(&mut self.env, &self.loops, cond);
            conditions.extend(Some(cond).filter(|&c| self.env.pool.as_bool(c) != Some(true)));
        }
        self.loops.truncate(outer);
        let mut stmts = Vec::new();
        self.zeros(id, &c?, &mut stmts);
        out.extend(super::under(&mut self.env, conditions, stmts));
        Ok(())
    }

    /// A tile begins at 0: each lane stores what it holds, one thread rows of vectors.
    fn zeros(&mut self, id: IntrinsicId, c: &Matrix, out: &mut Vec<Stmt>) {
        let i = id.get();
        let env = &mut self.env;
        let value = env.identity(Combiner::Sum, i.c.ty);
        let [m, n, _] = i.tile;
        let tensor = c.tensor;
        let store = |index| Stmt::Store { tensor, index, value, mask: None, rest: vec![] };
        let around = |env: &mut Env, var, n, kind, body| Stmt::For { var, extent: env.pool.int(n), kind, body };
        let element = |env: &mut Env, row: ExprId, column: ExprId| {
            let at = c.at_in_blocks(env, i.c.blocks, row, column);
            normalize(&mut env.pool, at)
        };
        if i.lanes > 1 {
            let var = env.new_var("lane");
            let lane = env.pool.var(var);
            let mut body = Vec::new();
            for register in 0..i.c.registers {
                let r = env.pool.int(register);
                let at = if self.spreads.contains_key(&tensor) {
                    let at = env.pool.add(c.offset, r);
                    normalize(&mut env.pool, at)
                } else {
                    let row = coordinate(env, i.c.row, lane, register);
                    let column = coordinate(env, i.c.column, lane, register);
                    element(env, row, column)
                };
                body.push(store(at));
            }
            out.push(around(env, var, i.lanes, LoopKind::Bound(Axis::ThreadX), body));
            return;
        }
        let (row, column) = (env.new_var("i"), env.new_var("j"));
        let (x, y) = (env.pool.var(row), env.pool.var(column));
        let (x, rows) = if m == 1 { (env.pool.int(0), false) } else { (x, true) };
        let at = element(env, x, y);
        let mut loops = self.loops.clone();
        loops.extend([(row, m), (column, n)].map(|(v, n)| (v, env.pool.int(n))));
        let at = self.simplifier.simplify(env, &loops, at);
        let kind = if env.pool.as_int(c.column) == Some(1) { LoopKind::Vector } else { LoopKind::Serial };
        let one = around(env, column, n, kind, vec![store(at)]);
        out.push(if rows { around(env, row, m, LoopKind::Serial, vec![one]) } else { one });
    }

    /// Outside of tiles each thread uses only what the lane that it is holds.
    pub(super) fn check_lane(
        &mut self,
        (tensor, stage): (TensorId, TensorId),
        at: &[ExprId],
        loops: &[(VarId, ExprId)],
        lane: Option<VarId>,
    ) -> Result<(), Diagnostic> {
        let Some(&spread) = self.spreads.get(&tensor) else { return Ok(()) };
        let holder = spread.holder(&mut self.env, at, Of::Lane);
        let same = lane.map(|v| self.env.pool.var(v)).is_some_and(|own| {
            equal_everywhere(&self.env, holder, own, loops).unwrap_or_else(|| {
                let (a, b) = (self.env.pool.le(own, holder), self.env.pool.le(holder, own));
                self.simplifier.prove(&mut self.env, loops, &[], a)
                    && self.simplifier.prove(&mut self.env, loops, &[], b)
            })
        });
        if same { Ok(()) } else { Err(grid::foreign_read(&self.env, tensor, stage)) }
    }

    /// A register's number without the lane in it, where it is the same for all.
    pub(super) fn same_for_all_lanes(&mut self, register: ExprId) -> ExprId {
        let Some(&(_, lane)) = self.threads.iter().find(|t| t.0 == Axis::ThreadX) else { return register };
        let zero = self.env.pool.int(0);
        let first = self.env.pool.substitute(register, &[(lane, zero)].into_iter().collect());
        if equal_everywhere(&self.env, register, first, &self.loops) == Some(true) { first } else { register }
    }
}

/// A row or column over a lane, of one of its registers.
fn coordinate(env: &mut Env, digits: &[Digit], lane: ExprId, register: i64) -> ExprId {
    let mut sum = env.pool.int(0);
    for d in digits {
        let part = match d.of {
            Of::Register => env.pool.int(register / d.divisor % d.modulus * d.times),
            Of::Lane => {
                let [divisor, modulus, times] = [d.divisor, d.modulus, d.times].map(|n| env.pool.int(n));
                let digit = env.pool.floor_div(lane, divisor);
                let digit = env.pool.modulo(digit, modulus);
                env.pool.mul(digit, times)
            }
        };
        sum = env.pool.add(sum, part);
    }
    sum
}
