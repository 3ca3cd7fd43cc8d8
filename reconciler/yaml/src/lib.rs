//! YAML documents as the JSON that they stand for.
//!
//! ```text
//!  text ──events──▶ reader: open lists and mappings, anchors ──▶ Ordered ──▶ Document
//!                     └─▶ scalar: null, boolean, number or text
//! ```
//!
//! *Guarantees:* whatever the text is, it is parsed without recursion, and its depth, the number of its values and the size of their
//! texts have limits, with those that aliases and reports of duplicate keys repeat.

mod ordered;
mod reader;
mod scalar;

use granit_parser::{Parser, ScanError};
use serde_json::Value;

pub use ordered::Ordered;
use reader::Reader;

/// The maximum number of values, with those that aliases repeat.
const MAX_NODES: usize = 250_000;
/// The maximum size in bytes of all texts, with those that aliases repeat.
const MAX_BYTES: usize = 16 << 20;
/// The maximum number of duplicates that are reported; more would only bury the first.
const MAX_TWICE: usize = 100;

/// A document.
#[derive(Debug, Default, PartialEq)]
pub struct Document {
    /// The value; null for a text without a document.
    pub value: Value,
    /// Paths of duplicate keys: `spec.disks[0].size`. The last value of a key counts.
    pub twice: Vec<String>,
}

/// A text that is no document.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not UTF-8.
    #[error("it is no UTF-8 text")]
    Encoding,
    /// It is not YAML.
    #[error(transparent)]
    Syntax(#[from] Box<ScanError>),
    /// It has no form in JSON, or is too large.
    #[error("{problem} at line {line}")]
    Content {
        /// The problem.
        problem: &'static str,
        /// Its line, from one on.
        line: usize,
    },
}

/// Reads a document with lists and mappings that nest at most this deep.
///
/// Keys stay as they are spelled. Plain scalars are read as in YAML 1.2, with the booleans of YAML 1.1 and its merge keys.
///
/// *Errors:* see [`Error`]; those of the syntax may quote the text.
pub fn read(text: &[u8], max_depth: usize) -> Result<Document, Error> {
    let (value, twice) = parsed(text, max_depth)?;
    Ok(Document { value: value.into(), twice })
}

/// Reads a document as [`read`] does, with its mappings in the order of the text. Keys of merged mappings follow the own ones.
///
/// *Errors:* see [`Error`]; those of the syntax may quote the text.
pub fn read_ordered(text: &[u8], max_depth: usize) -> Result<Ordered, Error> {
    parsed(text, max_depth).map(|(value, _)| value)
}

/// Returns the value, and the paths of duplicate keys.
fn parsed(text: &[u8], max_depth: usize) -> Result<(Ordered, Vec<String>), Error> {
    let text = std::str::from_utf8(text).map_err(|_| Error::Encoding)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader::new(max_depth);
    for event in Parser::new_from_str_with_options(text, granit_parser::options! { emit_comments: false }) {
        let (event, span) = event.map_err(Box::new)?;
        let line = span.start.line();
        reader.event(event).map_err(|problem| Error::Content { problem, line })?;
    }
    Ok(reader.end())
}

#[cfg(test)]
mod tests;
