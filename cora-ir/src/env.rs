//! What every stage shares: parameters, uninterpreted functions, dimensions, tensors, variables.

use crate::expr::{Expr, ExprPool};
use crate::ids::{Arena, CombinerId, DimId, ExprId, ParamId, TensorId, UfId, VarId};
use crate::layout::LayoutStep;
use crate::tuple::TupleCombiner;
use crate::types::{BinOp, Combiner, ScalarType};

/// A run-time size with its declared range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// The name in text and on the command line.
    pub name: String,
    /// Least legal value, inclusive.
    pub lo: i64,
    /// Greatest legal value, inclusive.
    pub hi: i64,
}

/// An uninterpreted function: integers to an integer. Passes know of it only what follows from
/// its definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uf {
    /// The name in text; unique in a module.
    pub name: String,
    /// The extent of each argument: argument `j` is in `0..domain[j]`, an expression over
    /// `Arg(0..j)`. The last argument of a prefix sum may also equal its extent.
    pub domain: Vec<ExprId>,
    /// What it means.
    pub def: UfDef,
}

/// The definition of an uninterpreted function; all expressions are over `Arg(n)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UfDef {
    /// Given with each batch: a table with one entry for each combination of arguments.
    Extent {
        /// Least legal value, inclusive (over parameters only).
        lo: ExprId,
        /// Greatest legal value, inclusive (over parameters only).
        hi: ExprId,
    },
    /// `F(a.., x) = sum over 0 <= i < x of body(a.., i)` for `0 <= x <= domain.last()`; `body >= 0`.
    PrefixSum {
        /// Over `Arg(0..n)`, the last being the summation index.
        body: ExprId,
    },
    /// `F(a.., r)` = the x with `P(a.., x) <= r < P(a.., x + 1)`, for `0 <= r < P(a.., extent)`,
    /// where P is a prefix sum: the row that holds flat position r, never an empty one.
    Search {
        /// The prefix sum P that is inverted.
        sum: UfId,
    },
    /// The greatest `body` over the whole of `domain`, at least 0. Called without arguments.
    Max {
        /// Over `Arg(0..n)`, n = `domain.len()`.
        body: ExprId,
    },
    /// `body(a..)` itself: an expression worth a table.
    Map {
        /// Over `Arg(0..n)`.
        body: ExprId,
    },
    /// `F(a.., x)` = the x-th of `0..domain.last()` in descending order of `key(a.., i)`, ties by index: for each `a..` a
    /// permutation.
    SortDesc {
        /// Over `Arg(0..n)`, the last being what is sorted.
        key: ExprId,
    },
}

impl UfDef {
    /// The defining expression, for the kinds that have one.
    pub fn body(&self) -> Option<ExprId> {
        match *self {
            UfDef::PrefixSum { body } | UfDef::Max { body } | UfDef::Map { body } => Some(body),
            UfDef::SortDesc { key } => Some(key),
            UfDef::Extent { .. } | UfDef::Search { .. } => None,
        }
    }
}

/// A named dimension, as the user declared it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dim {
    /// The user's name.
    pub name: String,
    /// Its extent, over the variables of outer dimensions (each dimension owns one variable).
    pub extent: ExprId,
    /// The variable that stands for this dimension's index in inner extents.
    pub var: VarId,
}

/// One dimension of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorDim {
    /// Label for people: the dimension's name.
    pub name: String,
    /// Another name by which schedules may call it.
    pub also: Option<String>,
    /// Number of valid positions, over `Arg(0..j)` = the indices of the dimensions outside it
    /// (and, for a tensor attached in a loop, that loop's outer variables).
    pub extent: ExprId,
    /// Number of stored positions, at least `extent`.
    pub storage: ExprId,
}

impl TensorDim {
    /// A dimension that stores what is valid.
    pub fn new(name: impl Into<String>, extent: ExprId) -> TensorDim {
        TensorDim { name: name.into(), also: None, extent, storage: extent }
    }
}

/// What a tensor is to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Given with each call.
    Input,
    /// Given once and kept (weights).
    ConstInput,
    /// A result.
    Output,
    /// Everything else.
    Temp,
}

/// Where a tensor lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One buffer for the whole program.
    Global,
    /// Attached in a loop: one slot for each worker; in a grid, for each thread.
    Local,
    /// In a grid: one buffer for each block, shared by its threads.
    Shared,
    /// Attached in a loop; every index is a constant after unrolling, so it becomes registers.
    Reg,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Scope; 4] = [Self::Global, Self::Local, Self::Shared, Self::Reg];

    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Local => "local",
            Self::Shared => "shared",
            Self::Reg => "reg",
        }
    }
}

/// A tensor of the op graph and the loop dialect; a flat buffer in the storage dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The name in text; unique in a module.
    pub name: String,
    /// Element type; of a tensor of tuples, the first component's.
    pub ty: ScalarType,
    /// For a tensor of tuples, the combiner that says what they consist of.
    pub tuple: Option<CombinerId>,
    /// Dimensions, outermost first.
    pub dims: Vec<TensorDim>,
    /// Input, output or temporary.
    pub role: Role,
    /// Where it lives.
    pub scope: Scope,
    /// For an integer tensor used as an index: values lie in `lo ..= hi - 1`, both over parameters, extent functions and the
    /// element's position (`Arg`).
    pub range: Option<(ExprId, ExprId)>,
    /// How the dimensions are stored; nothing = as they are, row-major.
    pub layout: Vec<LayoutStep>,
}

impl Tensor {
    /// Whether elements have ranges of their own.
    pub fn range_by_position(&self, pool: &ExprPool) -> bool {
        self.range.is_some_and(|(lo, hi)| [lo, hi].into_iter().any(|e| pool.any(e, &mut |n| matches!(n, Expr::Arg(_)))))
    }

    /// A temporary in global memory, stored as its dimensions are.
    pub fn temp(name: impl Into<String>, ty: ScalarType, dims: Vec<TensorDim>) -> Tensor {
        let (role, scope) = (Role::Temp, Scope::Global);
        Tensor { name: name.into(), ty, tuple: None, dims, role, scope, range: None, layout: Vec::new() }
    }

    /// How many slots its buffer has, if it has several.
    pub fn slots(&self) -> Option<i64> {
        self.layout.iter().find_map(|s| match s {
            LayoutStep::Slots(n) => Some(*n),
            _ => None,
        })
    }

    /// Whether the pieces of its lines are permuted.
    pub fn is_swizzled(&self) -> bool {
        self.layout.contains(&LayoutStep::Swizzle)
    }
}

/// Name and origin of an index variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VarInfo {
    /// Its name (`q`, `q_o`), not necessarily unique; the printer adds a suffix where needed.
    pub name: String,
    /// For the variable of a loop: another name by which schedules may call the loop.
    pub also: Option<String>,
    /// For the variable of a loop: whether what does not vary in the loop is read before it. Nothing = as the pass that
    /// hoists is told.
    pub hoist: Option<bool>,
}

/// Everything that the stages of one program share.
#[derive(Clone, Debug, Default)]
pub struct Env {
    /// All expressions.
    pub pool: ExprPool,
    /// All index variables.
    pub vars: Arena<VarId, VarInfo>,
    /// Size parameters.
    pub params: Arena<ParamId, Param>,
    /// Uninterpreted functions; a definition refers to earlier ones only.
    pub ufs: Arena<UfId, Uf>,
    /// Named dimensions.
    pub dims: Arena<DimId, Dim>,
    /// User's combiners.
    pub combiners: Arena<CombinerId, TupleCombiner>,
    /// Tensors.
    pub tensors: Arena<TensorId, Tensor>,
    /// In the loop dialect the stages of [recurrences](crate::recurrence), whose order every step keeps, and how many of their
    /// first dimensions are positions; in a graph the operators right after a recurrence that are computed at its positions.
    pub recurrent: Vec<(TensorId, usize)>,
}

impl Env {
    /// A new variable.
    pub fn new_var(&mut self, name: impl Into<String>) -> VarId {
        self.vars.push(VarInfo { name: name.into(), also: None, hoist: None })
    }

    /// A variable for a copy of the loop over `v`, with its names and its mark.
    pub fn copy_var(&mut self, v: VarId) -> VarId {
        let info = self.vars[v].clone();
        self.vars.push(info)
    }

    /// The uninterpreted function with that meaning: an existing one if there is an equal one
    /// (so that no table is built twice), else a new one called `name` or a variation of it.
    pub fn uf(&mut self, name: &str, domain: Vec<ExprId>, def: UfDef) -> UfId {
        if !matches!(def, UfDef::Extent { .. })
            && let Some((id, _)) = self.ufs.iter().find(|(_, u)| u.def == def && u.domain == domain)
        {
            return id;
        }
        if let Some(body) = def.body()
            && let Some(id) = self.same_otherwise_written(&domain, &def, body)
        {
            return id;
        }
        let name = self.fresh_uf_name(name);
        self.ufs.push(Uf { name, domain, def })
    }

    /// The function of the same kind whose body is the same sum of products.
    fn same_otherwise_written(&mut self, domain: &[ExprId], def: &UfDef, body: ExprId) -> Option<UfId> {
        let kind = std::mem::discriminant(def);
        let alike: Vec<(UfId, ExprId)> = self
            .ufs
            .iter()
            .filter(|(_, u)| u.domain == domain && std::mem::discriminant(&u.def) == kind)
            .filter_map(|(id, u)| Some((id, u.def.body()?)))
            .collect();
        if alike.is_empty() {
            return None;
        }
        let body = crate::affine::normalize(&mut self.pool, body);
        alike.into_iter().find(|&(_, other)| crate::affine::normalize(&mut self.pool, other) == body).map(|a| a.0)
    }

    fn fresh_uf_name(&self, base: &str) -> String {
        let taken = |n: &str| self.ufs.iter().any(|(_, u)| u.name == n);
        if !taken(base) {
            return base.to_owned();
        }
        (1..).map(|i| format!("{base}.{i}")).find(|n| !taken(n)).unwrap_or_default()
    }

    /// The tensor called `name`.
    pub fn tensor_named(&self, name: &str) -> Option<TensorId> {
        self.tensors.iter().find(|(_, t)| t.name == name).map(|(id, _)| id)
    }

    /// A tensor name that is not taken: `base` or a variation of it.
    pub fn fresh_tensor_name(&self, base: &str) -> String {
        if self.tensor_named(base).is_none() {
            return base.to_owned();
        }
        (1..).map(|i| format!("{base}.{i}")).find(|n| self.tensor_named(n).is_none()).unwrap_or_default()
    }

    /// The extent of dimension `d` of `tensor` at the given outer indices (all indices may be given).
    ///
    /// # Panics
    /// Where the tensor has no dimension `d`.
    pub fn extent_at(&mut self, tensor: TensorId, d: usize, index: &[ExprId]) -> ExprId {
        let extent = self.tensors[tensor].dims[d].extent;
        self.pool.instantiate(extent, &index[..d.min(index.len())])
    }

    /// The first value that the integer element at `index` may have and the one after the last, if they are declared; `index`
    /// may be that of a later form of the program, which says nothing of a range that depends on the position.
    pub fn range_at(&mut self, tensor: TensorId, index: &[ExprId]) -> Option<(ExprId, ExprId)> {
        let t = &self.tensors[tensor];
        let (lo, hi) = t.range?;
        let one = |&i: &ExprId| self.pool.ty(i).lanes == 1;
        if !t.range_by_position(&self.pool) {
            return Some((lo, hi));
        }
        let logical = t.dims.len() == index.len() && index.iter().all(one);
        logical.then(|| (self.pool.instantiate(lo, index), self.pool.instantiate(hi, index)))
    }

    /// A load of `tensor` at `index` with the tensor's element type.
    pub fn load(&mut self, tensor: TensorId, index: impl IntoIterator<Item = ExprId>) -> ExprId {
        let ty = self.tensors[tensor].ty;
        self.pool.load(tensor, ty, index)
    }

    /// The least value that the form and declared ranges show, if they show one.
    pub fn least(&self, e: ExprId) -> Option<i64> {
        let both = |a: ExprId, b: ExprId| self.least(a).zip(self.least(b));
        match *self.pool.get(e) {
            Expr::Int(v) => Some(v),
            Expr::Var(_) | Expr::Arg(_) => Some(0),
            Expr::Param(p) => Some(self.params[p].lo),
            Expr::Call(f, _) => match self.ufs[f].def {
                UfDef::Extent { lo, .. } => self.least(lo),
                UfDef::Map { body } => self.least(body),
                _ => Some(0),
            },
            Expr::Bin(BinOp::Add, a, b) => both(a, b).and_then(|(x, y)| x.checked_add(y)),
            Expr::Bin(BinOp::Mul, a, b) => {
                both(a, b).filter(|&(x, y)| x >= 0 && y >= 0).and_then(|(x, y)| x.checked_mul(y))
            }
            Expr::Bin(BinOp::Min, a, b) => both(a, b).map(|(x, y)| x.min(y)),
            Expr::Bin(BinOp::Max, a, b) => match (self.least(a), self.least(b)) {
                (Some(x), Some(y)) => Some(x.max(y)),
                (x, y) => x.or(y),
            },
            // Positive divisors only; by 0 the quotient is 0.
            Expr::Bin(BinOp::FloorDiv, a, b) => match self.pool.as_int(b) {
                Some(c) if c > 0 => Some(crate::expr::floor_div(self.least(a)?, c)),
                _ => both(a, b).filter(|&(x, y)| x >= 0 && y >= 0).map(|_| 0),
            },
            Expr::Bin(BinOp::Mod, _, b) => self.least(b).filter(|&m| m >= 0).map(|_| 0),
            Expr::Select(_, a, b) => both(a, b).map(|(x, y)| x.min(y)),
            _ => None,
        }
    }

    /// `sum over 0 <= i < x of body(outer.., i)`, as a closed form where the body is affine in i
    /// without a function of i or all rows but the last are full, else as a call of a prefix-sum function.
    ///
    /// `domain` gives the extents of `Arg(0..n)`, n = `outer.len() + 1`; `body` is over `Arg(0..n)`.
    /// Paper section B.2: the sums that storage offsets and fused loops need.
    pub fn sum_upto(&mut self, name: &str, domain: &[ExprId], body: ExprId, outer: &[ExprId], x: ExprId) -> ExprId {
        let n = domain.len().saturating_sub(1) as u32;
        let depends = self.pool.any(body, &mut |e| *e == Expr::Arg(n));
        if !depends {
            let b = self.pool.instantiate(body, outer);
            return self.pool.mul(x, b);
        }
        if let Some((slope, constant)) = crate::affine::affine_in_arg(&mut self.pool, body, n) {
            // sum of slope*i + c for i < x  =  slope * x(x-1)/2 + c*x
            let slope = self.pool.instantiate(slope, outer);
            let constant = self.pool.instantiate(constant, outer);
            let one = self.pool.int(1);
            let two = self.pool.int(2);
            let xm = self.pool.sub(x, one);
            let xx = self.pool.mul(x, xm);
            let tri = self.pool.floor_div(xx, two);
            let st = self.pool.mul(slope, tri);
            let cx = self.pool.mul(constant, x);
            return self.pool.add(st, cx);
        }
        if let Some((size, total)) = self.full_rows_at(domain, body, outer) {
            let all = domain.last().map(|&e| self.pool.instantiate(e, outer));
            let all = all.map(|e| crate::affine::normalize(&mut self.pool, e));
            let before = self.pool.mul(size, x);
            let is_all = all == Some(crate::affine::normalize(&mut self.pool, x));
            return if is_all { total } else { self.pool.min(before, total) };
        }
        let used = self.used_args(body, n);
        // Drop outer arguments on which the body does not depend.
        let (domain, body, outer) = self.project(domain, body, outer, &used);
        let f = self.uf(name, domain, UfDef::PrefixSum { body });
        let args: Vec<ExprId> = outer.into_iter().chain([x]).collect();
        self.pool.call(f, args)
    }

    /// [`Env::sum_upto`] for an x that is a row: less than the last extent of `domain`.
    pub fn sum_before(&mut self, name: &str, domain: &[ExprId], body: ExprId, outer: &[ExprId], x: ExprId) -> ExprId {
        match self.full_rows_at(domain, body, outer) {
            Some((size, _)) => self.pool.mul(size, x),
            None => self.sum_upto(name, domain, body, outer, x),
        }
    }

    /// The size of a full row and of all together, where all but the last are full.
    fn full_rows_at(&mut self, domain: &[ExprId], body: ExprId, outer: &[ExprId]) -> Option<(ExprId, ExprId)> {
        let full = self.full_rows(*domain.last()?, body, outer.len() as u32)?;
        Some((self.pool.instantiate(full.size, outer), self.pool.instantiate(full.total, outer)))
    }

    /// The row that holds flat position `r` of rows whose sizes are `body`: the inverse of
    /// [`Env::sum_upto`] in its last argument (the paper's `f_fo`), as a call of a search function.
    pub fn search_row(&mut self, name: &str, domain: &[ExprId], body: ExprId, outer: &[ExprId], r: ExprId) -> ExprId {
        if let Some((size, _)) = self.full_rows_at(domain, body, outer) {
            return self.pool.floor_div(r, size);
        }
        let used = self.used_args(body, domain.len().saturating_sub(1) as u32);
        let (mut domain, body, outer) = self.project(domain, body, outer, &used);
        let sum = self.uf(name, domain.clone(), UfDef::PrefixSum { body });
        let Some(extent) = domain.pop() else { return r };
        let args: Vec<ExprId> = (0..domain.len() as u32).map(|a| self.pool.arg(a)).chain([extent]).collect();
        let total = self.pool.call(sum, args);
        domain.push(total);
        let f = self.uf(&format!("{name}.at"), domain, UfDef::Search { sum });
        self.pool.call(f, outer.into_iter().chain([r]))
    }

    fn used_args(&self, e: ExprId, below: u32) -> Vec<bool> {
        let mut used = vec![false; below as usize];
        self.pool.walk(e, &mut |_, n| {
            if let Expr::Arg(a) = n
                && *a < below
            {
                used[*a as usize] = true;
            }
        });
        used
    }

    /// The greatest value of `body` over the whole of `domain`, whose j-th extent is over `Arg(0..j)` as `body` is over all: at
    /// least 0. Arguments that matter to neither are left out.
    pub fn greatest_over(&mut self, name: &str, domain: &[ExprId], body: ExprId) -> ExprId {
        let n = domain.len();
        let mut keep = self.used_args(body, n as u32);
        for j in (0..n).rev() {
            if keep[j] {
                self.used_args(domain[j], j as u32).into_iter().enumerate().for_each(|(k, u)| keep[k] |= u);
            }
        }
        let mut renumber = vec![self.pool.int(0); n];
        let mut kept = Vec::new();
        for j in (0..n).filter(|&j| keep[j]) {
            renumber[j] = self.pool.arg(kept.len() as u32);
            kept.push(self.pool.instantiate(domain[j], &renumber));
        }
        let body = self.pool.instantiate(body, &renumber);
        if kept.is_empty() {
            return body;
        }
        let max = self.uf(name, kept, UfDef::Max { body });
        self.pool.call(max, [])
    }

    fn project(
        &mut self,
        domain: &[ExprId],
        body: ExprId,
        outer: &[ExprId],
        used: &[bool],
    ) -> (Vec<ExprId>, ExprId, Vec<ExprId>) {
        let n = domain.len();
        let mut wanted = used.to_vec();
        wanted.push(true);
        let (keep, domain) = loop {
            let (keep, bounded) = self.kept(domain, &wanted);
            // What is kept may be more than was known when an extent was bounded, and two that grow with the same row are not
            // greatest together.
            let steered: Vec<Vec<bool>> = bounded.iter().map(|&(j, _)| self.steer(domain, j)).collect();
            let meets = |a: &[bool], b: &[bool]| a.iter().zip(b).any(|(x, y)| *x && *y);
            let loose = (0..bounded.len())
                .find(|&n| meets(&steered[n], &keep) || steered[..n].iter().any(|other| meets(other, &steered[n])));
            match loose.map(|n| &bounded[n]) {
                Some(&(j, _)) => {
                    let inner = self.used_args(domain[j], j as u32);
                    inner.into_iter().enumerate().for_each(|(k, u)| wanted[k] |= u);
                }
                None => {
                    let mut domain = domain.to_vec();
                    bounded.into_iter().for_each(|(j, most)| domain[j] = most);
                    break (keep, domain);
                }
            }
        };
        let mut renumber = Vec::new();
        let mut next = 0;
        for &k in &keep {
            renumber.push(self.pool.arg(next));
            if k {
                next += 1;
            }
        }
        let kept_domain = (0..n).filter(|&j| keep[j]).map(|j| self.pool.instantiate(domain[j], &renumber)).collect();
        let body = self.pool.instantiate(body, &renumber);
        let outer = (0..n - 1).filter(|&j| keep[j]).map(|j| outer[j]).collect();
        (kept_domain, body, outer)
    }

    /// The wanted arguments and those that their extents depend on, but for extents that are bounded instead: by a number that
    /// is the same whatever is kept, so that some row is as long as that.
    fn kept(&mut self, domain: &[ExprId], wanted: &[bool]) -> (Vec<bool>, Vec<(usize, ExprId)>) {
        let (mut keep, mut bounded) = (wanted.to_vec(), Vec::new());
        for j in (0..domain.len()).rev() {
            let inner = self.used_args(domain[j], j as u32);
            if !keep[j] || inner.iter().zip(&keep).all(|(u, k)| !u || *k) {
                continue;
            }
            let apart = !self.steer(domain, j).iter().zip(&keep).any(|(s, k)| *s && *k);
            match if apart { self.greatest(domain, domain[j], &keep) } else { None } {
                Some(most) => bounded.push((j, most)),
                None => inner.into_iter().enumerate().for_each(|(k, u)| keep[k] |= u),
            }
        }
        (keep, bounded)
    }

    /// Which argument an expression is.
    fn number(&self, e: ExprId) -> Option<usize> {
        match self.pool.get(e) {
            Expr::Arg(a) => Some(*a as usize),
            _ => None,
        }
    }

    /// The arguments that the extent of argument `j` depends on, by way of their own extents too.
    fn steer(&self, domain: &[ExprId], j: usize) -> Vec<bool> {
        let mut all = self.used_args(domain[j], j as u32);
        for k in (0..j).rev() {
            if all[k] {
                self.used_args(domain[k], k as u32).into_iter().enumerate().for_each(|(p, u)| all[p] |= u);
            }
        }
        all
    }

    /// The greatest value of an extent over all the arguments in `domain` that are not kept, if a rule gives it. So many
    /// entries serve whatever those are.
    fn greatest(&mut self, domain: &[ExprId], extent: ExprId, keep: &[bool]) -> Option<ExprId> {
        let dropped = |e: &Expr| matches!(e, Expr::Arg(a) if !keep[*a as usize]);
        if !self.pool.any(extent, &mut |e| dropped(e)) {
            return Some(extent);
        }
        if let Expr::Call(f, args) = self.pool.get(extent).clone() {
            // Of a function that is declared for just the rows that there are: neither for more, nor are there padding ones.
            let numbers: Vec<usize> = args.iter().filter_map(|&a| self.number(a)).collect();
            let mut renumber = vec![self.pool.int(0); domain.len()];
            for (n, &k) in numbers.iter().enumerate() {
                renumber[k] = self.pool.arg(n as u32);
            }
            let domain: Vec<ExprId> = numbers.iter().map(|&k| self.pool.instantiate(domain[k], &renumber)).collect();
            let plain =
                numbers.len() == args.len() && matches!(self.ufs[f].def, UfDef::Extent { .. } | UfDef::Map { .. });
            if !plain || domain != self.ufs[f].domain {
                return None;
            }
            let formals: Vec<ExprId> = (0..domain.len() as u32).map(|a| self.pool.arg(a)).collect();
            let body = self.pool.call(f, formals);
            let name = format!("{}.max", self.ufs[f].name);
            let max = self.uf(&name, domain, UfDef::Max { body });
            return Some(self.pool.call(max, []));
        }
        // At the last position of the argument where it grows with that.
        let at =
            (0..domain.len() as u32).find(|&a| self.pool.any(extent, &mut |e| *e == Expr::Arg(a) && dropped(e)))?;
        let (slope, constant) = crate::affine::affine_in_arg(&mut self.pool, extent, at)?;
        self.pool.as_int(slope).filter(|&s| s > 0)?;
        let most = self.greatest(domain, domain[at as usize], keep)?;
        let one = self.pool.int(1);
        let last = self.pool.sub(most, one);
        let product = self.pool.mul(slope, last);
        let sum = self.pool.add(product, constant);
        let mut sum = crate::affine::normalize(&mut self.pool, sum);
        // Where there may be no position at all the last one is -1.
        if self.pool.as_int(constant).zip(self.pool.as_int(slope)).is_none_or(|(c, s)| c < s) {
            let none = self.pool.int(0);
            sum = self.pool.max(sum, none);
        }
        self.greatest(domain, sum, keep)
    }

    /// The combiner's identity for elements of type `ty`.
    pub fn identity(&mut self, combiner: Combiner, ty: ScalarType) -> ExprId {
        self.pool.lit(combiner.identity(ty))
    }
}
