//! The entry points: C's pointers on one side, numbers and slices on the other.
//!
//! Names, order of parameters and results are those of NVIDIA's driver API; those with `_v2` are what its header calls by the
//! name without. Handles are numbers that are looked up, never followed.

#![allow(non_snake_case, reason = "the driver's names")]

mod kernels;
mod maps;

use super::capture::Mode;
use super::code::Code;
use super::log::Log;
use super::settings::Settings;
use super::state::State;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex, PoisonError};

static STATE: LazyLock<Mutex<Result<State, String>>> = LazyLock::new(|| {
    let state = || {
        let device = std::env::var("PTXSIM_DEVICE").unwrap_or_default();
        Ok(State::new(Settings::parse(&device)?, Log::from_env()?))
    };
    let state = state();
    if let Err(why) = &state {
        eprintln!("ptxsim: {why}");
    }
    Mutex::new(state)
});

/// A handle, as C has it: looked up, never followed.
type Handle = *mut c_void;

/// Answers a call: 0, or why not. No panic leaves it.
fn call(name: &str, work: impl FnOnce(&mut State) -> Result<(), Code>) -> u32 {
    let done = catch_unwind(AssertUnwindSafe(|| {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(state) = state.as_mut() else { return Err(Code::UNKNOWN) };
        let done = work(state);
        if let Err(code) = done {
            state.log.line(&format!("{name} -> {code}"));
        }
        done
    }));
    match done {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// As [`call`], on a thread with a context in which nothing has failed.
fn within(name: &str, work: impl FnOnce(&mut State) -> Result<(), Code>) -> u32 {
    call(name, |s| {
        s.ready()?;
        work(s)
    })
}

/// Gives a result to C.
///
/// # Safety
/// `to` is null or can be written.
unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

fn pointer(handle: u64) -> Handle {
    std::ptr::without_provenance_mut(handle as usize)
}

fn number(handle: Handle) -> u64 {
    handle.addr() as u64
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> u32 {
    call("cuInit", State::init)
}

// SAFETY (of this and all below): what the driver's manual says of the parameters is what is relied on, null checked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    // SAFETY: a result's place, by the manual.
    call("cuDriverGetVersion", |s| unsafe { give(version, s.settings.version) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: u32, text: *mut *const c_char) -> u32 {
    let found = Code(error).text();
    // SAFETY: a result's place, by the manual.
    let given = unsafe { give(text, found.map_or(std::ptr::null(), CStr::as_ptr)) };
    if found.is_some() && given.is_ok() { 0 } else { Code::INVALID_VALUE.0 }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    call("cuDeviceGetCount", |s| {
        s.started()?;
        // SAFETY: a result's place, by the manual.
        unsafe { give(count, s.settings.devices) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    // SAFETY: a result's place, by the manual.
    call("cuDeviceGet", |s| unsafe { give(device, s.device(ordinal)?) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> u32 {
    call("cuDeviceGetName", |s| {
        s.device(device)?;
        let len = usize::try_from(len).ok().filter(|&l| l > 0 && !name.is_null()).ok_or(Code::INVALID_VALUE)?;
        let text =
            format!("stand-in for a device of compute capability {}.{}", s.settings.arch / 10, s.settings.arch % 10);
        let text = &text.as_bytes()[..text.len().min(len - 1)];
        // SAFETY: there is room for `len` bytes, by the manual; one is kept for the NUL.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len());
            name.add(text.len()).write(0);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) -> u32 {
    // SAFETY: a result's place, by the manual.
    call("cuDevicePrimaryCtxRetain", |s| unsafe { give(context, pointer(s.retain(device)?)) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> u32 {
    call("cuDevicePrimaryCtxRelease_v2", |s| s.release(device))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Handle) -> u32 {
    call("cuCtxSetCurrent", |s| s.set_current(number(context)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32 {
    // SAFETY: a result's place, by the manual.
    within("cuMemAlloc_v2", |s| unsafe { give(address, s.alloc(bytes as u64)?) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    within("cuMemFree_v2", |s| s.free(address))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, _flags: c_uint) -> u32 {
    // SAFETY: a result's place, by the manual.
    within("cuMemHostAlloc", |s| unsafe { give(at, std::ptr::with_exposed_provenance_mut(s.alloc_host(bytes)?)) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(at: *mut c_void) -> u32 {
    within("cuMemFreeHost", |s| s.free_host(at.addr()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) -> u32 {
    // SAFETY: `from` is of as many bytes, by the manual.
    within("cuMemcpyHtoDAsync_v2", |s| unsafe { s.send(to, from.expose_provenance(), bytes, number(stream)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle) -> u32 {
    // SAFETY: `to` is of as many bytes, by the manual.
    within("cuMemcpyDtoHAsync_v2", |s| unsafe { s.fetch(to.expose_provenance(), from, bytes, number(stream)) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) -> u32 {
    within("cuMemcpyDtoDAsync_v2", |s| s.copy(to, from, bytes as u64, number(stream)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: Handle) -> u32 {
    within("cuMemsetD8Async", |s| s.fill(to, value, bytes as u64, number(stream)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut Handle, _flags: c_uint) -> u32 {
    // SAFETY: a result's place, by the manual.
    within("cuStreamCreate", |s| unsafe { give(stream, pointer(s.create_stream())) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Handle) -> u32 {
    within("cuStreamDestroy_v2", |s| s.destroy_stream(number(stream)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Handle) -> u32 {
    within("cuStreamSynchronize", |s| s.synchronize(number(stream)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) -> u32 {
    within("cuStreamBeginCapture_v2", |s| s.begin_capture(number(stream), Mode::new(mode)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> u32 {
    within("cuStreamEndCapture", |s| {
        let captured = s.end_capture(number(stream));
        // SAFETY: a result's place, by the manual; null where there is none.
        unsafe { give(graph, captured.map_or(std::ptr::null_mut(), pointer)) }?;
        captured.map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(to: *mut Handle, graph: Handle, _flags: c_ulonglong) -> u32 {
    // SAFETY: a result's place, by the manual.
    within("cuGraphInstantiateWithFlags", |s| unsafe { give(to, pointer(s.instantiate(number(graph))?)) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(graph: Handle, stream: Handle) -> u32 {
    within("cuGraphLaunch", |s| s.launch_graph(number(graph), number(stream)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: Handle) -> u32 {
    within("cuGraphDestroy", |s| s.destroy_graph(number(graph)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(graph: Handle) -> u32 {
    within("cuGraphExecDestroy", |s| s.destroy_launchable(number(graph)))
}

/// An event has no time if created with this flag.
const EVENT_DISABLE_TIMING: c_uint = 2;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut Handle, flags: c_uint) -> u32 {
    let timed = flags & EVENT_DISABLE_TIMING == 0;
    // SAFETY: a result's place, by the manual.
    within("cuEventCreate", |s| unsafe { give(event, pointer(s.create_event(timed))) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Handle) -> u32 {
    within("cuEventDestroy_v2", |s| s.destroy_event(number(event)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> u32 {
    within("cuEventRecord", |s| s.record(number(event), number(stream)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(ms: *mut f32, start: Handle, end: Handle) -> u32 {
    // SAFETY: a result's place, by the manual.
    within("cuEventElapsedTime", |s| unsafe { give(ms, s.elapsed(number(start), number(end))?) })
}
