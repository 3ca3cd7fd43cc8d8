//! Restart tokens: the one that a user declares, beside one that programs set for single restarts.
//!
//! ```text
//! restartToken:   USER   |   terraform-0123456789ab   |   USER+terraform-0123456789ab
//! ```
//!
//! A configuration shows and declares the user's part only, so that a restart by a program leaves its next plan empty.

use sha2::{Digest, Sha256};

/// The prefix of a program's token, followed by [`DIGITS`] hexadecimal digits. Users do not declare it.
pub const PREFIX: &str = "terraform-";
/// The number of digits.
pub const DIGITS: usize = 12;
/// The separator between the two parts.
pub const SEPARATOR: char = '+';

/// Returns a program's token for what was hashed.
#[must_use]
pub fn own(hash: Sha256) -> String {
    let digest = hash.finalize();
    let hex: String = digest.iter().take(DIGITS / 2).map(|byte| format!("{byte:02x}")).collect();
    format!("{PREFIX}{hex}")
}

/// Returns the user's part and the program's part of a token.
#[must_use]
pub fn split(token: &str) -> (Option<&str>, Option<&str>) {
    if is_own(token) {
        return (None, Some(token));
    }
    match token.rsplit_once(SEPARATOR) {
        Some((theirs, own)) if is_own(own) => (Some(theirs), Some(own)),
        _ => (Some(token), None),
    }
}

/// Returns the token with another program's part, which restarts the VM. It differs for each version of the object.
#[must_use]
pub fn another(token: &str, uid: &str, resource_version: &str) -> String {
    let mut hash = Sha256::new();
    for part in [uid, resource_version, token] {
        hash.update(part);
    }
    let own = own(hash);
    match split(token).0.filter(|theirs| !theirs.is_empty()) {
        Some(theirs) => format!("{theirs}{SEPARATOR}{own}"),
        None => own,
    }
}

fn is_own(token: &str) -> bool {
    let digits = token.strip_prefix(PREFIX);
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_token_keeps_the_users_part_and_differs_for_each_version() {
        let first = another("", "u", "1");
        assert_eq!(split(&first), (None, Some(first.as_str())));
        let second = another(&first, "u", "2");
        assert!(second != first && split(&second).0.is_none());
        let theirs = another("a+b", "u", "1");
        assert_eq!(split(&theirs).0, Some("a+b"));
        let again = another(&theirs, "u", "2");
        assert!(again != theirs && split(&again).0 == Some("a+b"));
    }
}
