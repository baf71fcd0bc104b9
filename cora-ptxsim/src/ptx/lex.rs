//! Words and signs.

use super::ParseError;

/// A word or a sign, and its line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub text: &'a str,
    pub line: u32,
}

/// The tokens of a text; comments are dropped. Words may hold dots and double colons, as opcodes do.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, ParseError> {
    let bytes = text.as_bytes();
    let (mut out, mut at, mut line) = (Vec::new(), 0, 1u32);
    let is_word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'%' | b'.');
    while let Some(&b) = bytes.get(at) {
        let rest = &bytes[at..];
        if b == b'\n' {
            line += 1;
            at += 1;
        } else if b.is_ascii_whitespace() {
            at += 1;
        } else if rest.starts_with(b"//") {
            at += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
        } else if rest.starts_with(b"/*") {
            let end = rest.windows(2).position(|w| w == b"*/").map_or(rest.len(), |n| n + 2);
            line += rest[..end].iter().filter(|&&b| b == b'\n').count() as u32;
            at += end;
        } else if is_word(b) {
            let mut end = 0;
            while end < rest.len() && (is_word(rest[end]) || rest[end..].starts_with(b"::")) {
                end += if rest[end] == b':' { 2 } else { 1 };
            }
            out.push(Token { text: &text[at..at + end], line });
            at += end;
        } else if b.is_ascii_punctuation() {
            out.push(Token { text: &text[at..at + 1], line });
            at += 1;
        } else {
            return Err(ParseError { line, what: format!("byte {b:#x} is no part of PTX") });
        }
    }
    Ok(out)
}
