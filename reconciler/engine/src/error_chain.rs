//! An error with its sources, in one line.

use std::{error::Error, fmt};

/// Displays an error and its sources, separated by colons.
///
/// A source that the text so far already ends with is left out: some libraries repeat their source in their own text.
#[derive(Debug)]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut next = self.0.source();
        while let Some(source) = next {
            let source_text = source.to_string();
            if !text.ends_with(&source_text) {
                text.push_str(": ");
                text.push_str(&source_text);
            }
            next = source.source();
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error("no route to host")]
        Network,
        #[error("cannot connect")]
        Connect(#[source] Box<Failure>),
        #[error("request failed: {0}")]
        Request(#[source] Box<Failure>),
    }

    #[test]
    fn sources_follow_their_error() {
        let error = Failure::Connect(Failure::Network.into());
        assert_eq!(ErrorChain(&error).to_string(), "cannot connect: no route to host");
    }

    #[test]
    fn a_source_that_the_error_repeats_is_printed_once() {
        let error = Failure::Request(Failure::Connect(Failure::Network.into()).into());
        assert_eq!(ErrorChain(&error).to_string(), "request failed: cannot connect: no route to host");
    }
}
