//! The log of a serial console on a terminal: its text with colours. Whatever else a guest writes to its own terminal, such as commands
//! that clear it, name its window or fill its clipboard, is left out.
//!
//! ```text
//!  Text ──ESC──▶ Escape ──[──▶ Control ──letter──▶ Text        "m" is a colour, and stays
//!    ▲              │
//!    │              └─] P X ^ _─▶ Command ──BEL, ESC \──▶ Text
//!    └── the end of a line, from everywhere
//! ```

use std::mem;

use berth_filesystems::is_plain;

/// The longest parameters of a colour.
const LONGEST_COLOUR: usize = 32;
/// The longest command that is left out: one that has no end must not hide the rest of the log.
const LONGEST_COMMAND: usize = 4096;

/// Converts a log part by part.
#[derive(Debug, Default)]
pub(super) struct LogText {
    state: State,
    /// The first bytes of a character whose others have not come yet.
    cut: Vec<u8>,
    parameters: String,
    length: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    Escape,
    Control,
    Command,
    /// After an escape in a command, which may be its end.
    CommandEnd,
}

impl LogText {
    /// Returns what a terminal shows of the next part.
    pub(super) fn shown(&mut self, part: &[u8]) -> String {
        let mut bytes = mem::take(&mut self.cut);
        bytes.extend_from_slice(part);
        let mut out = String::with_capacity(bytes.len());
        let mut left = bytes.len();
        for chunk in bytes.utf8_chunks() {
            left -= chunk.valid().len() + chunk.invalid().len();
            chunk.valid().chars().for_each(|c| self.add(c, &mut out));
            match chunk.invalid() {
                [] => {}
                invalid if left == 0 && is_cut(invalid) => self.cut = invalid.to_vec(),
                _ => self.add(char::REPLACEMENT_CHARACTER, &mut out),
            }
        }
        out
    }

    fn add(&mut self, c: char, out: &mut String) {
        self.state = match (self.state, c) {
            (_, '\n') => {
                out.push(c);
                State::Text
            }
            (State::Text, '\u{1b}') => State::Escape,
            (State::Text, _) => {
                if is_plain(c) || matches!(c, '\r' | '\t' | '\u{8}') {
                    out.push(c);
                }
                State::Text
            }
            (State::Escape, '[') => {
                self.parameters.clear();
                State::Control
            }
            (State::Escape, ']' | 'P' | 'X' | '^' | '_') => {
                self.length = 0;
                State::Command
            }
            (State::Escape | State::Control, '\u{1b}') | (State::Escape, ' '..='/') => State::Escape,
            (State::Control, ' '..='?') if self.parameters.len() < LONGEST_COLOUR => {
                self.parameters.push(c);
                State::Control
            }
            (State::Control, 'm') if self.parameters.chars().all(is_of_colour) => {
                out.push_str("\u{1b}[");
                out.push_str(&self.parameters);
                out.push('m');
                State::Text
            }
            (State::Command | State::CommandEnd, '\u{1b}') => State::CommandEnd,
            (State::Command, c) if c != '\u{7}' && self.length < LONGEST_COMMAND => {
                self.length += 1;
                State::Command
            }
            (State::Escape | State::Control | State::Command | State::CommandEnd, _) => State::Text,
        };
    }
}

fn is_of_colour(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, ';' | ':')
}

/// Whether bytes are the beginning of a character.
fn is_cut(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &[u8]) -> String {
        LogText::default().shown(text)
    }

    #[test]
    fn text_and_colours_stay_and_commands_for_the_terminal_do_not() {
        assert_eq!(
            shown(b"[\x1b[0;32m  OK  \x1b[0m] up\r\n\tdone\n"),
            "[\u{1b}[0;32m  OK  \u{1b}[0m] up\r\n\tdone\n"
        );
        for (log, expected) in [
            (&b"a\x1b[2J\x1b[01;01Hb"[..], "ab"),
            (b"a\x1b]0;title\x07b", "ab"),
            (b"a\x1b]52;c;cm0gLXJm\x1b\\b", "ab"),
            (b"a\x1bP1$r0m\x1b\\b", "ab"),
            (b"a\x1bcb\x1b(Bc", "abc"),
            (b"a\x1b[>4;2mb\x1b[6nc", "abc"),
            (b"a\xc2\x9b2Jb", "a2Jb"),
            (b"a\x9bb\x00\x7fc", "a\u{fffd}bc"),
            ("\u{e9} \u{202e}x".as_bytes(), "\u{e9} x"),
        ] {
            assert_eq!(shown(log), expected, "{log:?}");
        }
    }

    #[test]
    fn a_command_without_an_end_hides_no_more_than_its_line() {
        assert_eq!(shown(b"a\x1b]0;title\nb\x1b[12\nc"), "a\nb\nc");
        let long = [b"\x1b]".as_slice(), &b"x".repeat(LONGEST_COMMAND), b"yz"].concat();
        assert_eq!(shown(&long), "z");
        let colour = [b"\x1b[".as_slice(), &b"1".repeat(LONGEST_COLOUR), b"1x"].concat();
        assert_eq!(shown(&colour), "x");
    }

    #[test]
    fn parts_end_anywhere() {
        let log = "é\u{1b}[31mrot\u{1b}[0m\u{1b}]0;t\u{7}€\n".as_bytes();
        for at in 0..=log.len() {
            let mut text = LogText::default();
            let all = text.shown(&log[..at]) + &text.shown(&log[at..]);
            assert_eq!(all, "é\u{1b}[31mrot\u{1b}[0m€\n", "{at}");
        }
    }
}
