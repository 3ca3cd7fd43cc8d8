//! The keys Secrets are encrypted under: a file beside the database, 0600, one key a line in hex, the last one in use.
//!
//! A key is told by an id made from it, which stands in every row it sealed: a wrong key is noticed before anything is
//! read with it. There is more than one only while a rotation is under way.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use sha2::{Digest as _, Sha256};

use super::OpenError;
use super::key::Key;
use crate::credentials::write_private;

/// The file's name, in the state directory.
pub(crate) const KEY_FILE: &str = "secrets.key";
/// The storage resource whose objects are encrypted.
pub(super) const SEALED: &str = "/secrets";
/// Bytes of a key.
const LENGTH: usize = 32;
/// A rotation leaves two.
const MAX_KEYS: usize = 8;

struct Sealing {
    id: i64,
    bytes: [u8; LENGTH],
    /// Nonces are random: at 2^32 rows under one key (AES-GCM's limit) it would have to be rotated.
    key: RandomizedNonceKey,
}

/// The keys of one database; the last one seals.
pub(crate) struct Keyring {
    keys: Vec<Sealing>,
}

/// Without the keys.
impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| key.id)).finish()
    }
}

/// What a row is bound to: bytes moved to another object or another revision do not open.
fn bound_to(key: &Key, revision: u64) -> Vec<u8> {
    let mut bound = Vec::new();
    for part in [key.resource.as_bytes(), key.namespace.as_bytes(), key.name.as_bytes()] {
        bound.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bound.extend_from_slice(part);
    }
    bound.extend_from_slice(&revision.to_be_bytes());
    bound
}

impl Sealing {
    fn new(bytes: [u8; LENGTH]) -> io::Result<Self> {
        let key = RandomizedNonceKey::new(&AES_256_GCM, &bytes).map_err(io::Error::other)?;
        let mut digest = Sha256::new();
        digest.update(b"berth secrets key id");
        digest.update(bytes);
        let digest = digest.finalize();
        let mut id = [0_u8; 8];
        id.copy_from_slice(&digest[..8]);
        // Positive, and never 0, which says that a row is not encrypted.
        Ok(Self { id: (i64::from_be_bytes(id) & i64::MAX).max(1), bytes, key })
    }

    fn random() -> io::Result<Self> {
        let mut bytes = [0_u8; LENGTH];
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| io::Error::other("no randomness"))?;
        Self::new(bytes)
    }
}

impl Keyring {
    /// A key that is gone with the process, for a database that is too.
    pub(super) fn ephemeral() -> io::Result<Self> {
        Ok(Self { keys: vec![Sealing::random()?] })
    }

    /// Reads the key file beside a database, or makes it where nothing was ever sealed.
    ///
    /// `needed` are the ids of the keys the database was written with.
    pub(super) fn open(directory: &Path, needed: &[i64]) -> Result<Self, OpenError> {
        let path = directory.join(KEY_FILE);
        let unusable = |detail: String| OpenError::Key { path: path.clone(), detail };
        let ring = match Self::read(&path) {
            Ok(ring) => ring,
            Err(error) if error.kind() == io::ErrorKind::NotFound && needed.is_empty() => {
                let ring = Self::ephemeral().map_err(|e| unusable(e.to_string()))?;
                ring.write(&path).map_err(|e| unusable(format!("it cannot be made: {e}")))?;
                return Ok(ring);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(unusable(
                    "it is missing, and Secrets in the database are encrypted with it; put the copy of it back"
                        .into(),
                ));
            }
            Err(error) => return Err(unusable(error.to_string())),
        };
        match needed.iter().find(|id| ring.find(**id).is_none()) {
            None => Ok(ring),
            Some(id) => Err(unusable(format!(
                "it is not this database's: Secrets are encrypted with key {id:016x}, it holds {}; put the right one \
                 back",
                ring.ids()
            ))),
        }
    }

    /// Reads a key file.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let file = fs::File::open(path)?;
        let mode = file.metadata()?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(io::Error::other(format!(
                "others may read it (mode {:o}): chmod 600 it, and rotate the key if they may have",
                mode & 0o777
            )));
        }
        Self::parse(&io::read_to_string(file)?)
    }

    /// From the content of a key file.
    pub(super) fn parse(text: &str) -> io::Result<Self> {
        let damaged = || io::Error::other("it is damaged: every line must be 64 hexadecimal digits");
        let lines = text.lines().filter(|line| !line.is_empty());
        let keys: Vec<Sealing> =
            lines.map(|line| Sealing::new(unhex(line).ok_or_else(damaged)?)).collect::<io::Result<_>>()?;
        if keys.is_empty() || keys.len() > MAX_KEYS {
            return Err(damaged());
        }
        Ok(Self { keys })
    }

    /// Writes the key file in one step.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        write_private(path, self.text().as_bytes())?;
        path.parent().map_or(Ok(()), |directory| fs::File::open(directory)?.sync_all())
    }

    /// The content of the key file.
    pub(super) fn text(&self) -> String {
        let hex =
            |key: &Sealing| key.bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
        self.keys.iter().map(hex).collect()
    }

    /// A ring with one more key, which seals from now on.
    pub(super) fn with_new(&self) -> io::Result<Self> {
        let mut keys: Vec<Sealing> =
            self.keys.iter().map(|key| Sealing::new(key.bytes)).collect::<io::Result<_>>()?;
        keys.push(Sealing::random()?);
        Ok(Self { keys })
    }

    /// A ring of the key that seals, alone.
    pub(super) fn newest(&self) -> io::Result<Self> {
        Ok(Self { keys: vec![Sealing::new(self.current().bytes)?] })
    }

    fn current(&self) -> &Sealing {
        self.keys.last().expect("a ring is never made without a key")
    }

    fn find(&self, id: i64) -> Option<&Sealing> {
        self.keys.iter().find(|key| key.id == id)
    }

    /// The id of the key that seals.
    pub(super) fn id(&self) -> i64 {
        self.current().id
    }

    /// Whether rows under this key can be opened.
    pub(super) fn has(&self, id: i64) -> bool {
        self.find(id).is_some()
    }

    fn ids(&self) -> String {
        self.keys.iter().map(|key| format!("{:016x}", key.id)).collect::<Vec<_>>().join(", ")
    }

    /// Encrypts the text of one revision of one object: nonce, ciphertext, tag.
    pub(super) fn seal(&self, key: &Key, revision: u64, text: &[u8]) -> Option<Vec<u8>> {
        let mut sealed = text.to_vec();
        let aad = Aad::from(bound_to(key, revision));
        let nonce = self.current().key.seal_in_place_append_tag(aad, &mut sealed).ok()?;
        Some([nonce.as_ref().as_slice(), &sealed].concat())
    }

    /// Decrypts what [`Self::seal`] made; `None` if the key is unknown or anything was changed.
    pub(super) fn open_sealed(&self, id: i64, key: &Key, revision: u64, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = sealed.to_vec();
        let aad = Aad::from(bound_to(key, revision));
        let length = self.find(id)?.key.open_in_place(nonce, aad, &mut text).ok()?.len();
        text.truncate(length);
        Some(text)
    }
}

/// Where a replaced key is kept, for backups made under it.
pub(super) fn retired(directory: &Path, id: i64) -> PathBuf {
    directory.join(format!("{KEY_FILE}.retired-{id:016x}"))
}

fn unhex(text: &str) -> Option<[u8; LENGTH]> {
    let mut out = [0_u8; LENGTH];
    if text.len() != 2 * LENGTH || !text.is_ascii() {
        return None;
    }
    for (at, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(out)
}
