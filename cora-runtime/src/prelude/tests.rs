//! Whole preludes: two-level raggedness, empties, ranges and hostile descriptions.

use super::*;
use crate::abi::{ABI_VERSION, ExtentFn, Ix, ParamDesc, TableDesc, TableKind, TableWidth};

fn arg(i: u32) -> Ix {
    Ix::Arg(i)
}

fn table(name: &str, width: TableWidth, kind: TableKind) -> TableDesc {
    TableDesc { name: name.into(), width, kind }
}

fn program(tables: Vec<TableDesc>, extents: Vec<ExtentFn>) -> ProgramDesc {
    ProgramDesc {
        version: ABI_VERSION,
        name: "test".into(),
        params: vec![ParamDesc { name: "M".into(), lo: 0, hi: 4096 }],
        extents,
        tables,
        tensors: vec![],
        buffers: vec![],
        kernels: vec![],
        setup_kernels: vec![],
        imports: vec![],
    }
}

fn lens(table: u32) -> ExtentFn {
    let domain = vec![Ix::Param(0)];
    ExtentFn { name: "lens".into(), domain, lo: 0.into(), hi: 512.into(), table }
}

/// `sents(doc)`, `words(doc, sent)`; the row starts of `words`, its sums, maximum, outer indices and an order.
fn documents() -> ProgramDesc {
    use TableWidth::{I32, I64};
    let docs = || Ix::Param(0);
    let sents = |d: Ix| Ix::table(0, d);
    let word = |d: Ix, s: Ix| Ix::table(2, Ix::table(1, d) + s);
    let pair = || vec![docs(), sents(arg(0))];
    let words = || word(arg(0), arg(1));
    let mut p = program(
        vec![
            table("sents", I32, TableKind::Input),
            table("row", I32, TableKind::PrefixSum { domain: vec![docs()], value: sents(arg(0)) }),
            table("words", I32, TableKind::Input),
            table("in_doc", I64, TableKind::PrefixSum { domain: pair(), value: words() }),
            table("longest", I32, TableKind::ReduceMax { domain: pair(), value: words() }),
            table("total", I64, TableKind::ReduceSum { domain: pair(), value: words() }),
            table("doc_of", I32, TableKind::Map { domain: pair(), value: arg(0) }),
            table("order", I32, TableKind::SortDesc { domain: vec![docs()], key: sents(arg(0)) }),
        ],
        vec![],
    );
    p.extents = vec![
        ExtentFn { name: "sents".into(), domain: vec![docs()], lo: 0.into(), hi: 9.into(), table: 0 },
        ExtentFn { name: "words".into(), domain: pair(), lo: 0.into(), hi: Ix::Param(0) + 90, table: 2 },
    ];
    p
}

fn build(p: ProgramDesc, m: i64, lengths: &[&[i64]]) -> Result<Tables> {
    let lengths = lengths.iter().map(|l| l.to_vec()).collect();
    Prelude::new(Arc::new(p))?.build(&Batch { params: vec![m], lengths }, &Limits::default())
}

fn check(p: ProgramDesc, m: i64, lengths: &[&[i64]], want: &[&[i64]]) {
    let tables = build(p, m, lengths).unwrap();
    let got: Vec<Vec<i64>> = tables.data().iter().map(TableData::to_vec).collect();
    assert_eq!(got, want);
}

fn fails(p: ProgramDesc, m: i64, lengths: &[&[i64]], code: &str, text: &str) {
    let e = build(p, m, lengths).unwrap_err();
    assert_eq!(e.code(), code, "{e}");
    assert!(e.to_string().contains(text), "{e}");
    assert!(!e.hint().is_empty());
}

#[test]
fn two_levels_with_empty_rows() {
    check(
        documents(),
        4,
        &[&[2, 0, 3, 1], &[5, 0, 1, 2, 3, 4]],
        &[
            &[2, 0, 3, 1],
            &[0, 2, 2, 5, 6],
            &[5, 0, 1, 2, 3, 4],
            &[0, 5, 5, 0, 0, 1, 3, 6, 0, 4],
            &[5],
            &[15],
            &[0, 0, 2, 2, 2, 3],
            &[2, 0, 3, 1],
        ],
    );
}

#[test]
fn empty_batch_and_all_rows_empty() {
    check(documents(), 0, &[&[], &[]], &[&[], &[0], &[], &[], &[0], &[0], &[], &[]]);
    check(documents(), 2, &[&[0, 0], &[]], &[&[0, 0], &[0, 0, 0], &[], &[0, 0], &[0], &[0], &[], &[0, 1]]);
}

#[test]
fn long_rows_cross_strips() {
    let values: Vec<i64> = (0..300).map(|i| (i * 37) % 513).collect();
    let mut p = program(vec![table("lens", TableWidth::I32, TableKind::Input)], vec![lens(0)]);
    let value = Ix::table(0, arg(0));
    p.tables.push(table("starts", TableWidth::I64, TableKind::PrefixSum { domain: vec![Ix::Param(0)], value }));
    let mut starts = vec![0];
    values.iter().for_each(|v| starts.push(starts[starts.len() - 1] + v));
    check(p, 300, &[&values], &[&values, &starts]);
}

#[test]
fn every_value_is_checked() {
    fails(documents(), 5000, &[&[], &[]], "E0305", "`M` = 5000 is outside its declared range 0..=4096");
    fails(documents(), 1, &[&[10], &[]], "E0306", "sents(0) = 10 is outside");
    fails(
        documents(),
        3,
        &[&[2, 0, 2], &[1, 2, 3, 94]],
        "E0306",
        "words(2, 1) = 94 is outside its declared range 0..=93",
    );
    fails(documents(), 2, &[&[1, -1], &[1]], "E0306", "sents(1) = -1");
    fails(documents(), 2, &[&[1], &[1]], "E0307", "`sents` takes 2 lengths for this batch, 1 were");
    fails(documents(), 2, &[&[1, 1], &[1, 2, 3]], "E0307", "`words` takes 2 lengths");
    fails(documents(), 2, &[&[1, 1]], "E0303", "2 extent functions, 1 were given");
}

#[test]
fn arithmetic_and_sizes_are_checked() {
    let map = |domain: Vec<Ix>, value: Ix| {
        program(vec![table("t", TableWidth::I32, TableKind::Map { domain, value })], vec![])
    };
    let big = 1i64 << 31;
    fails(map(vec![], big.into()), 0, &[], "E0310", "entry 0 is 2147483648");
    fails(map(vec![], Ix::from(i64::MAX) + 1), 0, &[], "E0309", "table `t`: index arithmetic");
    fails(map(vec![Ix::Param(0) - 1], arg(0)), 0, &[], "E0308", "extent of dim 0 is negative (-1)");
    fails(map(vec![i64::MAX.into()], arg(0)), 0, &[], "E0311", "more than");
    fails(map(vec![(1 << 31).into()], 0.into()), 0, &[], "E0312", "allowed");
    let rows = vec![Ix::from(i64::MAX), 0.into()];
    fails(map(rows, 0.into()), 0, &[], "E0311", "more than");
    let sum = TableKind::ReduceSum { domain: vec![2.into()], value: i64::MAX.into() };
    fails(program(vec![table("s", TableWidth::I64, sum)], vec![]), 0, &[], "E0309", "overflow");
    let negative = ExtentFn { domain: vec![1.into(), (-2).into()], ..lens(0) };
    let input = vec![table("lens", TableWidth::I32, TableKind::Input)];
    fails(program(input, vec![negative]), 0, &[&[]], "E0308", "dim 1 is negative (-2)");
}

#[test]
fn hostile_descriptions_are_refused() {
    let input = || table("lens", TableWidth::I32, TableKind::Input);
    let map = |value| table("t", TableWidth::I32, TableKind::Map { domain: vec![2.into()], value });
    let deep = (0..400).fold(arg(0), |ix, _| ix + 1);
    let wide = (0..13).fold(arg(0), |ix, _| ix.clone() + ix);
    let cases = [
        (program(vec![map(Ix::table(0, arg(0)))], vec![]), "reads table 0"),
        (program(vec![map(Ix::table(1, arg(0))), map(arg(0))], vec![]), "reads table 1"),
        (program(vec![map(Ix::table(9, arg(0)))], vec![]), "table 9 does not exist"),
        (program(vec![map(Ix::Param(7))], vec![]), "parameter 7 does not exist"),
        (program(vec![map(arg(1))], vec![]), "index variable 1 is not bound"),
        (program(vec![map(arg(u32::MAX))], vec![]), "is not bound"),
        (program(vec![map(deep)], vec![]), "too deep"),
        (program(vec![map(wide)], vec![]), "too large"),
        (program(vec![input()], vec![]), "no extent function fills"),
        (program(vec![input()], vec![lens(1)]), "table 1 does not exist"),
        (program(vec![map(arg(0))], vec![lens(0)]), "not an input table"),
        (program(vec![input()], vec![lens(0), lens(0)]), "duplicate name"),
        (program(vec![input()], vec![ExtentFn { hi: Ix::table(0, 0.into()), ..lens(0) }]), "may not read tables"),
        (program(vec![input()], vec![ExtentFn { domain: vec![1.into(); 17], ..lens(0) }]), "more than the 16"),
        (
            program(
                vec![table("p", TableWidth::I32, TableKind::PrefixSum { domain: vec![], value: 0.into() })],
                vec![],
            ),
            "at least one dim",
        ),
        (ProgramDesc { version: 99, ..program(vec![], vec![]) }, "ABI version 99"),
    ];
    for (p, text) in cases {
        fails(p, 2, &[&[1, 2]], "E0301", text);
    }
}

#[test]
fn cache_reuses_equal_batches_only() {
    let prelude = Arc::new(Prelude::new(Arc::new(documents())).unwrap());
    let mut cache = PreludeCache::new(prelude.clone());
    let limits = Limits::default();
    let batch = |v| Batch { params: vec![2], lengths: vec![vec![1, 1], vec![3, v]] };
    assert!(!cache.update(&batch(4), &limits, None).unwrap());
    assert!(cache.update(&batch(4), &limits, None).unwrap());
    assert!(!cache.update(&batch(5), &limits, None).unwrap());
    assert_eq!(cache.tables(), Some(&prelude.build(&batch(5), &limits).unwrap()));
    assert_eq!(cache.sizes().nth(3), Some(("in_doc", 32)));
    assert_eq!(cache.sizes().map(|(_, b)| b).sum::<u64>(), cache.tables().unwrap().bytes());
    assert!(cache.update(&batch(500), &limits, None).is_err());
    assert_eq!(cache.tables(), None);
    assert!(!cache.update(&batch(5), &limits, None).unwrap());
    cache.forget();
    assert_eq!(cache.tables(), None);
    assert!(!cache.update(&batch(5), &limits, None).unwrap());
    assert!(cache.tables().is_some());
}

/// Tables of every kind over one, two and three dims, long enough to be cut into parts.
fn large() -> ProgramDesc {
    use TableWidth::{I32, I64};
    let docs = || Ix::Param(0);
    let lens = || Ix::table(0, arg(0));
    let pair = || vec![docs(), lens()];
    let mixed = |x: Ix| (x * 7919).modulo(1009);
    let mut p = program(
        vec![
            table("lens", I32, TableKind::Input),
            table("row", I32, TableKind::PrefixSum { domain: vec![docs()], value: lens() }),
            table("row64", I64, TableKind::PrefixSum { domain: vec![docs()], value: lens() * lens() }),
            table("half", I32, TableKind::Map { domain: vec![docs()], value: lens().floor_div(2) }),
            table("of", I32, TableKind::Map { domain: pair(), value: mixed(arg(0) + arg(1)) }),
            table("in_row", I64, TableKind::PrefixSum { domain: pair(), value: mixed(arg(1)) }),
            table("triple", I32, TableKind::Map { domain: vec![docs(), lens(), arg(1).modulo(3)], value: arg(2) }),
            table("longest", I32, TableKind::ReduceMax { domain: vec![docs()], value: lens() }),
            table("total", I64, TableKind::ReduceSum { domain: pair(), value: mixed(arg(0) * arg(1)) }),
            table("order", I32, TableKind::SortDesc { domain: vec![docs()], key: mixed(lens() + arg(0)) }),
            table("in_rows", I32, TableKind::SortDesc { domain: pair(), key: mixed(arg(0) + arg(1)) }),
        ],
        vec![self::lens(0)],
    );
    p.params[0].hi = 1 << 30;
    p
}

fn lengths(n: i64) -> Vec<i64> {
    (0..n).map(|i| if i % 97 == 0 { 0 } else { (i * 37 + i / 64) % 13 }).collect()
}

/// The same bytes on any number of workers, and the same errors.
#[test]
fn workers_share_large_tables() {
    let pools: Vec<Pool> = [2, 3, 5].into_iter().map(|n| Pool::new(n).unwrap()).collect();
    let outcome = |prelude: &Arc<Prelude>, n: i64, lengths: &[i64], limits: &Limits, pool: Option<&Pool>| {
        let mut cache = PreludeCache::new(prelude.clone());
        let batch = Batch { params: vec![n], lengths: vec![lengths.to_vec()] };
        let first = cache.update(&batch, limits, pool).map(|_| cache.tables().cloned()).map_err(|e| e.to_string());
        // Memory of a batch before does not show.
        let small = Batch { params: vec![2], lengths: vec![vec![3, 1]] };
        let _ = cache.update(&small, limits, pool);
        let second = cache.update(&batch, limits, pool).map(|_| cache.tables().cloned()).map_err(|e| e.to_string());
        assert_eq!(first, second);
        first
    };
    let same = |p: ProgramDesc, n: i64, lengths: &[i64], limits: Limits, works: bool| {
        let prelude = Arc::new(Prelude::new(Arc::new(p)).unwrap());
        let want = outcome(&prelude, n, lengths, &limits, None);
        assert_eq!(want.is_ok(), works, "{want:?}");
        for pool in &pools {
            assert_eq!(outcome(&prelude, n, lengths, &limits, Some(pool)), want, "{} workers", pool.threads());
        }
    };
    for n in [0, 1, 255, 257, 8192, 8193, 20_000, 40_001] {
        same(large(), n, &lengths(n), Limits::default(), true);
    }
    let n = 20_000;
    let points = |k: u64| Limits { steps: k, ..Limits::default() };
    let bytes = |k: u64| Limits { table_bytes: k, ..Limits::default() };
    same(large(), n, &lengths(n), points(100_000), false);
    same(large(), n, &lengths(n), bytes(400_000), false);
    same(large(), n, &lengths(n), bytes(1 << 20), false);
    // What does not fit, or has no value, is the first entry of its kind whichever part it lies in.
    let with = |kind: TableKind| {
        let mut p = large();
        p.tables.push(table("t", TableWidth::I32, kind));
        p
    };
    let docs = || vec![Ix::Param(0)];
    let steep = |at: i64| Ix::select(arg(0).lt(at), 1, 1 << 20);
    same(with(TableKind::PrefixSum { domain: docs(), value: steep(9000) }), n, &lengths(n), Limits::default(), false);
    same(with(TableKind::Map { domain: docs(), value: arg(0) * (1 << 18) }), n, &lengths(n), Limits::default(), false);
    let past = Ix::table(0, arg(0) + 5000);
    same(with(TableKind::Map { domain: docs(), value: past.clone() }), n, &lengths(n), Limits::default(), false);
    let pair = vec![Ix::Param(0), Ix::table(0, arg(0)) - 1];
    same(with(TableKind::Map { domain: pair, value: past }), n, &lengths(n), Limits::default(), false);
    let large_sum = TableKind::ReduceSum { domain: docs(), value: Ix::from(i64::MAX).floor_div(30) - arg(0) };
    same(with(large_sum), n, &lengths(n), Limits::default(), false);
}

#[test]
fn named_values_are_ordered() {
    let p = documents();
    let words = ("words", vec![1]);
    let sents = ("sents", vec![1]);
    let got = Batch::from_named(&p, [("M", 1)], [words.clone(), sents.clone()]).unwrap();
    assert_eq!(got, Batch { params: vec![1], lengths: vec![vec![1], vec![1]] });
    let code = |r: Result<Batch>| r.unwrap_err().code();
    assert_eq!(code(Batch::from_named(&p, [("N", 1)], [words.clone(), sents])), "E0304");
    assert_eq!(code(Batch::from_named(&p, [("M", 1)], [words])), "E0304");
}
