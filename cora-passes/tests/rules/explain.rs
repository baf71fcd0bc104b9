//! Explanations of equality saturation replay: each step keeps the value; and nothing depends on
//! anything but the input.

use crate::world::{World, show};
use cora_ir::{BinOp, ExprId};
use cora_passes::simplify::concrete::Batch;
use cora_passes::simplify::egraph::explain;
use cora_passes::simplify::rules::RULES;
use cora_passes::simplify::{Facts, Prover, simplify};

/// Expressions that need rules: `(facts, expressions)`.
fn examples(w: &mut World) -> (Facts, Vec<ExprId>) {
    let ((b, be), (o, oe), (i, ie)) = (w.var("b"), w.var("o"), w.var("i"));
    let m = w.m;
    let len = w.call(w.lens, be);
    let outer = w.env.pool.ceil_div(len, 14);
    let (k, zero, one) = (w.int(14), w.int(0), w.int(1));
    let facts = Facts::in_loops([(b, m), (o, outer), (i, k)]);
    let at = w.tile(oe, 14, ie);
    let p = &mut w.env.pool;
    let mut out = Vec::new();
    // select(at < len, at, len) is min(at, len), and the same again inside.
    let c = p.lt(at, len);
    let s = p.select(c, at, len);
    let t = p.select(c, s, zero);
    out.push(p.min(t, len));
    // max(min(at, len), min(at, m))
    let (x, y) = (p.min(at, len), p.min(at, m));
    out.push(p.max(x, y));
    // (len // m) // 14 and a remainder twice
    let q = p.floor_div(len, m);
    let q2 = p.floor_div(q, k);
    let r = p.modulo(len, m);
    let r2 = p.modulo(r, m);
    out.push(p.add(q2, r2));
    // not (not a and not b) with comparisons
    let d = p.lt(ie, len);
    let (nc, nd) = (p.un(cora_ir::UnOp::Not, c), p.un(cora_ir::UnOp::Not, d));
    let both = p.and(nc, nd);
    let or = p.bin(BinOp::Or, nc, both);
    out.push(p.un(cora_ir::UnOp::Not, or));
    let _ = one;
    // min(p(b), p(b + 1)) and searches
    let next = w.env.pool.add(be, one);
    let (p0, p1) = (w.call(w.p, be), w.call(w.p, next));
    let least = w.env.pool.min(p0, p1);
    let most = w.env.pool.max(p0, p1);
    out.push(w.env.pool.sub(most, least));
    (facts, out)
}

#[test]
fn explanations_replay() {
    let mut w = World::new();
    let (facts, all) = examples(&mut w);
    let mut steps_seen = 0;
    for e in all {
        let steps = explain(&mut w.env, &facts, e);
        assert!(!steps.is_empty(), "{} is not explained", show(&w.env, e));
        assert_eq!(steps[0].expr, e);
        for s in &steps[1..] {
            let name = s.rule.split(['.', '@']).next().unwrap_or_default();
            assert!(name == "value" || RULES.iter().any(|r| r.name == name), "no rule is called {}", s.rule);
        }
        for seed in 0..20 {
            let mut batch = Batch::new(seed);
            let Some(vars) = batch.iteration(&w.env, &facts, seed) else { continue };
            let Some(first) = batch.eval(&w.env, e, &vars) else { continue };
            for s in &steps {
                let value = batch.eval(&w.env, s.expr, &vars);
                assert_eq!(value, Some(first), "{}: {}", s.rule, show(&w.env, s.expr));
                steps_seen += 1;
            }
        }
    }
    assert!(steps_seen > 50, "{steps_seen} steps");
}

fn printed() -> Vec<String> {
    let mut w = World::new();
    let (facts, all) = examples(&mut w);
    let mut prover = Prover::new();
    let mut out = Vec::new();
    for e in all {
        let s = simplify(&mut w.env, Some(&mut prover), &facts, e);
        out.push(show(&w.env, s));
        for f in explain(&mut w.env, &facts, e) {
            out.push(format!("{} {}", f.rule, show(&w.env, f.expr)));
        }
        let zero = w.int(0);
        if w.env.pool.ty(e).scalar == cora_ir::ScalarType::Index {
            let goal = w.env.pool.le(zero, e);
            out.push(format!("{:?}", prover.prove(&mut w.env, &facts, goal)));
        }
    }
    out.push(format!("{:?}", prover.stats()));
    out
}

#[test]
fn the_same_input_gives_the_same_output() {
    let first = printed();
    assert_eq!(first, printed());
    let elsewhere = std::thread::spawn(printed).join();
    assert_eq!(Some(first), elsewhere.ok());
}

#[test]
fn rules_reach_the_simple_forms() {
    let mut w = World::new();
    let (facts, all) = examples(&mut w);
    let shown: Vec<String> = all
        .into_iter()
        .map(|e| {
            let s = simplify(&mut w.env, None, &facts, e);
            show(&w.env, s)
        })
        .collect();
    let expected: [&str; 5] = [
        "select((((o * 14) + i) < lens(b)), ((o * 14) + i), 0)",
        "(((o * 14) + i) min (M max lens(b)))",
        "((lens(b) % M) + (lens(b) // (M * 14)))",
        "(((o * 14) + i) < lens(b))",
        "lens(b)",
    ];
    assert_eq!(shown, expected);
}
