//! `cora-opt FILE --pass-pipeline 'a,b{args}'`: runs passes on the text of any stage.

use clap::Parser;
use cora_passes::execution::Observer;
use cora_passes::manager::{PASSES, Pass, PassContext, parse_pipeline, run_pipeline};
use cora_passes::program::Program;
use cora_passes::standard::StandardSimplifier;
use std::io::{ErrorKind, Read, Write};
use std::process::ExitCode;

/// Runs compiler passes on the text of any stage and prints the result.
#[derive(Parser)]
#[command(name = "cora-opt", version)]
struct Args {
    /// The file, in the text of any stage; `-` is standard input.
    #[arg(default_value = "-")]
    file: String,
    /// Passes in order, such as `lower-to-loops,step{parallel @S[i]},to-storage`.
    #[arg(long, default_value = "")]
    pass_pipeline: String,
    /// Print the program after each pass, on stderr.
    #[arg(long)]
    print_ir_after_all: bool,
    /// Print the time of each pass, on stderr.
    #[arg(long)]
    time_passes: bool,
    /// Interpret the program before and after each pass on random lengths; exit 70 if a pass changes
    /// what it computes.
    #[arg(long)]
    verify_each: bool,
    /// List the passes.
    #[arg(long)]
    list_passes: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list_passes {
        let line = |p: &Pass| format!("{:<24} {:<16} {}\n", p.name, p.input.keyword(), p.summary);
        return say(&PASSES.iter().map(line).collect::<String>());
    }
    match run(&args) {
        Ok(text) => say(&text),
        Err((message, code)) => {
            complain(&message);
            ExitCode::from(code)
        }
    }
}

/// A line of standard error, unless whoever reads it has had enough.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes to standard output. Whoever closed it has had enough, which is no mistake.
fn say(text: &str) -> ExitCode {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            complain(&format!("error[E0600]: standard output: {e}"));
            ExitCode::from(1)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// The text after all passes; else a message and the exit code.
fn run(args: &Args) -> Result<String, (String, u8)> {
    let user = |e: String| (e, 1);
    let source = read(&args.file).map_err(|e| user(format!("error[E0600]: cannot read `{}`: {e}", args.file)))?;
    let program = Program::parse(&source).map_err(|d| user(locate(&d, &args.file, &source)))?;
    program.verify().map_err(|d| user(d.to_string()))?;
    let pipeline = parse_pipeline(&args.pass_pipeline).map_err(|d| user(d.to_string()))?;
    let mut simplifier = StandardSimplifier::new();
    let mut cx = PassContext { simplifier: &mut simplifier };
    let mut observer = args.verify_each.then(|| Observer::new(&program));
    let program = run_pipeline(program, &pipeline, &mut cx, &mut |r| {
        if args.print_ir_after_all {
            complain(&format!("// after {}\n{}", r.invocation, r.program.print()));
        }
        if args.time_passes {
            complain(&format!("{:>10.3} ms  {}", r.time.as_secs_f64() * 1e3, r.invocation));
        }
        if let Some(o) = &mut observer {
            o.observe(r);
        }
    })
    .map_err(|ds| user(ds.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))?;
    if let Some(o) = observer {
        let batches = o.finish().map_err(|(what, text)| {
            // Only a program after a pass shows a fault of ours.
            let code = if text.is_some() { 70 } else { 1 };
            let place = if text.is_some() { "error" } else { "error[E0615]" };
            (format!("{place}: {what}"), code)
        })?;
        complain(&format!("every pass keeps the results on {batches} batches"));
    }
    Ok(program.print())
}

/// The message behind the place in the text, with the line that it is about.
fn locate(d: &cora_ir::Diagnostic, file: &str, source: &str) -> String {
    match d.span {
        Some(s) => {
            let before = &source[..s.start.min(source.len())];
            let line = before.matches('\n').count() + 1;
            let column = before.len() - before.rfind('\n').map_or(0, |i| i + 1) + 1;
            let text = source.lines().nth(line - 1).unwrap_or_default();
            format!("{file}:{line}:{column}: {d}\n  | {text}")
        }
        None => d.to_string(),
    }
}

fn read(file: &str) -> std::io::Result<String> {
    if file == "-" {
        let mut s = String::new();
        std::io::stdin().read_to_string(&mut s)?;
        Ok(s)
    } else {
        std::fs::read_to_string(file)
    }
}
