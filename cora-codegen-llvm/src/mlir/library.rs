//! What kernels of one module share: private math functions, the search in a table, and the addresses of functions that
//! the runtime finds.

use std::collections::BTreeMap;

use cora_ir::UnOp;
use cora_runtime::abi::Import;

use super::EmitOptions;
use super::builder::{Builder, Elem, Ty, Val};
use super::math;

/// The private functions asked for so far.
pub(crate) struct Library {
    fma: bool,
    scalef: bool,
    dot_bf16: bool,
    amx_bf16: bool,
    /// Whether code is for a GPU: no libm, no calls.
    grid: bool,
    functions: BTreeMap<String, String>,
}

impl Library {
    pub(crate) fn new(options: &EmitOptions) -> Self {
        let EmitOptions { fma, scalef, dot_bf16, amx_bf16 } = *options;
        Self { fma, scalef, dot_bf16, amx_bf16, grid: false, functions: BTreeMap::new() }
    }

    /// For a GPU.
    pub(crate) fn grid() -> Self {
        Self { fma: true, scalef: false, dot_bf16: false, amx_bf16: false, grid: true, functions: BTreeMap::new() }
    }

    /// Whether `a * b + c` is one rounding.
    pub(crate) fn fma(&self) -> bool {
        self.fma
    }

    /// Whether there is `vdpbf16ps`.
    pub(crate) fn dot_bf16(&self) -> bool {
        self.dot_bf16
    }

    /// Whether there is `tdpbf16ps`.
    pub(crate) fn amx_bf16(&self) -> bool {
        self.amx_bf16
    }

    /// The functions' text, in order of their names.
    pub(crate) fn text(&self) -> String {
        self.functions.values().map(String::as_str).collect()
    }

    /// `op a` for a function that has an expansion in [`math`].
    pub(crate) fn math(&mut self, b: &mut Builder, op: UnOp, a: Val) -> Val {
        let ty = b.ty(a);
        self.call(b, op.name(), ty, &[a], &mut |f, args| {
            if ty.elem == Elem::F64 { math::per_lane(f, math::libm_op(op), args) } else { math::unary(f, op, args[0]) }
        })
    }

    /// `x` to the power `y`.
    pub(crate) fn pow(&mut self, b: &mut Builder, x: Val, y: Val) -> Val {
        let (x, y) = b.same_lanes(x, y);
        let ty = b.ty(x);
        self.call(b, "pow", ty, &[x, y], &mut |f, args| {
            if ty.elem == Elem::F64 { math::per_lane(f, "math.powf", args) } else { math::pow(f, args[0], args[1]) }
        })
    }

    /// The variable that holds the address of a function which the runtime finds.
    pub(crate) fn import(&mut self, import: Import) -> &'static str {
        let symbol = import.symbol();
        self.functions.entry(symbol.to_owned()).or_insert_with(|| {
            format!(
                "llvm.mlir.global external @{symbol}() {{addr_space = 0 : i32}} : !llvm.ptr {{\n  \
                 %null = llvm.mlir.zero : !llvm.ptr\n  llvm.return %null : !llvm.ptr\n}}\n"
            )
        });
        symbol
    }

    fn call(
        &mut self,
        b: &mut Builder,
        name: &str,
        ty: Ty,
        args: &[Val],
        body: &mut dyn FnMut(&mut Builder, &[Val]) -> Val,
    ) -> Val {
        let symbol = format!("cora.{name}.{}x{}", ty.elem, ty.lanes);
        if !self.functions.contains_key(&symbol) {
            let mut f = Builder::new(self.fma);
            f.scalef = self.scalef;
            if self.grid {
                f.without_libm();
            }
            let formals: Vec<Val> = args.iter().map(|_| f.value(ty, 0)).collect();
            let result = body(&mut f, &formals);
            let formals: Vec<String> = formals.iter().map(|v| format!("{v}: {ty}")).collect();
            let text = format!(
                "llvm.func internal @{symbol}({}) -> {ty} attributes {{always_inline, no_unwind, will_return}} {{\n{}  \
                 llvm.return {result} : {ty}\n}}\n",
                formals.join(", "),
                f.finish(),
            );
            self.functions.insert(symbol.clone(), text);
        }
        let actuals: Vec<String> = args.iter().map(Val::to_string).collect();
        let types = vec![ty.to_string(); args.len()];
        let rhs = format!("llvm.call @{symbol}({}) : ({}) -> {ty}", actuals.join(", "), types.join(", "));
        b.pure(ty, args, &rhs)
    }

    /// The greatest `x` in `0..len` with `table[base + x] <= value`, for entries of type `elem`; 0 where there is none.
    ///
    /// A halving search without branches on the entries. It reads nothing for `len <= 1`, and nothing but the table, which
    /// never changes: LLVM may keep one call of several and move it out of loops.
    pub(crate) fn search(&mut self, b: &mut Builder, elem: Elem, [table, base, len, value]: [Val; 4]) -> Val {
        let symbol = format!("cora.search.{elem}");
        self.functions.entry(symbol.clone()).or_insert_with(|| search_text(&symbol, elem, self.grid));
        let rhs = format!("llvm.call @{symbol}({table}, {base}, {len}, {value}) : (!llvm.ptr, i64, i64, i64) -> i64");
        b.op(Ty::scalar(Elem::I64), &rhs)
    }
}

fn search_text(symbol: &str, elem: Elem, inline: bool) -> String {
    let inline = if inline { "always_inline" } else { "no_inline" };
    let load = format!("llvm.load %at {{alignment = {} : i64}} : !llvm.ptr -> {elem}", elem.bits() / 8);
    let entry = match elem {
        Elem::I64 => format!("%entry = {load}"),
        _ => format!("%narrow = {load}\n    %entry = arith.extsi %narrow : {elem} to i64"),
    };
    format!(
        "llvm.func internal @{symbol}(%table: !llvm.ptr {{llvm.noalias, llvm.readonly, llvm.noundef}}, %base: i64, \
         %len: i64, %value: i64) -> i64 attributes {{{inline}, no_unwind, will_return, memory_effects = \
         #llvm.memory_effects<other = none, argMem = read, inaccessibleMem = none, errnoMem = none, targetMem0 = none, \
         targetMem1 = none>}} {{
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %x, %n = scf.while (%x0 = %zero, %n0 = %len) : (i64, i64) -> (i64, i64) {{
    %more = arith.cmpi sgt, %n0, %one : i64
    scf.condition(%more) %x0, %n0 : i64, i64
  }} do {{
  ^bb0(%x0: i64, %n0: i64):
    %half = arith.shrui %n0, %one : i64
    %mid = arith.addi %x0, %half : i64
    %index = arith.addi %base, %mid : i64
    %at = llvm.getelementptr %table[%index] : (!llvm.ptr, i64) -> !llvm.ptr, {elem}
    {entry}
    %right = arith.cmpi sle, %entry, %value : i64
    %x1 = arith.select %right, %mid, %x0 : i64
    %n1 = arith.subi %n0, %half : i64
    scf.yield %x1, %n1 : i64, i64
  }}
  llvm.return %x : i64
}}
"
    )
}
