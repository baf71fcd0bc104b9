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
        let (line, at, width) = excerpt(text[line_start..line_end].trim_end(), column - 1, width);
        gutter = line_no.to_string().len();
        let pad = " ".repeat(gutter);
        let carets = format!("{}{}", " ".repeat(at), "^".repeat(width));
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

/// Lines are shown up to this many characters.
const MAX_LINE: usize = 160;

/// A line, or of a long one the part around the `width` characters from `at`; where they are in it.
fn excerpt(line: &str, at: usize, width: usize) -> (String, usize, usize) {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let length = line.chars().count();
    if length <= MAX_LINE {
        return (line.chars().map(plain).collect(), at, width);
    }
    let width = width.min(MAX_LINE / 2);
    let from = at.saturating_sub((MAX_LINE - width) / 2).min(length - MAX_LINE);
    let (before, after) = (if from > 0 { "..." } else { "" }, if from + MAX_LINE < length { "..." } else { "" });
    let shown: String = line.chars().skip(from).take(MAX_LINE).map(plain).collect();
    (format!("{before}{shown}{after}"), at - from + before.len(), width)
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
        let long = format!("{}x{}", "a ".repeat(500), " b".repeat(500));
        let d = Diagnostic::new("E0201", "m").at(Span { start: 1000, end: 1001 });
        let shown = render(&d, "p", &long);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[3].find('x'), lines[4].find('^'));
        assert!(shown.len() < 600 && lines[1].contains("p:1:1001"), "{shown}");
        let far = Diagnostic::new("E0201", "m").at(Span { start: 900, end: 901 });
        assert!(render(&far, "p", "é").contains("--> p:1:2"));
    }
}
