//! The tests that `docs/compared.md` names: a link to a source file, with the name of a test function in code, or the text of an
//! acceptance case in quotation marks.

use std::collections::BTreeSet;

use crate::tokens::{Lexeme, Token, lexemes, tokens};

/// The title of the column with the tests.
const COLUMN: &str = "test";

/// A test that a page names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Named {
    /// A test function.
    Function(String),
    /// The text of a case of an acceptance suite.
    Case(String),
}

/// A link of a page to a source file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// The test; none: the text of the link has neither form.
    pub(crate) named: Option<Named>,
    /// The file, relative to the page.
    pub(crate) file: String,
}

/// Returns the links to source files in a line.
pub(crate) fn references(line: &str) -> Vec<Reference> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("](") {
        let Some(target) = line[at + 2..].split(')').next().filter(|target| target.ends_with(".rs")) else {
            continue;
        };
        let text = line[..at].rsplit_once('[').map_or("", |(_, text)| text);
        let between = |mark: char| text.strip_prefix(mark).and_then(|rest| rest.strip_suffix(mark));
        let named = match (between('`'), between('"')) {
            (Some(name), _) => Some(Named::Function(name.to_owned())),
            (_, Some(case)) => Some(Named::Case(case.to_owned())),
            _ => None,
        };
        found.push(Reference { named, file: target.to_owned() });
    }
    found
}

/// Returns the rows of the tables with tests that name none.
pub(crate) fn rows_without_a_test(page: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut within = false;
    for line in page.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let is_row = line.starts_with('|');
        if is_row && cells.last() == Some(&COLUMN) {
            within = true;
        } else if !is_row {
            within = false;
        } else if within
            && !line.starts_with("|-")
            && cells.last().is_none_or(|cell| references(cell).is_empty())
        {
            found.push(line);
        }
    }
    found
}

/// Returns the tests of a source file: its test functions, and its texts, which include those of cases.
pub(crate) fn tests_of(source: &str) -> BTreeSet<Named> {
    let text = |lexeme| match lexeme {
        Lexeme::Text(text) => Some(Named::Case(text.trim_matches('"').to_owned())),
        Lexeme::Token(_) | Lexeme::Comment(_) => None,
    };
    let mut found: BTreeSet<Named> = lexemes(source).filter_map(text).collect();
    let all = tokens(source);
    let mut is_test = false;
    for (at, token) in all.iter().enumerate() {
        if token.is("#") {
            let attribute = all[at..].iter().take_while(|token| !token.is("]"));
            let words: Vec<&str> = attribute.filter_map(Token::word).collect();
            is_test |= words.contains(&"test") && !words.contains(&"cfg");
        } else if token.is("fn") {
            if let Some(name) = all.get(at + 1).and_then(Token::word).filter(|_| is_test) {
                found.insert(Named::Function(name.to_owned()));
            }
            is_test = false;
        }
    }
    found
}

#[test]
fn tests_are_found_by_their_attribute_and_cases_by_their_text() {
    let source = "#[cfg(test)]\nmod tests {\n fn helps() {}\n #[tokio::test(start_paused = true)]\n async fn waits() {}\n \
                  proptest! { #[test] fn holds(x in 0..9) {} }\n fn run() { report.case(\"it runs\", || Ok(())) }\n}";
    let found = tests_of(source);
    let function = |name: &str| found.contains(&Named::Function(name.into()));
    assert!(function("waits") && function("holds") && !function("helps") && !function("run"));
    assert!(found.contains(&Named::Case("it runs".into())) && !found.contains(&Named::Case("it".into())));
    let row = "| it breaks | it does not | [`holds`](../a.rs), [\"it runs\"](../b.rs), [c](../c.rs), [#1](https://x/1) |";
    let page =
        format!("| a | b | test |\n|---|---|---|\n{row}\n| d | e | f |\n\n| g | h |\n|---|---|\n| i | j |\n");
    let named: Vec<_> =
        references(row).into_iter().map(|reference| (reference.named, reference.file)).collect();
    let expected = [
        (Some(Named::Function("holds".into())), "../a.rs".to_owned()),
        (Some(Named::Case("it runs".into())), "../b.rs".to_owned()),
        (None, "../c.rs".to_owned()),
    ];
    assert_eq!(named, expected);
    assert_eq!(rows_without_a_test(&page), ["| d | e | f |"]);
}
