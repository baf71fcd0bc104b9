//! Keeps vector comparisons where optimisation has put them.
//!
//! LLVM's code generator copies a comparison beside each of its users, as suits targets whose comparisons set flags. Where
//! masks have registers of their own (AVX-512), that computes a mask again in each iteration of the loops that it had
//! been hoisted out of, on a port that multiplications need. A frozen comparison is not copied: its only user is the
//! instruction after it.

use std::ptr;

use super::walk::instructions;
use mlir_sys::{
    LLVMBuildFreeze, LLVMBuilderRef, LLVMCreateBuilderInContext, LLVMDisposeBuilder, LLVMGetFirstUse,
    LLVMGetInstructionParent, LLVMGetModuleContext, LLVMGetNextInstruction, LLVMGetNextUse, LLVMGetTypeKind,
    LLVMGetUser, LLVMIsAFCmpInst, LLVMIsAICmpInst, LLVMModuleRef, LLVMPositionBuilderBefore, LLVMReplaceAllUsesWith,
    LLVMSetOperand, LLVMTypeKind_LLVMVectorTypeKind, LLVMTypeOf, LLVMValueRef,
};

/// Freezes each comparison of vectors that another basic block uses.
///
/// # Safety
///
/// The module is live, and nothing else uses it during the call.
pub(super) unsafe fn keep(module: LLVMModuleRef) {
    // SAFETY: the module is live by contract, so is its context; the builder is disposed of once.
    unsafe {
        let builder = LLVMCreateBuilderInContext(LLVMGetModuleContext(module));
        for comparison in instructions(module, |v| is_vector_comparison(v) && is_used_elsewhere(v)) {
            freeze(builder, comparison);
        }
        LLVMDisposeBuilder(builder);
    }
}

/// # Safety
///
/// `v` is a live instruction.
unsafe fn is_vector_comparison(v: LLVMValueRef) -> bool {
    // SAFETY: by contract.
    unsafe {
        let compares = !LLVMIsAICmpInst(v).is_null() || !LLVMIsAFCmpInst(v).is_null();
        compares && LLVMGetTypeKind(LLVMTypeOf(v)) == LLVMTypeKind_LLVMVectorTypeKind
    }
}

/// # Safety
///
/// `v` is a live instruction.
unsafe fn is_used_elsewhere(v: LLVMValueRef) -> bool {
    // SAFETY: by contract; users of an instruction are instructions of live blocks.
    unsafe {
        let home = LLVMGetInstructionParent(v);
        let mut used = LLVMGetFirstUse(v);
        while !used.is_null() {
            if !ptr::eq(LLVMGetInstructionParent(LLVMGetUser(used)), home) {
                return true;
            }
            used = LLVMGetNextUse(used);
        }
        false
    }
}

/// # Safety
///
/// `v` is a live comparison, which is never the last instruction of its block, and `builder` one of its context.
unsafe fn freeze(builder: LLVMBuilderRef, v: LLVMValueRef) {
    // SAFETY: by contract. Replacing all uses also replaces the frozen value's own operand, which is put back.
    unsafe {
        LLVMPositionBuilderBefore(builder, LLVMGetNextInstruction(v));
        let frozen = LLVMBuildFreeze(builder, v, c"".as_ptr());
        LLVMReplaceAllUsesWith(v, frozen);
        LLVMSetOperand(frozen, 0, v);
    }
}
