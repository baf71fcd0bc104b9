//! Expressions to bytecode: equal ones once, each in the outermost scope where it can be computed.

use crate::expr::{Expr, floor_div, floor_mod};
use crate::ids::{EntityId, ExprId};
use crate::interp::compile::{Compiler, Val};
use crate::interp::error::InterpError;
use crate::interp::instr::{Access, Instr, LANES, Opd, Step};
use crate::types::{BinOp, Literal, ScalarType};

/// A scalar integer register and its level.
type Scalar = (u32, usize);

impl Compiler<'_, '_> {
    pub(super) fn new_int(&mut self, value: i64) -> u32 {
        self.program.ints.push(value);
        self.program.ints.len() as u32 - 1
    }

    pub(super) fn const_int(&mut self, value: i64) -> u32 {
        if let Some(&r) = self.int_consts.get(&value) {
            return r;
        }
        let r = self.new_int(value);
        self.int_consts.insert(value, r);
        self.known.insert(r, value);
        r
    }

    pub(super) fn literal(&mut self, l: Literal) -> Opd {
        if !l.ty.is_float() {
            return Opd::S(self.const_int(l.as_i64()));
        }
        let value = l.as_f64();
        if let Some(&r) = self.float_consts.get(&value.to_bits()) {
            return Opd::S(r);
        }
        self.program.floats.push(value);
        let r = self.program.floats.len() as u32 - 1;
        self.float_consts.insert(value.to_bits(), r);
        Opd::S(r)
    }

    /// A fresh register.
    pub(super) fn new_register(&mut self, float: bool, lanes: bool) -> Opd {
        match (float, lanes) {
            (false, false) => Opd::S(self.new_int(0)),
            (true, false) => {
                self.program.floats.push(0.0);
                Opd::S(self.program.floats.len() as u32 - 1)
            }
            (false, true) => {
                self.next_int_vector += 1;
                self.program.int_vectors = self.program.int_vectors.max(self.next_int_vector);
                Opd::V(self.next_int_vector - 1)
            }
            (true, true) => {
                self.next_float_vector += 1;
                self.program.float_vectors = self.program.float_vectors.max(self.next_float_vector);
                Opd::V(self.next_float_vector - 1)
            }
        }
    }

    fn emit(&mut self, level: usize, instr: Instr) {
        self.scopes[level].push(Step::Do(instr));
    }

    /// The width of instructions for an expression.
    fn width(&self, e: ExprId) -> u32 {
        if self.strip.is_some() { 0 } else { self.context.env.pool.ty(e).lanes }
    }

    /// Where an instruction on lanes goes: into the strip, or else where it is used.
    fn lane_level(&self, level: usize) -> usize {
        self.strip.map_or(self.top(), |s| level.max(s.level))
    }

    /// An expression of the given type; a mixed-up one is refused.
    pub(super) fn typed(&mut self, e: ExprId, ty: ScalarType) -> Result<Val, InterpError> {
        let env = self.context.env;
        let found = env.pool.ty(e).scalar;
        if found.is_float() != ty.is_float() {
            let shown = crate::text::print_expr(env, e, &crate::text::Names::of(env, &[e]));
            return Err(self.context.unsupported(format!("{shown} is of type {found}, not {ty}")));
        }
        self.expr(e)
    }

    fn int_expr(&mut self, e: ExprId) -> Result<Val, InterpError> {
        self.typed(e, ScalarType::Index)
    }

    /// [`Self::typed`] as a register.
    pub(super) fn typed_operand(&mut self, e: ExprId, ty: ScalarType) -> Result<Val, InterpError> {
        self.typed(e, ty)?;
        self.operand(e)
    }

    /// The value as a register, for instructions that cannot read `A` operands.
    pub(super) fn lanes(&mut self, v: Val) -> Val {
        let Opd::A { base, stride } = v.opd else { return v };
        let Opd::V(dst) = self.new_register(false, true) else { return v };
        let level = self.lane_level(v.level);
        let w = if self.strip.is_some() { 0 } else { self.vector_width };
        self.emit(level, Instr::Iota { dst, base, stride, w });
        Val { opd: Opd::V(dst), level, volatile: v.volatile }
    }

    /// Compiles `e`, once.
    pub(super) fn expr(&mut self, e: ExprId) -> Result<Val, InterpError> {
        if let Some(&v) = self.memo.get(&e) {
            return Ok(v);
        }
        let lanes = self.context.env.pool.ty(e).lanes;
        if lanes as usize > LANES {
            return Err(self.context.unsupported(format!("vectors of {lanes} lanes")));
        }
        let mut v = self.compile_node(e)?;
        if self.strip.is_none() && !v.opd.is_scalar() {
            v.volatile = true;
        }
        self.memo.insert(e, v);
        self.journal.push(e);
        Ok(v)
    }

    fn constant(&mut self, opd: Opd) -> Val {
        Val { opd, level: 0, volatile: false }
    }

    /// [`Self::expr`] as a register.
    pub(super) fn operand(&mut self, e: ExprId) -> Result<Val, InterpError> {
        let lanes = self.context.env.pool.ty(e).lanes;
        let v = self.expr(e)?;
        let outside = std::mem::replace(&mut self.vector_width, lanes);
        let v = self.lanes(v);
        self.vector_width = outside;
        Ok(v)
    }

    /// A register for the result of `operands`, and where it is computed.
    fn result(&mut self, float: bool, operands: &[Val]) -> Val {
        let lanes = operands.iter().any(|v| !v.opd.is_scalar());
        let level = operands.iter().map(|v| v.level).max().unwrap_or(0);
        let volatile = operands.iter().any(|v| v.volatile);
        let level = if lanes { self.lane_level(level) } else { level };
        Val { opd: self.new_register(float, lanes), level, volatile }
    }

    fn compile_node(&mut self, e: ExprId) -> Result<Val, InterpError> {
        let env = self.context.env;
        let ty = env.pool.ty(e).scalar;
        let w = self.width(e);
        match env.pool.get(e) {
            Expr::Int(v) => {
                let r = self.const_int(*v);
                Ok(self.constant(Opd::S(r)))
            }
            Expr::Lit(l) => {
                let opd = self.literal(*l);
                Ok(self.constant(opd))
            }
            Expr::Param(p) => {
                let value = self.context.batch.params.get(p.index()).copied();
                let value = value.ok_or_else(|| self.context.unsupported("an unknown parameter"))?;
                let r = self.const_int(value);
                Ok(self.constant(Opd::S(r)))
            }
            Expr::Var(v) => {
                if let Some(&alias) = self.aliases.get(v) {
                    return Ok(Val { volatile: true, ..self.expr(alias)? });
                }
                self.vars.get(v).copied().ok_or_else(|| {
                    let name = env.vars.get(*v).map_or("?", |i| i.name.as_str());
                    self.context.unsupported(format!("variable `{name}` has no value here"))
                })
            }
            Expr::Arg(n) => Err(self.context.unsupported(format!("formal argument {n} outside a definition"))),
            Expr::Operand(n, _) => match self.accumulators.get(*n as usize) {
                Some(&opd) => Ok(Val { opd, level: self.top(), volatile: true }),
                None => Err(self.context.unsupported(format!("operand {n} outside a combiner"))),
            },
            Expr::Tuple(_) => Err(self.context.unsupported("a tuple inside an expression")),
            Expr::Call(f, args) => {
                self.context.ready(*f)?;
                let args = args.iter().map(|&a| self.int_expr(a)).collect::<Result<Vec<_>, _>>()?;
                let out = self.result(false, &args);
                let args = args.iter().map(|v| v.opd).collect();
                self.emit(out.level, Instr::Call { uf: *f, dst: out.opd, args, w });
                Ok(out)
            }
            Expr::Un(op, a) => {
                let a = self.operand(*a)?;
                let out = self.result(ty.is_float(), &[a]);
                self.emit(out.level, Instr::Un { op: *op, ty, dst: out.opd, a: a.opd, w });
                Ok(out)
            }
            Expr::Cast(to, a) => {
                let from = env.pool.ty(*a).scalar;
                let a = self.operand(*a)?;
                let out = self.result(to.is_float(), &[a]);
                self.emit(out.level, Instr::Cast { from, to: *to, dst: out.opd, a: a.opd, w });
                Ok(out)
            }
            Expr::Bin(op, a, b) => self.binary(*op, *a, *b, w),
            Expr::Select(c, a, b) => {
                let c = self.typed_operand(*c, ScalarType::Bool)?;
                let (a, b) = (self.typed_operand(*a, ty)?, self.typed_operand(*b, ty)?);
                let out = self.result(ty.is_float(), &[c, a, b]);
                let (float, dst) = (ty.is_float(), out.opd);
                self.emit(out.level, Instr::Select { float, dst, cond: c.opd, a: a.opd, b: b.opd, w });
                Ok(out)
            }
            Expr::Load { part: 1.., .. } => Err(self.context.unsupported("a component of a tuple")),
            Expr::Load { tensor, part: 0, index, guard } => {
                let float = env.tensors[*tensor].ty.is_float();
                if float != ty.is_float() {
                    return Err(self.context.unsupported("a load of another type than its tensor's"));
                }
                let index = index.iter().map(|&i| self.int_expr(i)).collect::<Result<Vec<_>, _>>()?;
                let mut operands = index.clone();
                let guard = match guard {
                    Some((c, o)) => {
                        let (c, o) = (self.typed_operand(*c, ScalarType::Bool)?, self.typed_operand(*o, ty)?);
                        operands.extend([c, o]);
                        Some((c.opd, o.opd))
                    }
                    None => None,
                };
                let out = Val { level: self.top(), volatile: true, ..self.result(float, &operands) };
                let access = Box::new(Access { tensor: *tensor, index: index.iter().map(|v| v.opd).collect() });
                self.emit(out.level, Instr::Load { float, dst: out.opd, access, guard, w });
                Ok(out)
            }
            Expr::Search { table, base, len, value } => {
                let (b, l, v) = (self.int_expr(*base)?, self.int_expr(*len)?, self.int_expr(*value)?);
                let out = Val { level: self.top(), volatile: true, ..self.result(false, &[b, l, v]) };
                let (base, len, value) = (b.opd, l.opd, v.opd);
                self.emit(out.level, Instr::Search { table: *table, dst: out.opd, base, len, value, w });
                Ok(out)
            }
            Expr::Ramp { base, stride, .. } => {
                let b = self.int_expr(*base)?;
                let Opd::S(r) = b.opd else { return Err(self.context.unsupported("a ramp of vectors")) };
                let stride = self.const_int(*stride);
                Ok(Val { opd: Opd::A { base: r, stride }, ..b })
            }
            Expr::Splat(a, _) => {
                let v = self.expr(*a)?;
                if v.opd.is_scalar() { Ok(v) } else { Err(self.context.unsupported("a splat of a vector")) }
            }
            Expr::Reduce(combiner, a) => {
                let w = env.pool.ty(*a).lanes;
                let v = self.operand(*a)?;
                let float = ty.is_float();
                let Opd::S(dst) = self.new_register(float, false) else { return Ok(v) };
                let level = if v.opd.is_scalar() { v.level } else { self.top() };
                self.emit(level, Instr::Reduce { float, ty, combiner: *combiner, dst, a: v.opd, w });
                Ok(Val { opd: Opd::S(dst), level, volatile: v.volatile })
            }
        }
    }

    fn binary(&mut self, op: BinOp, a: ExprId, b: ExprId, w: u32) -> Result<Val, InterpError> {
        let ty = self.context.env.pool.ty(a).scalar;
        if ty.is_float() != self.context.env.pool.ty(b).scalar.is_float() {
            return Err(self.context.unsupported("operands of different types"));
        }
        if ty == ScalarType::Index {
            let (x, y) = (self.expr(a)?, self.expr(b)?);
            if let Some(v) = self.affine(op, x, y) {
                return Ok(v);
            }
            if let (Opd::S(p), Opd::S(q), BinOp::Add | BinOp::Sub | BinOp::Mul) = (x.opd, y.opd, op) {
                let (r, level) = self.scalar_op(op, (p, x.level), (q, y.level));
                return Ok(Val { opd: Opd::S(r), level, volatile: x.volatile || y.volatile });
            }
        }
        let (x, y) = (self.operand(a)?, self.operand(b)?);
        let out = self.result(ty.is_float() && !op.is_comparison(), &[x, y]);
        self.emit(out.level, Instr::Bin { op, ty, dst: out.opd, a: x.opd, b: y.opd, w });
        Ok(out)
    }

    /// Sums, differences and multiples of `base + lane * stride` are of that form again.
    fn affine(&mut self, op: BinOp, x: Val, y: Val) -> Option<Val> {
        let zero = (self.const_int(0), 0);
        let parts = |v: Val| match v.opd {
            Opd::S(r) => Some(((r, v.level), zero)),
            Opd::A { base, stride } => Some(((base, v.level), (stride, v.level))),
            Opd::V(_) => None,
        };
        if x.opd.is_scalar() && y.opd.is_scalar() {
            return None;
        }
        let ((bx, sx), (by, sy)) = (parts(x)?, parts(y)?);
        let (base, stride) = match op {
            BinOp::Add | BinOp::Sub => (self.scalar_op(op, bx, by), self.scalar_op(op, sx, sy)),
            BinOp::Mul if y.opd.is_scalar() => (self.scalar_op(op, bx, by), self.scalar_op(op, sx, by)),
            BinOp::Mul if x.opd.is_scalar() => (self.scalar_op(op, bx, by), self.scalar_op(op, sy, bx)),
            _ => return None,
        };
        let opd = Opd::A { base: base.0, stride: stride.0 };
        let level = base.1.max(stride.1).max(x.level).max(y.level);
        Some(Val { opd, level, volatile: x.volatile || y.volatile })
    }

    /// `a op b` of scalars, folded where both are constants or one is neutral.
    fn scalar_op(&mut self, op: BinOp, a: Scalar, b: Scalar) -> Scalar {
        let (ka, kb) = (self.known.get(&a.0).copied(), self.known.get(&b.0).copied());
        let folded = match (op, ka, kb) {
            (BinOp::Add, Some(x), Some(y)) => x.checked_add(y),
            (BinOp::Sub, Some(x), Some(y)) => x.checked_sub(y),
            (BinOp::Mul, Some(x), Some(y)) => x.checked_mul(y),
            (BinOp::FloorDiv, Some(x), Some(y)) => Some(floor_div(x, y)),
            (BinOp::Mod, Some(x), Some(y)) => Some(floor_mod(x, y)),
            _ => None,
        };
        match (folded, op, ka, kb) {
            (Some(v), ..) => return (self.const_int(v), 0),
            (_, BinOp::Add, Some(0), _) | (_, BinOp::Mul, Some(1), _) => return b,
            (_, BinOp::Add | BinOp::Sub, _, Some(0)) | (_, BinOp::Mul, _, Some(1)) => return a,
            _ => {}
        }
        let dst = self.new_int(0);
        let level = a.1.max(b.1);
        self.emit(
            level,
            Instr::Bin { op, ty: ScalarType::Index, dst: Opd::S(dst), a: Opd::S(a.0), b: Opd::S(b.0), w: 1 },
        );
        (dst, level)
    }
}
