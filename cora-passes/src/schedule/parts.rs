//! Parts of stages: copies of statements that are stages of their own, `S.main` and `S.tail`.
//!
//! ```text
//! for i stage @S { block @S { @S[..] = .. } }  =>  for i stage @S.main { block @S.main { @S[..] = .. } }
//! ```
//!
//! A part writes the tensor of the whole; it is declared as a tensor without dimensions, which is
//! never stored. A buffer that only the copied statements use becomes a buffer of the part.

use super::tree::{reads_below, stages_of, writes_below};
use cora_ir::loops::{For, Iter, LoopModule, Prefetch, Stmt};
use cora_ir::schedule::StepKind;
use cora_ir::{Diagnostic, Env, Expr, ExprId, Role, Scope, Tensor, TensorId, VarId};
use rustc_hash::FxHashMap;

/// The names of the parts, in execution order.
pub const PARTS: [&str; 2] = ["main", "tail"];

/// What stands for each of the parts in the name of a stage.
const ALL: &str = ".*";

/// The steps that a step about all parts of a stage, `S.*`, stands for, in the order of the parts;
/// nothing if it is about single stages. Stages that the step makes may be called `R.*` likewise.
///
/// # Errors
/// `E0401` a stage without parts.
pub(super) fn for_each_part(m: &LoopModule, step: &StepKind) -> Result<Option<Vec<StepKind>>, Diagnostic> {
    let mut names = step.clone();
    let whole = names.stages_mut().into_iter().find_map(|n| Some(n.split_once(ALL)?.0.to_owned()));
    let Some(stage) = whole else { return Ok(None) };
    let mut ends = Vec::new();
    let stages = stages_of(&m.body);
    let name = |t: TensorId| m.env.tensors[t].name.as_str();
    // A part that was taken apart inside has loops still, but its statements are its parts'.
    let whole = |t: TensorId| !m.blocks_of(t).is_empty() || !stages.iter().any(|&other| is_part(name(other), name(t)));
    for &t in stages.iter().filter(|&&t| whole(t)) {
        let name = name(t);
        let end = name.strip_prefix(stage.as_str()).unwrap_or_default();
        if is_part(name, &stage) && !ends.contains(&end) {
            ends.push(end);
        }
    }
    if ends.is_empty() {
        return Err(Diagnostic::new("E0401", format!("stage `{stage}` has no parts"))
            .hint("`peel` or `op_split` it first; then `.*` stands for `.main` and `.tail`"));
    }
    let part = |end: &&str| {
        let mut step = step.clone();
        step.stages_mut().into_iter().for_each(|n| *n = n.replace(ALL, end));
        step.made_mut().into_iter().for_each(|n| *n = n.replace(ALL, end));
        step
    };
    Ok(Some(ends.iter().map(part).collect()))
}

/// Whether `name` is that of a part of `stage`.
pub(super) fn is_part(name: &str, stage: &str) -> bool {
    let end = name.strip_prefix(stage).and_then(|end| end.strip_prefix('.'));
    end.is_some_and(|end| end.split('.').all(|p| PARTS.contains(&p)))
}

/// What a part has in place of the stages and buffers of the whole.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Stages: of the whole, of the part.
    pub stages: Vec<(TensorId, TensorId)>,
    /// Local buffers, likewise.
    buffers: Vec<(TensorId, TensorId)>,
}

impl Part {
    /// The part's stage for one of the whole.
    pub fn stage(&self, t: TensorId) -> TensorId {
        self.stages.iter().find(|s| s.0 == t).map_or(t, |s| s.1)
    }

    fn buffer(&self, t: TensorId) -> TensorId {
        self.buffers.iter().find(|s| s.0 == t).map_or(t, |s| s.1)
    }
}

/// Declares part `name` of what `stmts` do; `m.body` is the module without them.
///
/// # Errors
/// `E0460` a name that is taken; tensors may have been added by then.
pub(crate) fn declare(m: &mut LoopModule, stmts: &[Stmt], name: &str) -> Result<Part, Diagnostic> {
    let mut part = Part::default();
    let (outside_reads, outside_writes) = (reads_below(&m.env.pool, &m.body), writes_below(&m.body));
    for t in writes_below(stmts) {
        let private = m.env.tensors[t].scope != Scope::Global;
        if private && !outside_reads.contains(&t) && !outside_writes.contains(&t) {
            let tensor = Tensor { name: format!("{}.{name}", m.env.tensors[t].name), ..m.env.tensors[t].clone() };
            part.buffers.push((t, enter(m, stmts, tensor)?));
        }
    }
    for stage in stages_of(stmts) {
        if let Some(b) = part.buffers.iter().find(|b| b.0 == stage) {
            part.stages.push(*b);
            continue;
        }
        let old = &m.env.tensors[stage];
        let (name, ty, scope) = (format!("{}.{name}", old.name), old.ty, old.scope);
        let (dims, layout, role, range) = (vec![], vec![], Role::Temp, None);
        let tensor = Tensor { name, ty, tuple: None, dims, role, scope, range, layout };
        part.stages.push((stage, enter(m, stmts, tensor)?));
    }
    Ok(part)
}

/// A new tensor. The name may be that of a stage which is all inside `stmts`: that one becomes a part
/// of a part.
fn enter(m: &mut LoopModule, stmts: &[Stmt], tensor: Tensor) -> Result<TensorId, Diagnostic> {
    let Some(there) = m.env.tensor_named(&tensor.name) else { return Ok(m.env.tensors.push(tensor)) };
    let used = [stmts, &m.body]
        .iter()
        .any(|b| reads_below(&m.env.pool, b).contains(&there) || writes_below(b).contains(&there));
    if used || m.env.tensors[there].role != Role::Temp || stages_of(&m.body).contains(&there) {
        return Err(Diagnostic::new("E0460", format!("there already is a tensor or stage `{}`", tensor.name))
            .note("the parts of a stage are called after it, `.main` and `.tail`")
            .hint("rename the tensor, or take the loops outside apart before those inside"));
    }
    m.env.tensors[there] = tensor;
    Ok(there)
}

/// A copy of `stmts` with variables of its own, as the statements of `part`.
pub(super) fn copy(env: &mut Env, stmts: &[Stmt], part: &Part) -> Vec<Stmt> {
    copy_with(env, stmts, part, FxHashMap::default())
}

/// The same, with other values for variables of loops around.
pub(crate) fn copy_with(env: &mut Env, stmts: &[Stmt], part: &Part, vars: FxHashMap<VarId, ExprId>) -> Vec<Stmt> {
    let mut c = Copier { env, part, vars };
    let out = stmts.iter().map(|s| c.stmt(s)).collect();
    let vars = c.vars;
    for &(_, new) in &part.buffers {
        let mut dims = env.tensors[new].dims.clone();
        for d in &mut dims {
            d.extent = env.pool.substitute(d.extent, &vars);
            d.storage = env.pool.substitute(d.storage, &vars);
        }
        env.tensors[new].dims = dims;
    }
    out
}

struct Copier<'a> {
    env: &'a mut Env,
    part: &'a Part,
    vars: FxHashMap<VarId, ExprId>,
}

impl Copier<'_> {
    fn fresh(&mut self, v: VarId) -> VarId {
        self.env.copy_var(v)
    }

    /// An expression over loop variables and iterators.
    fn expr(&mut self, e: ExprId, iters: &FxHashMap<VarId, ExprId>) -> ExprId {
        let e = self.env.pool.substitute(e, &self.vars);
        let e = self.env.pool.substitute(e, iters);
        let part = self.part;
        self.env.pool.rewrite(e, &mut |p, n| match p.get(n).clone() {
            Expr::Load { tensor, part: k, index, guard } if part.buffer(tensor) != tensor => {
                let ty = p.ty(n).scalar;
                Some(p.load_guarded((part.buffer(tensor), k), ty, index.iter().copied(), guard))
            }
            _ => None,
        })
    }

    fn stmt(&mut self, s: &Stmt) -> Stmt {
        let none = FxHashMap::default();
        match s {
            Stmt::For(l) => {
                let extent = self.expr(l.extent, &none);
                let var = self.fresh(l.var);
                let v = self.env.pool.var(var);
                self.vars.insert(l.var, v);
                let body = l.body.iter().map(|s| self.stmt(s)).collect();
                let prefetch = l.prefetch.iter().map(|p| {
                    let of = p.of.and_then(|v| self.vars.get(&v)).and_then(|&e| self.env.pool.as_var(e)).or(p.of);
                    let (stage, tensor) = (self.part.stage(p.stage), self.part.buffer(p.tensor));
                    Prefetch { of, stage, tensor, ..*p }
                });
                let prefetch = prefetch.collect();
                Stmt::For(For { var, stage: self.part.stage(l.stage), extent, prefetch, body, ..*l })
            }
            Stmt::Block(b) => {
                let mut iters: FxHashMap<VarId, ExprId> = FxHashMap::default();
                let mut out = b.clone();
                out.iters.clear();
                for i in &b.iters {
                    let extent = self.expr(i.extent, &iters);
                    let binding = self.expr(i.binding, &none);
                    let var = self.fresh(i.var);
                    let v = self.env.pool.var(var);
                    iters.insert(i.var, v);
                    out.iters.push(Iter { var, kind: i.kind, extent, binding });
                }
                out.stage = self.part.stage(b.stage);
                out.tensor = self.part.buffer(b.tensor);
                out.predicate = b.predicate.iter().map(|&p| self.expr(p, &none)).collect();
                out.index = b.index.iter().map(|&e| self.expr(e, &iters)).collect();
                out.value = self.expr(b.value, &iters);
                Stmt::Block(out)
            }
        }
    }
}
