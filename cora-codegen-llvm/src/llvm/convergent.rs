//! Keeps instructions that threads execute together where all of them come by.
//!
//! The `llvm` dialect has no `convergent` for inline assembly, and without it LLVM copies such a call into the branches of
//! a condition that differs between threads (jump threading): a `.sync.aligned` instruction would have two places, and
//! threads of one warp would wait for each other in different ones.

use mlir_sys::{
    LLVMAddCallSiteAttribute, LLVMAttributeFunctionIndex, LLVMAttributeIndex, LLVMCreateEnumAttribute,
    LLVMGetCalledValue, LLVMGetEnumAttributeKindForName, LLVMGetFirstBasicBlock, LLVMGetFirstFunction,
    LLVMGetFirstInstruction, LLVMGetInlineAsmHasSideEffects, LLVMGetModuleContext, LLVMGetNextBasicBlock,
    LLVMGetNextFunction, LLVMGetNextInstruction, LLVMIsACallInst, LLVMIsAInlineAsm, LLVMModuleRef, LLVMValueRef,
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
        let mut function = LLVMGetFirstFunction(module);
        while !function.is_null() {
            let mut block = LLVMGetFirstBasicBlock(function);
            while !block.is_null() {
                let mut instruction = LLVMGetFirstInstruction(block);
                while !instruction.is_null() {
                    if synchronises(instruction) {
                        LLVMAddCallSiteAttribute(
                            instruction,
                            LLVMAttributeFunctionIndex as LLVMAttributeIndex,
                            convergent,
                        );
                    }
                    instruction = LLVMGetNextInstruction(instruction);
                }
                block = LLVMGetNextBasicBlock(block);
            }
            function = LLVMGetNextFunction(function);
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
