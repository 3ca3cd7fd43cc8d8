//! The password of a guest's default user: text, or a hash of crypt(5) that every cloud-init reads.
//!
//! Errors never quote it.

use sha_crypt::{Algorithm, Params, PasswordHasher, ShaCrypt};

/// The bytes of a salt: 16 characters.
pub const SALT: usize = 12;
/// Five times the default of crypt(5).
const ROUNDS: u32 = 25_000;

/// Whether it is a hash: SHA-256 (`$5$`) or SHA-512 (`$6$`).
pub fn is_hash(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("$5$").or_else(|| text.strip_prefix("$6$")) else { return false };
    let parts: Vec<&str> = rest.split('$').collect();
    let is_base64 = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'/'))
    };
    match parts.as_slice() {
        [salt, hash] => is_base64(salt) && is_base64(hash),
        [rounds, salt, hash] => {
            rounds.strip_prefix("rounds=").is_some_and(|n| n.parse::<u32>().is_ok())
                && is_base64(salt)
                && is_base64(hash)
        }
        _ => false,
    }
}

/// Checks a password, or a hash.
///
/// # Errors
/// The problem, for people.
pub fn check(text: &str) -> Result<(), &'static str> {
    if is_hash(text) {
        return Ok(());
    }
    if text.is_empty() || text.len() > 256 || text.contains(char::is_control) {
        return Err("a password has 1 to 256 bytes, and no line break or other control character");
    }
    let other = ["$1$", "$2a$", "$2b$", "$2y$", "$5$", "$6$", "$7$", "$y$", "$gy$", "$sha1$"];
    if other.iter().any(|start| text.starts_with(start)) {
        return Err(
            "this reads as a hash that not every cloud-init knows: use SHA-512 (mkpasswd -m sha-512)",
        );
    }
    Ok(())
}

/// Checks a hash.
///
/// # Errors
/// The problem, for people.
pub fn check_hash(text: &str) -> Result<(), &'static str> {
    if is_hash(text) {
        Ok(())
    } else {
        Err("this is not a hash as mkpasswd -m sha-512 prints it, which begins with $6$")
    }
}

/// Returns the hash of a password, with a salt that is random; a hash is left as it is.
pub fn hashed(text: &str, salt: [u8; SALT]) -> Option<String> {
    if is_hash(text) {
        return Some(text.to_owned());
    }
    let crypt = ShaCrypt::new(Algorithm::Sha512Crypt, Params::new(ROUNDS).ok()?);
    let hash = crypt.hash_password_with_salt(text.as_bytes(), &salt).ok()?;
    Some(hash.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use sha_crypt::PasswordVerifier;

    use super::*;

    #[test]
    fn a_password_becomes_a_hash_that_it_matches() {
        let hash = hashed("correct horse", [7; SALT]).expect("a hash");
        assert!(hash.starts_with("$6$rounds=25000$") && is_hash(&hash), "{hash}");
        assert!(ShaCrypt::default().verify_password(b"correct horse", hash.as_str()).is_ok());
        assert!(ShaCrypt::default().verify_password(b"wrong", hash.as_str()).is_err());
        assert_ne!(hashed("correct horse", [8; SALT]), Some(hash.clone()));
        assert_eq!(hashed(&hash, [8; SALT]), Some(hash), "once is enough");
    }

    /// Of glibc's own tests (sha512-crypt).
    #[test]
    fn a_known_hash_is_one() {
        let hash = "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1";
        assert!(is_hash(hash) && check(hash).is_ok() && check_hash(hash).is_ok());
        assert!(ShaCrypt::default().verify_password(b"Hello world!", hash).is_ok());
    }

    #[test]
    fn a_text_that_no_guest_could_use_is_refused() {
        for wrong in ["", "a\nb", "$y$j9T$abc$def", "$6$", "$6$a$", "$6$a b$c", "$2b$12$abc"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
        for good in ["hunter2", "$ecret", "pass word", "$6"] {
            assert!(check(good).is_ok() && check_hash(good).is_err(), "{good}");
        }
    }
}
