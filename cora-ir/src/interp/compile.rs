//! Nests to bytecode: scopes, loops, leaves.

use crate::expr::Expr;
use crate::ids::{ExprId, TensorId, VarId};
use crate::interp::context::Context;
use crate::interp::contract::factors;
use crate::interp::error::{InterpError, Stage};
use crate::interp::instr::{Access, Instr, Opd, Program, Step};
use crate::interp::nest::{Fold, Folding, Leaf, Loop, Node};
use crate::types::{BinOp, Combiner, Literal, ScalarType};
use rustc_hash::FxHashMap;

/// A compiled expression.
#[derive(Clone, Copy, Debug)]
pub(super) struct Val {
    pub opd: Opd,
    /// The scope in which it is computed: the outermost one where it can be.
    pub level: usize,
    /// Whether it holds within the current leaf only.
    pub volatile: bool,
}

/// The loop whose iterations are lanes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strip {
    pub level: usize,
    pub base: u32,
    pub var: VarId,
}

/// The state of one compilation.
pub(super) struct Compiler<'c, 'a> {
    pub context: &'c mut Context<'a>,
    /// The step lists that are open, outermost first.
    pub scopes: Vec<Vec<Step>>,
    pub memo: FxHashMap<ExprId, Val>,
    /// Expressions compiled since the last leaf ended.
    pub journal: Vec<ExprId>,
    pub vars: FxHashMap<VarId, Val>,
    /// Variables that stand for expressions.
    pub aliases: FxHashMap<VarId, ExprId>,
    pub int_consts: FxHashMap<i64, u32>,
    pub float_consts: FxHashMap<u64, u32>,
    /// Scalar registers that hold constants.
    pub known: FxHashMap<u32, i64>,
    pub program: Program,
    pub strip: Option<Strip>,
    pub next_int_vector: u32,
    pub next_float_vector: u32,
    /// The components of the tuple that is being folded.
    pub accumulators: Vec<Opd>,
    /// Lanes of the operand that is being turned into a register, outside strips.
    pub vector_width: u32,
}

/// Compiles `nodes`.
pub(crate) fn compile(context: &mut Context<'_>, nodes: &[Node]) -> Result<Program, InterpError> {
    let mut c = Compiler {
        context,
        scopes: vec![Vec::new()],
        memo: FxHashMap::default(),
        journal: Vec::new(),
        vars: FxHashMap::default(),
        aliases: FxHashMap::default(),
        int_consts: FxHashMap::default(),
        float_consts: FxHashMap::default(),
        known: FxHashMap::default(),
        program: Program::default(),
        strip: None,
        next_int_vector: 0,
        next_float_vector: 0,
        accumulators: Vec::new(),
        vector_width: 1,
    };
    c.nodes(nodes)?;
    c.program.steps = c.scopes.pop().unwrap_or_default();
    Ok(c.program)
}

impl Compiler<'_, '_> {
    pub fn top(&self) -> usize {
        self.scopes.len() - 1
    }

    pub fn push(&mut self, step: Step) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.push(step);
        }
    }

    fn open(&mut self) {
        self.scopes.push(Vec::new());
    }

    /// Closes the current scope and forgets what was computed in it.
    fn close(&mut self) -> Vec<Step> {
        let steps = self.scopes.pop().unwrap_or_default();
        let top = self.top();
        self.memo.retain(|_, v| v.level <= top);
        steps
    }

    fn nodes(&mut self, nodes: &[Node]) -> Result<(), InterpError> {
        for node in nodes {
            match node {
                Node::For(l) => self.for_loop(l)?,
                Node::If { cond, then, other } => {
                    let cond = self.typed_operand(*cond, ScalarType::Bool)?;
                    self.open();
                    self.nodes(then)?;
                    let then = self.close();
                    self.open();
                    self.nodes(other)?;
                    let other = self.close();
                    self.push(Step::Where { cond: cond.opd, base: None, at: None, then, other });
                    self.end_statement();
                }
                Node::Let { var, value } => self.let_var(*var, *value)?,
                Node::Address(e) => {
                    self.typed(*e, ScalarType::Index)?;
                    self.end_statement();
                }
                Node::Sync(s) => self.push(Step::Sync(*s)),
                Node::Slot { tensor, slot, how } => {
                    let slot = self.scalar(*slot)?;
                    self.push(Step::Slot { tensor: *tensor, slot, how: *how });
                    self.end_statement();
                }
                Node::Leaf(leaf) => {
                    self.leaf(leaf)?;
                    self.end_statement();
                }
            }
        }
        Ok(())
    }

    /// Forgets what holds within one statement only: memory may have changed.
    fn end_statement(&mut self) {
        for e in std::mem::take(&mut self.journal) {
            if self.memo.get(&e).is_some_and(|v| v.volatile) {
                self.memo.remove(&e);
            }
        }
        if self.strip.is_none() {
            (self.next_int_vector, self.next_float_vector) = (0, 0);
        }
    }

    fn let_var(&mut self, var: VarId, value: ExprId) -> Result<(), InterpError> {
        if self.vars.contains_key(&var) || self.aliases.contains_key(&var) {
            let pool = &self.context.env.pool;
            self.memo.retain(|&e, _| !pool.uses_var(e, var));
        }
        if self.strip.is_some() {
            // Lanes may be regrouped before the leaf: computed where it is used.
            self.aliases.insert(var, value);
            return Ok(());
        }
        let v = self.typed(value, ScalarType::Index)?;
        self.vars.insert(var, Val { volatile: false, ..v });
        self.end_statement();
        Ok(())
    }

    fn for_loop(&mut self, l: &Loop) -> Result<(), InterpError> {
        let extent = self.scalar(l.extent)?;
        self.end_statement();
        if l.strip {
            let base = self.open_strip(l.var);
            self.nodes(&l.body)?;
            let body = self.close_strip();
            self.push(Step::Strip { base, extent, at: l.at, outer: l.outer, body });
            return Ok(());
        }
        let var = self.open_loop(l.var);
        for &t in &l.attach {
            self.attach(t)?;
        }
        self.nodes(&l.body)?;
        let body = self.close();
        self.push(Step::For { var, extent, at: l.at, outer: l.outer, axis: l.axis, body });
        Ok(())
    }

    fn open_loop(&mut self, var: VarId) -> u32 {
        self.open();
        let r = self.new_int(0);
        self.vars.insert(var, Val { opd: Opd::S(r), level: self.top(), volatile: false });
        r
    }

    fn open_strip(&mut self, var: VarId) -> u32 {
        self.open();
        let base = self.new_int(0);
        let stride = self.const_int(1);
        let level = self.top();
        self.vars.insert(var, Val { opd: Opd::A { base, stride }, level, volatile: false });
        self.strip = Some(Strip { level, base, var });
        base
    }

    fn close_strip(&mut self) -> Vec<Step> {
        let body = self.close();
        self.strip = None;
        self.end_statement();
        body
    }

    fn attach(&mut self, t: TensorId) -> Result<(), InterpError> {
        let mut vars = Vec::new();
        if self.context.stage == Stage::Storage {
            self.push(Step::Attach { tensor: t, vars, resize: false });
            return Ok(());
        }
        self.context.prepare_tensor(t)?;
        for d in &self.context.env.tensors[t].dims {
            for v in self.context.env.pool.vars_of(d.storage) {
                match self.vars.get(&v) {
                    Some(Val { opd: Opd::S(r), .. }) => vars.push((v, *r)),
                    _ => {
                        let name = self.context.tensor_name(t);
                        let what = format!(
                            "the size of `{name}` depends on a variable that has no value where it is attached"
                        );
                        return Err(self.context.unsupported(what));
                    }
                }
            }
        }
        let resize = !vars.is_empty();
        self.push(Step::Attach { tensor: t, vars, resize });
        Ok(())
    }

    fn leaf(&mut self, leaf: &Leaf) -> Result<(), InterpError> {
        for &(var, value) in &leaf.binds {
            self.aliases.insert(var, value);
        }
        self.guarded(&leaf.predicate, leaf)?;
        for (var, _) in &leaf.binds {
            self.aliases.remove(var);
        }
        Ok(())
    }

    fn guarded(&mut self, predicate: &[ExprId], leaf: &Leaf) -> Result<(), InterpError> {
        let Some((&first, rest)) = predicate.split_first() else { return self.write(leaf) };
        if self.context.env.pool.as_bool(first) == Some(true) {
            return self.guarded(rest, leaf);
        }
        let cond = self.typed_operand(first, ScalarType::Bool)?.opd;
        let at = Some(leaf.tensor);
        match (cond, self.strip) {
            (Opd::V(_), Some(strip)) => {
                // The lanes that remain are renumbered: whatever depends on them is computed anew.
                let outside = self.vars.get(&strip.var).copied();
                self.memo.retain(|_, v| v.level < strip.level);
                self.open();
                let level = self.top();
                self.strip = Some(Strip { level, ..strip });
                if let Some(v) = outside {
                    self.vars.insert(strip.var, Val { level, ..v });
                }
                self.guarded(rest, leaf)?;
                let then = self.close();
                self.strip = Some(strip);
                if let Some(v) = outside {
                    self.vars.insert(strip.var, v);
                }
                self.push(Step::Where { cond, base: Some(strip.base), at, then, other: Vec::new() });
            }
            _ => {
                self.open();
                self.guarded(rest, leaf)?;
                let then = self.close();
                self.push(Step::Where { cond, base: None, at, then, other: Vec::new() });
            }
        }
        Ok(())
    }

    fn write(&mut self, leaf: &Leaf) -> Result<(), InterpError> {
        let pool = &self.context.env.pool;
        let w = match self.strip {
            Some(_) => 0,
            None => leaf.index.iter().map(|&e| pool.ty(e).lanes).max().unwrap_or(1),
        };
        let values = match &leaf.fold {
            Some(fold) => self.fold(fold, leaf)?,
            None => {
                let mut values = Vec::new();
                for (t, value) in [(leaf.tensor, leaf.value)].iter().chain(&leaf.rest) {
                    values.push(self.typed_operand(*value, self.context.env.tensors[*t].ty)?.opd);
                }
                values
            }
        };
        let mut index = Vec::new();
        for &e in &leaf.index {
            index.push(self.typed(e, ScalarType::Index)?.opd);
        }
        let mask = match leaf.mask {
            Some(m) => Some(self.typed_operand(m, ScalarType::Bool)?.opd),
            None => None,
        };
        for (tensor, value) in leaf.targets().zip(values) {
            let float = self.context.env.tensors[tensor].ty.is_float();
            let access = Box::new(Access { tensor, index: index.clone().into() });
            self.push(Step::Do(match leaf.combine {
                Some(combiner) => Instr::Update { float, access, combiner, value, atomic: leaf.atomic, w },
                None => Instr::Store { float, access, value, mask, copy: leaf.copy, w },
            }));
        }
        Ok(())
    }

    /// The combination of the leaf's value over the fold's loops, in an accumulator.
    fn fold(&mut self, fold: &Fold, leaf: &Leaf) -> Result<Vec<Opd>, InterpError> {
        let combiner = match &fold.combiner {
            Folding::Op(c) => *c,
            Folding::Tuple(identity) => return self.fold_tuple(identity, fold, leaf),
        };
        let ty = self.context.env.tensors[leaf.tensor].ty;
        let float = ty.is_float();
        let identity = self.literal(combiner.identity(ty));
        let acc = self.new_register(float, self.strip.is_some());
        self.push(Step::Do(Instr::AccSet { float, acc, value: identity }));
        let mut opened = Vec::new();
        let mut product = None;
        for (k, &(var, extent)) in fold.loops.iter().enumerate() {
            let extent = self.scalar(extent)?;
            let last = k + 1 == fold.loops.len();
            if last && float && combiner == Combiner::Sum {
                product = factors(self, leaf.value, var)?;
                // The general form is a scope of its own.
                self.open();
            }
            let strip = fold.strip && last;
            let r = if strip { self.open_strip(var) } else { self.open_loop(var) };
            opened.push((r, extent, strip));
        }
        self.accumulate(combiner, acc, leaf, ty)?;
        let at = Some(leaf.tensor);
        for (k, (r, extent, strip)) in opened.into_iter().rev().enumerate() {
            let step = if strip {
                let body = self.close_strip();
                Step::Strip { base: r, extent, at, outer: false, body }
            } else {
                let body = self.close();
                Step::For { var: r, extent, at, outer: false, axis: None, body }
            };
            self.push(step);
            if k == 0 && float && combiner == Combiner::Sum {
                let general = self.close();
                match product.take() {
                    Some(f) => self.push(Step::Contract { acc, factors: Box::new(f), extent, general }),
                    None => general.into_iter().for_each(|s| self.push(s)),
                }
            }
        }
        Ok(vec![acc])
    }

    /// The components of a fold over tuples, each in an accumulator.
    fn fold_tuple(&mut self, identity: &[Literal], fold: &Fold, leaf: &Leaf) -> Result<Vec<Opd>, InterpError> {
        let lanes = self.strip.is_some();
        let mut accumulators = Vec::new();
        for l in identity {
            let (value, float) = (self.literal(*l), l.ty.is_float());
            let acc = self.new_register(float, lanes);
            self.push(Step::Do(Instr::AccSet { float, acc, value }));
            accumulators.push(acc);
        }
        let mut opened = Vec::new();
        for &(var, extent) in &fold.loops {
            let extent = self.scalar(extent)?;
            opened.push((self.open_loop(var), extent));
        }
        self.accumulators = accumulators.clone();
        let mut new = Vec::new();
        for (value, l) in [leaf.value].into_iter().chain(leaf.rest.iter().map(|r| r.1)).zip(identity) {
            let (value, float) = (self.typed_operand(value, l.ty)?.opd, l.ty.is_float());
            // Components may change places: all are computed and copied before one is replaced.
            let copy = self.new_register(float, lanes);
            self.copy(float, copy, value);
            new.push((float, copy));
        }
        for (&acc, (float, value)) in accumulators.iter().zip(new) {
            self.push(Step::Do(Instr::AccSet { float, acc, value }));
        }
        self.accumulators = Vec::new();
        let at = Some(leaf.tensor);
        for (var, extent) in opened.into_iter().rev() {
            let body = self.close();
            self.push(Step::For { var, extent, at, outer: false, axis: None, body });
        }
        Ok(accumulators)
    }

    fn copy(&mut self, float: bool, dst: Opd, value: Opd) {
        let (always, w) = (Opd::S(self.const_int(1)), if self.strip.is_some() { 0 } else { 1 });
        self.push(Step::Do(Instr::Select { float, dst, cond: always, a: value, b: value, w }));
    }

    fn accumulate(&mut self, combiner: Combiner, acc: Opd, leaf: &Leaf, ty: ScalarType) -> Result<(), InterpError> {
        let w = if self.strip.is_some() { 0 } else { 1 };
        if let (Combiner::Sum, true, &Expr::Bin(BinOp::Mul, a, b)) =
            (combiner, ty.is_float(), self.context.env.pool.get(leaf.value))
        {
            let (a, b) = (self.typed(a, ty)?.opd, self.typed(b, ty)?.opd);
            self.push(Step::Do(Instr::MulAcc { acc, a, b, w }));
            return Ok(());
        }
        let value = self.typed(leaf.value, ty)?;
        let value = self.lanes(value).opd;
        self.push(Step::Do(Instr::Acc { float: ty.is_float(), ty, combiner, acc, value, w }));
        Ok(())
    }

    /// Compiles with `var` = 0, and forgets what depends on it.
    pub(super) fn with_var_at_zero<T>(
        &mut self,
        var: VarId,
        f: impl FnOnce(&mut Self) -> Result<T, InterpError>,
    ) -> Result<T, InterpError> {
        let zero = self.const_int(0);
        self.vars.insert(var, Val { opd: Opd::S(zero), level: 0, volatile: false });
        let out = f(self);
        self.vars.remove(&var);
        let pool = &self.context.env.pool;
        self.memo.retain(|&e, _| !pool.uses_var(e, var));
        out
    }

    /// A value that is the same in all lanes.
    fn scalar(&mut self, e: ExprId) -> Result<Opd, InterpError> {
        match self.typed(e, ScalarType::Index)?.opd {
            o @ Opd::S(_) => Ok(o),
            _ => Err(self.context.unsupported("a trip count that varies between lanes")),
        }
    }
}
