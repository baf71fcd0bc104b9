//! Which instruction set extensions this processor and its system let a program use.

/// Whether code that uses an extension, by LLVM's name of it, runs here.
///
/// Tile registers (`amx-tile`) a process has to ask the system for: this does, for all of its threads.
///
/// A name that this version does not know may be anything, so it is not confirmed.
pub fn has(feature: &str) -> bool {
    detect(feature).unwrap_or(false)
}

/// Whether [`has`] can tell, on a processor of this architecture.
pub fn knows(feature: &str) -> bool {
    detect(feature).is_some()
}

#[cfg(target_arch = "x86_64")]
fn detect(feature: &str) -> Option<bool> {
    macro_rules! either {
        ($($llvm:literal: $std:tt,)*) => {
            match feature {
                // Every x86-64 processor has these.
                "64bit" | "cmov" | "cx8" | "fxsr" | "mmx" | "sse" | "sse2" | "x87" => Some(true),
                $($llvm => Some(std::arch::is_x86_feature_detected!($std)),)*
                _ => raw(feature),
            }
        };
    }
    either! {
        "adx": "adx", "aes": "aes", "avx": "avx", "avx2": "avx2", "avx512bf16": "avx512bf16",
        "avx512bitalg": "avx512bitalg", "avx512bw": "avx512bw", "avx512cd": "avx512cd", "avx512dq": "avx512dq",
        "avx512f": "avx512f", "avx512fp16": "avx512fp16", "avx512ifma": "avx512ifma", "avx512vbmi": "avx512vbmi",
        "avx512vbmi2": "avx512vbmi2", "avx512vl": "avx512vl", "avx512vnni": "avx512vnni",
        "avx512vp2intersect": "avx512vp2intersect", "avx512vpopcntdq": "avx512vpopcntdq", "evex512": "avx512f",
        "avxifma": "avxifma", "avxneconvert": "avxneconvert", "avxvnni": "avxvnni", "avxvnniint16": "avxvnniint16",
        "avxvnniint8": "avxvnniint8", "bmi": "bmi1", "bmi2": "bmi2", "crc32": "sse4.2", "cx16": "cmpxchg16b",
        "f16c": "f16c", "fma": "fma", "gfni": "gfni", "lzcnt": "lzcnt", "movbe": "movbe", "pclmul": "pclmulqdq",
        "popcnt": "popcnt", "sha": "sha", "sha512": "sha512", "sm3": "sm3", "sm4": "sm4", "sse3": "sse3",
        "sse4.1": "sse4.1", "sse4.2": "sse4.2", "sse4a": "sse4a", "ssse3": "ssse3", "tbm": "tbm", "vaes": "vaes",
        "vpclmulqdq": "vpclmulqdq",
    }
}

/// What the standard library does not detect, from `cpuid` (Intel's manual, volume 2; AMD's, volume 3, appendix E).
#[cfg(target_arch = "x86_64")]
fn raw(feature: &str) -> Option<bool> {
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let bit = |register: u32, n: u32| register >> n & 1 == 1;
    let extended = || if __cpuid(0x8000_0000).eax > 0x8000_0000 { __cpuid(0x8000_0001).ecx } else { 0 };
    let seven = || {
        let there = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).eax >= 1;
        there.then(|| __cpuid_count(7, 1))
    };
    let leaf_seven = || if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).edx } else { 0 };
    // Version of AVX10, whose registers are those of AVX-512.
    let avx10 = || match seven() {
        Some(r) if bit(r.edx, 19) && is_x86_feature_detected!("avx512f") => __cpuid_count(0x24, 0).ebx & 0xff,
        _ => 0,
    };
    Some(match feature {
        "sahf" => bit(extended(), 0),
        "prfchw" => bit(extended(), 8),
        // The system has to keep the upper halves of the registers.
        "xop" => bit(extended(), 11) && is_x86_feature_detected!("avx"),
        "fma4" => bit(extended(), 16) && is_x86_feature_detected!("avx"),
        "amx-tile" => bit(leaf_seven(), 24) && saves(1 << 17 | 1 << 18) && asks_for_tiles(),
        "amx-bf16" => bit(leaf_seven(), 22),
        "amx-int8" => bit(leaf_seven(), 25),
        "cmpccxadd" => seven().is_some_and(|r| bit(r.eax, 7)),
        "avx10.1" | "avx10.1-512" => avx10() >= 1,
        "avx10.2" | "avx10.2-512" => avx10() >= 2,
        // The extensions of APX, which come together. The system has to keep the registers that it adds.
        "ccmp" | "cf" | "egpr" | "ndd" | "nf" | "ppx" | "push2pop2" | "zu" => {
            seven().is_some_and(|r| bit(r.edx, 21)) && saves(1 << 19)
        }
        _ => return None,
    })
}

/// Whether the system keeps registers of these kinds, which are bits of `XCR0`: 17 and 18 tiles, 19 those of APX.
#[cfg(target_arch = "x86_64")]
fn saves(kinds: u64) -> bool {
    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: the processor and its system have `xsave`, and register 0 always exists.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    }
    // SAFETY: the detection, which asks the system as well, comes first.
    std::arch::is_x86_feature_detected!("xsave") && unsafe { xcr0() } & kinds == kinds
}

/// Asks the system to keep tile registers for this process, which costs each thread that uses them some memory. To ask
/// again changes nothing.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn asks_for_tiles() -> bool {
    // Linux, Documentation/arch/x86/xstate.rst; the state's number is its bit in `XCR0`.
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the call has two numbers as arguments, and changes only what the system keeps of a thread's registers.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn asks_for_tiles() -> bool {
    false
}

#[cfg(target_arch = "aarch64")]
fn detect(feature: &str) -> Option<bool> {
    macro_rules! either {
        ($($llvm:literal: $std:tt,)*) => {
            match feature {
                $($llvm => Some(std::arch::is_aarch64_feature_detected!($std)),)*
                _ => None,
            }
        };
    }
    either! {
        "aes": "aes", "bf16": "bf16", "bti": "bti", "complxnum": "fcma", "crc": "crc", "dit": "dit", "dotprod": "dotprod",
        "flagm": "flagm", "fp-armv8": "fp", "fp16fml": "fhm", "fptoint": "frintts", "fullfp16": "fp16", "i8mm": "i8mm",
        "jsconv": "jsconv", "lse": "lse", "lse2": "lse2", "mte": "mte", "neon": "neon", "pauth": "paca", "rand": "rand",
        "rcpc": "rcpc", "rcpc-immo": "rcpc2", "rdm": "rdm", "sb": "sb", "sha2": "sha2", "sha3": "sha3", "sm4": "sm4",
        "ssbs": "ssbs", "sve": "sve", "sve2": "sve2", "sve-aes": "sve2-aes", "sve-bitperm": "sve2-bitperm",
        "sve-sha3": "sve2-sha3", "sve-sm4": "sve2-sm4",
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detect(_feature: &str) -> Option<bool> {
    None
}

#[cfg(test)]
mod tests {
    use super::{has, knows};

    #[test]
    fn what_is_not_known_is_not_there() {
        assert!(!has("quantum") && !knows("quantum"));
        #[cfg(target_arch = "x86_64")]
        {
            assert!(has("sse2") && knows("avx512vbmi") && knows("fma4"));
            assert!(!has("avx10.2") || has("avx10.1") && has("avx512f"));
            assert_eq!(has("avx512vl"), std::arch::is_x86_feature_detected!("avx512vl"));
        }
    }
}
