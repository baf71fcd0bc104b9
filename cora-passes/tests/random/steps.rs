//! Random scheduling steps: mostly ones that fit the module as it is, some blind.

use cora_ir::loops::{Axis, Block, BlockRole, For, IterKind, LoopModule, Stmt};
use cora_ir::schedule::{Binding, CopyAt, DimRef, Formula, LayoutDim, LoopRef, PackDim, Part, Remap, StepKind, Tail};
use cora_ir::{BinOp, Combiner, Expr, Role, Scope, TensorDim, TensorId, UfDef};
use cora_passes::schedule::tree::{enclosing, loop_at, reads_below, stage_loops};
use rand::prelude::*;
use std::collections::VecDeque;

/// Whether a sum of products reads its factors as tensor instructions do, most likely.
fn has_conversions(m: &LoopModule) -> bool {
    blocks(m).iter().any(|(_, b)| match *m.env.pool.get(b.value) {
        Expr::Bin(BinOp::Mul, x, _) => matches!(m.env.pool.get(x), Expr::Cast(..) | Expr::Un(cora_ir::UnOp::Tf32, _)),
        _ => false,
    })
}

/// Proposes steps for the modules of one case.
pub struct Proposer<'r> {
    pub rng: &'r mut SmallRng,
    fresh: usize,
    unrolled: usize,
    /// How many iterations, surplus ones included, masked tails may make of one, at most.
    surplus: i64,
    /// Whether loops are bound to a grid.
    pub grid: bool,
    /// Steps that belong together, the next one first.
    pub queue: VecDeque<StepKind>,
}

type Path = Vec<usize>;

impl<'r> Proposer<'r> {
    pub fn new(rng: &'r mut SmallRng) -> Self {
        Self { rng, fresh: 0, unrolled: 0, surplus: 1, grid: false, queue: VecDeque::new() }
    }

    /// One that binds loops to a grid.
    pub fn for_grid(rng: &'r mut SmallRng) -> Self {
        Self { grid: true, ..Self::new(rng) }
    }

    /// A step, if the module has something that a step of the kind drawn could be about.
    pub fn propose(&mut self, m: &LoopModule) -> Option<StepKind> {
        let stages = stages(m);
        if let Some(next) = self.queue.pop_front() {
            return Some(next);
        }
        if self.rng.random_bool(0.06) {
            self.pad_and_move(m);
            return self.queue.pop_front();
        }
        if has_conversions(m) && self.rng.random_bool(0.1) {
            self.tile_of_instruction(m);
            return self.queue.pop_front();
        }
        if self.grid && self.rng.random_bool(0.3) {
            return if self.rng.random_bool(0.15) { self.unordered(m) } else { self.bound(m, &stages) };
        }
        if self.rng.random_bool(0.15) {
            return self.rare(m, &stages);
        }
        match self.rng.random_range(0..100) {
            0..16 => self.split(m, &stages),
            16..18 => self.parts(m, &stages),
            18..31 => self.fuse(m, &stages),
            31..41 => self.reorder(m, &stages),
            41..49 => self.vectorize(m, &stages),
            49..53 => self.unroll(m, &stages),
            53 => self.hfuse(m, &stages),
            54..57 => {
                let (stage, paths) = self.nest(m, &stages)?;
                let at = if self.rng.random_bool(0.9) { 0 } else { self.rng.random_range(0..paths.len()) };
                Some(StepKind::Parallel { target: reference(m, stage, &paths[at]) })
            }
            57 => match self.rng.random_range(0..4) {
                0 => self.prefetch(m),
                3 => self.box_of_a_copy(m, &stages),
                1 => self.double_buffer(m, &stages),
                _ => Some(StepKind::Bind { target: self.any_loop(m, &stages)?, to: Binding::Virtual, atomic: false }),
            },
            58..59 => Some(StepKind::Peel { target: self.any_loop(m, &stages)?, few: self.few() }),
            59..60 => self.parts(m, &stages),
            60..63 => self.pad_loop(m, &stages),
            63..66 => self.pad_dim(m),
            66..72 => self.layout(m),
            72..79 => self.compute_at(m, &stages),
            79 => self.precompute(m),
            80..83 => Some(StepKind::ComputeInline { stage: self.temp(m, &stages)? }),
            83..88 => self.cache_write(m, &stages),
            88..89 => self.offload(m),
            89 => self.pack(m, &stages),
            90 => Some(StepKind::HoistLoads { target: self.any_loop(m, &stages)?, on: self.rng.random_bool(0.3) }),
            91..95 => self.cache_read(m, &stages),
            95..97 => Some(StepKind::Relax { target: self.any_loop(m, &stages)?, zero: self.rng.random_bool(0.3) }),
            97 => {
                let target = self.any_loop(m, &stages)?;
                Some(StepKind::Rfactor { target, name: self.fresh("P") })
            }
            98 => Some(StepKind::Bind {
                target: self.any_loop(m, &stages)?,
                to: *Binding::ALL.choose(self.rng)?,
                atomic: self.rng.random_bool(0.2),
            }),
            _ => {
                let last = if self.grid { Scope::Shared } else { Scope::Global };
                let scope = *[Scope::Local, Scope::Reg, Scope::Reg, last].choose(self.rng)?;
                Some(StepKind::SetScope { stage: name(m, *stages.choose(self.rng)?), scope })
            }
        }
    }

    /// Padding of a loop to a multiple, or of a reduced one to what neighbouring iterations of a loop around may have in common.
    fn pad_loop(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        let multiple = self.multiple();
        if self.rng.random_bool(0.6) {
            return Some(StepKind::PadLoop { target: self.any_loop(m, stages)?, multiple });
        }
        let all: Vec<_> = blocks(m).into_iter().filter(|b| matches!(b.1.role, BlockRole::Update(_))).collect();
        let (path, _) = all.choose(self.rng)?;
        let loops = enclosing(&m.body, path);
        let n = self.rng.random_range(0..loops.len());
        let target = loop_ref(m, loops[n]);
        let other = match loops[..n].choose(self.rng) {
            Some(l) if self.rng.random_bool(0.7) => Formula::Name(loop_ref(m, l).name),
            _ => size(&target.name),
        };
        let whole = Formula::Call("floordiv".into(), vec![other, Formula::Int(multiple)]);
        let whole = Formula::Bin('*', Box::new(whole), Box::new(Formula::Int(multiple)));
        let more = Formula::Int(self.rng.random_range(-1..10));
        Some(StepKind::PadLoopTo { target, extent: Formula::Bin('+', Box::new(whole), Box::new(more)) })
    }

    /// Padding of a loop and of what it reads at the same position, then a step that moves what is read, or the other
    /// way round.
    fn pad_and_move(&mut self, m: &LoopModule) -> Option<()> {
        let all = blocks(m);
        let (path, b) = all.choose(self.rng)?;
        let loops = enclosing(&m.body, path);
        let l = loops.choose(self.rng)?;
        let var = b.iters.iter().find(|i| m.env.pool.as_var(i.binding) == Some(l.var))?.var;
        let at = |index: &[cora_ir::ExprId]| index.iter().position(|&e| m.env.pool.as_var(e) == Some(var));
        let mut read = Vec::new();
        m.env.pool.walk(b.value, &mut |_, n| {
            if let Expr::Load { tensor, index, .. } = n
                && let Some(d) = at(index)
            {
                read.push((*tensor, d));
            }
        });
        let multiple = self.multiple();
        let pad_dim = |t: TensorId, d: usize| {
            let dim = m.env.tensors[t].dims.get(d)?.name.clone();
            Some(StepKind::PadDim { tensor: name(m, t), dim, multiple })
        };
        let mut pads = Vec::new();
        pads.extend(at(&b.index).and_then(|d| pad_dim(b.tensor, d)));
        let chosen = read.choose(self.rng).copied();
        pads.extend(chosen.and_then(|(t, d)| pad_dim(t, d)));
        pads.push(StepKind::PadLoop { target: loop_ref(m, l), multiple });
        let around = loop_ref(m, loops.choose(self.rng)?);
        let stage = name(m, b.stage);
        let moves = match (chosen, self.rng.random_range(0..4)) {
            (Some((t, _)), 0) => StepKind::ComputeInline { stage: name(m, t) },
            (Some((t, _)), 1) => StepKind::ComputeAt { stage: name(m, t), at: around },
            (Some((t, _)), 2) => {
                let scope = self.scope();
                let (new, tensor) = (self.fresh("R"), name(m, t));
                let (layout, access) = (Vec::new(), None);
                StepKind::CacheRead { stage, tensor, name: new, scope, at: CopyAt::Loop(around), layout, access }
            }
            _ => StepKind::Rfactor { target: around, name: self.fresh("P") },
        };
        if self.rng.random_bool(0.8) {
            pads.push(moves);
        } else {
            pads.insert(pads.len() - 1, moves);
        }
        self.queue.extend(pads);
        Some(())
    }

    pub fn fresh(&mut self, base: &str) -> String {
        self.fresh += 1;
        format!("{base}{}", self.fresh)
    }

    /// A stage that has loops, and their paths.
    fn nest(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<(TensorId, Vec<Path>)> {
        let stage = *stages.choose(self.rng)?;
        let loops = stage_loops(m, stage);
        (!loops.is_empty()).then_some((stage, loops))
    }

    fn any_loop(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<LoopRef> {
        let (stage, loops) = self.nest(m, stages)?;
        Some(reference(m, stage, loops.choose(self.rng)?))
    }

    /// The iterations by which a loop is peeled, if not by full tiles.
    fn few(&mut self) -> Option<i64> {
        *[None, None, Some(1), Some(2), Some(3)].choose(self.rng).unwrap_or(&None)
    }

    fn multiple(&mut self) -> i64 {
        *[1, 2, 2, 3, 4, 4, 8].choose(self.rng).unwrap_or(&2)
    }

    /// A tail that is masked only while tails of tails leave a nest that is interpreted in seconds.
    fn affordable(&mut self, tail: Tail, factor: i64) -> Tail {
        if !matches!(tail, Tail::Mask) {
            return tail;
        }
        if self.surplus * factor > 256 {
            return Tail::Exact;
        }
        self.surplus *= factor;
        tail
    }

    fn split(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        let target = self.any_loop(m, stages)?;
        let factor = *[1, 2, 2, 3, 4, 4, 5, 8, 16, 40].choose(self.rng)?;
        let tail = *[Tail::Exact, Tail::Exact, Tail::Exact, Tail::Mask, Tail::Mask, Tail::Peel].choose(self.rng)?;
        let tail = self.affordable(tail, factor);
        let n = self.fresh("s");
        let inner = if self.rng.random_bool(0.1) { target.name.clone() } else { format!("{n}i") };
        Some(StepKind::Split { target, factor, outer: format!("{n}o"), inner, tail })
    }

    fn fuse(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        let (stage, loops) = self.nest(m, stages)?;
        let count = *[2, 2, 2, 3, 3, 4].choose(self.rng)?;
        let start = self.rng.random_range(0..loops.len());
        let mut chosen = vec![reference(m, stage, &loops[start])];
        if self.rng.random_bool(0.05) {
            // Blind: any loops of the stage.
            chosen.extend(loops.choose(self.rng).map(|p| reference(m, stage, p)));
        } else {
            let mut at = loop_at(&m.body, &loops[start]);
            while chosen.len() < count {
                let Some(inner) = only_loop(at, stage) else { break };
                chosen.push(LoopRef { stage: name(m, stage), name: m.env.vars[inner.var].name.clone() });
                at = inner;
            }
        }
        let pad = if self.rng.random_bool(0.3) { self.multiple() } else { 1 };
        Some(StepKind::Fuse { loops: chosen, name: self.fresh("f"), pad })
    }

    /// Steps that bind a tile of a loop, or all of one, to threads, and what is left to blocks.
    fn bound(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        let (target, lanes) = match self.reduced(m) {
            Some(l) if self.rng.random_bool(0.5) => (l, true),
            _ => (self.any_loop(m, stages)?, false),
        };
        let stage = target.stage.clone();
        let n = self.fresh("g");
        let (outer, inner) = (format!("{n}o"), format!("{n}t"));
        let axis = match self.rng.random_range(0..4) {
            _ if lanes => Axis::ThreadX,
            0..2 => Axis::ThreadX,
            2 => *[Axis::ThreadY, Axis::ThreadY, Axis::ThreadZ].choose(self.rng)?,
            _ => *[Axis::BlockX, Axis::BlockY].choose(self.rng)?,
        };
        if !axis.is_thread() {
            return Some(StepKind::Bind { target, to: Binding::Axis(axis), atomic: false });
        }
        let factor = if axis == Axis::ThreadX { 32 } else { self.multiple() };
        let tail = *[Tail::Exact, Tail::Mask].choose(self.rng)?;
        let tail = self.affordable(tail, factor);
        let at = |name: &str| LoopRef { stage: stage.clone(), name: name.to_owned() };
        if lanes && self.rng.random_bool(0.7) {
            self.queue.push_back(StepKind::Reorder { stage: stage.clone(), order: vec![inner.clone(), outer.clone()] });
        }
        self.queue.push_back(StepKind::Bind { target: at(&inner), to: Binding::Axis(axis), atomic: false });
        if self.rng.random_bool(0.5) {
            self.queue.push_back(StepKind::Bind { target: at(&outer), to: Binding::Axis(Axis::BlockX), atomic: false });
        }
        Some(StepKind::Split { target, factor, outer, inner, tail })
    }

    /// Steps that spread a reduced loop, or tiles of it, over blocks or threads that combine as they come.
    fn unordered(&mut self, m: &LoopModule) -> Option<StepKind> {
        let target = self.reduced(m)?;
        let axis = *[Axis::BlockX, Axis::BlockY, Axis::ThreadX, Axis::ThreadY].choose(self.rng)?;
        let bind = |target| StepKind::Bind { target, to: Binding::Axis(axis), atomic: true };
        if !axis.is_thread() {
            return Some(bind(target));
        }
        let n = self.fresh("u");
        let (outer, inner) = (format!("{n}o"), format!("{n}t"));
        self.queue.push_back(bind(LoopRef { stage: target.stage.clone(), name: inner.clone() }));
        Some(StepKind::Split { target, factor: self.multiple(), outer, inner, tail: Tail::Exact })
    }

    /// A loop that is reduced over.
    fn reduced(&mut self, m: &LoopModule) -> Option<LoopRef> {
        let mut found = Vec::new();
        for (path, b) in blocks(m) {
            let reduce =
                |l: &&For| b.iters.iter().any(|i| i.kind == IterKind::Reduce && m.env.pool.uses_var(i.binding, l.var));
            found.extend(enclosing(&m.body, &path).into_iter().filter(reduce).map(|l| loop_ref(m, l)));
        }
        found.choose(self.rng).cloned()
    }

    /// The index of a dimension, or the value of an extent function at such indices.
    fn index_or_entry(&mut self, m: &LoopModule) -> Option<Formula> {
        let (_, block) = blocks(m).into_iter().choose(self.rng)?;
        let dims: Vec<Formula> = block.iters.iter().map(|i| Formula::Name(m.env.vars[i.var].name.clone())).collect();
        let given = m.env.ufs.iter().filter(|(_, f)| matches!(f.def, UfDef::Extent { .. }));
        let called = given.choose(self.rng).filter(|_| self.rng.random_bool(0.7));
        match called {
            Some((_, f)) => Some(Formula::Call(f.name.clone(), dims.into_iter().take(f.domain.len()).collect())),
            None => dims.choose(self.rng).cloned(),
        }
    }

    /// Steps that make parts or change the order of iterations.
    fn parts(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        match self.rng.random_range(0..7) {
            0..2 => {
                let target = self.any_loop(m, stages)?;
                let own = Formula::Name(target.name.clone());
                let policy = match self.rng.random_range(0..6) {
                    0 => Remap::LongestFirst,
                    1 => Remap::RoundRobin(self.rng.random_range(1..5)),
                    2 => Remap::By(Formula::Bin('*', Box::new(own), Box::new(Formula::Int(-1)))),
                    3 | 4 => {
                        let least = Formula::Int(self.rng.random_range(-4..3));
                        let key = Formula::Call("max".into(), vec![self.index_or_entry(m)?, least]);
                        Remap::By(Formula::Bin('*', Box::new(key), Box::new(own)))
                    }
                    _ => {
                        let last = Formula::Bin('-', Box::new(size(&target.name)), Box::new(Formula::Int(1)));
                        Remap::Order(Formula::Bin('-', Box::new(last), Box::new(own)))
                    }
                };
                Some(StepKind::Remap { target, policy })
            }
            2..4 => {
                let mut points = Vec::new();
                for _ in 0..*[1, 1, 2].choose(self.rng)? {
                    let target = self.any_loop(m, stages)?;
                    let whole = Formula::Call("floordiv".into(), vec![size(&target.name), Formula::Int(2)]);
                    let at = match self.rng.random_range(0..4) {
                        3 => self.index_or_entry(m)?,
                        0 => Formula::Int(self.rng.random_range(-1..6)),
                        1 => Formula::Bin('*', Box::new(Formula::Int(2)), Box::new(whole)),
                        _ => Formula::Bin('-', Box::new(size(&target.name)), Box::new(Formula::Int(2))),
                    };
                    points.push((target, at));
                }
                Some(StepKind::OpSplit { points })
            }
            4..6 => self.hfuse(m, stages),
            _ => {
                let (stage, loops) = self.nest(m, stages)?;
                let mut chosen: Vec<(String, i64)> = Vec::new();
                for p in loops.iter().take(2) {
                    let size = self.rng.random_range(1..6);
                    chosen.push((reference(m, stage, p).name, size));
                }
                let names = (0..2 * chosen.len()).map(|_| self.fresh("t")).collect();
                Some(StepKind::Tile { stage: name(m, stage), loops: chosen, names })
            }
        }
    }

    /// A step of a kind that the others leave rare.
    fn rare(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        match self.rng.random_range(0..9) {
            0 | 1 => self.prefetch(m),
            2 => self.double_buffer(m, stages),
            3 => self.box_of_a_copy(m, stages),
            4 => self.hfuse(m, stages),
            5 => self.parts(m, stages),
            6 => self.pack(m, stages),
            7 => Some(StepKind::Peel { target: self.any_loop(m, stages)?, few: self.few() }),
            _ => Some(StepKind::Relax { target: self.any_loop(m, stages)?, zero: self.rng.random_bool(0.3) }),
        }
    }

    fn prefetch(&mut self, m: &LoopModule) -> Option<StepKind> {
        let all = blocks(m);
        let (path, b) = all.choose(self.rng)?;
        let read = reads_below(&m.env.pool, std::slice::from_ref(&Stmt::Block((*b).clone())));
        let (tensor, stage) = (name(m, *read.choose(self.rng)?), name(m, b.stage));
        let around = enclosing(&m.body, path);
        let outer = self.rng.random_range(0..around.len().max(1));
        let at = loop_ref(m, around.get(outer)?);
        let below = &around[outer + 1..];
        let inside = if self.rng.random_bool(0.5) {
            below.choose(self.rng).map(|p| loop_ref(m, p))
        } else if self.rng.random_bool(0.3) {
            let elsewhere: Vec<_> = all.iter().filter(|o| o.0.starts_with(&path[..=outer])).collect();
            elsewhere.choose(self.rng).and_then(|o| Some(loop_ref(m, enclosing(&m.body, &o.0).last()?)))
        } else {
            None
        };
        let distance = self.rng.random_range(1..4);
        Some(StepKind::Prefetch { stage, tensor, at, inside, distance, locality: self.rng.random_range(0..4) })
    }

    /// Buffers in loops, mostly.
    fn double_buffer(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        let local: Vec<TensorId> = stages.iter().copied().filter(|&t| m.env.tensors[t].scope == Scope::Local).collect();
        let stage = *local.choose(self.rng).or(stages.choose(self.rng))?;
        Some(StepKind::DoubleBuffer { stage: name(m, stage), slots: self.rng.random_range(2..4) })
    }

    /// The outermost loop of a stage with a buffer, mostly, or a swizzle, which hardly anything allows.
    fn box_of_a_copy(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        let shared: Vec<TensorId> =
            stages.iter().copied().filter(|&t| m.env.tensors[t].scope == Scope::Shared).collect();
        let stage = *shared.choose(self.rng).or(stages.choose(self.rng))?;
        if self.rng.random_bool(0.1) {
            return Some(StepKind::Swizzle { tensor: name(m, stage) });
        }
        let loops = stage_loops(m, stage);
        Some(StepKind::BulkCopy { target: reference(m, stage, loops.first()?) })
    }

    /// A loop around a sum of products, mostly.
    fn offload(&mut self, m: &LoopModule) -> Option<StepKind> {
        let products: Vec<(Path, &Block)> = blocks(m)
            .into_iter()
            .filter(|(_, b)| matches!(b.role, BlockRole::Update(cora_ir::Reduction::Op(Combiner::Sum))))
            .filter(|(_, b)| matches!(m.env.pool.get(b.value), Expr::Bin(BinOp::Mul, ..)))
            .collect();
        let (path, b) = products.choose(self.rng)?;
        let around: Vec<LoopRef> =
            enclosing(&m.body, path).into_iter().filter(|l| l.stage == b.stage).map(|l| loop_ref(m, l)).collect();
        Some(StepKind::Offload { target: around.choose(self.rng)?.clone() })
    }

    /// Neighbours in one body, mostly: two or three of them.
    fn hfuse(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        let count = if self.rng.random_bool(0.2) { 3 } else { 2 };
        let together = neighbours(m, count);
        let loops = match together.choose(self.rng) {
            Some(found) if self.rng.random_bool(0.9) => found.clone(),
            _ => vec![self.any_loop(m, stages)?, self.any_loop(m, stages)?],
        };
        Some(StepKind::Hfuse { loops, name: self.fresh("h") })
    }

    fn reorder(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        let (stage, loops) = self.nest(m, stages)?;
        let mut order: Vec<String> = loops.iter().map(|p| reference(m, stage, p).name).collect();
        order.dedup();
        let keep = self.rng.random_range(2..=3).min(order.len());
        while order.len() > keep {
            order.remove(self.rng.random_range(0..order.len()));
        }
        order.shuffle(self.rng);
        Some(StepKind::Reorder { stage: name(m, stage), order })
    }

    fn vectorize(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        let (stage, loops) = self.nest(m, stages)?;
        let at = if self.rng.random_bool(0.85) { loops.len() - 1 } else { self.rng.random_range(0..loops.len()) };
        let width = if self.rng.random_bool(0.2) { None } else { Some(*[2, 3, 4, 4, 8, 16].choose(self.rng)?) };
        Some(StepKind::Vectorize { target: reference(m, stage, &loops[at]), width })
    }

    /// At most three of them: copies multiply.
    fn unroll(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        if self.unrolled > 2 {
            return None;
        }
        let (stage, loops) = self.nest(m, stages)?;
        let path = loops.choose(self.rng)?;
        let bound = m.env.pool.constant_bound(loop_at(&m.body, path).extent);
        if bound.is_some_and(|b| b > 8) {
            return None;
        }
        self.unrolled += usize::from(bound.is_some());
        Some(StepKind::Unroll { target: reference(m, stage, path) })
    }

    fn pad_dim(&mut self, m: &LoopModule) -> Option<StepKind> {
        let ids: Vec<TensorId> = m.env.tensors.ids().collect();
        let t = &m.env.tensors[*ids.choose(self.rng)?];
        let dim = t.dims.choose(self.rng)?.name.clone();
        Some(StepKind::PadDim { tensor: t.name.clone(), dim, multiple: self.multiple() })
    }

    /// A change of a tensor's stored dimensions.
    fn layout(&mut self, m: &LoopModule) -> Option<StepKind> {
        let temps: Vec<TensorId> = m.env.tensors.ids().filter(|&t| m.env.tensors[t].role == Role::Temp).collect();
        let all: Vec<TensorId> = m.env.tensors.ids().collect();
        let t = *if self.rng.random_bool(0.95) { temps.choose(self.rng)? } else { all.choose(self.rng)? };
        let own = m.env.tensors[t].dims.iter().map(|d| d.name.clone()).collect();
        let dims = cora_ir::layout::stored_names(&m.env.tensors[t].layout, own).filter(|d| !d.is_empty())?;
        let tensor = name(m, t);
        match self.rng.random_range(0..4) {
            3 => {
                let multiple = self.multiple();
                let (dim, offset) = (dims.choose(self.rng)?.clone(), self.rng.random_range(0..multiple));
                Some(StepKind::StorageAlign { tensor, dim, multiple, offset })
            }
            0 => {
                let dim = dims.choose(self.rng)?.clone();
                let (outer, inner) = (self.fresh("o"), self.fresh("i"));
                Some(StepKind::SplitDim { tensor, dim, factor: self.multiple(), outer, inner })
            }
            1 => {
                let first = self.rng.random_range(0..dims.len().max(1));
                let end = (first + self.rng.random_range(2..=3)).min(dims.len());
                Some(StepKind::FuseDims { tensor, dims: dims[first..end].to_vec(), name: self.fresh("t") })
            }
            _ => {
                let mut order = dims;
                let keep = self.rng.random_range(2..=3).min(order.len());
                while order.len() > keep {
                    order.remove(self.rng.random_range(0..order.len()));
                }
                order.shuffle(self.rng);
                Some(StepKind::ReorderDims { tensor, order })
            }
        }
    }

    fn temp(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<String> {
        let temps: Vec<TensorId> = stages.iter().copied().filter(|&t| m.env.tensors[t].role == Role::Temp).collect();
        temps.choose(self.rng).map(|&t| name(m, t))
    }

    fn compute_at(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        // An output may have a place in a loop, too.
        let stage = if self.rng.random_bool(0.8) { self.temp(m, stages)? } else { name(m, *stages.choose(self.rng)?) };
        let tensor = m.env.tensor_named(&stage)?;
        let mut around: Vec<LoopRef> = Vec::new();
        for (path, b) in blocks(m) {
            if reads_below(&m.env.pool, std::slice::from_ref(&Stmt::Block(b.clone()))).contains(&tensor) {
                around.extend(enclosing(&m.body, &path).iter().map(|l| loop_ref(m, l)));
            }
        }
        let read = !around.is_empty() && self.rng.random_bool(0.95);
        let at = if read { around.choose(self.rng)?.clone() } else { self.any_loop(m, stages)? };
        Some(StepKind::ComputeAt { stage, at })
    }

    fn scope(&mut self) -> Scope {
        let all = [Scope::Local, Scope::Local, Scope::Local, Scope::Reg, Scope::Reg, Scope::Global, Scope::Shared];
        let n = if self.grid { all.len() } else { all.len() - 1 };
        *all[..n].choose(self.rng).unwrap_or(&Scope::Local)
    }

    fn cache_write(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        let (stage, loops) = self.nest(m, stages)?;
        let at = reference(m, stage, loops.choose(self.rng)?);
        let scope = self.scope();
        let new = self.fresh("W");
        Some(StepKind::CacheWrite { stage: name(m, stage), name: new, scope, at })
    }

    /// A copy in tiles of one to three dimensions.
    fn pack(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        let StepKind::CacheRead { stage, tensor, name, scope, at, access, .. } = self.cache_read(m, stages)? else {
            return None;
        };
        let dims = &m.env.tensors[m.env.tensor_named(&tensor)?].dims;
        let mut tiles: Vec<PackDim> = (0..dims.len())
            .map(|dim| {
                let whole = m.env.pool.as_int(dims[dim].storage).is_some() && self.rng.random_bool(0.5);
                PackDim { dim: self.dim_ref(dims, dim), size: (!whole).then(|| self.multiple()) }
            })
            .collect();
        tiles.shuffle(self.rng);
        tiles.truncate(self.rng.random_range(1..=3));
        Some(StepKind::Pack { stage, tensor, name, scope, at, tiles, access })
    }

    /// The dimension by its name, where no other has it, or by its position.
    fn dim_ref(&mut self, dims: &[TensorDim], d: usize) -> DimRef {
        let name = &dims[d].name;
        if dims.iter().filter(|x| x.name == *name).count() == 1 && self.rng.random_bool(0.5) {
            return DimRef::Named(name.clone());
        }
        DimRef::At(d)
    }

    fn cache_read(&mut self, m: &LoopModule, stages: &[TensorId]) -> Option<StepKind> {
        let (stage, loops) = self.nest(m, stages)?;
        let path = loops.choose(self.rng)?;
        let read = reads_below(&m.env.pool, std::slice::from_ref(&Stmt::For(loop_at(&m.body, path).clone())));
        let tensor = *read.choose(self.rng)?;
        let mut layout: Vec<LayoutDim> = Vec::new();
        if self.rng.random_bool(0.5) {
            let dims = &m.env.tensors[tensor].dims;
            layout = (0..dims.len()).map(|d| LayoutDim { dim: self.dim_ref(dims, d), part: Part::Whole }).collect();
            layout.shuffle(self.rng);
            if self.rng.random_bool(0.5) && !layout.is_empty() {
                let (at, block) = (self.rng.random_range(0..layout.len()), self.rng.random_range(1..5));
                let dim = layout[at].dim.clone();
                layout[at] = LayoutDim::div(dim.clone(), block);
                layout.insert(self.rng.random_range(at + 1..layout.len() + 1), LayoutDim::modulo(dim, block));
            }
        }
        let (scope, new) = (self.scope(), self.fresh("R"));
        let setup = m.env.tensors[tensor].role == Role::ConstInput && self.rng.random_bool(0.5);
        let (scope, at) = match setup {
            true => (Scope::Global, CopyAt::Setup),
            false if self.rng.random_bool(0.2) => (Scope::Global, CopyAt::Before),
            false => (scope, CopyAt::Loop(reference(m, stage, path))),
        };
        let access = if self.rng.random_bool(0.25) { Some(self.rng.random_range(0..2)) } else { None };
        let (stage, tensor) = (name(m, stage), name(m, tensor));
        Some(StepKind::CacheRead { stage, tensor, name: new, scope, at, layout, access })
    }
}

fn size(name: &str) -> Formula {
    Formula::Call("size".into(), vec![Formula::Name(name.to_owned())])
}

/// Loops that stand in one body, so many in a row, `init` apart.
fn neighbours(m: &LoopModule, count: usize) -> Vec<Vec<LoopRef>> {
    fn go(m: &LoopModule, body: &[Stmt], count: usize, out: &mut Vec<Vec<LoopRef>>) {
        let loops: Vec<&For> = body
            .iter()
            .filter_map(|s| match s {
                Stmt::For(l) if !l.init => Some(l),
                _ => None,
            })
            .collect();
        out.extend(loops.windows(count).map(|w| w.iter().map(|l| loop_ref(m, l)).collect()));
        loops.iter().for_each(|l| go(m, &l.body, count, out));
    }
    let mut out = Vec::new();
    go(m, &m.body, count, &mut out);
    out
}

pub fn name(m: &LoopModule, t: TensorId) -> String {
    m.env.tensors[t].name.clone()
}

pub fn loop_ref(m: &LoopModule, l: &For) -> LoopRef {
    LoopRef { stage: name(m, l.stage), name: m.env.vars[l.var].name.clone() }
}

fn reference(m: &LoopModule, stage: TensorId, path: &Path) -> LoopRef {
    LoopRef { stage: name(m, stage), name: m.env.vars[loop_at(&m.body, path).var].name.clone() }
}

fn stages(m: &LoopModule) -> Vec<TensorId> {
    let mut out: Vec<TensorId> = m.blocks().iter().map(|b| b.stage).collect();
    out.sort_unstable();
    out.dedup();
    out
}

/// The loop of `stage` that is all the body of `l`, initialisation apart.
fn only_loop(l: &For, stage: TensorId) -> Option<&For> {
    let mut main = l.body.iter().filter(|s| match s {
        Stmt::For(f) => !f.init,
        Stmt::Block(b) => b.role != BlockRole::Init,
    });
    match (main.next(), main.next()) {
        (Some(Stmt::For(f)), None) if f.stage == stage => Some(f),
        _ => None,
    }
}

pub fn blocks(m: &LoopModule) -> Vec<(Path, &cora_ir::loops::Block)> {
    fn go<'a>(body: &'a [Stmt], here: &mut Path, out: &mut Vec<(Path, &'a cora_ir::loops::Block)>) {
        for (i, s) in body.iter().enumerate() {
            here.push(i);
            match s {
                Stmt::For(l) => go(&l.body, here, out),
                Stmt::Block(b) => out.push((here.clone(), b)),
            }
            here.pop();
        }
    }
    let mut out = Vec::new();
    go(&m.body, &mut Vec::new(), &mut out);
    out
}
