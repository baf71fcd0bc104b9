//! The tables that the compiler builds for the six-layer encoder, against the model of the paper's optimised ones.

use cora_bench::analytic::prelude_memory;
use cora_bench::tables::{ENCODER6, ProgramTables};

#[test]
fn tables_of_the_encoder_are_no_larger_than_the_model() {
    let tables = ProgramTables::compile("encoder6", ENCODER6).unwrap_or_else(|e| panic!("{e:?}"));
    for lens in [vec![9, 37, 29, 66], vec![40; 32], (1..=128).collect()] {
        let ours = tables.bytes(&lens).unwrap_or_else(|e| panic!("{e:?}"));
        let model = prelude_memory(&lens);
        let kb = |bytes: u64| bytes as f64 / 1024.0;
        assert!(ours.storage > 0, "lengths are a storage table");
        assert!(
            kb(ours.storage) <= model.storage_optimized && kb(ours.fusion) <= model.fusion_optimized,
            "{ours:?} against {model:?} for {} sequences; tables: {:?}",
            lens.len(),
            tables.roles().collect::<Vec<_>>()
        );
    }
}
