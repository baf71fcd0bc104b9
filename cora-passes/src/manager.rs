//! The pass manager: named passes, pipelines as text, and an observer that sees every step.

use crate::graph::narrow_masked::Windows;
use crate::lower::{
    Simplifier, await_tiles, capacity, carry_lanes, copy_ahead, cut_heads, cut_tails, device_prelude, double_buffer,
    drop_unread, first_block, fold_positions, functions, hoist, known_branches, legalize, merge_branches,
    place_barriers, row_segments, scatter_terms, shape_blocks, share_nests, split_accumulators, threads_outward,
    to_loops, to_storage, unclamp, unswitch, vectorize, virtual_threads,
};
use crate::program::Program;
use crate::schedule::{apply_step, relax};
use crate::simplify::SharedSolver;
use crate::{default_grid, default_schedule, graph};
use cora_ir::intrinsic::{Features, capability};
use cora_ir::text::Stage;
use cora_ir::{Diagnostic, schedule::Step};
use std::time::{Duration, Instant};

/// What passes share during one compile; they keep no other state.
pub struct PassContext<'a> {
    /// Simplifies and proves.
    pub simplifier: &'a mut dyn Simplifier,
}

type Outcome = Result<Program, Vec<Diagnostic>>;

/// One pass.
pub struct Pass {
    /// Its name in pipelines: the file's, with dashes.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// The stage it takes.
    pub input: Stage,
    run: fn(Program, &mut PassContext, &str) -> Outcome,
}

/// Every pass, in the order in which the pipeline runs them.
pub const PASSES: &[Pass] = &[
    Pass {
        name: "check-accesses",
        summary: "prove every access in bounds",
        input: Stage::Graph,
        run: |p, cx, _| on_graph(p, |g| graph::check_accesses::check_accesses(g, cx.simplifier)),
    },
    Pass {
        name: "narrow-positions",
        summary: "positions of extremes are compared with 32 bits where dimensions are that short",
        input: Stage::Graph,
        run: |p, _, _| edit_graph(p, graph::narrow_positions::narrow_positions),
    },
    Pass {
        name: "narrow-masked",
        summary: "dimensions end, or begin, where a mask makes the terms of all reductions over them their identity",
        input: Stage::Graph,
        run: |p, cx, args| {
            let windows = windows(args).map_err(|d| vec![d])?;
            edit_graph(p, |g| graph::narrow_masked::narrow_masked(g, cx.simplifier, windows))
        },
    },
    Pass {
        name: "split-prefixes",
        summary: "reductions over all positions before or after each one in blocks of these; split-prefixes{block=32}: of so many",
        input: Stage::Graph,
        run: |p, _, args| {
            let block = prefix_block(args).map_err(|d| vec![d])?;
            edit_graph(p, |g| graph::split_prefixes::split_prefixes(g, block))
        },
    },
    Pass {
        name: "follow-recurrences",
        summary: "reductions that use up the states of a recurrence are computed at its positions",
        input: Stage::Graph,
        run: |p, _, _| edit_graph(p, graph::follow_recurrences::follow_recurrences),
    },
    Pass {
        name: "raise-extents",
        summary: "pad every extent function to its greatest value in the batch, masking the surplus",
        input: Stage::Graph,
        run: |p, _, _| on_graph(p, |g| graph::raise_extents::raise_extents(g).map_err(|d| vec![d])),
    },
    Pass {
        name: "lower-to-loops",
        summary: "each operator becomes its naive loop nest",
        input: Stage::Graph,
        run: |p, _, _| match p {
            Program::Graph(g) => Ok(Program::Loops(to_loops::lower_to_loops(&g))),
            p => Ok(p),
        },
    },
    Pass {
        name: "step",
        summary: "one scheduling primitive, as in step{split @S[i] 4 -> io, ii tail(exact)}",
        input: Stage::Loop,
        run: |p, _, args| {
            let kind = cora_ir::text::parse_step(args).map_err(|d| vec![d])?;
            on_loops(p, |m| apply_step(m, &Step::from(kind)))
        },
    },
    Pass {
        name: "default-schedule",
        summary: "schedule unscheduled nests by rules about their shape; default-schedule{amx-bf16} with what a processor has",
        input: Stage::Loop,
        run: |p, _, args| {
            on_loops(p, |m| {
                default_schedule::default_schedule(m, features(args)?);
                Ok(())
            })
        },
    },
    Pass {
        name: "default-grid",
        summary: "schedule nests for a grid of blocks and threads by rules about their shape; default-grid{sm_80} with what an architecture has",
        input: Stage::Loop,
        run: |p, _, args| {
            on_loops(p, |m| {
                default_grid::default_grid_schedule(m, architecture(args)?);
                Ok(())
            })
        },
    },
    Pass {
        name: "drop-unread",
        summary: "nests whose results nobody reads are left out",
        input: Stage::Loop,
        run: |p, _, _| edit_loops(p, drop_unread::drop_unread),
    },
    Pass {
        name: "share-nests",
        summary: "nests that compute the same, such as copies for several readers, are one",
        input: Stage::Loop,
        run: |p, _, _| edit_loops(p, share_nests::share_nests),
    },
    Pass {
        name: "relax-register-tails",
        summary: "run full tiles where a stage writes registers",
        input: Stage::Loop,
        run: |p, _, _| edit_loops(p, relax::relax_register_tails),
    },
    Pass {
        name: "fold-positions",
        summary: "results that only the next positions of a recurrence read have room for these alone",
        input: Stage::Loop,
        run: |p, _, _| edit_loops(p, fold_positions::fold_positions),
    },
    Pass {
        name: "to-storage",
        summary: "flat buffers and offsets; to-storage{csf}: through position arrays of each tensor",
        input: Stage::Loop,
        run: |p, cx, args| match p {
            Program::Loops(m) => {
                let csf = option("to-storage", args, "csf")?;
                let lower = if csf { to_storage::lower_to_csf } else { to_storage::lower_to_storage };
                lower(&m, cx.simplifier).map(Program::Storage).map_err(|d| vec![d])
            }
            p => Ok(p),
        },
    },
    Pass {
        name: "scatter-terms",
        summary: "terms that count where a position is what is read go to that position",
        input: Stage::Storage,
        run: |p, cx, _| on_storage(p, |m| scatter_terms::scatter_terms(m, cx.simplifier)),
    },
    Pass {
        name: "first-block",
        summary: "the first block of a blocked reduction writes its sums, instead of adding them to zeros",
        input: Stage::Storage,
        run: |p, cx, _| on_storage(p, |m| first_block::write_first_blocks(m, cx.simplifier)),
    },
    Pass {
        name: "row-segments",
        summary: "innermost loops along fused rows run row by row",
        input: Stage::Storage,
        run: |p, cx, _| on_storage(p, |m| row_segments::segment_rows(m, cx.simplifier)),
    },
    Pass {
        name: "double-buffer",
        summary: "buffers of several slots are filled iterations ahead",
        input: Stage::Storage,
        run: |p, _, _| match p {
            Program::Storage(mut m) => {
                double_buffer::double_buffer(&mut m).map_err(|d| vec![d])?;
                Ok(Program::Storage(m))
            }
            p => Ok(p),
        },
    },
    Pass {
        name: "virtual-threads",
        summary: "the iterations of virtual threads stand side by side",
        input: Stage::Storage,
        run: |p, _, _| on_storage(p, virtual_threads::virtual_threads),
    },
    Pass {
        name: "capacities",
        summary: "sizes that are enough for shorter rows too, where kernels build the tables",
        input: Stage::Storage,
        run: |p, _, _| match p {
            Program::Storage(mut m) => {
                capacity::capacities(&mut m).map_err(|d| vec![d])?;
                Ok(Program::Storage(m))
            }
            p => Ok(p),
        },
    },
    Pass {
        name: "lower-functions",
        summary: "calls that are left become reads of prelude tables; lower-functions{csf}: each sum has its own",
        input: Stage::Storage,
        run: |p, cx, args| {
            let csf = option("lower-functions", args, "csf")?;
            on_storage(p, |m| functions::lower_functions(m, cx.simplifier, !csf))
        },
    },
    Pass {
        name: "shape-blocks",
        summary: "thread loops of a grid get constant extents",
        input: Stage::Storage,
        run: |p, _, _| match p {
            Program::Storage(mut m) => {
                shape_blocks::shape_blocks(&mut m).map_err(|d| vec![d])?;
                Ok(Program::Storage(m))
            }
            p => Ok(p),
        },
    },
    Pass {
        name: "device-prelude",
        summary: "kernels that build the tables of the prelude",
        input: Stage::Storage,
        run: |p, _, _| match p {
            Program::Storage(mut m) => {
                device_prelude::device_prelude(&mut m).map_err(|d| vec![d])?;
                Ok(Program::Storage(m))
            }
            p => Ok(p),
        },
    },
    Pass {
        name: "threads-outward",
        summary: "thread loops and conditions that iterations share leave serial loops",
        input: Stage::Storage,
        run: |p, _, _| on_storage(p, threads_outward::threads_outward),
    },
    Pass {
        name: "unclamp-vectors",
        summary: "vectors that a clamp leaves as they are, or changes to one position, are read as neighbours, or as one element",
        input: Stage::Storage,
        run: |p, cx, _| on_storage(p, |m| unclamp::unclamp_vectors(m, cx.simplifier)),
    },
    Pass {
        name: "vectorize-and-unroll",
        summary: "vector and unrolled loops become statements",
        input: Stage::Storage,
        run: |p, cx, _| on_storage(p, |m| vectorize::vectorize_and_unroll(m, cx.simplifier)),
    },
    Pass {
        name: "carry-lanes",
        summary: "reductions over vectors keep their lanes apart until the loop ends",
        input: Stage::Storage,
        run: |p, _, _| on_storage(p, carry_lanes::carry_lanes),
    },
    Pass {
        name: "hoist-loads",
        summary: "table reads move to the outermost loop where they are known; hoist-loads{off}: where a loop asks for it",
        input: Stage::Storage,
        run: |p, _, args| {
            let on = !option("hoist-loads", args, "off")?;
            on_storage(p, |m| hoist::hoist_loads(m, on))
        },
    },
    Pass {
        name: "unswitch",
        summary: "innermost loops with a condition that they do not change become a branch around two loops",
        input: Stage::Storage,
        run: |p, _, _| on_storage(p, unswitch::unswitch),
    },
    Pass {
        name: "cut-heads",
        summary: "innermost loops begin where masks begin to hold, and run without them from where all do",
        input: Stage::Storage,
        run: |p, cx, _| on_storage(p, |m| cut_heads::cut_heads(m, cx.simplifier)),
    },
    Pass {
        name: "cut-tails",
        summary: "innermost loops run without masks and branches where these hold",
        input: Stage::Storage,
        run: |p, cx, _| on_storage(p, |m| cut_tails::cut_tails(m, cx.simplifier)),
    },
    Pass {
        name: "known-branches",
        summary: "branches whose conditions follow from the loops and branches around are gone",
        input: Stage::Storage,
        run: |p, cx, _| on_storage(p, |m| known_branches::decide_known_branches(m, cx.simplifier)),
    },
    Pass {
        name: "merge-branches",
        summary: "neighbouring branches on one condition become one",
        input: Stage::Storage,
        run: |p, _, _| on_storage(p, merge_branches::merge_branches),
    },
    Pass {
        name: "split-accumulators",
        summary: "extremes of cheap terms keep several partial results",
        input: Stage::Storage,
        run: |p, _, _| on_storage(p, split_accumulators::split_accumulators),
    },
    Pass {
        name: "legalize",
        summary: "register buffers with variable indices move to memory; kernels are checked",
        input: Stage::Storage,
        run: |p, _, _| match p {
            Program::Storage(mut m) => {
                legalize::demote_registers(&mut m).map_err(|d| vec![d])?;
                legalize::check_kernels(&m).map_err(|d| vec![d])?;
                Ok(Program::Storage(m))
            }
            p => Ok(p),
        },
    },
    Pass {
        name: "place-barriers",
        summary: "barriers between threads of a block",
        input: Stage::Storage,
        run: |p, _, _| match p {
            Program::Storage(mut m) => {
                place_barriers::place_barriers(&mut m).map_err(|d| vec![d])?;
                Ok(Program::Storage(m))
            }
            p => Ok(p),
        },
    },
    Pass {
        name: "copy-ahead",
        summary: "copies into shared memory that go on beside the threads",
        input: Stage::Storage,
        run: |p, _, _| match p {
            Program::Storage(mut m) => {
                copy_ahead::copy_ahead(&mut m);
                Ok(Program::Storage(m))
            }
            p => Ok(p),
        },
    },
    Pass {
        name: "await-tiles",
        summary: "waiting for tensor instructions that go on beside the threads",
        input: Stage::Storage,
        run: |p, _, _| match p {
            Program::Storage(mut m) => {
                await_tiles::await_tiles(&mut m);
                Ok(Program::Storage(m))
            }
            p => Ok(p),
        },
    },
];

/// Whether a pass with one option is given it.
fn option(pass: &str, args: &str, name: &str) -> Result<bool, Vec<Diagnostic>> {
    match args {
        "" => Ok(false),
        a if a == name => Ok(true),
        other => Err(vec![
            Diagnostic::new("E0601", format!("pass `{pass}` has no option `{other}`"))
                .hint(format!("write `{pass}`, or `{pass}{{{name}}}`")),
        ]),
    }
}

/// Where `narrow-masked` has windows begin.
fn windows(args: &str) -> Result<Windows, Diagnostic> {
    if args.is_empty() {
        return Ok(Windows::OfRows);
    }
    let rows = args.strip_prefix("rows=").and_then(|n| n.parse().ok()).filter(|n| (1..=MOST_ROWS).contains(n));
    rows.map(Windows::OfTiles).ok_or_else(|| {
        Diagnostic::new("E0601", format!("pass `narrow-masked` has no option `{args}`"))
            .hint(format!("write `narrow-masked`, or `narrow-masked{{rows=48}}`, with 1 to {MOST_ROWS} rows of a tile"))
    })
}

/// How many positions a block of `split-prefixes` has.
fn prefix_block(args: &str) -> Result<i64, Diagnostic> {
    if args.is_empty() {
        return Ok(graph::split_prefixes::BLOCK);
    }
    args.strip_prefix("block=").and_then(|n| n.parse().ok()).filter(|n| (2..=MOST_ROWS).contains(n)).ok_or_else(|| {
        Diagnostic::new("E0601", format!("pass `split-prefixes` has no option `{args}`"))
            .hint(format!("write `split-prefixes`, or `split-prefixes{{block=64}}`, with 2 to {MOST_ROWS} positions"))
    })
}

/// Rows of a tile that begin together, at most.
const MOST_ROWS: i64 = 4096;

/// The features that `default-schedule` is given.
fn features(args: &str) -> Result<Features, Diagnostic> {
    let known = Features::known();
    match args.split_whitespace().find(|a| !known.contains(a)) {
        None => Ok(Features::of(|f| args.split_whitespace().any(|a| a == f))),
        Some(other) => {
            let known = known.join(", ");
            Err(Diagnostic::new("E0601", format!("pass `default-schedule` knows no feature `{other}`"))
                .hint(format!("features that schedules depend on are {known}")))
        }
    }
}

/// The architecture that `default-grid` is given, if any.
fn architecture(args: &str) -> Result<Option<&str>, Diagnostic> {
    let known = |a: &str| a.starts_with("sm_") && capability(a) > 0;
    match args {
        "" => Ok(None),
        a if known(a) => Ok(Some(a)),
        other => Err(Diagnostic::new("E0601", format!("pass `default-grid` knows no GPU architecture `{other}`"))
            .hint("write `default-grid`, or `default-grid{sm_80}`")),
    }
}

fn on_graph(p: Program, f: impl FnOnce(&mut cora_ir::Graph) -> Result<(), Vec<Diagnostic>>) -> Outcome {
    match p {
        Program::Graph(mut g) => f(&mut g).map(|()| Program::Graph(g)),
        p => Ok(p),
    }
}

fn on_loops(p: Program, f: impl FnOnce(&mut cora_ir::loops::LoopModule) -> Result<(), Diagnostic>) -> Outcome {
    match p {
        Program::Loops(mut m) => f(&mut m).map(|()| Program::Loops(m)).map_err(|d| vec![d]),
        p => Ok(p),
    }
}

fn edit_graph(p: Program, f: impl FnOnce(&mut cora_ir::Graph)) -> Outcome {
    on_graph(p, |g| {
        f(g);
        Ok(())
    })
}

fn edit_loops(p: Program, f: impl FnOnce(&mut cora_ir::loops::LoopModule)) -> Outcome {
    on_loops(p, |m| {
        f(m);
        Ok(())
    })
}

fn on_storage(p: Program, f: impl FnOnce(&mut cora_ir::storage::StorageModule)) -> Outcome {
    match p {
        Program::Storage(mut m) => {
            f(&mut m);
            Ok(Program::Storage(m))
        }
        p => Ok(p),
    }
}

/// A pass with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// The pass's name.
    pub pass: String,
    /// What stands between braces, if anything.
    pub args: String,
}

impl std::fmt::Display for Invocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.args.is_empty() { f.write_str(&self.pass) } else { write!(f, "{}{{{}}}", self.pass, self.args) }
    }
}

/// The passes from a scheduled loop module to code generation.
pub const BACK_END: &[&str] = &[
    "drop-unread",
    "share-nests",
    "fold-positions",
    "relax-register-tails",
    "to-storage",
    "scatter-terms",
    "first-block",
    "row-segments",
    "double-buffer",
    "virtual-threads",
    "lower-functions",
    "shape-blocks",
    "threads-outward",
    "unclamp-vectors",
    "vectorize-and-unroll",
    "carry-lanes",
    "hoist-loads",
    "unswitch",
    "cut-heads",
    "cut-tails",
    "known-branches",
    "merge-branches",
    "split-accumulators",
    "legalize",
    "place-barriers",
    "copy-ahead",
    "await-tiles",
];

/// Reads `a,b{args},c`.
///
/// # Errors
/// `E0601` an unknown pass or unbalanced braces.
pub fn parse_pipeline(text: &str) -> Result<Vec<Invocation>, Diagnostic> {
    let mut out = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = rest.find([',', '{']).unwrap_or(rest.len());
        let pass = rest[..end].trim().to_owned();
        rest = &rest[end..];
        let mut args = String::new();
        if let Some(inner) = rest.strip_prefix('{') {
            let close = inner.find('}').ok_or_else(|| {
                Diagnostic::new("E0601", format!("pass `{pass}` has an opening brace without a closing one"))
                    .hint("close it after the options: `pass{option}`")
            })?;
            args = inner[..close].trim().to_owned();
            rest = &inner[close + 1..];
        }
        find_pass(&pass)?;
        if !args.is_empty() && !WITH_OPTIONS.contains(&pass.as_str()) {
            return Err(
                Diagnostic::new("E0601", format!("pass `{pass}` has no option `{args}`")).hint("leave the braces away")
            );
        }
        rest = rest.trim_start();
        if !rest.is_empty() {
            let after = || {
                let what = format!("after pass `{pass}` there is no comma but `{rest}`");
                Diagnostic::new("E0601", what).hint("write a comma between two passes")
            };
            rest = rest.strip_prefix(',').ok_or_else(after)?.trim_start();
        }
        out.push(Invocation { pass, args });
    }
    Ok(out)
}

/// The passes that read what stands in braces.
const WITH_OPTIONS: &[&str] = &[
    "step",
    "narrow-masked",
    "split-prefixes",
    "default-schedule",
    "default-grid",
    "to-storage",
    "lower-functions",
    "hoist-loads",
];

fn find_pass(name: &str) -> Result<&'static Pass, Diagnostic> {
    PASSES.iter().find(|p| p.name == name).ok_or_else(|| {
        let known: Vec<&str> = PASSES.iter().map(|p| p.name).collect();
        Diagnostic::new("E0601", format!("there is no pass `{name}`")).hint(format!("passes: {}", known.join(", ")))
    })
}

/// What an observer is told after each pass.
#[derive(Debug)]
pub struct Report<'a> {
    /// The pass and its arguments.
    pub invocation: &'a Invocation,
    /// The program after it.
    pub program: &'a Program,
    /// How long it took.
    pub time: Duration,
}

/// Runs a pipeline on a program that [`Program::verify`] accepts, which this does not ask: of another one passes may panic.
/// `observe` sees the program after each pass.
///
/// # Errors
/// The first failing pass's diagnostics; `E0602` if a pass does not take the program's stage.
pub fn run_pipeline(
    mut program: Program,
    pipeline: &[Invocation],
    cx: &mut PassContext,
    observe: &mut dyn FnMut(&Report),
) -> Outcome {
    let _solver = SharedSolver::enter();
    for invocation in pipeline {
        let pass = find_pass(&invocation.pass).map_err(|d| vec![d])?;
        if pass.input != program.stage() {
            return Err(vec![Diagnostic::new(
                "E0602",
                format!(
                    "pass `{}` takes a `{}`, but this is a `{}`",
                    pass.name,
                    pass.input.keyword(),
                    program.stage().keyword()
                ),
            )
            .hint("put the passes that lead to that stage before it; `cora-opt --list-passes` shows what each takes and gives")]);
        }
        let start = Instant::now();
        program = (pass.run)(program, cx, &invocation.args)?;
        observe(&Report { invocation, program: &program, time: start.elapsed() });
    }
    Ok(program)
}
