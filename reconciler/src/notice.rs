//! Lines for the user on the standard error, beside the result of a command on the standard output.

use std::{
    fmt,
    io::{self, Write},
};

use crate::printable::printable;

/// Prints a line, as `eprintln!` does, with the control characters in it escaped. A line that cannot be written is lost: `eprintln!` would
/// panic, and end the connections that a command serves when the reader of its standard error or its terminal is gone.
macro_rules! notice {
    ($($text:tt)*) => {
        $crate::notice::print(format_args!($($text)*))
    };
}

pub(crate) fn print(text: fmt::Arguments<'_>) {
    print_to(&mut io::stderr().lock(), text);
}

fn print_to(output: &mut impl Write, text: fmt::Arguments<'_>) {
    let _ = writeln!(output, "{}", printable(&text.to_string()));
}

#[test]
fn a_notice_has_no_control_characters_and_may_have_no_reader() {
    let mut shown = Vec::new();
    print_to(&mut shown, format_args!("Image a: {}", "made\u{1b}[2J"));
    assert_eq!(String::from_utf8(shown).expect("UTF-8"), "Image a: made\\u{1b}[2J\n");
    let (reader, mut unread) = io::pipe().expect("a pipe");
    drop(reader);
    print_to(&mut unread, format_args!("the command goes on"));
}
