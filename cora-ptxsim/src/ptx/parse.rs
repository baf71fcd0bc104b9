//! Modules, kernels, declarations and operands.

use super::decode::{Operand, decode};
use super::lex::{Token, tokens};
use super::{Address, Instr, Kernel, Module, Op, Param, ParseError, Reg, SHARED_BEGIN, Special, Src};
use rustc_hash::FxHashMap;

pub(super) fn module(text: &str) -> Result<Module, ParseError> {
    let tokens = tokens(text)?;
    let mut p = Parser { tokens: &tokens, at: 0, dynamic: Vec::new() };
    let mut m = Module { target: String::new(), kernels: FxHashMap::default() };
    while let Some(t) = p.next() {
        match t.text {
            ".version" | ".address_size" => drop(p.word()?),
            ".target" => {
                m.target = p.word()?.text.to_owned();
                while p.take(",") {
                    p.word()?;
                }
            }
            ".visible" | ".weak" | ".extern" => {}
            ".shared" => p.dynamic_shared()?,
            ".entry" => {
                let k = p.kernel()?;
                m.kernels.insert(k.name.clone(), k);
            }
            other => return Err(fault(t, format!("`{other}` is not known here"))),
        }
    }
    if m.target.is_empty() {
        return Err(ParseError { line: 1, what: "there is no .target".to_owned() });
    }
    Ok(m)
}

fn fault(t: Token, what: String) -> ParseError {
    ParseError { line: t.line, what }
}

/// Names of one pair of braces.
#[derive(Default)]
struct Scope<'a> {
    registers: FxHashMap<String, Reg>,
    labels: FxHashMap<&'a str, usize>,
}

/// A kernel while its body is read.
#[derive(Default)]
struct Body<'a> {
    scopes: Vec<Scope<'a>>,
    /// Where each label stands, once it is found, and where it was asked for.
    labels: Vec<(Option<usize>, Token<'a>)>,
    /// Offsets of arrays and parameters in their spaces.
    symbols: FxHashMap<&'a str, u64>,
    registers: usize,
    shared: u64,
    /// The greatest alignment of the arrays after these.
    dynamic: u64,
    local: u64,
    code: Vec<Instr>,
}

struct Parser<'t, 'a> {
    tokens: &'t [Token<'a>],
    at: usize,
    /// Arrays that begin after a kernel's own shared memory, with their alignments.
    dynamic: Vec<(&'a str, u64)>,
}

impl<'a> Parser<'_, 'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        let t = self.tokens.get(self.at).copied();
        self.at += 1;
        t
    }

    fn word(&mut self) -> Result<Token<'a>, ParseError> {
        let line = self.tokens.last().map_or(1, |t| t.line);
        self.next().ok_or_else(|| ParseError { line, what: "the text ends too early".to_owned() })
    }

    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).map_or("", |t| t.text)
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.peek() == text;
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, text: &str) -> Result<(), ParseError> {
        let t = self.word()?;
        if t.text == text { Ok(()) } else { Err(fault(t, format!("`{text}` was expected, not `{}`", t.text))) }
    }

    fn number(&mut self) -> Result<u64, ParseError> {
        let negative = self.take("-");
        let t = self.word()?;
        let n = number(t.text).ok_or_else(|| fault(t, format!("`{}` is no number", t.text)))?;
        Ok(if negative { n.wrapping_neg() } else { n })
    }

    /// An array of a body, behind those that the space holds already.
    fn array_in(
        &mut self,
        body: &mut Body<'a>,
        held: impl for<'b> FnOnce(&'b mut Body<'a>) -> &'b mut u64,
    ) -> Result<(), ParseError> {
        let (name, align, bytes) = self.array()?;
        let end = held(body);
        let at = end.next_multiple_of(align);
        *end = at + bytes;
        body.symbols.insert(name, at);
        self.expect(";")
    }

    /// `.align 16 .b8 name[100];` without the space before it: name, alignment, bytes.
    fn array(&mut self) -> Result<(&'a str, u64, u64), ParseError> {
        let (mut align, mut size) = (1, 1);
        loop {
            let t = self.word()?;
            match t.text {
                ".align" => align = self.number()?.clamp(1, 1 << 20),
                ".ptr" | ".global" => {}
                _ if t.text.starts_with('.') => {
                    size = type_bytes(t.text).ok_or_else(|| fault(t, format!("type `{}` is not known", t.text)))?;
                }
                name => {
                    let mut count = 1;
                    if self.take("[") {
                        count = if self.peek() == "]" { 0 } else { self.number()? };
                        self.expect("]")?;
                    }
                    let bytes = size.checked_mul(count).filter(|&b| b < 1 << 32);
                    let bytes = bytes.ok_or_else(|| fault(t, format!("`{name}` is too large")))?;
                    return Ok((name, align.max(size), bytes));
                }
            }
        }
    }

    fn dynamic_shared(&mut self) -> Result<(), ParseError> {
        let (name, align, _) = self.array()?;
        self.dynamic.push((name, align));
        self.expect(";")
    }

    fn kernel(&mut self) -> Result<Kernel, ParseError> {
        let name = self.word()?.text.to_owned();
        let mut body = Body { scopes: vec![Scope::default()], shared: SHARED_BEGIN, ..Body::default() };
        let (mut params, mut end) = (Vec::new(), 0u64);
        if self.take("(") {
            while !self.take(")") {
                self.take(",");
                self.expect(".param")?;
                let (name, align, bytes) = self.array()?;
                let offset = end.next_multiple_of(align);
                end = offset + bytes;
                body.symbols.insert(name, offset);
                params.push(Param { bytes: bytes as usize, offset: offset as usize });
            }
        }
        let mut threads = None;
        loop {
            let t = self.word()?;
            match t.text {
                "{" => break,
                ".reqntid" => {
                    let mut n = [1; 3];
                    for (d, n) in n.iter_mut().enumerate() {
                        if d == 0 || self.take(",") {
                            *n = self.number()? as u32;
                        }
                    }
                    threads = Some(n);
                }
                ".minnctapersm" | ".maxnreg" => drop(self.number()?),
                ".maxntid" => {
                    self.number()?;
                    while self.take(",") {
                        self.number()?;
                    }
                }
                other => return Err(fault(t, format!("`{other}` of a kernel is not known"))),
            }
        }
        self.statements(&mut body)?;
        let mut code = body.code;
        for instr in &mut code {
            if let Op::Branch(label) = &mut instr.op {
                let (at, t) = body.labels[*label];
                *label = at.ok_or_else(|| fault(t, format!("there is no label `{}`", t.text)))?;
            }
        }
        code.push(Instr { guard: None, op: Op::Return, line: 0 });
        let (shared, local) = (body.shared.next_multiple_of(body.dynamic.max(1)), body.local);
        Ok(Kernel { name, params, threads, shared, local, registers: body.registers, code })
    }

    /// What is between braces, up to the last one.
    fn statements(&mut self, body: &mut Body<'a>) -> Result<(), ParseError> {
        loop {
            let t = self.word()?;
            match t.text {
                "{" => body.scopes.push(Scope::default()),
                "}" => {
                    body.scopes.pop();
                    if body.scopes.is_empty() {
                        return Ok(());
                    }
                }
                ";" => {}
                ".pragma" => while self.word()?.text != ";" {},
                ".reg" => self.registers(body)?,
                ".shared" => self.array_in(body, |b| &mut b.shared)?,
                ".local" => self.array_in(body, |b| &mut b.local)?,
                "@" => {
                    let negated = self.take("!");
                    let t = self.word()?;
                    let Operand::Src(Src::Reg(r)) = self.named(body, t)? else {
                        return Err(fault(t, format!("`{}` is no predicate", t.text)));
                    };
                    let opcode = self.word()?;
                    self.instruction(body, opcode, Some((r, negated)))?;
                }
                _ if self.peek() == ":" => {
                    self.at += 1;
                    let label = body.label(t);
                    body.labels[label].0 = Some(body.code.len());
                }
                _ => self.instruction(body, t, None)?,
            }
        }
    }

    fn registers(&mut self, body: &mut Body<'a>) -> Result<(), ParseError> {
        let ty = self.word()?;
        type_bytes(ty.text).ok_or_else(|| fault(ty, format!("type `{}` is not known", ty.text)))?;
        loop {
            let name = self.word()?.text;
            if self.take("<") {
                for n in 0..self.number()?.min(1 << 20) {
                    body.register(format!("{name}{n}"));
                }
                self.expect(">")?;
            } else {
                body.register(name.to_owned());
            }
            if self.take(";") {
                return Ok(());
            }
            self.expect(",")?;
        }
    }

    fn instruction(
        &mut self,
        body: &mut Body<'a>,
        opcode: Token<'a>,
        guard: Option<(Reg, bool)>,
    ) -> Result<(), ParseError> {
        let mut operands = Vec::new();
        let is_branch = opcode.text == "bra" || opcode.text == "bra.uni";
        while !self.take(";") {
            if !operands.is_empty() && !self.take(",") {
                self.expect("|")?;
            }
            operands.push(match is_branch {
                true => {
                    let t = self.word()?;
                    Operand::Label(body.label(t))
                }
                false => self.operand(body)?,
            });
        }
        let op = decode(opcode.text, &operands).map_err(|what| fault(opcode, format!("`{}`: {what}", opcode.text)))?;
        body.code.push(Instr { guard, op, line: opcode.line });
        Ok(())
    }

    fn operand(&mut self, body: &mut Body<'a>) -> Result<Operand, ParseError> {
        let t = self.word()?;
        match t.text {
            "{" => {
                let mut list = Vec::new();
                while !self.take("}") {
                    self.take(",");
                    list.push(self.operand(body)?);
                }
                Ok(Operand::List(list))
            }
            "[" => {
                let base = self.source(body)?;
                let mut offset = 0i64;
                while self.take("+") {
                    offset = offset.wrapping_add(self.number()? as i64);
                }
                let mut inside = Vec::new();
                while self.take(",") {
                    inside.push(self.operand(body)?);
                }
                self.expect("]")?;
                let at = Address { base, offset };
                Ok(if inside.is_empty() { Operand::Address(at) } else { Operand::Tensor(base, inside) })
            }
            "-" => Ok(Operand::Src(Src::Bits(self.number()?.wrapping_neg()))),
            "!" => Err(fault(t, "a negated operand is not known".to_owned())),
            "_" => Ok(Operand::Sink),
            _ => self.named(body, t),
        }
    }

    fn source(&mut self, body: &mut Body<'a>) -> Result<Src, ParseError> {
        let t = self.word()?;
        match self.named(body, t)? {
            Operand::Src(s) => Ok(s),
            _ => Err(fault(t, format!("`{}` is no address", t.text))),
        }
    }

    /// A register, a special one, an array's offset or a number.
    fn named(&mut self, body: &mut Body<'a>, t: Token<'a>) -> Result<Operand, ParseError> {
        if let Some(&r) = body.scopes.iter().rev().find_map(|s| s.registers.get(t.text)) {
            return Ok(Operand::Src(Src::Reg(r)));
        }
        if let Some(s) = special(t.text) {
            return Ok(Operand::Special(s));
        }
        let mut symbol = body.symbols.get(t.text).copied();
        if let Some(&(_, align)) = self.dynamic.iter().find(|d| d.0 == t.text) {
            body.dynamic = body.dynamic.max(align);
            symbol = Some(body.shared.next_multiple_of(align));
        }
        let bits = symbol.or_else(|| number(t.text));
        bits.map(|n| Operand::Src(Src::Bits(n))).ok_or_else(|| fault(t, format!("`{}` is not declared", t.text)))
    }
}

impl<'a> Body<'a> {
    fn register(&mut self, name: String) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.registers.insert(name, self.registers as Reg);
            self.registers += 1;
        }
    }

    /// The number of a label of these braces or, where they are known there, of those around.
    fn label(&mut self, t: Token<'a>) -> usize {
        let known = self.scopes.iter().rev().find_map(|s| s.labels.get(t.text)).copied();
        known.unwrap_or_else(|| {
            self.labels.push((None, t));
            let n = self.labels.len() - 1;
            if let Some(scope) = self.scopes.last_mut() {
                scope.labels.insert(t.text, n);
            }
            n
        })
    }
}

/// Decimal, hexadecimal, or the bits of a float (`0f3F800000`, `0d..`).
fn number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches('U');
    if let Some(hex) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0d")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}

/// Bytes of an element of a type; a predicate has one.
fn type_bytes(name: &str) -> Option<u64> {
    match name {
        ".pred" => Some(1),
        _ => Some(super::alu::Ty::parse(name.strip_prefix('.')?)?.bits as u64 / 8),
    }
}

fn special(name: &str) -> Option<Special> {
    let (what, axis) = match name.rsplit_once('.') {
        Some((what, "x")) => (what, 0),
        Some((what, "y")) => (what, 1),
        Some((what, "z")) => (what, 2),
        _ => (name, 0),
    };
    match what {
        "%tid" => Some(Special::Thread(axis)),
        "%ntid" => Some(Special::Threads(axis)),
        "%ctaid" => Some(Special::Block(axis)),
        "%nctaid" => Some(Special::Blocks(axis)),
        "%laneid" => Some(Special::Lane),
        "%warpid" => Some(Special::Warp),
        _ => None,
    }
}
