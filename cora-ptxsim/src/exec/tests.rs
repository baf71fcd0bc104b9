//! Small kernels, by hand.

use super::*;

const HEAD: &str = ".version 8.0\n.target sm_90a\n.address_size 64\n";

/// Runs `body` as a kernel of one pointer, on that many threads: what is in 64 words there.
fn words(body: &str, threads: u32) -> Result<Vec<u32>, Fault> {
    worked(body, threads).map(|found| found.0)
}

/// The same, and the work.
fn worked(body: &str, threads: u32) -> Result<(Vec<u32>, Work), Fault> {
    let text = format!("{HEAD}.visible .entry k(.param .u64 p) {{ {body} ret; }}");
    let module = Module::parse(&text).expect("it is PTX");
    let mut memory = Memory::default();
    let at = memory.allocate(256).expect("little memory");
    let grid = Grid { blocks: [1; 3], threads: [threads, 1, 1], dynamic_shared: 0 };
    let mut work = Work::default();
    launch(&module, "k", grid, &[at.to_le_bytes().to_vec()], &mut memory, Some(&mut work))?;
    let bytes = memory.bytes(at, 256).expect("it is there");
    Ok((bytes.chunks(4).map(|c| u32::from_le_bytes(c.try_into().expect("4 bytes"))).collect(), work))
}

const OWN: &str = ".reg .b32 %r<20>; .reg .b64 %rd<9>; .reg .pred %p<9>;
    ld.param.b64 %rd1, [p]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;";

#[test]
fn lanes_exchange_what_they_hold() {
    let text = format!("{OWN} shfl.sync.bfly.b32 %r2, %r1, 16, 31, -1; st.global.b32 [%rd3], %r2;");
    let found = words(&text, 32).expect("it runs");
    assert!((0..32).all(|n| found[n as usize] == n ^ 16));
    // Half of the lanes do not come by.
    let text = format!("{OWN} setp.lt.u32 %p1, %r1, 16; @%p1 shfl.sync.bfly.b32 %r2, %r1, 16, 31, -1;");
    assert_eq!(words(&text, 32).map_err(|f| f.what), Err(What::Diverged));
}

#[test]
fn threads_wait_for_their_block() {
    let exchange = |barrier: &str| {
        format!(
            "{OWN} .shared .align 4 .b8 s[256]; mov.b64 %rd4, s; add.s64 %rd5, %rd4, %rd2; st.shared.b32 [%rd5], %r1;
            {barrier} sub.s32 %r2, 63, %r1; mul.wide.u32 %rd6, %r2, 4; add.s64 %rd7, %rd4, %rd6;
            ld.shared.b32 %r3, [%rd7]; st.global.b32 [%rd3], %r3;"
        )
    };
    let found = words(&exchange("bar.sync 0;"), 64).expect("it runs");
    assert!((0..64).all(|n| found[n as usize] == 63 - n));
    assert_ne!(words(&exchange(""), 64).expect("it runs"), found);
    let text = format!("{OWN} setp.lt.u32 %p1, %r1, 32; @%p1 bra L; bar.sync 0; L:");
    assert_eq!(words(&text, 64).map_err(|f| f.what), Err(What::Deadlock));
}

#[test]
fn copies_come_when_they_are_waited_for() {
    let text = |wait: &str| {
        format!(
            "{OWN} .shared .align 16 .b8 s[16]; mov.b64 %rd4, s; mov.b32 %r2, 7; st.global.b32 [%rd1], %r2;
            cp.async.ca.shared.global [%rd4], [%rd1], 4; cp.async.commit_group; {wait}
            ld.shared.b32 %r3, [%rd4]; st.global.b32 [%rd1+4], %r3;"
        )
    };
    assert_eq!(words(&text("cp.async.wait_group 0;"), 1).expect("it runs")[1], 7);
    assert_eq!(words(&text("cp.async.wait_group 1;"), 1).expect("it runs")[1], u32::MAX);
}

#[test]
fn accesses_are_checked() {
    let what = |text: &str| words(&format!("{OWN} {text}"), 1).map_err(|f| f.what);
    assert!(matches!(what("st.global.b32 [%rd1+256], %r1;"), Err(What::Memory(_))));
    assert!(matches!(what("st.global.b32 [%rd1+2], %r1;"), Err(What::Misaligned { bytes: 4, .. })));
    assert!(matches!(what("st.shared.b32 [%rd2], %r1;"), Err(What::Outside { space: "shared", .. })));
    assert!(what("{ .reg .pred p; setp.eq.s32 p, %r1, 0; @p bra THERE; st.global.b32 [%rd1+2], %r1; THERE: }").is_ok());
}

#[test]
fn true_is_minus_one() {
    let text =
        format!("{OWN} mov.pred %p1, -1; not.pred %p2, %p1; @%p2 ret; mov.b32 %r2, 5; st.global.b32 [%rd1], %r2;");
    assert_eq!(words(&text, 1).expect("it runs")[0], 5);
}

#[test]
fn pairs_of_16_bits_are_computed_each() {
    // Halves of f16: 1 and -2, and 2 and not a number; of integers: no carry from one to the other.
    let text = format!(
        "{OWN} mov.b32 %r2, 0x3c00c000; mov.b32 %r3, 0x40007e00; max.NaN.f16x2 %r4, %r2, %r3; max.f16x2 %r5, %r2, %r3;
        fma.rn.f16x2 %r6, %r2, %r2, %r2; mov.b32 %r7, 0x0001ffff; add.u16x2 %r8, %r7, %r7;
        st.global.b32 [%rd1], %r4; st.global.b32 [%rd1+4], %r5; st.global.b32 [%rd1+8], %r6;
        setp.gt.f16x2 %p1|%p2, %r3, %r2; selp.b32 %r9, 1, 2, %p1; @%p2 add.s32 %r9, %r9, 4;
        st.global.b32 [%rd1+12], %r8; st.global.b32 [%rd1+16], %r9;"
    );
    let words = words(&text, 1).expect("it runs");
    assert_eq!(words[..5], [0x4000_7fff, 0x4000_c000, 0x4000_4000, 0x0002_fffe, 6]);
}

#[test]
fn waiting_for_a_box_that_nobody_asked_for_is_found() {
    let text = format!(
        "{OWN} .shared .align 8 .b8 s[8]; mov.b64 %rd4, s; mbarrier.init.shared::cta.b64 [%rd4+0], 1;
        AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%rd4], 0; @!%p1 bra AGAIN;"
    );
    assert_eq!(words(&text, 1).map_err(|f| f.what), Err(What::Deadlock));
}

#[test]
fn what_is_not_interpreted_is_named() {
    let text = format!("{HEAD}.visible .entry k() {{ .reg .f32 %f<2>; sin.approx.f32 %f0, %f1; }}");
    let error = Module::parse(&text).expect_err("unknown").to_string();
    assert_eq!(error, "line 4: `sin.approx.f32`: this rounding is not known");
}

#[test]
fn work_is_counted_as_warps_issue_it() {
    // Two warps, 6 instructions with the return; 8 sectors are written, each by one warp.
    let work = worked(&format!("{OWN} st.global.b32 [%rd3], %r1;"), 64).expect("it runs").1;
    assert_eq!(work, Work { instructions: 2 * 6, passes: 0, sectors: 8, distinct: 8, products: 0 });
    // A loop of as many turns as the lane's number: as often as the last lane goes round, whatever the others do.
    let turns = |n: u32| {
        let text = format!("{OWN} mov.b32 %r2, 0; L: add.s32 %r2, %r2, 1; setp.le.u32 %p1, %r2, %r1; @%p1 bra L;");
        worked(&text, n).expect("it runs").1.instructions
    };
    assert_eq!(turns(32) - turns(8), 3 * 24);
    // Words of every second bank are two passes, words of one bank 32, one word is one.
    let passes = |stride: u32| {
        let text = format!(
            "{OWN} .shared .align 16 .b8 s[4096]; mov.b64 %rd4, s; mul.lo.s32 %r2, %r1, {stride}; cvt.u64.u32 %rd5, %r2;
            add.s64 %rd6, %rd4, %rd5; ld.shared.b32 %r3, [%rd6];"
        );
        worked(&text, 32).expect("it runs").1.passes
    };
    assert_eq!([4, 8, 128, 0].map(passes), [1, 2, 32, 1]);
}
