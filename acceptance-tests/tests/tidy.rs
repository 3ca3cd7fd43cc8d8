//! The rules for names and language: comments and messages are plain technical English, and names are the field's own. A page
//! that names tests names tests that exist.

#[path = "tidy/compared.rs"]
mod compared;
#[path = "tidy/language.rs"]
mod language;
#[path = "tidy/names.rs"]
mod names;
#[path = "layout/tokens.rs"]
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use compared::Named;
use language::Counts;
use names::{Names, RENAMED};
use tokens::{Lexeme, lexemes, tokens};

/// The folder of this test's own modules.
const OWN: &str = "acceptance-tests/tests/tidy";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Returns all files below the folder with this extension, without those that are built.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the workspace") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found
}

/// Whether the file consists of tests.
fn is_test(file: &Path) -> bool {
    file.ends_with("tests.rs") || file.ancestors().any(|folder| folder.ends_with("tests"))
}

/// Returns the folder of the crate that the file belongs to, relative to the workspace.
fn crate_of(file: &Path) -> String {
    let folder = file.ancestors().skip(1).find(|folder| folder.join("Cargo.toml").exists());
    let folder = folder.expect("every source file belongs to a crate");
    folder.strip_prefix(root()).expect("a folder of the workspace").display().to_string()
}

fn source(file: &Path) -> String {
    fs::read_to_string(file).expect("a source file")
}

#[test]
fn comments_and_messages_are_plain_english() {
    let mut comments: BTreeMap<String, Counts> = BTreeMap::new();
    let mut messages: BTreeMap<String, Counts> = BTreeMap::new();
    // The lists of words that are counted are in the files of this test.
    for file in files(&root(), "rs").into_iter().filter(|file| !file.starts_with(root().join(OWN))) {
        let (of, place) = (crate_of(&file), file.display().to_string());
        for lexeme in lexemes(&source(&file)) {
            match lexeme {
                Lexeme::Comment(text) => comments.entry(of.clone()).or_default().add(text, &place),
                // Only texts that users read.
                Lexeme::Text(text) if !is_test(&file) => {
                    messages.entry(of.clone()).or_default().add(text, &place)
                }
                Lexeme::Text(_) | Lexeme::Token(_) => {}
            }
        }
    }
    let mut pages: BTreeMap<String, Counts> = BTreeMap::new();
    for file in files(&root(), "md") {
        let place = file.display().to_string();
        source(&file).lines().for_each(|line| pages.entry("pages".into()).or_default().add(line, &place));
    }
    let mut found = Vec::new();
    for (what, counted) in [("comments", comments), ("messages", messages), ("", pages)] {
        for (of, counts) in counted {
            found.extend(counts.excess().map(|excess| format!("{of} {what}: {excess}")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn names_are_those_of_the_field() {
    let mut found = Vec::new();
    let mut names = Names::default();
    for file in files(&root(), "rs") {
        names.add(
            &tokens(&source(&file)),
            &file.strip_prefix(root()).expect("of the workspace").display().to_string(),
        );
    }
    for (former, now) in RENAMED {
        let places = names.places(former);
        if !places.is_empty() {
            found.push(format!("`{former}` is `{now}`: {}", places.join(", ")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_type_name_that_several_crates_could_use_has_one_meaning() {
    let mut names = Names::default();
    for file in files(&root(), "rs") {
        names.add(
            &tokens(&source(&file)),
            &file.strip_prefix(root()).expect("of the workspace").display().to_string(),
        );
    }
    for name in ["Kind", "Refusal", "Standing"] {
        let places = names.definitions(name);
        assert!(places.len() <= 1, "{name} is defined several times: {places:?}");
    }
}

#[test]
fn a_question_returns_a_bool_and_changes_nothing() {
    let mut found = Vec::new();
    for file in files(&root(), "rs") {
        let place = file.strip_prefix(root()).expect("of the workspace").display().to_string();
        let questions = names::questions(&tokens(&source(&file)));
        let wrong = questions.into_iter().filter(|question| !question.is_plain());
        found.extend(wrong.map(|question| format!("{place}: {}", question.name)));
    }
    assert!(
        found.is_empty(),
        "functions called is_ or has_ that do more than return a bool:\n{}",
        found.join("\n")
    );
}

#[test]
fn every_row_of_the_comparison_names_tests_that_exist() {
    let folder = root().join("docs");
    let page = source(&folder.join("compared.md"));
    let mut found: Vec<String> = compared::rows_without_a_test(&page)
        .into_iter()
        .map(|row| format!("a row names no test: {row}"))
        .collect();
    let mut tests: BTreeMap<String, BTreeSet<Named>> = BTreeMap::new();
    let references: Vec<_> = page.lines().flat_map(compared::references).collect();
    assert!(!references.is_empty(), "the page names no test");
    for compared::Reference { named, file } in references {
        let of_file = tests.entry(file.clone()).or_insert_with(|| {
            fs::read_to_string(folder.join(&file)).map(|text| compared::tests_of(&text)).unwrap_or_default()
        });
        if named.as_ref().is_none_or(|named| !of_file.contains(named)) {
            found.push(format!("{file} has no {named:?}"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
