//! The variables of UEFI firmware (EDK II), as a machine keeps them in a file, and the keys of Secure Boot among them. Pure.
//!
//! ```text
//!   firmware volume: header │ store: header │ variable │ variable │ … │ 0xff … │ areas for writes that are cut off
//! ```
//!
//! The firmware refuses keys that are not signed by the present ones, so that they are written here, while no machine uses the file.
//! The file is the guest's: everything in it is checked, and one that cannot be read is made anew.

mod variable;

use variable::{Variable, guid};

/// The most certificates in one variable.
pub const MOST_CERTIFICATES: usize = 16;
/// The most bytes of certificates in one variable. The firmware takes 33,792 bytes, with what is around them.
pub const MOST_CERTIFICATE_BYTES: usize = 32 << 10;
/// The largest file that is read, in bytes. The largest of the known firmware has 528 KiB.
pub const MOST_FILE_BYTES: usize = 16 << 20;

/// The type of a firmware volume with variables (`EFI_SYSTEM_NV_DATA_FV_GUID`).
const NV_DATA: [u8; 16] = guid(0xfff1_2b8d, 0x7696, 0x4c8b, [0xa9, 0x85, 0x27, 0x47, 0x07, 0x5b, 0x4f, 0x50]);
/// The format of a store whose variables have the fields of authenticated ones.
const AUTHENTICATED: [u8; 16] =
    guid(0xaaf3_2c78, 0x947b, 0x439a, [0xa1, 0x80, 0x2e, 0x14, 0x4e, 0xc3, 0x77, 0x92]);
/// The vendor of PK and KEK (`EFI_GLOBAL_VARIABLE`).
const GLOBAL: [u8; 16] = guid(0x8be4_df61, 0x93ca, 0x11d2, [0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c]);
/// The vendor of db and dbx (`EFI_IMAGE_SECURITY_DATABASE`).
const SECURITY: [u8; 16] =
    guid(0xd719_b2cb, 0x3d3a, 0x4596, [0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f]);
/// The vendor of the switch of Secure Boot (`EFI_SECURE_BOOT_ENABLE_DISABLE`).
const SWITCH: [u8; 16] = guid(0xf0a3_0bc7, 0xaf08, 0x4556, [0x99, 0xc4, 0x00, 0x10, 0x09, 0xc9, 0x3a, 0x44]);
/// The type of a list of X.509 certificates (`EFI_CERT_X509_GUID`).
const X509: [u8; 16] = guid(0xa5c0_59a1, 0x94e4, 0x4aa7, [0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72]);
/// The owner of the certificates that are enrolled here.
const OWNER: [u8; 16] = guid(0x2b1f_6c0e, 0x5d0a, 0x4e7b, [0x9a, 0x6d, 0x62, 0x65, 0x72, 0x74, 0x68, 0x01]);

/// Non-volatile, for the firmware's boot services and for the running system, authenticated by the time of signed updates.
const KEY_ATTRIBUTES: u32 = 0x27;
/// Non-volatile, for the firmware's boot services.
const SWITCH_ATTRIBUTES: u32 = 0x3;

const VOLUME_TYPE: usize = 16;
const VOLUME_SIGNATURE: usize = 40;
const VOLUME_HEADER_LENGTH: usize = 48;
const STORE_HEADER: usize = 28;
/// The header of a list of signatures.
const LIST_HEADER: usize = 28;
/// A store that is formatted and healthy.
const STORE_STATE: [u8; 2] = [0x5a, 0xfe];

/// The keys of Secure Boot: X.509 certificates as DER.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecureBootKeys {
    /// The platform key, which authorises changes of `kek`.
    pub pk: Vec<u8>,
    /// The key exchange keys, which authorise changes of `db` and `dbx`.
    pub kek: Vec<Vec<u8>>,
    /// The keys by which the firmware accepts what it starts.
    pub db: Vec<Vec<u8>>,
    /// The keys of refused signatures. Empty: those that the store has stay.
    pub dbx: Vec<Vec<u8>>,
}

/// The content of a file of variables with the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enrolled {
    pub bytes: Vec<u8>,
    /// Whether the other variables of the present file are in it.
    pub kept: bool,
}

/// Why keys cannot be enrolled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EfiVariablesError {
    #[error("it is not a volume of UEFI variables: {0}")]
    NotVariables(&'static str),
    #[error("the keys and the guest's other variables take {needed} bytes, and there is room for {room}")]
    Full { needed: usize, room: usize },
}

/// Enrolls the keys in place of all others: in the present file, whose other variables stay, or in an empty store without one.
/// `template`: the file that the firmware comes with.
///
/// *Errors*: the template cannot be read, or the keys have no room. A present file that cannot be read is left out.
pub fn enroll(
    template: &[u8],
    present: Option<&[u8]>,
    keys: &SecureBootKeys,
) -> Result<Enrolled, EfiVariablesError> {
    let store = Store::of(template)?;
    let kept = present.and_then(|present| store.variables(present));
    let is_kept = kept.is_some();
    let replaced = keys.variables();
    let mut variables = kept.unwrap_or_default();
    variables.retain(|variable| !replaced.iter().any(|new| new.is_same(variable)));
    variables.extend(replaced);
    let mut content = Vec::new();
    for variable in &variables {
        variable.write(&mut content);
    }
    let room = store.end - store.first;
    if content.len() > room {
        return Err(EfiVariablesError::Full { needed: content.len(), room });
    }
    content.resize(room, 0xff);
    // The areas for writes that are cut off are the template's too: the firmware would complete such a write over the keys.
    let mut bytes = template.to_vec();
    bytes[store.first..store.end].copy_from_slice(&content);
    Ok(Enrolled { bytes, kept: is_kept })
}

impl SecureBootKeys {
    fn variables(&self) -> Vec<Variable> {
        let key = |vendor, name, certificates: &[Vec<u8>]| {
            Variable::new(vendor, name, KEY_ATTRIBUTES, signature_lists(certificates))
        };
        let mut variables = vec![
            key(GLOBAL, "PK", std::slice::from_ref(&self.pk)),
            key(GLOBAL, "KEK", &self.kek),
            key(SECURITY, "db", &self.db),
            Variable::new(SWITCH, "SecureBootEnable", SWITCH_ATTRIBUTES, vec![1]),
        ];
        if !self.dbx.is_empty() {
            variables.push(key(SECURITY, "dbx", &self.dbx));
        }
        variables
    }
}

/// Returns a list for each certificate: the certificates of one list have the same size.
fn signature_lists(certificates: &[Vec<u8>]) -> Vec<u8> {
    let mut lists = Vec::new();
    for certificate in certificates {
        let signature = OWNER.len() + certificate.len();
        lists.extend(X509);
        for size in [LIST_HEADER + signature, 0, signature] {
            lists.extend(u32::try_from(size).unwrap_or(u32::MAX).to_le_bytes());
        }
        lists.extend(OWNER);
        lists.extend(certificate);
    }
    lists
}

/// The place of the variables in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Store {
    length: usize,
    first: usize,
    end: usize,
}

impl Store {
    fn of(bytes: &[u8]) -> Result<Self, EfiVariablesError> {
        let wrong = EfiVariablesError::NotVariables;
        let has = |at: usize, expected: &[u8]| bytes.get(at..).is_some_and(|rest| rest.starts_with(expected));
        if bytes.len() > MOST_FILE_BYTES {
            return Err(wrong("it is too large"));
        }
        if !has(VOLUME_TYPE, &NV_DATA) || !has(VOLUME_SIGNATURE, b"_FVH") {
            return Err(wrong("it has another header"));
        }
        let header: [u8; 2] = variable::array(bytes, VOLUME_HEADER_LENGTH).ok_or(wrong("it is cut off"))?;
        let at = usize::from(u16::from_le_bytes(header));
        if !has(at, &AUTHENTICATED) {
            return Err(wrong("its variables have another format"));
        }
        let size: [u8; 4] = variable::array(bytes, at + 16).ok_or(wrong("it is cut off"))?;
        if !has(at + 20, &STORE_STATE) {
            return Err(wrong("its variables are not formatted"));
        }
        let size = usize::try_from(u32::from_le_bytes(size)).unwrap_or(usize::MAX);
        let first = (at + STORE_HEADER).next_multiple_of(variable::ALIGNMENT);
        let end = at.checked_add(size).filter(|end| (first..=bytes.len()).contains(end));
        let end = end.ok_or(wrong("its variables do not fit into it"))?;
        Ok(Self { length: bytes.len(), first, end })
    }

    /// Reads the variables of another file of this firmware, the newest value of each. None: it is not one.
    fn variables(&self, bytes: &[u8]) -> Option<Vec<Variable>> {
        let content = bytes.get(self.first..self.end)?;
        if bytes.len() != self.length || Self::of(bytes).ok()? != *self {
            return None;
        }
        variable::read(content)
    }
}

#[cfg(test)]
mod tests;
