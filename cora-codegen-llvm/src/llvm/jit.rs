//! Objects loaded into this process through LLVM's ORC JIT.

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use mlir_sys::LLVMCreateMemoryBufferWithMemoryRangeCopy;

use super::error::CodegenError;
use super::ffi;

/// `e_machine` of the architecture that this process runs on: `EM_AARCH64` or `EM_X86_64`.
const HOST_ELF_MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Symbols and messages that ORC reports while it links, beside the return value.
type Reports = Mutex<Vec<String>>;

/// A loaded object file: code that this process can call.
///
/// Functions the object calls (`expf`, `memcpy`) are looked up in the process as `dlsym` does: in the executable's
/// exported symbols and in every shared library it loaded. Linking happens at the first [`lookup`](Self::lookup).
pub struct Jit {
    raw: ffi::LlJitRef,
    /// Boxed because LLVM holds its address.
    reports: Box<Reports>,
}

// SAFETY: LLJIT's session is guarded by its own locks, so the handle may be used from any thread; `reports` is a mutex.
unsafe impl Send for Jit {}
// SAFETY: as above; the only `&self` operation is the symbol lookup, which ORC allows from many threads at once.
unsafe impl Sync for Jit {}

impl Jit {
    /// Loads an object file for this machine; the bytes are copied.
    ///
    /// # Errors
    ///
    /// [`CodegenError::Llvm`] when the bytes are not an object file for this machine.
    pub fn load(object: &[u8]) -> Result<Self, CodegenError> {
        let stage = "load object";
        let error = |message| CodegenError::Llvm { stage: stage.to_owned(), message };
        // ORC would load an object of another architecture without complaint, and the first call would crash.
        match elf_machine(object) {
            Some(HOST_ELF_MACHINE) => {}
            Some(other) => {
                return Err(error(format!(
                    "the object is for ELF machine {other}, not {HOST_ELF_MACHINE} as this process"
                )));
            }
            None => return Err(error("not a 64-bit little-endian ELF file".to_owned())),
        }
        ffi::initialize();
        let mut raw = ptr::null_mut();
        // SAFETY: a null builder asks for the defaults of this machine; the out pointer is a local, and `check`
        // consumes the error.
        unsafe { ffi::check(ffi::LLVMOrcCreateLLJIT(&mut raw, ptr::null_mut())) }.map_err(error)?;
        let jit = Self { raw, reports: Box::default() };
        // SAFETY: the JIT is live. The reporter's data is the box's address, which stays the same while `Self` moves
        // and lives until after the JIT is disposed of in `drop`. Session, dylib and prefix belong to the JIT. The
        // generator is handed over to the dylib, the buffer (a copy of `object`) to the JIT, also on failure.
        unsafe {
            ffi::LLVMOrcExecutionSessionSetErrorReporter(
                ffi::LLVMOrcLLJITGetExecutionSession(jit.raw),
                keep_report,
                ptr::from_ref(&*jit.reports).cast_mut().cast(),
            );
            let dylib = ffi::LLVMOrcLLJITGetMainJITDylib(jit.raw);
            let mut generator = ptr::null_mut();
            ffi::check(ffi::LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess(
                &mut generator,
                ffi::LLVMOrcLLJITGetGlobalPrefix(jit.raw),
                ptr::null(),
                ptr::null_mut(),
            ))
            .map_err(error)?;
            ffi::LLVMOrcJITDylibAddGenerator(dylib, generator);
            let buffer =
                LLVMCreateMemoryBufferWithMemoryRangeCopy(object.as_ptr().cast(), object.len(), c"kernel".as_ptr());
            ffi::check(ffi::LLVMOrcLLJITAddObjectFile(jit.raw, dylib, buffer)).map_err(error)?;
        }
        Ok(jit)
    }

    /// The address of a function or a global of the object, valid while the `Jit` lives.
    ///
    /// The first lookup links the object.
    ///
    /// # Errors
    ///
    /// [`CodegenError::MissingSymbol`] when the object does not define `name`, [`CodegenError::UnresolvedSymbols`] when
    /// the object needs functions that this process lacks, [`CodegenError::Llvm`] when it does not link for another
    /// reason.
    pub fn lookup(&self, name: &str) -> Result<*const (), CodegenError> {
        let stage = "look up symbol";
        let symbol = ffi::c_string(stage, name)?;
        let mut address = 0_u64;
        // SAFETY: the JIT is live, the name is NUL-terminated and the out pointer is a local; `check` consumes the
        // error.
        let result = unsafe { ffi::check(ffi::LLVMOrcLLJITLookup(self.raw, &mut address, symbol.as_ptr())) };
        let reports = std::mem::take(&mut *self.reports.lock().unwrap_or_else(PoisonError::into_inner));
        let Err(message) = result else {
            return Ok(ptr::with_exposed_provenance(address as usize));
        };
        if missing_symbols(&message).is_some_and(|names| names == [name]) {
            return Err(CodegenError::MissingSymbol { name: name.to_owned() });
        }
        // A failed link returns only "Failed to materialize symbols"; the cause is in the reports.
        if let Some(names) = reports.iter().find_map(|report| missing_symbols(report)) {
            return Err(CodegenError::UnresolvedSymbols { names });
        }
        let message = [&[message], reports.as_slice()].concat().join("\n");
        Err(CodegenError::Llvm { stage: stage.to_owned(), message })
    }
}

impl Drop for Jit {
    fn drop(&mut self) {
        // SAFETY: the JIT is owned by this value and disposed of once; `reports`, which it may write to, still lives.
        let result = unsafe { ffi::check(ffi::LLVMOrcDisposeLLJIT(self.raw)) };
        debug_assert_eq!(result, Ok(()), "ORC could not free its code");
    }
}

impl fmt::Debug for Jit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Jit").finish_non_exhaustive()
    }
}

extern "C" fn keep_report(data: *mut c_void, error: ffi::ErrorRef) {
    // SAFETY: ORC passes the pointer given at registration, which is a live `Reports`, and an error that is ours to
    // consume.
    let (reports, message) = unsafe { (&*data.cast::<Reports>(), ffi::check(error)) };
    if let Err(message) = message {
        reports.lock().unwrap_or_else(PoisonError::into_inner).push(message);
    }
}

/// The names in ORC's message `Symbols not found: [ a, b ]`, which the C API gives only as text.
fn missing_symbols(message: &str) -> Option<Vec<String>> {
    let list = message.split_once("Symbols not found: [")?.1.split_once(']')?.0;
    Some(list.split(',').map(|name| name.trim().to_owned()).collect())
}

/// `e_machine` of a 64-bit little-endian ELF file.
fn elf_machine(object: &[u8]) -> Option<u16> {
    let header = object.get(..20)?;
    header.starts_with(b"\x7fELF\x02\x01").then(|| u16::from_le_bytes([header[18], header[19]]))
}
