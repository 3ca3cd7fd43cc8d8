//! User data in base64, and compressed with gzip: as clouds and tools such as the data source `cloudinit_config` pass it on.

use std::borrow::Cow;
use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::MultiGzDecoder;

use super::{UserDataError, has_header, is_read_by_a_guest};

/// The most bytes of user data that is compressed.
pub const MAX_DECODED: usize = 1 << 20;
const GZIP: &[u8] = &[0x1f, 0x8b];

/// Returns user data as a guest reads it: decoded from base64 and gzip, if it is encoded. Plain text with a known beginning is
/// never decoded, and text that is not user data after decoding is left as it is.
///
/// # Errors
/// It is compressed and damaged, has more than [`MAX_DECODED`] bytes, or is no text.
pub fn decoded(data: &[u8]) -> Result<Cow<'_, str>, UserDataError> {
    if data.starts_with(GZIP) {
        return decompressed(data).map(Cow::Owned);
    }
    let text = std::str::from_utf8(data).map_err(|_| UserDataError::NoText)?;
    if has_header(text) {
        return Ok(Cow::Borrowed(text));
    }
    let compact: String = text.split_ascii_whitespace().collect();
    match STANDARD.decode(compact) {
        Ok(inner) if inner.starts_with(GZIP) => decompressed(&inner).map(Cow::Owned),
        Ok(inner) => Ok(match String::from_utf8(inner) {
            Ok(inner) if !inner.is_empty() && is_read_by_a_guest(&inner) => Cow::Owned(inner),
            _ => Cow::Borrowed(text),
        }),
        Err(_) => Ok(Cow::Borrowed(text)),
    }
}

fn decompressed(data: &[u8]) -> Result<String, UserDataError> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_DECODED).unwrap_or(u64::MAX) + 1;
    let read = MultiGzDecoder::new(data).take(limit).read_to_end(&mut bytes);
    read.map_err(|_| UserDataError::Damaged)?;
    if bytes.len() > MAX_DECODED {
        return Err(UserDataError::TooLarge);
    }
    String::from_utf8(bytes).map_err(|_| UserDataError::NoText)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(data).expect("in memory");
        encoder.finish().expect("in memory")
    }

    #[test]
    fn encoded_user_data_reaches_the_guest_decoded() {
        let plain = "#cloud-config\nruncmd: [id]\n";
        let wrapped =
            STANDARD.encode(plain).as_bytes().chunks(20).map(<[u8]>::to_vec).collect::<Vec<_>>().join(&b'\n');
        for encoded in [
            plain.as_bytes().to_vec(),
            STANDARD.encode(plain).into_bytes(),
            wrapped,
            gzip(plain.as_bytes()),
            STANDARD.encode(gzip(plain.as_bytes())).into_bytes(),
        ] {
            assert_eq!(decoded(&encoded).as_deref(), Ok(plain));
        }
        let ignition = r#"{"ignition": {"version": "3.4.0"}}"#;
        assert_eq!(decoded(STANDARD.encode(ignition).as_bytes()).as_deref(), Ok(ignition));
    }

    #[test]
    fn plain_text_is_left_as_it_is() {
        // The second is base64 of bytes that are no text, the third of text that is no user data.
        for text in ["", "test", "aGVsbG8=", "#!/bin/sh\nZWNobw==\n", "machine: {}\n"] {
            assert_eq!(decoded(text.as_bytes()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn a_small_text_that_becomes_large_is_refused() {
        let bomb = gzip(&vec![b'#'; 64 << 20]);
        assert!(bomb.len() < 100_000);
        assert_eq!(decoded(&bomb), Err(UserDataError::TooLarge));
        assert_eq!(decoded(STANDARD.encode(&bomb).as_bytes()), Err(UserDataError::TooLarge));
        assert!(decoded(&gzip(&vec![b'#'; MAX_DECODED])).is_ok());
    }

    #[test]
    fn damaged_data_is_refused() {
        let good = gzip(b"#cloud-config\n");
        assert_eq!(decoded(&good[..good.len() - 3]), Err(UserDataError::Damaged));
        assert_eq!(decoded(&gzip(&[0xff, 0xfe])), Err(UserDataError::NoText));
        assert_eq!(decoded(&[0xff, 0xfe]), Err(UserDataError::NoText));
    }
}
