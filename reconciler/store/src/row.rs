//! Integrity of rows: whether their bytes are those that were written.

/// Returns the error of a row with damaged bytes.
pub(crate) fn damaged(revision: u64, what: &str) -> rusqlite::Error {
    let text = format!("revision {revision}: {what}");
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, text.into())
}

/// Returns the FNV-1a checksum of a value: SQLite checks its own structure, not the bytes inside a value.
pub(crate) fn checksum(bytes: &[u8]) -> i64 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    hash.cast_signed()
}
