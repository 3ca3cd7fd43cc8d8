//! Sealed objects: compressed, encrypted, bound to their name. The format is in the documentation of the crate.

use crate::keys::{Failed, Keys, OVERHEAD};

const VERSION: u8 = 1;
const STORED: u8 = 0;
const ZSTD: u8 = 1;
/// The level of compression: higher ones need several times the processor's time for a few percent.
const LEVEL: i32 = 1;
/// Version, compression, length.
const HEAD: usize = 6;

/// The minimum length of a sealed object.
pub(crate) const MIN_LENGTH: usize = HEAD + OVERHEAD;

/// The maximum length of a sealed object with this length of plain data.
pub(crate) fn max_length(plain: usize) -> usize {
    plain + MIN_LENGTH
}

/// The data that the tag of an object also authenticates.
fn bound_to(name: &str, head: &[u8]) -> Vec<u8> {
    let mut bound = format!("berth-backup/1/{name}").into_bytes();
    bound.extend_from_slice(head);
    bound
}

/// Compresses and encrypts an object. `name` is its kind and its ids.
pub(crate) fn seal(keys: &Keys, name: &str, plain: &[u8]) -> Result<Vec<u8>, Failed> {
    let length = u32::try_from(plain.len()).map_err(|_| Failed)?;
    let compressed = zstd::bulk::compress(plain, LEVEL).map_err(|_| Failed)?;
    let (compression, data) =
        if compressed.len() < plain.len() { (ZSTD, compressed.as_slice()) } else { (STORED, plain) };
    let mut head = vec![VERSION, compression];
    head.extend_from_slice(&length.to_le_bytes());
    keys.seal(&bound_to(name, &head), &head, data)
}

/// Decrypts an object with at most `max` bytes of plain data. The error explains why it is not as it was written.
pub(crate) fn open(keys: &Keys, name: &str, mut sealed: Vec<u8>, max: usize) -> Result<Vec<u8>, String> {
    let found = sealed.len();
    if found < MIN_LENGTH {
        return Err(format!("it has {found} bytes, and at least {MIN_LENGTH} are needed: it is truncated"));
    }
    let (head, data) = sealed.split_at_mut(HEAD);
    let (version, compression) = (head[0], head[1]);
    let length = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
    if version != VERSION {
        return Err(format!(
            "it has version {version} of the format, and this berth reads version {VERSION}"
        ));
    }
    if length > max {
        return Err(format!("it has {length} bytes of data, and at most {max} are possible"));
    }
    let data = keys
        .open(&bound_to(name, head), data)
        .map_err(|Failed| "it does not decrypt: it was changed, truncated or renamed".to_owned())?;
    let plain = match compression {
        STORED => data.to_vec(),
        ZSTD => decompress(data, length)?,
        other => return Err(format!("it has the unknown compression {other}")),
    };
    match plain.len() == length {
        true => Ok(plain),
        false => Err(format!("it has {} bytes of data instead of {length}", plain.len())),
    }
}

/// Fails if there are more bytes than `length`.
fn decompress(data: &[u8], length: usize) -> Result<Vec<u8>, String> {
    zstd::bulk::decompress(data, length).map_err(|error| format!("it does not decompress: {error}"))
}
