//! Lexer of all stages' text.

use crate::diag::Diagnostic;
use crate::schedule::Span;

/// A name with the suffix that told it from others: `q#1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    /// What the entity is called.
    pub base: String,
    /// The number after `#`.
    pub suffix: Option<u32>,
}

/// What a token is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tok {
    /// A bare word: a keyword or a parameter.
    Word(Name),
    /// A parameter, dimension or loop in quotes.
    Quoted(Name),
    /// `@name`
    At(Name),
    /// `%name`, and whether it is `%?name`.
    Var(Name, bool),
    /// `$n`
    Arg(u32),
    /// Decimal digits.
    Int(String),
    /// Digits with a point or an exponent.
    Float(String),
    /// `0x` digits.
    Hex(u64),
    /// An operator or a bracket.
    Punct(&'static str),
    /// The end of the text.
    End,
}

impl Tok {
    /// What people call it.
    pub(super) fn describe(&self) -> String {
        let text = |n: &Name| n.suffix.map_or(n.base.clone(), |s| format!("{}#{s}", n.base));
        match self {
            Tok::Word(n) => format!("`{}`", text(n)),
            Tok::Quoted(n) => format!("{:?}", text(n)),
            Tok::At(n) => format!("`@{}`", text(n)),
            Tok::Var(n, free) => format!("`%{}{}`", if *free { "?" } else { "" }, text(n)),
            Tok::Arg(n) => format!("`${n}`"),
            Tok::Int(s) | Tok::Float(s) => format!("`{s}`"),
            Tok::Hex(v) => format!("`0x{v:x}`"),
            Tok::Punct(p) => format!("`{p}`"),
            Tok::End => "the end of the text".into(),
        }
    }
}

/// A token and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub tok: Tok,
    pub span: Span,
}

/// Longer ones first.
const PUNCT: [&str; 25] = [
    "..=", "..", "->", "//", "<=", "==", "!=", "(", ")", "[", "]", "{", "}", ",", ":", "=", "<", "+", "-", "*", "/",
    "%", "@", "$", ".",
];

/// All tokens of `src`, the last being [`Tok::End`].
pub(super) fn lex(src: &str) -> Result<Vec<Token>, Diagnostic> {
    let mut lexer = Lexer { src, pos: 0 };
    let mut out = Vec::new();
    loop {
        lexer.skip_blanks();
        let start = lexer.pos;
        let tok = lexer.token()?;
        let end = tok == Tok::End;
        out.push(Token { tok, span: Span { start, end: lexer.pos } });
        if end {
            return Ok(out);
        }
    }
}

struct Lexer<'a> {
    src: &'a str,
    pos: usize,
}

fn is_start(b: u8) -> bool {
    b.is_ascii_alphabetic() || b == b'_'
}

fn is_part(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

impl Lexer<'_> {
    fn byte(&self, ahead: usize) -> u8 {
        self.src.as_bytes().get(self.pos + ahead).copied().unwrap_or(0)
    }

    fn error(&self, start: usize, message: impl Into<String>) -> Diagnostic {
        let end = self.pos.max(start + 1).min(self.src.len()).max(start);
        Diagnostic::new("E0501", message).at(Span { start, end })
    }

    fn skip_blanks(&mut self) {
        loop {
            while self.byte(0).is_ascii_whitespace() {
                self.pos += 1;
            }
            if self.byte(0) != b';' {
                return;
            }
            let rest = &self.src.as_bytes()[self.pos..];
            self.pos += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
        }
    }

    fn token(&mut self) -> Result<Tok, Diagnostic> {
        let b = self.byte(0);
        if self.pos >= self.src.len() {
            return Ok(Tok::End);
        }
        if is_start(b) {
            return Ok(Tok::Word(self.name()?));
        }
        if b == b'"' {
            return Ok(Tok::Quoted(self.name()?));
        }
        if b.is_ascii_digit() {
            return self.number();
        }
        let named = |b: u8| is_start(b) || b == b'"';
        if b == b'@' && named(self.byte(1)) {
            self.pos += 1;
            return Ok(Tok::At(self.name()?));
        }
        if b == b'%' && (named(self.byte(1)) || (self.byte(1) == b'?' && named(self.byte(2)))) {
            let free = self.byte(1) == b'?';
            self.pos += if free { 2 } else { 1 };
            return Ok(Tok::Var(self.name()?, free));
        }
        if b == b'$' && self.byte(1).is_ascii_digit() {
            let start = self.pos;
            self.pos += 1;
            let digits = self.digits();
            return digits.parse().map(Tok::Arg).map_err(|_| self.error(start, "no function has so many arguments"));
        }
        match PUNCT.into_iter().find(|p| self.src.as_bytes()[self.pos..].starts_with(p.as_bytes())) {
            Some(p) => {
                self.pos += p.len();
                Ok(Tok::Punct(p))
            }
            None => {
                let start = self.pos;
                let c = self.src[start..].chars().next().unwrap_or(' ');
                self.pos += c.len_utf8();
                Err(self.error(start, format!("unexpected character {c:?}")).hint("a comment begins with `;`"))
            }
        }
    }

    fn digits(&mut self) -> String {
        let start = self.pos;
        while self.byte(0).is_ascii_digit() {
            self.pos += 1;
        }
        self.src[start..self.pos].to_owned()
    }

    fn number(&mut self) -> Result<Tok, Diagnostic> {
        let start = self.pos;
        if self.byte(0) == b'0' && self.byte(1) == b'x' {
            self.pos += 2;
            let from = self.pos;
            while self.byte(0).is_ascii_hexdigit() {
                self.pos += 1;
            }
            let value = u64::from_str_radix(&self.src[from..self.pos], 16);
            return value.map(Tok::Hex).map_err(|_| self.error(start, "malformed hexadecimal number"));
        }
        self.digits();
        let mut float = false;
        if self.byte(0) == b'.' && self.byte(1).is_ascii_digit() {
            float = true;
            self.pos += 1;
            self.digits();
        }
        let sign = usize::from(matches!(self.byte(1), b'+' | b'-'));
        if matches!(self.byte(0), b'e' | b'E') && self.byte(1 + sign).is_ascii_digit() {
            float = true;
            self.pos += 1 + sign;
            self.digits();
        }
        if is_part(self.byte(0)) {
            self.pos += 1;
            return Err(self.error(start, "a number ends where a letter begins").hint("a type is written `1.5:f32`"));
        }
        let text = self.src[start..self.pos].to_owned();
        Ok(if float { Tok::Float(text) } else { Tok::Int(text) })
    }

    fn name(&mut self) -> Result<Name, Diagnostic> {
        let start = self.pos;
        let base = if self.byte(0) == b'"' { self.string()? } else { self.word() };
        let mut suffix = None;
        if self.byte(0) == b'#' {
            self.pos += 1;
            let digits = self.digits();
            let value = digits.parse().map_err(|_| self.error(start, "a number is expected after `#`"))?;
            suffix = Some(value);
        }
        Ok(Name { base, suffix })
    }

    fn word(&mut self) -> String {
        let start = self.pos;
        while is_part(self.byte(0)) || (self.byte(0) == b'.' && is_part(self.byte(1))) {
            self.pos += 1;
        }
        self.src[start..self.pos].to_owned()
    }

    fn string(&mut self) -> Result<String, Diagnostic> {
        let start = self.pos;
        self.pos += 1;
        let mut out = String::new();
        let mut chars = self.src[self.pos..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.pos += at + 1;
                    return Ok(out);
                }
                '\\' => {
                    let escape: Option<char> = match chars.next().map(|(_, c)| c) {
                        Some(c @ ('"' | '\\')) => Some(c),
                        Some('u') => {
                            let hex: String = chars.by_ref().map(|(_, c)| c).take_while(|&c| c != '}').collect();
                            hex.strip_prefix('{').and_then(|h| u32::from_str_radix(h, 16).ok()).and_then(char::from_u32)
                        }
                        _ => None,
                    };
                    let Some(c) = escape else {
                        self.pos += at + 1;
                        return Err(self
                            .error(start, "malformed escape in a quoted name")
                            .hint("`\\\"`, `\\\\` or `\\u{e9}`"));
                    };
                    out.push(c);
                }
                c => out.push(c),
            }
        }
        self.pos = self.src.len();
        Err(self.error(start, "a quoted name does not end"))
    }
}
