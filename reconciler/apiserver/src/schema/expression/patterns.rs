//! Regular expressions of `matches`, compiled once: the interpreter would compile them for every value.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use regex::Regex;

/// Far more than the rules of all definitions have. Patterns may also come from objects: then all are forgotten.
const KEPT: usize = 512;

static COMPILED: RwLock<Option<HashMap<String, Regex>>> = RwLock::new(None);

/// Whether the text has a match.
///
/// *Errors:* the pattern is none.
pub(super) fn is_match(pattern: &str, text: &str) -> Result<bool, regex::Error> {
    let kept = COMPILED.read().unwrap_or_else(PoisonError::into_inner);
    // Not cloned: a clone begins with an empty cache of its own.
    if let Some(found) = kept.as_ref().and_then(|kept| kept.get(pattern)) {
        return Ok(found.is_match(text));
    }
    drop(kept);
    let new = Regex::new(pattern)?;
    let matches = new.is_match(text);
    let mut kept = COMPILED.write().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    if kept.len() >= KEPT {
        kept.clear();
    }
    kept.insert(pattern.to_owned(), new);
    Ok(matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_means_the_same_the_second_time_and_what_is_kept_is_bounded() {
        for _ in 0..2 {
            assert!(is_match("^[a-z]+$", "abc").unwrap());
            assert!(!is_match("^[a-z]+$", "ABC").unwrap());
            assert!(is_match("[", "").is_err());
        }
        for number in 0..KEPT * 2 {
            assert!(is_match(&format!("^n{number}$"), &format!("n{number}")).unwrap());
        }
        let kept = COMPILED.read().unwrap().as_ref().map_or(0, HashMap::len);
        assert!(kept <= KEPT, "{kept}");
    }
}
