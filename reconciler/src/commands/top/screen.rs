//! The output of `berth top --watch`: one table that changes on a terminal, tables one after the other elsewhere.

use std::{
    io::IsTerminal,
    os::fd::{AsRawFd, BorrowedFd},
};

use nix::libc;

/// Moves to the upper left corner and clears the screen; longer lines are cut at the right edge.
const BEGIN: &str = "\x1b[H\x1b[2J\x1b[?7l";
/// Longer lines go on in the next one again: whatever ends the command, the terminal is as before.
const END: &str = "\x1b[?7h";

/// Returns the bytes that show this text in place of the one before.
pub(super) fn frame(text: &str, output: BorrowedFd<'_>) -> String {
    if output.is_terminal() {
        format!("{BEGIN}{}{END}", cut(text, rows(output)))
    } else {
        format!("{text}\n")
    }
}

/// Returns the lines that fit, with a note in place of the others: the terminal would move the first ones out of sight.
fn cut(text: &str, rows: Option<usize>) -> String {
    // The cursor is below the last line.
    let Some(rows) = rows.map(|rows| rows.saturating_sub(1)).filter(|rows| text.lines().count() > *rows)
    else {
        return text.to_owned();
    };
    let shown = rows.saturating_sub(1);
    let left = text.lines().count() - shown;
    let lines: String = text.lines().take(shown).map(|line| format!("{line}\n")).collect();
    format!("{lines}… and {left} more lines\n")
}

/// Returns the height of a terminal, if it has one.
#[expect(unsafe_code, reason = "the kernel's interface for it has no safe form")]
fn rows(terminal: BorrowedFd<'_>) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open for the duration of the call, which writes a `winsize` and nothing else.
    let done = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (done == 0 && size.ws_row > 0).then(|| usize::from(size.ws_row))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn elsewhere_than_on_a_terminal_nothing_is_cleared() {
        let (_reader, pipe) = std::io::pipe().expect("a pipe");
        assert_eq!(frame("a\nb\n", pipe.as_fd()), "a\nb\n\n");
        assert_eq!(rows(pipe.as_fd()), None);
    }

    #[test]
    fn a_table_that_is_higher_than_the_terminal_keeps_its_first_lines() {
        let text = "1\n2\n3\n4\n5\n";
        assert_eq!(cut(text, None), text);
        assert_eq!(cut(text, Some(6)), text);
        assert_eq!(cut(text, Some(5)), "1\n2\n3\n… and 2 more lines\n");
        assert_eq!(cut(text, Some(1)), "… and 5 more lines\n");
    }
}
