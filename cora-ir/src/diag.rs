//! Diagnostics as data: a stable code, a message, where, and what would fix it. Binaries render them.

use crate::schedule::Span;
use std::fmt;

/// A user's mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Stable code such as `E0104`; `docs/errors.md` lists them.
    pub code: &'static str,
    /// What is wrong, naming the thing.
    pub message: String,
    /// Where, if there is text.
    pub span: Option<Span>,
    /// What would fix it.
    pub hint: Option<String>,
    /// Further facts: what could not be proved, a length that breaks it.
    pub notes: Vec<String>,
}

impl Diagnostic {
    /// A diagnostic without span, hint or notes.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), span: None, hint: None, notes: Vec::new() }
    }
    /// The same with a place.
    #[must_use]
    pub fn at(mut self, span: Span) -> Self {
        self.span = self.span.or(Some(span));
        self
    }
    /// The same with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
    /// The same with one more note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.code, self.message)?;
        for n in &self.notes {
            write!(f, "\n  note: {n}")?;
        }
        if let Some(h) = &self.hint {
            write!(f, "\n  help: {h}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}
