//! The laws of a combiner, tried on samples.

use super::{CombinerId, Env, ExprId, Literal, ScalarType};
use crate::expr::Expr;
use crate::interp::ops;
use crate::types::round_float;
use rustc_hash::FxHashMap;

/// Rounds of samples for each law.
const ROUNDS: usize = 64;

/// How far two results may differ, relative to what went into them. Samples are evaluated in 64 bits.
const TOLERANCE: f64 = 1e-6;

/// Checks on fixed pseudo-random samples that a combiner of tuples made like `terms` is associative, that its identity is
/// neutral on both sides, and that it is commutative if it says so. Says which values break which law.
///
/// A sample is what up to three terms combine to, beginning with the identity, or a single last term. A term that is a
/// constant is sampled as it is, a choice as one of its two values, and arithmetic is evaluated; what that
/// begins with is either small positive numbers with many ties, or numbers of either sign without ties. Of the latter,
/// samples with an undefined result (NaN) say nothing.
///
/// # Errors
/// The broken law with the values, as a clause about the combiner (`is not associative: ...`).
pub fn check_laws(env: &Env, c: CombinerId, terms: &[ExprId]) -> Result<(), String> {
    let identity = env.combiners[c].parts.iter().map(|p| value_of(p.identity)).collect();
    let laws = Laws { env, c, terms, identity };
    laws.neutral(&laws.identity, true)?;
    let mut seed = Random(0x9e37_79b9_7f4a_7c15);
    let (mut decided, mut differs, mut absorbs) = (0, false, true);
    for round in 0..2 * ROUNDS {
        let tame = round < ROUNDS;
        let [x, y, z] = [0; 3].map(|_| laws.sample(&mut seed, tame));
        let z = if round % 3 == 0 { laws.tuple(&mut seed, tame) } else { z };
        laws.neutral(&x, tame)?;
        // An identity that absorbs the terms is neutral to what they combine to: nothing but itself.
        let term = laws.tuple(&mut seed, tame);
        differs |= term != laws.identity;
        absorbs &= laws.combine(&laws.identity, &term) == laws.identity;
        decided += usize::from(laws.associative(&x, &y, &z)?);
        if env.combiners[c].commutative {
            laws.commutative(&x, &y)?;
        }
    }
    if differs && absorbs {
        let identity = shown(&laws.identity);
        return Err(format!("has an identity that is not neutral: {identity} combined with any term gives {identity}"));
    }
    if decided < ROUNDS / 4 {
        return Err("is undefined (NaN) for nearly all values: its laws cannot be checked".into());
    }
    Ok(())
}

/// The value of a component.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    I(i64),
    F(f64),
}

fn value_of(l: Literal) -> Value {
    if l.ty.is_float() { Value::F(l.as_f64()) } else { Value::I(l.as_i64()) }
}

/// A linear congruential generator: the same samples on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// What was drawn for the parts of one term.
#[derive(Default)]
struct Drawn {
    chosen: FxHashMap<ExprId, bool>,
    values: FxHashMap<ExprId, Value>,
}

impl Drawn {
    /// Whether a condition holds.
    fn holds(&mut self, c: ExprId, r: &mut Random) -> bool {
        *self.chosen.entry(c).or_insert_with(|| r.next(2) == 0)
    }
}

struct Laws<'a> {
    env: &'a Env,
    c: CombinerId,
    terms: &'a [ExprId],
    identity: Vec<Value>,
}

impl Laws<'_> {
    fn sample(&self, r: &mut Random, tame: bool) -> Vec<Value> {
        let count = r.next(4);
        (0..count).fold(self.identity.clone(), |x, _| self.combine(&x, &self.tuple(r, tame)))
    }

    /// The components of one term.
    fn tuple(&self, r: &mut Random, tame: bool) -> Vec<Value> {
        let mut drawn = Drawn::default();
        self.terms.iter().map(|&e| self.term(e, r, tame, &mut drawn)).collect()
    }

    /// A value that `e` may have; conditions hold or not for all components alike.
    fn term(&self, e: ExprId, r: &mut Random, tame: bool, drawn: &mut Drawn) -> Value {
        if let Some(&known) = drawn.values.get(&e) {
            return known;
        }
        let ty = self.env.pool.ty(e).scalar;
        let of_ints = |e: ExprId| self.env.pool.ty(e).scalar.is_int();
        let computed = match *self.env.pool.get(e) {
            Expr::Lit(l) => return value_of(l),
            Expr::Select(c, a, b) => {
                let holds = drawn.holds(c, r);
                return self.term(if holds { a } else { b }, r, tame, drawn);
            }
            _ if ty == ScalarType::Bool => Some(Value::I(drawn.holds(e, r).into())),
            // What numbers are computed from, so that squares, say, are not negative.
            Expr::Un(_, a) if ty.is_float() || of_ints(a) => {
                let a = self.term(a, r, tame, drawn);
                Some(node(self.env, e, &[], &[a]))
            }
            Expr::Bin(_, a, b) if ty.is_float() || of_ints(a) => {
                let (a, b) = (self.term(a, r, tame, drawn), self.term(b, r, tame, drawn));
                Some(node(self.env, e, &[], &[a, b]))
            }
            Expr::Cast(_, a) if of_ints(a) && !ty.is_float() || self.env.pool.ty(a).scalar == ScalarType::Bool => {
                let a = self.term(a, r, tame, drawn);
                Some(node(self.env, e, &[], &[a]))
            }
            _ => None,
        };
        let value = match computed {
            Some(v) if !undefined(&[v]) => v,
            _ => self.any(ty, r, tame),
        };
        drawn.values.insert(e, value);
        value
    }

    fn any(&self, ty: ScalarType, r: &mut Random, tame: bool) -> Value {
        match (ty.is_float(), tame) {
            (true, true) => Value::F([0.5, 1.0, 1.5, 2.0, 3.0][r.next(5) as usize]),
            (true, false) => Value::F((r.next(1 << 30) as f64 / f64::from(1 << 29) - 1.0) * 4.0),
            (false, _) if ty == ScalarType::Bool => Value::I(r.next(2) as i64),
            (false, true) => Value::I(1 + r.next(3) as i64),
            (false, false) if ty == ScalarType::I8 => Value::I(r.next(101) as i64 - 50),
            (false, false) => Value::I(r.next(20_001) as i64 - 10_000),
        }
    }

    fn combine(&self, a: &[Value], b: &[Value]) -> Vec<Value> {
        let operands: Vec<Value> = a.iter().chain(b).copied().collect();
        let mut memo = FxHashMap::default();
        self.env.combiners[self.c].body.iter().map(|&e| eval(self.env, e, &operands, &mut memo)).collect()
    }

    fn neutral(&self, x: &[Value], strict: bool) -> Result<(), String> {
        for (a, b) in [(&self.identity[..], x), (x, &self.identity[..])] {
            let got = self.combine(a, b);
            if !strict && undefined(&got) {
                continue;
            }
            if !close(&got, x, scale(&[x])) {
                let (a, b, got) = (shown(a), shown(b), shown(&got));
                return Err(format!("has an identity that is not neutral: {a} combined with {b} gives {got}"));
            }
        }
        Ok(())
    }

    fn associative(&self, x: &[Value], y: &[Value], z: &[Value]) -> Result<bool, String> {
        let (xy, yz) = (self.combine(x, y), self.combine(y, z));
        let (left, right) = (self.combine(&xy, z), self.combine(x, &yz));
        if undefined(&left) || undefined(&right) {
            return Ok(false);
        }
        if close(&left, &right, scale(&[x, y, z, &xy, &yz])) {
            return Ok(true);
        }
        let [x, y, z, left, right] = [x, y, z, &left, &right].map(shown);
        Err(format!(
            "is not associative: of {x}, {y} and {z}, combining the first two first gives {left}, the last two first \
             {right}"
        ))
    }

    fn commutative(&self, x: &[Value], y: &[Value]) -> Result<(), String> {
        let (left, right) = (self.combine(x, y), self.combine(y, x));
        if undefined(&left) || undefined(&right) || close(&left, &right, scale(&[x, y])) {
            return Ok(());
        }
        let [x, y, left, right] = [x, y, &left, &right].map(shown);
        Err(format!("is not commutative: {x} and {y} give {left}, in the other order {right}"))
    }
}

fn undefined(v: &[Value]) -> bool {
    v.iter().any(|v| matches!(v, Value::F(x) if x.is_nan()))
}

/// The greatest finite magnitude, at least 1.
fn scale(of: &[&[Value]]) -> f64 {
    let size = |v: &Value| match *v {
        Value::F(x) if x.is_finite() => x.abs(),
        _ => 0.0,
    };
    of.iter().flat_map(|t| t.iter()).map(size).fold(1.0, f64::max)
}

fn close(a: &[Value], b: &[Value], scale: f64) -> bool {
    a.iter().zip(b).all(|(a, b)| match (*a, *b) {
        (Value::F(x), Value::F(y)) => x == y || (x - y).abs() <= TOLERANCE * scale.max(x.abs()).max(y.abs()),
        (a, b) => a == b,
    })
}

fn shown(v: &[Value]) -> String {
    let one = |v: &Value| match *v {
        Value::I(x) => x.to_string(),
        Value::F(x) if x.abs() < 1e6 && x == (x * 1e4).round() / 1e4 => format!("{x:?}"),
        Value::F(x) if x.is_finite() => format!("{x:.6}"),
        Value::F(x) if x.is_nan() => "nan".into(),
        Value::F(x) => x.to_string(),
    };
    let parts: Vec<String> = v.iter().map(one).collect();
    format!("({})", parts.join(", "))
}

fn eval(env: &Env, e: ExprId, operands: &[Value], memo: &mut FxHashMap<ExprId, Value>) -> Value {
    if let Some(&known) = memo.get(&e) {
        return known;
    }
    let kids: Vec<Value> = env.pool.children(e).iter().map(|&k| eval(env, k, operands, memo)).collect();
    let value = node(env, e, operands, &kids);
    memo.insert(e, value);
    value
}

fn node(env: &Env, e: ExprId, operands: &[Value], kids: &[Value]) -> Value {
    let ty = env.pool.ty(e).scalar;
    match *env.pool.get(e) {
        Expr::Lit(l) => value_of(l),
        Expr::Operand(n, _) => operands.get(n as usize).copied().unwrap_or(Value::F(f64::NAN)),
        Expr::Un(op, _) => match kids[0] {
            Value::F(x) => Value::F(ops::un_f(op, x)),
            Value::I(x) => Value::I(ops::un_i(op, ty, x)),
        },
        Expr::Bin(op, a, _) => match (kids[0], kids[1]) {
            (Value::F(x), Value::F(y)) if op.is_comparison() => Value::I(ops::cmp_f(op, x, y).into()),
            (Value::F(x), Value::F(y)) => Value::F(ops::bin_f(op, x, y)),
            (Value::I(x), Value::I(y)) => Value::I(ops::bin_i(op, env.pool.ty(a).scalar, x, y)),
            _ => Value::F(f64::NAN),
        },
        Expr::Select(..) => kids[if kids[0] == Value::I(0) { 2 } else { 1 }],
        Expr::Cast(to, _) => match (kids[0], to.is_float()) {
            (Value::F(x), true) => Value::F(round_float(to, x)),
            (Value::F(x), false) => Value::I(ops::cast_fi(to, x)),
            (Value::I(x), true) => Value::F(ops::cast_if(to, x)),
            (Value::I(x), false) => Value::I(ops::wrap(to, x)),
        },
        _ => Value::F(f64::NAN),
    }
}
