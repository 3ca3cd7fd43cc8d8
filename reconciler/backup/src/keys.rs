//! The keys of a repository.

use std::fmt;
use std::num::NonZeroU32;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::{hmac, pbkdf2, rand};
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};

use crate::block::BlockId;

/// The length of a tag of AES-GCM.
const TAG: usize = 16;
/// The bytes that sealing adds.
pub(crate) const OVERHEAD: usize = NONCE_LEN + TAG;
/// The length of the two keys.
const LENGTH: usize = 64;

/// A failure of the cryptographic library, or data that does not decrypt.
#[derive(Debug)]
pub(crate) struct Failed;

/// The key that seals objects, and the key of the blocks' ids.
pub(crate) struct Keys {
    seal: RandomizedNonceKey,
    ids: hmac::Key,
}

/// Omits the keys.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

/// The key that the password stands for.
#[derive(Debug)]
pub(crate) struct PasswordKey(RandomizedNonceKey);

impl PasswordKey {
    /// Takes as long as the number of iterations asks for: a fraction of a second.
    pub(crate) fn derive(
        password: &SecretString,
        salt: &[u8],
        iterations: NonZeroU32,
    ) -> Result<Self, Failed> {
        let mut key = Zeroizing::new([0_u8; 32]);
        let password = password.expose_secret().as_bytes();
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, password, &mut *key);
        Ok(Self(RandomizedNonceKey::new(&AES_256_GCM, &*key).map_err(|_| Failed)?))
    }

    /// Creates random keys. Returns them and their sealed form.
    pub(crate) fn create(&self, bound_to: &[u8]) -> Result<(Keys, Vec<u8>), Failed> {
        let mut bytes = Zeroizing::new(vec![0_u8; LENGTH]);
        rand::fill(&mut bytes).map_err(|_| Failed)?;
        Ok((Keys::new(&bytes)?, seal(&self.0, bound_to, &[], &bytes)?))
    }

    /// Decrypts keys that [`PasswordKey::create`] sealed.
    pub(crate) fn open(&self, bound_to: &[u8], sealed: &[u8]) -> Result<Keys, Failed> {
        let mut sealed = Zeroizing::new(sealed.to_vec());
        Keys::new(open(&self.0, bound_to, &mut sealed)?)
    }
}

impl Keys {
    fn new(bytes: &[u8]) -> Result<Self, Failed> {
        let (seal, ids) = bytes.split_at_checked(LENGTH / 2).ok_or(Failed)?;
        if ids.len() != LENGTH / 2 {
            return Err(Failed);
        }
        let seal = RandomizedNonceKey::new(&AES_256_GCM, seal).map_err(|_| Failed)?;
        Ok(Self { seal, ids: hmac::Key::new(hmac::HMAC_SHA256, ids) })
    }

    /// The id of a block with this data.
    pub(crate) fn id(&self, data: &[u8]) -> BlockId {
        let mut id = [0; 32];
        id.copy_from_slice(hmac::sign(&self.ids, data).as_ref());
        BlockId(id)
    }

    /// Returns `head`, nonce, encrypted data and tag.
    pub(crate) fn seal(&self, bound_to: &[u8], head: &[u8], data: &[u8]) -> Result<Vec<u8>, Failed> {
        seal(&self.seal, bound_to, head, data)
    }

    /// Decrypts a nonce, encrypted data and tag.
    pub(crate) fn open<'a>(&self, bound_to: &[u8], sealed: &'a mut [u8]) -> Result<&'a [u8], Failed> {
        open(&self.seal, bound_to, sealed)
    }
}

fn seal(key: &RandomizedNonceKey, bound_to: &[u8], head: &[u8], data: &[u8]) -> Result<Vec<u8>, Failed> {
    let start = head.len() + NONCE_LEN;
    let mut sealed = Vec::with_capacity(start + data.len() + TAG);
    sealed.extend_from_slice(head);
    sealed.resize(start, 0);
    sealed.extend_from_slice(data);
    let (nonce, tag) =
        key.seal_in_place_separate_tag(Aad::from(bound_to), &mut sealed[start..]).map_err(|_| Failed)?;
    sealed[head.len()..start].copy_from_slice(nonce.as_ref());
    sealed.extend_from_slice(tag.as_ref());
    Ok(sealed)
}

fn open<'a>(key: &RandomizedNonceKey, bound_to: &[u8], sealed: &'a mut [u8]) -> Result<&'a [u8], Failed> {
    let (nonce, data) = sealed.split_at_mut_checked(NONCE_LEN).ok_or(Failed)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Failed)?;
    key.open_in_place(nonce, Aad::from(bound_to), data).map(|data| &*data).map_err(|_| Failed)
}
