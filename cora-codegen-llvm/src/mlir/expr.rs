//! Expressions as values: each written once in the outermost open region where it holds.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use cora_ir::expr::ExprPool;
use cora_ir::storage::StorageModule;
use cora_ir::{BinOp, Expr, ExprId, ParamId, ScalarType, TensorId, Type, UfDef, UnOp, VarId};

use super::amx::TileRegisters;
use super::arith::{self, Facts};
use super::builder::{Builder, Elem, Ty, Val};
use super::bulk::{Ring, TensorMap};
use super::bytes::Surplus;
use super::convert::{cast, register_type};
use super::library::Library;
use super::slots::{Slot, Slots};
use super::{EmitFault, lanes};

/// What the private function takes, in the order of its arguments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Formal {
    Buffer(usize),
    Table(usize),
    Param(usize),
}

/// A variable in scope.
#[derive(Clone, Copy)]
struct Binding {
    val: Val,
    nonnegative: bool,
}

/// The expressions of one open region.
#[derive(Default)]
struct Known {
    values: HashMap<ExprId, Val>,
    /// Those that read a tensor which the kernel also writes.
    impure: Vec<ExprId>,
}

/// The state of one kernel's emission.
pub(super) struct Emitter<'m> {
    pub(super) module: &'m StorageModule,
    pub(super) slots: &'m Slots,
    pub(super) library: &'m mut Library,
    pub(super) b: Builder,
    /// The module's expressions and those that index analysis adds, for one kernel after the other.
    pub(super) pool: &'m mut ExprPool,
    pub(super) formals: BTreeMap<Formal, (Val, TensorOrParam)>,
    /// Register buffers, in order of first use: the address and the text that makes it.
    pub(super) registers: Vec<(TensorId, Val, String)>,
    /// What makes the variables in which searches keep the row that they found last.
    pub(super) rows: Vec<String>,
    /// Tiles in registers of their own.
    pub(super) tile_registers: TileRegisters,
    /// 128 in all bytes, where what sums of bytes have too much is taken off after the loop.
    pub(super) more: Option<Val>,
    /// That of loops inside those around.
    pub(super) surplus: Vec<Surplus>,
    /// Tensors that the kernel writes, ascending.
    pub(super) stored: Vec<TensorId>,
    /// On a grid: the threads of a block.
    pub(super) threads: Option<[i64; 3]>,
    /// Shared buffers in order of first use: the address and the size in bytes.
    pub(super) in_shared: Vec<(TensorId, Val, u64)>,
    /// Buffers that boxes fill, in order of first use.
    pub(super) rings: Vec<Ring>,
    /// The kernel's tensor maps, and the argument that one is, if it is used.
    pub(super) maps: Vec<(TensorMap, Option<Val>)>,
    /// Tensors that the kernel reads.
    pub(super) read: Vec<TensorId>,
    /// Whether there is a barrier.
    pub(super) barriers: bool,
    /// Whether copies into shared memory may go on beside the threads.
    pub(super) async_copies: bool,
    /// On a grid: names that only numbers of blocks need.
    pub(super) of_host: Vec<VarId>,
    /// The elements that parts of buffers begin at, where that is not the first.
    pub(super) bases: HashMap<TensorId, i64>,
    /// Numbers that divide the values of names.
    pub(super) divisors: HashMap<VarId, i64>,
    known: Vec<Known>,
    vars: HashMap<VarId, Binding>,
    reads: HashMap<ExprId, Rc<[TensorId]>>,
}

/// What stands behind a formal argument.
#[derive(Clone, Copy, Debug)]
pub(super) enum TensorOrParam {
    Tensor(TensorId),
    Param,
}

impl<'m> Emitter<'m> {
    pub(super) fn new(
        module: &'m StorageModule,
        slots: &'m Slots,
        (library, pool): (&'m mut Library, &'m mut ExprPool),
        b: Builder,
        stored: Vec<TensorId>,
    ) -> Self {
        Self {
            module,
            slots,
            library,
            b,
            pool,
            formals: BTreeMap::new(),
            registers: Vec::new(),
            rows: Vec::new(),
            tile_registers: TileRegisters::default(),
            more: None,
            surplus: Vec::new(),
            stored,
            threads: None,
            in_shared: Vec::new(),
            rings: Vec::new(),
            maps: Vec::new(),
            read: Vec::new(),
            barriers: false,
            async_copies: false,
            of_host: Vec::new(),
            bases: HashMap::new(),
            divisors: HashMap::new(),
            known: vec![Known::default()],
            vars: HashMap::new(),
            reads: HashMap::new(),
        }
    }

    pub(super) fn open(&mut self) {
        self.b.open();
        self.known.push(Known::default());
    }

    pub(super) fn close(&mut self) -> String {
        self.known.pop();
        self.b.close()
    }

    /// `if cond { then } else { other }` as a value of `lanes` lanes.
    pub(super) fn if_value(
        &mut self,
        cond: Val,
        lanes: u32,
        then: impl FnOnce(&mut Self) -> Result<Val, EmitFault>,
        other: impl FnOnce(&mut Self) -> Result<Val, EmitFault>,
    ) -> Result<Val, EmitFault> {
        self.open();
        let v = then(self)?;
        let v = self.b.broadcast(v, lanes);
        let then = self.b.close_with(v);
        self.known.pop();
        self.open();
        let v = other(self)?;
        let v = self.b.broadcast(v, lanes);
        let other = self.b.close_with(v);
        self.known.pop();
        Ok(self.b.finish_if(cond, then, other))
    }

    /// Forgets what was read of `tensors`, which are about to be written.
    pub(super) fn forget(&mut self, tensors: &[TensorId]) {
        let Self { known, reads, .. } = self;
        for region in known {
            let Known { values, impure } = region;
            impure.retain(|e| {
                let stale = reads.get(e).is_none_or(|r| r.iter().any(|t| tensors.contains(t)));
                if stale {
                    values.remove(e);
                }
                !stale
            });
        }
    }

    pub(super) fn bind(&mut self, var: VarId, val: Val, nonnegative: bool) {
        self.vars.insert(var, Binding { val, nonnegative });
    }

    /// The tensors below `e` that the kernel also writes.
    fn reads(&mut self, e: ExprId) -> Rc<[TensorId]> {
        if let Some(r) = self.reads.get(&e) {
            return r.clone();
        }
        let mut all: Vec<TensorId> = Vec::new();
        for kid in self.pool.children(e) {
            all.extend(self.reads(kid).iter());
        }
        if let Expr::Load { tensor, .. } = self.pool.get(e)
            && self.stored.contains(tensor)
        {
            all.push(*tensor);
        }
        all.sort_unstable();
        all.dedup();
        let all: Rc<[TensorId]> = all.into();
        self.reads.insert(e, all.clone());
        all
    }

    fn lookup(&self, e: ExprId) -> Option<Val> {
        self.known.iter().rev().find_map(|k| k.values.get(&e)).copied()
    }

    /// Whether computing `e` here would read memory.
    fn would_load(&self, e: ExprId) -> bool {
        if self.lookup(e).is_some() {
            return false;
        }
        matches!(self.pool.get(e), Expr::Load { .. } | Expr::Search { .. })
            || self.pool.children(e).into_iter().any(|k| self.would_load(k))
    }

    /// The value of an expression, in register form.
    pub(super) fn emit(&mut self, e: ExprId) -> Result<Val, EmitFault> {
        if let Some(v) = self.lookup(e) {
            return Ok(v);
        }
        let v = self.compute(e)?;
        let region = self.b.depth_of(v).min(self.known.len() - 1);
        self.known[region].values.insert(e, v);
        if !self.reads(e).is_empty() {
            self.known[region].impure.push(e);
        }
        Ok(v)
    }

    /// The value of an expression that must be a scalar.
    pub(super) fn emit_scalar(&mut self, e: ExprId, what: &'static str) -> Result<Val, EmitFault> {
        if self.pool.ty(e).lanes == 1 { self.emit(e) } else { Err(EmitFault::Lanes(what)) }
    }

    fn compute(&mut self, e: ExprId) -> Result<Val, EmitFault> {
        let ty = self.pool.ty(e);
        match self.pool.get(e).clone() {
            Expr::Int(v) => Ok(self.b.i64(v)),
            Expr::Lit(l) => {
                let ty = register_type(ty);
                Ok(if l.ty.is_float() { self.b.float(ty, l.as_f64()) } else { self.b.int(ty, l.as_i64()) })
            }
            Expr::Var(v) => match self.vars.get(&v) {
                Some(bound) => Ok(bound.val),
                None => Err(EmitFault::Unbound(self.module.env.vars[v].name.clone())),
            },
            Expr::Param(p) => Ok(self.param(p)),
            Expr::Arg(_) | Expr::Operand(..) => Err(EmitFault::NotLegal("a formal argument")),
            Expr::Tuple(_) => Err(EmitFault::NotLegal("a tuple")),
            Expr::Call(..) => Err(EmitFault::NotLegal("a call of an uninterpreted function")),
            Expr::Un(op, a) => {
                let scalar = self.pool.ty(a).scalar;
                let a = self.emit(a)?;
                arith::unary(&mut self.b, self.library, scalar, op, a)
            }
            Expr::Bin(op, x, y) => self.binary(e, op, x, y),
            Expr::Select(c, x, y) => {
                if let Some(v) = self.all_or_none((c, x, y), ty.lanes)? {
                    return Ok(v);
                }
                let (c, x, y) = (self.emit(c)?, self.emit(x)?, self.emit(y)?);
                let v = self.b.select(c, x, y);
                Ok(self.b.broadcast(v, ty.lanes))
            }
            Expr::Cast(to, a) => {
                let from = self.pool.ty(a).scalar;
                let a = self.emit(a)?;
                Ok(cast(&mut self.b, from, to, a))
            }
            Expr::Load { tensor, index, guard, .. } => match index[..] {
                [index] => {
                    self.read.push(tensor);
                    self.load(tensor, index, guard, ty)
                }
                _ => Err(EmitFault::NotLegal("a load with several indices")),
            },
            Expr::Ramp { base, stride, lanes } => {
                let base = self.emit_scalar(base, "the base of a ramp is a vector")?;
                Ok(arith::ramp(&mut self.b, base, stride, lanes))
            }
            Expr::Splat(a, lanes) => self.splat(a, lanes),
            Expr::Search { table, base, len, value } => {
                let elem = match self.module.env.tensors[table].ty {
                    ScalarType::I32 => Elem::I32,
                    ScalarType::I64 => Elem::I64,
                    ty => return Err(self.element_type(table, ty)),
                };
                let what = "an operand of a search is a vector";
                let operands = [
                    self.pointer(table)?,
                    self.emit_scalar(base, what)?,
                    self.emit_scalar(len, what)?,
                    self.emit_scalar(value, what)?,
                ];
                // A thread of a grid looks for one row; what is the same for all iterations of a loop leaves it.
                let depth = operands.iter().map(|&v| self.b.depth_of(v)).max().unwrap_or(0);
                if self.threads.is_some() || depth == 0 || depth < self.b.depth() {
                    return Ok(self.library.search(&mut self.b, elem, operands));
                }
                let last = self.last_row();
                Ok(self.library.search_on(&mut self.b, elem, operands, last))
            }
            Expr::Reduce(combiner, a) => {
                let scalar = self.pool.ty(a).scalar;
                let v = self.emit(a)?;
                arith::reduce(&mut self.b, self.library, scalar, combiner, v)
            }
        }
    }

    /// Where a search in a loop keeps what it found.
    fn last_row(&mut self) -> Val {
        let v = self.b.value(Ty::scalar(Elem::Ptr), 0);
        self.rows.push(format!(
            "  {v} = llvm.alloca %one x i64 {{alignment = 8 : i64}} : (i64) -> !llvm.ptr\n  %none{n} = arith.constant 0 : i64\n  \
             llvm.store %none{n}, {v} {{alignment = 8 : i64}} : i64, !llvm.ptr\n",
            n = self.rows.len()
        ));
        v
    }

    fn splat(&mut self, a: ExprId, lanes: u32) -> Result<Val, EmitFault> {
        if let Expr::Lit(l) = *self.pool.get(a) {
            let ty = register_type(self.pool.ty(a)).with_lanes(lanes);
            return Ok(if l.ty.is_float() { self.b.float(ty, l.as_f64()) } else { self.b.int(ty, l.as_i64()) });
        }
        if let Expr::Select(c, x, y) = *self.pool.get(a)
            && let Some(v) = self.all_or_none((c, x, y), lanes)?
        {
            return Ok(v);
        }
        let v = self.emit_scalar(a, "what is repeated is a vector")?;
        Ok(self.b.broadcast(v, lanes))
    }

    /// A choice for all lanes of a vector between a value and zeros, by what is read: the value's bits and a mask of ones or
    /// zeros. LLVM would make a vector of truth values first, or branch. Nothing for other choices.
    fn all_or_none(&mut self, (c, x, y): (ExprId, ExprId, ExprId), lanes: u32) -> Result<Option<Val>, EmitFault> {
        let one = |e: ExprId| match *self.pool.get(e) {
            Expr::Splat(one, _) => one,
            _ => e,
        };
        let (c, zeros) = (one(c), [x, y].map(|e| self.pool.is_zero_bits(one(e))));
        let reads = self.pool.any(c, &mut |n| matches!(n, Expr::Load { .. }));
        if lanes == 1 || self.threads.is_some() || self.pool.ty(c).lanes > 1 || !reads || zeros[0] == zeros[1] {
            return Ok(None);
        }
        let elem = register_type(self.pool.ty(x)).elem;
        let bits = match elem.bits() {
            8 => Elem::I8,
            16 => Elem::I16,
            32 => Elem::I32,
            64 => Elem::I64,
            _ => return Ok(None),
        };
        let v = self.emit(if zeros[0] { y } else { x })?;
        let v = self.b.broadcast(v, lanes);
        let mut holds = self.emit_scalar(c, "a condition for all lanes is a vector")?;
        if zeros[0] {
            let yes = self.b.int(self.b.ty(holds), 1);
            holds = self.b.bin("arith.xori", holds, yes);
        }
        let mask = self.b.convert("arith.extsi", holds, bits);
        let (mask, v) = (self.b.broadcast(mask, lanes), self.b.bitcast(v, bits));
        let kept = self.b.bin("arith.andi", v, mask);
        Ok(Some(self.b.bitcast(kept, elem)))
    }

    fn binary(&mut self, e: ExprId, op: BinOp, x: ExprId, y: ExprId) -> Result<Val, EmitFault> {
        let (tx, ty) = (self.pool.ty(x), self.pool.ty(y));
        if tx.lanes != ty.lanes && tx.lanes != 1 && ty.lanes != 1 {
            return Err(EmitFault::Lanes("operands have different numbers of lanes"));
        }
        if matches!(op, BinOp::Lt | BinOp::Le)
            && tx.scalar == ScalarType::Index
            && let Some(mask) = lanes::mask(self, op, x, y)?
        {
            return Ok(mask);
        }
        if matches!(op, BinOp::And | BinOp::Or)
            && self.pool.ty(e) == Type::scalar(ScalarType::Bool)
            && self.would_load(y)
        {
            let left = self.emit(x)?;
            let decided = Ty::scalar(Elem::I1);
            return match op {
                BinOp::And => self.if_value(left, 1, |s| s.emit(y), |s| Ok(s.b.int(decided, 0))),
                _ => self.if_value(left, 1, |s| Ok(s.b.int(decided, 1)), |s| s.emit(y)),
            };
        }
        if op == BinOp::Add && tx.scalar.is_float() {
            // One rounding; the second operand first, since that is where sums put the new term.
            for (sum, product) in [(x, y), (y, x)] {
                let (product, negative) = match *self.pool.get(product) {
                    Expr::Un(UnOp::Neg, product) => (product, true),
                    _ => (product, false),
                };
                if let Expr::Bin(BinOp::Mul, p, q) = *self.pool.get(product) {
                    let (p, q, c) = (self.emit(p)?, self.emit(q)?, self.emit(sum)?);
                    let p = if negative { self.b.un("arith.negf", p) } else { p };
                    return Ok(self.b.fma(p, q, c));
                }
            }
        }
        let (a, c) = (self.emit(x)?, self.emit(y)?);
        let facts = Facts { nonnegative: self.nonnegative(x) && self.nonnegative(y), right: self.constant(y) };
        arith::binary(&mut self.b, self.library, tx.scalar, op, (a, c), facts)
    }

    fn constant(&self, e: ExprId) -> Option<i64> {
        match *self.pool.get(e) {
            Expr::Int(v) => Some(v),
            Expr::Lit(l) if !l.ty.is_float() => Some(l.as_i64()),
            Expr::Splat(a, _) => self.constant(a),
            _ => None,
        }
    }

    /// Whether an `Index` expression is certainly not negative, by its form and the declared ranges.
    pub(super) fn nonnegative(&self, e: ExprId) -> bool {
        let env = &self.module.env;
        match *self.pool.get(e) {
            Expr::Int(v) => v >= 0,
            Expr::Lit(l) => !l.ty.is_float() && l.as_i64() >= 0,
            Expr::Var(v) => self.vars.get(&v).is_some_and(|b| b.nonnegative),
            Expr::Param(p) => env.params[p].lo >= 0,
            Expr::Bin(BinOp::Add | BinOp::Mul | BinOp::FloorDiv | BinOp::Min, x, y) => {
                self.pool.ty(e).scalar == ScalarType::Index && self.nonnegative(x) && self.nonnegative(y)
            }
            Expr::Bin(BinOp::Max, x, y) => self.nonnegative(x) || self.nonnegative(y),
            // The remainder has the divisor's sign.
            Expr::Bin(BinOp::Mod, _, y) => self.nonnegative(y),
            Expr::Select(_, x, y) => self.nonnegative(x) && self.nonnegative(y),
            Expr::Un(UnOp::Abs, _) => self.pool.ty(e).scalar == ScalarType::Index,
            Expr::Cast(ScalarType::Index, a) => self.nonnegative(a),
            Expr::Ramp { base, stride, .. } => stride >= 0 && self.nonnegative(base),
            Expr::Splat(a, _) => self.nonnegative(a),
            Expr::Search { .. } => true,
            Expr::Load { tensor, guard: None, .. } => match self.slots.get(tensor) {
                Some(Slot::Table(t)) => match &env.ufs[self.module.tables[t].uf].def {
                    UfDef::Extent { lo, .. } => env.pool.as_int(*lo).is_some_and(|lo| lo >= 0),
                    UfDef::Map { .. } => false,
                    _ => true,
                },
                _ => env.tensors[tensor].range.is_some_and(|(lo, _)| env.pool.as_int(lo).is_some_and(|lo| lo >= 0)),
            },
            _ => false,
        }
    }

    fn param(&mut self, p: ParamId) -> Val {
        use cora_ir::ids::EntityId as _;
        let b = &mut self.b;
        self.formals
            .entry(Formal::Param(p.index()))
            .or_insert_with(|| (b.value(Ty::scalar(Elem::I64), 0), TensorOrParam::Param))
            .0
    }

    pub(super) fn element_type(&self, tensor: TensorId, ty: ScalarType) -> EmitFault {
        let t = &self.module.env.tensors[tensor];
        EmitFault::ElementType { tensor: t.name.clone(), elements: t.ty, ty }
    }
}
