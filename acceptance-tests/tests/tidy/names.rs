//! Names in code.

use std::collections::{BTreeMap, BTreeSet};

use crate::tokens::Token;

/// Names that were replaced by the field's own, and must not come back.
pub(crate) const RENAMED: &[(&str, &str)] = &[
    ("Again", "Requeue"),
    ("Allegiance", "SiteTerm"),
    ("Beside", "SideObject"),
    ("Conduct", "ConnectionPolicy"),
    ("Draft", "WriteBatch"),
    ("Filling", "PlacementPolicy"),
    ("LaunchConfig", "MachineSpec"),
    ("Need", "Dependency"),
    ("Passes", "SingleFlight"),
    ("Pins", "PinnedHardware"),
    ("Seekers", "LeaseWatcher"),
    ("SignOfLife", "HostLease"),
    ("Sought", "PendingLease"),
    ("Turns", "FairQueue"),
    ("World", "Store or Cache"),
    ("concern", "enqueue"),
    ("held_back", "deferred"),
    ("is_given", "ensure_renewed"),
    ("lane", "suite"),
    ("lanes", "suites"),
    ("misfortunes", "faults"),
    ("obeys", "check_site_term"),
    ("put_off", "defer"),
    ("storms", "crash"),
    ("strangers", "foreign"),
    ("take_stock", "inventory"),
    ("told", "output, answer, …"),
    ("unwanted", "surplus"),
    ("wishes", "provider_only_fields"),
];

/// Where each name occurs, and where each type is defined.
#[derive(Debug, Default)]
pub(crate) struct Names {
    occurrences: BTreeMap<String, BTreeSet<String>>,
    definitions: BTreeMap<String, Vec<String>>,
}

impl Names {
    pub(crate) fn add(&mut self, tokens: &[Token], place: &str) {
        for (at, token) in tokens.iter().enumerate() {
            let Some(word) = token.word() else { continue };
            self.occurrences.entry(word.to_owned()).or_default().insert(place.to_owned());
            let before = at.checked_sub(1).and_then(|at| tokens[at].word());
            if before.is_some_and(|before| ["struct", "enum", "trait", "union"].contains(&before)) {
                self.definitions.entry(word.to_owned()).or_default().push(place.to_owned());
            }
        }
    }

    pub(crate) fn places(&self, name: &str) -> Vec<&str> {
        self.occurrences.get(name).into_iter().flatten().map(String::as_str).collect()
    }

    pub(crate) fn definitions(&self, name: &str) -> &[String] {
        self.definitions.get(name).map_or(&[], Vec::as_slice)
    }
}

/// A function whose name asks a question: `is_` or `has_`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) name: String,
    /// It takes `&mut self`.
    changes: bool,
    /// It returns a `bool`, or a `bool` that may be missing or fail.
    answers: bool,
}

impl Question {
    pub(crate) fn is_plain(&self) -> bool {
        self.answers && !self.changes
    }
}

/// Returns the functions of a file whose names ask a question.
pub(crate) fn questions(tokens: &[Token]) -> Vec<Question> {
    let mut found = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        let Some(name) = pair[1].word().filter(|_| pair[0].is("fn")) else { continue };
        if !(name.starts_with("is_") || name.starts_with("has_")) {
            continue;
        }
        let signature: Vec<&Token> = tokens[at + 2..]
            .iter()
            .take_while(|token| !token.is("{") && !token.is(";") && !token.is("where"))
            .collect();
        let changes =
            signature.windows(3).any(|three| three[0].is("&") && three[1].is("mut") && three[2].is("self"));
        let arrow = signature.windows(2).rposition(|two| two[0].is("-") && two[1].is(">"));
        let result: Vec<&str> = arrow
            .map(|at| signature[at + 2..].iter().filter_map(|token| token.word()).collect())
            .unwrap_or_default();
        let answers = matches!(result.as_slice(), ["bool"] | ["Option" | "Result", "bool", ..])
            || result.windows(2).any(|two| two == ["Result", "bool"]);
        found.push(Question { name: name.to_owned(), changes, answers });
    }
    found
}

#[test]
fn a_question_is_read_with_what_it_returns() {
    let source = "fn is_a(&self, f: impl Fn(u8) -> u8) -> bool { } async fn is_b() -> Result<bool, E>; fn has_c(&mut self) -> bool {} \
                  fn is_d() { let x: bool; } fn was_e() {}";
    let found = questions(&crate::tokens::tokens(source));
    let plain: Vec<_> = found.iter().map(|question| (question.name.as_str(), question.is_plain())).collect();
    assert_eq!(plain, [("is_a", true), ("is_b", true), ("has_c", false), ("is_d", false)]);
}
