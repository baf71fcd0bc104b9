//! Index expressions in the runtime's form.

use std::collections::BTreeMap;

use cora_ir::ids::EntityId;
use cora_ir::storage::StorageModule;
use cora_ir::{BinOp, Expr, ExprId, ScalarType, UfDef, UfId, UnOp, VarId};
use cora_runtime::abi::Ix;

use super::DescribeFault;
use crate::mlir::{Slot, Slots};

/// Converts expressions of one module.
pub(super) struct Indices<'m> {
    module: &'m StorageModule,
    slots: Slots,
    /// The table of each function that has one.
    tables: BTreeMap<UfId, u32>,
    /// Names in scope, which are replaced by what they stand for.
    pub(super) lets: BTreeMap<VarId, ExprId>,
}

impl<'m> Indices<'m> {
    pub(super) fn new(module: &'m StorageModule, slots: &Slots) -> Self {
        let tables = module.tables.iter().enumerate().map(|(n, t)| (t.uf, super::number(n))).collect();
        Self { module, slots: slots.clone(), tables, lets: BTreeMap::new() }
    }

    pub(super) fn add_table(&mut self, uf: UfId, table: usize) {
        self.tables.insert(uf, super::number(table));
    }

    /// The runtime's form of a scalar expression.
    pub(super) fn ix(&self, e: ExprId) -> Result<Ix, DescribeFault> {
        let pool = &self.module.env.pool;
        let pair = |a, b| Ok((Box::new(self.ix(a)?), Box::new(self.ix(b)?)));
        let no = |what| Err(DescribeFault::Expression(what));
        Ok(match *pool.get(e) {
            Expr::Int(v) => Ix::Const(v),
            Expr::Lit(l) if !l.ty.is_float() => Ix::Const(l.as_i64()),
            Expr::Lit(_) => return no("a floating-point value"),
            Expr::Var(v) => match self.lets.get(&v) {
                Some(&value) => self.ix(value)?,
                None => return no("a loop variable"),
            },
            Expr::Param(p) => Ix::Param(super::number(p.index())),
            Expr::Arg(n) => Ix::Arg(n),
            Expr::Un(UnOp::Neg, a) => Ix::Const(0) - self.ix(a)?,
            Expr::Un(UnOp::Not, a) => Ix::Not(Box::new(self.ix(a)?)),
            Expr::Un(UnOp::Abs, a) => {
                let a = self.ix(a)?;
                a.clone().max(Ix::Const(0) - a)
            }
            Expr::Un(..) => return no("a floating-point function"),
            Expr::Bin(op, a, b) => {
                let (a, b) = pair(a, b)?;
                match op {
                    BinOp::Add => Ix::Add(a, b),
                    BinOp::Sub => Ix::Sub(a, b),
                    BinOp::Mul => Ix::Mul(a, b),
                    BinOp::FloorDiv => Ix::FloorDiv(a, b),
                    BinOp::Mod => Ix::Mod(a, b),
                    BinOp::Min => Ix::Min(a, b),
                    BinOp::Max => Ix::Max(a, b),
                    BinOp::And => Ix::And(a, b),
                    BinOp::Or => Ix::Or(a, b),
                    BinOp::Lt => Ix::Lt(a, b),
                    BinOp::Le => Ix::Le(a, b),
                    BinOp::Eq => Ix::Eq(a, b),
                    BinOp::Ne => Ix::Not(Box::new(Ix::Eq(a, b))),
                    BinOp::Div | BinOp::Pow => return no("a floating-point value"),
                }
            }
            Expr::Select(c, a, b) => {
                let (a, b) = pair(a, b)?;
                Ix::Select(Box::new(self.ix(c)?), a, b)
            }
            Expr::Cast(ScalarType::Index | ScalarType::I64, a) if !pool.ty(a).scalar.is_float() => self.ix(a)?,
            Expr::Cast(..) => return no("a conversion"),
            Expr::Operand(..) | Expr::Tuple(_) => return no("a tuple"),
            Expr::Load { tensor, part: _, ref index, guard } => {
                let (Some(Slot::Table(t)), [index]) = (self.slots.get(tensor), &index[..]) else {
                    return no("an element of a tensor");
                };
                let entry = Ix::table(super::number(t), self.ix(*index)?);
                match guard {
                    None => entry,
                    Some((cond, other)) => Ix::select(self.ix(cond)?, entry, self.ix(other)?),
                }
            }
            Expr::Call(uf, ref args) => self.call(uf, args)?,
            Expr::Ramp { .. } | Expr::Splat(..) | Expr::Reduce(..) => return no("a vector"),
            Expr::Search { table, base, len, value } => {
                let Some(Slot::Table(t)) = self.slots.get(table) else { return no("a search in a tensor") };
                let (base, len) = pair(base, len)?;
                Ix::Search(super::number(t), base, len, Box::new(self.ix(value)?))
            }
        })
    }

    /// The entry of a function's table: entries are in row-major order, so while extents do not depend on outer arguments
    /// its place is known without further tables.
    fn call(&self, uf: UfId, args: &[ExprId]) -> Result<Ix, DescribeFault> {
        let env = &self.module.env;
        let f = &env.ufs[uf];
        let unknown = || DescribeFault::Call(f.name.clone());
        let &table = self.tables.get(&uf).ok_or_else(unknown)?;
        if matches!(f.def, UfDef::Max { .. }) {
            return Ok(Ix::table(table, Ix::Const(0)));
        }
        let mut place: Option<Ix> = None;
        for (j, &arg) in args.iter().enumerate() {
            let arg = self.ix(arg)?;
            place = Some(match place {
                None => arg,
                Some(outer) => {
                    if env.pool.any(f.domain[j], &mut |e| matches!(e, Expr::Arg(_))) {
                        return Err(unknown());
                    }
                    let last_of_sum = j + 1 == args.len() && matches!(f.def, UfDef::PrefixSum { .. });
                    let row = self.ix(f.domain[j])? + i64::from(last_of_sum);
                    outer * row + arg
                }
            });
        }
        Ok(Ix::table(table, place.unwrap_or(Ix::Const(0))))
    }
}
