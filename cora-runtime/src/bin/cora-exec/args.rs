//! The command line.

use cora_runtime::Limits;
use cora_runtime::pool::MAX_THREADS;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
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
  --memory-limit BYTES     what buffers, and what tables, may take, with k, M or G for KiB, MiB or GiB; 16G and 1G are usual
  --poison                 fill padding and unused memory with NaN before each run
  --graph                  on a GPU: capture the kernels and replay them as one
  --streams N              on a GPU: N instances at once (1 to 64), each captured, on a stream of its own; all are checked
  --flush MIB              on a GPU: write as much other memory before each run
  --json                   print a JSON object on standard output, a line for each artifact, also where it fails
  --info                   say what the artifact is, and run nothing
  --version, --help

Exit codes: 0 all is right, 1 something is refused or fails, 2 a command line that cannot be read, 3 outputs differ from
those that are stored; of several artifacts the greatest.
";

/// Greatest number of instances at once.
const MAX_STREAMS: u64 = 64;

/// What is asked for.
#[cfg_attr(test, derive(Debug))]
pub enum Command {
    Help,
    Version,
    Run(Args),
}

/// Options of a run.
#[derive(Default)]
#[cfg_attr(test, derive(Debug))]
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
    pub limits: Limits,
}

impl Args {
    /// Whether another batch than the stored one is given.
    pub fn has_batch(&self) -> bool {
        !(self.params.is_empty() && self.lengths.is_empty())
    }
}

/// Reads the words after the program's name. Names of files are taken as they are, all else is UTF-8.
///
/// # Errors
/// What is wrong, for people.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Command, String> {
    read(words).map_err(|why| format!("cora-exec: {why}\n  see cora-exec --help"))
}

fn read(mut words: impl Iterator<Item = OsString>) -> Result<Command, String> {
    let mut args = Args { repeat: 1, streams: 1, ..Args::default() };
    while let Some(word) = words.next() {
        if !word.as_bytes().starts_with(b"-") {
            args.artifacts.push(PathBuf::from(word));
            continue;
        }
        let (name, mut given) = match cut(&word) {
            Some((n, v)) if n.as_bytes().starts_with(b"--") => (n, Some(v.to_owned())),
            _ => (word.as_os_str(), None),
        };
        let name = name.to_str().ok_or_else(|| format!("there is no option {}", name.display()))?;
        let mut value = || given.take().or_else(|| words.next()).ok_or_else(|| format!("{name} wants a value"));
        match name {
            "--param" => args.params.push(param(&value()?)?),
            "--lengths" => args.lengths.push(file(name, &value()?)?),
            "--input" => args.inputs.push(file(name, &value()?)?),
            "--output" => args.outputs.push(file(name, &value()?)?),
            "--skip" => args.skip = number(name, &value()?, 0, u64::MAX)?,
            "--seed" => args.seed = number(name, &value()?, 0, u64::MAX)?,
            "--repeat" => args.repeat = count(name, &value()?, 1, u64::MAX)?,
            "--streams" => args.streams = count(name, &value()?, 1, MAX_STREAMS)?,
            "--flush" => args.flush = number(name, &value()?, 0, u64::MAX)?,
            "--memory-limit" => args.limits = limits(name, &value()?)?,
            "--threads" => args.threads = threads(name, &value()?)?,
            _ if given.is_some() => return Err(format!("there is no option {name} with a value")),
            "--help" | "-h" => return Ok(Command::Help),
            "--version" | "-V" => return Ok(Command::Version),
            "--sample" => args.sample = true,
            "--check" => args.check = true,
            "--info" => args.info = true,
            "--json" => args.json = true,
            "--poison" => args.poison = true,
            "--graph" => args.graph = true,
            _ => return Err(format!("there is no option {name}")),
        }
    }
    if args.artifacts.is_empty() {
        return Err("which artifact?".to_owned());
    }
    let named: [(&str, Vec<&str>); 4] = [
        ("--param", args.params.iter().map(|p| p.0.as_str()).collect()),
        ("--lengths", args.lengths.iter().map(|p| p.0.as_str()).collect()),
        ("--input", args.inputs.iter().map(|p| p.0.as_str()).collect()),
        ("--output", args.outputs.iter().map(|p| p.0.as_str()).collect()),
    ];
    for (option, names) in named {
        if let Some(n) = (1..names.len()).find(|&n| names[..n].contains(&names[n])) {
            return Err(format!("{option} is given twice for `{}`", names[n]));
        }
    }
    if let Some(n) = (1..args.outputs.len()).find(|&n| args.outputs[..n].iter().any(|o| o.1 == args.outputs[n].1)) {
        return Err(format!("two outputs would go to `{}`", args.outputs[n].1.display()));
    }
    let files = args.inputs.len() + args.outputs.len() + args.lengths.len() + args.params.len();
    if args.artifacts.len() > 1 && files > 0 {
        return Err("a batch or a file is of one artifact, and several are given".to_owned());
    }
    if args.sample && args.has_batch() {
        return Err("--sample brings its own parameters and lengths".to_owned());
    }
    Ok(Command::Run(args))
}

/// What stands before and behind the first `=`.
fn cut(text: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|&b| b == b'=')?;
    Some((OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..])))
}

/// `NAME=FILE`, where the name is text.
fn file(option: &str, given: &OsStr) -> Result<(String, PathBuf), String> {
    let pair = cut(given).and_then(|(n, v)| Some((n.to_str()?.trim().to_owned(), PathBuf::from(v))));
    pair.ok_or_else(|| format!("{option} takes NAME=FILE, not `{}`", given.display()))
}

fn param(given: &OsStr) -> Result<(String, i64), String> {
    let pair = given.to_str().and_then(|text| text.split_once('='));
    pair.and_then(|(n, v)| Some((n.trim().to_owned(), v.trim().parse().ok()?)))
        .ok_or_else(|| format!("--param takes NAME=N, N an integer of 64 bits, not `{}`", given.display()))
}

fn number(option: &str, given: &OsStr, lo: u64, hi: u64) -> Result<u64, String> {
    let number = given.to_str().and_then(|text| text.parse::<u64>().ok()).filter(|n| (lo..=hi).contains(n));
    number.ok_or_else(|| {
        let range = if hi == u64::MAX { format!("of at least {lo}") } else { format!("from {lo} to {hi}") };
        format!("{option} takes a number {range}, not `{}`", given.display())
    })
}

fn count(option: &str, given: &OsStr, lo: u64, hi: u64) -> Result<usize, String> {
    number(option, given, lo, hi).map(|n| usize::try_from(n).unwrap_or(usize::MAX))
}

fn limits(option: &str, given: &OsStr) -> Result<Limits, String> {
    given.to_str().and_then(Limits::of_memory).ok_or_else(|| {
        format!("{option} takes a number of bytes, or one with k, M or G behind it, not `{}`", given.display())
    })
}

/// Any number: of too many the pool says so.
fn threads(option: &str, given: &OsStr) -> Result<usize, String> {
    let number = given.to_str().and_then(|text| text.parse().ok());
    number.map_or_else(|| count(option, given, 0, MAX_THREADS as u64), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn wrong(words: &[&[u8]]) -> String {
        parse(words.iter().map(|w| OsString::from_vec(w.to_vec()))).expect_err("a wrong command line")
    }

    #[test]
    fn complaints_name_the_option() {
        let cases: [(&[u8], &str); 10] = [
            (b"--memory-limit=4X", "--memory-limit takes a number of bytes, or one with k, M or G behind it, not `4X`"),
            (b"--threads=x", "--threads takes a number from 0 to 1024, not `x`"),
            (b"--repeat=0", "--repeat takes a number of at least 1, not `0`"),
            (b"--streams=0", "--streams takes a number from 1 to 64, not `0`"),
            (b"--streams=1000", "--streams takes a number from 1 to 64, not `1000`"),
            (b"--param=M", "--param takes NAME=N"),
            (b"--param=M=\xff", "--param takes NAME=N"),
            (b"--input=A\xff=a.npy", "--input takes NAME=FILE"),
            (b"--seed", "--seed wants a value"),
            (b"--\xff", "there is no option"),
        ];
        for (word, says) in cases {
            let why = wrong(&[b"a.art", word]);
            assert!(why.contains(says) && why.ends_with("see cora-exec --help"), "{why}");
        }
    }

    #[test]
    fn names_and_files_are_given_once() {
        for option in ["--lengths", "--input", "--output"] {
            let (first, second) = (format!("{option}=A=a.npy"), format!("{option}=A=b.npy"));
            let why = wrong(&[b"a.art", first.as_bytes(), second.as_bytes()]);
            assert!(why.contains(&format!("{option} is given twice for `A`")), "{why}");
        }
        let why = wrong(&[b"a.art", b"--param=M=1", b"--param=M=2"]);
        assert!(why.contains("--param is given twice for `M`"), "{why}");
        let why = wrong(&[b"a.art", b"--output=A=x.npy", b"--output=B=x.npy"]);
        assert!(why.contains("two outputs would go to `x.npy`"), "{why}");
    }

    #[test]
    fn names_of_files_are_any_bytes() {
        let words = [&b"\xff.art"[..], b"--input", b"A=\xff.npy"].map(|w| OsString::from_vec(w.to_vec()));
        let Ok(Command::Run(args)) = parse(words.into_iter()) else { panic!("it can be read") };
        assert_eq!(args.artifacts[0].as_os_str().as_bytes(), b"\xff.art");
        assert_eq!(args.inputs[0].0, "A");
        assert_eq!(args.inputs[0].1.as_os_str().as_bytes(), b"\xff.npy");
    }
}
