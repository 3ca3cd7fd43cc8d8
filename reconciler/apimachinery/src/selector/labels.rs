//! Label selectors: `app=web,tier in (front,back),!old,size>4`, parsed with the grammar and the errors of
//! Kubernetes.
//!
//! ```text
//! selector    = [ requirement { "," requirement } ]
//! requirement = [ "!" ] KEY | KEY operator VALUE | KEY ( "in" | "notin" ) "(" VALUE { "," VALUE } ")"
//! operator    = "=" | "==" | "!=" | ">" | "<"
//! ```

use crate::meta::names::{label_value, qualified_name};
use crate::schema::quote;

/// The maximum number of requirements of one selector.
const MAX_REQUIREMENTS: usize = 64;
/// The operators listed in the error of an unknown one.
const OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

/// The requirement on the value of one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

impl Test {
    /// Whether a label with this value, or `None` for a missing label, is selected.
    pub(super) fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        match self {
            Self::In(values) => value.is_some_and(|v| values.iter().any(|w| w == v)),
            Self::NotIn(values) => value.is_none_or(|v| values.iter().all(|w| w != v)),
            Self::Exists => value.is_some(),
            Self::Absent => value.is_none(),
            Self::Greater(than) => number().is_some_and(|n| n > *than),
            Self::Less(than) => number().is_some_and(|n| n < *than),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    /// A key or a value, or one of the words `in` and `notin`.
    Word(&'a str),
    /// One of `! = == != < > ( ) ,`.
    Sign(&'a str),
    End,
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::Word(text) | Self::Sign(text) => text,
            Self::End => "",
        }
    }

    fn ends_requirement(self) -> bool {
        matches!(self, Self::End | Self::Sign(","))
    }

    fn starts_requirement(self) -> bool {
        matches!(self, Self::Word(_) | Self::Sign("!"))
    }
}

/// Returns the next token and the rest of the text.
fn lex(text: &str) -> (Token<'_>, &str) {
    let is_space = |letter: char| matches!(letter, ' ' | '\t' | '\r' | '\n');
    let is_sign = |letter: char| matches!(letter, '=' | '!' | '(' | ')' | ',' | '>' | '<');
    let text = text.trim_start_matches(is_space);
    let length = match text.as_bytes() {
        [] => return (Token::End, text),
        [b'=' | b'!', b'=', ..] => 2,
        [first, ..] if is_sign(char::from(*first)) => 1,
        _ => {
            let end = text.find(|letter| is_space(letter) || is_sign(letter)).unwrap_or(text.len());
            let (word, rest) = text.split_at(end);
            return (Token::Word(word), rest);
        }
    };
    let (sign, rest) = text.split_at(length);
    (Token::Sign(sign), rest)
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        lex(self.rest).0
    }

    fn next(&mut self) -> Token<'a> {
        let (token, rest) = lex(self.rest);
        self.rest = rest;
        token
    }

    fn selector(&mut self) -> Result<Vec<(String, Test)>, String> {
        let mut requirements = Vec::new();
        match self.peek() {
            Token::End => return Ok(requirements),
            token if !token.starts_requirement() => {
                return Err(format!("found '{}', expected: !, identifier, or 'end of string'", token.text()));
            }
            _ => {}
        }
        loop {
            let requirement = self.requirement();
            requirements.push(requirement.map_err(|why| format!("unable to parse requirement: {why}"))?);
            if requirements.len() > MAX_REQUIREMENTS {
                return Err(format!("a selector has at most {MAX_REQUIREMENTS} requirements"));
            }
            match self.next() {
                Token::End => return Ok(requirements),
                Token::Sign(",") => {}
                token => return Err(format!("found '{}', expected: ',' or 'end of string'", token.text())),
            }
            let follows = self.peek();
            if !follows.starts_requirement() {
                return Err(format!("found '{}', expected: identifier after ','", follows.text()));
            }
        }
    }

    fn requirement(&mut self) -> Result<(String, Test), String> {
        let first = self.next();
        let absent = first == Token::Sign("!");
        let key = match if absent { self.next() } else { first } {
            Token::Word(key) => key,
            token => return Err(format!("found '{}', expected: identifier", token.text())),
        };
        let problems = qualified_name(key);
        if !problems.is_empty() {
            // Kubernetes puts the path before the error; a selector in a query has none.
            return Err(format!("<nil>: Invalid value: {}: {}", quote(key), problems.join("; ")));
        }
        let test = if absent {
            Test::Absent
        } else if self.peek().ends_requirement() {
            Test::Exists
        } else {
            self.comparison(key)?
        };
        Ok((key.to_owned(), test))
    }

    fn comparison(&mut self, key: &str) -> Result<Test, String> {
        match self.next() {
            Token::Word(word @ ("in" | "notin")) => {
                let values = checked(key, self.values()?)?;
                Ok(if word == "in" { Test::In(values) } else { Test::NotIn(values) })
            }
            Token::Sign("=" | "==") => Ok(Test::In(checked(key, vec![self.value()?])?)),
            Token::Sign("!=") => Ok(Test::NotIn(checked(key, vec![self.value()?])?)),
            Token::Sign(sign @ (">" | "<")) => {
                let value = self.value()?;
                let number = value.parse().map_err(|_| {
                    let why = "for 'Gt', 'Lt' operators, the value must be an integer";
                    format!("values[0]: Invalid value: {}: {why}", quote(&value))
                });
                let errors: Vec<String> = [number.as_ref().err().cloned(), checked(key, vec![value]).err()]
                    .into_iter()
                    .flatten()
                    .collect();
                let number = match errors.as_slice() {
                    [] => number?,
                    [one] => return Err(one.clone()),
                    many => return Err(format!("[{}]", many.join(", "))),
                };
                Ok(if sign == ">" { Test::Greater(number) } else { Test::Less(number) })
            }
            token => Err(format!("found '{}', expected: {OPERATORS}", token.text())),
        }
    }

    /// Parses the value after `=` and similar operators; a missing value is the empty one.
    fn value(&mut self) -> Result<String, String> {
        if self.peek().ends_requirement() {
            return Ok(String::new());
        }
        match self.next() {
            Token::Word(value) => Ok(value.to_owned()),
            token => Err(format!("found '{}', expected: identifier", token.text())),
        }
    }

    /// Parses the values in parentheses; a missing value between two separators is the empty one.
    fn values(&mut self) -> Result<Vec<String>, String> {
        let open = self.next();
        if open != Token::Sign("(") {
            return Err(format!("found '{}' expected: '('", open.text()));
        }
        let mut values = Vec::new();
        match self.peek() {
            Token::Sign(")") => {
                self.next();
                return Ok(vec![String::new()]);
            }
            Token::Word(_) | Token::Sign(",") => {}
            token => return Err(format!("found '{}', expected: ',', ')' or identifier", token.text())),
        }
        loop {
            let value = match self.peek() {
                Token::Word(value) => {
                    self.next();
                    value
                }
                Token::Sign("," | ")") => "",
                token => return Err(format!("found '{}', expected: ',', or identifier", token.text())),
            };
            values.push(value.to_owned());
            match self.next() {
                Token::Sign(",") => {}
                Token::Sign(")") => return Ok(values),
                token => return Err(format!("found '{}', expected: ',' or ')'", token.text())),
            }
        }
    }
}

/// Returns the values sorted and without duplicates, if all are valid label values.
fn checked(key: &str, mut values: Vec<String>) -> Result<Vec<String>, String> {
    values.sort_unstable();
    values.dedup();
    let wrong: Vec<String> = values
        .iter()
        .enumerate()
        .map(|(at, value)| (at, value, label_value(value)))
        .filter(|(_, _, problems)| !problems.is_empty())
        .map(|(at, value, problems)| {
            format!("values[{at}][{key}]: Invalid value: {}: {}", quote(value), problems.join("; "))
        })
        .collect();
    match wrong.as_slice() {
        [] => Ok(values),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

/// Parses the requirements by label. Errors name the token that was found and those that were expected.
pub(super) fn parse(text: &str) -> Result<Vec<(String, Test)>, String> {
    Parser { rest: text }.selector()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(text: &str, labels: &[(&str, &str)]) -> bool {
        let find = |name: &str| labels.iter().find(|(k, _)| *k == name).map(|(_, v)| *v);
        parse(text).unwrap().iter().all(|(label, test)| test.holds(find(label)))
    }

    #[test]
    fn requirements_mean_what_kubernetes_says() {
        let labels = [("app", "web"), ("size", "5"), ("tier", ""), ("in", "in")];
        for yes in [
            "",
            " ",
            "app=web",
            "app==web",
            " app  in  ( db , web ) ",
            "app!=db",
            "app notin (db)",
            "app",
            "! gone",
            "size>4",
            "tier=",
            "tier in ()",
            "tier in (,x)",
            "tier in (x,)",
            "in in (in)",
            "in=in",
        ] {
            assert!(holds(yes, &labels), "{yes}");
        }
        for no in [
            "app=db",
            "app!=web",
            "app in (db)",
            "app in ()",
            "app notin (web,db)",
            "gone",
            "!app",
            "size<5",
            "app=web,gone",
        ] {
            assert!(!holds(no, &labels), "{no}");
        }
        assert!(holds("gone!=x,other notin (y)", &labels), "an absent label is not equal to anything");
    }

    #[test]
    fn a_refusal_says_what_was_found_and_what_could_be_there() {
        let table = [
            (",", "found ',', expected: !, identifier, or 'end of string'"),
            ("a,", "found '', expected: identifier after ','"),
            ("=", "found '=', expected: !, identifier, or 'end of string'"),
            ("a=b=c", "found '=', expected: ',' or 'end of string'"),
            ("!a=b", "found '=', expected: ',' or 'end of string'"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("a=(b)", "unable to parse requirement: found '(', expected: identifier"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
        ];
        for (text, why) in table {
            assert_eq!(parse(text).unwrap_err(), why, "{text}");
        }
    }

    #[test]
    fn keys_and_values_are_those_a_label_may_have() {
        let why = |text: &str| parse(text).unwrap_err();
        assert!(
            why("-a=b")
                .starts_with("unable to parse requirement: <nil>: Invalid value: \"-a\": name part must")
        );
        assert!(
            why("a=-b")
                .starts_with("unable to parse requirement: values[0][a]: Invalid value: \"-b\": a valid")
        );
        assert!(why("a in (x,-b,b)").contains(": values[0][a]: Invalid value: \"-b\""), "in order");
        assert!(why("a in (-b,-c)").contains(": [values[0][a]:"));
        assert!(why("a>-1").contains(": values[0][a]: Invalid value: \"-1\""));
        let long = vec!["a"; MAX_REQUIREMENTS + 1].join(",");
        assert!(why(&long).contains("at most"));
    }
}
