//! Words of a POSIX shell: written as one word, and read from lines.

use std::{iter::Peekable, str::Chars};

/// The most words of a text.
pub(super) const MAX_WORDS: usize = 10_000;

/// A text as one word of a shell.
pub(super) fn quoted(text: &str) -> String {
    let is_plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | ':' | '+' | '@');
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Why the words of a text cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    /// More than any script has.
    #[error("it has more than {MAX_WORDS} words")]
    TooManyWords,
    /// A quotation mark without its second one.
    #[error("a quotation mark in it is not closed")]
    OpenQuote,
    /// A variable, a command or a home directory.
    #[error(
        "it has {0:?}, whose value only the shell knows that runs it: write the value there, or import the running process by its PID"
    )]
    Expansion(String),
}

/// The commands of a text, each as its words, without redirections. Nothing is expanded.
///
/// # Errors
/// When a quotation mark is not closed, or a word depends on the shell that reads it.
pub(super) fn commands(text: &str) -> Result<Vec<Vec<String>>, ShellError> {
    let mut reader = Reader {
        rest: text.chars().peekable(),
        commands: Vec::new(),
        command: Vec::new(),
        word: None,
        is_target: false,
        count: 0,
    };
    while let Some(c) = reader.rest.next() {
        reader.read(c)?;
        if reader.count > MAX_WORDS {
            return Err(ShellError::TooManyWords);
        }
    }
    reader.end_command();
    Ok(reader.commands)
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    commands: Vec<Vec<String>>,
    command: Vec<String>,
    /// The word that is being read. It may be empty: `''`.
    word: Option<String>,
    /// Whether the next word is the file of a redirection.
    is_target: bool,
    count: usize,
}

impl Reader<'_> {
    fn read(&mut self, c: char) -> Result<(), ShellError> {
        match c {
            ' ' | '\t' | '\r' => self.end_word(),
            '\n' | ';' | '|' | '&' | '(' | ')' => self.end_command(),
            '<' | '>' => self.redirect(),
            '#' if self.word.is_none() => while self.rest.next_if(|c| *c != '\n').is_some() {},
            '\\' => match self.rest.next() {
                // A line that goes on.
                Some('\n') | None => {}
                Some('\r') if self.rest.next_if_eq(&'\n').is_some() => {}
                Some(c) => self.word().push(c),
            },
            '\'' => self.single_quoted()?,
            '"' => self.double_quoted()?,
            '~' if self.word.is_none() => return Err(self.expansion("~")),
            '$' | '`' => self.dollar(c)?,
            c => self.word().push(c),
        }
        Ok(())
    }

    fn word(&mut self) -> &mut String {
        self.word.get_or_insert_default()
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        self.count += 1;
        if !std::mem::take(&mut self.is_target) {
            self.command.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.is_target = false;
        if !self.command.is_empty() {
            self.commands.push(std::mem::take(&mut self.command));
        }
    }

    /// `>log`, `2>&1`, `</dev/null`: without a meaning for the guest.
    fn redirect(&mut self) {
        if self.word.as_ref().is_some_and(|word| word.chars().all(|c| c.is_ascii_digit())) {
            self.word = None;
        }
        self.end_word();
        while self.rest.next_if(|c| matches!(c, '>' | '<' | '&' | '|')).is_some() {}
        self.is_target = true;
    }

    fn single_quoted(&mut self) -> Result<(), ShellError> {
        self.word();
        loop {
            match self.rest.next().ok_or(ShellError::OpenQuote)? {
                '\'' => return Ok(()),
                c => self.word().push(c),
            }
        }
    }

    fn double_quoted(&mut self) -> Result<(), ShellError> {
        self.word();
        loop {
            match self.rest.next().ok_or(ShellError::OpenQuote)? {
                '"' => return Ok(()),
                '\\' => match self.rest.next().ok_or(ShellError::OpenQuote)? {
                    '\n' => {}
                    c @ ('"' | '\\' | '$' | '`') => self.word().push(c),
                    c => self.word().extend(['\\', c]),
                },
                '$' if matches!(self.rest.peek(), Some('"' | '\'')) => self.word().push('$'),
                c @ ('$' | '`') => self.dollar(c)?,
                c => self.word().push(c),
            }
        }
    }

    /// A dollar sign or a backquote outside single quotation marks.
    fn dollar(&mut self, c: char) -> Result<(), ShellError> {
        let expands = |c: &char| c.is_ascii_alphanumeric() || "_{(@*#?!$-\'\"".contains(*c);
        if c == '$' && !self.rest.peek().is_some_and(expands) {
            self.word().push(c);
            return Ok(());
        }
        Err(self.expansion(if c == '$' { "$" } else { "`" }))
    }

    fn expansion(&self, start: &str) -> ShellError {
        let is_end = |c: &char| c.is_whitespace() || matches!(c, ',' | '"' | '/');
        let rest: String = self.rest.clone().take_while(|c| !is_end(c)).take(30).collect();
        ShellError::Expansion(format!("{start}{rest}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        commands(text).expect("it is closed").concat()
    }

    #[test]
    fn words_are_those_of_a_shell() {
        for (text, expected) in [
            ("a  b\tc", vec!["a", "b", "c"]),
            (r#"-name 'my vm' "a \"b\" \c" d\ e"#, vec!["-name", "my vm", r#"a "b" \c"#, "d e"]),
            (r"a'b'\''c' ''", vec!["ab'c", ""]),
            ("a \\\n  b \\\r\n c # d\n# e", vec!["a", "b", "c"]),
            ("a#b $ \"5$\" '$HOME' \\$x", vec!["a#b", "$", "5$", "$HOME", "$x"]),
            ("a 2>/dev/null >> log 2>&1 b </dev/null", vec!["a", "b"]),
            ("a4>log", vec!["a4"]),
        ] {
            assert_eq!(words(text), expected, "{text}");
        }
    }

    #[test]
    fn commands_end_at_lines_and_operators() {
        let found = commands("#!/bin/sh\nset -e; a b &\nc | d\n\n(e)").expect("it is closed");
        assert_eq!(found, [vec!["set", "-e"], vec!["a", "b"], vec!["c"], vec!["d"], vec!["e"]]);
    }

    #[test]
    fn words_that_a_shell_expands_and_open_quotes_are_refused() {
        for (text, expected) in [
            ("a 'b", "not closed"),
            ("a \"b", "not closed"),
            ("a \"b\\", "not closed"),
            ("-drive file=$DISK,if=virtio", "\"$DISK\""),
            ("-m \"${MEMORY}\"", "\"${MEMORY}\""),
            ("-uuid `uuidgen`", "\"`uuidgen`\""),
            ("-uuid $(uuidgen)", "\"$(uuidgen)\""),
            ("-hda ~/disk.img", "\"~\""),
        ] {
            let error = commands(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(matches!(commands(&"a ".repeat(MAX_WORDS + 2)), Err(ShellError::TooManyWords)));
    }

    #[test]
    fn a_quoted_word_is_read_as_it_was() {
        for text in ["", "-x", "a b", "it's", "$(reboot)", "\"\\\n"] {
            assert_eq!(words(&format!("echo {}", quoted(text))), ["echo", text]);
        }
    }
}
