//! What kernels of one module share: private math functions, the search in a table, and the addresses of functions that
//! the runtime finds.

use std::collections::BTreeMap;

use cora_ir::UnOp;
use cora_ir::intrinsic::Emission;
use cora_runtime::abi::Import;

use super::EmitOptions;
use super::builder::{Builder, Elem, Ty, Val};
use super::math;

/// The private functions asked for so far.
pub(crate) struct Library {
    options: EmitOptions,
    /// Whether code is for a GPU: no libm, no calls.
    grid: bool,
    functions: BTreeMap<String, String>,
}

impl Library {
    pub(crate) fn new(options: &EmitOptions) -> Self {
        Self { options: *options, grid: false, functions: BTreeMap::new() }
    }

    /// For a GPU.
    pub(crate) fn grid() -> Self {
        Self { grid: true, ..Self::new(&EmitOptions::default()) }
    }

    /// Whether `a * b + c` is one rounding.
    pub(crate) fn fma(&self) -> bool {
        self.options.fma
    }

    /// Whether there is `vdpbf16ps`.
    pub(crate) fn dot_bf16(&self) -> bool {
        self.options.dot_bf16
    }

    /// Whether there is `vpdpbusd`.
    pub(crate) fn dot_i8(&self) -> bool {
        self.options.dot_i8
    }

    /// Whether there is `vpmaddwd` on vectors of 32 bytes.
    pub(crate) fn pairs_i16(&self) -> bool {
        self.options.pairs_i16
    }

    /// Whether there is the instruction on tile registers that is written so.
    pub(crate) fn has_tiles(&self, emission: Emission) -> bool {
        self.options.has_tiles(emission)
    }

    /// Bytes that one access under a mask has at most.
    pub(crate) fn masked_bytes(&self) -> u32 {
        self.options.masked_bytes
    }

    /// Whether neighbours under a mask are accessed lane by lane, as others are: where there is an access for each lane anyway,
    /// LLVM 22 fails at constant masks of such numbers of lanes (`Do not know how to scalarize the result`).
    pub(crate) fn masked_by_lane(&self, lanes: u32) -> bool {
        self.options.masked_bytes == u32::MAX && !lanes.is_power_of_two()
    }

    /// Whether a store of all lanes under a mask is made without it.
    pub(crate) fn full_stores(&self) -> bool {
        self.options.full_stores
    }

    /// The functions' text, in order of their names.
    pub(crate) fn text(&self) -> String {
        self.functions.values().map(String::as_str).collect()
    }

    /// `op a` for a function that has an expansion in [`math`].
    pub(crate) fn math(&mut self, b: &mut Builder, op: UnOp, a: Val) -> Val {
        let ty = b.ty(a);
        self.call(b, op.name(), ty, &[a], &mut |f, args| math::unary(f, op, args[0]))
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
            let mut f = Builder::new(self.options.fma);
            f.scalef = self.options.scalef;
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

    /// [`Library::search`] in a loop: it looks first at the row that `last` points to, which the search before found, and at
    /// the one after that.
    pub(crate) fn search_on(&mut self, b: &mut Builder, elem: Elem, operands: [Val; 4], last: Val) -> Val {
        let search = format!("cora.search.{elem}");
        self.functions.entry(search.clone()).or_insert_with(|| search_text(&search, elem, self.grid));
        let symbol = format!("cora.search_on.{elem}");
        self.functions.entry(symbol.clone()).or_insert_with(|| search_on_text(&symbol, &search, elem));
        let far = format!("cora.search_from.{elem}");
        self.functions.entry(far.clone()).or_insert_with(|| search_from_text(&far, &search, elem));
        let [table, base, len, value] = operands;
        let rhs = format!(
            "llvm.call @{symbol}({table}, {base}, {len}, {value}, {last}) : (!llvm.ptr, i64, i64, i64, !llvm.ptr) -> i64"
        );
        b.op(Ty::scalar(Elem::I64), &rhs)
    }
}

/// The text that reads entry `index` of the rows.
fn entry_text(elem: Elem, name: &str, index: &str) -> String {
    let load = format!("llvm.load %{name}.at {{alignment = {} : i64}} : !llvm.ptr -> {elem}", elem.bits() / 8);
    let value = match elem {
        Elem::I64 => format!("%{name} = {load}"),
        _ => format!("%{name}.n = {load}\n    %{name} = arith.extsi %{name}.n : {elem} to i64"),
    };
    format!(
        "    %{name}.i = arith.addi %base, {index} : i64\n    %{name}.at = llvm.getelementptr %table[%{name}.i] : (!llvm.ptr, \
         i64) -> !llvm.ptr, {elem}\n    {value}\n"
    )
}

/// Rows that are near a row.
const NEAR_ROWS: i64 = 16;

/// A search among the rows from `row` on, some of which may be empty, or of all rows if it is not there.
fn search_from_text(symbol: &str, search: &str, elem: Elem) -> String {
    let call = |base: &str, len: &str| {
        format!("llvm.call @{search}(%table, {base}, {len}, %value) : (!llvm.ptr, i64, i64, i64) -> i64")
    };
    format!(
        "llvm.func internal @{symbol}(%table: !llvm.ptr {{llvm.noalias, llvm.readonly, llvm.noundef}}, %base: i64, %len: i64, \
         %value: i64, %row: i64) -> i64 attributes {{no_inline, no_unwind, will_return}} {{
  %one = arith.constant 1 : i64
  %most = arith.constant {NEAR_ROWS} : i64
  %left = arith.subi %len, %row : i64
  %width = arith.minsi %left, %most : i64
  %past = arith.addi %row, %width : i64
  %last = arith.subi %past, %one : i64
{}{}    %a.le = arith.cmpi sle, %a, %value : i64
    %z.gt = arith.cmpi sgt, %z, %value : i64
    %in = arith.andi %a.le, %z.gt : i1
    %found = scf.if %in -> (i64) {{
      %from = arith.addi %base, %row : i64
      %step = {}
      %near = arith.addi %row, %step : i64
      scf.yield %near : i64
    }} else {{
      %far = {}
      scf.yield %far : i64
    }}
  llvm.return %found : i64
}}
",
        entry_text(elem, "a", "%row"),
        entry_text(elem, "z", "%last"),
        call("%from", "%width"),
        call("%base", "%len"),
    )
}

/// Neither the row before nor the next one: a search from there. Whatever `last` holds the result is the same.
fn search_on_text(symbol: &str, search: &str, elem: Elem) -> String {
    let entry = |name: &str, index: &str| entry_text(elem, name, index);
    let from = format!(
        "llvm.call @cora.search_from.{elem}(%table, %base, %len, %value, %row) : (!llvm.ptr, i64, i64, i64, i64) -> i64"
    );
    let all = format!("llvm.call @{search}(%table, %base, %len, %value) : (!llvm.ptr, i64, i64, i64) -> i64");
    format!(
        "llvm.func internal @{symbol}(%table: !llvm.ptr {{llvm.noalias, llvm.readonly, llvm.noundef}}, %base: i64, %len: i64, \
         %value: i64, %last: !llvm.ptr) -> i64 attributes {{always_inline, no_unwind, will_return}} {{
  %one = arith.constant 1 : i64
  %row = llvm.load %last {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %next = arith.addi %row, %one : i64
  %end = arith.subi %len, %one : i64
  %known = arith.cmpi slt, %row, %end : i64
  %found = scf.if %known -> (i64) {{
{}{}    %more = arith.addi %next, %one : i64
    %is_end = arith.cmpi sge, %more, %len : i64
    %after = arith.select %is_end, %end, %more : i64
{}    %a.le = arith.cmpi sle, %a, %value : i64
    %b.le = arith.cmpi sle, %b, %value : i64
    %b.gt = arith.cmpi sgt, %b, %value : i64
    %c.gt = arith.cmpi sgt, %c, %value : i64
    %c.end = arith.ori %c.gt, %is_end : i1
    %same = arith.andi %a.le, %b.gt : i1
    %following = arith.andi %b.le, %c.end : i1
    %hit = arith.ori %same, %following : i1
    %near = scf.if %hit -> (i64) {{
      %which = arith.select %same, %row, %next : i64
      scf.yield %which : i64
    }} else {{
      %far = {from}
      scf.yield %far : i64
    }}
    scf.yield %near : i64
  }} else {{
    %first = {all}
    scf.yield %first : i64
  }}
  llvm.store %found, %last {{alignment = 8 : i64}} : i64, !llvm.ptr
  llvm.return %found : i64
}}
",
        entry("a", "%row"),
        entry("b", "%next"),
        entry("c", "%after"),
    )
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
