//! The driver's objects, each freed when dropped. Every call of the driver is in this file.

use crate::abi::{DType, GridMap};
use crate::error::{Error, Result};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::ffi::{CString, c_void};
use std::time::Duration;

/// The first driver with tensor maps, CUDA 12.0, and the first with the call that makes a graph launchable, CUDA 11.4.
const MAPS_SINCE: i32 = 12_000;
const GRAPHS_SINCE: i32 = 11_040;

/// A buffer as the copy engine sees it: 128 bytes, aligned to 64.
#[derive(Clone, Copy)]
pub(super) struct TensorMap(sys::CUtensorMap);

/// What a kernel takes.
pub(super) enum Arg {
    Word(u64),
    Map(TensorMap),
}

/// Bytes of the log that the driver's assembler may write.
const LOG: usize = 16 << 10;

/// Whether the driver is recent enough for something: a call that it lacks cannot be asked for.
fn since(least: i32, what: &str) -> Result<()> {
    let mut version = 0;
    // SAFETY: asks for a number.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("the driver's version"))?;
    let text = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
    if version < least {
        let (has, needs) = (text(version), text(least));
        return Err(Error::Cuda(format!("the CUDA driver is for CUDA {has}: {what} need {needs}")));
    }
    Ok(())
}

fn failed(what: &str) -> impl Fn(DriverError) -> Error + '_ {
    move |e| {
        let name = e.error_string().map_or_else(|_| format!("{e:?}"), |s| s.to_string_lossy().into_owned());
        Error::Cuda(format!("{what}: {name}"))
    }
}

/// The first device of this machine, and a stream on it.
pub(super) struct Context {
    stream: sys::CUstream,
    name: String,
    /// Released after the stream.
    _primary: Primary,
}

/// The device's context, for as long as this is there.
struct Primary(sys::CUdevice);

impl Primary {
    /// Makes it that of this thread.
    fn retain(device: sys::CUdevice) -> Result<Primary> {
        // SAFETY: the device is valid; the context is released in `drop`.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(failed("no context on the device"))?;
        let retained = Primary(device);
        // SAFETY: the context was retained just now.
        unsafe { result::ctx::set_current(context) }.map_err(failed("no context on the device"))?;
        Ok(retained)
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // SAFETY: retained once, in `retain`. An error cannot be answered here.
        unsafe {
            let _ = result::primary_ctx::release(self.0);
        }
    }
}

impl Context {
    pub(super) fn new() -> Result<Context> {
        // SAFETY: only asks whether the library can be opened.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Cuda("there is no CUDA driver on this machine".to_owned()));
        }
        result::init().map_err(failed("the CUDA driver does not start"))?;
        if result::device::get_count().map_err(failed("devices cannot be counted"))? == 0 {
            return Err(Error::Cuda("there is no CUDA device on this machine".to_owned()));
        }
        let device = result::device::get(0).map_err(failed("the device cannot be opened"))?;
        let name = result::device::get_name(device).map_err(failed("the device has no name"))?;
        let primary = Primary::retain(device)?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = stream.map_err(failed("no stream on the device"))?;
        Ok(Context { stream, name, _primary: primary })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Has the driver compile PTX.
    pub(super) fn load(&self, ptx: &str) -> Result<Module> {
        let image = CString::new(ptx).map_err(|_| Error::Cuda("the PTX contains a NUL".to_owned()))?;
        let mut log = vec![0u8; LOG];
        let mut options =
            [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG as *mut c_void];
        let mut module = std::ptr::null_mut();
        // SAFETY: the image ends in NUL; both options have the values that the driver's manual wants, and the log
        // outlives the call.
        let done = unsafe {
            sys::cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
        };
        done.result().map_err(|e| {
            let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(&log[..end]).into_owned();
            let why = failed("the driver refuses the code")(e);
            if log.is_empty() { why } else { Error::Cuda(format!("{why}\n{log}")) }
        })?;
        Ok(Module(module))
    }

    /// Makes `block`, which `what` names in messages, at least `bytes` long; it loses its contents if it grows.
    pub(super) fn reserve(&self, block: &mut Block, bytes: u64, what: &str) -> Result<()> {
        if block.bytes >= bytes && block.address != 0 {
            return Ok(());
        }
        *block = Block::default();
        // Some room to grow, so that a slightly longer batch needs no new memory.
        let wanted = bytes.checked_add(bytes / 8).and_then(|b| b.max(1).checked_next_multiple_of(256));
        let beyond = || Error::Cuda(format!("{bytes} bytes for {what} on the device"));
        let size = wanted.and_then(|w| usize::try_from(w).ok()).ok_or_else(beyond)?;
        // SAFETY: the block is freed in its `drop`.
        let address = unsafe { result::malloc_sync(size) };
        let address = address.map_err(failed(&format!("{size} bytes for {what} on the device")))?;
        *block = Block { address, bytes: size as u64 };
        Ok(())
    }

    /// `bytes` bytes of page-locked memory.
    pub(super) fn pin<'a>(&self, pinned: &'a mut Pinned, bytes: u64) -> Result<&'a mut [u8]> {
        let size = usize::try_from(bytes).map_err(|_| Error::Cuda(format!("{bytes} pinned bytes")))?;
        if pinned.bytes < size || pinned.at.is_null() {
            *pinned = Pinned::default();
            let wanted = size.max(1).next_power_of_two();
            // SAFETY: freed in `drop`.
            let at = unsafe { result::malloc_host(wanted, 0) }.map_err(failed("pinned memory"))?;
            // SAFETY: the memory is ours and `wanted` bytes long.
            unsafe { std::ptr::write_bytes(at.cast::<u8>(), 0, wanted) };
            *pinned = Pinned { at: at.cast(), bytes: wanted };
        }
        // SAFETY: initialised above, at least `size` bytes, borrowed from `pinned`.
        Ok(unsafe { std::slice::from_raw_parts_mut(pinned.at, size) })
    }

    pub(super) fn upload(&self, block: &Block, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        assert!(bytes.len() as u64 <= block.bytes, "a buffer is reserved before it is filled");
        // SAFETY: the block holds as many bytes, and the source lives until the stream has been waited for.
        unsafe { result::memcpy_htod_async(block.address, bytes, self.stream) }
            .map_err(failed("copying to the device"))?;
        self.synchronize()
    }

    /// Copies to a part of a block.
    pub(super) fn upload_at(&self, block: &Block, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(end.is_some_and(|e| e <= block.bytes), "a buffer is reserved before it is filled");
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the part is inside the block, and the source lives until the stream has been waited for.
        unsafe { result::memcpy_htod_async(block.address + offset, bytes, self.stream) }
            .map_err(failed("copying to the device"))?;
        self.synchronize()
    }

    pub(super) fn download(&self, block: &Block, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        assert!(bytes.len() as u64 <= block.bytes, "a buffer is reserved before it is read");
        // SAFETY: the block holds as many bytes, and the target lives until the stream has been waited for.
        unsafe { result::memcpy_dtoh_async(bytes, block.address, self.stream) }
            .map_err(failed("copying from the device"))?;
        self.synchronize()
    }

    /// Fills a part of a block, in the order of the stream; the host does not wait.
    pub(super) fn fill(&self, block: &Block, offset: u64, bytes: u64, value: u8) -> Result<()> {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|e| e <= block.bytes), "a buffer is reserved before it is filled");
        let size = usize::try_from(bytes).map_err(|_| Error::Cuda(format!("{bytes} bytes on the device")))?;
        if size == 0 {
            return Ok(());
        }
        // SAFETY: the part is inside the block, which is freed after the stream has been waited for.
        unsafe { result::memset_d8_async(block.address + offset, value, size, self.stream) }
            .map_err(failed("filling memory of the device"))
    }

    /// Copies the beginning of a block to that of another, in the order of the stream; the host does not wait.
    pub(super) fn copy(&self, from: &Block, to: &Block, bytes: u64) -> Result<()> {
        assert!(bytes <= from.bytes.min(to.bytes), "both are reserved before one is copied");
        let size = usize::try_from(bytes).map_err(|_| Error::Cuda(format!("{bytes} bytes on the device")))?;
        if size == 0 {
            return Ok(());
        }
        // SAFETY: both blocks hold as many bytes; they are freed after the stream has been waited for.
        unsafe { result::memcpy_dtod_async(to.address, from.address, size, self.stream) }
            .map_err(failed("copying on the device"))
    }

    pub(super) fn launch(
        &self,
        function: &Function,
        blocks: [u32; 3],
        threads: [u32; 3],
        shared: u32,
        args: &mut [Arg],
    ) -> Result<()> {
        let pointer = |a: &mut Arg| match a {
            Arg::Word(w) => std::ptr::from_mut(w).cast(),
            Arg::Map(m) => std::ptr::from_mut(&mut m.0).cast(),
        };
        let mut params: Vec<*mut c_void> = args.iter_mut().map(pointer).collect();
        let ([bx, by, bz], [tx, ty, tz]) = (blocks, threads);
        // SAFETY: the function is of a loaded module; each parameter points to the 8 bytes, or to the tensor map, that its
        // kernel takes, by the launch description; what kernels do is trusted.
        unsafe { result::launch_kernel(function.0, (bx, by, bz), (tx, ty, tz), shared, self.stream, &mut params) }
            .map_err(failed("launching a kernel"))
    }

    /// Whether the driver knows tensor maps.
    pub(super) fn can_map(&self) -> Result<()> {
        since(MAPS_SINCE, "tensor maps")
    }

    /// A buffer as the copy engine sees it.
    pub(super) fn tensor_map(&self, m: &GridMap, dtype: DType, address: u64, sizes: &[u64]) -> Result<TensorMap> {
        use sys::CUtensorMapDataType as T;
        let ty = match dtype {
            DType::Bool | DType::I8 => T::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            DType::I16 => T::CU_TENSOR_MAP_DATA_TYPE_UINT16,
            DType::I32 => T::CU_TENSOR_MAP_DATA_TYPE_INT32,
            DType::I64 => T::CU_TENSOR_MAP_DATA_TYPE_INT64,
            DType::F16 => T::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            DType::BF16 => T::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            DType::F32 => T::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            DType::F64 => T::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
        };
        let swizzle = match m.swizzled {
            true => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            false => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
        };
        let extents: Vec<u32> = m.dims.iter().map(|d| d.extent).collect();
        let strides: Vec<u64> = m.dims.iter().skip(1).map(|d| d.step * dtype.size() as u64).collect();
        let every = vec![1u32; m.dims.len()];
        let mut map = TensorMap(sys::CUtensorMap { opaque: [0; 16] });
        // SAFETY: the lists have as many entries as there are dimensions, the strides one less; the map is 128 bytes, aligned
        // to 64; the driver is new enough (`can_map`). What the map reaches is inside the buffer (`GridMap::sizes`).
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map.0,
                ty,
                m.dims.len() as u32,
                address as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                extents.as_ptr(),
                every.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .map_err(failed("a tensor map"))?;
        Ok(map)
    }

    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is live.
        unsafe { result::stream::synchronize(self.stream) }.map_err(failed("running on the device"))
    }

    /// What `work` puts on the stream, as a graph that is launched as a whole; nothing runs yet.
    pub(super) fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        since(GRAPHS_SINCE, "graphs")?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is live.
        unsafe { result::stream::begin_capture(self.stream, mode) }.map_err(failed("capturing a graph"))?;
        let worked = work();
        // SAFETY: the capture that has begun is ended, whatever came of the work.
        let graph = unsafe { result::stream::end_capture(self.stream) }.map_err(failed("capturing a graph"));
        worked?;
        let graph = graph?;
        // SAFETY: the graph was captured just now; what can be launched of it is a copy.
        let made = unsafe {
            let made = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            made
        };
        made.map(Graph).map_err(failed("making a graph"))
    }

    pub(super) fn launch_graph(&self, graph: &Graph) -> Result<()> {
        // SAFETY: graph and stream are live; what its kernels use is kept by who captured it.
        unsafe { result::graph::launch(graph.0, self.stream) }.map_err(failed("launching a graph"))
    }

    /// The present point of the stream.
    pub(super) fn mark(&self) -> Result<Mark> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failed("an event"))?;
        let mark = Mark(event);
        // SAFETY: event and stream are live.
        unsafe { result::event::record(event, self.stream) }.map_err(failed("an event"))?;
        Ok(mark)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made in `new`; all that uses them was dropped before. An error cannot be answered here.
        unsafe {
            let _ = result::stream::destroy(self.stream);
        }
    }
}

/// Loaded code.
pub(super) struct Module(sys::CUmodule);

impl Module {
    /// A kernel, allowed `shared` bytes of dynamic shared memory.
    pub(super) fn function(&self, symbol: &str, shared: u32) -> Result<Function> {
        let missing = || Error::Kernel { symbol: symbol.to_owned() };
        let name = CString::new(symbol).map_err(|_| missing())?;
        // SAFETY: the module is loaded.
        let f = unsafe { result::module::get_function(self.0, name) }.map_err(|_| missing())?;
        if shared > 0 {
            let what = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(shared).unwrap_or(i32::MAX);
            // SAFETY: the function exists.
            unsafe { result::function::set_function_attribute(f, what, bytes) }
                .map_err(failed(&format!("{shared} bytes of shared memory for `{symbol}`")))?;
        }
        Ok(Function(f))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once. An error cannot be answered here.
        let _ = unsafe { result::module::unload(self.0) };
    }
}

/// A kernel of a module, which must stay loaded.
pub(super) struct Function(sys::CUfunction);

/// Memory of the device.
#[derive(Default)]
pub(super) struct Block {
    address: sys::CUdeviceptr,
    bytes: u64,
}

impl Block {
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.address != 0 {
            // SAFETY: allocated by `reserve`, freed once. An error cannot be answered here.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Page-locked memory of the host.
pub(super) struct Pinned {
    at: *mut u8,
    bytes: usize,
}

impl Default for Pinned {
    fn default() -> Self {
        Pinned { at: std::ptr::null_mut(), bytes: 0 }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.at.is_null() {
            // SAFETY: allocated by `pin`, freed once. An error cannot be answered here.
            let _ = unsafe { result::free_host(self.at.cast()) };
        }
    }
}

/// Work that is launched as a whole.
pub(super) struct Graph(sys::CUgraphExec);

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once. An error cannot be answered here.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

/// A point of the stream.
pub(super) struct Mark(sys::CUevent);

impl Mark {
    /// The time from this point to `later`; both have passed.
    pub(super) fn until(&self, later: &Mark) -> Result<Duration> {
        // SAFETY: both events are live and recorded.
        let ms = unsafe { result::event::elapsed(self.0, later.0) }.map_err(failed("a time"))?;
        Ok(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once. An error cannot be answered here.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}
