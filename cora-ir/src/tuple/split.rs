//! Tensors of tuples as tensors of their components.

use super::{CombinerId, Env, ExprId, TensorId};
use crate::expr::{Expr, ExprPool};
use rustc_hash::FxHashMap;

/// The tensors that hold the components of what were tensors of tuples.
#[derive(Clone, Debug, Default)]
pub struct Components {
    map: FxHashMap<TensorId, (CombinerId, Vec<TensorId>)>,
}

/// Replaces each tensor of tuples by one tensor for each component, of the same dimensions, layout and scope; the
/// first keeps the id. What reads and writes them is rewritten by [`Components::expr`] and [`Components::of`].
pub fn split_tuples(env: &mut Env) -> Components {
    let mut out = Components::default();
    for t in env.tensors.ids().collect::<Vec<_>>() {
        let Some(c) = env.tensors[t].tuple.take() else { continue };
        let parts: Vec<_> = env.combiners[c].parts.iter().map(|p| (p.name.clone(), p.ty)).collect();
        let base = env.tensors[t].clone();
        let mut ids = Vec::new();
        for (k, (name, ty)) in parts.into_iter().enumerate() {
            let name = env.fresh_tensor_name(&format!("{}.{name}", base.name));
            if k == 0 {
                (env.tensors[t].name, env.tensors[t].ty) = (name, ty);
                ids.push(t);
            } else {
                ids.push(env.tensors.push(crate::env::Tensor { name, ty, ..base.clone() }));
            }
        }
        out.map.insert(t, (c, ids));
    }
    out
}

impl Components {
    /// Whether there was no tensor of tuples.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The tensors of the components of `t`: itself, if it was none of tuples.
    pub fn of(&self, t: TensorId) -> Vec<TensorId> {
        self.map.get(&t).map_or_else(|| vec![t], |(_, ids)| ids.clone())
    }

    /// The tensors besides `t` itself.
    pub fn rest(&self, t: TensorId) -> &[TensorId] {
        self.map.get(&t).map_or(&[], |(_, ids)| &ids[1..])
    }

    /// `e` reading the components' tensors.
    pub fn expr(&self, pool: &mut ExprPool, e: ExprId) -> ExprId {
        if self.is_empty() {
            return e;
        }
        pool.rewrite(e, &mut |p, x| match p.get(x).clone() {
            Expr::Load { tensor, part, index, guard } => {
                let (_, ids) = self.map.get(&tensor)?;
                let ty = p.ty(x).scalar;
                Some(p.load_guarded((*ids.get(part as usize)?, 0), ty, index.iter().copied(), guard))
            }
            _ => None,
        })
    }
}
