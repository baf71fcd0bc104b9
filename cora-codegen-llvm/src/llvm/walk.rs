//! Instructions of a module.

use mlir_sys::{
    LLVMGetFirstBasicBlock, LLVMGetFirstFunction, LLVMGetFirstInstruction, LLVMGetNextBasicBlock, LLVMGetNextFunction,
    LLVMGetNextInstruction, LLVMModuleRef, LLVMValueRef,
};

/// The instructions that are `wanted`, in order.
///
/// # Safety
///
/// The module is live, nothing else uses it during the call, and `wanted` changes nothing.
pub(super) unsafe fn instructions(
    module: LLVMModuleRef,
    mut wanted: impl FnMut(LLVMValueRef) -> bool,
) -> Vec<LLVMValueRef> {
    let mut found = Vec::new();
    // SAFETY: each handle comes from the live module, and the iteration changes nothing.
    unsafe {
        let mut function = LLVMGetFirstFunction(module);
        while !function.is_null() {
            let mut block = LLVMGetFirstBasicBlock(function);
            while !block.is_null() {
                let mut instruction = LLVMGetFirstInstruction(block);
                while !instruction.is_null() {
                    if wanted(instruction) {
                        found.push(instruction);
                    }
                    instruction = LLVMGetNextInstruction(instruction);
                }
                block = LLVMGetNextBasicBlock(block);
            }
            function = LLVMGetNextFunction(function);
        }
    }
    found
}
