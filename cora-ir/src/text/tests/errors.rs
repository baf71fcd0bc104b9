//! Parse errors: code and place.

use crate::text::{parse_graph, parse_loops, parse_storage};

/// Checks that `text` with the part between `<<` and `>>` marked is refused there with `code`.
fn check(text: &str, code: &str) {
    let start = text.find("<<").expect("marked");
    let end = text.find(">>").expect("marked") - 2;
    let clean = text.replacen("<<", "", 1).replacen(">>", "", 1);
    let error = match clean.split('.').next() {
        Some("graph") => parse_graph(&clean).err(),
        Some("storage") => parse_storage(&clean).err(),
        _ => parse_loops(&clean).err(),
    };
    let error = error.unwrap_or_else(|| panic!("accepted: {clean}"));
    let span = error.span.expect("a place");
    assert_eq!((error.code, &clean[span.start..span.end]), (code, &clean[start..end]), "{error}");
}

#[test]
fn lexical() {
    check("loop.module @m { <<?>> }", "E0501");
    check("loop.module @m { <<é>> }", "E0501");
    check("loop.module @<<\"m { }>>", "E0501");
    check("loop.module @<<\"\\>>q\" { }", "E0501");
    check("loop.module @m { param M in 0..=<<4k>> }", "E0501");
    check("loop.module @m { param <<M#>> in 0..=4 }", "E0501");
    check("loop.module @m { uf @f(<<$99999999999>> < 3) = extent in 0..=1 }", "E0501");
    check("storage.module @m { kernel @k { if <<1.5>> { } } }", "E0501");
    check("storage.module @m { kernel @k { if <<1.5:i32>> { } } }", "E0501");
    check("storage.module @m { kernel @k { if <<nan(0x3):f32>> { } } }", "E0501");
}

#[test]
fn unexpected_tokens() {
    check("<<foo.module>>", "E0502");
    check("loop.module @m {<<>>", "E0502");
    check("loop.module @m { } <<x>>", "E0502");
    check("loop.module @m { <<kernel>> @k { } }", "E0502");
    check("loop.module @m { tensor @A[x <<4>>] : f32 input }", "E0502");
    check("loop.module @m { tensor @A[x: 4] : <<f31>> input }", "E0502");
    check("loop.module @m { tensor @A[x: 4] : f32 <<inout>> }", "E0502");
    check("storage.module @m { kernel @k { if 1 < %?x <<<>> %?y { } } }", "E0502");
    check("storage.module @m { kernel @k { if 1 == <<not>> true { } } }", "E0502");
    check("storage.module @m { kernel @k { if min(<<1)>> { } } }", "E0502");
    check("storage.module @m { kernel @k { for %x in <<1>>..3 { } } }", "E0502");
    check("storage.module @m { kernel @k { <<letx>> } }", "E0502");
    check("graph.module @m { schedule cpu { <<slice>> @S[i] } }", "E0502");
}

#[test]
fn names() {
    check("loop.module @m { tensor @A[x: <<N>>] : f32 input }", "E0504");
    check("loop.module @m { tensor @A[x: <<@f>>(3)] : f32 input }", "E0504");
    check("loop.module @m { for %x in 0..3 stage <<@S>> { } }", "E0504");
    check("storage.module @m { kernel @k { let %a = <<%b>> } }", "E0504");
    check("storage.module @m { kernel @k { for %x in 0..2 { } let %a = <<%x>> } }", "E0504");
    check("graph.module @m { tensor @A[] : f32 output op @A[<<%x>>] = 0.0:f32 }", "E0504");
    check("loop.module @m { param M in 0..=1 param <<M>> in 0..=2 }", "E0505");
    check("loop.module @m { tensor @A[] : f32 temp tensor <<@A>>[] : f32 temp }", "E0505");
    check("loop.module @m { uf @f() = extent in 0..=1 uf <<@f>>() = extent in 0..=1 }", "E0505");
    check("storage.module @m { kernel @k { } kernel <<@k>> { } }", "E0505");
    check("storage.module @m { kernel @k { let %a = 1 let <<%a>> = 2 } }", "E0505");
    check("graph.module @m { dim %a = 1 dim <<%a>> = 2 }", "E0505");
}

#[test]
fn ranges_and_forms() {
    check("loop.module @m { param M in 0..=<<9223372036854775808>> }", "E0506");
    check("storage.module @m { kernel @k { if <<-9223372036854775809>> { } } }", "E0506");
    check("storage.module @m { kernel @k { if splat(1, <<0>>) { } } }", "E0506");
    check("storage.module @m { kernel @k { if ramp(1, 1, <<99999999>>) { } } }", "E0506");
    check("loop.module @m { uf @f(<<$1>> < 3) = extent in 0..=1 }", "E0508");
    check("loop.module @m { uf @f(<<$0 <= 3)>> = extent in 0..=1 }", "E0508");
    check("loop.module @m { uf @f(<<$0 < 3)>> = prefix_sum 1 }", "E0508");
    check("storage.module @m { kernel @k { if (<<1>> if true else 2) { } } }", "E0508");
}

#[test]
fn stages() {
    for (text, parse) in [("storage.module @m { }", parse_loops as fn(&str) -> _), ("graph.module @m { }", parse_loops)]
    {
        assert_eq!(parse(text).map(|_| ()).map_err(|e| e.code), Err("E0507"));
    }
    assert_eq!(parse_graph("loop.module @m { }").map(|_| ()).map_err(|e| e.code), Err("E0507"));
    assert_eq!(parse_storage("loop.module @m { }").map(|_| ()).map_err(|e| e.code), Err("E0507"));
}

/// A storage module whose only condition is `text`.
fn condition(text: &str) -> String {
    format!("storage.module @m {{ tensor @A[] : f32 input kernel @k {{ if {text} {{ }} }} }}")
}

#[test]
fn deep_nesting_is_an_error() {
    let n = 100_000;
    let (open, close) = ("(".repeat(n), ")".repeat(n));
    let chain = |op: &str| format!("%?x{}", format!(" {op} %?y").repeat(n));
    let cases = [
        condition(&format!("{open}1{close}")),
        condition(&format!("{}%?x{close}", "abs(".repeat(n))),
        condition(&format!("{}%?x", "-".repeat(n))),
        condition(&format!("{}true", "not ".repeat(n))),
        condition(&format!("{}1{}", "@A[".repeat(n), "]".repeat(n))),
        condition(&format!("{}1", "%?x + (".repeat(n))),
        condition(&chain("+")),
        condition(&chain("*")),
        condition(&format!("{}%?z", "%?x + %?y * ".repeat(n))),
        condition(&format!("1 {{ }} {} }}", "if 1 { ".repeat(n))),
        condition(&format!("1 {{ }} {} }}", "for %?x in 0..1 { ".repeat(n))),
    ];
    for text in &cases {
        let error = parse_storage(text).map(|_| ()).expect_err("refused");
        assert!(["E0503", "E0502"].contains(&error.code), "{}: {}", &text[..120], error.code);
    }
    let loops = "for %x in 0..1 stage @A { ".repeat(n);
    let error = parse_loops(&format!("loop.module @m {{ tensor @A[] : f32 output {loops}")).map(|_| ());
    assert!(error.is_err());
}

#[test]
fn the_deepest_that_is_allowed_goes_through() {
    let n = super::super::parse::MAX_DEPTH as usize - 2;
    let (open, close) = ("abs(".repeat(n), ")".repeat(n));
    let right = format!("{}%?x{}", "%?y * (%?x + ".repeat(n / 2), ")".repeat(n / 2));
    for text in [format!("{open}%?x{close}"), format!("{}%?x", "not ".repeat(2)), right] {
        let m = parse_storage(&condition(&text)).unwrap_or_else(|e| panic!("{e}"));
        let printed = crate::text::print_storage(&m);
        assert!(parse_storage(&printed).is_ok());
    }
}
