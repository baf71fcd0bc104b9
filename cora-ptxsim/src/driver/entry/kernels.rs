//! Modules and launches.

use super::{Handle, give, number, pointer, within};
use crate::driver::code::Code;
use crate::driver::module::Launch;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

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
