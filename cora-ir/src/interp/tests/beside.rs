//! Tiles of an instruction that goes on while its threads do: what they see, and what must leave them alone.

use super::*;
use crate::interp::run_storage;
use crate::text::parse_storage;

/// A product of 64 by 16 and 16 by 64 elements by 128 threads; `seen` stands between filling and tile, `after` between
/// tile and result.
fn product(seen: &str, after: &str) -> Result<Vec<f64>, InterpError> {
    let m = parse_storage(&format!(
        "storage.module @m {{
           tensor @X[i: 64, k: 16] : bf16 input
           tensor @Y[i: 64, j: 64] : f32 output
           tensor @A[i: 64, k: 16] : bf16 temp shared
           tensor @B[k: 16, j: 64] : bf16 temp shared
           tensor @R[i: 32] : f32 temp reg
           buffer @X elems = 1024 offset = $0 * 16 + $1
           buffer @Y elems = 4096 offset = $0 * 64 + $1
           buffer @A elems = 1024
           buffer @B elems = 1024
           buffer @R elems = 32
           kernel @Y {{
             for %b in 0..1 block.x {{
               for %t in 0..128 thread.x {{
                 for %n in 0..8 {{
                   @A[%t // 64 * 512 + %t % 64 * 8 + %n] = @X[%t % 64 * 16 + %t // 64 * 8 + %n]
                   @B[%t // 16 * 128 + %t % 16 * 8 + %n] = select(%t % 16 * 4 == %t // 16 * 8 + %n, 1.0:bf16, 0.0:bf16)
                 }}
                 for %n in 0..32 {{ @R[%n] = 0.0:f32 }}
               }}
               {seen}
               tile wgmma.m64n64k16.f32.bf16 @R[0, 0, 0] = @A[0, 8, 1, blocks 64, 512] * @B[0, 8, 1, blocks 64, 128]
               {after}
               for %t in 0..128 thread.x {{
                 for %n in 0..32 {{
                   @Y[(%t // 32 * 16 + %t % 32 // 4 + %n // 2 % 2 * 8) * 64 + %t % 4 * 2 + %n % 2 + %n // 4 * 8] = @R[%n]
                 }}
               }}
             }}
           }}
         }}"
    ))
    .unwrap();
    let x = m.env.tensor_named("X").unwrap();
    let batch = batch(&[], &[], &[(x, floats(1024, |n| (n % 64) as f64))]);
    let options = Options { races: true, ..Options::default() };
    run_storage(&m, &batch, &options).map(|r| values(&r, m.env.tensor_named("Y").unwrap()))
}

const DONE: &str = "commit tiles wait 0 tiles @R";

#[test]
fn tiles_read_blocks() {
    let wanted: Vec<f64> =
        (0..64 * 64).map(|n| if n % 4 == 0 { ((n / 64 * 16 + n % 64 / 4) % 64) as f64 } else { 0.0 }).collect();
    assert_eq!(product("fence barrier", DONE).unwrap(), wanted);
    assert_eq!(
        product("fence barrier", "commit tiles commit tiles wait 1 tiles @R").unwrap(),
        wanted,
        "of two groups one"
    );
}

#[test]
fn tiles_see_what_is_fenced() {
    let unseen = |seen: &str| matches!(product(seen, DONE), Err(InterpError::NotFenced { .. }));
    assert!(unseen("barrier"), "no fence");
    assert!(unseen("barrier fence"), "the barrier comes before the fence");
    assert!(unseen("fence"), "no barrier");
}

#[test]
fn tiles_are_waited_for() {
    let used = |after: &str| matches!(product("fence barrier", after), Err(InterpError::InUse { .. }));
    assert!(used(""), "nobody waits");
    assert!(used("commit tiles"), "nobody waits");
    assert!(used("wait 0 tiles @R"), "the tile is in no group");
    assert!(used("commit tiles wait 1 tiles @R"), "one group may go on");
    let store = "for %t in 0..1 thread.x { @A[8] = 0.0:bf16 }";
    assert!(used(&format!("commit tiles {store} wait 0 tiles @R")), "a factor is overwritten");
    let race = product("fence barrier", &format!("{DONE} {store}"));
    assert!(matches!(race, Err(InterpError::Race { .. })), "another lane may not have come by: {race:?}");
    assert!(product("fence barrier", &format!("{DONE} barrier {store}")).is_ok());
}
