//! Programs whose every schedule must give the reference's results, after each step and natively.

use crate::support::{files, in_parallel, root, stem};
use crate::tool::cora;

/// Rows of all kinds: none, empty ones, whole tiles and not.
const LENGTHS: &str = "0 5 1 0 33 2 17 16 40 3 0 12";

#[test]
fn legal_schedules() {
    let lengths = crate::tool::file("schedules.lengths", LENGTHS);
    let mut cases = Vec::new();
    for path in files("filetests/schedules", "cora") {
        let text = std::fs::read_to_string(&path).expect("a program");
        let names = text.lines().filter_map(|l| l.strip_prefix("schedule ")?.strip_suffix(" {"));
        cases.extend(names.map(|name| (path.clone(), name.to_owned())));
    }
    assert!(cases.len() >= 10, "{} schedules in {}", cases.len(), root().display());
    let complaints = in_parallel(&cases, |(path, schedule)| {
        let program = format!("filetests/schedules/{}.cora", stem(path));
        let given = format!("lens={lengths}");
        let native = ["run", &program, "--schedule", schedule, "--check", "--poison", "--lengths", &given];
        let sizes = ["--param", "M=0,1,3,12"];
        let verified = ["compile", &program, "--schedule", schedule, "--emit", "storage", "--verify-each"];
        let mut wrong = Vec::new();
        for args in [[&native[..], &sizes].concat(), verified.to_vec()] {
            let ran = cora(&args);
            if ran.code != Some(0) {
                wrong.push(format!("{args:?}: exit code {:?}\n{}", ran.code, ran.stderr));
            }
        }
        wrong
    });
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}
