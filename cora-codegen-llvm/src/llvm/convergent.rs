//! Keeps instructions that threads execute together where all of them come by.
//!
//! The `llvm` dialect has no `convergent` for inline assembly, and without it LLVM copies such a call into the branches of
//! a condition that differs between threads (jump threading): a `.sync.aligned` instruction would have two places, and
//! threads of one warp would wait for each other in different ones.

use super::walk::instructions;
use mlir_sys::{
    LLVMAddCallSiteAttribute, LLVMAttributeFunctionIndex, LLVMAttributeIndex, LLVMCreateEnumAttribute,
    LLVMGetCalledValue, LLVMGetEnumAttributeKindForName, LLVMGetInlineAsmHasSideEffects, LLVMGetModuleContext,
    LLVMIsACallInst, LLVMIsAInlineAsm, LLVMModuleRef, LLVMValueRef,
};

/// Marks each call of inline assembly that has side effects.
///
/// # Safety
///
/// The module is live, and nothing else uses it during the call.
pub(super) unsafe fn mark(module: LLVMModuleRef) {
    const NAME: &str = "convergent";
    // SAFETY: the module is live by contract, and so are its context and each handle that comes from it; the name is as
    // long as is said. An attribute is of its context.
    unsafe {
        let kind = LLVMGetEnumAttributeKindForName(NAME.as_ptr().cast(), NAME.len());
        let convergent = LLVMCreateEnumAttribute(LLVMGetModuleContext(module), kind, 0);
        for call in instructions(module, |v| synchronises(v)) {
            LLVMAddCallSiteAttribute(call, LLVMAttributeFunctionIndex as LLVMAttributeIndex, convergent);
        }
    }
}

/// Whether an instruction may: it is inline assembly that is there for its effects.
///
/// # Safety
///
/// `v` is a live instruction.
unsafe fn synchronises(v: LLVMValueRef) -> bool {
    // SAFETY: by contract; a call has a callee.
    unsafe {
        if LLVMIsACallInst(v).is_null() {
            return false;
        }
        let callee = LLVMIsAInlineAsm(LLVMGetCalledValue(v));
        !callee.is_null() && LLVMGetInlineAsmHasSideEffects(callee) != 0
    }
}
