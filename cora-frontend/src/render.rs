//! Renders diagnostics for people: message, place, source line and caret.

use cora_ir::Diagnostic;
use std::fmt::Write;

/// `d` with the line of `text` it points at; `name` is what the program is called (a path).
pub fn render(d: &Diagnostic, name: &str, text: &str) -> String {
    let level = if d.code.starts_with('W') { "warning" } else { "error" };
    let mut out = format!("{level}[{}]: {}\n", d.code, d.message);
    let mut gutter = 1;
    if let Some(span) = d.span {
        let start = floor_boundary(text, span.start);
        let end = floor_boundary(text, span.end).max(start);
        let line_start = text[..start].rfind('\n').map_or(0, |p| p + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |p| start + p);
        let line_no = text[..start].matches('\n').count() + 1;
        let column = text[line_start..start].chars().count() + 1;
        let width = text[start..end.min(line_end)].chars().count().max(1);
        gutter = line_no.to_string().len();
        let pad = " ".repeat(gutter);
        let line: String =
            text[line_start..line_end].trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let carets = format!("{}{}", " ".repeat(column - 1), "^".repeat(width));
        let _ = writeln!(out, "{pad}--> {name}:{line_no}:{column}");
        let _ = writeln!(out, "{pad} |\n{line_no} | {line}\n{pad} | {carets}");
    }
    let pad = " ".repeat(gutter);
    for n in &d.notes {
        let _ = writeln!(out, "{pad} = note: {n}");
    }
    if let Some(h) = &d.hint {
        let _ = writeln!(out, "{pad} = help: {h}");
    }
    out
}

fn floor_boundary(text: &str, pos: usize) -> usize {
    let mut pos = pos.min(text.len());
    while !text.is_char_boundary(pos) {
        pos -= 1;
    }
    pos
}

#[cfg(test)]
mod tests {
    use super::*;
    use cora_ir::schedule::Span;

    #[test]
    fn caret_under_the_name() {
        let d = Diagnostic::new("E0201", "unknown name `x`").at(Span { start: 8, end: 9 }).hint("declare it");
        let want = "error[E0201]: unknown name `x`\n --> p.cora:2:5\n  |\n2 | S = x\n  |     ^\n  = help: declare it\n";
        assert_eq!(render(&d, "p.cora", "abc\nS = x"), want);
        let far = Diagnostic::new("E0201", "m").at(Span { start: 900, end: 901 });
        assert!(render(&far, "p", "é").contains("--> p:1:2"));
    }
}
