//! Which of LLVM's target features code can depend on.
//!
//! LLVM keeps in one list what a processor can do, how it is best used, and what only systems use. Code for a processor
//! runs elsewhere only where the first kind is there too; the others are listed here. A name that is in neither this
//! list nor the runtime's is one that a new LLVM brought: it is kept, and the runtime refuses it.

/// Beginnings of names that say how code is best arranged, not what it may use.
const TUNING: &str = "aggressive- allow-light- alternate-sextload alu-lsl- addr-lsl- arith- avoid- balance-fp- branch-hint \
    branchfusion cmp-bcc- disable- enable-select-opt exynos- false-deps- fast- faster- force-32bit- fuse- idivl- \
    idivq- ldp-aligned lea- macrofusion max-interleave no-bypass- no-sve-fp-ld1r no-zcz- pad-short predictable- \
    prefer- sbb-dep slow- store-pair- stp-aligned strict-align tuning- use- vzeroupper zcm- zcz-";

/// What only a system, or code that asks for it by intrinsics that nothing here emits, uses on x86-64.
const X86_64: &str = "64bit-mode cldemote clflushopt clwb clzero enqcmd ermsb fsgsbase fsrm hreset invpcid kl lwp movdir64b movdiri \
    movrs mwaitx nopl pconfig pku prefetchi ptwrite raoint rdpid rdpru rdrnd rdseed rtm serialize sgx shstk \
    tsxldtrk uintr usermsr waitpkg wbnoinvd widekl xsave xsavec xsaveopt xsaves";

/// The same on AArch64, and the names of processor families, which select tuning.
const AARCH64: &str = "CONTEXTIDREL2 a320 a35 a510 a520 a520ae a53 a55 a57 a64fx a65 a710 a715 a72 a720 a720ae a73 a75 a76 a77 a78 \
    a78ae a78c am ampere1 ampere1a ampere1b ampere1c amvs apple-a10 apple-a11 apple-a12 apple-a13 apple-a14 \
    apple-a15 apple-a16 apple-a17 apple-a7 apple-m4 apple-m5 brbe c1-nano c1-premium c1-pro c1-ultra carmel ccdp \
    ccidx ccpp chk clrbhb cortex-a725 cortex-r82 cortex-r82ae cortex-x1 cortex-x2 cortex-x3 cortex-x4 cortex-x925 \
    ecv el2vmsa el3 ete exynosm3 exynosm4 falkor fgt fpac fujitsu-monaka hcx kryo lor mec mpam neoverse512tvb \
    neoversee1 neoversen1 neoversen2 neoversen3 neoversev1 neoversev2 neoversev3 neoversev3AE nmi nv olympus \
    oryon-1 pan pan-rwv perfmon predres ras rme saphira sel2 spe spe-eef specres2 specrestrict thunderx \
    thunderx2t99 thunderx3t110 thunderxt81 thunderxt83 thunderxt88 tlb-rmi tracev8.4 trbe tsv110 uaops v8.1a v8.2a \
    v8.3a v8.4a v8.5a v8.6a v8.7a v8.8a v8a v8r v9.1a v9.2a v9.3a v9a vh xs";

/// Whether code can depend on a feature, so that a machine without it may fail to run the code.
pub(super) fn matters(triple: &str, feature: &str) -> bool {
    let x86 = triple.starts_with("x86_64");
    let mut others = if x86 { X86_64 } else { AARCH64 }.split(' ');
    let matrices = x86 && feature.starts_with("amx-");
    !matrices && !others.any(|f| f == feature) && !TUNING.split(' ').any(|t| feature.starts_with(t))
}
