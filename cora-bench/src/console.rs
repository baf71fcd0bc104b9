//! Where commands say what they find, as they find it.

/// What takes results and notes.
pub trait Console {
    /// A result, whole lines.
    fn result(&mut self, text: &str);
    /// What a person wants to know beside the results.
    fn note(&mut self, text: &str);
}

/// The standard streams of this process.
pub struct Terminal;

impl Console for Terminal {
    fn result(&mut self, text: &str) {
        println!("{}", text.trim_end_matches('\n'));
    }

    fn note(&mut self, text: &str) {
        eprintln!("{text}");
    }
}

/// Keeps everything.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// The results.
    pub results: Vec<String>,
    /// The notes.
    pub notes: Vec<String>,
}

impl Console for Kept {
    fn result(&mut self, text: &str) {
        self.results.push(text.to_owned());
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }
}
