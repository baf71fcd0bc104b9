//! `double_buffer Tl 3`: a buffer that is filled and used in each iteration of a loop gets several slots (two, where
//! none are given), and the contents of later iterations are made before this iteration's are used.
//!
//! ```text
//! for k { for .. { Tl = T[k, ..] }  S += Tl }
//!   =>  if 0 < K { Tl[0] = T[0, ..] }  for k { if k + 1 < K { Tl[(k+1) % 2] = T[k+1, ..] }  S += Tl[k % 2] }
//! ```
//!
//! So that loads are under way while the last ones are computed with; in a grid no barrier has to stand between the copy
//! ahead and the use of another slot, and what only copies into shared memory goes on beside the threads (`copy-ahead`).
//! The step marks the tensor's layout; `double-buffer` moves the statements once offsets are flat. The loop is the
//! innermost around all uses of the buffer. Any trip count is fine: nothing is made for iterations that there are not.
//!
//! Requires: a local or shared buffer, its producer before its readers in a serial loop, reading nothing that the loop
//! writes. Ensures: the same values. That it holds is checked by lowering the nest as it is now, and again when the whole
//! program is lowered.

use super::tree::{find_stage, writes_below, written_by};
use crate::lower::double_buffer::{REFUSAL, double_buffer as fill_ahead};
use crate::lower::to_storage::lowered_alone;
use cora_ir::layout::LayoutStep;
use cora_ir::loops::LoopModule;
use cora_ir::{Diagnostic, Scope};

/// More slots than any loop gains by.
const MOST: i64 = 16;

/// Gives the buffer of `stage` so many slots.
///
/// # Errors
/// `E0401` unknown stage, `E0459` a number of slots that is not sensible, a stage without a buffer in a loop, one in registers, or whose next contents cannot be
/// made ahead.
pub fn double_buffer(m: &mut LoopModule, stage: &str, slots: i64) -> Result<(), Diagnostic> {
    let t = find_stage(m, stage)?;
    let t = written_by(m, t);
    let tensor = &m.env.tensors[t];
    let refuse = |fact: &str, hint: &str| {
        Err(Diagnostic::new(REFUSAL, format!("`{stage}` cannot have several slots: {fact}")).hint(hint))
    };
    if !(2..=MOST).contains(&slots) {
        return refuse(&format!("{slots} are not possible"), &format!("give 2 to {MOST} slots"));
    }
    match tensor.scope {
        Scope::Local | Scope::Shared => {}
        Scope::Global => return refuse("it is not a buffer inside a loop", "cache_read or compute_at first"),
        Scope::Reg => return refuse("registers cannot be chosen by a variable", "use scope `local` or `shared`"),
    }
    if tensor.slots().is_some() {
        return refuse("it has slots already", "leave out the step");
    }
    let writes = |n: &usize| m.body[*n].concerned().may_have(t) && writes_below(&m.body[*n..=*n]).contains(&t);
    let nests: Vec<usize> = (0..m.body.len()).filter(writes).collect();
    let marked = |alone: &mut LoopModule| alone.env.tensors[t].layout.push(LayoutStep::Slots(slots));
    // What has no storage yet may get it by later steps.
    lowered_alone(m, &nests, marked, |lowered| lowered.map_or(Ok(()), fill_ahead))?;
    m.env.tensors[t].layout.push(LayoutStep::Slots(slots));
    Ok(())
}
