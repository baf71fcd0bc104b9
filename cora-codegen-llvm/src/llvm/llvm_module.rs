//! An LLVM IR module with its context and target machine: translate, optimise, emit.

use std::cell::RefCell;
use std::ffi::c_void;
use std::fmt;
use std::ptr;

use mlir_sys::{
    LLVMCloneModule, LLVMContextCreate, LLVMContextDispose, LLVMContextRef, LLVMContextSetDiagnosticHandler,
    LLVMDiagnosticInfoRef, LLVMDisposeMemoryBuffer, LLVMDisposeModule, LLVMGetBufferSize, LLVMGetBufferStart,
    LLVMGetDiagInfoDescription, LLVMGetDiagInfoSeverity, LLVMMemoryBufferRef, LLVMModuleRef, LLVMPrintModuleToString,
    LLVMSetTarget, mlirTranslateModuleToLLVMIR,
};

use super::convergent;
use super::error::CodegenError;
use super::fatal::Trace;
use super::ffi;
use super::mlir_module::MlirModule;
use super::target::TargetSpec;
use super::{lone_lanes, masks};

/// LLVM IR for one target.
pub struct LlvmModule {
    // Dropped in this order: the module is of the context, and both may be used with the machine.
    module: OwnedModule,
    machine: TargetMachine,
    context: LlvmContext,
    target: TargetSpec,
    trace: Trace,
}

impl LlvmModule {
    /// Translates a module of the `llvm` dialect (after [`CPU_PIPELINE`](super::CPU_PIPELINE)) to LLVM IR for `target`.
    ///
    /// # Errors
    ///
    /// [`CodegenError::Mlir`] when an op has no translation, [`CodegenError::Llvm`] when LLVM lacks the target.
    pub fn from_mlir(module: &MlirModule, target: &TargetSpec) -> Result<Self, CodegenError> {
        ffi::initialize();
        let mut trace = module.trace().clone();
        trace.step(format!("translate to LLVM IR for {target}"));
        let machine = TargetMachine::new(target)?;
        let context = LlvmContext::new();
        let (raw, diagnostics) = module.with_diagnostics(|module| {
            // SAFETY: the operation is a live module borrowed for the call, and the context is live.
            unsafe { mlirTranslateModuleToLLVMIR(module.as_operation().to_raw(), context.raw) }
        });
        if raw.is_null() {
            return Err(CodegenError::Mlir { stage: "translate to LLVM IR".to_owned(), diagnostics });
        }
        let module = OwnedModule(raw);
        let triple = ffi::c_string("create target machine", target.triple())?;
        // SAFETY: module and machine are live, the triple is a NUL-terminated string, and the layout is freed once,
        // after the module has copied it.
        unsafe {
            LLVMSetTarget(module.0, triple.as_ptr());
            let layout = ffi::LLVMCreateTargetDataLayout(machine.0);
            ffi::LLVMSetModuleDataLayout(module.0, layout);
            ffi::LLVMDisposeTargetData(layout);
            convergent::mark(module.0);
        }
        Ok(Self { module, machine, context, target: target.clone(), trace })
    }

    /// Runs an LLVM pass pipeline given as text, such as `default<O3>`.
    ///
    /// # Errors
    ///
    /// [`CodegenError::Llvm`] when the text names no pipeline or a pass reports an error.
    pub fn optimize(&mut self, pipeline: &str) -> Result<(), CodegenError> {
        let stage = "optimize";
        self.trace.step(format!("{stage} with {pipeline}"));
        let passes = ffi::c_string(stage, pipeline)?;
        // SAFETY: module, machine and options are live for the call; the error is consumed by `check` and the options
        // are freed once.
        let result = unsafe {
            let options = ffi::LLVMCreatePassBuilderOptions();
            let result = ffi::check(ffi::LLVMRunPasses(self.module.0, passes.as_ptr(), self.machine.0, options));
            ffi::LLVMDisposePassBuilderOptions(options);
            result
        };
        result.map_err(|message| CodegenError::Llvm { stage: stage.to_owned(), message })?;
        self.context.take_errors(stage)
    }

    /// Leaves the code generator no choice about masks that it makes badly: where masks have registers of their own,
    /// each vector comparison is computed where it stands, once, rather than again beside its users; and a masked store of
    /// one lane is a store of that lane, which it would make too wide. Belongs after optimisation, which would undo it.
    pub fn settle_masks(&mut self) {
        // SAFETY: the module is live and borrowed for the calls.
        unsafe {
            lone_lanes::store(self.module.0);
            if self.target.has_feature("avx512f") {
                masks::keep(self.module.0);
            }
        }
    }

    /// The LLVM IR as text.
    pub fn to_ir_string(&self) -> String {
        // SAFETY: the module is live; the returned string is ours to free.
        unsafe { ffi::take_message(LLVMPrintModuleToString(self.module.0)) }
    }

    /// Emits assembly, or PTX for an NVIDIA target.
    ///
    /// # Errors
    ///
    /// [`CodegenError::Llvm`] when the back end reports an error, for example in inline assembly.
    pub fn emit_asm(&self) -> Result<String, CodegenError> {
        let bytes = self.emit("emit assembly", ffi::ASSEMBLY_FILE)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Emits a relocatable, position-independent object file.
    ///
    /// # Errors
    ///
    /// As [`emit_asm`](Self::emit_asm).
    pub fn emit_object(&self) -> Result<Vec<u8>, CodegenError> {
        self.emit("emit object", ffi::OBJECT_FILE)
    }

    /// The target that the IR is for.
    pub fn target(&self) -> &TargetSpec {
        &self.target
    }

    fn emit(&self, stage: &str, file_type: i32) -> Result<Vec<u8>, CodegenError> {
        self.trace.side_step(format!("{stage} for {}", self.target));
        // Code generation rewrites the IR it reads, so it works on a copy and any emission may follow any other.
        // SAFETY: the module is live; the copy lives in the same context, which outlives this call.
        let copy = OwnedModule(unsafe { LLVMCloneModule(self.module.0) });
        let mut message = ptr::null_mut();
        let mut buffer: LLVMMemoryBufferRef = ptr::null_mut();
        // SAFETY: machine and module are live and of the same target; the out pointers are locals.
        let failed = unsafe {
            ffi::LLVMTargetMachineEmitToMemoryBuffer(self.machine.0, copy.0, file_type, &mut message, &mut buffer)
        };
        if failed != 0 {
            // SAFETY: on failure LLVM stores a fresh string.
            let message = unsafe { ffi::take_message(message) };
            return Err(CodegenError::Llvm { stage: stage.to_owned(), message });
        }
        // SAFETY: on success `buffer` is a live buffer of ours; its bytes are copied before the only free.
        let bytes = unsafe {
            let start = LLVMGetBufferStart(buffer).cast::<u8>();
            let bytes = std::slice::from_raw_parts(start, LLVMGetBufferSize(buffer)).to_vec();
            LLVMDisposeMemoryBuffer(buffer);
            bytes
        };
        // Errors in inline assembly reach only the diagnostic handler; the emission itself claims success.
        self.context.take_errors(stage)?;
        Ok(bytes)
    }
}

impl fmt::Debug for LlvmModule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LlvmModule").field("target", &self.target).finish_non_exhaustive()
    }
}

/// An LLVM module that is ours to free. Its context must outlive it.
struct OwnedModule(LLVMModuleRef);

impl Drop for OwnedModule {
    fn drop(&mut self) {
        // SAFETY: the handle came from a translation or a clone, is owned by this value alone, and its context is live.
        unsafe { LLVMDisposeModule(self.0) };
    }
}

/// An LLVM context whose diagnostics are kept. Without a handler LLVM prints them, and ends the process on an error.
struct LlvmContext {
    raw: LLVMContextRef,
    /// Errors since the last look; boxed because LLVM holds its address.
    errors: Box<RefCell<Vec<String>>>,
}

impl LlvmContext {
    fn new() -> Self {
        let errors: Box<RefCell<Vec<String>>> = Box::default();
        // SAFETY: the data pointer is the box's address, which stays the same while `Self` moves and lives until after
        // the context is disposed of in `drop`.
        let raw = unsafe {
            let raw = LLVMContextCreate();
            LLVMContextSetDiagnosticHandler(raw, Some(keep_diagnostic), ptr::from_ref(&*errors).cast_mut().cast());
            raw
        };
        Self { raw, errors }
    }

    /// Fails with the errors that were kept, if any.
    fn take_errors(&self, stage: &str) -> Result<(), CodegenError> {
        let errors = self.errors.take();
        if errors.is_empty() {
            return Ok(());
        }
        Err(CodegenError::Llvm { stage: stage.to_owned(), message: errors.join("\n") })
    }
}

impl Drop for LlvmContext {
    fn drop(&mut self) {
        // SAFETY: the context is owned by this value, and `LlvmModule` drops its module before its context.
        unsafe { LLVMContextDispose(self.raw) };
    }
}

/// Keeps errors; warnings and remarks (missed optimisations and the like) are dropped.
unsafe extern "C" fn keep_diagnostic(info: LLVMDiagnosticInfoRef, data: *mut c_void) {
    // SAFETY: LLVM passes a live diagnostic and the pointer given at registration, which is the context's error list;
    // the list is shared only within this thread, and no borrow of it is held while LLVM runs.
    unsafe {
        if LLVMGetDiagInfoSeverity(info) == ffi::DIAGNOSTIC_ERROR {
            let text = ffi::take_message(LLVMGetDiagInfoDescription(info));
            (*data.cast::<RefCell<Vec<String>>>()).borrow_mut().push(text);
        }
    }
}

/// A code generator for one target.
struct TargetMachine(ffi::TargetMachineRef);

impl TargetMachine {
    fn new(spec: &TargetSpec) -> Result<Self, CodegenError> {
        let stage = "create target machine";
        let triple = ffi::c_string(stage, spec.triple())?;
        let cpu = ffi::c_string(stage, spec.cpu())?;
        let features = ffi::c_string(stage, spec.features())?;
        let mut target = ptr::null_mut();
        let mut message = ptr::null_mut();
        // SAFETY: the strings are NUL-terminated and outlive the calls, the out pointers are locals, and on failure
        // LLVM stores a fresh string in `message`; `target` is a static object of LLVM.
        unsafe {
            if ffi::LLVMGetTargetFromTriple(triple.as_ptr(), &mut target, &mut message) != 0 {
                let message = ffi::take_message(message);
                return Err(CodegenError::Llvm { stage: stage.to_owned(), message });
            }
            let machine = ffi::LLVMCreateTargetMachine(
                target,
                triple.as_ptr(),
                cpu.as_ptr(),
                features.as_ptr(),
                ffi::CODEGEN_AGGRESSIVE,
                ffi::RELOC_PIC,
                ffi::CODE_MODEL_DEFAULT,
            );
            if machine.is_null() {
                return Err(CodegenError::Llvm { stage: stage.to_owned(), message: format!("LLVM refuses {spec}") });
            }
            Ok(Self(machine))
        }
    }
}

impl Drop for TargetMachine {
    fn drop(&mut self) {
        // SAFETY: the handle came from `LLVMCreateTargetMachine` and is owned by this value alone.
        unsafe { ffi::LLVMDisposeTargetMachine(self.0) };
    }
}
