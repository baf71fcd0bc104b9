//! The prelude of a storage module: builds its tables in memory.

use crate::env::UfDef;
use crate::ids::{EntityId, TensorId};
use crate::interp::buffer::{Buffer, Cells, Held, Memory};
use crate::interp::context::Context;
use crate::interp::error::{InterpError, Use};
use crate::interp::functions::{extra_entries, leading_args, tabulate};
use crate::interp::levels::{LevelExtent, Levels};
use crate::storage::Table;
use std::sync::Arc;

/// Builds `table`; earlier ones are in `memory`.
pub(crate) fn build_table(
    context: &mut Context<'_>,
    memory: &mut Memory<'_>,
    table: &Table,
) -> Result<(), InterpError> {
    let tensor = &context.env.tensors[table.tensor];
    let uf = &context.env.ufs[table.uf];
    let broken = |what: String| InterpError::Table { table: tensor.name.clone(), what };
    for &e in table.domain.iter().chain(&table.body).chain([&table.entries]) {
        context.prepare(e)?;
    }
    if matches!(uf.def, UfDef::Search { .. } | UfDef::Extent { .. }) {
        context.ready(table.uf)?;
    }
    let scalars = context.scalars(Some(memory));
    let undefined = |index: &[i64], usage| InterpError::Undefined {
        stage: context.stage,
        usage,
        name: tensor.name.clone(),
        index: index.to_vec(),
        origin: None,
    };

    let mut levels = Levels::scalar();
    for (d, &e) in table.domain.iter().enumerate() {
        let extra = if d + 1 == table.domain.len() { extra_entries(&uf.def) } else { 0 };
        let mut at = |args: &[i64]| {
            let n = scalars.int(e, args, &[])?.ok_or_else(|| undefined(args, Use::Extent))?;
            Ok(n.max(0).saturating_add(extra))
        };
        let extent = LevelExtent { at: &mut at, depends: leading_args(context.env, e) };
        levels.push(extent, context.room())?.ok_or_else(|| context.too_large(table.tensor))?;
    }
    // An extent is given, a search is its own definition; the others have a body over earlier tables.
    let values = tabulate(&uf.def, &levels, &mut |args| match table.body {
        Some(body) => scalars.int(body, args, &[]),
        None => Ok(context.functions.get(table.uf, args)),
    })?;
    let entries = scalars.int(table.entries, &[], &[])?.ok_or_else(|| undefined(&[], Use::Extent))?;
    if entries != values.len() as i64 {
        return Err(broken(format!("{entries} entries are declared, its domain has {}", values.len())));
    }
    let ty = tensor.ty;
    if let Some((at, value)) = values
        .iter()
        .enumerate()
        .find_map(|(i, v)| v.filter(|v| !(ty.int_min()..=ty.int_max()).contains(v)).map(|v| (i, v)))
    {
        return Err(broken(format!("entry {at} is {value}, too large for {ty}")));
    }
    let mut buf = Buffer::undefined(ty, values.len())?;
    if let Cells::I(cells) = &mut buf.cells {
        values.iter().zip(cells.to_mut()).for_each(|(v, c)| *c = v.unwrap_or(0));
    }
    values.iter().enumerate().filter(|(_, v)| v.is_some()).for_each(|(i, _)| buf.mark(i, true));
    let held = Held { levels: Arc::new(Levels::flat(entries)), buf };
    context.charge_levels(table.tensor, &held.levels)?;
    if table.tensor.index() < memory.slots.len() {
        memory.put(table.tensor, held);
    }
    Ok(())
}

/// Makes the tables unknown, which kernels are to build; what they must hold in the end.
pub(crate) fn forget(memory: &mut Memory<'_>, built: &[TensorId]) -> Vec<(TensorId, Vec<i64>)> {
    let mut wanted = Vec::new();
    for &t in built {
        if let Some(held) = memory.get_mut(t) {
            wanted.push((t, (0..held.buf.len()).map(|i| held.buf.int_at(i)).collect()));
            held.buf.poison();
        }
    }
    wanted
}

/// That each table which kernels built holds what the host would have built.
pub(crate) fn check_built(
    context: &Context<'_>,
    memory: &Memory<'_>,
    wanted: &[(TensorId, Vec<i64>)],
) -> Result<(), InterpError> {
    for (t, values) in wanted {
        let Some(held) = memory.get(*t) else { continue };
        let wrong = (0..values.len()).find(|&i| !held.buf.defined(i) || held.buf.int_at(i) != values[i]);
        if let Some(at) = wrong {
            let found = if held.buf.defined(at) { held.buf.int_at(at).to_string() } else { "nothing".to_owned() };
            let what = format!("kernels make entry {at} {found}, by its definition it is {}", values[at]);
            return Err(InterpError::Table { table: context.tensor_name(*t), what });
        }
    }
    Ok(())
}
