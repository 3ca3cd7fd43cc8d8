//! Text of others on a terminal: guests, hosts and writers of objects choose parts of it.

use std::fmt::Write as _;

use berth_filesystems::{is_plain, shown};

/// Returns the text with its control characters escaped, except for the ends of its lines: a terminal interprets nothing in it.
#[must_use]
pub fn printable(text: &str) -> String {
    text.split('\n').map(|line| shown(line.as_bytes())).collect::<Vec<_>>().join("\n")
}

/// Returns JSON with the same meaning of which a terminal interprets nothing: JSON itself has to escape only the first 32 characters.
#[must_use]
pub fn printable_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // Outside of strings there are no others than the ends of lines.
        if is_plain(c) || c == '\n' {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]).iter() {
            // Writing into a String cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

#[test]
fn json_has_nothing_that_a_terminal_interprets_and_the_same_meaning() {
    let value = serde_json::json!({"message": "x\u{1b}[2J\u{9b}2J\u{7f}\u{202e}é\n"});
    let text = printable_json(&format!("{value:#}\n"));
    assert!(text.chars().all(|c| is_plain(c) || c == '\n'), "{text:?}");
    assert!(text.contains("\\u009b2J\\u007f\\u202eé"), "{text}");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("JSON"), value);
}

#[test]
fn a_terminal_interprets_nothing_but_ends_of_lines() {
    assert_eq!(
        printable("Event 5s ago: x\u{1b}]0;y\u{7}\r\n— ok\n"),
        "Event 5s ago: x\\u{1b}]0;y\\u{7}\\r\n— ok\n"
    );
    assert_eq!(printable("a\u{9b}2Jb"), "a\\u{9b}2Jb", "the short form of an escape sequence");
}
