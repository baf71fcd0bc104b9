//! Index expressions compiled to register code that evaluates a strip of points at a time.
//!
//! A strip is up to [`LANES`] points. Every register holds one value a lane and a mask of the lanes that have none
//! (overflow, bad table index); a `Select` drops the mask of the arm that it does not choose, so laziness
//! costs no branches. Only where a result lane is masked is the expression evaluated again, one point at a time, for
//! the precise fault.

use crate::abi::{Ix, IxOp};
use crate::eval::{Env, IxFault, divided, eval};
use std::collections::HashMap;

/// Points of a strip.
pub(crate) const LANES: usize = 64;

type Reg = u32;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Op {
    code: Code,
    a: Reg,
    b: Reg,
    c: Reg,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Code {
    Const(i64),
    Param(u32),
    Table(u32),
    Add,
    Sub,
    Mul,
    FloorDiv,
    Mod,
    Min,
    Max,
    Lt,
    Le,
    Eq,
    And,
    Or,
    Not,
    Select,
    Search(u32),
}

/// Several expressions over the same index variables, with common parts computed once.
pub(crate) struct Program {
    n_args: usize,
    /// Operation `i` writes register `n_args + i` and reads lower registers only.
    ops: Vec<Op>,
    /// Operations that no index variable reaches: run once a walk.
    uniform: Vec<u32>,
    varying: Vec<u32>,
    roots: Vec<(Ix, Reg)>,
}

/// The registers of a [`Program`]; its first `n_args` are the index variables.
#[derive(Default)]
pub(crate) struct Regs {
    lanes: Vec<[i64; LANES]>,
    masked: Vec<u64>,
}

impl Program {
    /// Compiles validated expressions over `n_args` index variables.
    pub(crate) fn new(roots: &[&Ix], n_args: usize) -> Program {
        let mut build = Build { n_args, ops: Vec::new(), varies: Vec::new(), known: HashMap::new() };
        let roots = roots.iter().map(|&ix| (ix.clone(), build.reg(ix))).collect();
        let Build { ops, varies, .. } = build;
        let (varying, uniform) = (0..ops.len() as u32).partition(|&i| varies[i as usize]);
        Program { n_args, ops, uniform, varying, roots }
    }

    /// Makes `regs` ready for this program: sizes them and runs what does not vary.
    pub(crate) fn prepare(&self, regs: &mut Regs, env: Env<'_>) {
        let n = self.n_args + self.ops.len();
        if regs.lanes.len() < n {
            regs.lanes.resize(n, [0; LANES]);
            regs.masked.resize(n, 0);
        }
        regs.masked[..self.n_args].fill(0);
        self.run_ops(&self.uniform, regs, LANES, env);
    }

    /// Evaluates lanes `0..len`.
    pub(crate) fn run(&self, regs: &mut Regs, len: usize, env: Env<'_>) {
        self.run_ops(&self.varying, regs, len, env);
    }

    /// Results of expression `root`, after [`Program::run`].
    ///
    /// # Errors
    /// The fault of the first lane that has no value.
    pub(crate) fn root<'r>(&self, root: usize, regs: &'r Regs, len: usize, env: Env<'_>) -> Result<&'r [i64], IxFault> {
        let (ix, reg) = &self.roots[root];
        let live = if len == LANES { !0 } else { (1u64 << len) - 1 };
        let masked = regs.masked[*reg as usize] & live;
        if masked != 0 {
            let lane = masked.trailing_zeros() as usize;
            let args: Vec<i64> = regs.lanes[..self.n_args].iter().map(|a| a[lane]).collect();
            // The scalar evaluator agrees with the strip; `Unbound` is unreachable for a validated expression.
            return Err(eval(ix, env, &args).err().unwrap_or(IxFault::Unbound));
        }
        Ok(&regs.lanes[*reg as usize][..len])
    }

    fn run_ops(&self, which: &[u32], regs: &mut Regs, len: usize, env: Env<'_>) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") {
            // SAFETY: the features that it is compiled for have just been found.
            return unsafe { self.run_ops_avx2(which, regs, len, env) };
        }
        self.run_ops_any(which, regs, len, env);
    }

    /// [`Program::run_ops_any`], compiled for wider vectors.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn run_ops_avx2(&self, which: &[u32], regs: &mut Regs, len: usize, env: Env<'_>) {
        self.run_ops_any(which, regs, len, env);
    }

    #[inline(always)]
    fn run_ops_any(&self, which: &[u32], regs: &mut Regs, len: usize, env: Env<'_>) {
        for &i in which {
            run_op(self.ops[i as usize], self.n_args + i as usize, regs, len, env);
        }
    }
}

impl Regs {
    /// Lanes of index variable `arg`.
    pub(crate) fn arg_mut(&mut self, arg: usize) -> &mut [i64; LANES] {
        &mut self.lanes[arg]
    }

    /// Lanes of index variable `arg`.
    pub(crate) fn arg(&self, arg: usize) -> &[i64; LANES] {
        &self.lanes[arg]
    }
}

struct Build {
    n_args: usize,
    ops: Vec<Op>,
    varies: Vec<bool>,
    known: HashMap<Op, Reg>,
}

impl Build {
    fn reg(&mut self, ix: &Ix) -> Reg {
        let code = match ix.op() {
            IxOp::Arg(a) => return a,
            IxOp::Const(v) => Code::Const(v),
            IxOp::Param(p) => Code::Param(p),
            IxOp::Table(t) => Code::Table(t),
            IxOp::Add => Code::Add,
            IxOp::Sub => Code::Sub,
            IxOp::Mul => Code::Mul,
            IxOp::FloorDiv => Code::FloorDiv,
            IxOp::Mod => Code::Mod,
            IxOp::Min => Code::Min,
            IxOp::Max => Code::Max,
            IxOp::Lt => Code::Lt,
            IxOp::Le => Code::Le,
            IxOp::Eq => Code::Eq,
            IxOp::And => Code::And,
            IxOp::Or => Code::Or,
            IxOp::Not => Code::Not,
            IxOp::Select => Code::Select,
            IxOp::Search(t) => Code::Search(t),
        };
        let mut operands = [0; 3];
        let mut varies = false;
        for (slot, operand) in operands.iter_mut().zip(ix.operands()) {
            *slot = self.reg(operand);
            let i = *slot as usize;
            varies |= i < self.n_args || self.varies[i - self.n_args];
        }
        let [a, b, c] = operands;
        let op = Op { code, a, b, c };
        if let Some(&reg) = self.known.get(&op) {
            return reg;
        }
        let reg = (self.n_args + self.ops.len()) as Reg;
        self.ops.push(op);
        self.varies.push(varies);
        self.known.insert(op, reg);
        reg
    }
}

/// The mask of the lanes where `bad` holds.
#[inline(always)]
fn mask(len: usize, bad: impl Fn(usize) -> bool) -> u64 {
    (0..len).fold(0, |m, i| m | (u64::from(bad(i)) << i))
}

/// Magnitude bits of all lanes or-ed together.
#[inline(always)]
fn magnitude(lanes: &[i64]) -> u64 {
    lanes.iter().fold(0, |m, &x| m | (x ^ (x >> 63)) as u64)
}

#[inline(always)]
fn run_op(op: Op, dst: usize, regs: &mut Regs, len: usize, env: Env<'_>) {
    let (src, out) = regs.lanes.split_at_mut(dst);
    let out = &mut out[0][..len];
    let lanes = |r: Reg| &src[r as usize][..len];
    let masked = |r: Reg| regs.masked[r as usize];
    // A macro, so that each operation gets a loop of its own to vectorise.
    macro_rules! zip {
        ($f:expr) => {{
            for ((o, &x), &y) in out.iter_mut().zip(lanes(op.a)).zip(lanes(op.b)) {
                *o = $f(x, y);
            }
            masked(op.a) | masked(op.b)
        }};
    }
    let result = match op.code {
        Code::Const(v) => {
            out.fill(v);
            0
        }
        Code::Param(p) => match env.params.get(p as usize) {
            Some(&v) => {
                out.fill(v);
                0
            }
            None => !0,
        },
        Code::Table(t) => {
            let index = lanes(op.a);
            let missing = match env.tables.get(t as usize) {
                Some(crate::eval::TableData::I32(v)) => gather(v, index, out),
                Some(crate::eval::TableData::I64(v)) => gather(v, index, out),
                None => !0,
            };
            missing | masked(op.a)
        }
        Code::Add => {
            let m = zip!(i64::wrapping_add);
            let (a, b) = (lanes(op.a), lanes(op.b));
            let over = |i: usize| ((a[i] ^ out[i]) & (b[i] ^ out[i])) < 0;
            m | if (0..len).fold(false, |any, i| any | over(i)) { mask(len, over) } else { 0 }
        }
        Code::Sub => {
            let m = zip!(i64::wrapping_sub);
            let (a, b) = (lanes(op.a), lanes(op.b));
            let over = |i: usize| ((a[i] ^ b[i]) & (a[i] ^ out[i])) < 0;
            m | if (0..len).fold(false, |any, i| any | over(i)) { mask(len, over) } else { 0 }
        }
        Code::Mul => {
            let m = zip!(i64::wrapping_mul);
            let (a, b) = (lanes(op.a), lanes(op.b));
            // Two factors below 2^31 cannot overflow.
            let safe = (magnitude(a) | magnitude(b)) < 1 << 31;
            m | if safe { 0 } else { mask(len, |i| a[i].checked_mul(b[i]).is_none()) }
        }
        Code::FloorDiv | Code::Mod => {
            let (a, b) = (lanes(op.a), lanes(op.b));
            let first = b.first().copied().unwrap_or(1);
            let same = b.iter().fold(true, |same, &y| same & (y == first));
            if same && first > 0 && first.count_ones() == 1 {
                // Arithmetic shift and mask round down, as the floored division does.
                let (shift, low) = (first.trailing_zeros(), first - 1);
                let div = op.code == Code::FloorDiv;
                out.iter_mut().zip(a).for_each(|(o, &x)| *o = if div { x >> shift } else { x & low });
                masked(op.a) | masked(op.b)
            } else if a.iter().chain(b).fold(0, |m, &x| m | x as u64) >> 32 == 0 && !b.contains(&0) {
                // No lane is negative or beyond 32 bits, for which division is several times faster.
                if op.code == Code::FloorDiv {
                    zip!(|x: i64, y: i64| i64::from(x as u32 / (y as u32).max(1)))
                } else {
                    zip!(|x: i64, y: i64| i64::from(x as u32 % (y as u32).max(1)))
                }
            } else {
                let m = if op.code == Code::FloorDiv {
                    zip!(|x: i64, y: i64| divided(x, y).map_or(0, |d| d.0))
                } else {
                    zip!(|x: i64, y: i64| divided(x, y).map_or(0, |d| d.1))
                };
                m | mask(len, |i| divided(a[i], b[i]).is_none())
            }
        }
        Code::Min => zip!(i64::min),
        Code::Max => zip!(i64::max),
        Code::Lt => zip!(|x: i64, y: i64| i64::from(x < y)),
        Code::Le => zip!(|x: i64, y: i64| i64::from(x <= y)),
        Code::Eq => zip!(|x: i64, y: i64| i64::from(x == y)),
        Code::And => {
            let _ = zip!(|x: i64, y: i64| i64::from((x != 0) & (y != 0)));
            masked(op.a) | lazy(masked(op.b), lanes(op.a), true)
        }
        Code::Or => {
            let _ = zip!(|x: i64, y: i64| i64::from((x != 0) | (y != 0)));
            masked(op.a) | lazy(masked(op.b), lanes(op.a), false)
        }
        Code::Not => {
            out.iter_mut().zip(lanes(op.a)).for_each(|(o, &x)| *o = i64::from(x == 0));
            masked(op.a)
        }
        Code::Select => {
            let (c, a, b) = (lanes(op.a), lanes(op.b), lanes(op.c));
            for i in 0..len {
                out[i] = if c[i] != 0 { a[i] } else { b[i] };
            }
            masked(op.a) | lazy(masked(op.b), c, true) | lazy(masked(op.c), c, false)
        }
        Code::Search(t) => {
            let (base, rows, value) = (lanes(op.a), lanes(op.b), lanes(op.c));
            // Where an operand has no value the search would take long for nothing.
            let absent = masked(op.a) | masked(op.b) | masked(op.c);
            let mut missing = absent;
            let mut last: Option<Found> = None;
            for (i, o) in out.iter_mut().enumerate() {
                let table = env.tables.get(t as usize).filter(|_| absent >> i & 1 == 0);
                // Positions in a strip are neighbours, mostly of one row.
                if let Some(f) = last.as_ref().filter(|f| f.holds(base[i], rows[i], value[i])) {
                    *o = f.row;
                    continue;
                }
                match table.map(|table| crate::eval::search(table, base[i], rows[i], value[i])) {
                    Some(Ok(x)) => {
                        *o = x;
                        last = table.and_then(|table| Found::new(table, base[i], rows[i], x));
                    }
                    _ => {
                        *o = 0;
                        missing |= 1 << i;
                    }
                }
            }
            missing
        }
    };
    regs.masked[dst] = result;
}

/// The row that a search has found, and the positions that are in it.
struct Found {
    base: i64,
    rows: i64,
    row: i64,
    first: i64,
    end: i64,
}

impl Found {
    /// Nothing where the row has no end in the table.
    fn new(table: &crate::eval::TableData, base: i64, rows: i64, row: i64) -> Option<Found> {
        let at = usize::try_from(base.checked_add(row)?).ok()?;
        Some(Found { base, rows, row, first: table.get(at)?, end: table.get(at.checked_add(1)?)? })
    }

    /// Whether the same search for `value` finds the same row, in a table whose entries are in order: it halves alike.
    fn holds(&self, base: i64, rows: i64, value: i64) -> bool {
        self.base == base && self.rows == rows && self.first <= value && value < self.end
    }
}

/// Those of `masked` where the truth of `cond` is `when`.
#[inline(always)]
fn lazy(masked: u64, cond: &[i64], when: bool) -> u64 {
    if masked == 0 { 0 } else { masked & mask(cond.len(), |i| (cond[i] != 0) == when) }
}

#[inline(always)]
fn gather<T: Copy + Into<i64>>(table: &[T], index: &[i64], out: &mut [i64]) -> u64 {
    let mut missing = 0;
    for (i, (o, &at)) in out.iter_mut().zip(index).enumerate() {
        match usize::try_from(at).ok().and_then(|at| table.get(at)) {
            Some(&v) => *o = v.into(),
            None => {
                *o = 0;
                missing |= 1 << i;
            }
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::TableData;

    /// A small generator, so that the test is the same everywhere.
    struct Rng(u64);
    impl Rng {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) % n
        }
        fn ix(&mut self, depth: u32) -> Ix {
            let mut sub = || Box::new(self.ix(depth - 1));
            if depth == 0 {
                return match self.below(4) {
                    0 => Ix::Const([-3, 0, 1, 8, 1 << 40, i64::MAX][self.below(6) as usize]),
                    1 => Ix::Param(self.below(2) as u32),
                    _ => Ix::Arg(self.below(2) as u32),
                };
            }
            let (a, b, c) = (sub(), sub(), sub());
            match self.below(16) {
                0 => Ix::Table(self.below(2) as u32, a),
                1 => Ix::Add(a, b),
                2 => Ix::Sub(a, b),
                3 => Ix::Mul(a, b),
                4 => Ix::FloorDiv(a, b),
                5 => Ix::Mod(a, b),
                6 => Ix::Min(a, b),
                7 => Ix::Max(a, b),
                8 => Ix::Lt(a, b),
                9 => Ix::Le(a, b),
                10 => Ix::Eq(a, b),
                11 => Ix::And(a, b),
                12 => Ix::Or(a, b),
                13 => Ix::Not(a),
                14 => Ix::Search(self.below(2) as u32, a, b, c),
                _ => Ix::Select(a, b, c),
            }
        }
    }

    #[test]
    fn strips_agree_with_the_scalar_evaluator() {
        // What is searched is in order, as running sums are.
        let tables = [TableData::I32(vec![0, 0, 2, 3, 5, 5, 8]), TableData::I64(vec![4, 1 << 33])];
        let env = Env { params: &[6, -2], tables: &tables };
        let mut rng = Rng(7);
        let mut regs = Regs::default();
        let (mut ok, mut bad) = (0, 0);
        for round in 0..4000 {
            let ix = rng.ix(round % 5);
            let program = Program::new(&[&ix], 2);
            program.prepare(&mut regs, env);
            for lane in 0..LANES {
                regs.arg_mut(0)[lane] = rng.below(9) as i64 - 1;
                regs.arg_mut(1)[lane] = rng.below(40) as i64;
            }
            let len = 1 + rng.below(LANES as u64) as usize;
            program.run(&mut regs, len, env);
            let want: Result<Vec<i64>, _> =
                (0..len).map(|l| eval(&ix, env, &[regs.arg(0)[l], regs.arg(1)[l]])).collect();
            let got = program.root(0, &regs, len, env).map(<[i64]>::to_vec);
            if want.is_ok() {
                ok += 1
            } else {
                bad += 1
            }
            assert_eq!(got, want, "{ix:?}");
        }
        assert!(ok > 500 && bad > 500, "{ok} {bad}");
    }
}
