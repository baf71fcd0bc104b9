//! Programs whose every schedule must give the reference's results, after each step and natively; of schedules whose name
//! begins with `cuda`, threads and all, on the interpreter.

use crate::support::{files, in_parallel, root, stem};
use crate::tool::{cora, succeeds};
use cora::passes::default_schedule::own_names::{NAMES, reserved};

/// Rows of all kinds: none, empty ones, whole tiles and not.
const LENGTHS: &str = "0 5 1 0 33 2 17 16 40 3 0 12";

#[test]
fn legal_schedules() {
    let lengths = crate::tool::file("schedules.lengths", LENGTHS);
    let mut cases = Vec::new();
    for path in files("filetests/schedules", "cora") {
        let text = std::fs::read_to_string(&path).expect("a program");
        let names = text.lines().filter_map(|l| l.strip_prefix("schedule ")?.strip_suffix(" {"));
        // The compiler's own schedule as well.
        cases.extend(names.chain(["default"]).map(|name| (path.clone(), name.to_owned())));
    }
    assert!(cases.len() >= 10, "{} schedules in {}", cases.len(), root().display());
    let complaints = in_parallel(&cases, |(path, schedule)| {
        let program = format!("filetests/schedules/{}.cora", stem(path));
        let given = format!("lens={lengths}");
        let run = ["run", &program, "--schedule", schedule, "--check", "--lengths", &given, "--param", "M=0,1,3,12"];
        let grid = schedule.starts_with("cuda");
        let on: &[&str] = if grid { &["--target", "cuda", "--emulate"] } else { &["--poison"] };
        let verified = ["compile", &program, "--schedule", schedule, "--emit", "storage", "--verify-each"];
        let mut wrong = Vec::new();
        for args in [[&run[..], on].concat(), verified.to_vec()] {
            let ran = cora(&args);
            if ran.code != Some(0) {
                wrong.push(format!("{args:?}: exit code {:?}\n{}", ran.code, ran.stderr));
            }
        }
        // Not all that is legal on rows is so on tiles beyond them; what is not says which form it is.
        let padded = if grid { None } else { Some(cora(&[&run[..], &["--padded", "--poison"]].concat())) };
        if let Some(ran) = padded.filter(|r| r.code != Some(0) && !r.stderr.contains("this is the fully padded form")) {
            wrong.push(format!("{path:?}, {schedule}, padded: exit code {:?}\n{}", ran.code, ran.stderr));
        }
        wrong
    });
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

/// A formula's function has a value in the fully padded form, too, where its index may be beyond all rows.
#[test]
fn functions_in_padded_loops() {
    let program = crate::tool::file(
        "padded_function.cora",
        "param D in 0..=16
        extent s(doc) in 0..=5
        extent w(doc, sent) in 0..=24
        dim doc = D, sent = s(doc), word = w(doc, sent)
        input X[doc, sent, word] : f32
        Y[doc, sent, word] = 2.0 * X
        output Y
        schedule cpu {
          op_split Y.word at 4 * floordiv(w(doc, sent), 4)
        }",
    );
    for form in [&[][..], &["--padded"]] {
        succeeds(&[&["run", &program, "--check", "--param", "D=7"], form].concat());
    }
}

/// So has the one that a reduced loop is padded to, where loops around run to the greatest extents.
#[test]
fn padded_to_a_function_in_the_padded_form() {
    let program = crate::tool::file(
        "padded_to_a_function.cora",
        "param M in 0..=32
        extent lens(b) in 0..=50
        dim b = M, i = lens(b), s = i + 1
        input X[b, i] : f32
        P[b, i] = sum(s) X[b, s]
        output P
        schedule cpu {
          pad_loop P.s to min(8 * floordiv(i, 8) + 8, lens(b))
          split P.i 8 -> io, ii; reorder P: b io s ii
        }",
    );
    for form in [&[][..], &["--padded"], &["--compare-padded"]] {
        succeeds(&[&["run", &program, "--check", "--param", "M=7"], form].concat());
    }
}

/// A schedule by rule does not depend on what a program calls its dimensions.
#[test]
fn names_of_dimensions_do_not_matter() {
    let loops = |names: [&str; 4], target: &str| {
        let [b, n, q, k] = names;
        let text = format!(
            "param M in 0..=64
            extent lens({b}) in 0..=512
            dim {b} = M, {n} = 256, {q} = lens({b}), {k} = lens({b}), d = 128
            input X[{b}, {q}, d] : f32
            const input W[d, {n}] : f32
            input Z[{b}, {k}, {n}] : f32
            Y[{b}, {q}, {n}] = sum(d) X[{b}, {q}, d] * W[d, {n}]
            S[{b}, {q}, {k}] = sum({n}) Y[{b}, {q}, {n}] * Z[{b}, {k}, {n}]
            e = exp(S - max({k}) S)
            O[{b}, {q}, {n}] = sum({k}) e[{b}, {q}, {k}] * Z[{b}, {k}, {n}]
            output O"
        );
        let program = crate::tool::file(&format!("named_{target}_{b}.cora"), &text);
        let shown = succeeds(&["explain", &program, "--schedule", "default", "--target", target]);
        let last = shown.rsplit("\n// ").next().unwrap_or_default();
        let loops = last.lines().filter_map(|l| l.trim().strip_prefix("for %")?.split([' ', '#']).next());
        loops.map(str::to_owned).collect::<Vec<_>>()
    };
    for target in ["cpu", "cuda"] {
        let own = ["b", "n", "q", "k"];
        let expected = loops(own, target);
        let known = |n: &String| own.contains(&n.as_str()) || ["d", "once"].contains(&n.as_str()) || reserved(n);
        assert_eq!(expected.iter().find(|n| !known(n)), None, "{target}: a name that is kept apart from no dimension");
        let given =
            NAMES.chunks(4).map(|c| [0, 1, 2, 3].map(|n| *c.get(n).unwrap_or(&["b_o", "q_i", "k_o", "once"][n])));
        let given: Vec<_> = given.collect();
        let complaints = in_parallel(&given, |names| {
            let found = loops(*names, target);
            let other = found.len() != expected.len();
            other.then(|| format!("{target}: other loops for {names:?}: {found:?}")).into_iter().collect()
        });
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    }
}
