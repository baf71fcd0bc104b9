//! The .cora language and the Rust builder: text or calls in, annotated op graph out.
//!
//! Both front doors make one syntax tree ([`ast`]), which [`elaborate`] turns into a
//! [`cora_ir::Graph`].
//!
//! ```
//! let text = "param M in 0..=8
//!     extent lens(b) in 0..=16
//!     dim b = M, i = lens(b)
//!     input A[b, i] : f32
//!     T[b] = 2 * sum(i) A
//!     output T";
//! let graph = cora_frontend::parse_program("example", text, &[])?;
//! assert!(cora_frontend::print_program(&graph).contains("T.sum[b] : f32 = sum(i) A[b, i]"));
//!
//! // Every mistake is reported, and rendered with its line.
//! let wrong = text.replace("output T", "output U");
//! let mistakes = cora_frontend::parse_program("example", &wrong, &[]).expect_err("there is no U");
//! let shown: Vec<String> = mistakes.iter().map(|d| cora_frontend::render(d, "example.cora", &wrong)).collect();
//! assert!(shown[0].starts_with("error[E0217]") && shown[0].contains("--> example.cora:6:12"), "{shown:?}");
//! # Ok::<(), Vec<cora_frontend::Diagnostic>>(())
//! ```
//!
//! [`builder`] begins with the same by calls.
//!
//! The language is described in `docs/language.md`, the diagnostics' codes in `docs/errors.md`.
//!
//! Absent from this crate: lowering, scheduling decisions, files and other I/O.
#![forbid(unsafe_code)]

pub mod ast;
pub mod builder;
mod elab;
pub mod lex;
mod names;
mod parse;
mod print;
mod render;

pub use builder::ProgramBuilder;
pub use elab::{ConstValue, Elaborated, elaborate};
pub use parse::parse_ast;
pub use print::{print_program, print_step, to_builder_code};
pub use render::render;

pub use cora_ir::{Diagnostic, Graph};

use ast::ItemKind;
use cora_ir::schedule::{Schedule, Span};

/// The op graph of a `.cora` program called `name`; `consts` override its `const` declarations.
///
/// Every mistake that can be found is reported, in the order of the text.
///
/// # Errors
/// `E0101` to `E0122` for text that cannot be read, `E0201` to `E0242` and `E0251` to `E0255` for a program without a
/// meaning; warnings about the text (`W0203`, `W0204`) are then among them. A pass checks accesses and index arithmetic
/// (`E0243`, `E0244`, `E0250`).
pub fn parse_program(name: &str, text: &str, consts: &[(String, ConstValue)]) -> Result<Graph, Vec<Diagnostic>> {
    parse_with_warnings(name, text, consts).map(|e| e.graph)
}

/// [`parse_program`], also telling what is suspicious about a correct program.
///
/// # Errors
/// As [`parse_program`].
pub fn parse_with_warnings(
    name: &str,
    text: &str,
    consts: &[(String, ConstValue)],
) -> Result<Elaborated, Vec<Diagnostic>> {
    let (program, mut diags) = parse_ast(text);
    match elaborate(name, &program, consts) {
        Ok(mut e) if diags.is_empty() => {
            e.warnings.extend(lex::quotients_in_comments(text));
            e.warnings.extend(program.doubtful);
            e.warnings.sort_by_key(|d| d.span.map_or((0, 0), |s| (s.start, s.end)));
            return Ok(e);
        }
        Ok(_) => {}
        // An output may be among what could not be read.
        Err(more) if !diags.is_empty() => diags.extend(more.into_iter().filter(|d| d.code != "E0218")),
        Err(more) => diags = more,
    }
    // A text that says nothing has a beginning all the same.
    let nowhere = |d: &&mut Diagnostic| d.code == "E0218" && d.span.is_none();
    diags.iter_mut().filter(nowhere).for_each(|d| d.span = Some(Span { start: 0, end: text.len().min(1) }));
    diags.extend(lex::quotients_in_comments(text));
    diags.extend(program.doubtful);
    diags.sort_by_key(|d| d.span.map_or((0, 0), |s| (s.start, s.end)));
    Err(diags)
}

/// The schedules of a text that has nothing else, for a graph that there is already: what they name is looked up when they are
/// applied. Places in the text are those of its steps.
///
/// ```
/// let text = "schedule rows { parallel T.b }
///             schedule columns { split T.b 4 -> bo, bi }";
/// let schedules = cora_frontend::parse_schedules(text)?;
/// assert_eq!(schedules[0].name, "rows");
/// assert_eq!(cora_frontend::print_step(&schedules[0].steps[0].kind), "parallel T.b");
/// # Ok::<(), Vec<cora_frontend::Diagnostic>>(())
/// ```
///
/// # Errors
/// `E0101` to `E0122` for text that cannot be read; `E0103` for anything but schedules and schedule functions.
pub fn parse_schedules(text: &str) -> Result<Vec<Schedule>, Vec<Diagnostic>> {
    let (program, mut diags) = parse_ast(text);
    for item in &program.items {
        if !matches!(item.kind, ItemKind::Schedule(..) | ItemKind::ScheduleFn(..)) {
            diags.push(
                Diagnostic::new("E0103", "only schedules are expected here")
                    .at(item.span)
                    .hint("the program is given by itself: leave out its declarations and operators"),
            );
        }
    }
    let schedules = parse::schedule::schedules(&program, &mut diags);
    if diags.is_empty() { Ok(schedules) } else { Err(diags) }
}

/// Every word with a meaning of its own: keywords, element types, functions, reductions, schedule
/// steps. Editors and documentation tests use this list.
pub fn words() -> Vec<&'static str> {
    let mut all = names::KEYWORDS.to_vec();
    all.extend(names::BUILTINS);
    all.extend(names::math_names());
    all.extend(cora_ir::ScalarType::ELEMENTS.map(cora_ir::ScalarType::name));
    all.extend(cora_ir::Combiner::ALL.map(cora_ir::Combiner::name));
    all.extend(["argmax", "argmin", "pow"]);
    all.extend(parse::schedule::STEPS);
    all
}
