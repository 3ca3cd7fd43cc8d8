//! Rust source as the few tokens that paths, modules and attributes consist of.

/// A token. Comments, strings, numbers and lifetimes yield none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    Word(String),
    /// `::`
    Colons,
    Mark(char),
}

impl Token {
    pub(crate) fn word(&self) -> Option<&str> {
        match self {
            Self::Word(word) => Some(word),
            _ => None,
        }
    }

    pub(crate) fn is(&self, text: &str) -> bool {
        match self {
            Self::Word(word) => word == text,
            Self::Colons => text == "::",
            Self::Mark(mark) => text.chars().eq([*mark]),
        }
    }
}

/// A piece of source: a token, or text that is not code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lexeme<'a> {
    Token(Token),
    /// A comment of one line, without its slashes, or a block comment.
    Comment(&'a str),
    /// A string literal, with its prefix and quotes.
    Text(&'a str),
}

/// Returns the tokens of the source.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    let is_token = |lexeme| match lexeme {
        Lexeme::Token(token) => Some(token),
        Lexeme::Comment(_) | Lexeme::Text(_) => None,
    };
    lexemes(source).filter_map(is_token).collect()
}

/// Returns the tokens, comments and strings of the source, in order.
pub(crate) fn lexemes(source: &str) -> impl Iterator<Item = Lexeme<'_>> {
    let mut reader = Reader { rest: source };
    std::iter::from_fn(move || reader.next())
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<Lexeme<'a>> {
        loop {
            self.rest = self.rest.trim_start();
            let first = self.rest.chars().next()?;
            if self.rest.starts_with("//") {
                let line = self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
                return Some(Lexeme::Comment(line.trim_start_matches(['/', '!']).trim()));
            } else if self.rest.starts_with("/*") {
                return Some(Lexeme::Comment(self.take(comment(self.rest))));
            } else if let Some(length) = string(self.rest) {
                return Some(Lexeme::Text(self.take(length)));
            } else if first == '\'' {
                self.take(quoted(self.rest));
            } else if first.is_ascii_digit() {
                self.take(word(self.rest));
            } else if first.is_alphabetic() || first == '_' {
                let raw = self.rest.starts_with("r#");
                self.take(if raw { 2 } else { 0 });
                let found = self.take(word(self.rest)).to_owned();
                return Some(Lexeme::Token(Token::Word(found)));
            } else if self.rest.starts_with("::") {
                self.take(2);
                return Some(Lexeme::Token(Token::Colons));
            } else {
                self.take(first.len_utf8());
                return Some(Lexeme::Token(Token::Mark(first)));
            }
        }
    }

    fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        taken
    }
}

/// The length of the word at the start of the text.
fn word(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// The length of the block comment at the start of the text; comments nest.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of the string literal at the start of the text, if there is one: plain, of bytes, of C, raw.
fn string(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        text.strip_prefix(prefix).is_some_and(|rest| {
            rest.starts_with('"') || prefix.ends_with('r') && rest.trim_start_matches('#').starts_with('"')
        })
    })?;
    let rest = &text[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = rest.len() - rest.trim_start_matches('#').len();
        let end = format!("\"{}", "#".repeat(hashes));
        let body = prefix.len() + hashes + 1;
        return Some(text[body..].find(&end).map_or(text.len(), |at| body + at + end.len()));
    }
    Some(prefix.len() + closed(rest, '"'))
}

/// The length of the character or lifetime at the start of the text.
fn quoted(text: &str) -> usize {
    let mut chars = text.chars().skip(1);
    let first = chars.next();
    if first == Some('\\') || chars.next() == Some('\'') { closed(text, '\'') } else { 1 + word(&text[1..]) }
}

/// The length of the text between a quote at the start and the next unescaped one.
fn closed(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[test]
fn comments_strings_characters_and_lifetimes_are_no_tokens() {
    let words = |source: &str| -> Vec<String> {
        tokens(source).iter().filter_map(Token::word).map(str::to_owned).collect()
    };
    assert_eq!(words("a // b\n c /* d /* e */ f */ g"), ["a", "c", "g"]);
    assert_eq!(words(r##"a "b \" c" d r"e\" f r#"g " h"# i b"j" k"##), ["a", "d", "f", "i", "k"]);
    assert_eq!(words(r"a '\'' b '{' c &'static d 'e' f"), ["a", "b", "c", "d", "f"]);
    assert_eq!(words("r#type 1.0_f64 0xff..=2 br rest"), ["type", "br", "rest"]);
}
