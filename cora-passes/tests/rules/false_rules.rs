//! Rules that look right and are not: each must be refuted with a counterexample.

use crate::table::state;
use cora_passes::simplify::rules::Rule;
use cora_passes::simplify::{Prover, Verdict};

const FALSE_RULES: &[Rule] = &[
    // The identities of fused loops without their ranges (with them they would prove 0 = 1).
    wrong(
        "search-in-row without the range of i",
        "(S (+ (P ?x) ?i))",
        "?x",
        &["(<= 0 ?x)", "(< ?x N)", "(<= 0 ?i)", "(< (+ (P ?x) ?i) (P N))"],
    ),
    wrong(
        "search-in-row, i may equal the length",
        "(S (+ (P ?x) ?i))",
        "?x",
        &["(<= 0 ?x)", "(< ?x N)", "(<= 0 ?i)", "(<= ?i (T ?x))"],
    ),
    wrong("search-row-start of an empty row", "(S (P ?x))", "?x", &["(<= 0 ?x)", "(< ?x N)"]),
    wrong("sum-step backwards", "(- (P (+ ?x 1)) (P ?x))", "(T (+ ?x 1))", &["(<= 0 ?x)", "(< (+ ?x 1) N)"]),
    wrong("sums add up", "(+ (P ?x) (P ?y))", "(P (+ ?x ?y))", &["(<= 0 ?x)", "(<= 0 ?y)", "(<= (+ ?x ?y) N)"]),
    wrong("search of the whole is the whole", "(P (S ?r))", "?r", &["(<= 0 ?r)", "(< ?r (P N))"]),
    wrong("rows increase strictly", "(< (P ?x) (P (+ ?x 1)))", "(== 0 0)", &["(<= 0 ?x)", "(< ?x N)"]),
    // Quotients and remainders of negative numbers and divisors that may be 0.
    wrong("div-small without a lower bound", "(// ?x ?y)", "0", &["(< ?x ?y)"]),
    wrong("mod-small without a lower bound", "(% ?x ?y)", "?x", &["(< ?x ?y)"]),
    wrong("div-div of any sign", "(// (// ?x ?a) ?b)", "(// ?x (* ?a ?b))", &[]),
    wrong("div-multiple by zero", "(// (* ?q ?y) ?y)", "?q", &[]),
    wrong("quotient-and-remainder by zero", "(+ (* (// ?x ?y) ?y) (% ?x ?y))", "?x", &[]),
    wrong("minus-rounded-down by zero", "(- ?x (* (// ?x ?y) ?y))", "(% ?x ?y)", &[]),
    wrong("mod-mod by other numbers", "(% (% ?x ?a) ?b)", "(% ?x ?b)", &["(< 0 ?a)", "(< 0 ?b)"]),
    wrong("mod-mod the other way", "(% (% ?x ?a) ?b)", "(% ?x ?b)", &["(< 0 ?a)", "(< 0 ?b)", "(== (% ?b ?a) 0)"]),
    wrong("division distributes", "(// (+ ?x ?y) ?c)", "(+ (// ?x ?c) (// ?y ?c))", &["(< 0 ?c)"]),
    wrong(
        "rounding up, one too few",
        "(max ?x (* (// (+ ?x ?a) ?c) ?c))",
        "(* (// (+ ?x ?a) ?c) ?c)",
        &["(< 0 ?c)", "(<= (- ?c 2) ?a)"],
    ),
    wrong("mod-common-factor of any sign", "(% (* ?x ?g) (* ?k ?g))", "(% ?x ?k)", &["(< 0 ?g)"]),
    wrong("div-common-factor of factors that may be 0", "(// (* ?x ?g) (* ?k ?g))", "(// ?x ?k)", &[]),
    wrong("mod-of-min of any quotients", "(min (% ?x ?c) (% ?y ?c))", "(% (min ?x ?y) ?c)", &["(< 0 ?c)"]),
    wrong("mod-of-min-small, one of them negative", "(% (min ?x ?y) ?c)", "(min ?x ?y)", &["(<= 0 ?x)", "(< ?x ?c)"]),
    wrong("div-of-max-small, one of them large", "(// (max ?x ?y) ?c)", "0", &["(<= 0 ?x)", "(<= 0 ?y)", "(< ?x ?c)"]),
    // Order.
    wrong("min-of-products of any sign", "(min (* ?x ?c) (* ?y ?c))", "(* (min ?x ?y) ?c)", &[]),
    wrong("min-first backwards", "(min ?x ?y)", "?x", &["(<= ?y ?x)"]),
    wrong("min-lt-operand, not strict", "(<= (min ?x ?y) ?x)", "(<= ?y ?x)", &[]),
    wrong("operand-lt-min", "(< ?x (min ?x ?y))", "(< ?x ?y)", &[]),
    wrong("not-lt keeps equality", "(not (< ?x ?y))", "(< ?y ?x)", &[]),
    wrong("quotient-lt, not strict", "(<= (// ?x ?c) ?y)", "(<= ?x (* ?y ?c))", &["(< 0 ?c)"]),
    wrong("products-lt of any sign", "(< (* ?x ?c) (* ?y ?c))", "(< ?x ?y)", &[]),
    wrong("select-lt-min backwards", "(select (< ?x ?y) ?y ?x)", "(min ?x ?y)", &[]),
];

const fn wrong(name: &'static str, lhs: &'static str, rhs: &'static str, guard: &'static [&'static str]) -> Rule {
    Rule { name, lhs, rhs, guard }
}

#[test]
fn every_false_rule_is_refuted() {
    for rule in FALSE_RULES {
        let mut s = state(rule);
        let verdict = Prover::new().prove(&mut s.env, &s.guard, s.goal);
        assert!(matches!(verdict, Verdict::Refuted(..)), "{}: {verdict:?}", rule.name);
        // The solver does not take it for true either.
        let verdict = Prover::new().ask_solver(&mut s.env, &s.guard, s.goal);
        assert!(!verdict.is_proved(), "{}: {verdict:?}", rule.name);
    }
}

#[test]
fn unguarded_identities_prove_anything() {
    // With `S(P(x) + i) = x` for all i, rows of different lengths give 0 = 1: S(P(1)) is 1, and,
    // row 0 being as long as `i`, S(P(0) + i) would be 0.
    let rule = &FALSE_RULES[1];
    let mut s = state(rule);
    let Verdict::Refuted(_, example) = Prover::new().prove(&mut s.env, &s.guard, s.goal) else { panic!("not refuted") };
    assert!(example.iter().any(|(name, _)| name.starts_with("term(")), "{example:?}");
}
