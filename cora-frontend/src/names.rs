//! Reserved words and suggestions for misspelt names.

use crate::ast::ReduceOp;
use cora_ir::{ScalarType, UnOp};

/// Words of the grammar; never names.
pub const KEYWORDS: [&str; 22] = [
    "param", "const", "extent", "dim", "input", "fn", "combiner", "output", "schedule", "in", "pad", "and", "or",
    "not", "if", "then", "else", "when", "true", "false", "inf", "nan",
];

/// Functions that are not [`UnOp`]s, casts or reductions.
pub const BUILTINS: [&str; 7] = ["select", "pow", "ceildiv", "floordiv", "size", "sigmoid", "relu"];

/// The names of the math functions.
pub fn math_names() -> Vec<&'static str> {
    UnOp::ALL.into_iter().map(UnOp::name).filter(|n| math_function(n).is_some()).collect()
}

/// The math function with that name (`-` and `not` have none).
pub fn math_function(name: &str) -> Option<UnOp> {
    UnOp::ALL.into_iter().find(|u| u.name() == name && !matches!(u, UnOp::Neg | UnOp::Not))
}

/// The keywords that start items.
pub fn item_keywords() -> &'static [&'static str] {
    &KEYWORDS[..9]
}

/// Whether `name` starts an item.
pub fn is_item_keyword(name: &str) -> bool {
    item_keywords().contains(&name)
}

/// Whether `name` means something already and cannot be declared.
pub fn is_reserved(name: &str) -> bool {
    KEYWORDS.contains(&name)
        || BUILTINS.contains(&name)
        || ReduceOp::from_name(name).is_some()
        || ScalarType::from_name(name).is_some()
        || math_function(name).is_some()
}

/// What to do about the declaration of a reserved name, as that of `kind`.
pub fn instead_of_reserved(name: &str, kind: &str) -> &'static str {
    match (name, kind) {
        ("const", "input") => "`const` stands before `input`: `const input W[..]`",
        (_, "function") if math_function(name).is_some() || BUILTINS.contains(&name) => {
            "it is there already: leave the declaration out, or choose another name"
        }
        _ => "choose another name",
    }
}

/// What functions of other languages are in this one.
pub fn written_as(function: &str) -> Option<&'static str> {
    Some(match function {
        "ln" => "log(x)",
        "log2" => "log(x) * 1.4426950408889634",
        "log10" => "log(x) * 0.4342944819032518",
        "exp2" => "exp(x * 0.6931471805599453)",
        "expm1" => "exp(x) - 1",
        "log1p" => "log(1 + x)",
        "tan" => "sin(x) / cos(x)",
        "fabs" => "abs(x)",
        "square" => "x * x",
        "mean" | "avg" => "(sum(i) x) / f32(size(i))",
        "any" => "max(i) select(condition, 1, 0)",
        "all" => "min(i) select(condition, 1, 0)",
        "sign" => "select(x > 0, 1.0, select(x < 0, -1.0, 0.0))",
        "clamp" | "clip" => "min(max(x, low), high)",
        "where" | "ifelse" => "select(condition, x, y)",
        "mod" | "fmod" => "a % b",
        "gelu" => "0.5 * x * (1 + erf(x * 0.7071067811865476))",
        "silu" | "swish" => "x * sigmoid(x)",
        "leaky_relu" => "max(x, 0.01 * x)",
        "elu" => "select(x > 0, x, exp(min(x, 0)) - 1)",
        "softplus" => "log(1 + exp(x))",
        "maximum" | "fmax" => "max(x, y)",
        "minimum" | "fmin" => "min(x, y)",
        "len" | "length" => "size(i)",
        "int" | "int32" => "i32(x)",
        "int64" | "long" => "i64(x)",
        "float" | "float32" => "f32(x)",
        "double" | "float64" => "f64(x)",
        "half" | "float16" => "f16(x)",
        "bfloat16" => "bf16(x)",
        "cast" | "astype" | "convert" => "f32(x)",
        _ => return None,
    })
}

/// How a function is called that other languages write after a dot, `A.sum(b)` or `torch.exp(A)`.
pub fn method_as(function: &str) -> String {
    let name = function.rsplit_once('.').map_or(function, |(_, name)| name);
    if ReduceOp::from_name(name).is_some() {
        return format!("what is reduced follows the dimensions: `{name}(i) x`");
    }
    match written_as(name) {
        Some(other) => format!("write `{other}`"),
        None if is_reserved(name) => format!("write `{name}(x)`"),
        None => "functions have no dots in their names: `fn f(x) = ..` is called as `f(x)`".to_owned(),
    }
}

/// The candidate nearest to `name`, if one is near enough to be what was meant.
pub fn suggest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.len() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .filter(|c| c.len().abs_diff(name.len()) <= limit)
        .map(|c| (distance(name, c), c))
        .filter(|&(d, c)| d <= limit && d < c.len())
        .min()
        .map(|(_, c)| c)
}

/// Edit distance where a swap of neighbours or a change of case counts as one.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 64 || b.len() > 64 {
        return usize::MAX;
    }
    let (a, b): (Vec<u8>, Vec<u8>) = (a.to_ascii_lowercase().into_bytes(), b.to_ascii_lowercase().into_bytes());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let same = usize::from(a[i - 1] != b[j - 1]);
            let mut d = (rows[i - 1][j - 1] + same).min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                d = d.min(rows[i - 2][j - 2] + 1);
            }
            row.push(d);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions() {
        assert_eq!(suggest("bacth", ["q", "batch", "k"]), Some("batch"));
        assert_eq!(suggest("Batch", ["batch"]), Some("batch"));
        assert_eq!(suggest("x", ["y"]), None);
        assert_eq!(suggest("scaed", ["scaled", "S"]), Some("scaled"));
    }
}
