//! Compiles a program once and runs many batches through it.

use crate::support::batches::{Fill, Plan, values, with_inputs};
#[allow(unused_imports, reason = "not every test binary reports many things")]
pub use crate::support::report;
use cora::check::{compare, reconsider, tolerances};
use cora::codegen_llvm::compile::{CompileOptions, JitKernels, compile};
use cora::codegen_llvm::llvm::TargetSpec;
use cora::driver::{Failure, Source, lower};
use cora::ir::interp::{self, Data, Results};
use cora::ir::schedule::Schedule;
use cora::ir::storage::StorageModule;
use cora::ir::{TensorId, UfDef};
use cora::passes::graph::check_accesses::check_accesses;
use cora::passes::standard::StandardSimplifier;
use cora::runtime::Error;
use cora::runtime::abi::{ProgramDesc, Role};
use cora::runtime::array::RaggedArray;
use cora::runtime::exec::{Instance, Options};
use cora::runtime::pool::Pool;
use cora::runtime::prelude::Batch;
use cora::{frontend, inputs};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Native code for one program under one schedule.
pub struct Compiled {
    pub desc: Arc<ProgramDesc>,
    kernels: Arc<JitKernels>,
}

/// A batch, and what the reference interpreter makes of it.
pub struct Case {
    pub name: String,
    pub batch: interp::Batch,
    want: Results,
    tolerance: FxHashMap<TensorId, f64>,
}

/// A program from text.
pub fn program(name: &str, text: &str, consts: &[(String, i64)]) -> Result<Source, String> {
    let consts: Vec<(String, frontend::ConstValue)> =
        consts.iter().map(|(n, v)| (n.clone(), frontend::ConstValue::Int(*v))).collect();
    let graph = frontend::parse_program(name, text, &consts)
        .map_err(|ds| ds.iter().map(|d| frontend::render(d, name, text)).collect::<String>())?;
    let mut source = Source { path: name.to_owned(), text: text.to_owned(), graph, warnings: Vec::new() };
    // What means something is the checked graph: a read in one arm of a choice happens where it is chosen.
    check_accesses(&mut source.graph, &mut StandardSimplifier::new()).map_err(|ds| message(source.fail(&ds)))?;
    Ok(source)
}

/// The text of a product of ragged rows with weights of `di` x `d_o`, and of its schedule for a grid.
pub fn product(di: i64, d_o: i64, schedule: &str) -> String {
    format!(
        "param M in 0..=64
const DI = {di}, DO = {d_o}
extent lens(batch) in 0..=128
dim batch = M, q = lens(batch), k = DI, n = DO
input X[batch, q, k] : f32
const input W[k, n] : f32
Y[batch, q, n] = sum(k) X[batch, q, k] * W[k, n]
output Y

schedule cuda {{
{schedule}
}}
"
    )
}

/// The message of a failure.
pub fn message(f: Failure) -> String {
    match f {
        Failure::User(t) | Failure::Mismatch(t) | Failure::Bug(t) => t,
    }
}

impl Compiled {
    pub fn new(source: &Source, schedule: Option<&Schedule>, padded: bool) -> Result<Self, String> {
        let lowered = lower(source, schedule, padded, &mut |_| {}).map_err(message)?;
        Self::of(&lowered.storage)
    }

    /// Native code for a module.
    pub fn of(storage: &StorageModule) -> Result<Self, String> {
        let program = compile(storage, &TargetSpec::host(), &CompileOptions::default())
            .map_err(|e| format!("code generation: {e}"))?;
        let kernels = program.jit().map_err(|e| format!("loading: {e}"))?;
        Ok(Self { desc: Arc::new(program.into_parts().1), kernels: Arc::new(kernels) })
    }

    /// An instance that poisons all memory before each run.
    pub fn instance(&self, threads: usize) -> Instance {
        self.instance_with(threads, true)
    }

    /// An instance that poisons memory, or not.
    pub fn instance_with(&self, threads: usize, poison: bool) -> Instance {
        let pool = Arc::new(Pool::new(threads).expect("threads start"));
        let options = Options { poison, ..Options::default() };
        // SAFETY: the kernels were compiled together with the description.
        unsafe { Instance::new(self.desc.clone(), self.kernels.clone(), pool, options) }.expect("a valid description")
    }

    /// The batch as the runtime takes it.
    pub fn batch(&self, source: &Source, batch: &interp::Batch) -> Batch {
        self::batch(&self.desc, source, batch)
    }

    /// Runs each case on instances of 1, 2 and 3 threads and gives what is wrong.
    pub fn check(&self, source: &Source, form: &str, cases: &[Case]) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut first: Vec<Option<Vec<RaggedArray>>> = Vec::new();
        for threads in 1..=3 {
            let mut instance = self.instance(threads);
            for (n, case) in cases.iter().enumerate() {
                let place = format!("{} ({form}, {threads} threads), {}", source.path, case.name);
                let out = match self.run(&mut instance, source, &case.batch) {
                    Ok(out) => out,
                    Err(e) => {
                        complaints.push(format!("{place}: {e}"));
                        first.resize(first.len().max(n + 1), None);
                        continue;
                    }
                };
                match first.get(n) {
                    None => {
                        complaints.extend(case.compare(source, &self.desc, &out).map(|c| format!("{place}: {c}")));
                        first.push(Some(out));
                    }
                    Some(Some(before)) if before.iter().zip(&out).any(|(a, b)| a.bytes() != b.bytes()) => {
                        complaints.push(format!("{place}: other bits than with one thread"));
                    }
                    Some(_) => {}
                }
            }
        }
        complaints
    }

    /// Binds, sets inputs, runs, reads the outputs in the order of the description.
    pub fn run(&self, i: &mut Instance, source: &Source, batch: &interp::Batch) -> Result<Vec<RaggedArray>, Error> {
        i.bind(&self.batch(source, batch))?;
        for n in self.tensors(Role::Input) {
            set(i, n, source, batch)?;
        }
        // Const inputs stay where no size changed that they depend on; else the instance asks for them.
        loop {
            match i.run() {
                Err(Error::InputMissing { tensor }) => {
                    let n = i.tensor(&tensor)?;
                    set(i, n, source, batch)?;
                }
                done => break done?,
            }
        }
        self.tensors(Role::Output).map(|n| i.output(n)).collect()
    }

    fn tensors(&self, role: Role) -> impl Iterator<Item = usize> {
        self.desc.tensors.iter().enumerate().filter(move |(_, t)| t.role == role).map(|(n, _)| n)
    }
}

/// A batch as the runtime takes it.
pub fn batch(desc: &ProgramDesc, source: &Source, batch: &interp::Batch) -> Batch {
    let env = &source.graph.env;
    let params = env.params.iter().zip(&batch.params).map(|((_, p), &v)| (p.name.as_str(), v));
    let lengths = env.ufs.iter().filter(|(_, u)| matches!(u.def, UfDef::Extent { .. }));
    let lengths = lengths.map(|(f, u)| (u.name.as_str(), batch.extents[&f].clone()));
    Batch::from_named(desc, params, lengths).expect("the program's own names")
}

fn set(i: &mut Instance, n: usize, source: &Source, batch: &interp::Batch) -> Result<(), Error> {
    let id = source.graph.env.tensor_named(&i.desc().tensors[n].name).expect("the program's own name");
    let array = inputs::to_array(source.graph.env.tensors[id].ty, i.shape(n)?, &batch.inputs[&id])?;
    i.set_input(n, &array)
}

impl Case {
    /// A case for each plan.
    pub fn all(source: &Source, plans: &[Plan], fill: Fill) -> Result<Vec<Self>, String> {
        plans.iter().enumerate().map(|(n, p)| Self::new(source, p, n as u64, fill)).collect()
    }

    /// The batch of a plan, and the reference interpreter's results.
    pub fn new(source: &Source, plan: &Plan, seed: u64, fill: Fill) -> Result<Self, String> {
        let values = values(&source.graph.env, plan);
        let batch = with_inputs(&source.graph.env, &values, seed, fill);
        Self::of(source, plan.name.clone(), batch)
    }

    /// A case from a batch with its inputs.
    fn of(source: &Source, name: String, batch: interp::Batch) -> Result<Self, String> {
        let want = interp::run_graph(&source.graph, &batch, &interp::Options::default())
            .map_err(|e| format!("{}, {name}: the reference interpreter: {e}", source.path))?;
        let tolerance = tolerances(&source.graph, &batch);
        Ok(Self { name, batch, want, tolerance })
    }

    /// What the reference has for an output.
    pub fn want(&self, source: &Source, name: &str) -> &Data {
        let id = source.graph.env.tensor_named(name).expect("an output");
        &self.want.output(id).expect("an output").data
    }

    /// What is wrong with outputs in the order of the description.
    pub fn compare(&self, source: &Source, desc: &ProgramDesc, got: &[RaggedArray]) -> Option<String> {
        let outputs = desc.tensors.iter().filter(|t| t.role == Role::Output);
        let data = |a| inputs::to_data(a).expect("elements of the array's own type");
        self.compare_data(source, outputs.zip(got).map(|(t, a)| (t.name.clone(), data(a))).collect())
    }

    /// What is wrong with the storage dialect's results, or with the run; threads are watched for races.
    pub fn interpret(&self, source: &Source, storage: &StorageModule) -> Option<String> {
        let options = interp::Options { races: true, ..interp::Options::default() };
        match interp::run_storage(storage, &self.batch, &options) {
            Ok(r) => {
                let name = |t| storage.env.tensors[t].name.clone();
                self.compare_data(source, r.outputs.into_iter().map(|o| (name(o.tensor), o.data)).collect())
            }
            Err(e) => Some(e.to_string()),
        }
    }

    /// What is wrong with the outputs of these names.
    pub fn compare_data(&self, source: &Source, outputs: Vec<(String, Data)>) -> Option<String> {
        let mut bad = Vec::new();
        for (name, got) in outputs {
            let id = source.graph.env.tensor_named(&name).expect("the program's own name");
            let want = self.want.output(id).expect("an output");
            if got.len() != want.data.len() {
                bad.push(format!("{} has {} elements, not {}", name, got.len(), want.data.len()));
                continue;
            }
            let mut c = compare(&name, &got, want, self.tolerance[&id]);
            if !c.passes() {
                let options = interp::Options::default();
                reconsider(&source.graph, &self.batch, &options, &mut c, &got, want).expect("it ran before");
            }
            let (g, w) = (got.get(c.at), want.data.get(c.at));
            if !c.passes() {
                let (error, allowed) = (c.max_error, c.tolerance);
                bad.push(format!("{}[{}] is {g:?}, not {w:?} (error {error:.2e}, allowed {allowed:.2e})", name, c.at));
            }
        }
        (!bad.is_empty()).then(|| bad.join("; "))
    }
}
