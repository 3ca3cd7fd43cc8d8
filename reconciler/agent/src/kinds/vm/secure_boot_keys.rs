//! The keys of Secure Boot that a VM's Secret has, read when they are to be enrolled. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_qemu::efi_variables::{MOST_CERTIFICATE_BYTES, MOST_CERTIFICATES, SecureBootKeys};
use k8s_openapi::api::core::v1::Secret;

/// The largest text of certificates, in bytes: PEM with remarks between the certificates.
const MOST_TEXT: usize = 256 << 10;
const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END CERTIFICATE-----";

/// The keys to enroll at the next start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeysToEnroll {
    /// The VM is not about to start, declares no keys, or has them.
    NotDue,
    /// The Secret of this name does not exist yet, or this host may not read it yet.
    Missing(String),
    /// The Secret cannot be read at the moment, and why.
    Unreadable(String),
    /// The Secret has no keys that could be enrolled.
    Unusable(String),
    Found(Box<SecureBootKeys>),
}

impl KeysToEnroll {
    /// Returns the keys in a Secret.
    pub(super) fn of(name: &str, secret: &Secret) -> Self {
        match keys(secret) {
            Ok(keys) => Self::Found(Box::new(keys)),
            Err(problem) => Self::Unusable(format!("Secret {name} with keys of Secure Boot: {problem}")),
        }
    }
}

fn keys(secret: &Secret) -> Result<SecureBootKeys, String> {
    let mut pk = required(secret, "PK")?;
    if pk.len() > 1 {
        return Err(format!("key PK has {} certificates, and there is one platform key", pk.len()));
    }
    let pk = pk.pop().unwrap_or_default();
    let (kek, db) = (required(secret, "KEK")?, required(secret, "db")?);
    Ok(SecureBootKeys { pk, kek, db, dbx: certificates(secret, "dbx")? })
}

fn required(secret: &Secret, key: &str) -> Result<Vec<Vec<u8>>, String> {
    let found = certificates(secret, key)?;
    if found.is_empty() {
        return Err(format!("key {key} is missing, or has no certificate: PK, KEK and db must have one"));
    }
    Ok(found)
}

/// Returns the certificates in a key of the Secret; none without the key.
fn certificates(secret: &Secret, key: &str) -> Result<Vec<Vec<u8>>, String> {
    let wrong = |why: &str| format!("key {key}: {why}");
    let Some(bytes) = secret.data.as_ref().and_then(|data| data.get(key)) else { return Ok(Vec::new()) };
    if bytes.0.len() > MOST_TEXT {
        return Err(wrong("it is larger than 256 KiB"));
    }
    let text = std::str::from_utf8(&bytes.0)
        .map_err(|_| wrong("it is no text: convert certificates to PEM (openssl x509 -inform DER)"))?;
    let found = read(text).map_err(wrong)?;
    if found.is_empty() && !text.trim().is_empty() {
        return Err(wrong("it has no certificate in PEM (-----BEGIN CERTIFICATE-----)"));
    }
    if found.len() > MOST_CERTIFICATES {
        return Err(wrong("it has more than 16 certificates"));
    }
    if found.iter().map(Vec::len).sum::<usize>() > MOST_CERTIFICATE_BYTES {
        return Err(wrong("its certificates are larger than 32 KiB"));
    }
    Ok(found)
}

/// Reads the certificates in a text, as DER. Text around them is left out.
fn read(text: &str) -> Result<Vec<Vec<u8>>, &'static str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let block = &rest[at + BEGIN.len()..];
        let Some(block) = block.strip_prefix("CERTIFICATE-----") else {
            return Err(
                "it has something other than certificates: take private keys out, and keep them where boot loaders are signed",
            );
        };
        let end = block.find(END).ok_or("the end of a certificate is missing")?;
        let digits: String = block[..end].chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let der = STANDARD.decode(digits).map_err(|_| "a certificate is no base64")?;
        if !is_certificate(&der) {
            return Err("a certificate is damaged, or none");
        }
        found.push(der);
        rest = &block[end + END.len()..];
    }
    Ok(found)
}

/// Whether the bytes have the outer form of an X.509 certificate: a sequence that begins with one, and nothing after it.
fn is_certificate(der: &[u8]) -> bool {
    let [0x30, first, rest @ ..] = der else { return false };
    let digits = match first {
        0..=0x7f => 0,
        0x81..=0x83 => usize::from(first & 0x7f),
        _ => return false,
    };
    let Some((length, content)) = rest.split_at_checked(digits) else { return false };
    let length = match digits {
        0 => usize::from(*first),
        _ => length.iter().fold(0, |length, digit| (length << 8) | usize::from(*digit)),
    };
    content.len() == length && content.first() == Some(&0x30)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    /// Returns the outer form of a certificate with this content, as PEM.
    fn pem(content: u8, length: usize) -> String {
        let mut der = vec![0x30, 0x82];
        der.extend(u16::try_from(length + 1).expect("small").to_be_bytes());
        der.push(0x30);
        der.resize(der.len() + length, content);
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", STANDARD.encode(der))
    }

    fn secret(entries: &[(&str, &str)]) -> Secret {
        let data = entries
            .iter()
            .map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec())))
            .collect();
        Secret { data: Some(data), ..Secret::default() }
    }

    #[test]
    fn certificates_are_read_in_their_order_and_remarks_are_left_out() {
        let (one, two) = (pem(1, 300), pem(2, 20));
        let kek = format!("Issuer: x\r\n{one}# the second\n{two}").replace('\n', "\r\n");
        let found = keys(&secret(&[("PK", &one), ("KEK", &kek), ("db", &two)])).expect("usable");
        assert_eq!((found.pk.len(), found.kek.len(), found.db.len(), found.dbx.len()), (305, 2, 1, 0));
        assert!(found.kek[0] == found.pk && found.kek[1] == found.db[0]);
        let found = keys(&secret(&[("PK", &one), ("KEK", &one), ("db", &one), ("dbx", &two)]));
        assert_eq!(found.expect("usable").dbx.len(), 1);
    }

    #[test]
    fn a_secret_without_usable_keys_is_refused_with_the_reason_and_never_quoted() {
        let good = pem(1, 10);
        let refused = |key: &str, text: &str| {
            let mut entries = vec![("PK", good.as_str()), ("KEK", good.as_str()), ("db", good.as_str())];
            entries.retain(|(other, _)| *other != key);
            entries.push((key, text));
            let KeysToEnroll::Unusable(problem) = KeysToEnroll::of("boot", &secret(&entries)) else {
                panic!("it is accepted: {key} {text}")
            };
            assert!(problem.contains(&format!("key {key}")) && !problem.contains("canary"), "{problem}");
            problem
        };
        assert!(refused("PK", "").contains("is missing"));
        assert!(refused("PK", &good.repeat(2)).contains("2 certificates"));
        assert!(refused("KEK", "canary").contains("no certificate in PEM"));
        assert!(refused("db", "-----BEGIN PRIVATE KEY-----\ncanary").contains("private keys"));
        assert!(refused("db", "-----BEGIN CERTIFICATE-----\ncanary").contains("end of a certificate"));
        assert!(refused("db", &good.replace('\n', "\n!canary!")).contains("no base64"));
        assert!(
            refused("db", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----")
                .contains("damaged, or none")
        );
        assert!(refused("db", &good.repeat(17)).contains("more than 16"));
        assert!(refused("dbx", &pem(1, 20_000).repeat(2)).contains("32 KiB"));
        assert!(refused("dbx", &"x".repeat(MOST_TEXT + 1)).contains("256 KiB"));
    }

    #[test]
    fn a_certificate_ends_where_its_length_says() {
        for (der, expected) in [
            (&[0x30, 2, 0x30, 0][..], true),
            (&[0x30, 0x81, 2, 0x30, 0][..], true),
            (&[0x30, 0x82, 0, 2, 0x30, 0][..], true),
            (&[0x30, 3, 0x30, 0][..], false),
            (&[0x30, 1, 0x30, 0][..], false),
            (&[0x31, 2, 0x30, 0][..], false),
            (&[0x30, 2, 0x31, 0][..], false),
            (&[0x30, 0x84, 0, 0, 0, 2, 0x30, 0][..], false),
            (&[0x30, 0x82, 0][..], false),
            (&[0x30][..], false),
            (&[][..], false),
        ] {
            assert_eq!(is_certificate(der), expected, "{der:?}");
        }
    }
}
