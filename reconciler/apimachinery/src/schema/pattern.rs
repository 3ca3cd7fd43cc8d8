//! The regular expression of `pattern`.

use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};

/// The maximum memory of a compiled pattern, which may be hostile.
const MAX_SIZE: usize = 1 << 20;

/// A pattern, compiled at its first use: a compiled one takes up to 100 µs to make and tens of KiB, and most of those of a
/// site's definitions are never used.
#[derive(Debug)]
pub struct Pattern {
    source: String,
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    /// Returns the pattern of a definition that was accepted before.
    pub(super) fn stored(source: &str) -> Self {
        Self { source: source.to_owned(), compiled: OnceLock::new() }
    }

    /// Returns the pattern of a new definition.
    ///
    /// # Errors
    /// It is no regular expression, or too large.
    pub(super) fn new(source: &str) -> Result<Self, regex::Error> {
        let compiled = compile(source)?;
        Ok(Self { source: source.to_owned(), compiled: OnceLock::from(Some(compiled)) })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.source
    }

    /// Whether the pattern matches a part of the text. One that was accepted by another version and does not compile here
    /// matches nothing.
    pub(super) fn is_match(&self, text: &str) -> bool {
        self.compiled
            .get_or_init(|| compile(&self.source).ok())
            .as_ref()
            .is_some_and(|regex| regex.is_match(text))
    }
}

fn compile(source: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(source).size_limit(MAX_SIZE).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_pattern_matches_as_a_new_one_and_a_wrong_one_matches_nothing() {
        for pattern in [Pattern::stored("^[a-c]{2}$"), Pattern::new("^[a-c]{2}$").expect("a pattern")] {
            assert!(pattern.is_match("ab"));
            assert!(!pattern.is_match("abc"));
        }
        assert!(Pattern::new("[").is_err());
        assert!(!Pattern::stored("[").is_match("["));
    }
}
