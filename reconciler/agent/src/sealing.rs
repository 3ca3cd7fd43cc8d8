//! The keys of encrypted disks, sealed with the key of a KeyClass: AES-256-GCM, bound to the identifier of the disk's key. Pure.
//!
//! ```text
//!  key of a class ──hash──▶ its identifier         key of a disk ──hash──▶ its identifier
//!        └───────────────────── seals ────────────────────▲
//! ```
//!
//! Keys are random and have 256 bits, so that their hashes reveal nothing about them.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use berth_host::SealedKey;
use berth_qemu::machine::{DISK_KEY_LENGTH, DiskKey};
use sha2::{Digest, Sha256};

/// The source of the keys of classes.
const PROVIDER: &str = "Secret";
/// The length of the key of a class, in bytes.
const LENGTH: usize = 32;
/// The bytes of a hash that an identifier has.
const ID: usize = 16;

/// The key of a class. Never printed.
pub(crate) struct WrappingKey {
    key: RandomizedNonceKey,
    pub(crate) id: String,
    /// `NAMESPACE/NAME` of the KeyClass.
    pub(crate) class: String,
}

impl fmt::Debug for WrappingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrappingKey")
            .field("class", &self.class)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl WrappingKey {
    /// *Errors*: what is wrong with the text, without any of it.
    pub(crate) fn parse(class: &str, text: &str) -> Result<Self, String> {
        let wrong =
            || format!("it is not {LENGTH} bytes in base64, as `openssl rand -base64 {LENGTH}` prints them");
        let bytes =
            BASE64.decode(text.trim()).ok().filter(|bytes| bytes.len() == LENGTH).ok_or_else(wrong)?;
        let key = RandomizedNonceKey::new(&AES_256_GCM, &bytes).map_err(|_| wrong())?;
        Ok(Self { key, id: identifier(b"berth.dev key of a class", &bytes), class: class.to_owned() })
    }

    /// Seals the key of a disk for the n-th time.
    ///
    /// *Errors*: the random number generator of the system fails.
    pub(crate) fn seal(&self, key: &DiskKey, generation: u32) -> Result<SealedKey, String> {
        let id = id_of_disk_key(key);
        let mut sealed = vec![0; NONCE_LEN];
        sealed.extend_from_slice(key.bytes());
        let done = self.key.seal_in_place_separate_tag(Aad::from(id.as_bytes()), &mut sealed[NONCE_LEN..]);
        let (nonce, tag) = done.map_err(|_| "the key of the disk cannot be sealed".to_owned())?;
        sealed[..NONCE_LEN].copy_from_slice(nonce.as_ref().as_slice());
        sealed.extend_from_slice(tag.as_ref());
        Ok(SealedKey {
            id,
            provider: PROVIDER.to_owned(),
            wrapped_by: self.class.clone(),
            wrapping_key_id: self.id.clone(),
            generation,
            sealed: BASE64.encode(sealed),
        })
    }

    /// *Errors*: it was sealed with another key, or is damaged; for people.
    pub(crate) fn open(&self, sealed: &SealedKey) -> Result<DiskKey, String> {
        if sealed.wrapping_key_id != self.id {
            return Err(format!(
                "the key of KeyClass {} is {}, and the key of the disk is protected by {}",
                self.class, self.id, sealed.wrapping_key_id
            ));
        }
        let damaged = || "the protected key of the disk is damaged on its host".to_owned();
        let mut bytes = BASE64.decode(&sealed.sealed).map_err(|_| damaged())?;
        let (nonce, data) = bytes.split_at_mut_checked(NONCE_LEN).ok_or_else(damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged())?;
        let opened = self.key.open_in_place(nonce, Aad::from(sealed.id.as_bytes()), data);
        let opened: &[u8] = opened.map_err(|_| damaged())?;
        <[u8; DISK_KEY_LENGTH]>::try_from(opened).map(DiskKey::new).map_err(|_| damaged())
    }
}

/// Returns a new key for a disk.
///
/// *Errors*: the random number generator of the system fails.
pub(crate) fn new_disk_key() -> Result<DiskKey, String> {
    let mut bytes = [0; DISK_KEY_LENGTH];
    rand::fill(&mut bytes).map_err(|_| "the system has no random numbers".to_owned())?;
    Ok(DiskKey::new(bytes))
}

/// Returns the identifier of the key of a disk.
pub(crate) fn id_of_disk_key(key: &DiskKey) -> String {
    identifier(b"berth.dev key of a disk", key.bytes())
}

/// Returns the identifier of a key that a Vault has: by its name, as the key itself is not known.
pub(crate) fn id_of_vault_key(namespace: Option<&str>, mount: &str, key: &str) -> String {
    let name = format!("{}\0{mount}\0{key}", namespace.unwrap_or_default());
    identifier(b"berth.dev key of a Vault", name.as_bytes())
}

fn identifier(of: &[u8], key: &[u8]) -> String {
    let digest = Sha256::new().chain_update(of).chain_update([0_u8]).chain_update(key).finalize();
    digest.iter().take(ID).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, byte: u8) -> WrappingKey {
        WrappingKey::parse(name, &BASE64.encode([byte; LENGTH])).expect("a key")
    }

    #[test]
    fn the_key_of_a_class_is_32_bytes_in_base64_and_is_never_part_of_a_message() {
        for wrong in ["", "canary", "Y2FuYXJ5", &BASE64.encode([1; 33])] {
            let error = WrappingKey::parse("ns/a", wrong).expect_err("no key");
            assert!(error.contains("openssl rand -base64 32") && !error.contains("canary"), "{error}");
        }
        let text = BASE64.encode([1; LENGTH]);
        let key = WrappingKey::parse("ns/a", &format!("{text}\n")).expect("a key");
        assert!(!format!("{key:?}").contains(&text));
        assert_eq!(key.id, class("ns/b", 1).id, "of the key alone");
    }

    #[test]
    fn a_sealed_key_opens_with_the_same_key_only_and_not_once_it_was_changed() {
        let (own, other) = (class("ns/a", 1), class("ns/b", 2));
        let key = new_disk_key().expect("random");
        let sealed = own.seal(&key, 1).expect("sealed");
        assert_eq!((sealed.wrapped_by.as_str(), sealed.generation), ("ns/a", 1));
        assert_eq!(own.open(&sealed), Ok(key.clone()));
        assert!(other.open(&sealed).is_err_and(|error| error.contains("is protected by")));
        let again = other.seal(&own.open(&sealed).expect("opened"), 2).expect("sealed");
        assert_eq!((again.id.as_str(), other.open(&again)), (sealed.id.as_str(), Ok(key)));
        let mut bytes = BASE64.decode(&sealed.sealed).expect("base64");
        *bytes.last_mut().expect("not empty") ^= 1;
        for damaged in [BASE64.encode(&bytes), "AAAA".to_owned(), "?".to_owned()] {
            assert!(own.open(&SealedKey { sealed: damaged, ..sealed.clone() }).is_err());
        }
        assert!(own.open(&SealedKey { id: "of-another-disk".into(), ..sealed }).is_err());
    }
}
