//! The command line.

use crate::Stop;
use std::path::PathBuf;

/// What `--help` prints.
pub const USAGE: &str = "usage: cora-exec ARTIFACT... [options]

Runs a compiled program. Without --param and --lengths the sample in the artifact is run, if it has one, and checked
against the results that are stored with it; all samples, if there are several. Inputs that are not given are random from
the seed. Several artifacts are run one after the other, their samples only; one that fails does not keep the next from it.

  --param NAME=N           the value of a parameter
  --lengths NAME=FILE      entries of an extent function (text or npy, row-major ragged order)
  --skip N                 entries to skip at the front of each lengths file
  --input NAME=FILE.npy    an input tensor
  --output NAME=FILE.npy   where to write an output
  --seed N                 seed of what is random
  --sample                 run the sample; an error where there is none
  --check                  compare with the results that are stored; an error where there are none
  --repeat N               run this many times and report the median; if more than once, after one run not timed
  --threads N              worker threads; 0 = one for each core
  --poison                 fill padding and unused memory with NaN before each run
  --graph                  on a GPU: capture the kernels and replay them as one
  --streams N              on a GPU: N instances at once, each captured, on a stream of its own; all are checked
  --flush MIB              on a GPU: write as much other memory before each run
  --json                   print one JSON object on standard output
  --info                   say what the artifact is, and run nothing
  --version, --help
";

/// What is asked for.
pub enum Command {
    Help,
    Version,
    Run(Args),
}

/// Options of a run.
#[derive(Default)]
pub struct Args {
    pub artifacts: Vec<PathBuf>,
    pub sample: bool,
    pub check: bool,
    pub info: bool,
    pub json: bool,
    pub poison: bool,
    pub graph: bool,
    pub streams: usize,
    pub flush: u64,
    pub params: Vec<(String, i64)>,
    pub lengths: Vec<(String, PathBuf)>,
    pub inputs: Vec<(String, PathBuf)>,
    pub outputs: Vec<(String, PathBuf)>,
    pub skip: u64,
    pub seed: u64,
    pub repeat: usize,
    pub threads: usize,
}

/// Reads the words after the program's name.
pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Command, Stop> {
    let usage = |why: &str| Stop::Usage(format!("cora-exec: {why}\n{USAGE}"));
    let mut args = Args { repeat: 1, streams: 1, ..Args::default() };
    while let Some(word) = words.next() {
        let (name, mut given) = match word.split_once('=') {
            Some((n, v)) if n.starts_with("--") => (n.to_owned(), Some(v.to_owned())),
            _ => (word.clone(), None),
        };
        let mut value = || given.take().or_else(|| words.next()).ok_or_else(|| usage(&format!("{name} wants a value")));
        let number = |v: String| v.parse::<u64>().map_err(|_| usage(&format!("`{v}` is not a number")));
        let count = |v: String| v.parse::<usize>().map_err(|_| usage(&format!("`{v}` is not a number")));
        let pair = |v: String| match v.split_once('=') {
            Some((n, v)) => Ok((n.trim().to_owned(), v.to_owned())),
            None => Err(usage(&format!("`{v}` is not NAME=VALUE"))),
        };
        match name.as_str() {
            "--param" => {
                let (n, v) = pair(value()?)?;
                args.params.push((n, v.trim().parse().map_err(|_| usage(&format!("`{v}` is not an integer")))?));
            }
            "--lengths" => args.lengths.push(pair(value()?).map(|(n, v)| (n, v.into()))?),
            "--input" => args.inputs.push(pair(value()?).map(|(n, v)| (n, v.into()))?),
            "--output" => args.outputs.push(pair(value()?).map(|(n, v)| (n, v.into()))?),
            "--skip" => args.skip = number(value()?)?,
            "--seed" => args.seed = number(value()?)?,
            "--repeat" => args.repeat = count(value()?)?.max(1),
            "--streams" => args.streams = count(value()?)?.clamp(1, 64),
            "--flush" => args.flush = number(value()?)?,
            "--threads" => args.threads = count(value()?)?,
            _ if given.is_some() => return Err(usage(&format!("there is no option {name} with a value"))),
            "--help" | "-h" => return Ok(Command::Help),
            "--version" | "-V" => return Ok(Command::Version),
            "--sample" => args.sample = true,
            "--check" => args.check = true,
            "--info" => args.info = true,
            "--json" => args.json = true,
            "--poison" => args.poison = true,
            "--graph" => args.graph = true,
            flag if flag.starts_with('-') => return Err(usage(&format!("there is no option {flag}"))),
            _ => args.artifacts.push(PathBuf::from(word)),
        }
    }
    if args.artifacts.is_empty() {
        return Err(usage("which artifact?"));
    }
    let files = args.inputs.len() + args.outputs.len() + args.lengths.len() + args.params.len();
    if args.artifacts.len() > 1 && files > 0 {
        return Err(usage("a batch or a file is of one artifact, and several are given"));
    }
    if args.sample && !(args.params.is_empty() && args.lengths.is_empty()) {
        return Err(usage("--sample brings its own parameters and lengths"));
    }
    Ok(Command::Run(args))
}
