//! Opcodes and operands as instructions.

use super::alu::{self, Kind, Ty};
use super::convert::{conversion, tf32, two_halves};
use super::{Address, Async, Compute, Factor, Group, Load, Op, Pairing, Reg, Space, Special, Src, Warp};

/// An operand, its names resolved.
#[derive(Clone, Debug)]
pub(super) enum Operand {
    Src(Src),
    Special(Special),
    Address(Address),
    /// A map of a tensor, and a position.
    Tensor(Src, Vec<Operand>),
    List(Vec<Operand>),
    Label(usize),
    /// `_`
    Sink,
}

/// The instruction of an opcode and its operands; what is wrong with them if there is none.
pub(super) fn decode(opcode: &str, operands: &[Operand]) -> Result<Op, String> {
    let parts: Vec<&str> = opcode.split('.').collect();
    let o = Operands(operands);
    let name = parts[0];
    match name {
        "bra" => match operands {
            [Operand::Label(label)] => Ok(Op::Branch(*label)),
            _ => Err("a label was expected".to_owned()),
        },
        "ret" | "exit" => Ok(Op::Return),
        "bar" | "barrier" if parts.contains(&"sync") && !parts.contains(&"warp") => match operands {
            [Operand::Src(Src::Bits(0))] => Ok(Op::Barrier),
            _ => Err("only barrier 0 of all threads is known".to_owned()),
        },
        "bar" if parts.contains(&"warp") => Ok(Op::Warp(Box::new(Warp::Sync))),
        "fence" | "membar" => Ok(Op::Nothing),
        "prefetch" | "prefetchu" => Ok(Op::Nothing),
        "ld" => load(&parts, &o),
        "st" => store(&parts, &o),
        "atom" | "red" => atomic(&parts, &o),
        "cvta" => address_space(&parts, &o),
        "mov" => mov(&parts, &o),
        "cvt" => convert(&parts, &o),
        "setp" => compare(&parts, &o),
        "shfl" => shuffle(&parts, &o),
        "mma" => matrix(&parts, &o),
        "ldmatrix" => load_matrix(&parts, &o),
        "wgmma" => group(&parts, &o),
        "cp" => copy(&parts, &o),
        "mbarrier" => barrier(&parts, &o),
        _ => arithmetic(&parts, &o),
    }
}

/// The operands of an instruction, by their places.
struct Operands<'o>(&'o [Operand]);

impl Operands<'_> {
    fn get(&self, n: usize) -> Result<&Operand, String> {
        self.0.get(n).ok_or_else(|| format!("operand {} is missing", n + 1))
    }

    fn src(&self, n: usize) -> Result<Src, String> {
        match self.get(n)? {
            Operand::Src(s) => Ok(*s),
            _ => Err(format!("operand {} is no register or number", n + 1)),
        }
    }

    fn reg(&self, n: usize) -> Result<Reg, String> {
        self.sink(n)?.ok_or_else(|| format!("operand {} is no register", n + 1))
    }

    fn sink(&self, n: usize) -> Result<Option<Reg>, String> {
        one_reg(self.get(n)?)
    }

    fn address(&self, n: usize) -> Result<Address, String> {
        match self.get(n)? {
            Operand::Address(a) => Ok(*a),
            _ => Err(format!("operand {} is no address", n + 1)),
        }
    }

    /// One operand or a list of them.
    fn list(&self, n: usize) -> Result<&[Operand], String> {
        match self.get(n)? {
            Operand::List(l) => Ok(l),
            one => Ok(std::slice::from_ref(one)),
        }
    }

    fn regs(&self, n: usize) -> Result<Vec<Option<Reg>>, String> {
        self.list(n)?.iter().map(one_reg).collect()
    }

    fn all_regs(&self, n: usize, count: usize) -> Result<Vec<Reg>, String> {
        let found: Vec<Reg> = self.regs(n)?.into_iter().flatten().collect();
        if found.len() == count { Ok(found) } else { Err(format!("operand {} is not {count} registers", n + 1)) }
    }

    fn srcs(&self, n: usize, count: Option<usize>) -> Result<Vec<Src>, String> {
        let found: Vec<Src> =
            self.list(n)?.iter().filter_map(|o| if let Operand::Src(s) = o { Some(*s) } else { None }).collect();
        let enough = found.len() == count.unwrap_or(self.list(n)?.len());
        if enough { Ok(found) } else { Err(format!("operand {} has other parts than it should", n + 1)) }
    }
}

fn one_reg(o: &Operand) -> Result<Option<Reg>, String> {
    match o {
        Operand::Src(Src::Reg(r)) => Ok(Some(*r)),
        Operand::Sink => Ok(None),
        _ => Err("a register was expected".to_owned()),
    }
}

fn parse_type(name: &str) -> Result<Ty, String> {
    Ty::parse(name).ok_or_else(|| format!("type `{name}` is not known"))
}

fn last_type(parts: &[&str]) -> Result<Ty, String> {
    parse_type(parts.last().copied().unwrap_or_default())
}

/// The last type of an opcode, and if it is two numbers of that in one register (`f16x2`).
fn last_type_of_pair(parts: &[&str]) -> Result<(Ty, bool), String> {
    let last = parts.last().copied().unwrap_or_default();
    let one = last.strip_suffix("x2");
    let ty = parse_type(one.unwrap_or(last))?;
    if one.is_some() && ty.bits != 16 {
        return Err("only pairs of 16 bits are known".to_owned());
    }
    Ok((ty, one.is_some()))
}

fn compare(parts: &[&str], o: &Operands) -> Result<Op, String> {
    let (ty, pair) = last_type_of_pair(parts)?;
    let f = match &parts[1..parts.len() - 1] {
        [comparison] => alu::comparison(comparison, ty),
        _ => None,
    };
    let f = f.ok_or("this comparison is not known")?;
    // Of a pair, `low|high` is two operands.
    let from = 1 + usize::from(pair);
    let f = Compute::Two(f, o.src(from)?, o.src(from + 1)?);
    Ok(if pair { Op::OfHalves([o.sink(0)?, o.sink(1)?], f) } else { Op::Compute(o.reg(0)?, f) })
}

fn arithmetic(parts: &[&str], o: &Operands) -> Result<Op, String> {
    let name = parts[0];
    let (ty, pair) = last_type_of_pair(parts)?;
    let mods = parts.get(1..parts.len() - 1).unwrap_or_default();
    if mods.iter().any(|m| matches!(*m, "ftz" | "sat" | "approx" | "full" | "rz" | "rm" | "rp" | "cc")) {
        return Err("this rounding is not known".to_owned());
    }
    let unknown = || "this instruction is not interpreted".to_owned();
    let f = match o.0.len() {
        2 => Compute::One(alu::one(name, ty).ok_or_else(unknown)?, o.src(1)?),
        3 => Compute::Two(alu::two(name, mods, ty).ok_or_else(unknown)?, o.src(1)?, o.src(2)?),
        4 => Compute::Three(alu::three(name, mods, ty).ok_or_else(unknown)?, o.src(1)?, o.src(2)?, o.src(3)?),
        5 => {
            let from = [o.src(1)?, o.src(2)?, o.src(3)?, o.src(4)?];
            Compute::Four(alu::four(name, ty).ok_or_else(unknown)?, from)
        }
        _ => return Err(unknown()),
    };
    let to = o.reg(0)?;
    Ok(if pair { Op::Halves(to, f) } else { Op::Compute(to, f) })
}

fn mov(parts: &[&str], o: &Operands) -> Result<Op, String> {
    let ty = last_type(parts)?;
    match (o.get(0)?, o.get(1)?) {
        (Operand::List(to), _) => {
            let to = to.iter().map(one_reg).collect::<Result<Box<_>, _>>()?;
            let bits = ty.bits / to.len().max(1) as u32;
            Ok(Op::Unpack(to, bits, o.src(1)?))
        }
        (_, Operand::List(_)) => {
            let from = o.srcs(1, None)?.into_boxed_slice();
            Ok(Op::Pack(o.reg(0)?, ty.bits / from.len().max(1) as u32, from))
        }
        (_, Operand::Special(s)) => Ok(Op::Special(o.reg(0)?, *s)),
        _ => arithmetic(parts, o),
    }
}

fn convert(parts: &[&str], o: &Operands) -> Result<Op, String> {
    let [mods @ .., to, from] = &parts[1..] else { return Err("two types were expected".to_owned()) };
    let from = parse_type(from)?;
    let single = from == Ty { kind: Kind::Float, bits: 32 };
    match *to {
        "tf32" if single && mods == ["rna"] => Ok(Op::Compute(o.reg(0)?, Compute::One(tf32, o.src(1)?))),
        "bf16x2" | "f16x2" if single && mods == ["rn"] => {
            let kind = if *to == "bf16x2" { Kind::BFloat } else { Kind::Float };
            Ok(Op::Compute(o.reg(0)?, Compute::Two(two_halves(kind), o.src(1)?, o.src(2)?)))
        }
        to => {
            let f = conversion(mods, parse_type(to)?, from).ok_or("this conversion is not known")?;
            Ok(Op::Compute(o.reg(0)?, Compute::One(f, o.src(1)?)))
        }
    }
}

fn space(parts: &[&str]) -> Space {
    let of = |p: &&str| match p.split("::").next().unwrap_or_default() {
        "global" => Some(Space::Global),
        "shared" => Some(Space::Shared),
        "local" => Some(Space::Local),
        "param" => Some(Space::Param),
        _ => None,
    };
    parts.iter().find_map(of).unwrap_or(Space::Generic)
}

fn load(parts: &[&str], o: &Operands) -> Result<Op, String> {
    let ty = last_type(parts)?;
    let to = o.regs(0)?.into_boxed_slice();
    let (bytes, signed) = (u64::from(ty.bits / 8), ty.kind == Kind::Signed);
    Ok(Op::Load(Load { space: space(parts), bytes, signed, to, at: o.address(1)? }))
}

fn store(parts: &[&str], o: &Operands) -> Result<Op, String> {
    let bytes = u64::from(last_type(parts)?.bits / 8);
    Ok(Op::Store { space: space(parts), bytes, from: o.srcs(1, None)?.into_boxed_slice(), at: o.address(0)? })
}

fn atomic(parts: &[&str], o: &Operands) -> Result<Op, String> {
    let ty = last_type(parts)?;
    let known = ["add", "min", "max", "and", "or", "xor"];
    let name = parts.iter().find(|p| known.contains(p)).ok_or("this atomic is not known")?;
    let f = alu::two(name, &[], ty).ok_or("this atomic is not known")?;
    let returns = usize::from(parts[0] == "atom");
    let to = if returns == 1 { o.sink(0)? } else { None };
    let (at, value) = (o.address(returns)?, o.src(returns + 1)?);
    Ok(Op::Atomic { space: space(parts), bytes: u64::from(ty.bits / 8), f, to, at, value })
}

fn address_space(parts: &[&str], o: &Operands) -> Result<Op, String> {
    let (space, to, from) = (space(parts), o.reg(0)?, o.src(1)?);
    Ok(if parts.contains(&"to") { Op::FromGeneric(space, to, from) } else { Op::ToGeneric(space, to, from) })
}

fn shuffle(parts: &[&str], o: &Operands) -> Result<Op, String> {
    let pairing = match parts {
        ["shfl", "sync", "up", "b32"] => Pairing::Up,
        ["shfl", "sync", "down", "b32"] => Pairing::Down,
        ["shfl", "sync", "bfly", "b32"] => Pairing::Butterfly,
        ["shfl", "sync", "idx", "b32"] => Pairing::Index,
        _ => return Err("this shuffle is not known".to_owned()),
    };
    // `to|inside` is two operands.
    let second = usize::from(o.0.len() == 6);
    let inside = if second == 1 { Some(o.reg(1)?) } else { None };
    if !matches!(o.src(second + 4)?, Src::Bits(mask) if mask as u32 == u32::MAX) {
        return Err("only shuffles of all lanes are known".to_owned());
    }
    let (value, by, clamp) = (o.src(second + 1)?, o.src(second + 2)?, o.src(second + 3)?);
    Ok(Op::Warp(Box::new(Warp::Shuffle { pairing, to: o.reg(0)?, inside, value, by, clamp })))
}

fn matrix(parts: &[&str], o: &Operands) -> Result<Op, String> {
    let (factor, [a, b]) = match parts {
        ["mma", "sync", "aligned", "m16n8k16", "row", "col", "f32", "bf16", "bf16", "f32"] => (Factor::BF16, [4, 2]),
        ["mma", "sync", "aligned", "m16n8k16", "row", "col", "f32", "f16", "f16", "f32"] => (Factor::F16, [4, 2]),
        ["mma", "sync", "aligned", "m16n8k8", "row", "col", "f32", "tf32", "tf32", "f32"] => (Factor::TF32, [4, 2]),
        _ => return Err("this matrix instruction is not known".to_owned()),
    };
    let (a, b) = (o.srcs(1, Some(a))?, o.srcs(2, Some(b))?);
    Ok(Op::Warp(Box::new(Warp::Mma { factor, d: o.all_regs(0, 4)?, a, b, c: o.srcs(3, Some(4))? })))
}

fn load_matrix(parts: &[&str], o: &Operands) -> Result<Op, String> {
    let count = match parts.iter().find(|p| p.starts_with('x')) {
        Some(&"x1") => 1,
        Some(&"x2") => 2,
        Some(&"x4") => 4,
        _ => return Err("the number of matrices is not known".to_owned()),
    };
    if !parts.contains(&"m8n8") || parts.last() != Some(&"b16") {
        return Err("these matrices are not known".to_owned());
    }
    let (to, transposed) = (o.all_regs(0, count)?, parts.contains(&"trans"));
    Ok(Op::Warp(Box::new(Warp::LoadMatrix { transposed, to, at: o.address(1)? })))
}

fn group(parts: &[&str], o: &Operands) -> Result<Op, String> {
    let number = |n: usize| match o.src(n)? {
        Src::Bits(n) => Ok(n),
        Src::Reg(_) => Err(format!("operand {} is no number", n + 1)),
    };
    let what = match parts.get(1).copied() {
        Some("fence") => Group::Fence,
        Some("commit_group") => Group::Commit,
        Some("wait_group") => Group::Wait(number(0)? as usize),
        Some("mma_async") => {
            let (shape, factor) = match parts {
                [_, _, "sync", "aligned", shape, "f32", "bf16", "bf16"] => (shape, Factor::BF16),
                [_, _, "sync", "aligned", shape, "f32", "f16", "f16"] => (shape, Factor::F16),
                _ => return Err("this matrix instruction is not known".to_owned()),
            };
            let columns = shape.strip_prefix("m64n").and_then(|s| s.strip_suffix("k16")?.parse::<usize>().ok());
            let columns = columns.filter(|c| c % 8 == 0 && (8..=256).contains(c)).ok_or("this shape is not known")?;
            if [number(4)?, number(5)?] != [1, 1] {
                return Err("negated factors are not known".to_owned());
            }
            let transposed = [number(6)? != 0, number(7)? != 0];
            let (a, b, adds) = (o.src(1)?, o.src(2)?, o.src(3)?);
            Group::Mma { columns, factor, d: o.all_regs(0, columns / 2)?, a, b, adds, transposed }
        }
        _ => return Err("this instruction is not interpreted".to_owned()),
    };
    Ok(Op::Group(Box::new(what)))
}

fn copy(parts: &[&str], o: &Operands) -> Result<Op, String> {
    let what = match parts {
        ["cp", "async", "commit_group"] => Async::Commit,
        ["cp", "async", "wait_all"] => Async::Wait(0),
        ["cp", "async", "wait_group"] => match o.src(0)? {
            Src::Bits(n) => Async::Wait(n as usize),
            Src::Reg(_) => return Err("a number was expected".to_owned()),
        },
        ["cp", "async", "ca" | "cg", "shared" | "shared::cta", "global", ..] => {
            let Src::Bits(bytes) = o.src(2)? else { return Err("the size is no number".to_owned()) };
            let fits = if parts[2] == "cg" { bytes == 16 } else { matches!(bytes, 4 | 8 | 16) };
            if !fits {
                return Err(format!("it does not copy {bytes} bytes"));
            }
            let given = if o.0.len() > 3 { Some(o.src(3)?) } else { None };
            Async::Copy { bytes, to: o.address(0)?, from: o.address(1)?, given }
        }
        [
            "cp",
            "async",
            "bulk",
            "tensor",
            _,
            "shared::cluster" | "shared::cta",
            "global",
            "mbarrier::complete_tx::bytes",
        ] => {
            let Operand::Tensor(map, rest) = o.get(1)? else { return Err("operand 2 is no tensor".to_owned()) };
            let at = Operands(rest).srcs(0, None)?;
            Async::Box { to: o.address(0)?, map: *map, at, barrier: o.address(2)? }
        }
        _ => return Err("this copy is not known".to_owned()),
    };
    Ok(Op::Async(Box::new(what)))
}

fn barrier(parts: &[&str], o: &Operands) -> Result<Op, String> {
    let what = match parts {
        ["mbarrier", "init", ..] => Async::Init { at: o.address(0)?, count: o.src(1)? },
        ["mbarrier", "arrive", "expect_tx", ..] => Async::Expect { at: o.address(1)?, bytes: o.src(2)? },
        ["mbarrier", "try_wait", "parity", ..] => {
            Async::TryWait { to: o.reg(0)?, at: o.address(1)?, parity: o.src(2)? }
        }
        _ => return Err("this instruction is not interpreted".to_owned()),
    };
    Ok(Op::Async(Box::new(what)))
}
