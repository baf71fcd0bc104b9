//! Storage lowering by enumeration: every dependence graph of up to five dimensions, random lengths.
//!
//! Offsets count the elements in row-major ragged order, sizes are exact, positions lead back to
//! indices, and there is one table for each dimension on which an inner one depends, with an entry for
//! each combination of the indices that it depends on. Layouts changed by random steps map different
//! elements to different places.

use cora_ir::expr::{floor_div, floor_mod};
use cora_ir::layout::LayoutStep;
use cora_ir::loops::LoopModule;
use cora_ir::schedule::{Step, StepKind};
use cora_ir::{BinOp, Env, Expr, ExprId, Param, Role, ScalarType, Scope, Tensor, TensorDim, Uf, UfDef, UfId};
use cora_passes::lower::layout::{Layout, sizes};
use cora_passes::lower::stored::Stored;
use cora_passes::schedule::apply_step;
use rand::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

/// Lengths are below this, so every function has a value wherever an index can be.
const LONGEST: i64 = 4;

/// A ragged box: `parents[d]` are the dimensions on which the size of dimension d depends.
struct Shape {
    env: Env,
    parents: Vec<Vec<usize>>,
    extents: Vec<ExprId>,
    params: Vec<i64>,
    lengths: FxHashMap<(UfId, Vec<i64>), i64>,
    memo: FxHashMap<(UfId, Vec<i64>), i64>,
}

impl Shape {
    fn new(parents: Vec<Vec<usize>>, rng: &mut SmallRng) -> Self {
        let mut s = Self {
            env: Env::default(),
            parents,
            extents: Vec::new(),
            params: Vec::new(),
            lengths: FxHashMap::default(),
            memo: FxHashMap::default(),
        };
        for d in 0..s.parents.len() {
            let extent = s.extent(d, rng);
            s.extents.push(extent);
        }
        let extents = s.extents.clone();
        s.extents = sizes(&mut s.env, &extents);
        s
    }

    fn extent(&mut self, d: usize, rng: &mut SmallRng) -> ExprId {
        let parents = self.parents[d].clone();
        if parents.is_empty() {
            self.params.push(rng.random_range(1..LONGEST));
            let p = self.env.params.push(Param { name: format!("P{d}"), lo: 0, hi: LONGEST - 1 });
            return self.env.pool.param(p);
        }
        let longest = self.env.pool.int(LONGEST);
        let (lo, hi) = (self.env.pool.int(0), self.env.pool.int(LONGEST - 1));
        // Of outer dimensions of one size for just these.
        let fixed = parents.iter().all(|&p| self.parents[p].is_empty());
        let domain = parents.iter().map(|&p| if fixed { self.extents[p] } else { longest }).collect();
        let f = self.env.ufs.push(Uf { name: format!("s{d}"), domain, def: UfDef::Extent { lo, hi } });
        for at in 0..LONGEST.pow(parents.len() as u32) {
            let args = (0..parents.len()).map(|k| at / LONGEST.pow(k as u32) % LONGEST).collect();
            self.lengths.insert((f, args), *[0, 1, 2, 2, 3].choose(rng).expect("not empty"));
        }
        let args: Vec<ExprId> = parents.iter().map(|&p| self.env.pool.arg(p as u32)).collect();
        self.env.pool.call(f, args)
    }

    /// The value of an expression over `Arg`s, by the definitions.
    fn eval(&mut self, e: ExprId, args: &[i64]) -> i64 {
        match self.env.pool.get(e).clone() {
            Expr::Int(v) => v,
            Expr::Param(p) => self.params[cora_ir::EntityId::index(p)],
            Expr::Arg(n) => args[n as usize],
            Expr::Call(f, actuals) => {
                let actuals: Vec<i64> = actuals.iter().map(|&a| self.eval(a, args)).collect();
                self.call(f, actuals)
            }
            Expr::Bin(op, a, b) => {
                let (a, b) = (self.eval(a, args), self.eval(b, args));
                match op {
                    BinOp::Add => a + b,
                    BinOp::Sub => a - b,
                    BinOp::Mul => a * b,
                    BinOp::FloorDiv => floor_div(a, b),
                    BinOp::Mod => floor_mod(a, b),
                    BinOp::Min => a.min(b),
                    BinOp::Max => a.max(b),
                    other => panic!("{other:?} in an offset"),
                }
            }
            other => panic!("{other:?} in an offset"),
        }
    }

    fn call(&mut self, f: UfId, args: Vec<i64>) -> i64 {
        let key = (f, args);
        if let Some(&v) = self.lengths.get(&key).or_else(|| self.memo.get(&key)) {
            return v;
        }
        let (args, uf) = (key.1.clone(), self.env.ufs[f].clone());
        let value = match uf.def {
            UfDef::PrefixSum { body } => {
                let (&x, outer) = args.split_last().expect("a sum has an argument");
                let rows = self.eval(*uf.domain.last().expect("as many extents"), outer);
                assert!((0..=rows).contains(&x), "{} at {args:?} of {rows} rows", uf.name);
                (0..x).map(|i| self.eval(body, &[outer, &[i]].concat())).sum()
            }
            UfDef::Search { sum } => {
                let (&r, outer) = args.split_last().expect("a search has an argument");
                let last = *self.env.ufs[sum].domain.last().expect("an argument");
                let rows = self.eval(last, outer);
                let at = |s: &mut Self, x: i64| s.call(sum, [outer, &[x]].concat());
                (0..rows).find(|&x| at(self, x) <= r && r < at(self, x + 1)).expect("a row holds the position")
            }
            UfDef::Max { body } => {
                let points = self.points(&uf.domain);
                points.iter().map(|p| self.eval(body, p)).fold(0, i64::max)
            }
            other => panic!("{} is {other:?}, or outside its domain at {args:?}", uf.name),
        };
        self.memo.insert(key, value);
        value
    }

    /// Every index of a box, in row-major order.
    fn points(&mut self, extents: &[ExprId]) -> Vec<Vec<i64>> {
        let mut out: Vec<Vec<i64>> = vec![Vec::new()];
        for &e in extents {
            let mut next = Vec::new();
            for p in out {
                for i in 0..self.eval(e, &p) {
                    next.push([p.as_slice(), &[i]].concat());
                }
            }
            out = next;
        }
        out
    }

    /// Dimensions inside `d` that are connected, among those inside, to one whose size depends on `d`.
    fn moved_by(&self, d: usize) -> Vec<usize> {
        let n = self.parents.len();
        let mut reached: Vec<usize> = (d + 1..n).filter(|&x| self.parents[x].contains(&d)).collect();
        let mut at = 0;
        while at < reached.len() {
            let x = reached[at];
            let linked = (d + 1..n).filter(|&y| self.parents[y].contains(&x) || self.parents[x].contains(&y));
            let new: Vec<usize> = linked.filter(|y| !reached.contains(y)).collect();
            reached.extend(new);
            at += 1;
        }
        reached
    }

    /// The dimensions that the size of `d` depends on, by way of their own sizes too.
    fn ancestors(&self, d: usize) -> Vec<usize> {
        let mut all = self.parents[d].clone();
        let mut at = 0;
        while at < all.len() {
            let new: Vec<usize> = self.parents[all[at]].iter().copied().filter(|p| !all.contains(p)).collect();
            all.extend(new);
            at += 1;
        }
        all
    }

    /// The dimensions of the table of dimension `d`, and which of these are as long as they ever are: those on which the volumes
    /// that it sums depend and `d`, and those that say how many these are, but where that is a row among rows of one size that
    /// matters nowhere else.
    fn kept(&self, d: usize) -> (Vec<usize>, Vec<usize>) {
        let moved = self.moved_by(d);
        let mut wanted: Vec<usize> = (0..d).filter(|a| moved.iter().any(|&x| self.parents[x].contains(a))).collect();
        wanted.push(d);
        loop {
            let (mut keep, mut bounded) = (wanted.clone(), Vec::new());
            for j in (0..=d).rev() {
                if !keep.contains(&j) || self.parents[j].iter().all(|p| keep.contains(p)) {
                    continue;
                }
                let fixed = self.parents[j].iter().all(|&p| self.parents[p].is_empty());
                if fixed && !self.ancestors(j).iter().any(|a| keep.contains(a)) {
                    bounded.push(j);
                } else {
                    keep.extend(self.parents[j].iter().copied().filter(|p| !keep.contains(p)).collect::<Vec<_>>());
                }
            }
            let met = |n: usize| {
                let own = self.ancestors(bounded[n]);
                let before: Vec<usize> = bounded[..n].iter().flat_map(|&j| self.ancestors(j)).collect();
                own.iter().any(|a| keep.contains(a) || before.contains(a))
            };
            match (0..bounded.len()).find(|&n| met(n)) {
                Some(n) => wanted.extend(self.parents[bounded[n]].iter().copied()),
                None => {
                    keep.sort_unstable();
                    return (keep, bounded);
                }
            }
        }
    }

    /// The entries of the table of dimension `d`: one for each combination of positions in its outer dimensions and each index in
    /// `d`, and one for the end.
    fn entries(&mut self, d: usize) -> i64 {
        let (keep, bounded) = self.kept(d);
        let mut rows: Vec<Vec<i64>> = vec![Vec::new()];
        let mut entries = 0;
        for j in 0..=d {
            let mut next = Vec::new();
            for row in &rows {
                let n = match (keep.contains(&j), bounded.contains(&j)) {
                    (false, _) => 1,
                    (true, false) => self.eval(self.extents[j], row),
                    (true, true) => self.longest(j),
                };
                entries += if j == d { n + 1 } else { 0 };
                next.extend((0..n).map(|i| [row.as_slice(), &[i]].concat()));
            }
            rows = next;
        }
        entries
    }

    /// The size of a dimension in its longest row.
    fn longest(&mut self, d: usize) -> i64 {
        let sizes: Vec<i64> =
            (0..d).map(|p| if self.parents[d].contains(&p) { self.eval(self.extents[p], &[]) } else { 1 }).collect();
        let mut rows: Vec<Vec<i64>> = vec![Vec::new()];
        for n in sizes {
            rows = rows.iter().flat_map(|r| (0..n).map(move |i| [r.as_slice(), &[i]].concat())).collect();
        }
        rows.iter().map(|r| self.eval(self.extents[d], r)).max().unwrap_or(0)
    }

    /// As many as in [`Shape::entries`], if all outer dimensions that say how many there are count.
    fn most_entries(&mut self, d: usize) -> i64 {
        let moved = self.moved_by(d);
        let mut used: Vec<bool> = (0..d).map(|a| moved.iter().any(|&x| self.parents[x].contains(&a))).collect();
        used.push(true);
        for j in (0..=d).rev() {
            if used[j] {
                self.parents[j].iter().for_each(|&p| used[p] = true);
            }
        }
        let mut rows: Vec<Vec<i64>> = vec![Vec::new()];
        for (j, &counts) in used[..d].iter().enumerate() {
            let mut next = Vec::new();
            for row in &rows {
                let n = if counts { self.eval(self.extents[j], row) } else { 1 };
                next.extend((0..n).map(|i| [row.as_slice(), &[i]].concat()));
            }
            rows = next;
        }
        rows.iter().map(|row| self.eval(self.extents[d], row) + 1).sum()
    }

    /// The sums that an expression calls, and those behind them.
    fn sums(&self, e: ExprId, found: &mut Vec<UfId>) {
        let mut called = Vec::new();
        self.env.pool.walk(e, &mut |_, n| {
            if let Expr::Call(f, _) = n {
                called.push(*f);
            }
        });
        for f in called {
            let uf = &self.env.ufs[f];
            if let UfDef::PrefixSum { body } = uf.def
                && !found.contains(&f)
            {
                found.push(f);
                self.sums(body, found);
                uf.domain.iter().for_each(|&e| self.sums(e, found));
            }
        }
    }

    fn table_entries(&mut self, f: UfId) -> i64 {
        let domain = self.env.ufs[f].domain.clone();
        let (&last, outer) = domain.split_last().expect("a sum has an argument");
        let rows = self.points(outer);
        rows.iter().map(|p| self.eval(last, p) + 1).sum()
    }
}

/// Every graph of `n` dimensions, as parents.
fn graphs(n: usize) -> impl Iterator<Item = Vec<Vec<usize>>> {
    let edges: Vec<(usize, usize)> = (0..n).flat_map(|d| (0..d).map(move |p| (p, d))).collect();
    (0..1usize << edges.len()).map(move |mask| {
        let mut parents = vec![Vec::new(); n];
        for (k, &(p, d)) in edges.iter().enumerate() {
            if mask >> k & 1 == 1 {
                parents[d].push(p);
            }
        }
        parents
    })
}

fn check(parents: Vec<Vec<usize>>, rng: &mut SmallRng) {
    let n = parents.len();
    let mut s = Shape::new(parents.clone(), rng);
    let extents = s.extents.clone();
    let layout = Layout { extents: &extents, name: "T.row" };
    let (offset, volume) = (layout.offset(&mut s.env), layout.volume(&mut s.env, 0));
    let flat = s.env.pool.arg(0);
    let back = layout.unflatten(&mut s.env, 0, &[], flat);
    let points = s.points(&extents);
    assert_eq!(s.eval(volume, &[]), points.len() as i64, "size of {parents:?}");
    for (k, p) in points.iter().enumerate() {
        assert_eq!(s.eval(offset, p), k as i64, "offset of {p:?} in {parents:?}");
        let index: Vec<i64> = back.iter().map(|&e| s.eval(e, &[k as i64])).collect();
        assert_eq!(index, *p, "index at {k} in {parents:?}");
    }
    let mut tables = Vec::new();
    s.sums(offset, &mut tables);
    let mut found: Vec<i64> = tables.into_iter().map(|f| s.table_entries(f)).collect();
    let steering: Vec<usize> = (0..n).filter(|&d| !s.moved_by(d).is_empty()).collect();
    let mut wanted: Vec<i64> = steering.iter().map(|&d| s.entries(d)).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted, "tables' entries of {parents:?}");
    for d in steering {
        // One that is bounded by rows that are not there has an end, too.
        assert!(s.entries(d) <= s.most_entries(d).max(1), "table of dimension {d} in {parents:?}");
    }
}

#[test]
fn every_graph_of_up_to_five_dimensions() {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut count = 0;
    for n in 0..=5 {
        for parents in graphs(n) {
            check(parents, &mut rng);
            count += 1;
        }
    }
    assert_eq!(count, 1 + 1 + 2 + 8 + 64 + 1024);
}

/// A step on the stored dimensions `names` of `T`.
fn random_step(names: &[String], n: usize, rng: &mut SmallRng) -> StepKind {
    let tensor = "T".to_owned();
    match rng.random_range(0..4) {
        3 => {
            let multiple = rng.random_range(1..=5);
            let (dim, offset) = (names.choose(rng).expect("a dimension").clone(), rng.random_range(0..multiple));
            StepKind::StorageAlign { tensor, dim, multiple, offset }
        }
        0 => StepKind::SplitDim {
            tensor,
            dim: names.choose(rng).expect("a dimension").clone(),
            factor: rng.random_range(1..=4),
            outer: format!("o{n}"),
            inner: format!("i{n}"),
        },
        1 => {
            let first = rng.random_range(0..names.len());
            let end = (first + rng.random_range(2..=3)).min(names.len());
            StepKind::FuseDims { tensor, dims: names[first..end].to_vec(), name: format!("t{n}") }
        }
        _ => {
            let mut order = names.to_vec();
            order.shuffle(rng);
            StepKind::ReorderDims { tensor, order }
        }
    }
}

/// Applies random steps to a tensor of the shape; how many were legal.
fn check_changed(parents: Vec<Vec<usize>>, rng: &mut SmallRng) -> usize {
    let mut s = Shape::new(parents.clone(), rng);
    let dims: Vec<TensorDim> = s.extents.iter().enumerate().map(|(d, &e)| TensorDim::new(format!("d{d}"), e)).collect();
    let own: Vec<String> = dims.iter().map(|d| d.name.clone()).collect();
    let mut m = LoopModule { env: std::mem::take(&mut s.env), ..LoopModule::default() };
    let (role, scope) = (Role::Temp, Scope::Global);
    let tensor =
        Tensor { name: "T".into(), ty: ScalarType::F32, tuple: None, dims, role, scope, range: None, layout: vec![] };
    let t = m.env.tensors.push(tensor);
    let mut applied = 0;
    for n in 0..4 {
        let names = cora_ir::layout::stored_names(&m.env.tensors[t].layout, own.clone()).expect("steps fit");
        let kind = random_step(&names, n, rng);
        applied += usize::from(apply_step(&mut m, &Step::from(kind)).is_ok());
    }
    let steps = m.env.tensors[t].layout.clone();
    s.env = m.env;
    let extents = s.extents.clone();
    let stored = Stored::new(&mut s.env, "T.row", extents.clone(), &steps);
    let addressed = Stored::addressed(&mut s.env, "T.row", extents.clone(), &steps);
    let apart = Layout { extents: &addressed.extents, name: "T.row" };
    let (apart, all) = (apart.offset(&mut s.env), apart.volume(&mut s.env, 0));
    let layout = Layout { extents: &stored.extents, name: "T.row" };
    let (offset, volume) = (layout.offset(&mut s.env), layout.volume(&mut s.env, 0));
    let size = s.eval(volume, &[]);
    let places = s.points(&stored.extents);
    assert_eq!((size, s.eval(all, &[])), (places.len() as i64, size), "size of {parents:?} after {steps:?}");
    let mut taken = FxHashSet::default();
    for p in s.points(&extents) {
        let place: Vec<i64> = stored.index.iter().map(|&e| s.eval(e, &p)).collect();
        let at = s.eval(offset, &place);
        assert!(places.get(at as usize) == Some(&place), "{p:?} goes to {place:?} of {parents:?} after {steps:?}");
        let same: Vec<i64> = addressed.index.iter().map(|&e| s.eval(e, &p)).collect();
        assert_eq!(s.eval(apart, &same), at, "{p:?} of {parents:?} after {steps:?}");
        assert!(taken.insert(at), "two elements at {at} of {parents:?} after {steps:?}");
    }
    let padded = steps.iter().any(|s| matches!(s, LayoutStep::Split { .. } | LayoutStep::Align { .. }));
    assert!(padded || taken.len() as i64 == size, "holes in {parents:?} after {steps:?}");
    applied
}

#[test]
fn changed_layouts_keep_elements_apart() {
    let mut rng = SmallRng::seed_from_u64(2);
    let mut applied = 0;
    for n in 1..=4 {
        for parents in graphs(n) {
            for _ in 0..8 {
                applied += check_changed(parents.clone(), &mut rng);
            }
        }
    }
    assert!(applied > 800, "{applied} steps were legal");
}
