//! What a run is refused for, or fails with.

use cora_runtime::Error;
use cora_runtime::abi::ProgramDesc;
use std::path::{Path, PathBuf};

/// An error for people: a code, what is wrong, and what can be done about it.
#[derive(Debug)]
pub struct Failure {
    pub code: &'static str,
    pub text: String,
    pub help: String,
    /// Whether the device failed, which may have spoiled it for all that follows.
    pub of_device: bool,
}

impl Failure {
    pub fn new(code: &'static str, text: impl Into<String>, help: impl Into<String>) -> Failure {
        Failure { code, text: text.into(), help: help.into(), of_device: false }
    }

    /// A name that the program lacks; `known` are those that it has.
    pub fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Failure {
        let known: Vec<&str> = known.collect();
        let help = match &known[..] {
            [] => format!("it has no {what}s"),
            names => format!("its {what}s: {}", names.join(", ")),
        };
        Failure::new("E0304", format!("the program has no {what} `{name}`"), help)
    }

    /// Parameters that nothing gives a value. A sample that the artifact has is not run where a batch is given.
    pub fn params(desc: &ProgramDesc, missing: &[usize], has_sample: bool) -> Failure {
        let params = missing.iter().map(|&i| &desc.params[i]);
        let names: Vec<String> = params.clone().map(|p| format!("`{}`", p.name)).collect();
        let s = if names.len() == 1 { "" } else { "s" };
        let options: Vec<String> = params.map(|p| format!("--param {}=N ({}..={})", p.name, p.lo, p.hi)).collect();
        Failure::lacking(&format!("no value of parameter{s} {}", names.join(", ")), &options.join(" "), has_sample)
    }

    /// An extent function that nothing gives entries.
    pub fn lengths(function: &str, want: u64, has_sample: bool) -> Failure {
        let what = format!("no lengths of extent function `{function}`, which takes {want}");
        Failure::lacking(&what, &format!("--lengths {function}=FILE"), has_sample)
    }

    fn lacking(what: &str, options: &str, has_sample: bool) -> Failure {
        let (text, help) = if has_sample {
            let other = "leave --param and --lengths away to run the stored batch";
            (format!("the batch in place of the stored one has {what}"), format!("give {options}, or {other}"))
        } else {
            (format!("no stored batch, and {what}"), format!("give {options}"))
        };
        Failure::new("E0339", text, help)
    }

    /// With the name of the artifact, unless it tells of one of these files already.
    #[must_use]
    pub fn of<'a>(mut self, artifact: &'a Path, mut files: impl Iterator<Item = &'a PathBuf>) -> Failure {
        let named = |p: &Path| {
            let rest = self.text.strip_prefix(&p.display().to_string());
            rest.is_some_and(|rest| rest.starts_with([':', ',', ' ']))
        };
        if !named(artifact) && !files.any(|p| named(p)) {
            self.text = format!("{}: {}", artifact.display(), self.text);
        }
        self
    }

    /// The first line.
    pub fn line(&self) -> String {
        format!("error[{}]: {}", self.code, self.text)
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        let of_device = matches!(e, Error::Cuda(_));
        Failure { code: e.code(), text: e.to_string(), help: e.hint().to_owned(), of_device }
    }
}
