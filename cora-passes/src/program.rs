//! A program at any stage, and what can be done with it whatever the stage.

use cora_ir::loops::LoopModule;
use cora_ir::storage::StorageModule;
use cora_ir::text::{self, Stage};
use cora_ir::verify::{StorageForm, verify_graph, verify_loops, verify_storage};
use cora_ir::{Diagnostic, Graph};

/// A program at one of the stages.
#[derive(Clone, Debug)]
pub enum Program {
    /// The op graph.
    Graph(Graph),
    /// The loop dialect.
    Loops(LoopModule),
    /// The storage dialect.
    Storage(StorageModule),
}

impl Program {
    /// Which stage it is at.
    pub fn stage(&self) -> Stage {
        match self {
            Self::Graph(_) => Stage::Graph,
            Self::Loops(_) => Stage::Loop,
            Self::Storage(_) => Stage::Storage,
        }
    }

    /// Its canonical text.
    pub fn print(&self) -> String {
        match self {
            Self::Graph(g) => text::print_graph(g),
            Self::Loops(m) => text::print_loops(m),
            Self::Storage(m) => text::print_storage(m),
        }
    }

    /// Whether it keeps the invariants of its stage, as a program from outside need not.
    ///
    /// # Errors
    /// `E0509` the first invariant that is broken.
    pub fn verify(&self) -> Result<(), Diagnostic> {
        let found = match self {
            Self::Graph(g) => verify_graph(g),
            Self::Loops(m) => verify_loops(m),
            Self::Storage(m) => verify_storage(m, StorageForm::Lowered),
        };
        let Err(errors) = found else { return Ok(()) };
        let first = errors.first().map_or_else(String::new, ToString::to_string);
        Err(Diagnostic::new("E0509", format!("the program is no valid `{}`: {first}", self.stage().keyword()))
            .hint("docs/ir.md names the invariants of each stage"))
    }

    /// The program that `source`, in the text of any stage, describes.
    ///
    /// # Errors
    /// `E0507` if the text begins like no stage's; else the parser's.
    pub fn parse(source: &str) -> Result<Self, Diagnostic> {
        match text::detect_stage(source) {
            Some(Stage::Graph) => text::parse_graph(source).map(Self::Graph),
            Some(Stage::Loop) => text::parse_loops(source).map(Self::Loops),
            Some(Stage::Storage) => text::parse_storage(source).map(Self::Storage),
            None => Err(Diagnostic::new("E0507", "the text does not begin with a stage's keyword")
                .hint("it begins with `graph.module`, `loop.module` or `storage.module`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Program;

    #[test]
    fn invariants_are_checked() {
        let source = "graph.module @p {
          param M in 0..=8
          dim %b = M
          tensor @A[b: M] : f32 input
          tensor @B[b: M] : f32 output
          op @B[%b] = @A[%b, %b]
          output @B
        }";
        let refused = Program::parse(source).and_then(|p| p.verify()).expect_err("two indices for one dimension");
        assert_eq!(refused.code, "E0509", "{refused}");
    }
}
