//! `compute_inline P`: the expression of an element replaces every read of it.
//!
//! Requires: an elementwise stage (no reduction) that is not an output and not attached. Ensures:
//! the same values; a guarded read guards what it becomes, and so does one of storage padding.

use super::conditions::is_condition;
use super::padded_reads::guard_padded_reads;
use super::tree::{find_stage, rewrite_readers};
use cora_ir::expr::{ExprPool, MAX_VALUE_DEPTH, MAX_VALUE_SIZE};
use cora_ir::loops::{BlockRole, LoopModule, Stmt};
use cora_ir::{BinOp, Diagnostic, Expr, ExprId, Role, TensorId, VarId};
use rustc_hash::FxHashMap;

/// Replaces stage `name` by its expression.
///
/// # Errors
/// `E0401` unknown stage, `E0454` an output, a reduction, a stage that is attached,
/// relaxed or predicated, floats that are compared for equality, or an expression that would be too large.
pub fn compute_inline(m: &mut LoopModule, name: &str) -> Result<(), Diagnostic> {
    let stage = find_stage(m, name)?;
    if m.env.tensors[stage].role != Role::Temp {
        return Err(Diagnostic::new("E0454", format!("`{name}` is an output; it cannot be inlined"))
            .hint("an output is stored; compute what reads it at its loops instead"));
    }
    let of_stage = |s: &Stmt| {
        let mut blocks = Vec::new();
        s.walk(&mut |s| {
            if let Stmt::Block(b) = s {
                blocks.push(b);
            }
        });
        match blocks.as_slice() {
            [b, ..] if blocks.iter().all(|b| b.stage == stage && b.tensor == stage) => Some((*b).clone()),
            _ => None,
        }
    };
    let nests = m.body.iter().enumerate().filter(|(_, s)| s.concerned().may_have(stage));
    let found = nests.into_iter().find_map(|(i, s)| of_stage(s).map(|b| (i, b)));
    let Some((at, block)) = found else {
        return Err(Diagnostic::new(
            "E0454",
            format!("stage `{name}` is attached inside another; it cannot be inlined"),
        )
        .hint(if m.blocks_of(stage).iter().any(|b| matches!(b.role, BlockRole::Update(_))) {
            "it is a reduction, which is computed where it is attached, or in a nest of its own"
        } else {
            "inline it before compute_at or cache steps"
        }));
    };
    if !block.predicate.is_empty() {
        return Err(Diagnostic::new(
            "E0454",
            format!("stage `{name}` has a mask, which its loops were given; it cannot be inlined"),
        )
        .hint("inline it before its own loops are scheduled"));
    }
    if block.role != BlockRole::Compute {
        return Err(Diagnostic::new("E0454", format!("stage `{name}` is a reduction; it cannot be inlined"))
            .hint("compute it at a loop of its consumer instead"));
    }
    let formals: Option<Vec<VarId>> = block.index.iter().map(|&e| m.env.pool.as_var(e)).collect();
    let Some(formals) = formals else {
        return Err(Diagnostic::new("E0454", format!("stage `{name}` is cached; it cannot be inlined"))
            .hint("inline it before cache steps"));
    };
    // A relaxed loop's reads are at positions of their own.
    if m.env.pool.vars_of(block.value).iter().any(|v| !formals.contains(v)) {
        return Err(Diagnostic::new(
            "E0454",
            format!("stage `{name}` fills more than its elements; it cannot be inlined"),
        )
        .note("one of its loops was relaxed")
        .hint("inline it before its own loops are scheduled"));
    }
    if blocks_compare(m, stage) {
        return Err(Diagnostic::new("E0454", format!("`{name}` is compared for equality; it cannot be inlined"))
            .note("an element that is computed again may be rounded otherwise than the one it should equal")
            .hint("compute it at a loop of its consumer instead"));
    }
    let unguarded = m.body.clone();
    guard_padded_reads(m, stage, None);
    let mut body = std::mem::replace(&mut m.body, unguarded);
    body.remove(at);
    let (mut large, mut condition) = (false, false);
    rewrite_readers(&mut m.env.pool, stage, &mut body, &mut |pool, e, is_extent| {
        let new = inline_reads(pool, e, stage, &formals, block.value);
        let (depth, size) = pool.measure(new);
        large |= new != e && (depth > MAX_VALUE_DEPTH || size > MAX_VALUE_SIZE);
        condition |= is_extent && is_condition(pool, new) && !is_condition(pool, e);
        new
    });
    if large {
        return Err(Diagnostic::new("E0454", format!("with `{name}` inlined, an expression would be too large"))
            .note(format!("at most {MAX_VALUE_SIZE} operations, {MAX_VALUE_DEPTH} inside one another"))
            .hint("inline fewer stages; compute this one at a loop of its consumer"));
    }
    if condition {
        return Err(Diagnostic::new("E0454", format!("inlined, `{name}` would make the extent of a loop a choice"))
            .hint("compute it at a loop of its consumer, before the steps that attach what it indexes"));
    }
    m.body = body;
    Ok(())
}

/// Whether floats of the stage are compared for equality with anything but themselves.
fn blocks_compare(m: &LoopModule, stage: TensorId) -> bool {
    let pool = &m.env.pool;
    let compared = |n: &Expr| match *n {
        Expr::Bin(BinOp::Eq | BinOp::Ne, a, b) if a != b => [a, b].iter().any(|&e| pool.reads(e, stage)),
        _ => false,
    };
    m.env.tensors[stage].ty.is_float()
        && m.blocks_reading(stage).iter().any(|b| pool.any(b.value, &mut |n| compared(n)))
}

fn inline_reads(pool: &mut ExprPool, e: ExprId, tensor: TensorId, formals: &[VarId], value: ExprId) -> ExprId {
    if !pool.loads(e).may_have(tensor) {
        return e;
    }
    pool.rewrite(e, &mut |p, n| match p.get(n).clone() {
        Expr::Load { tensor: t, part, index, guard } if t == tensor => {
            let map: FxHashMap<VarId, ExprId> = formals.iter().copied().zip(index.iter().copied()).collect();
            let v = p.components(value)[part as usize];
            let v = p.substitute(v, &map);
            Some(match guard {
                None => v,
                Some((cond, other)) => {
                    let v = guard_loads(p, v, cond);
                    p.select(cond, v, other)
                }
            })
        }
        _ => None,
    })
}

/// Adds `cond` to the guard of every load in `e`; what an unread load gives does not matter.
pub fn guard_loads(pool: &mut ExprPool, e: ExprId, cond: ExprId) -> ExprId {
    pool.rewrite(e, &mut |p, n| match p.get(n).clone() {
        Expr::Load { tensor, part, index, guard } => {
            let ty = p.ty(n).scalar;
            let (c, other) = match guard {
                Some((c, o)) => (p.and(cond, c), o),
                None => (cond, zero_of(p, ty)),
            };
            Some(p.load_guarded((tensor, part), ty, index.iter().copied(), Some((c, other))))
        }
        _ => None,
    })
}

/// The zero of an element type.
pub fn zero_of(pool: &mut ExprPool, ty: cora_ir::ScalarType) -> ExprId {
    let lit = if ty.is_float() { cora_ir::Literal::float(ty, 0.0) } else { cora_ir::Literal::int(ty, 0) };
    pool.lit(lit)
}
