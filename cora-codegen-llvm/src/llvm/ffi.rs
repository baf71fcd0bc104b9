//! LLVM C functions that `mlir-sys` does not bind, owned LLVM strings, and the one-time initialisation.
//!
//! The functions come from the same LLVM library that `mlir-sys` links, so there is one LLVM in the process.
//! The declarations repeat `llvm-c/{Target,TargetMachine,Error,LLJIT,Orc,Transforms/PassBuilder}.h` of LLVM 22.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Once;

use mlir_sys::{LLVMDisposeMessage, LLVMMemoryBufferRef, LLVMModuleRef};

use super::error::CodegenError;
use super::fatal;

/// Defines an opaque handle type, so that handles of different kinds cannot be mixed up.
macro_rules! handles {
    ($($name:ident = $opaque:ident;)*) => {$(
        #[repr(C)]
        pub(super) struct $opaque { _private: [u8; 0] }
        pub(super) type $name = *mut $opaque;
    )*};
}

handles! {
    TargetRef = Target;
    TargetMachineRef = TargetMachine;
    TargetDataRef = TargetData;
    PassBuilderOptionsRef = PassBuilderOptions;
    ErrorRef = LlvmError;
    LlJitRef = LlJit;
    LlJitBuilderRef = LlJitBuilder;
    JitDylibRef = JitDylib;
    ExecutionSessionRef = ExecutionSession;
    DefinitionGeneratorRef = DefinitionGenerator;
}

/// `LLVMCodeGenLevelAggressive`.
pub(super) const CODEGEN_AGGRESSIVE: c_int = 3;
/// `LLVMRelocPIC`.
pub(super) const RELOC_PIC: c_int = 2;
/// `LLVMCodeModelDefault`.
pub(super) const CODE_MODEL_DEFAULT: c_int = 0;
/// `LLVMAssemblyFile`.
pub(super) const ASSEMBLY_FILE: c_int = 0;
/// `LLVMObjectFile`.
pub(super) const OBJECT_FILE: c_int = 1;
/// `LLVMDSError`.
pub(super) const DIAGNOSTIC_ERROR: u32 = 0;

unsafe extern "C" {
    fn LLVMInitializeX86TargetInfo();
    fn LLVMInitializeX86Target();
    fn LLVMInitializeX86TargetMC();
    fn LLVMInitializeX86AsmPrinter();
    fn LLVMInitializeX86AsmParser();
    fn LLVMInitializeAArch64TargetInfo();
    fn LLVMInitializeAArch64Target();
    fn LLVMInitializeAArch64TargetMC();
    fn LLVMInitializeAArch64AsmPrinter();
    fn LLVMInitializeAArch64AsmParser();
    fn LLVMInitializeNVPTXTargetInfo();
    fn LLVMInitializeNVPTXTarget();
    fn LLVMInitializeNVPTXTargetMC();
    fn LLVMInitializeNVPTXAsmPrinter();

    pub(super) fn LLVMGetHostCPUName() -> *mut c_char;
    pub(super) fn LLVMGetHostCPUFeatures() -> *mut c_char;
    pub(super) fn LLVMGetTargetFromTriple(
        triple: *const c_char,
        target: *mut TargetRef,
        message: *mut *mut c_char,
    ) -> c_int;
    pub(super) fn LLVMCreateTargetMachine(
        target: TargetRef,
        triple: *const c_char,
        cpu: *const c_char,
        features: *const c_char,
        level: c_int,
        reloc: c_int,
        code_model: c_int,
    ) -> TargetMachineRef;
    pub(super) fn LLVMDisposeTargetMachine(machine: TargetMachineRef);
    pub(super) fn LLVMCreateTargetDataLayout(machine: TargetMachineRef) -> TargetDataRef;
    pub(super) fn LLVMDisposeTargetData(layout: TargetDataRef);
    pub(super) fn LLVMSetModuleDataLayout(module: LLVMModuleRef, layout: TargetDataRef);
    pub(super) fn LLVMTargetMachineEmitToMemoryBuffer(
        machine: TargetMachineRef,
        module: LLVMModuleRef,
        file_type: c_int,
        message: *mut *mut c_char,
        buffer: *mut LLVMMemoryBufferRef,
    ) -> c_int;

    pub(super) fn LLVMCreatePassBuilderOptions() -> PassBuilderOptionsRef;
    pub(super) fn LLVMDisposePassBuilderOptions(options: PassBuilderOptionsRef);
    pub(super) fn LLVMRunPasses(
        module: LLVMModuleRef,
        passes: *const c_char,
        machine: TargetMachineRef,
        options: PassBuilderOptionsRef,
    ) -> ErrorRef;

    fn LLVMGetErrorMessage(error: ErrorRef) -> *mut c_char;
    fn LLVMDisposeErrorMessage(message: *mut c_char);

    pub(super) fn LLVMOrcCreateLLJIT(result: *mut LlJitRef, builder: LlJitBuilderRef) -> ErrorRef;
    pub(super) fn LLVMOrcDisposeLLJIT(jit: LlJitRef) -> ErrorRef;
    pub(super) fn LLVMOrcLLJITGetExecutionSession(jit: LlJitRef) -> ExecutionSessionRef;
    pub(super) fn LLVMOrcLLJITGetMainJITDylib(jit: LlJitRef) -> JitDylibRef;
    pub(super) fn LLVMOrcLLJITGetGlobalPrefix(jit: LlJitRef) -> c_char;
    pub(super) fn LLVMOrcLLJITAddObjectFile(jit: LlJitRef, dylib: JitDylibRef, object: LLVMMemoryBufferRef)
    -> ErrorRef;
    pub(super) fn LLVMOrcLLJITLookup(jit: LlJitRef, address: *mut u64, name: *const c_char) -> ErrorRef;
    pub(super) fn LLVMOrcExecutionSessionSetErrorReporter(
        session: ExecutionSessionRef,
        report: extern "C" fn(*mut c_void, ErrorRef),
        data: *mut c_void,
    );
    pub(super) fn LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess(
        result: *mut DefinitionGeneratorRef,
        global_prefix: c_char,
        filter: *const c_void,
        filter_data: *mut c_void,
    ) -> ErrorRef;
    pub(super) fn LLVMOrcJITDylibAddGenerator(dylib: JitDylibRef, generator: DefinitionGeneratorRef);
}

/// Registers the targets we emit for, and the fatal error handler. Every entry to LLVM calls this first.
pub(super) fn initialize() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the initialisers take no arguments and only add to LLVM's target registry, which nothing else in
        // this process writes; `Once` makes this the only call and every other thread waits for it.
        unsafe {
            LLVMInitializeX86TargetInfo();
            LLVMInitializeX86Target();
            LLVMInitializeX86TargetMC();
            LLVMInitializeX86AsmPrinter();
            LLVMInitializeX86AsmParser();
            LLVMInitializeAArch64TargetInfo();
            LLVMInitializeAArch64Target();
            LLVMInitializeAArch64TargetMC();
            LLVMInitializeAArch64AsmPrinter();
            LLVMInitializeAArch64AsmParser();
            LLVMInitializeNVPTXTargetInfo();
            LLVMInitializeNVPTXTarget();
            LLVMInitializeNVPTXTargetMC();
            LLVMInitializeNVPTXAsmPrinter();
        }
        fatal::install_handler();
    });
}

/// Copies a string that LLVM allocated for us, and frees it. Null gives the empty string.
///
/// # Safety
///
/// `message` is null or a string that is freed by `LLVMDisposeMessage` and that no one else frees.
pub(super) unsafe fn take_message(message: *mut c_char) -> String {
    if message.is_null() {
        return String::new();
    }
    // SAFETY: the caller passes a live NUL-terminated string that is ours to free; it is not used after the free.
    unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        LLVMDisposeMessage(message);
        text
    }
}

/// Turns an `LLVMErrorRef` into a result: null is success, otherwise the error is consumed and its message returned.
///
/// # Safety
///
/// `error` is null or a live error that no one else consumes.
pub(super) unsafe fn check(error: ErrorRef) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the caller passes a live error; `LLVMGetErrorMessage` consumes it and gives a NUL-terminated string
    // that `LLVMDisposeErrorMessage` frees, after which it is not used.
    unsafe {
        let message = LLVMGetErrorMessage(error);
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        LLVMDisposeErrorMessage(message);
        Err(text)
    }
}

/// A NUL-terminated copy for LLVM; text with a NUL inside is an error of the given stage.
pub(super) fn c_string(stage: &str, text: &str) -> Result<CString, CodegenError> {
    CString::new(text)
        .map_err(|error| CodegenError::Llvm { stage: stage.to_owned(), message: format!("`{text}`: {error}") })
}
