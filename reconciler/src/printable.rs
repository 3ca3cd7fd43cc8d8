//! Text of others on a terminal: guests, hosts and writers of objects choose parts of it.

use berth_filesystems::shown;

/// Returns the text with its control characters escaped, except for the ends of its lines: a terminal interprets nothing in it.
#[must_use]
pub fn printable(text: &str) -> String {
    text.split('\n').map(|line| shown(line.as_bytes())).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_terminal_interprets_nothing_but_ends_of_lines() {
    assert_eq!(
        printable("Event 5s ago: x\u{1b}]0;y\u{7}\r\n— ok\n"),
        "Event 5s ago: x\\u{1b}]0;y\\u{7}\\r\n— ok\n"
    );
    assert_eq!(printable("a\u{9b}2Jb"), "a\\u{9b}2Jb", "the short form of an escape sequence");
}
