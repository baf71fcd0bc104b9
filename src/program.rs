//! From the text of a program to its results on this machine's processor, without `unsafe`.
//!
//! ```text
//! Program (text or graph, and how to compile it) -> Compiled (code, shared) -> Running (memory, threads, a batch)
//! ```
//! Ensures: the kernels of a [`Running`] are those that its description was compiled with.

use crate::driver::{Failure, Form, Source, lower_form};
use crate::target::{Target, native, not_loaded};
use cora_codegen_llvm::compile::{CompiledProgram, JitKernels};
use cora_codegen_llvm::llvm::TargetSpec;
use cora_frontend::ConstValue;
use cora_ir::schedule::Span;
use cora_ir::{Diagnostic, Graph};
use cora_runtime::Result as RunResult;
use cora_runtime::abi::ProgramDesc;
use cora_runtime::array::{RaggedArray, Shape};
use cora_runtime::exec::{Instance, Options};
use cora_runtime::pool::Pool;
use cora_runtime::prelude::Batch;
use std::sync::Arc;

/// A program, and how it is to be compiled.
pub struct Program {
    source: Source,
    schedule: Option<String>,
    form: Form,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("name", &self.source.graph.name).finish_non_exhaustive()
    }
}

impl Program {
    /// The program of a `.cora` text; `name` is what it is called in messages.
    ///
    /// # Errors
    /// [`Failure::User`]: every mistake in the text, with its line.
    pub fn from_text(name: &str, text: &str) -> Result<Self, Failure> {
        Self::with_constants(name, text, &[])
    }

    /// [`Program::from_text`], with other values for its constants (`const N = 8`).
    ///
    /// # Errors
    /// As [`Program::from_text`]; also a constant that the program does not have.
    pub fn with_constants(name: &str, text: &str, constants: &[(&str, ConstValue)]) -> Result<Self, Failure> {
        let constants: Vec<(String, ConstValue)> = constants.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
        Source::parse(name, name, text.to_owned(), &constants).map(Self::of)
    }

    /// The program of a graph, such as [`cora_frontend::ProgramBuilder`] makes. Messages have no lines of text.
    pub fn from_graph(mut graph: Graph) -> Self {
        graph.places.clear();
        graph.schedules.iter_mut().flat_map(|s| &mut s.steps).for_each(|s| s.span = Span::default());
        Self::of(Source { path: graph.name.clone(), text: String::new(), graph, warnings: Vec::new() })
    }

    fn of(source: Source) -> Self {
        Self { source, schedule: None, form: Form::default() }
    }

    /// The same by the schedule of that name; `default` is the compiler's own. Without it the program's schedule for
    /// this processor's features is taken, else the one called `cpu`, else the compiler's own.
    #[must_use]
    pub fn schedule(self, name: &str) -> Self {
        Self { schedule: Some(name.to_owned()), ..self }
    }

    /// The same with every extent raised to its greatest value in the batch.
    #[must_use]
    pub fn padded(self) -> Self {
        Self { form: Form { padded: true, ..self.form }, ..self }
    }

    /// Its graph.
    pub fn graph(&self) -> &Graph {
        &self.source.graph
    }

    /// What is suspicious about its text.
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.source.warnings
    }

    /// Native code for this machine's processor.
    ///
    /// # Errors
    /// [`Failure::User`]: accesses out of bounds, steps of the schedule that are refused, no schedule of the name, a
    /// library of the program that is not installed. [`Failure::Bug`] is ours.
    pub fn compile(&self) -> Result<Compiled, Failure> {
        let host = TargetSpec::host();
        let target = Target::Cpu(host.clone());
        let schedule = self.source.schedule(self.schedule.as_deref(), target.schedule(), |f| target.has(f))?;
        let form = Form { features: target.features(), ..self.form };
        let lowered = lower_form(&self.source, schedule, form, &mut |_| {})?;
        Compiled::of(native(&lowered.storage, &host)?)
    }
}

/// A program's native code in this process. Clones share it.
#[derive(Clone, Debug)]
pub struct Compiled {
    desc: Arc<ProgramDesc>,
    kernels: Arc<JitKernels>,
}

impl Compiled {
    /// Loads what [`native`] made, as it made it: [`Compiled::instance_on`] relies on that.
    pub(crate) fn of(program: CompiledProgram) -> Result<Self, Failure> {
        let kernels = Arc::new(program.jit().map_err(not_loaded)?);
        Ok(Self { desc: Arc::new(program.into_parts().1), kernels })
    }

    /// Parameters, extent functions, tensors and kernels.
    pub fn desc(&self) -> &Arc<ProgramDesc> {
        &self.desc
    }

    /// Memory for a batch and as many worker threads; 0 is one for each core.
    ///
    /// # Errors
    /// `E0331` too many threads.
    pub fn instance(&self, threads: usize) -> RunResult<Running> {
        self.instance_on(Arc::new(Pool::new(workers(threads))?), Options::default())
    }

    /// [`Compiled::instance`] on workers that several may share, with other limits, or with memory that is poisoned.
    ///
    /// # Errors
    /// Those of [`Instance::new`] for a description that is wrong, which is our mistake.
    pub fn instance_on(&self, pool: Arc<Pool>, options: Options) -> RunResult<Running> {
        // SAFETY: the fields are set by `of` alone: the kernels are those of the object that was compiled together with
        // the description.
        let instance = unsafe { Instance::new(self.desc.clone(), self.kernels.clone(), pool, options) }?;
        Ok(Running { instance })
    }
}

/// How many workers are meant: 0 is one for each core.
pub(crate) fn workers(threads: usize) -> usize {
    match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    }
}

/// A compiled program with memory of its own: bind a batch, set inputs, run, read outputs; again with as many batches as
/// there are.
#[derive(Debug)]
pub struct Running {
    instance: Instance,
}

impl Running {
    /// Binds a batch: parameters by name, and the lengths of each extent function by name, in row-major ragged order of
    /// its domain. True where it was bound already: then inputs stay. Otherwise inputs are to be set again; const inputs
    /// only where their sizes change.
    ///
    /// # Errors
    /// `E0304` an unknown name, or one without a value; a value outside its range, too few lengths, too little memory.
    pub fn bind(&mut self, params: &[(&str, i64)], lengths: &[(&str, &[i64])]) -> RunResult<bool> {
        let lengths = lengths.iter().map(|(n, l)| (*n, l.to_vec()));
        let batch = Batch::from_named(self.instance.desc(), params.iter().copied(), lengths)?;
        self.instance.bind(&batch)
    }

    /// The form of a tensor for the bound batch.
    ///
    /// # Errors
    /// `E0304` an unknown name, `E0322` nothing is bound.
    pub fn shape(&self, tensor: &str) -> RunResult<Shape> {
        self.instance.shape(self.instance.tensor(tensor)?)
    }

    /// Gives an input or const input: elements in row-major ragged order, without padding.
    ///
    /// # Errors
    /// `E0304` an unknown name, and those of [`Instance::set_input`].
    pub fn set_input(&mut self, tensor: &str, array: &RaggedArray) -> RunResult<()> {
        self.instance.set_input(self.instance.tensor(tensor)?, array)
    }

    /// Runs the program; waits for it.
    ///
    /// # Errors
    /// `E0322` nothing is bound, `E0320` an input has not been set.
    pub fn run(&mut self) -> RunResult<()> {
        self.instance.run()
    }

    /// An output of the last run, in row-major ragged order, without padding.
    ///
    /// # Errors
    /// `E0304` an unknown name, and those of [`Instance::output`].
    pub fn output(&self, tensor: &str) -> RunResult<RaggedArray> {
        self.instance.output(self.instance.tensor(tensor)?)
    }

    /// For what this has no method: times, memory, tensors by number.
    pub fn instance(&mut self) -> &mut Instance {
        &mut self.instance
    }

    /// The instance itself.
    pub fn into_instance(self) -> Instance {
        self.instance
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cora_frontend::builder::{ProgramBuilder, ScalarType, sum};
    use cora_runtime::abi::DType;

    const SUMS: &str = "param M in 0..=64
const K = 2
extent lens(b) in 0..=32
dim b = M, i = lens(b)
input X[b, i] : f32
Y[b] = sum(i) f32(K) * X
output Y
schedule cpu { parallel Y.b }
";

    /// The sums of rows of 2, 0 and 3 elements.
    fn sums(compiled: &Compiled, threads: usize) -> Vec<f32> {
        let mut running = compiled.instance(threads).expect("threads start");
        assert!(!running.bind(&[("M", 3)], &[("lens", &[2, 0, 3])]).expect("a batch"));
        let x = [1.0f32, 2.0, 3.0, 4.0, 5.0];
        let x = RaggedArray::from_slice(DType::F32, running.shape("X").expect("an input"), &x).expect("five");
        running.set_input("X", &x).expect("an input");
        running.run().expect("all inputs are set");
        running.output("Y").expect("an output").as_slice::<f32>().expect("floats").to_vec()
    }

    #[test]
    fn options_change_the_program() {
        let program = |k| Program::with_constants("sums", SUMS, &[("K", ConstValue::Int(k))]).expect("it parses");
        for program in [program(3), program(3).schedule("default"), program(3).schedule("cpu"), program(3).padded()] {
            let compiled = program.compile().expect("it compiles");
            assert_eq!(sums(&compiled, 0), [9.0, 0.0, 36.0]);
            let shared = compiled.clone();
            let threads = [compiled, shared].map(|c| std::thread::spawn(move || sums(&c, 1)));
            assert!(threads.map(|t| t.join().expect("no panic")) == [[9.0, 0.0, 36.0], [9.0, 0.0, 36.0]]);
        }
        let plain = Program::from_text("sums", SUMS).expect("it parses").compile().expect("it compiles");
        assert_eq!(sums(&plain, 2), [6.0, 0.0, 24.0]);
    }

    #[test]
    fn mistakes_say_where_they_are() {
        let text = |r: Result<Compiled, Failure>| r.expect_err("a mistake").to_string();
        let parsed = Program::from_text("p.cora", "dim i = 3\ninput X[i] : f32\noutput Z\n").expect_err("no Z");
        assert!(parsed.to_string().contains("p.cora:3:8"), "{parsed}");
        let sums = || Program::from_text("p.cora", SUMS).expect("it parses");
        assert!(text(sums().schedule("fast").compile()).contains("error[E0603]"));
        let refused = Program::from_text("p.cora", &SUMS.replace("Y.b }", "Y.i }")).expect("it parses");
        let refused = text(refused.compile());
        assert!(refused.contains("p.cora:8:"), "{refused}");

        let mut b = ProgramBuilder::new("built");
        let n = b.param("N", 1..=9);
        let i = b.dim("i", n);
        let x = b.input("X", &[i], ScalarType::F32);
        let y = b.compute("Y", &[], |_| sum(&[i], x.at([i])));
        b.output(y);
        b.schedule("cpu", |s| {
            s.parallel((y, i));
        });
        let built = text(Program::from_graph(b.finish().expect("a program")).compile());
        assert!(built.starts_with("error[E") && !built.contains("-->"), "{built}");
    }

    #[test]
    fn graphs_of_the_builder_run() {
        let mut b = ProgramBuilder::new("built");
        let m = b.param("M", 0..=64);
        let row = b.dim("b", m);
        let lens = b.extent("lens", &[row], 0..=32);
        let i = b.dim("i", lens.at(row));
        let x = b.input("X", &[row, i], ScalarType::F32);
        let y = b.compute("Y", &[row], |[r]| sum(&[i], x.at((r, i))));
        b.output(y);
        let program = Program::from_graph(b.finish().expect("a program"));
        assert_eq!(program.graph().name, "built");
        assert_eq!(sums(&program.compile().expect("it compiles"), 2), [3.0, 0.0, 12.0]);
    }

    #[test]
    fn names_are_checked() {
        let compiled = Program::from_text("sums", SUMS).and_then(|p| p.compile()).expect("it compiles");
        let mut r = compiled.instance(1).expect("a thread");
        assert_eq!(r.run().expect_err("no batch").code(), "E0322");
        assert_eq!(r.bind(&[("N", 1)], &[]).expect_err("no such name").code(), "E0304");
        assert_eq!(r.bind(&[("M", 1)], &[]).expect_err("no lengths").code(), "E0304");
        assert_eq!(r.bind(&[("M", 2)], &[("lens", &[1])]).expect_err("one length").code(), "E0307");
        r.bind(&[("M", 1)], &[("lens", &[1])]).expect("a batch");
        assert_eq!(r.run().expect_err("no input").code(), "E0320");
        let x = RaggedArray::zeros(DType::F32, Shape::Ragged { rank: 2, elements: 1 }).expect("memory");
        assert_eq!(r.set_input("Z", &x).expect_err("no such name").code(), "E0304");
        assert_eq!(r.set_input("Y", &x).expect_err("an output").code(), "E0321");
        r.set_input("X", &x).expect("an input");
        r.run().expect("all is set");
        assert_eq!(r.output("X").expect_err("an input").code(), "E0321");
        assert_eq!(r.instance().desc().name, "sums");
        assert!(r.into_instance().run_time() < std::time::Duration::MAX);
    }
}
