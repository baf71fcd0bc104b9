//! Rewrite rules over index expressions as data: equality saturation applies them, the tests prove
//! every one with the solver.
//!
//! Terms are s-expressions; `?x` stands for any integer (or condition). In rules about a prefix sum,
//! `(P x)` is the sum, `(T x)` its term, `(S r)` its inverse (a search) and `N` its number of rows;
//! outer arguments are the same throughout and are left out. A rule holds wherever its guard does.
//! Law: the right side never costs more than the left, and no rule only commutes operands (left
//! sides are matched in every order of commutative operands).

use super::term::Term;

/// `lhs` may be replaced by `rhs` where all of `guard` hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Unique, for explanations.
    pub name: &'static str,
    /// What is matched.
    pub lhs: &'static str,
    /// What it is equal to.
    pub rhs: &'static str,
    /// Conditions over the variables of `lhs`.
    pub guard: &'static [&'static str],
}

impl Rule {
    /// Whether it is about a prefix sum and its inverse.
    pub fn is_about_sums(&self) -> bool {
        [self.lhs, self.rhs].iter().any(|t| Term::parse(t).is_some_and(|t| t.mentions(&["P", "S", "T", "N"])))
    }
}

const fn rule(name: &'static str, lhs: &'static str, rhs: &'static str, guard: &'static [&'static str]) -> Rule {
    Rule { name, lhs, rhs, guard }
}

/// Every rule.
pub const RULES: &[Rule] = &[
    // Quotients and remainders.
    rule("div-small", "(// ?x ?y)", "0", &["(<= 0 ?x)", "(< ?x ?y)"]),
    rule("mod-small", "(% ?x ?y)", "?x", &["(<= 0 ?x)", "(< ?x ?y)"]),
    rule("div-div", "(// (// ?x ?a) ?b)", "(// ?x (* ?a ?b))", &["(< 0 ?a)", "(< 0 ?b)"]),
    rule("mod-mod", "(% (% ?x (* ?k ?b)) ?b)", "(% ?x ?b)", &["(< 0 ?k)", "(< 0 ?b)"]),
    rule("mod-same-mod", "(% (% ?x ?a) ?a)", "(% ?x ?a)", &[]),
    rule("div-of-mod", "(// (% ?x ?y) ?y)", "0", &["(< 0 ?y)"]),
    rule("div-multiple", "(// (* ?q ?y) ?y)", "?q", &["(!= ?y 0)"]),
    rule("mod-multiple", "(% (* ?q ?y) ?y)", "0", &[]),
    rule("div-multiple-plus", "(// (+ (* ?q ?y) ?r) ?y)", "(+ ?q (// ?r ?y))", &["(< 0 ?y)"]),
    rule("mod-multiple-plus", "(% (+ (* ?q ?y) ?r) ?y)", "(% ?r ?y)", &[]),
    rule("div-common-factor", "(// (* ?x ?g) (* ?k ?g))", "(// ?x ?k)", &["(< 0 ?g)"]),
    rule("mod-common-factor", "(% (* ?x ?g) (* ?k ?g))", "(* (% ?x ?k) ?g)", &["(< 0 ?g)"]),
    rule("mod-of-min", "(min (% ?x ?c) (% ?y ?c))", "(% (min ?x ?y) ?c)", &["(== (// ?x ?c) (// ?y ?c))", "(< 0 ?c)"]),
    rule("mod-of-max", "(max (% ?x ?c) (% ?y ?c))", "(% (max ?x ?y) ?c)", &["(== (// ?x ?c) (// ?y ?c))", "(< 0 ?c)"]),
    rule("mod-of-min-of-multiples", "(% (min (* ?x ?c) (* ?y ?c)) ?c)", "0", &[]),
    rule("mod-of-max-of-multiples", "(% (max (* ?x ?c) (* ?y ?c)) ?c)", "0", &[]),
    rule("mod-of-min-small", "(% (min ?x ?y) ?c)", "(min ?x ?y)", &["(<= 0 ?x)", "(<= 0 ?y)", "(< ?x ?c)"]),
    rule("mod-of-max-small", "(% (max ?x ?y) ?c)", "(max ?x ?y)", &["(<= 0 ?x)", "(< ?x ?c)", "(< ?y ?c)"]),
    rule("div-of-min-small", "(// (min ?x ?y) ?c)", "0", &["(<= 0 ?x)", "(<= 0 ?y)", "(< ?x ?c)"]),
    rule("div-of-max-small", "(// (max ?x ?y) ?c)", "0", &["(<= 0 ?x)", "(< ?x ?c)", "(< ?y ?c)"]),
    rule("mod-of-sum-with-mod", "(% (+ (% ?x ?y) ?z) ?y)", "(% (+ ?x ?z) ?y)", &["(< 0 ?y)"]),
    rule("mod-of-difference-with-mod", "(% (- ?z (% ?x ?y)) ?y)", "(% (- ?z ?x) ?y)", &["(< 0 ?y)"]),
    rule("mod-of-mod-minus", "(% (- (% ?x ?y) ?z) ?y)", "(% (- ?x ?z) ?y)", &["(< 0 ?y)"]),
    rule("mod-of-product-with-mod", "(% (* (% ?x ?y) ?z) ?y)", "(% (* ?x ?z) ?y)", &["(< 0 ?y)"]),
    rule("div-rounded-down", "(// (- ?x (% ?x ?y)) ?y)", "(// ?x ?y)", &["(< 0 ?y)"]),
    rule("minus-rounded-down", "(- ?x (* (// ?x ?y) ?y))", "(% ?x ?y)", &["(< 0 ?y)"]),
    rule("quotient-and-remainder", "(+ (* (// ?x ?y) ?y) (% ?x ?y))", "?x", &["(< 0 ?y)"]),
    rule("min-of-quotients", "(min (// ?x ?c) (// ?y ?c))", "(// (min ?x ?y) ?c)", &["(< 0 ?c)"]),
    rule("max-of-quotients", "(max (// ?x ?c) (// ?y ?c))", "(// (max ?x ?y) ?c)", &["(< 0 ?c)"]),
    // A padded extent: rounded up to a multiple, it loses nothing when rounded again.
    rule(
        "round-up-rounded",
        "(// (+ (* (// (+ ?x ?a) ?c) ?c) ?a) ?c)",
        "(// (+ ?x ?a) ?c)",
        &["(<= 0 ?a)", "(< ?a ?c)"],
    ),
    rule(
        "round-up-covers",
        "(max ?x (* (// (+ ?x ?a) ?c) ?c))",
        "(* (// (+ ?x ?a) ?c) ?c)",
        &["(< 0 ?c)", "(<= (- ?c 1) ?a)"],
    ),
    rule("round-up-covered", "(min ?x (* (// (+ ?x ?a) ?c) ?c))", "?x", &["(< 0 ?c)", "(<= (- ?c 1) ?a)"]),
    rule("round-down-covered", "(max ?x (* (// ?x ?c) ?c))", "?x", &["(< 0 ?c)"]),
    rule("round-down-covers", "(min ?x (* (// ?x ?c) ?c))", "(* (// ?x ?c) ?c)", &["(< 0 ?c)"]),
    // Minimum and maximum.
    rule("min-first", "(min ?x ?y)", "?x", &["(<= ?x ?y)"]),
    rule("max-first", "(max ?x ?y)", "?x", &["(<= ?y ?x)"]),
    rule("min-again", "(min ?x (min ?x ?y))", "(min ?x ?y)", &[]),
    rule("max-again", "(max ?x (max ?x ?y))", "(max ?x ?y)", &[]),
    rule("min-of-max", "(min ?x (max ?x ?y))", "?x", &[]),
    rule("max-of-min", "(max ?x (min ?x ?y))", "?x", &[]),
    rule("min-inner-first", "(min (min ?x ?y) ?z)", "(min ?x ?z)", &["(<= ?z ?y)"]),
    rule("max-inner-first", "(max (max ?x ?y) ?z)", "(max ?x ?z)", &["(<= ?y ?z)"]),
    rule("min-distributes", "(max (min ?x ?y) (min ?x ?z))", "(min ?x (max ?y ?z))", &[]),
    rule("max-distributes", "(min (max ?x ?y) (max ?x ?z))", "(max ?x (min ?y ?z))", &[]),
    rule("min-max-sum", "(+ (min ?x ?y) (max ?x ?y))", "(+ ?x ?y)", &[]),
    rule("min-of-sums", "(min (+ ?x ?z) (+ ?y ?z))", "(+ (min ?x ?y) ?z)", &[]),
    rule("max-of-sums", "(max (+ ?x ?z) (+ ?y ?z))", "(+ (max ?x ?y) ?z)", &[]),
    rule("min-of-differences", "(min (- ?x ?z) (- ?y ?z))", "(- (min ?x ?y) ?z)", &[]),
    rule("max-of-differences", "(max (- ?x ?z) (- ?y ?z))", "(- (max ?x ?y) ?z)", &[]),
    rule("min-of-products", "(min (* ?x ?c) (* ?y ?c))", "(* (min ?x ?y) ?c)", &["(<= 0 ?c)"]),
    rule("max-of-products", "(max (* ?x ?c) (* ?y ?c))", "(* (max ?x ?y) ?c)", &["(<= 0 ?c)"]),
    rule("min-of-negative-products", "(min (* ?x ?c) (* ?y ?c))", "(* (max ?x ?y) ?c)", &["(<= ?c 0)"]),
    rule("max-of-negative-products", "(max (* ?x ?c) (* ?y ?c))", "(* (min ?x ?y) ?c)", &["(<= ?c 0)"]),
    rule("max-minus", "(- (max ?x ?y) ?y)", "(max (- ?x ?y) 0)", &[]),
    rule("minus-min", "(- ?x (min ?x ?y))", "(max (- ?x ?y) 0)", &[]),
    // Selects.
    rule("select-same", "(select ?c ?x ?x)", "?x", &[]),
    rule("select-not", "(select (not ?c) ?x ?y)", "(select ?c ?y ?x)", &[]),
    rule("select-then-select", "(select ?c (select ?c ?x ?y) ?z)", "(select ?c ?x ?z)", &[]),
    rule("select-else-select", "(select ?c ?x (select ?c ?y ?z))", "(select ?c ?x ?z)", &[]),
    rule("select-and-select", "(select ?c (select ?d ?x ?y) ?y)", "(select (and ?c ?d) ?x ?y)", &[]),
    rule("select-lt-min", "(select (< ?x ?y) ?x ?y)", "(min ?x ?y)", &[]),
    rule("select-le-min", "(select (<= ?x ?y) ?x ?y)", "(min ?x ?y)", &[]),
    rule("select-lt-max", "(select (< ?x ?y) ?y ?x)", "(max ?x ?y)", &[]),
    rule("select-le-max", "(select (<= ?x ?y) ?y ?x)", "(max ?x ?y)", &[]),
    rule("select-eq", "(select (== ?x ?y) ?x ?y)", "?y", &[]),
    rule("select-ne", "(select (!= ?x ?y) ?x ?y)", "?x", &[]),
    rule("select-of-sums", "(select ?c (+ ?x ?z) (+ ?y ?z))", "(+ (select ?c ?x ?y) ?z)", &[]),
    rule("select-of-differences", "(select ?c (- ?x ?z) (- ?y ?z))", "(- (select ?c ?x ?y) ?z)", &[]),
    rule("select-of-products", "(select ?c (* ?x ?z) (* ?y ?z))", "(* (select ?c ?x ?y) ?z)", &[]),
    rule("select-of-quotients", "(select ?c (// ?x ?z) (// ?y ?z))", "(// (select ?c ?x ?y) ?z)", &[]),
    // Conditions.
    rule("not-not", "(not (not ?a))", "?a", &[]),
    rule("not-lt", "(not (< ?x ?y))", "(<= ?y ?x)", &[]),
    rule("not-le", "(not (<= ?x ?y))", "(< ?y ?x)", &[]),
    rule("not-eq", "(not (== ?x ?y))", "(!= ?x ?y)", &[]),
    rule("not-ne", "(not (!= ?x ?y))", "(== ?x ?y)", &[]),
    rule("and-absorbs", "(and ?a (or ?a ?b))", "?a", &[]),
    rule("or-absorbs", "(or ?a (and ?a ?b))", "?a", &[]),
    rule("and-again", "(and ?a (and ?a ?b))", "(and ?a ?b)", &[]),
    rule("or-again", "(or ?a (or ?a ?b))", "(or ?a ?b)", &[]),
    rule("and-lt-le", "(and (< ?x ?y) (<= ?x ?y))", "(< ?x ?y)", &[]),
    rule("min-lt-operand", "(< (min ?x ?y) ?x)", "(< ?y ?x)", &[]),
    rule("operand-lt-max", "(< ?x (max ?x ?y))", "(< ?x ?y)", &[]),
    rule("operand-le-min", "(<= ?x (min ?x ?y))", "(<= ?x ?y)", &[]),
    rule("max-le-operand", "(<= (max ?x ?y) ?x)", "(<= ?y ?x)", &[]),
    rule("quotient-lt", "(< (// ?x ?c) ?y)", "(< ?x (* ?y ?c))", &["(< 0 ?c)"]),
    rule("le-quotient", "(<= ?y (// ?x ?c))", "(<= (* ?y ?c) ?x)", &["(< 0 ?c)"]),
    rule("products-lt", "(< (* ?x ?c) (* ?y ?c))", "(< ?x ?y)", &["(< 0 ?c)"]),
    rule("products-le", "(<= (* ?x ?c) (* ?y ?c))", "(<= ?x ?y)", &["(< 0 ?c)"]),
    rule("products-eq", "(== (* ?x ?c) (* ?y ?c))", "(== ?x ?y)", &["(!= ?c 0)"]),
    // Prefix sums and fused loops (paper section B.2). The guards are needed: without them, with
    // rows of different lengths, they prove 0 = 1.
    rule("search-in-row", "(S (+ (P ?x) ?i))", "?x", &["(<= 0 ?x)", "(< ?x N)", "(<= 0 ?i)", "(< ?i (T ?x))"]),
    rule("search-row-start", "(S (P ?x))", "?x", &["(<= 0 ?x)", "(< ?x N)", "(< 0 (T ?x))"]),
    rule("sum-step", "(- (P (+ ?x 1)) (P ?x))", "(T ?x)", &["(<= 0 ?x)", "(< ?x N)"]),
    rule("sum-of-nothing", "(P 0)", "0", &[]),
    rule("sum-of-min", "(min (P ?x) (P ?y))", "(P (min ?x ?y))", &["(<= 0 ?x)", "(<= ?x N)", "(<= 0 ?y)", "(<= ?y N)"]),
    rule("sum-of-max", "(max (P ?x) (P ?y))", "(P (max ?x ?y))", &["(<= 0 ?x)", "(<= ?x N)", "(<= 0 ?y)", "(<= ?y N)"]),
    rule(
        "search-of-min",
        "(min (S ?r) (S ?t))",
        "(S (min ?r ?t))",
        &["(<= 0 ?r)", "(< ?r (P N))", "(<= 0 ?t)", "(< ?t (P N))"],
    ),
    rule(
        "search-of-max",
        "(max (S ?r) (S ?t))",
        "(S (max ?r ?t))",
        &["(<= 0 ?r)", "(< ?r (P N))", "(<= 0 ?t)", "(< ?t (P N))"],
    ),
];
