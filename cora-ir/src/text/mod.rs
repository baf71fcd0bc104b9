//! Canonical text of every stage: printers, parsers, and how to tell the stages apart.
//!
//! The law: `print(parse(print(m))) == print(m)`, and parsing gives back a structurally equal module
//! (up to ids, unreachable entities and source spans). A file begins with its stage's keyword, so
//! [`detect_stage`] needs no file name. The grammar is described in `docs/ir.md`.
//!
//! Parsers never panic; their errors carry a span and one of these codes:
//!
//! | code | meaning |
//! |---|---|
//! | E0501 | a character, string or number that no token begins with |
//! | E0502 | another token was expected here |
//! | E0503 | nested more deeply than the parser allows |
//! | E0504 | a name that nothing declares |
//! | E0505 | a name that is already declared, or a variable that is already bound |
//! | E0506 | a number outside the range that is allowed here |
//! | E0507 | the text of another stage |
//! | E0508 | a guard on something that is not a load, or an argument list that does not count from `$0` |

mod lex;
mod names;
mod parse;
mod parse_decl;
mod parse_expr;
mod parse_graph;
mod parse_loops;
mod parse_storage;
mod print;
mod print_expr;
mod print_graph;
mod print_loops;
mod print_storage;
mod steps;
#[cfg(test)]
mod tests;

pub use names::Names;
pub use parse_graph::parse_graph;
pub use parse_loops::parse_loops;
pub use parse_storage::parse_storage;
pub use print_expr::print_expr;
pub use print_graph::print_graph;
pub use print_loops::{print_loop_stmts, print_loops};
pub use print_storage::{print_storage, print_storage_stmts};
pub use steps::{parse_step, print_step, step_words};

/// A stage of the compiler that has text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Stage {
    /// `graph.module`
    Graph,
    /// `loop.module`
    Loop,
    /// `storage.module`
    Storage,
}

impl Stage {
    /// Every stage, first to last.
    pub const ALL: [Stage; 3] = [Self::Graph, Self::Loop, Self::Storage];

    /// The word that begins the stage's text.
    pub fn keyword(self) -> &'static str {
        match self {
            Self::Graph => "graph.module",
            Self::Loop => "loop.module",
            Self::Storage => "storage.module",
        }
    }
}

/// The stage whose keyword begins `text` (after blanks and `;` comments).
pub fn detect_stage(text: &str) -> Option<Stage> {
    let mut rest = text.trim_start();
    while let Some(comment) = rest.strip_prefix(';') {
        rest = comment.split_once('\n').map_or("", |(_, r)| r).trim_start();
    }
    let word = rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == '_')).next();
    Stage::ALL.into_iter().find(|s| Some(s.keyword()) == word)
}
