use proptest::prelude::*;

use super::*;

/// The vendor of variables of the guest.
const GUEST: [u8; 16] = [7; 16];
const ROOM: usize = 4096;
const TAIL: usize = 512;

/// Returns an empty file of variables, with this room for them.
fn template(room: usize) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes.extend(NV_DATA);
    bytes.extend(((72 + STORE_HEADER + room + TAIL) as u64).to_le_bytes());
    bytes.extend(*b"_FVH");
    bytes.extend([0; 4]);
    bytes.extend(72_u16.to_le_bytes());
    bytes.resize(72, 0);
    bytes.extend(AUTHENTICATED);
    bytes.extend(u32::try_from(STORE_HEADER + room).expect("small").to_le_bytes());
    bytes.extend(STORE_STATE);
    bytes.extend([0; 6]);
    bytes.resize(bytes.len() + room, 0xff);
    bytes.resize(bytes.len() + TAIL, 0xab);
    bytes
}

fn keys(name: u8) -> SecureBootKeys {
    SecureBootKeys {
        pk: vec![name; 5],
        kek: vec![vec![name; 7], vec![name; 9]],
        db: vec![vec![name; 3]],
        dbx: vec![vec![name; 1]],
    }
}

/// Returns the variables in a file: their names, attributes and data.
fn variables(bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
    let found = Store::of(bytes).expect("a store").variables(bytes).expect("it is readable");
    let name = |bytes: &[u8]| {
        let units: Vec<u16> = bytes.chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        String::from_utf16(&units).expect("a name").trim_end_matches('\0').to_owned()
    };
    found.into_iter().map(|v| (name(&v.name), v.attributes, v.data)).collect()
}

/// Returns the names of the variables in a file.
fn names(bytes: &[u8]) -> Vec<String> {
    variables(bytes).into_iter().map(|(name, ..)| name).collect()
}

/// Returns the file with these bytes at the beginning of its variables.
fn with_content(content: &[u8]) -> Vec<u8> {
    let mut bytes = template(ROOM);
    let first = Store::of(&bytes).expect("a store").first;
    bytes[first..first + content.len()].copy_from_slice(content);
    bytes
}

fn written(name: &str, data: &[u8], state: u8) -> Vec<u8> {
    let mut content = Vec::new();
    Variable::new(GUEST, name, 7, data.to_vec()).write(&mut content);
    content[2] = state;
    content.resize(content.len().next_multiple_of(variable::ALIGNMENT), 0xff);
    content
}

#[test]
fn keys_are_lists_of_signatures_in_the_variables_that_the_firmware_reads() {
    let template = template(ROOM);
    let enrolled = enroll(&template, None, &keys(1)).expect("it fits");
    assert!(!enrolled.kept && enrolled.bytes.len() == template.len());
    assert_eq!(enrolled.bytes[enrolled.bytes.len() - TAIL..], template[template.len() - TAIL..]);
    assert_eq!(enrolled.bytes[..100], template[..100], "the headers");
    // The first variable, byte by byte: PK in UTF-16, and a list with one certificate of 5 bytes.
    let mut pk = vec![0xaa, 0x55, 0x3f, 0, 0x27, 0, 0, 0];
    pk.extend([0; 28]);
    pk.extend([6, 0, 0, 0, 49, 0, 0, 0]);
    pk.extend([0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0, 0xe0, 0x98, 0x03, 0x2b, 0x8c]);
    pk.extend(*b"P\0K\0\0\0");
    pk.extend([
        0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72,
    ]);
    pk.extend([49, 0, 0, 0, 0, 0, 0, 0, 21, 0, 0, 0]);
    pk.extend(OWNER);
    pk.extend([1; 5]);
    assert_eq!(enrolled.bytes[100..100 + pk.len()], pk);
    let found = variables(&enrolled.bytes);
    let shapes: Vec<(&str, u32, usize)> =
        found.iter().map(|(name, attributes, data)| (name.as_str(), *attributes, data.len())).collect();
    let expected = [
        ("PK", 0x27, 44 + 5),
        ("KEK", 0x27, 2 * 44 + 7 + 9),
        ("db", 0x27, 44 + 3),
        ("SecureBootEnable", 3, 1),
        ("dbx", 0x27, 44 + 1),
    ];
    assert_eq!(shapes, expected);
}

#[test]
fn other_keys_replace_the_present_ones_and_the_guests_own_variables_stay() {
    let mut content = written("Boot0000", &[1, 2, 3], 0x3f);
    content.extend(written("Removed", &[4], 0x3d));
    content.extend(written("Boot0001", &[5], 0x3e));
    content.extend(written("BootOrder", &[6], 0x3e));
    content.extend(written("BootOrder", &[7], 0x3f));
    // A write that was cut off.
    content.extend(written("Begun", &[8; 40], 0x7f));
    let present = with_content(&content);
    let first = enroll(&template(ROOM), Some(&present), &keys(1)).expect("it fits");
    assert!(first.kept);
    let own = ["Boot0000", "Boot0001", "BootOrder"];
    let enrolled = ["PK", "KEK", "db", "SecureBootEnable", "dbx"];
    assert_eq!(names(&first.bytes), [own.as_slice(), &enrolled].concat());
    assert_eq!(variables(&first.bytes)[2].2, [7], "the newer value");

    let second = enroll(&template(ROOM), Some(&first.bytes), &keys(2)).expect("it fits");
    assert!(second.kept && names(&second.bytes) == names(&first.bytes));
    assert!(!variables(&second.bytes).iter().any(|(_, _, data)| data.len() > 1 && data.ends_with(&[1])));
    let again = enroll(&template(ROOM), Some(&second.bytes), &keys(2)).expect("it fits");
    assert_eq!(again.bytes, second.bytes, "the same keys change nothing");
}

#[test]
fn without_forbidden_keys_those_that_the_guest_has_stay() {
    let first = enroll(&template(ROOM), None, &keys(1)).expect("it fits");
    let without = SecureBootKeys { dbx: Vec::new(), ..keys(2) };
    let second = enroll(&template(ROOM), Some(&first.bytes), &without).expect("it fits");
    let dbx = |bytes: &[u8]| variables(bytes).into_iter().find(|(name, ..)| name == "dbx");
    assert_eq!(dbx(&second.bytes), dbx(&first.bytes));
    let new = enroll(&template(ROOM), None, &without).expect("it fits");
    assert_eq!(dbx(&new.bytes), None);
}

#[test]
fn a_file_that_cannot_be_read_is_made_anew() {
    let whole = with_content(&written("Boot0000", &[1], 0x3f));
    let mut damaged = whole.clone();
    // The size of the data leads out of the store.
    damaged[100 + 40..100 + 44].copy_from_slice(&0x00ff_ffff_u32.to_le_bytes());
    let mut unformatted = whole.clone();
    unformatted[72 + 21] = 0xff;
    for present in [damaged, unformatted, whole[..whole.len() - 1].to_vec(), template(ROOM - 4), Vec::new()] {
        let enrolled = enroll(&template(ROOM), Some(&present), &keys(1)).expect("it fits");
        assert!(!enrolled.kept);
        assert_eq!(enrolled, enroll(&template(ROOM), None, &keys(1)).expect("it fits"));
    }
}

#[test]
fn keys_without_room_and_firmware_without_variables_are_refused() {
    let large = SecureBootKeys { db: vec![vec![0; ROOM]], ..keys(1) };
    let error = enroll(&template(ROOM), None, &large).expect_err("it is too large");
    assert!(matches!(error, EfiVariablesError::Full { needed, room: ROOM } if needed > ROOM), "{error}");
    let refused = |bytes: &[u8]| enroll(bytes, None, &keys(1)).expect_err("no store").to_string();
    assert!(refused(b"").contains("another header"));
    let mut other = template(ROOM);
    other[72] ^= 1;
    assert!(refused(&other).contains("another format"));
    assert!(refused(&template(ROOM)[..200]).contains("do not fit"));
    assert!(refused(&vec![0; MOST_FILE_BYTES + 1]).contains("too large"));
}

proptest! {
    #[test]
    fn any_content_is_read_without_a_panic_and_the_result_has_the_keys(
        content in proptest::collection::vec(prop_oneof![Just(0xaa_u8), Just(0x55), Just(0x3f), Just(0), any::<u8>()], 0..600),
        cut in 0..400_usize,
    ) {
        let mut bytes = with_content(&content);
        match enroll(&template(ROOM), Some(&bytes), &keys(1)) {
            Err(error) => {
                let is_full = matches!(error, EfiVariablesError::Full { .. });
                prop_assert!(is_full, "{error}");
            }
            Ok(Enrolled { bytes, .. }) => {
                let found = Store::of(&bytes).expect("a store").variables(&bytes).expect("it is readable");
                prop_assert_eq!(found[found.len() - 5..].to_vec(), keys(1).variables());
            }
        }
        bytes.truncate(cut);
        prop_assert!(Store::of(&bytes).is_err());
    }
}
