//! `repository.json`: the parameters of a repository, and its keys, sealed with the password.

use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::block::BLOCK_SIZE;
use crate::error::{Error, Result};
use crate::keys::{Failed, Keys, PasswordKey};

/// The name of the object.
pub(crate) const NAME: &str = "repository.json";
/// The maximum length of the object.
pub(crate) const MAX_LENGTH: usize = 16 << 10;
/// The iterations for new repositories.
pub(crate) const ITERATIONS: NonZeroU32 = NonZeroU32::new(600_000).expect("not zero");
/// The maximum that a repository may ask for: the time of some seconds.
const MAX_ITERATIONS: u32 = 20_000_000;

const FORMAT: &str = "berth-backup";
const VERSION: u64 = 1;
const KDF: &str = "PBKDF2-HMAC-SHA256";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RepositoryFile {
    format: String,
    version: u64,
    id: String,
    block_size: usize,
    kdf: Kdf,
    keys: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Kdf {
    name: String,
    salt: String,
    iterations: NonZeroU32,
}

/// An opened repository.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) identity: Identity,
    pub(crate) keys: Keys,
}

/// The id of a repository, and its keys as they are sealed: no other repository has both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: Uuid,
    keys: String,
}

impl Identity {
    /// Reads the identity in a file without its password. `place` is for errors.
    pub(crate) fn of(json: &[u8], place: &str) -> Result<Self> {
        let value = serde_json::from_slice::<serde_json::Value>(json).ok();
        let text = |name: &str| value.as_ref()?.get(name)?.as_str();
        let id = text("id").and_then(|id| Uuid::parse_str(id).ok());
        match (id, text("keys")) {
            (Some(id), Some(keys)) => Ok(Self { id, keys: keys.to_owned() }),
            _ => {
                Err(Error::Damaged { place: place.to_owned(), detail: "it has no id or no keys".to_owned() })
            }
        }
    }
}

impl RepositoryFile {
    /// The data that the tag of the keys also authenticates.
    fn bound_to(&self) -> Vec<u8> {
        let Kdf { salt, iterations, .. } = &self.kdf;
        format!("{FORMAT}/{VERSION}/repository/{}/{}/{salt}/{iterations}", self.id, self.block_size)
            .into_bytes()
    }
}

/// Returns the contents of a new file, with new keys. `place` is for errors.
pub(crate) fn create(password: &SecretString, iterations: NonZeroU32, place: &str) -> Result<Vec<u8>> {
    check(password)?;
    let failed = |_| Error::Cryptography { place: place.to_owned() };
    let mut salt = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut salt).map_err(|_| failed(Failed))?;
    let kdf = Kdf { name: KDF.to_owned(), salt: BASE64.encode(salt), iterations };
    let (format, id, keys) = (FORMAT.to_owned(), Uuid::new_v4().to_string(), String::new());
    let mut file = RepositoryFile { format, version: VERSION, id, block_size: BLOCK_SIZE, kdf, keys };
    let key = PasswordKey::derive(password, &salt, iterations).map_err(failed)?;
    let (_, sealed) = key.create(&file.bound_to()).map_err(failed)?;
    file.keys = BASE64.encode(sealed);
    let mut json = serde_json::to_vec_pretty(&file).expect("texts and numbers");
    json.push(b'\n');
    Ok(json)
}

/// Decrypts the keys in a file. `place` is for errors.
pub(crate) fn open(json: &[u8], password: &SecretString, place: &str) -> Result<Opened> {
    check(password)?;
    let damaged = |detail: &str| Error::Damaged { place: place.to_owned(), detail: detail.to_owned() };
    // Later versions may have other fields.
    let value: serde_json::Value = serde_json::from_slice(json).map_err(|_| damaged("it is not JSON"))?;
    if value["format"] != FORMAT {
        return Err(damaged("it is not of a repository of backups"));
    }
    let version = value["version"].as_u64().ok_or_else(|| damaged("it has no version"))?;
    if version != VERSION {
        return Err(Error::Version { place: place.to_owned(), version });
    }
    let file: RepositoryFile =
        serde_json::from_value(value).map_err(|error| damaged(&format!("it has wrong fields: {error}")))?;
    if file.kdf.name != KDF || file.kdf.iterations.get() > MAX_ITERATIONS || file.block_size != BLOCK_SIZE {
        return Err(damaged("its parameters are not those of version 1 of the format"));
    }
    let id = Uuid::parse_str(&file.id).map_err(|_| damaged("its id is not a UUID"))?;
    let salt = BASE64.decode(&file.kdf.salt).map_err(|_| damaged("the salt is not base64"))?;
    let sealed = BASE64.decode(&file.keys).map_err(|_| damaged("the keys are not base64"))?;
    let keys = PasswordKey::derive(password, &salt, file.kdf.iterations)
        .and_then(|key| key.open(&file.bound_to(), &sealed))
        .map_err(|Failed| Error::Password { place: place.to_owned(), id })?;
    Ok(Opened { identity: Identity { id, keys: file.keys }, keys })
}

fn check(password: &SecretString) -> Result<()> {
    match password.expose_secret().is_empty() {
        true => Err(Error::NoPassword),
        false => Ok(()),
    }
}
