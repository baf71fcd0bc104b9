//! The lexer: any text to tokens, with a diagnostic for each stretch of characters that is none.

use cora_ir::Diagnostic;
use cora_ir::schedule::Span;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A name or keyword; dots inside belong to it (`P.sum`), and so does `.*`, all parts of a stage.
    Name,
    /// An integer literal.
    Int,
    /// A floating-point literal.
    Float,
    /// An operator or bracket.
    Punct,
    /// The end of the text.
    End,
}

/// Characters of a stretch that are shown, at most.
const MAX_SHOWN: usize = 40;

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// What it is.
    pub kind: TokenKind,
    /// Its characters (numbers without `_`).
    pub text: String,
    /// Where it stands.
    pub span: Span,
    /// Whether it is the first on its line.
    pub first: bool,
}

const PUNCT: [&str; 26] = [
    "..=", "->", "..", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", "<", ">", "=", "+", "-", "*", "/", "%",
    ",", ";", ":", ".", "|",
];

/// The tokens of `text`, ending with one `End`.
pub fn lex(text: &str) -> (Vec<Token>, Vec<Diagnostic>) {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut diags: Vec<Diagnostic> = Vec::new();
    let (mut pos, mut first) = (0, true);
    while pos < bytes.len() {
        let c = bytes[pos];
        let start = pos;
        let kind = match c {
            b'\n' => {
                first = true;
                pos += 1;
                continue;
            }
            b' ' | b'\t' | b'\r' => {
                pos += 1;
                continue;
            }
            b'/' if bytes.get(pos + 1) == Some(&b'/') => {
                while pos < bytes.len() && bytes[pos] != b'\n' {
                    pos += 1;
                }
                continue;
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                pos = name_end(bytes, pos);
                TokenKind::Name
            }
            b'0'..=b'9' => {
                let (end, kind) = number_end(bytes, pos);
                pos = end;
                if is_word(bytes.get(pos)) {
                    pos = name_end(bytes, pos);
                    let span = Span { start, end: pos };
                    diags.push(
                        Diagnostic::new("E0102", format!("`{}` is not a number", &text[start..pos]))
                            .at(span)
                            .hint("a name starts with a letter; put an operator between a number and a name"),
                    );
                }
                kind
            }
            _ => match PUNCT.iter().find(|p| text[pos..].starts_with(**p)) {
                Some(p) => {
                    pos += p.len();
                    TokenKind::Punct
                }
                None => {
                    let len = text[pos..].chars().next().map_or(1, char::len_utf8);
                    pos += len;
                    bad_character(text, Span { start, end: pos }, &mut diags);
                    continue;
                }
            },
        };
        let mut word = text[start..pos].to_owned();
        if kind != TokenKind::Name {
            word.retain(|c| c != '_');
        }
        out.push(Token { kind, text: word, span: Span { start, end: pos }, first });
        first = false;
    }
    let end = text.len();
    out.push(Token { kind: TokenKind::End, text: String::new(), span: Span { start: end, end }, first: true });
    diags.iter_mut().for_each(|d| name_characters(text, d));
    (out, diags)
}

/// A warning for each comment after code that is a number alone, or a number and what goes on with a term: `x // 2`
/// divides in other languages.
pub fn quotients_in_comments(text: &str) -> Vec<Diagnostic> {
    let mut out = Vec::new();
    let mut start = 0;
    for line in text.split('\n') {
        let Some((code, comment)) = line.split_once("//") else {
            start += line.len() + 1;
            continue;
        };
        let operand = code.trim_end().ends_with(|c: char| c.is_ascii_alphanumeric() || [')', ']', '_'].contains(&c));
        if operand && continues_a_term(comment) {
            let span = Span { start: start + code.len(), end: start + line.trim_end().len() };
            let d = Diagnostic::new("W0203", format!("`//{}` is a comment", comment.trim_end())).at(span);
            out.push(d.hint("to divide write `/`, which rounds integers and indices down, or `floor(a / b)`"));
        }
        start += line.len() + 1;
    }
    out
}

fn continues_a_term(comment: &str) -> bool {
    let rest = comment.trim_start().trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = rest.len() < comment.trim_start().len();
    number && rest.trim_start().chars().next().is_none_or(|c| [')', ']', ',', '+', '-', '*', '/', '%'].contains(&c))
}

fn bad_character(text: &str, span: Span, diags: &mut Vec<Diagnostic>) {
    if span.start == 0 && text.starts_with('\u{feff}') {
        return;
    }
    if let Some(last) = diags.last_mut()
        && last.code == "E0101"
        && let Some(s) = &mut last.span
        && s.end == span.start
    {
        s.end = span.end;
        return;
    }
    diags.push(Diagnostic::new("E0101", String::new()).at(span));
}

/// What is said of a stretch of characters that are none of the language.
fn name_characters(text: &str, d: &mut Diagnostic) {
    let Some(all) = d.span.filter(|_| d.code == "E0101").map(|s| &text[s.start..s.end]) else { return };
    let start: String = all.chars().take(MAX_SHOWN).collect();
    let more = if start.len() < all.len() { "..." } else { "" };
    let s = if all.chars().nth(1).is_some() { "s" } else { "" };
    d.message = format!("unexpected character{s} `{}{more}`", shown(&start));
    d.hint = Some(instead_of(all).to_owned());
}

/// Characters as they are, but for those that cannot be seen.
fn shown(text: &str) -> String {
    let show = |c: char| if matches!(c, '"' | '\'' | '\\') { c.to_string() } else { c.escape_debug().to_string() };
    text.chars().map(show).collect()
}

/// What to write for characters that mean something in other languages.
fn instead_of(text: &str) -> &'static str {
    match text {
        "&&" => "write `and`",
        "||" => "write `or`",
        "&" => "of conditions write `and`; the lowest bits of an integer are a remainder: `x % 4` for two of them",
        "!" => "write `not`",
        "^" => "a power is `pow(x, y)`",
        "?" => "write `if condition then x else y`",
        "\"" | "'" => "names are written without quotes",
        "#" => "comments start with `//`",
        "@" => "a product of matrices is written out: `sum(k) A[i, k] * B[k, j]`",
        _ => "names are ASCII letters, digits and `_`; comments start with `//`",
    }
}

fn is_word(b: Option<&u8>) -> bool {
    b.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

fn name_end(bytes: &[u8], mut pos: usize) -> usize {
    loop {
        while is_word(bytes.get(pos)) {
            pos += 1;
        }
        if bytes.get(pos) == Some(&b'.') && is_word(bytes.get(pos + 1)) {
            pos += 1;
        } else if bytes.get(pos) == Some(&b'.') && bytes.get(pos + 1) == Some(&b'*') {
            // All parts of a stage: `S.*`.
            pos += 2;
        } else {
            return pos;
        }
    }
}

fn digits(bytes: &[u8], mut pos: usize) -> usize {
    while bytes.get(pos).is_some_and(|b| b.is_ascii_digit() || *b == b'_') {
        pos += 1;
    }
    pos
}

fn number_end(bytes: &[u8], start: usize) -> (usize, TokenKind) {
    let digit = |p: usize| bytes.get(p).is_some_and(u8::is_ascii_digit);
    let mut pos = digits(bytes, start);
    let mut kind = TokenKind::Int;
    if bytes.get(pos) == Some(&b'.') && digit(pos + 1) {
        pos = digits(bytes, pos + 1);
        kind = TokenKind::Float;
    }
    if matches!(bytes.get(pos), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(pos + 1), Some(b'+' | b'-')));
        if digit(pos + 1 + sign) {
            pos = digits(bytes, pos + 1 + sign);
            kind = TokenKind::Float;
        }
    }
    (pos, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> String {
        lex(text).0.iter().map(|t| t.text.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ranges_dots_and_comments() {
        assert_eq!(words("0..=4_096"), "0 ..= 4096 ");
        assert_eq!(words("0..V"), "0 .. V ");
        assert_eq!(words("P.m.1[a.b] 1e-5 2.5e3 // x"), "P.m.1 [ a.b ] 1e-5 2.5e3 ");
        assert_eq!(words("lo..hi"), "lo .. hi ");
        assert_eq!(words("a/b"), "a / b ");
    }

    #[test]
    fn bad_characters_are_reported_once_a_stretch() {
        let (_, d) = lex("a ## b é 1x");
        let codes: Vec<_> = d.iter().map(|d| d.code).collect();
        assert_eq!(codes, ["E0101", "E0101", "E0102"]);
    }
}
