//! An MLIR module with its context: parse text, run pass pipelines, capture every diagnostic.

use std::cell::RefCell;
use std::fmt;

use melior::Context;
use melior::diagnostic::{Diagnostic, DiagnosticHandlerId, DiagnosticSeverity};
use melior::dialect::DialectRegistry;
use melior::ir::Module;
use melior::pass::PassManager;
use melior::utility::{
    parse_pass_pipeline, register_all_dialects, register_all_llvm_translations, register_all_passes,
};

use super::error::CodegenError;
use super::fatal::Trace;
use super::ffi;

/// Lowers `func`, `scf`, `arith`, `math`, `vector`, `memref`, `affine`, `index` and `ub` to `llvm` ops for a CPU.
///
/// Functions may be `func.func` or `llvm.func`; both take bare `!llvm.ptr` arguments. Ops of the `llvm` dialect pass
/// through. What LLVM has no intrinsic for (`math.erf`) becomes a call of libm. `convert-ub-to-llvm` is needed because
/// vector lowering produces `ub.poison`; `finalize-memref-to-llvm` must sit at module level.
pub const CPU_PIPELINE: &str = "builtin.module(\
    canonicalize,\
    cse,\
    expand-strided-metadata,\
    lower-affine,\
    convert-scf-to-cf,\
    convert-vector-to-llvm{reassociate-fp-reductions=1 enable-x86vector=1 enable-arm-neon=1},\
    finalize-memref-to-llvm,\
    convert-math-to-llvm,\
    convert-math-to-libm,\
    convert-arith-to-llvm,\
    convert-ub-to-llvm,\
    convert-index-to-llvm,\
    convert-cf-to-llvm,\
    convert-func-to-llvm,\
    cse,\
    reconcile-unrealized-casts)";

/// An MLIR module and the context that owns its types and attributes.
pub struct MlirModule {
    // Declared before `context`, so it is dropped first. The lifetime is not really `'static`: it is that of `context`,
    // and no method hands it out.
    module: Module<'static>,
    context: Context,
    trace: Trace,
}

impl MlirModule {
    /// Parses and verifies MLIR text; positions in diagnostics are lines and columns of `text`.
    ///
    /// # Errors
    ///
    /// [`CodegenError::Mlir`] of stage `parse` when the text does not parse or verify.
    pub fn parse(text: &str) -> Result<Self, CodegenError> {
        ffi::initialize();
        register_all_passes();
        let trace = Trace::new(text);
        if let Some(position) = text.find('\0') {
            let line = text[..position].matches('\n').count() + 1;
            return Err(CodegenError::Mlir {
                stage: "parse".to_owned(),
                diagnostics: vec![format!("{line}: error: the text contains a NUL")],
            });
        }
        let registry = DialectRegistry::new();
        register_all_dialects(&registry);
        let context = Context::new_with_registry(&registry, false);
        register_all_llvm_translations(&context);

        let (module, diagnostics) = capture(&context, || Module::parse(&context, text));
        let Some(module) = module else {
            return Err(CodegenError::Mlir { stage: "parse".to_owned(), diagnostics });
        };
        // SAFETY: only the lifetime changes, from a borrow of `context` to `'static`. MLIR contexts are heap objects
        // that `Context` points to, so moving `context` into the struct keeps the module valid, and field order drops
        // the module before the context.
        let module = unsafe { std::mem::transmute::<Module<'_>, Module<'static>>(module) };
        Ok(Self { module, context, trace })
    }

    /// Runs a pipeline given as text, such as [`CPU_PIPELINE`] or `builtin.module(canonicalize,cse)`.
    ///
    /// # Errors
    ///
    /// [`CodegenError::Mlir`] whose stage is the text of the failing pass. The module is then half lowered and only
    /// good for printing.
    pub fn run_pipeline(&mut self, pipeline: &str) -> Result<(), CodegenError> {
        self.run_pipeline_with(pipeline, |_, _| {})
    }

    /// Runs a pipeline and hands each pass's text and the module after it to `observe`.
    ///
    /// # Errors
    ///
    /// As [`run_pipeline`](Self::run_pipeline).
    pub fn run_pipeline_with(
        &mut self,
        pipeline: &str,
        mut observe: impl FnMut(&str, &Self),
    ) -> Result<(), CodegenError> {
        // One pass manager a pass: an error then names its pass, and the IR between passes can be seen. The pass
        // manager verifies after every pass in either case.
        let (anchor, passes) = split_pipeline(pipeline).ok_or_else(|| CodegenError::Mlir {
            stage: pipeline.to_owned(),
            diagnostics: vec!["error: a pipeline reads `builtin.module(pass,pass{option=value},...)`".to_owned()],
        })?;
        for pass in passes {
            self.trace.step(pass);
            self.run_pass(anchor, pass)?;
            observe(pass, self);
        }
        Ok(())
    }

    /// The context, for builders and for parsing types and attributes.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The module inside.
    pub fn module(&self) -> &Module<'_> {
        &self.module
    }

    /// Runs `action` on the module and returns its value with the diagnostics of the meantime.
    pub(super) fn with_diagnostics<T>(&self, action: impl FnOnce(&Module<'_>) -> T) -> (T, Vec<String>) {
        capture(&self.context, || action(&self.module))
    }

    /// How the module came to be.
    pub(super) fn trace(&self) -> &Trace {
        &self.trace
    }

    fn run_pass(&mut self, anchor: &str, pass: &str) -> Result<(), CodegenError> {
        let Self { module, context, .. } = self;
        let (result, mut diagnostics) = capture(context, || {
            let manager = PassManager::new(context);
            parse_pass_pipeline(manager.as_operation_pass_manager(), &format!("{anchor}({pass})"))?;
            manager.run(module)
        });
        result.map_err(|error| {
            // An unknown pass or option is reported through the return value, a failing pass through the handler.
            if let melior::Error::ParsePassPipeline(message) = error {
                diagnostics.push(message.trim_end().to_owned());
            }
            CodegenError::Mlir { stage: pass.to_owned(), diagnostics }
        })
    }
}

impl fmt::Display for MlirModule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.module.as_operation().fmt(formatter)
    }
}

impl fmt::Debug for MlirModule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("MlirModule").field(&self.to_string()).finish()
    }
}

/// Splits `anchor(a,b{x=1,y=2},c(d,e))` into the anchor and the passes at its top level.
fn split_pipeline(pipeline: &str) -> Option<(&str, Vec<&str>)> {
    let pipeline = pipeline.trim();
    let (anchor, body) = pipeline.strip_suffix(')')?.split_once('(')?;
    let (mut passes, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (position, byte) in body.bytes().enumerate() {
        match byte {
            b'(' | b'{' | b'[' => depth += 1,
            b')' | b'}' | b']' => depth = depth.checked_sub(1)?,
            b',' if depth == 0 => {
                passes.push(body[start..position].trim());
                start = position + 1;
            }
            _ => {}
        }
    }
    passes.push(body[start..].trim());
    passes.retain(|pass| !pass.is_empty());
    (depth == 0).then_some((anchor, passes))
}

/// Runs `action` with a handler on `context` that keeps errors and warnings from being printed and returns them as
/// text.
fn capture<T>(context: &Context, action: impl FnOnce() -> T) -> (T, Vec<String>) {
    /// Detaches on unwinding as well, because the handler borrows `sink`.
    struct Attached<'a> {
        context: &'a Context,
        id: DiagnosticHandlerId,
    }
    impl Drop for Attached<'_> {
        fn drop(&mut self) {
            self.context.detach_diagnostic_handler(self.id);
        }
    }

    let sink = RefCell::new(Vec::new());
    let id = context.attach_diagnostic_handler(|diagnostic| {
        sink.borrow_mut().push(render(&diagnostic));
        true
    });
    let attached = Attached { context, id };
    let value = action();
    drop(attached);
    (value, sink.into_inner())
}

/// `LINE:COLUMN: severity: message`, with the notes on lines of their own.
fn render(diagnostic: &Diagnostic<'_>) -> String {
    let severity = match diagnostic.severity() {
        DiagnosticSeverity::Error => "error",
        DiagnosticSeverity::Warning => "warning",
        DiagnosticSeverity::Note => "note",
        DiagnosticSeverity::Remark => "remark",
    };
    let location = diagnostic.location();
    let position = if location.is_file_line_col_range() {
        format!("{}:{}: ", location.file_line_col_range_start_line(), location.file_line_col_range_start_column())
    } else {
        match location.to_string() {
            unknown if unknown == "loc(unknown)" => String::new(),
            other => format!("{other}: "),
        }
    };
    let mut text = format!("{position}{severity}: {diagnostic}");
    for index in 0..diagnostic.note_count() {
        if let Ok(note) = diagnostic.note(index) {
            text.push('\n');
            text.push_str(&render(&note));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{MlirModule, split_pipeline};
    use crate::llvm::CodegenError;

    fn diagnostics(error: CodegenError) -> (String, Vec<String>) {
        match error {
            CodegenError::Mlir { stage, diagnostics } => (stage, diagnostics),
            other => panic!("expected an MLIR error, got {other}"),
        }
    }

    #[test]
    fn parse_errors_carry_lines() {
        let text = "func.func @f() {\n  %0 = arith.addi %1, %1 : i32\n  return\n}\n";
        let (stage, diagnostics) = diagnostics(MlirModule::parse(text).unwrap_err());
        assert_eq!(stage, "parse");
        assert_eq!(diagnostics, ["2:19: error: use of undeclared SSA value name"]);
    }

    #[test]
    fn verifier_errors_carry_lines() {
        let text = "func.func @f(%a: i32) -> i64 {\n  return %a : i32\n}\n";
        let (_, diagnostics) = diagnostics(MlirModule::parse(text).unwrap_err());
        assert!(diagnostics[0].starts_with("2:3: error: "), "{diagnostics:?}");
    }

    #[test]
    fn text_with_nul_is_an_error() {
        let (_, diagnostics) = diagnostics(MlirModule::parse("module {\n\0}").unwrap_err());
        assert_eq!(diagnostics, ["2: error: the text contains a NUL"]);
    }

    #[test]
    fn unknown_pass_is_an_error_that_names_it() {
        let mut module = MlirModule::parse("module {}").unwrap();
        let (stage, diagnostics) = diagnostics(module.run_pipeline("builtin.module(cse,no-such-pass)").unwrap_err());
        assert_eq!(stage, "no-such-pass");
        assert!(diagnostics.concat().contains("no-such-pass"), "{diagnostics:?}");
    }

    #[test]
    fn failing_pass_is_an_error_that_names_it() {
        let text = "\nmodule attributes {llvm.target = #llvm.target<triple = \"no-such-triple\", chip = \"\">} {}";
        let mut module = MlirModule::parse(text).unwrap();
        let pass = "llvm-target-to-target-features";
        let (stage, diagnostics) =
            diagnostics(module.run_pipeline(&format!("builtin.module(cse,{pass},cse)")).unwrap_err());
        assert_eq!(stage, pass);
        assert!(diagnostics[0].starts_with("2:1: error: "), "{diagnostics:?}");
    }

    #[test]
    fn observer_sees_every_pass() {
        let mut module = MlirModule::parse("func.func @f() { return }").unwrap();
        let mut seen = Vec::new();
        module
            .run_pipeline_with("builtin.module(func.func(canonicalize,cse), convert-func-to-llvm)", |pass, module| {
                seen.push((pass.to_owned(), module.to_string().contains("llvm.func")));
            })
            .unwrap();
        assert_eq!(
            seen,
            [("func.func(canonicalize,cse)".to_owned(), false), ("convert-func-to-llvm".to_owned(), true)]
        );
    }

    #[test]
    fn pipelines_split_at_the_top_level() {
        assert_eq!(split_pipeline("m(a,b{x=1,y=2},c(d,e))"), Some(("m", vec!["a", "b{x=1,y=2}", "c(d,e)"])));
        assert_eq!(split_pipeline("m()"), Some(("m", vec![])));
        assert_eq!(split_pipeline("m(a))"), None);
        assert_eq!(split_pipeline("m"), None);
    }
}
