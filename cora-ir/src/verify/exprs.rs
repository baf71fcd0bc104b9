//! Rules of expressions: types, lanes, arity, what may occur where.

use super::{Allow, Checker, Loads};
use crate::env::UfDef;
use crate::expr::{Expr, MAX_VALUE_DEPTH};
use crate::ids::{ExprId, TensorId};
use crate::types::{BinOp, Literal, ScalarType, Type, UnOp};

impl Checker<'_> {
    /// Checks an expression: its types, and that it consists of what `allow` allows.
    pub(super) fn expr(&mut self, e: ExprId, allow: &Allow<'_>) {
        if !self.known(e) {
            return self.error("entities", format!("there is no expression {e:?}"));
        }
        if self.is_too_deep(e) {
            return self.error("depth", format!("an expression is deeper than {MAX_VALUE_DEPTH}"));
        }
        let mut nodes = Vec::new();
        self.env.pool.walk(e, &mut |id, _| nodes.push(id));
        for id in nodes {
            if self.typed.insert(id) {
                self.node_types(id);
            }
            self.node_place(id, allow);
        }
    }

    /// Checks an expression and that it is a scalar of type `ty`; `rule` says so.
    pub(super) fn scalar(&mut self, e: ExprId, ty: ScalarType, rule: &'static str, what: &str, allow: &Allow<'_>) {
        self.expr(e, allow);
        if self.known(e) && self.env.pool.ty(e) != Type::scalar(ty) {
            let found = self.env.pool.ty(e);
            self.error(rule, format!("{what} `{}` is of type {found}, not {ty}", self.show(e)));
        }
    }

    /// Checks the value of an element of `tensor`: a tuple for one of tuples, else a scalar.
    pub(super) fn element(&mut self, e: ExprId, tensor: TensorId, rule: &'static str, allow: &Allow<'_>) {
        let env = self.env;
        if env.tensors[tensor].tuple.is_none_or(|c| env.combiners.get(c).is_none()) {
            return self.scalar(e, env.tensors[tensor].ty, rule, "the value", allow);
        }
        if !self.known(e) {
            return self.error("entities", format!("there is no expression {e:?}"));
        }
        let types = env.part_types(tensor);
        let Expr::Tuple(parts) = env.pool.get(e) else {
            return self.error("tuples", format!("`{}` is not a tuple", self.show(e)));
        };
        if parts.len() != types.len() {
            self.error("tuples", format!("`{}` has {} components, not {}", self.show(e), parts.len(), types.len()));
        }
        for (&part, ty) in parts.iter().zip(types) {
            self.scalar(part, ty, rule, "a component", allow);
        }
    }

    fn node_place(&mut self, id: ExprId, allow: &Allow<'_>) {
        let env = self.env;
        match env.pool.get(id) {
            Expr::Var(v) => match allow.vars {
                Some((scope, rule)) if env.vars.get(*v).is_some() && !scope.contains(v) => {
                    self.error(rule, format!("variable `{}` is not bound here", self.var_name(*v)));
                }
                _ => {}
            },
            Expr::Arg(n) if *n >= allow.args.0 => {
                self.error(allow.args.1, format!("`${n}` where there are {} arguments", allow.args.0));
            }
            Expr::Operand(n, ty) if self.operands.get(*n as usize) != Some(ty) => {
                self.error("formal-args", format!("`${n}:{ty}` is no operand here"));
            }
            Expr::Tuple(_) => self.error("tuples", format!("the tuple `{}` is not a whole value", self.show(id))),
            Expr::Call(..) => {
                if let Some(rule) = allow.no_calls {
                    self.error(rule, format!("`{}` is a call", self.show(id)));
                }
            }
            Expr::Load { tensor, index, .. } => self.load_place(id, *tensor, index.len(), allow),
            Expr::Search { table, .. } => {
                self.vector_place(id, allow);
                self.load_place(id, *table, 1, allow);
            }
            Expr::Ramp { .. } | Expr::Splat(..) | Expr::Reduce(..) => self.vector_place(id, allow),
            _ => {}
        }
    }

    fn vector_place(&mut self, id: ExprId, allow: &Allow<'_>) {
        if !allow.vectors {
            self.error("vectors", format!("`{}` belongs into the storage dialect", self.show(id)));
        }
    }

    fn load_place(&mut self, id: ExprId, tensor: TensorId, indices: usize, allow: &Allow<'_>) {
        let Some(t) = self.env.tensors.get(tensor) else { return };
        let wanted = match allow.loads {
            Loads::No(rule) => return self.error(rule, format!("`{}` is a load", self.show(id))),
            Loads::MultiDim => t.dims.len(),
            Loads::Flat => 1,
            Loads::Only(tensors, rule) => {
                if !tensors.contains(&tensor) {
                    self.error(rule, format!("`@{}` may not be read here", t.name));
                }
                1
            }
        };
        if indices != wanted {
            self.error("arity", format!("`{}` has {indices} indices, not {wanted}", self.show(id)));
        }
    }

    fn mismatch(&mut self, id: ExprId, what: &str) {
        self.error("types", format!("in `{}`, {what}", self.show(id)));
    }

    /// Checks one node against its operands' types.
    fn node_types(&mut self, id: ExprId) {
        let env = self.env;
        let ty = |e: ExprId| env.pool.ty(e);
        match env.pool.get(id) {
            Expr::Int(_) | Expr::Arg(_) | Expr::Operand(..) | Expr::Tuple(_) => {}
            Expr::Lit(l) => self.literal(id, *l),
            Expr::Var(v) if env.vars.get(*v).is_none() => self.error("entities", format!("there is no {v:?}")),
            Expr::Param(p) if env.params.get(*p).is_none() => self.error("entities", format!("there is no {p:?}")),
            Expr::Var(_) | Expr::Param(_) => {}
            Expr::Call(f, args) => {
                let Some(uf) = env.ufs.get(*f) else {
                    return self.error("entities", format!("there is no {f:?}"));
                };
                let wanted = if matches!(uf.def, UfDef::Max { .. }) { 0 } else { uf.domain.len() };
                if args.len() != wanted {
                    self.error("arity", format!("`{}` has {} arguments, not {wanted}", self.show(id), args.len()));
                }
                self.all_index(id, args);
                self.equal_lanes(id, args);
            }
            Expr::Un(op, a) => self.unary(id, *op, ty(*a)),
            Expr::Bin(op, a, b) => {
                self.binary(id, *op, ty(*a).scalar, ty(*b).scalar);
                self.equal_lanes(id, &[*a, *b]);
            }
            Expr::Select(c, a, b) => {
                self.condition(id, *c);
                if ty(*a).scalar != ty(*b).scalar {
                    self.mismatch(id, "the two values differ in type");
                }
                self.equal_lanes(id, &[*c, *a, *b]);
            }
            Expr::Cast(..) => {}
            Expr::Load { tensor, part, index, guard } => {
                if self.exists(*tensor) {
                    let types = self.stored_types(*tensor);
                    match types.get(*part as usize) {
                        Some(&t) if t != ty(id).scalar => self.mismatch(id, "the load's type is not the tensor's"),
                        Some(_) => {}
                        None => {
                            self.error("tuples", format!("`{}` has no component {part}", self.tensor_name(*tensor)))
                        }
                    }
                }
                self.all_index(id, index);
                let mut all = index.to_vec();
                if let Some((cond, other)) = *guard {
                    self.condition(id, cond);
                    if ty(other).scalar != ty(id).scalar {
                        self.mismatch(id, "the value of `else` is not of the tensor's type");
                    }
                    all.extend([cond, other]);
                }
                self.equal_lanes(id, &all);
            }
            Expr::Ramp { base, lanes, .. } => {
                self.all_index(id, &[*base]);
                if ty(*base).lanes != 1 || *lanes == 0 {
                    self.error("lanes", format!("`{}` needs a scalar base and lanes", self.show(id)));
                }
            }
            Expr::Splat(a, lanes) => {
                if ty(*a).lanes != 1 || *lanes == 0 {
                    self.error("lanes", format!("`{}` needs a scalar and lanes", self.show(id)));
                }
            }
            Expr::Search { table, base, len, value } => {
                if self.exists(*table) && !env.tensors[*table].ty.is_int() {
                    self.mismatch(id, "the table is not of integers");
                }
                let operands = [*base, *len, *value];
                self.all_index(id, &operands);
                if operands.iter().any(|&o| ty(o).lanes != 1) {
                    self.error("lanes", format!("`{}` needs scalars", self.show(id)));
                }
            }
            Expr::Reduce(_, a) => {
                if ty(*a).lanes < 2 {
                    self.error("lanes", format!("`{}` combines the lanes of a scalar", self.show(id)));
                }
            }
        }
    }

    /// The types of a tensor's components, if its combiner exists.
    fn stored_types(&self, t: TensorId) -> Vec<ScalarType> {
        match self.env.tensors[t].tuple {
            Some(c) if self.env.combiners.get(c).is_none() => Vec::new(),
            _ => self.env.part_types(t),
        }
    }

    fn literal(&mut self, id: ExprId, l: Literal) {
        let fits = match l.ty {
            ScalarType::Index => false,
            ty if ty.is_float() => true,
            ty => (ty.int_min()..=ty.int_max()).contains(&l.as_i64()),
        };
        if !fits {
            self.error("literals", format!("`{}` is no value of type {}", self.show(id), l.ty));
        }
    }

    fn unary(&mut self, id: ExprId, op: UnOp, a: Type) {
        let good = match op {
            UnOp::Not => a.scalar == ScalarType::Bool,
            UnOp::Neg | UnOp::Abs => a.scalar != ScalarType::Bool,
            UnOp::Tf32 => a.scalar == ScalarType::F32,
            _ => a.scalar.is_float(),
        };
        if !good {
            self.mismatch(id, &format!("`{}` does not apply to {}", op.name(), a.scalar));
        }
    }

    fn binary(&mut self, id: ExprId, op: BinOp, a: ScalarType, b: ScalarType) {
        let good = match op {
            BinOp::And | BinOp::Or => a == ScalarType::Bool,
            BinOp::Div | BinOp::Pow => a.is_float(),
            BinOp::FloorDiv | BinOp::Mod => a.is_int() || a == ScalarType::Index,
            BinOp::Add | BinOp::Sub | BinOp::Mul => a != ScalarType::Bool,
            BinOp::Min | BinOp::Max | BinOp::Lt | BinOp::Le | BinOp::Eq | BinOp::Ne => true,
        };
        if a != b {
            self.mismatch(id, &format!("the operands are of types {a} and {b}"));
        } else if !good {
            self.mismatch(id, &format!("`{}` does not apply to {a}", op.symbol()));
        }
    }

    fn condition(&mut self, id: ExprId, c: ExprId) {
        let found = self.env.pool.ty(c).scalar;
        if found != ScalarType::Bool {
            self.mismatch(id, &format!("the condition is of type {found}"));
        }
    }

    fn all_index(&mut self, id: ExprId, operands: &[ExprId]) {
        for &o in operands {
            let found = self.env.pool.ty(o).scalar;
            if found != ScalarType::Index {
                self.mismatch(id, &format!("`{}` is of type {found}, not index", self.show(o)));
            }
        }
    }

    fn equal_lanes(&mut self, id: ExprId, operands: &[ExprId]) {
        let mut lanes = operands.iter().map(|&o| self.env.pool.ty(o).lanes);
        if let Some(first) = lanes.next()
            && lanes.any(|l| l != first)
        {
            self.error("lanes", format!("the operands of `{}` have different numbers of lanes", self.show(id)));
        }
    }
}
