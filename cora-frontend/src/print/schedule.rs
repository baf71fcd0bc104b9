//! Schedule steps as text.

use cora_ir::Scope;
use cora_ir::schedule::{CopyAt, LoopRef, PackDim, Remap, StepKind, Tail};

fn at(r: &LoopRef) -> String {
    format!("{}.{}", r.stage, r.name)
}

/// Where a copy is made.
fn place(scope: Scope, place: &CopyAt) -> String {
    match place {
        CopyAt::Loop(r) => format!("{} at {}", scope.name(), at(r)),
        CopyAt::Setup => "setup".to_owned(),
        CopyAt::Before => "before".to_owned(),
    }
}

/// One step, as it is written in a `schedule` block.
pub fn print_step(step: &StepKind) -> String {
    match step {
        StepKind::Split { target, factor, outer, inner, tail } => {
            let tail = match tail {
                Tail::Exact => "",
                Tail::Mask => " tail(mask)",
                Tail::Peel => " tail(peel)",
            };
            format!("split {} {factor} -> {outer}, {inner}{tail}", at(target))
        }
        StepKind::Fuse { loops, name, pad } => {
            let loops: Vec<String> = loops.iter().map(at).collect();
            let pad = if *pad == 1 { String::new() } else { format!(" pad {pad}") };
            format!("fuse {} -> {name}{pad}", loops.join(" "))
        }
        StepKind::Reorder { stage, order } => format!("reorder {stage}: {}", order.join(" ")),
        StepKind::Vectorize { target, width: Some(w) } => format!("vectorize {} {w}", at(target)),
        StepKind::Vectorize { target, width: None } => format!("vectorize {}", at(target)),
        StepKind::Unroll { target } => format!("unroll {}", at(target)),
        StepKind::Parallel { target } => format!("parallel {}", at(target)),
        StepKind::Bind { target, to, atomic } => {
            format!("bind {} {}{}", at(target), to.name(), if *atomic { " atomic" } else { "" })
        }
        StepKind::PadLoop { target, multiple } => format!("pad_loop {} {multiple}", at(target)),
        StepKind::PadLoopTo { target, extent } => format!("pad_loop {} to {extent}", at(target)),
        StepKind::PadDim { tensor, dim, multiple } => format!("pad_dim {tensor}.{dim} {multiple}"),
        StepKind::SplitDim { tensor, dim, factor, outer, inner } => {
            format!("split_dim {tensor}.{dim} {factor} -> {outer}, {inner}")
        }
        StepKind::FuseDims { tensor, dims, name } => format!("fuse_dims {tensor}: {} -> {name}", dims.join(" ")),
        StepKind::ReorderDims { tensor, order } => format!("reorder_dims {tensor}: {}", order.join(" ")),
        StepKind::ComputeAt { stage, at: r } => format!("compute_at {stage} at {}", at(r)),
        StepKind::ComputeInline { stage } => format!("compute_inline {stage}"),
        StepKind::Precompute { stage, tensor, name } => {
            let dot = if tensor.contains('.') { ":" } else { "." };
            format!("precompute {stage}{dot}{tensor} -> {name}")
        }
        StepKind::CacheWrite { stage, name, scope, at: r } => {
            format!("cache_write {stage} -> {name} {} at {}", scope.name(), at(r))
        }
        StepKind::CacheRead { stage, tensor, name, scope, at: r, layout, access } => {
            let access = access.map_or(String::new(), |n| format!(" access({n})"));
            let dot = if tensor.contains('.') { ":" } else { "." };
            let layout: Vec<String> = layout.iter().map(|d| format!("{}{}", d.dim, d.suffix())).collect();
            let layout = if layout.is_empty() { String::new() } else { format!(" layout({})", layout.join(", ")) };
            let place = place(*scope, r);
            format!("cache_read {stage}{dot}{tensor} -> {name} {place}{layout}{access}")
        }
        StepKind::Pack { stage, tensor, name, scope, at: r, tiles, access } => {
            let access = access.map_or(String::new(), |n| format!(" access({n})"));
            let dot = if tensor.contains('.') { ":" } else { "." };
            let size = |t: &PackDim| t.size.map_or(String::new(), |n| format!(" {n}"));
            let tiles: Vec<String> = tiles.iter().map(|t| format!("{}{}", t.dim, size(t))).collect();
            let place = place(*scope, r);
            format!("pack {stage}{dot}{tensor} -> {name} {place} tiles({}){access}", tiles.join(", "))
        }
        StepKind::HoistLoads { target, on } => {
            format!("hoist_loads {}{}", at(target), if *on { "" } else { " off" })
        }
        StepKind::SetScope { stage, scope } => format!("set_scope {stage} {}", scope.name()),
        StepKind::Rfactor { target, name } => format!("rfactor {} -> {name}", at(target)),
        StepKind::Remap { target, policy } => {
            let policy = match policy {
                Remap::LongestFirst => "longest_first".to_owned(),
                Remap::RoundRobin(n) => format!("round_robin {n}"),
                Remap::By(key) => format!("by {key}"),
                Remap::Order(place) => format!("order {place}"),
            };
            format!("remap {} {policy}", at(target))
        }
        StepKind::OpSplit { points } => {
            let points: Vec<String> = points.iter().map(|(l, e)| format!("{} at {e}", at(l))).collect();
            format!("op_split {}", points.join(", "))
        }
        StepKind::Hfuse { loops, name } => {
            let loops: Vec<String> = loops.iter().map(at).collect();
            format!("hfuse {} -> {name}", loops.join(" "))
        }
        StepKind::Tile { stage, loops, names } => {
            let loops: Vec<String> = loops.iter().map(|(l, n)| format!("{l} {n}")).collect();
            format!("tile {stage}: {} -> {}", loops.join(" "), names.join(" "))
        }
        StepKind::Tensorize { target, intrinsic } => format!("tensorize {} {}", at(target), intrinsic.get().name),
        StepKind::Offload { target } => format!("offload {}", at(target)),
        StepKind::BulkCopy { target } => format!("bulk_copy {}", at(target)),
        StepKind::Swizzle { tensor } => format!("swizzle {tensor}"),
        StepKind::Prefetch { stage, tensor, at: r, inside, distance, locality } => {
            let dot = if tensor.contains('.') { ":" } else { "." };
            let locality = if *locality == 3 { String::new() } else { format!(" locality {locality}") };
            let inside = inside.as_ref().map(|l| format!(" in {}", at(l))).unwrap_or_default();
            format!("prefetch {stage}{dot}{tensor} at {} {distance}{inside}{locality}", at(r))
        }
        StepKind::DoubleBuffer { stage, slots: 2 } => format!("double_buffer {stage}"),
        StepKind::DoubleBuffer { stage, slots } => format!("double_buffer {stage} {slots}"),
        StepKind::StorageAlign { tensor, dim, multiple, offset } => {
            let offset = if *offset == 0 { String::new() } else { format!(" offset {offset}") };
            format!("storage_align {tensor}.{dim} {multiple}{offset}")
        }
        StepKind::Peel { target, few: None } => format!("peel {}", at(target)),
        StepKind::Peel { target, few: Some(n) } => format!("peel {} few {n}", at(target)),
        StepKind::Relax { target, zero } => format!("relax {}{}", at(target), if *zero { " zero" } else { "" }),
    }
}
