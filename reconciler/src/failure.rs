//! The failure of a command, as its user sees it.

use std::{
    io::{self, ErrorKind, Write},
    os::fd::{AsFd, BorrowedFd},
    process::ExitCode,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::printable::printable;

/// The exit code of a shell for a program that SIGPIPE has ended.
const UNREAD: u8 = 141;

/// Prints the failure to the standard error; returns the exit code.
///
/// One for which nothing reads the standard output any more, as when it is piped into `head`, is not printed: the reader has read enough.
#[must_use]
pub fn report(error: &anyhow::Error, code: u8) -> ExitCode {
    if is_unread(error, io::stdout().as_fd()) {
        return ExitCode::from(UNREAD);
    }
    // The terminal may be gone.
    let _ = writeln!(io::stderr(), "berth: {}", printable(&format!("{error:#}")));
    ExitCode::from(code)
}

/// Whether a write failed because the pipe of this output has no reader. Another pipe or a connection may have broken, too.
fn is_unread(error: &anyhow::Error, output: BorrowedFd<'_>) -> bool {
    let is_broken = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref().is_some_and(|cause: &io::Error| cause.kind() == ErrorKind::BrokenPipe)
    };
    if !error.chain().any(is_broken) {
        return false;
    }
    // The end of its readers is reported without a request for it.
    let mut ends = [PollFd::new(output, PollFlags::empty())];
    poll(&mut ends, PollTimeout::ZERO).is_ok()
        && ends[0].revents().is_some_and(|seen| seen.intersects(PollFlags::POLLERR | PollFlags::POLLHUP))
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_broken_pipe_is_silent_only_if_it_is_that_of_the_output() {
        let (reader, mut unread) = io::pipe().expect("a pipe");
        drop(reader);
        let (_reader, open) = io::pipe().expect("a pipe");
        let error = unread.write_all(b"text").context("printing").expect_err("there is no reader");
        assert!(is_unread(&error, unread.as_fd()));
        assert!(!is_unread(&error, open.as_fd()), "another pipe or a connection broke");
        let other = anyhow::anyhow!("there is no host").context("printing");
        assert!(!is_unread(&other, unread.as_fd()), "the reader is gone, and something else failed");
    }
}
