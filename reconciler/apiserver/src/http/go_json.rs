//! What Go's decoder stumbles over in a text that is no JSON, in its words: clients show them to people.

/// Values inside of each other that Go reads.
const MAX_DEPTH: usize = 10_000;

/// Why a text is no JSON; for one that Go would read, nothing.
pub(super) fn problem(text: &[u8]) -> Option<String> {
    Scanner { text, at: 0 }.document().err()
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

type Scanned<T = ()> = Result<T, String>;

fn unexpected(byte: u8, place: &str) -> String {
    let shown = match byte {
        b'\'' => "\\'".to_owned(),
        b'"' => "\"".to_owned(),
        b'\n' => "\\n".to_owned(),
        b'\r' => "\\r".to_owned(),
        b'\t' => "\\t".to_owned(),
        b'\\' => "\\\\".to_owned(),
        0x20..0x7f => char::from(byte).to_string(),
        0x00..0x20 | 0x7f => format!("\\x{byte:02x}"),
        // Go takes the byte for a letter of its own.
        0x80..=0xa0 | 0xad => format!("\\u{byte:04x}"),
        0xa1..=0xff => char::from(byte).to_string(),
    };
    format!("invalid character '{shown}' {place}")
}

impl Scanner<'_> {
    fn document(&mut self) -> Scanned {
        let mut open: Vec<u8> = Vec::new();
        loop {
            let opened = self.value()?;
            if let Some(kind) = opened {
                if open.len() >= MAX_DEPTH {
                    return Err("exceeded max depth".into());
                }
                open.push(kind);
                if kind == b'{' {
                    self.key()?;
                }
                continue;
            }
            loop {
                let Some(kind) = open.last() else { return self.end() };
                let (closing, place) = match kind {
                    b'{' => (b'}', "after object key:value pair"),
                    _ => (b']', "after array element"),
                };
                match self.next_after_space()? {
                    b',' => break,
                    byte if byte == closing => {
                        open.pop();
                    }
                    byte => return Err(unexpected(byte, place)),
                }
            }
            if open.last() == Some(&b'{') {
                self.key()?;
            }
        }
    }

    /// One value, or the beginning of one that holds others: its first letter.
    fn value(&mut self) -> Scanned<Option<u8>> {
        match self.next_after_space()? {
            opening @ (b'{' | b'[') => {
                let closing = if opening == b'{' { b'}' } else { b']' };
                self.space();
                if self.text.get(self.at) == Some(&closing) {
                    self.at += 1;
                    return Ok(None);
                }
                Ok(Some(opening))
            }
            b'"' => self.string().map(|()| None),
            first @ (b'-' | b'0'..=b'9') => self.number(first).map(|()| None),
            b't' => self.literal("true").map(|()| None),
            b'f' => self.literal("false").map(|()| None),
            b'n' => self.literal("null").map(|()| None),
            byte => Err(unexpected(byte, "looking for beginning of value")),
        }
    }

    fn key(&mut self) -> Scanned {
        match self.next_after_space()? {
            b'"' => self.string()?,
            byte => return Err(unexpected(byte, "looking for beginning of object key string")),
        }
        match self.next_after_space()? {
            b':' => Ok(()),
            byte => Err(unexpected(byte, "after object key")),
        }
    }

    fn end(&mut self) -> Scanned {
        self.space();
        match self.text.get(self.at) {
            None => Ok(()),
            Some(byte) => Err(unexpected(*byte, "after top-level value")),
        }
    }

    fn string(&mut self) -> Scanned {
        loop {
            match self.next()? {
                b'"' => return Ok(()),
                b'\\' => match self.next()? {
                    b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => {}
                    b'u' => {
                        for _ in 0..4 {
                            let byte = self.next()?;
                            if !byte.is_ascii_hexdigit() {
                                return Err(unexpected(byte, "in \\u hexadecimal character escape"));
                            }
                        }
                    }
                    byte => return Err(unexpected(byte, "in string escape code")),
                },
                byte if byte < 0x20 => return Err(unexpected(byte, "in string literal")),
                _ => {}
            }
        }
    }

    fn number(&mut self, first: u8) -> Scanned {
        let first = if first == b'-' { self.digit("in numeric literal")? } else { first };
        if first != b'0' {
            self.digits();
        }
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digit("after decimal point in numeric literal")?;
            self.digits();
        }
        if matches!(self.text.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.text.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digit("in exponent of numeric literal")?;
            self.digits();
        }
        Ok(())
    }

    fn digit(&mut self, place: &str) -> Scanned<u8> {
        let byte = self.next()?;
        if byte.is_ascii_digit() { Ok(byte) } else { Err(unexpected(byte, place)) }
    }

    fn digits(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
    }

    /// The rest of a word whose first letter was read.
    fn literal(&mut self, word: &str) -> Scanned {
        for letter in word.bytes().skip(1) {
            let byte = self.next()?;
            if byte != letter {
                let place = format!("in literal {word} (expecting '{}')", char::from(letter));
                return Err(unexpected(byte, &place));
            }
        }
        Ok(())
    }

    fn space(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn next_after_space(&mut self) -> Scanned<u8> {
        self.space();
        self.next()
    }

    fn next(&mut self) -> Scanned<u8> {
        let byte = self.text.get(self.at).ok_or("unexpected end of JSON input")?;
        self.at += 1;
        Ok(*byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_go_reads_has_no_problem() {
        for text in [
            "{}",
            " [1, -0.5e+3, true, null, \"\\u00e4\\n\"] ",
            "\"x\"",
            "0",
            "{\"a\":{\"b\":[]}}",
            "[[],{}]",
        ] {
            assert_eq!(problem(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_first_wrong_letter_is_told_with_its_place() {
        let table = [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("{\"a\":1", "unexpected end of JSON input"),
            ("-", "unexpected end of JSON input"),
            ("{} {}", "invalid character '{' after top-level value"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("[1 2]", "invalid character '2' after array element"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 \"b\"}", "invalid character '\"' after object key:value pair"),
            ("tru'", "invalid character '\\'' in literal true (expecting 'e')"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"\\u00g\"", "invalid character 'g' in \\u hexadecimal character escape"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1ex", "invalid character 'x' in exponent of numeric literal"),
            ("01", "invalid character '1' after top-level value"),
        ];
        for (text, why) in table {
            assert_eq!(problem(text.as_bytes()).as_deref(), Some(why), "{text}");
        }
        let deep = "[".repeat(MAX_DEPTH + 1);
        assert_eq!(problem(deep.as_bytes()).as_deref(), Some("exceeded max depth"));
    }
}
