//! Where commands say what they find, as they find it.

use std::io::{self, IsTerminal, Write};

/// What takes results and notes.
pub trait Console {
    /// A result, whole lines.
    fn result(&mut self, text: &str);

    /// A result as it is: a file's bytes, or lines that end themselves.
    ///
    /// # Errors
    /// Where results go takes no more.
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// What a person wants to know beside the results, whole lines; nothing of an empty text.
    fn note(&mut self, text: &str);

    /// What somebody who waits may want to know meanwhile, a line. When it comes depends on the machine's speed,
    /// so that only a terminal is told.
    fn progress(&mut self, text: &str);
}

/// The standard streams of this process.
pub struct Terminal;

impl Console for Terminal {
    fn result(&mut self, text: &str) {
        if let Err(e) = self.bytes(format!("{}\n", text.trim_end_matches('\n')).as_bytes()) {
            gone(&e);
        }
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout();
        let written = out.write_all(bytes).and_then(|()| out.flush());
        if let Err(e) = &written
            && e.kind() == io::ErrorKind::BrokenPipe
        {
            gone(e);
        }
        written
    }

    fn note(&mut self, text: &str) {
        if !text.is_empty() {
            complain(text.strip_suffix('\n').unwrap_or(text));
        }
    }

    fn progress(&mut self, text: &str) {
        if io::stderr().is_terminal() {
            complain(text);
        }
    }
}

/// A line of standard error, unless whoever reads it has had enough.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Ends the process: whoever reads the results has had enough, or they have nowhere to go.
fn gone(e: &io::Error) -> ! {
    if e.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    complain(&format!("error[E0600]: standard output: {e}\n  help: check the path and its permissions"));
    std::process::exit(1);
}

/// Keeps everything.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// The results.
    pub results: Vec<String>,
    /// The results that came as bytes, one after the other.
    pub bytes: Vec<u8>,
    /// The notes.
    pub notes: Vec<String>,
}

impl Console for Kept {
    fn result(&mut self, text: &str) {
        self.results.push(text.to_owned());
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    fn progress(&mut self, _text: &str) {}
}
