//! Any bytes give a graph or diagnostics: no panic, no stack overflow, no endless work.

mod common;

use cora_frontend::{parse_program, print_program, render};

/// A small generator (xorshift), so that every run tries the same programs.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// Parses, renders what is wrong, and checks that a correct program prints to a fixed point.
fn try_program(text: &str) {
    match parse_program("m", text, &[]) {
        Ok(graph) => {
            let errors = cora_ir::verify::verify_graph(&graph);
            assert!(errors.is_ok(), "{errors:?}\n{text}");
            let canonical = print_program(&graph);
            let again = parse_program("m", &canonical, &[]);
            let again = again.unwrap_or_else(|d| panic!("{d:?}\n{canonical}\nfrom\n{text}"));
            assert_eq!(print_program(&again), canonical);
        }
        Err(diags) => {
            assert!(!diags.is_empty());
            for d in diags {
                assert!(!render(&d, "m", text).is_empty());
            }
        }
    }
}

/// Many mistakes take no longer than a few do, and not all of them are told.
#[test]
fn many_mistakes() {
    let names: String = (0..20_000).map(|n| format!("T{n} = Q{n}\n")).collect();
    let characters = format!("T = {}\n", "@".repeat(200_000));
    for text in [names, characters] {
        let text = format!("dim b = 4\ninput A[b] : f32\n{text}output T0\n");
        let mistakes = parse_program("m", &text, &[]).expect_err("it is wrong");
        assert!(mistakes.len() < 100, "{}", mistakes.len());
        assert!(mistakes.iter().all(|d| d.message.len() < 200), "{:?}", mistakes[0]);
    }
}

fn corpus() -> Vec<String> {
    let mut all = common::programs(&common::root().join("examples"));
    all.extend(common::programs(&common::root().join("cora-frontend/tests/errors")));
    all.into_iter().map(|(_, text)| text).collect()
}

const BITS: [&str; 48] = [
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "=",
    "==",
    "<",
    "..",
    "..=",
    "->",
    ",",
    ";",
    ":",
    "+",
    "-",
    "*",
    "/",
    "%",
    "0",
    "1",
    "-1",
    "9223372036854775807",
    "1e400",
    "0.5",
    "sum(",
    "max(k) ",
    "if ",
    " then ",
    " else ",
    "not ",
    " and ",
    " when ",
    "dim ",
    "input ",
    "fn ",
    "schedule ",
    "extent ",
    " in ",
    " pad 4",
    "f32(",
    "index(",
    "\n",
    "é",
    "\u{0}",
    "batch",
    "argmax(q) ",
];

/// Replaces, inserts, deletes or swaps small pieces.
fn mutate(text: &str, random: &mut Random) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..=random.below(4) {
        let at = random.below(chars.len() + 1);
        let end = (at + random.below(12)).min(chars.len());
        let insert: Vec<char> = match random.below(4) {
            0 => Vec::new(),
            1 => {
                let from = random.below(chars.len() + 1);
                chars[from..(from + random.below(40)).min(chars.len())].to_vec()
            }
            _ => BITS[random.below(BITS.len())].chars().collect(),
        };
        let end = if random.below(2) == 0 { at } else { end };
        chars.splice(at..end, insert);
    }
    chars.into_iter().collect()
}

#[test]
fn mutated_programs() {
    let corpus = corpus();
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for _ in 0..6000 {
        let text = &corpus[random.below(corpus.len())];
        if text.len() < 6000 {
            try_program(&mutate(text, &mut random));
        }
    }
}

#[test]
fn truncated_programs() {
    for text in corpus() {
        let step = 1 + text.len() / 60;
        for end in (0..text.len()).step_by(step).filter(|&e| text.is_char_boundary(e)) {
            try_program(&text[..end]);
        }
    }
}

#[test]
fn random_tokens() {
    let mut random = Random(42);
    for _ in 0..2000 {
        let n = random.below(60);
        let text: String = (0..n).map(|_| format!("{} ", BITS[random.below(BITS.len())])).collect();
        try_program(&text);
    }
}

#[test]
fn deep_and_long_programs() {
    let deep = |open: &str, close: &str, n: usize| {
        format!("dim i = 4\nT[i] = {}1.0{}\noutput T\n", open.repeat(n), close.repeat(n))
    };
    for (open, close) in
        [("(", ")"), ("-", ""), ("not ", ""), ("exp(", ")"), ("sum(i) ", ""), ("if true then ", " else 1.0")]
    {
        try_program(&deep(open, close, 150));
        try_program(&deep(open, close, 100_000));
    }
    try_program(&format!("dim i = 4\nT[i] = 1.0{}\noutput T\n", " + 1.0".repeat(100_000)));
    try_program(&format!("dim i = 4\nT[i] = T{}\noutput T\n", "[i".repeat(100_000)));
    try_program(&format!("dim {}\n", (0..5000).map(|n| format!("d{n} = d{}", n + 1)).collect::<Vec<_>>().join(", ")));
    try_program(&format!("dim {}\n", (0..2000).map(|n| format!("d{n} = {n}")).collect::<Vec<_>>().join(", ")));
    let chain: String = (1..2000).map(|n| format!("fn g{n}(x) = g{}(x)\n", n - 1)).collect();
    try_program(&format!("dim i = 4\nfn g0(x) = x\n{chain}T[i] = g1999(1.0)\noutput T\n"));
    let calls: String = (1..40).map(|n| format!("schedule fn g{n}(s) {{ g{0}(s); g{0}(s) }}\n", n - 1)).collect();
    try_program(&format!(
        "dim i = 4\nT[i] = 1.0\noutput T\nschedule fn g0(s) {{ }}\n{calls}schedule cpu {{ g30(T) }}\n"
    ));
}
