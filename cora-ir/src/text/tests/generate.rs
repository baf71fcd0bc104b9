//! Random modules: every node, every statement, awkward names; not necessarily meaningful ones.

use super::Rng;
use crate::env::{Dim, Env, Param, Role, Scope, Tensor, TensorDim, Uf, UfDef};
use crate::graph::{Graph, Op};
use crate::ids::{ExprId, ParamId, TensorId, UfId, VarId};
use crate::intrinsic::IntrinsicId;
use crate::layout::LayoutStep;
use crate::loops::{Block, BlockRole, For, Iter, IterKind, LoopKind, LoopModule, Prefetch, Stmt};
use crate::schedule::{
    Binding, CopyAt, DimRef, Formula, LayoutDim, LoopRef, PackDim, Remap, Schedule, Step, StepKind, Tail,
};
use crate::storage::{self, Beside, Buffer, Bulk, BulkDim, Gemm, Kernel, Matrix, StorageModule, Table, Tile};
use crate::tuple::Reduction;
use crate::types::{BinOp, Combiner, Literal, ScalarType, UnOp};

const NAMES: [&str; 14] =
    ["a", "b", "q.o", "M", "min", "stage", "mask", "inf", "two words", "", "1st", "a#1", "k\"\\\n\u{7f}é", "x."];
const FLOATS: [f64; 12] = [
    0.0,
    -0.0,
    1.5,
    0.1,
    -1e-7,
    1e30,
    f64::MAX,
    f64::MIN_POSITIVE,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    65519.9,
];

/// A generator of one module.
pub struct Gen {
    pub rng: Rng,
    pub env: Env,
    params: Vec<ParamId>,
    ufs: Vec<UfId>,
    tensors: Vec<TensorId>,
    scope: Vec<VarId>,
    free: Vec<VarId>,
    /// Stands in the extents of attached tensors and is bound by one loop.
    header: Option<VarId>,
}

impl Gen {
    pub fn new(seed: u64, flat: bool) -> Self {
        let mut g = Self {
            rng: Rng(seed),
            env: Env::default(),
            params: Vec::new(),
            ufs: Vec::new(),
            tensors: Vec::new(),
            scope: Vec::new(),
            free: Vec::new(),
            header: None,
        };
        for _ in 0..g.rng.below(4) {
            let name = g.name();
            let lo = g.rng.pick(&[0, -5, i64::MIN]);
            let p = g.env.params.push(Param { name, lo, hi: 4096 });
            g.params.push(p);
        }
        for _ in 0..g.rng.below(7) {
            g.uf();
        }
        let name = g.name();
        g.header = Some(g.env.new_var(name));
        for _ in 0..1 + g.rng.below(4) {
            g.tensor(flat);
        }
        for _ in 0..2 {
            let name = g.name();
            let v = g.env.new_var(name);
            g.free.push(v);
        }
        g
    }

    fn name(&mut self) -> String {
        self.rng.pick(&NAMES).to_owned()
    }

    fn uf(&mut self) {
        let n = self.rng.below(3);
        let domain: Vec<ExprId> = (0..n).map(|_| self.expr(2, false)).collect();
        let (a, b) = (self.expr(2, false), self.expr(2, false));
        let def = match (self.rng.below(6), self.ufs.last()) {
            (0, _) => UfDef::PrefixSum { body: a },
            (1, _) => UfDef::Max { body: a },
            (2, _) => UfDef::Map { body: a },
            (3, _) => UfDef::SortDesc { key: a },
            (4, Some(&sum)) => UfDef::Search { sum },
            _ => UfDef::Extent { lo: a, hi: b },
        };
        let name = self.name();
        let f = self.env.ufs.push(Uf { name, domain, def });
        self.ufs.push(f);
    }

    fn tensor(&mut self, flat: bool) {
        let scope = self.rng.pick(&Scope::ALL);
        let dims = (0..self.rng.below(3)).map(|_| {
            let mut extent = self.expr(2, false);
            if scope != Scope::Global && !flat && self.rng.chance(50) {
                let v = self.header.map_or_else(|| extent, |v| self.env.pool.var(v));
                extent = self.env.pool.add(extent, v);
            }
            let storage = if self.rng.chance(50) { extent } else { self.env.pool.round_up(extent, 4) };
            let also = self.rng.chance(10).then(|| self.name());
            TensorDim { name: self.name(), also, extent, storage }
        });
        let dims = dims.collect();
        let ty = self.rng.pick(&ScalarType::ELEMENTS);
        let role = self.rng.pick(&[Role::Input, Role::ConstInput, Role::Output, Role::Temp]);
        let range = self.rng.chance(20).then(|| (self.expr(1, false), self.expr(1, false)));
        let layout = if self.rng.chance(30) { self.layout() } else { vec![] };
        let t = Tensor { name: self.name(), ty, tuple: None, dims, role, scope, range, layout };
        let t = self.env.tensors.push(t);
        self.tensors.push(t);
    }

    fn layout(&mut self) -> Vec<LayoutStep> {
        let steps = (0..1 + self.rng.below(3)).map(|n| match n {
            0 => LayoutStep::Split { dim: 0, factor: 4, outer: self.name(), inner: self.name() },
            1 => LayoutStep::Fuse { first: 1, count: 2, name: self.name() },
            _ if self.rng.chance(30) => LayoutStep::Align { dim: 0, multiple: 16, offset: self.rng.pick(&[0, 4]) },
            _ if self.rng.chance(30) => LayoutStep::Slots(2 + self.rng.below(3) as i64),
            _ if self.rng.chance(20) => LayoutStep::Swizzle,
            _ if self.rng.chance(20) => LayoutStep::Fold { dim: 1, count: 2 },
            _ => LayoutStep::Reorder { order: vec![1, 0, 2] },
        });
        steps.collect()
    }

    fn literal(&mut self) -> Literal {
        match self.rng.pick(&ScalarType::ELEMENTS) {
            ty if ty.is_float() && self.rng.chance(10) => Literal::float(ty, f64::from_bits(self.rng.next())),
            ty if ty.is_float() => Literal::float(ty, self.rng.pick(&FLOATS)),
            ScalarType::Bool => Literal::int(ScalarType::Bool, self.rng.pick(&[0, 1])),
            ty => Literal::int(ty, self.rng.pick(&[0, 1, -1, 127, i64::MIN, i64::MAX])),
        }
    }

    fn leaf(&mut self, body: bool) -> ExprId {
        let vars: Vec<VarId> =
            self.scope.iter().chain(self.free.iter().filter(|_| self.rng.0.is_multiple_of(8))).copied().collect();
        match self.rng.below(6) {
            0 if body => {
                let l = self.literal();
                self.env.pool.lit(l)
            }
            1 if !self.params.is_empty() => {
                let p = self.rng.pick(&self.params);
                self.env.pool.param(p)
            }
            2 => self.env.pool.arg(3),
            3 | 4 if body && !vars.is_empty() => {
                let v = self.rng.pick(&vars);
                self.env.pool.var(v)
            }
            _ => {
                let v = self.rng.pick(&[0, 1, 7, -3, i64::MAX, i64::MIN]);
                self.env.pool.int(v)
            }
        }
    }

    /// Any expression; without variables, loads and literals unless `body`.
    pub fn expr(&mut self, depth: usize, body: bool) -> ExprId {
        if depth == 0 || self.rng.chance(15) {
            return self.leaf(body);
        }
        let (a, b) = (self.expr(depth - 1, body), self.expr(depth - 1, body));
        match self.rng.below(if body { 14 } else { 7 }) {
            0..4 => {
                let op = self.rng.pick(&BinOp::ALL);
                self.env.pool.bin(op, a, b)
            }
            4 => {
                let op = self.rng.pick(&UnOp::ALL);
                self.env.pool.un(op, a)
            }
            5 if !self.ufs.is_empty() => {
                let f = self.rng.pick(&self.ufs);
                let n = self.rng.below(3);
                self.env.pool.call(f, [a, b].into_iter().take(n))
            }
            6 => {
                let c = self.expr(depth - 1, body);
                self.env.pool.select(c, a, b)
            }
            7 => {
                let ty = self.rng.pick(&ScalarType::ELEMENTS);
                self.env.pool.cast(ty, a)
            }
            8 => self.env.pool.cast(ScalarType::Index, a),
            9 => self.env.pool.ramp(a, -4, 8),
            10 => self.env.pool.splat(a, 16),
            11 => {
                let c = self.rng.pick(&Combiner::ALL);
                self.env.pool.reduce(c, a)
            }
            12 => {
                let (t, c) = (self.rng.pick(&self.tensors), self.expr(depth - 1, body));
                self.env.pool.search(t, a, b, c)
            }
            13 => {
                let t = self.rng.pick(&self.tensors);
                let n = self.rng.below(3);
                let guard = if self.rng.chance(40) { Some((b, self.expr(depth - 1, body))) } else { None };
                let ty = self.env.tensors[t].ty;
                self.env.pool.load_guarded((t, 0), ty, [a, b].into_iter().take(n), guard)
            }
            _ => a,
        }
    }

    fn bind(&mut self) -> VarId {
        let name = self.name();
        let v = match self.header.take_if(|_| self.rng.0.is_multiple_of(3)) {
            Some(v) => v,
            None => self.env.new_var(name),
        };
        self.scope.push(v);
        v
    }

    pub fn loops(mut self) -> LoopModule {
        let name = self.name();
        let body = (0..self.rng.below(3)).map(|_| self.loop_stmt(3)).collect();
        LoopModule { name, env: self.env, body }
    }

    fn loop_stmt(&mut self, depth: usize) -> Stmt {
        let mark = self.scope.len();
        let stage = self.rng.pick(&self.tensors);
        let s = if depth > 0 && self.rng.chance(70) {
            let extent = self.expr(2, true);
            let var = self.bind();
            let body = (0..self.rng.below(3)).map(|_| self.loop_stmt(depth - 1)).collect();
            let kind = self.rng.pick(&LoopKind::ALL);
            let mut prefetch = Vec::new();
            if self.rng.chance(20) {
                let (stage, tensor) = (self.rng.pick(&self.tensors), self.rng.pick(&self.tensors));
                let around = self.scope[..mark].first().copied();
                let of = around.filter(|_| self.rng.chance(50));
                prefetch.push(Prefetch { of, stage, tensor, distance: 2, locality: 3 });
            }
            Stmt::For(For { var, stage, extent, kind, prefetch, init: self.rng.chance(20), body })
        } else {
            let iters = (0..self.rng.below(3)).map(|_| {
                let kind = self.rng.pick(&[IterKind::Spatial, IterKind::Reduce]);
                let (extent, binding) = (self.expr(2, true), self.expr(2, true));
                Iter { var: self.bind(), kind, extent, binding }
            });
            let iters = iters.collect();
            let role = match self.rng.below(3) {
                0 => BlockRole::Compute,
                1 => BlockRole::Init,
                _ => BlockRole::Update(Reduction::Op(self.rng.pick(&Combiner::ALL))),
            };
            let continues = matches!(role, BlockRole::Update(_)) && self.rng.chance(30);
            let atomic = matches!(role, BlockRole::Update(_)) && self.rng.chance(30);
            let predicate = (0..self.rng.below(3)).map(|_| self.expr(2, true)).collect();
            let index = (0..self.rng.below(3)).map(|_| self.expr(2, true)).collect();
            let (tensor, value) = (self.rng.pick(&self.tensors), self.expr(4, true));
            Stmt::Block(Block { stage, role, continues, atomic, iters, predicate, tensor, index, value })
        };
        self.scope.truncate(mark);
        s
    }

    pub fn storage(mut self) -> StorageModule {
        self.header = None;
        let mut m = StorageModule { name: self.name(), ..StorageModule::default() };
        for _ in 0..self.rng.below(3) {
            let (tensor, elems) = (self.rng.pick(&self.tensors), self.expr(2, true));
            let offset = if self.rng.chance(50) { Some(self.expr(2, true)) } else { None };
            m.buffers.push(Buffer { tensor, elems, offset });
        }
        for _ in 0..self.rng.below(3) {
            let Some(&uf) = self.ufs.last() else { break };
            let (tensor, entries) = (self.rng.pick(&self.tensors), self.expr(2, true));
            let domain = (0..self.rng.below(3)).map(|_| self.expr(2, true)).collect();
            let body = if self.rng.chance(50) { Some(self.expr(2, true)) } else { None };
            m.tables.push(Table { uf, tensor, entries, domain, body });
        }
        // Variables of declarations keep their names everywhere, so kernels do not use those.
        self.free.clear();
        for _ in 0..self.rng.below(3) {
            let name = self.name();
            let body = self.storage_body(3);
            m.kernels.push(Kernel { name, body });
        }
        m.env = self.env;
        m
    }

    fn storage_body(&mut self, depth: usize) -> Vec<storage::Stmt> {
        let mark = self.scope.len();
        let body = (0..self.rng.below(4)).map(|_| self.storage_stmt(depth)).collect();
        self.scope.truncate(mark);
        body
    }

    fn storage_stmt(&mut self, depth: usize) -> storage::Stmt {
        match self.rng.below(if depth > 0 { 5 } else { 3 }) {
            0 => {
                let value = self.expr(3, true);
                storage::Stmt::Let { var: self.bind(), value }
            }
            1 => {
                let (tensor, index, value) = (self.rng.pick(&self.tensors), self.expr(3, true), self.expr(4, true));
                let mask = if self.rng.chance(40) { Some(self.expr(2, true)) } else { None };
                let more = self.rng.below(3);
                let rest = (0..more).map(|_| (self.rng.pick(&self.tensors), self.expr(3, true))).collect();
                if self.rng.chance(20) {
                    return storage::Stmt::Copy { tensor, index, value, mask };
                }
                if self.rng.chance(20) {
                    let combiner = self.rng.pick(&Combiner::ALL);
                    return storage::Stmt::Atomic { tensor, index, combiner, value };
                }
                storage::Stmt::Store { tensor, index, value, mask, rest }
            }
            2 => {
                let sizes = [(); 3].map(|()| self.expr(2, true));
                let [c, a, b] = [(); 3].map(|()| Matrix {
                    tensor: self.rng.pick(&self.tensors),
                    offset: self.expr(3, true),
                    row: self.expr(2, true),
                    column: self.expr(1, true),
                    blocks: None,
                });
                if self.rng.chance(20) {
                    let results = vec![c.tensor, a.tensor];
                    return match self.rng.below(5) {
                        0 => storage::Stmt::Commit,
                        1 => storage::Stmt::Wait { pending: 2 },
                        2 => storage::Stmt::Beside(Beside::Fence),
                        3 => storage::Stmt::Beside(Beside::Commit),
                        _ => storage::Stmt::Beside(Beside::Wait { pending: 1, results }),
                    };
                }
                if self.rng.chance(10) {
                    return storage::Stmt::Await { tensor: c.tensor, slot: c.offset };
                }
                if self.rng.chance(20) {
                    let count = 1 + self.rng.below(5);
                    let dims = (0..count).map(|_| BulkDim {
                        at: self.expr(3, true),
                        size: self.expr(2, true),
                        step: self.rng.pick(&[1, 512]),
                        extent: self.rng.pick(&[8, 64]),
                    });
                    let dims = dims.collect();
                    let (slot, from) = (self.expr(2, true), a.tensor);
                    let (to, offset, zeros) = (c.tensor, c.offset, self.rng.chance(50));
                    return storage::Stmt::Bulk(Box::new(Bulk { to, offset, slot, from, dims, zeros }));
                }
                if self.rng.chance(30) {
                    return storage::Stmt::Prefetch { tensor: c.tensor, index: c.offset, locality: 2 };
                }
                if self.rng.chance(30) {
                    let intrinsic = self.rng.pick(&IntrinsicId::ALL);
                    let blocks = |g: &mut Self, b: Option<[i64; 2]>| b.map(|_| [g.expr(1, true), g.expr(1, true)]);
                    let (x, y) = (blocks(self, intrinsic.get().a.blocks), blocks(self, intrinsic.get().b.blocks));
                    let (a, b) = (Matrix { blocks: x, ..a }, Matrix { blocks: y, ..b });
                    return storage::Stmt::Tile(Box::new(Tile { intrinsic, c, a, b }));
                }
                storage::Stmt::Gemm(Box::new(Gemm { sizes, c, a, b, accumulate: self.rng.chance(50) }))
            }
            3 => {
                let (cond, then) = (self.expr(2, true), self.storage_body(depth - 1));
                storage::Stmt::If { cond, then, other: self.storage_body(depth - 1) }
            }
            _ => {
                let extent = self.expr(3, true);
                let mark = self.scope.len();
                let var = self.bind();
                let body = self.storage_body(depth - 1);
                self.scope.truncate(mark);
                storage::Stmt::For { var, extent, kind: self.rng.pick(&LoopKind::ALL), body }
            }
        }
    }

    pub fn graph(mut self) -> Graph {
        self.header = None;
        self.free.clear();
        let mut g = Graph { name: self.name(), ..Graph::default() };
        let mut dims = Vec::new();
        for _ in 0..self.rng.below(5) {
            let (name, extent, other) = (self.name(), self.expr(2, true), self.name());
            let var = self.env.new_var(if self.rng.chance(70) { name.clone() } else { other });
            self.scope.push(var);
            let extent = self.drop_loads(extent);
            dims.push(self.env.dims.push(Dim { name, extent, var }));
        }
        for _ in 0..self.rng.below(4) {
            let half = self.rng.below(dims.len() + 1);
            let combiner = if self.rng.chance(50) { Some(Reduction::Op(self.rng.pick(&Combiner::ALL))) } else { None };
            let (spatial, reduce) = (dims[..half].to_vec(), dims[half..].to_vec());
            let (tensor, value) = (self.rng.pick(&self.tensors), self.expr(4, true));
            g.ops.push(Op { tensor, spatial, reduce, combiner, value });
            g.outputs.push(tensor);
        }
        for _ in 0..self.rng.below(3) {
            let name = self.name();
            let kinds: Vec<StepKind> = (0..31).map(|i| self.step(i)).collect();
            let steps = kinds.into_iter().map(Step::from).collect();
            let features = (0..self.rng.below(3)).map(|_| self.name()).collect();
            g.schedules.push(Schedule { name, features, steps });
        }
        g.env = self.env;
        g
    }

    /// Dimensions stand before tensors, so their extents cannot load.
    fn drop_loads(&mut self, e: ExprId) -> ExprId {
        use crate::expr::Expr;
        let loads = self.env.pool.any(e, &mut |n| matches!(n, Expr::Load { .. } | Expr::Search { .. }));
        if loads { self.env.pool.int(5) } else { e }
    }

    fn place(&mut self, scope: Scope, at: LoopRef) -> (Scope, CopyAt) {
        match self.rng.below(10) {
            0 | 1 => (Scope::Global, CopyAt::Setup),
            2 => (Scope::Global, CopyAt::Before),
            _ => (scope, CopyAt::Loop(at)),
        }
    }

    fn loop_ref(&mut self) -> LoopRef {
        LoopRef { stage: self.name(), name: self.name() }
    }

    fn formula(&mut self, depth: usize) -> Formula {
        if depth == 0 || self.rng.chance(20) {
            return if self.rng.chance(50) { Formula::Int(-3) } else { Formula::Name(self.name()) };
        }
        let (a, b) = (self.formula(depth - 1), self.formula(depth - 1));
        match self.rng.below(4) {
            0 => Formula::Call(self.name(), vec![a, b]),
            n => Formula::Bin(['+', '-', '*'][n - 1], Box::new(a), Box::new(b)),
        }
    }

    fn step(&mut self, which: usize) -> StepKind {
        let (stage, name, at) = (self.name(), self.name(), self.loop_ref());
        let (scope, multiple) = (self.rng.pick(&[Scope::Global, Scope::Local, Scope::Reg]), self.rng.pick(&[1, 4, -2]));
        match which {
            0 => {
                let tail = self.rng.pick(&[Tail::Exact, Tail::Mask, Tail::Peel]);
                StepKind::Split { target: at, factor: multiple, outer: name, inner: stage, tail }
            }
            1 => StepKind::Fuse { loops: vec![at, self.loop_ref()], name, pad: multiple },
            2 => StepKind::Reorder { stage, order: vec![name, self.name()] },
            3 => StepKind::Vectorize { target: at, width: Some(multiple) },
            4 => StepKind::Vectorize { target: at, width: None },
            5 => StepKind::Unroll { target: at },
            6 => StepKind::Parallel { target: at },
            7 if self.rng.chance(50) => StepKind::PadLoopTo { target: at, extent: self.formula(3) },
            7 => StepKind::PadLoop { target: at, multiple },
            8 => StepKind::PadDim { tensor: stage, dim: name, multiple },
            9 => StepKind::ComputeAt { stage, at },
            10 => StepKind::ComputeInline { stage },
            11 if self.rng.chance(50) => StepKind::Precompute { stage, tensor: self.name(), name },
            11 => StepKind::CacheWrite { stage, name, scope, at },
            12 => {
                let whole = vec![
                    LayoutDim::whole(2),
                    LayoutDim::div(0, 4),
                    LayoutDim::whole(&*self.name()),
                    LayoutDim::modulo(0, 4),
                ];
                let layout = if self.rng.chance(50) { whole } else { vec![] };
                let (scope, at) = self.place(scope, at);
                StepKind::CacheRead { stage, tensor: self.name(), name, scope, at, layout, access: None }
            }
            13 => StepKind::SetScope { stage, scope },
            14 => StepKind::SplitDim { tensor: stage, dim: at.name, factor: multiple, outer: name, inner: at.stage },
            15 => StepKind::FuseDims { tensor: stage, dims: vec![at.name, at.stage], name },
            16 => StepKind::ReorderDims { tensor: stage, order: vec![at.name, name] },
            17 => StepKind::Rfactor { target: at, name },
            18 => StepKind::Bind { target: at, to: self.rng.pick(&Binding::ALL), atomic: self.rng.chance(30) },
            19 => StepKind::Peel { target: at, few: self.rng.pick(&[None, Some(3)]) },
            20 => {
                let key = self.formula(3);
                let all = [Remap::LongestFirst, Remap::RoundRobin(multiple), Remap::By(key.clone()), Remap::Order(key)];
                StepKind::Remap { target: at, policy: all[self.rng.below(4)].clone() }
            }
            21 => StepKind::OpSplit { points: vec![(at, self.formula(3)), (self.loop_ref(), self.formula(2))] },
            22 => StepKind::Hfuse { loops: vec![at, self.loop_ref()], name },
            23 => StepKind::Tile {
                stage,
                loops: vec![(at.name, multiple), (self.name(), 3)],
                names: vec![name, at.stage],
            },
            24 => StepKind::Relax { target: at, zero: self.rng.below(2) == 0 },
            25 => match self.rng.below(4) {
                0 => StepKind::Offload { target: at },
                1 => StepKind::BulkCopy { target: at },
                2 => StepKind::Swizzle { tensor: stage },
                _ => StepKind::Tensorize { target: at, intrinsic: self.rng.pick(&IntrinsicId::ALL) },
            },
            26 => {
                let locality = self.rng.pick(&[0, 3]);
                StepKind::Prefetch { stage, tensor: name, at, inside: None, distance: multiple, locality }
            }
            27 => StepKind::DoubleBuffer { stage, slots: 2 + self.rng.below(3) as i64 },
            28 => StepKind::HoistLoads { target: at, on: self.rng.below(2) == 0 },
            29 => {
                let named = PackDim { dim: DimRef::Named(self.name()), size: None };
                let tiles = vec![named, PackDim { dim: DimRef::At(0), size: Some(multiple) }];
                let (scope, at) = self.place(scope, at);
                StepKind::Pack { stage, tensor: self.name(), name, scope, at, tiles, access: Some(1) }
            }
            _ => StepKind::StorageAlign { tensor: stage, dim: name, multiple, offset: self.rng.pick(&[0, 3]) },
        }
    }
}
