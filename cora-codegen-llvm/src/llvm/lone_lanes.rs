//! Stores of one lane as what they are.
//!
//! LLVM 22 makes a masked store of truncated integers a truncating one, and then a store of the one lane that a constant
//! mask leaves, of as many bytes as that lane had before it was truncated: on AVX-512 the tail of a row of `bf16` or `i8`
//! with one element beyond its vectors overwrites what stands behind it.
//!
//! ```text
//! masked.store <16 x i16> %v, ptr %p, <i1 true, i1 false, ..>   =>   store i16 (extractelement %v, 0), ptr %p
//! ```

use super::walk::instructions;
use mlir_sys::{
    LLVMBuildExtractElement, LLVMBuildGEP2, LLVMBuildStore, LLVMBuilderRef, LLVMConstInt, LLVMConstIntGetZExtValue,
    LLVMContextRef, LLVMCreateBuilderInContext, LLVMDisposeBuilder, LLVMGetAggregateElement, LLVMGetCalledValue,
    LLVMGetElementType, LLVMGetIntrinsicID, LLVMGetModuleContext, LLVMGetOperand, LLVMGetVectorSize,
    LLVMInstructionEraseFromParent, LLVMInt64TypeInContext, LLVMIsACallInst, LLVMIsAConstant, LLVMIsAConstantInt,
    LLVMIsAFunction, LLVMLookupIntrinsicID, LLVMModuleRef, LLVMPositionBuilderBefore, LLVMSetAlignment, LLVMTypeOf,
    LLVMValueRef,
};

/// Stores the lane of each masked store whose constant mask has one.
///
/// # Safety
///
/// The module is live, and nothing else uses it during the call.
pub(super) unsafe fn store(module: LLVMModuleRef) {
    const NAME: &str = "llvm.masked.store";
    // SAFETY: the module is live by contract, so is its context; the name is as long as is said; the builder is disposed
    // of once.
    unsafe {
        let context = LLVMGetModuleContext(module);
        let builder = LLVMCreateBuilderInContext(context);
        let intrinsic = LLVMLookupIntrinsicID(NAME.as_ptr().cast(), NAME.len());
        for call in instructions(module, |v| lone_lane(v, intrinsic).is_some()) {
            if let Some(lane) = lone_lane(call, intrinsic) {
                store_lane(context, builder, call, lane);
            }
        }
        LLVMDisposeBuilder(builder);
    }
}

/// The one lane of a masked store whose mask is constant and has no other.
///
/// # Safety
///
/// `v` is a live instruction.
unsafe fn lone_lane(v: LLVMValueRef, intrinsic: u32) -> Option<u64> {
    // SAFETY: by contract; a call has a callee, and the intrinsic has three operands, the last a vector.
    unsafe {
        if LLVMIsACallInst(v).is_null() {
            return None;
        }
        let callee = LLVMIsAFunction(LLVMGetCalledValue(v));
        if callee.is_null() || LLVMGetIntrinsicID(callee) != intrinsic {
            return None;
        }
        let mask = LLVMGetOperand(v, 2);
        if LLVMIsAConstant(mask).is_null() {
            return None;
        }
        let mut lanes = Vec::new();
        for lane in 0..LLVMGetVectorSize(LLVMTypeOf(mask)) {
            let bit = LLVMGetAggregateElement(mask, lane);
            if bit.is_null() || LLVMIsAConstantInt(bit).is_null() {
                return None;
            }
            lanes.extend((LLVMConstIntGetZExtValue(bit) != 0).then_some(u64::from(lane)));
        }
        let [lane] = lanes[..] else { return None };
        Some(lane)
    }
}

/// # Safety
///
/// `call` is a live masked store of the context, and `builder` one of it.
unsafe fn store_lane(context: LLVMContextRef, builder: LLVMBuilderRef, call: LLVMValueRef, lane: u64) {
    let name = c"".as_ptr();
    // SAFETY: by contract; a store has no users.
    unsafe {
        LLVMPositionBuilderBefore(builder, call);
        let (value, address) = (LLVMGetOperand(call, 0), LLVMGetOperand(call, 1));
        let mut index = LLVMConstInt(LLVMInt64TypeInContext(context), lane, 0);
        let element = LLVMBuildExtractElement(builder, value, index, name);
        let at = LLVMBuildGEP2(builder, LLVMGetElementType(LLVMTypeOf(value)), address, &raw mut index, 1, name);
        let store = LLVMBuildStore(builder, element, at);
        // The vector's alignment is no less than this, and may be no more.
        LLVMSetAlignment(store, 1);
        LLVMInstructionEraseFromParent(call);
    }
}
