//! Printers and parsers of the loop and storage dialects.
