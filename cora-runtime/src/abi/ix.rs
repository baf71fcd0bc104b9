//! Integer expressions over parameters, index variables and prelude tables.

use super::validate::{MAX_IX_DEPTH, MAX_IX_NODES};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

/// An integer expression. Values are `i64` and arithmetic is checked: overflow and a table index out of range are typed
/// errors.
///
/// Evaluation is lazy where a condition decides: `Select` evaluates the chosen arm only, `And` and `Or` their second
/// operand only where the first does not decide. So `Select(i < n, Table(t, i), 0)` is safe for any `i`.
///
/// Serialised as a flat postfix list of [`IxOp`], so that decoding hostile bytes needs no recursion.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ix {
    /// A constant.
    Const(i64),
    /// Parameter by index.
    Param(u32),
    /// Index variable of the enclosing domain, 0 being the outermost.
    Arg(u32),
    /// Entry of a table at a flat index.
    Table(u32, Box<Ix>),
    /// Sum.
    Add(Box<Ix>, Box<Ix>),
    /// Difference.
    Sub(Box<Ix>, Box<Ix>),
    /// Product.
    Mul(Box<Ix>, Box<Ix>),
    /// Quotient rounded down; 0 for a divisor of 0.
    FloorDiv(Box<Ix>, Box<Ix>),
    /// Remainder of [`Ix::FloorDiv`], with the sign of the divisor; 0 for a divisor of 0.
    Mod(Box<Ix>, Box<Ix>),
    /// Lesser.
    Min(Box<Ix>, Box<Ix>),
    /// Greater.
    Max(Box<Ix>, Box<Ix>),
    /// 1 where less, else 0.
    Lt(Box<Ix>, Box<Ix>),
    /// 1 where less or equal, else 0.
    Le(Box<Ix>, Box<Ix>),
    /// 1 where equal, else 0.
    Eq(Box<Ix>, Box<Ix>),
    /// 1 where both are nonzero, else 0.
    And(Box<Ix>, Box<Ix>),
    /// 1 where one is nonzero, else 0.
    Or(Box<Ix>, Box<Ix>),
    /// 1 where zero, else 0.
    Not(Box<Ix>),
    /// The second where the first is nonzero, else the third.
    Select(Box<Ix>, Box<Ix>, Box<Ix>),
    /// The greatest `x` below the second operand with `table[first + x] <=` the third, 0 where there is
    /// none; entries from the first operand on do not decrease.
    Search(u32, Box<Ix>, Box<Ix>, Box<Ix>),
}

/// A node of an [`Ix`] in postfix order: the operands come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the node of the same name in `Ix`")]
pub enum IxOp {
    Const(i64),
    Param(u32),
    Arg(u32),
    Table(u32),
    Add,
    Sub,
    Mul,
    FloorDiv,
    Mod,
    Min,
    Max,
    Lt,
    Le,
    Eq,
    And,
    Or,
    Not,
    Select,
    Search(u32),
}

impl Ix {
    /// Entry of table `table` at flat index `index`.
    pub fn table(table: u32, index: Ix) -> Ix {
        Ix::Table(table, Box::new(index))
    }

    /// Quotient rounded down.
    pub fn floor_div(self, by: impl Into<Ix>) -> Ix {
        Ix::FloorDiv(Box::new(self), Box::new(by.into()))
    }

    /// Quotient rounded up, for a divisor that occurs twice in the result.
    pub fn ceil_div(self, by: impl Into<Ix>) -> Ix {
        let by = by.into();
        (self + by.clone() - 1).floor_div(by)
    }

    /// Remainder of [`Ix::floor_div`].
    pub fn modulo(self, by: impl Into<Ix>) -> Ix {
        Ix::Mod(Box::new(self), Box::new(by.into()))
    }

    /// Lesser of two.
    pub fn min(self, other: impl Into<Ix>) -> Ix {
        Ix::Min(Box::new(self), Box::new(other.into()))
    }

    /// Greater of two.
    pub fn max(self, other: impl Into<Ix>) -> Ix {
        Ix::Max(Box::new(self), Box::new(other.into()))
    }

    /// Whether less than `other`.
    pub fn lt(self, other: impl Into<Ix>) -> Ix {
        Ix::Lt(Box::new(self), Box::new(other.into()))
    }

    /// `then` where `cond` is nonzero, else `other`.
    pub fn select(cond: Ix, then: impl Into<Ix>, other: impl Into<Ix>) -> Ix {
        Ix::Select(Box::new(cond), Box::new(then.into()), Box::new(other.into()))
    }

    /// The operands, first to last.
    pub fn operands(&self) -> impl Iterator<Item = &Ix> {
        let ops: [Option<&Ix>; 3] = match self {
            Ix::Const(_) | Ix::Param(_) | Ix::Arg(_) => [None; 3],
            Ix::Table(_, a) | Ix::Not(a) => [Some(a), None, None],
            Ix::Add(a, b)
            | Ix::Sub(a, b)
            | Ix::Mul(a, b)
            | Ix::FloorDiv(a, b)
            | Ix::Mod(a, b)
            | Ix::Min(a, b)
            | Ix::Max(a, b)
            | Ix::Lt(a, b)
            | Ix::Le(a, b)
            | Ix::Eq(a, b)
            | Ix::And(a, b)
            | Ix::Or(a, b) => [Some(a), Some(b), None],
            Ix::Select(a, b, c) | Ix::Search(_, a, b, c) => [Some(a), Some(b), Some(c)],
        };
        ops.into_iter().flatten()
    }

    /// The node itself, without its operands.
    pub fn op(&self) -> IxOp {
        match self {
            Ix::Const(v) => IxOp::Const(*v),
            Ix::Param(p) => IxOp::Param(*p),
            Ix::Arg(a) => IxOp::Arg(*a),
            Ix::Table(t, _) => IxOp::Table(*t),
            Ix::Add(..) => IxOp::Add,
            Ix::Sub(..) => IxOp::Sub,
            Ix::Mul(..) => IxOp::Mul,
            Ix::FloorDiv(..) => IxOp::FloorDiv,
            Ix::Mod(..) => IxOp::Mod,
            Ix::Min(..) => IxOp::Min,
            Ix::Max(..) => IxOp::Max,
            Ix::Lt(..) => IxOp::Lt,
            Ix::Le(..) => IxOp::Le,
            Ix::Eq(..) => IxOp::Eq,
            Ix::And(..) => IxOp::And,
            Ix::Or(..) => IxOp::Or,
            Ix::Not(_) => IxOp::Not,
            Ix::Select(..) => IxOp::Select,
            Ix::Search(t, ..) => IxOp::Search(*t),
        }
    }

    /// The nodes in postfix order; `None` where the expression is deeper or larger than the ABI allows.
    pub fn to_postfix(&self) -> Option<Vec<IxOp>> {
        fn go(ix: &Ix, depth: usize, out: &mut Vec<IxOp>) -> Option<()> {
            if depth > MAX_IX_DEPTH || out.len() >= MAX_IX_NODES {
                return None;
            }
            for operand in ix.operands() {
                go(operand, depth + 1, out)?;
            }
            out.push(ix.op());
            (out.len() <= MAX_IX_NODES).then_some(())
        }
        let mut out = Vec::new();
        go(self, 1, &mut out)?;
        Some(out)
    }

    /// The expression of a postfix list; `None` where the list is not one expression within the ABI's bounds.
    pub fn from_postfix(ops: &[IxOp]) -> Option<Ix> {
        if ops.len() > MAX_IX_NODES {
            return None;
        }
        // Each entry carries its depth, so that no expression deeper than the bound is ever built (or dropped).
        let mut stack: Vec<(Ix, usize)> = Vec::new();
        for op in ops {
            let mut depth = 0;
            let mut pop = || {
                let (ix, d) = stack.pop()?;
                depth = depth.max(d);
                Some(Box::new(ix))
            };
            let mut pop2 = || {
                let b = pop()?;
                Some((pop()?, b))
            };
            let ix = match *op {
                IxOp::Const(v) => Ix::Const(v),
                IxOp::Param(p) => Ix::Param(p),
                IxOp::Arg(a) => Ix::Arg(a),
                IxOp::Table(t) => Ix::Table(t, pop()?),
                IxOp::Add => pop2().map(|(a, b)| Ix::Add(a, b))?,
                IxOp::Sub => pop2().map(|(a, b)| Ix::Sub(a, b))?,
                IxOp::Mul => pop2().map(|(a, b)| Ix::Mul(a, b))?,
                IxOp::FloorDiv => pop2().map(|(a, b)| Ix::FloorDiv(a, b))?,
                IxOp::Mod => pop2().map(|(a, b)| Ix::Mod(a, b))?,
                IxOp::Min => pop2().map(|(a, b)| Ix::Min(a, b))?,
                IxOp::Max => pop2().map(|(a, b)| Ix::Max(a, b))?,
                IxOp::Lt => pop2().map(|(a, b)| Ix::Lt(a, b))?,
                IxOp::Le => pop2().map(|(a, b)| Ix::Le(a, b))?,
                IxOp::Eq => pop2().map(|(a, b)| Ix::Eq(a, b))?,
                IxOp::And => pop2().map(|(a, b)| Ix::And(a, b))?,
                IxOp::Or => pop2().map(|(a, b)| Ix::Or(a, b))?,
                IxOp::Not => Ix::Not(pop()?),
                IxOp::Select => {
                    let (b, c) = pop2()?;
                    Ix::Select(pop()?, b, c)
                }
                IxOp::Search(t) => {
                    let (b, c) = pop2()?;
                    Ix::Search(t, pop()?, b, c)
                }
            };
            if depth + 1 > MAX_IX_DEPTH {
                return None;
            }
            stack.push((ix, depth + 1));
        }
        let (ix, _) = stack.pop()?;
        stack.is_empty().then_some(ix)
    }
}

impl From<i64> for Ix {
    fn from(v: i64) -> Ix {
        Ix::Const(v)
    }
}

impl<R: Into<Ix>> std::ops::Add<R> for Ix {
    type Output = Ix;
    fn add(self, rhs: R) -> Ix {
        Ix::Add(Box::new(self), Box::new(rhs.into()))
    }
}

impl<R: Into<Ix>> std::ops::Sub<R> for Ix {
    type Output = Ix;
    fn sub(self, rhs: R) -> Ix {
        Ix::Sub(Box::new(self), Box::new(rhs.into()))
    }
}

impl<R: Into<Ix>> std::ops::Mul<R> for Ix {
    type Output = Ix;
    fn mul(self, rhs: R) -> Ix {
        Ix::Mul(Box::new(self), Box::new(rhs.into()))
    }
}

impl Serialize for Ix {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let ops = self.to_postfix().ok_or_else(|| ser::Error::custom("index expression too deep or too large"))?;
        ops.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Ix {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Ix, D::Error> {
        let ops = Vec::<IxOp>::deserialize(d)?;
        Ix::from_postfix(&ops).ok_or_else(|| de::Error::custom("malformed, too deep or too large index expression"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postfix_round_trip() {
        let ix = Ix::select(
            Ix::Arg(0).lt(Ix::Param(1)),
            Ix::table(2, Ix::Arg(0)).ceil_div(64) * 64,
            Ix::Not(Box::new(Ix::Const(3))),
        );
        let ops = ix.to_postfix().unwrap();
        assert_eq!(Ix::from_postfix(&ops), Some(ix.clone()));
        let bytes = postcard::to_allocvec(&ix).unwrap();
        assert_eq!(postcard::from_bytes::<Ix>(&bytes).unwrap(), ix);
    }

    #[test]
    fn malformed_postfix_is_refused() {
        use IxOp::*;
        for ops in [
            vec![],
            vec![Add],
            vec![Const(1), Add],
            vec![Const(1), Const(2)],
            vec![Const(1), Const(2), Select],
            [vec![Const(1)], vec![Not; MAX_IX_DEPTH]].concat(),
            vec![Const(1); MAX_IX_NODES + 1],
        ] {
            assert_eq!(Ix::from_postfix(&ops), None, "{} ops", ops.len());
        }
    }

    #[test]
    fn too_deep_is_not_serialised() {
        let mut ix = Ix::Const(0);
        for _ in 0..MAX_IX_DEPTH {
            ix = ix + 1;
        }
        assert_eq!(ix.to_postfix(), None);
        assert!(postcard::to_allocvec(&ix).is_err());
    }
}
