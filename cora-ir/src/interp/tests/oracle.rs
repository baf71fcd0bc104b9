//! Random expressions: the engine against the tree walk.

use super::*;
use crate::interp::buffer::{Buffer, Held, Memory};
use crate::interp::context::Context;
use crate::interp::error::{Stage, Use};
use crate::interp::eval::Value;
use crate::interp::levels::Levels;
use crate::interp::run_storage;
use crate::loops::LoopKind;
use crate::storage::{self, Kernel, Stmt, StorageModule};
use crate::types::{BinOp, Literal, UnOp};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// What random expressions are made of.
struct Parts {
    vars: [ExprId; 2],
    f: UfId,
    t: TensorId,
}

impl Parts {
    fn index(&self, e: &mut Env, r: &mut Random, depth: usize) -> ExprId {
        if depth == 0 {
            return match r.below(3) {
                0 => e.pool.int(r.below(7) as i64 - 2),
                k => self.vars[k - 1],
            };
        }
        if r.below(5) == 0 {
            let at = self.index(e, r, depth - 1);
            return e.pool.call(self.f, [at]);
        }
        if r.below(6) == 0 {
            let cond = self.condition(e, r, depth - 1);
            let (a, b) = (self.index(e, r, depth - 1), self.index(e, r, depth - 1));
            return e.pool.select(cond, a, b);
        }
        let (a, b) = (self.index(e, r, depth - 1), self.index(e, r, depth - 1));
        const OPS: [BinOp; 9] = [
            BinOp::Add,
            BinOp::Add,
            BinOp::Sub,
            BinOp::Mul,
            BinOp::Mul,
            BinOp::FloorDiv,
            BinOp::Mod,
            BinOp::Min,
            BinOp::Max,
        ];
        e.pool.bin(OPS[r.below(OPS.len())], a, b)
    }

    fn condition(&self, e: &mut Env, r: &mut Random, depth: usize) -> ExprId {
        if depth > 0 && r.below(3) == 0 {
            let (a, b) = (self.condition(e, r, depth - 1), self.condition(e, r, depth - 1));
            let not = e.pool.un(UnOp::Not, a);
            return e.pool.bin([BinOp::And, BinOp::Or][r.below(2)], not, b);
        }
        let (a, b) = (self.index(e, r, depth), self.index(e, r, depth));
        e.pool.bin([BinOp::Lt, BinOp::Le, BinOp::Eq, BinOp::Ne][r.below(4)], a, b)
    }

    fn value(&self, e: &mut Env, r: &mut Random, depth: usize) -> ExprId {
        let ty = ScalarType::F64;
        if depth == 0 || r.below(4) == 0 {
            let at = self.index(e, r, depth.min(2));
            return match r.below(3) {
                0 => e.pool.cast(ty, at),
                1 => {
                    let small = e.pool.cast(ScalarType::I8, at);
                    let more = e.pool.lit(Literal::int(ScalarType::I8, 100));
                    let sum = e.pool.mul(small, more);
                    e.pool.cast(ty, sum)
                }
                _ => {
                    // A table of 40 entries, guarded.
                    let (zero, size) = (e.pool.int(0), e.pool.int(40));
                    let (low, high) = (e.pool.le(zero, at), e.pool.lt(at, size));
                    let inside = e.pool.and(low, high);
                    let other = e.pool.lit(Literal::float(ty, -1.0));
                    e.pool.load_guarded((self.t, 0), ty, [at], Some((inside, other)))
                }
            };
        }
        if r.below(5) == 0 {
            let cond = self.condition(e, r, depth - 1);
            let (a, b) = (self.value(e, r, depth - 1), self.value(e, r, depth - 1));
            return e.pool.select(cond, a, b);
        }
        if r.below(6) == 0 {
            let a = self.value(e, r, depth - 1);
            return e.pool.un([UnOp::Neg, UnOp::Abs, UnOp::Floor, UnOp::Sqrt][r.below(4)], a);
        }
        let (a, b) = (self.value(e, r, depth - 1), self.value(e, r, depth - 1));
        const OPS: [BinOp; 6] = [BinOp::Add, BinOp::Sub, BinOp::Mul, BinOp::Div, BinOp::Min, BinOp::Max];
        e.pool.bin(OPS[r.below(OPS.len())], a, b)
    }
}

const ROWS: i64 = 3;
const COLUMNS: i64 = 300;

/// `for i, j: if pred { B[i * 300 + j] = value } else nothing`, B being 5 beforehand.
fn module(r: &mut Random) -> (StorageModule, Parts, TensorId, ExprId, ExprId) {
    let mut m = StorageModule::default();
    let e = &mut m.env;
    let n = e.pool.int(20);
    let f = extent_fn(e, "f", &[n]);
    let size = e.pool.int(40);
    let t = tensor(e, "T", ScalarType::F64, Role::Input, &[size]);
    let total = e.pool.int(ROWS * COLUMNS);
    let b = tensor(e, "B", ScalarType::F64, Role::Output, &[total]);
    let (i, j, k) = (e.new_var("i"), e.new_var("j"), e.new_var("k"));
    let (vi, vj, vk) = (e.pool.var(i), e.pool.var(j), e.pool.var(k));
    let parts = Parts { vars: [vi, vj], f, t };
    let value = parts.value(e, r, 4);
    let pred = parts.condition(e, r, 2);
    let (rows, columns) = (e.pool.int(ROWS), e.pool.int(COLUMNS));
    let at = e.pool.mul(vi, columns);
    let at = e.pool.add(at, vj);
    let five = e.pool.lit(Literal::float(ScalarType::F64, 5.0));
    let loop_ = |var, extent, body| Stmt::For { var, extent, kind: LoopKind::Serial, body };
    let store = Stmt::Store { tensor: b, index: at, value, mask: None, rest: vec![] };
    let fill = loop_(k, total, vec![Stmt::Store { tensor: b, index: vk, value: five, mask: None, rest: vec![] }]);
    let guarded = Stmt::If { cond: pred, then: vec![store], other: vec![] };
    let nest = loop_(i, rows, vec![loop_(j, columns, vec![guarded])]);
    m.kernels.push(Kernel { name: "k".into(), body: vec![fill, nest] });
    let a0 = e.pool.arg(0);
    m.buffers.push(storage::Buffer { tensor: t, elems: size, offset: Some(a0) });
    m.buffers.push(storage::Buffer { tensor: b, elems: total, offset: Some(a0) });
    (m, parts, b, value, pred)
}

#[test]
fn the_engine_agrees_with_the_tree_walk() {
    let mut r = Random(7);
    let mut kinds = [0; 3];
    for round in 0..400 {
        let (m, p, b, value, pred) = module(&mut r);
        let table: Vec<f64> = (0..40).map(|x| f64::from(x * x % 17) - 4.5).collect();
        let lens: Vec<i64> = (0..20).map(|x| x * 5 % 13).collect();
        let data = batch(&[], &[(p.f, &lens)], &[(p.t, Data::F64(table.clone()))]);
        let got = run_storage(&m, &data, &Options::default());

        let mut context = Context::new(&m.env, &data, &serial(), Stage::Storage).unwrap();
        context.ready(p.f).unwrap();
        let mut memory = Memory::new(m.env.tensors.len());
        let levels = std::sync::Arc::new(Levels::flat(40));
        let held = Held { buf: Buffer::borrowed(ScalarType::F64, &data.inputs[&p.t]).unwrap(), levels };
        memory.put(p.t, held);
        let scalars = context.scalars(Some(&memory));
        let (mut want, mut undefined, mut undecided) = (Vec::new(), None, false);
        for at in 0..ROWS * COLUMNS {
            let point = p.vars.iter().zip([at / COLUMNS, at % COLUMNS]);
            let bindings: Vec<_> = point.map(|(&v, x)| (m.env.pool.as_var(v).unwrap(), x)).collect();
            let holds = scalars.int(pred, &[], &bindings).unwrap();
            undecided |= holds.is_none();
            if holds != Some(1) {
                want.push(5.0);
                continue;
            }
            match scalars.value(value, &[], &bindings) {
                Ok(Some(Value::F(x))) => want.push(x),
                Ok(_) => {
                    undefined = undefined.or(Some(at));
                    want.push(0.0);
                }
                Err(error) => panic!("{error}"),
            }
        }
        match got {
            Ok(results) => {
                assert!(!undecided && undefined.is_none(), "round {round}");
                let got = values(&results, b);
                let same = |(x, y): (&f64, &f64)| x == y || (x.is_nan() && y.is_nan());
                assert!(got.iter().zip(&want).all(same), "round {round}");
                kinds[0] += 1;
            }
            Err(InterpError::Undefined { usage: Use::Output, index, .. }) => {
                assert_eq!((undecided, Some(index[0])), (false, undefined), "round {round}");
                kinds[1] += 1;
            }
            Err(InterpError::Undefined { .. }) => kinds[2] += 1,
            Err(error) => panic!("round {round}: {error}"),
        }
    }
    assert!(kinds.iter().all(|&k| k > 10), "{kinds:?}");
}
