//! The driver's entry points, and the one device behind them.
//!
//! ```text
//! entry: C pointers -> state::State { memory, pinned memory, streams, events, modules, graphs }
//! ```
//! Work of a stream waits in its queue until something waits for it, as late as a device could do it: who overwrites what is
//! still to be read, or reads what is still to be written, gets wrong results. Handles are numbers that are never given twice.
//! Calls are as strict as the driver's or stricter.
//!
//! | Variable | Meaning |
//! |---|---|
//! | `PTXSIM_LOG=FILE` | a line for each call that matters is appended (`log`) |
//! | `PTXSIM_DEVICE=memory=BYTES,arch=70,devices=0,version=11000,init=100` | what the device is, any of these (`settings`) |

mod capture;
mod code;
mod entry;
mod log;
mod module;
mod settings;
mod state;
mod stream;
#[cfg(test)]
mod tests;
