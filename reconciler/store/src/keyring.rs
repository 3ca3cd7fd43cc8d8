//! The encryption keys of Secrets: a file beside the database with mode 0600, one key per line in hex, the
//! last one in use.
//!
//! A key is identified by an id derived from it, which every encrypted row contains: a wrong key is detected
//! before any data is decrypted with it. There is more than one key only during a rotation.

use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use sha2::{Digest as _, Sha256};

use crate::error::OpenError;
use crate::key::Key;
use crate::private_file::write_private;

/// The name of the key file in the state directory.
pub(crate) const KEY_FILE: &str = "secrets.key";
/// The storage resource with encrypted objects.
pub(crate) const SEALED: &str = "/secrets";
/// The length of a key in bytes.
const LENGTH: usize = 32;
/// The maximum number of keys in the file; a rotation needs two.
const MAX_KEYS: usize = 8;
/// The maximum number of bytes of the file that are read. Some of them may be empty lines.
const MAX_FILE: u64 = 64 << 10;

/// The maximum number of files with replaced keys that are read.
const MAX_KEPT: usize = 1000;

struct Sealing {
    id: i64,
    bytes: [u8; LENGTH],
    /// Nonces are random: at 2^32 rows under one key (the limit of AES-GCM) the key would have to be rotated.
    key: RandomizedNonceKey,
}

/// The keys of one database; the last one encrypts.
pub(crate) struct Keyring {
    keys: Vec<Sealing>,
}

/// Omits the keys.
impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| key.id)).finish()
    }
}

/// The associated data of a row: ciphertext moved to another object or another revision does not decrypt.
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
        // Positive, and never 0, which marks a row that is not encrypted.
        Ok(Self { id: (i64::from_be_bytes(id) & i64::MAX).max(1), bytes, key })
    }

    fn random() -> io::Result<Self> {
        let mut bytes = [0_u8; LENGTH];
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| io::Error::other("no randomness"))?;
        Self::new(bytes)
    }
}

impl Keyring {
    /// Creates a key that exists only in memory, for a database in memory.
    pub(crate) fn ephemeral() -> io::Result<Self> {
        Ok(Self { keys: vec![Sealing::random()?] })
    }

    /// Reads the key file beside a database, or creates it if no row was ever encrypted.
    ///
    /// `needed` are the ids of the keys with which the database was written.
    pub(crate) fn open(directory: &Path, needed: &[i64]) -> Result<Self, OpenError> {
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
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let file = fs::File::open(path)?;
        let mode = file.metadata()?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(io::Error::other(format!(
                "others may read it (mode {:o}): chmod 600 it, and rotate the key if they may have",
                mode & 0o777
            )));
        }
        Self::parse(&io::read_to_string(file.take(MAX_FILE))?)
    }

    /// Parses the content of a key file.
    pub(crate) fn parse(text: &str) -> io::Result<Self> {
        let damaged = || io::Error::other("it is damaged: every line must be 64 hexadecimal digits");
        let lines = text.lines().filter(|line| !line.is_empty());
        let keys: Vec<Sealing> =
            lines.map(|line| Sealing::new(unhex(line).ok_or_else(damaged)?)).collect::<io::Result<_>>()?;
        if keys.is_empty() || keys.len() > MAX_KEYS {
            return Err(damaged());
        }
        Ok(Self { keys })
    }

    /// Writes the key file atomically.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        write_private(path, self.text().as_bytes())?;
        path.parent().map_or(Ok(()), |directory| fs::File::open(directory)?.sync_all())
    }

    /// Returns the content of the key file.
    pub(crate) fn text(&self) -> String {
        let hex =
            |key: &Sealing| key.bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
        self.keys.iter().map(hex).collect()
    }

    /// Returns a keyring with an additional key, which encrypts from now on.
    pub(crate) fn with_new(&self) -> io::Result<Self> {
        let mut keys: Vec<Sealing> =
            self.keys.iter().map(|key| Sealing::new(key.bytes)).collect::<io::Result<_>>()?;
        keys.push(Sealing::random()?);
        Ok(Self { keys })
    }

    /// Returns a keyring with only the key that encrypts.
    pub(crate) fn newest(&self) -> io::Result<Self> {
        Ok(Self { keys: vec![Sealing::new(self.current().bytes)?] })
    }

    fn current(&self) -> &Sealing {
        self.keys.last().expect("a ring is never made without a key")
    }

    fn find(&self, id: i64) -> Option<&Sealing> {
        self.keys.iter().find(|key| key.id == id)
    }

    /// Returns the id of the key that encrypts.
    pub(crate) fn id(&self) -> i64 {
        self.current().id
    }

    /// Whether it has every key of another one.
    pub(crate) fn has_all(&self, other: &Self) -> bool {
        other.keys.iter().all(|key| self.has(key.id))
    }

    /// Whether rows encrypted with this key can be decrypted.
    pub(crate) fn has(&self, id: i64) -> bool {
        self.find(id).is_some()
    }

    fn ids(&self) -> String {
        self.keys.iter().map(|key| format!("{:016x}", key.id)).collect::<Vec<_>>().join(", ")
    }

    /// Encrypts the text of one revision of one object; returns nonce, ciphertext, tag.
    pub(crate) fn seal(&self, key: &Key, revision: u64, text: &[u8]) -> Option<Vec<u8>> {
        let mut sealed = text.to_vec();
        let aad = Aad::from(bound_to(key, revision));
        let nonce = self.current().key.seal_in_place_append_tag(aad, &mut sealed).ok()?;
        Some([nonce.as_ref().as_slice(), &sealed].concat())
    }

    /// Decrypts the result of [`Self::seal`]; `None` if the key is unknown or any input was changed.
    pub(crate) fn open_sealed(&self, id: i64, key: &Key, revision: u64, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = sealed.to_vec();
        let aad = Aad::from(bound_to(key, revision));
        let length = self.find(id)?.key.open_in_place(nonce, aad, &mut text).ok()?.len();
        text.truncate(length);
        Some(text)
    }
}

/// Keeps keys that are about to be replaced, for backups made with them; returns the file.
pub(crate) fn retire(directory: &Path, keys: &Keyring) -> io::Result<PathBuf> {
    let path = directory.join(format!("{KEY_FILE}.retired-{:016x}", keys.id()));
    // The file of an earlier replacement may have further keys.
    if !Keyring::read(&path).is_ok_and(|kept| kept.has_all(keys)) {
        keys.write(&path)?;
    }
    Ok(path)
}

/// Returns the replaced keys that are kept in a directory; files that cannot be read are left out.
pub(crate) fn kept_keys(directory: &Path) -> Vec<Keyring> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let is_kept = |name: &str| name.strip_prefix(KEY_FILE).is_some_and(|rest| rest.starts_with('.'));
    let kept = entries.flatten().filter(|entry| is_kept(&entry.file_name().to_string_lossy()));
    kept.take(MAX_KEPT).filter_map(|entry| Keyring::read(&entry.path()).ok()).collect()
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
