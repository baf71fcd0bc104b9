//! The entry points: C's pointers on one side, numbers and slices on the other.
//!
//! Names, order of parameters and results are those of NVIDIA's driver API; those with `_v2` are what its header calls by the
//! name without. Handles are numbers that are looked up, never followed.

#![allow(non_snake_case, reason = "the driver's names")]

use super::capture::Mode;
use super::code::Code;
use super::log::Log;
use super::module::Launch;
use super::settings::Settings;
use super::state::State;
use crate::tensor_map::{self, TensorMap};
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

/// Options of `cuModuleLoadDataEx`: where errors are written, and how many bytes there are.
const JIT_ERROR_LOG: c_uint = 5;
const JIT_ERROR_LOG_BYTES: c_uint = 6;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut Handle,
    image: *const c_void,
    count: c_uint,
    options: *const c_uint,
    values: *mut *mut c_void,
) -> u32 {
    within("cuModuleLoadDataEx", |s| {
        if image.is_null() || (count > 0 && (options.is_null() || values.is_null())) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the image is text that ends in NUL, by the manual (of the images that it names, this is the one known here).
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
        match s.load(&text) {
            // SAFETY: a result's place, by the manual.
            Ok(m) => unsafe { give(module, pointer(m)) },
            Err(refused) => {
                // SAFETY: there are `count` options, by the manual.
                unsafe { write_log(&refused.log, count as usize, options, values) };
                Err(refused.code)
            }
        }
    })
}

/// Writes what the assembler says where the options want it, and how much that was.
///
/// # Safety
/// `options` and `values` have `count` entries, and those of the log are as the driver's manual says.
unsafe fn write_log(log: &str, count: usize, options: *const c_uint, values: *mut *mut c_void) {
    // SAFETY: the caller's promise.
    let find = |option| (0..count).find(|&n| unsafe { options.add(n).read() } == option);
    let (Some(at), Some(size)) = (find(JIT_ERROR_LOG), find(JIT_ERROR_LOG_BYTES)) else { return };
    // SAFETY: both are below `count`; the buffer is as long as the other option's value says, which is a number.
    unsafe {
        let (buffer, bytes) = (values.add(at).read().cast::<u8>(), values.add(size).read().addr());
        if buffer.is_null() || bytes == 0 {
            return;
        }
        let length = log.len().min(bytes - 1);
        std::ptr::copy_nonoverlapping(log.as_ptr(), buffer, length);
        buffer.add(length).write(0);
        values.add(size).write(std::ptr::without_provenance_mut(length));
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Handle) -> u32 {
    within("cuModuleUnload", |s| s.unload(number(module)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> u32 {
    within("cuModuleGetFunction", |s| {
        if name.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: a name that ends in NUL, by the manual.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        // SAFETY: a result's place, by the manual.
        unsafe { give(function, pointer(s.function(number(module), &name)?)) }
    })
}

/// The attribute of a kernel that is known here.
const MAX_DYNAMIC_SHARED: c_uint = 8;

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: Handle, attribute: c_uint, value: c_int) -> u32 {
    within("cuFuncSetAttribute", |s| match attribute {
        MAX_DYNAMIC_SHARED => s.allow_shared(number(function), value),
        _ => Err(Code::NOT_SUPPORTED),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: Handle,
    blocks_x: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    threads_x: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    shared: c_uint,
    stream: Handle,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> u32 {
    within("cuLaunchKernel", |s| {
        let sizes = s.params(number(function))?;
        if !extra.is_null() || (params.is_null() && !sizes.is_empty()) {
            return Err(Code::INVALID_VALUE);
        }
        let mut copied = Vec::new();
        for (n, bytes) in sizes.into_iter().enumerate() {
            // SAFETY: there is a pointer for each parameter of the kernel, by the manual.
            let from = unsafe { params.add(n).read() };
            if from.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            // SAFETY: it points to as many bytes as the parameter has, by the manual.
            copied.push(unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) }.to_vec());
        }
        let launch = Launch {
            function: number(function),
            blocks: [blocks_x, blocks_y, blocks_z],
            threads: [threads_x, threads_y, threads_z],
            shared,
            params: copied.into(),
        };
        s.launch(launch, number(stream))
    })
}

/// Bytes of an element of each of the driver's types for tensor maps.
const ELEM_BYTES: [u64; 13] = [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4];
/// Pieces of lines of 128 bytes permuted, of the ways that there are to do it.
const SWIZZLE_128B: c_uint = 3;
/// Alignment of a map, in bytes.
const MAP_ALIGN: usize = 64;
/// A map has at most so many dimensions.
const MOST_RANK: c_uint = 5;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuTensorMapEncodeTiled(
    map: *mut c_void,
    ty: c_uint,
    rank: c_uint,
    address: *mut c_void,
    sizes: *const u64,
    strides: *const u64,
    extents: *const c_uint,
    every: *const c_uint,
    interleave: c_uint,
    swizzle: c_uint,
    _promotion: c_uint,
    fill: c_uint,
) -> u32 {
    within("cuTensorMapEncodeTiled", |s| {
        let elem_bytes = *ELEM_BYTES.get(ty as usize).ok_or(Code::INVALID_VALUE)?;
        let lists = !sizes.is_null() && !extents.is_null() && !every.is_null() && (rank == 1 || !strides.is_null());
        let placed = !map.is_null() && map.addr().is_multiple_of(MAP_ALIGN);
        if !lists || !placed || !(1..=MOST_RANK).contains(&rank) {
            return Err(Code::INVALID_VALUE);
        }
        let n = rank as usize;
        // SAFETY: the lists have an entry for each dimension, that of strides one fewer, by the manual.
        let list = |p: *const c_uint| unsafe { std::slice::from_raw_parts(p, n) };
        if interleave != 0 || fill != 0 || ![0, SWIZZLE_128B].contains(&swizzle) || list(every).iter().any(|&e| e != 1)
        {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: as above.
        let (sizes, strides) = unsafe {
            let strides = if n == 1 { &[][..] } else { std::slice::from_raw_parts(strides, n - 1) };
            (std::slice::from_raw_parts(sizes, n).to_vec(), strides.to_vec())
        };
        let (extents, swizzled) = (list(extents).to_vec(), swizzle == SWIZZLE_128B);
        let what = TensorMap { elem_bytes, address: address.addr() as u64, sizes, strides, extents, swizzled };
        let bytes = s.tensor_map(&what)?;
        // SAFETY: a map's place, of 128 bytes, by the manual.
        unsafe { map.cast::<[u8; 128]>().write(bytes) };
        Ok(())
    })
}

impl State {
    /// A map of memory that is allocated.
    fn tensor_map(&mut self, what: &TensorMap) -> Result<[u8; 128], Code> {
        if self.settings.version < 12_000 || self.settings.arch < 90 {
            return Err(Code::NOT_SUPPORTED);
        }
        let steps = std::iter::once(what.elem_bytes).chain(what.strides.iter().copied());
        let last = what
            .sizes
            .iter()
            .zip(steps)
            .try_fold(0u64, |sum, (&size, step)| sum.checked_add(size.checked_sub(1)?.checked_mul(step)?));
        let bytes = last.and_then(|l| l.checked_add(what.elem_bytes)).ok_or(Code::INVALID_VALUE)?;
        self.inside(what.address, bytes)?;
        tensor_map::encode(what).map_err(|why| {
            self.log.line(&format!("tensor map: {why}"));
            Code::INVALID_VALUE
        })
    }
}
