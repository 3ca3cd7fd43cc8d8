//! A cache of compiled regular expressions: the interpreter would compile them for every value.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use kube_cel::cel::ExecutionError;
use regex::{Regex, RegexBuilder};

/// The maximum number of cached patterns, far more than the rules of all definitions have. Patterns may also
/// come from objects: when the cache is full, it is cleared.
const KEPT: usize = 512;

static COMPILED: RwLock<Option<HashMap<String, Regex>>> = RwLock::new(None);

/// The maximum size of a compiled pattern in bytes.
const MAX_SIZE: usize = 1 << 20;
/// The cost of a compilation in turns.
const TURNS: i64 = 500;

/// Passes the compiled pattern to `look`; the first use of a pattern costs more.
///
/// *Errors:* the pattern is invalid, or the budget is spent.
pub(super) fn with<T>(pattern: &str, look: impl FnOnce(&Regex) -> T) -> Result<T, ExecutionError> {
    let kept = COMPILED.read().unwrap_or_else(PoisonError::into_inner);
    // Not cloned: a clone starts with an empty cache of its own.
    if let Some(found) = kept.as_ref().and_then(|kept| kept.get(pattern)) {
        return Ok(look(found));
    }
    drop(kept);
    super::spend(TURNS)?;
    let new = RegexBuilder::new(pattern).size_limit(MAX_SIZE).build().map_err(|error| {
        ExecutionError::function_error("matches", format!("'{pattern}' not a valid regex:\n{error}"))
    })?;
    let made = look(&new);
    let mut kept = COMPILED.write().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    if kept.len() >= KEPT {
        kept.clear();
    }
    kept.insert(pattern.to_owned(), new);
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::expression::with_budget;

    fn is_match(pattern: &str, text: &str) -> Result<bool, ExecutionError> {
        with_budget(TURNS, || with(pattern, |regex| regex.is_match(text)))
    }

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
