//! CRC-32 with the polynomials and the start values that file systems and LVM have: the caller gives the start value, and the result is not
//! inverted.

/// The start value of a checksum of its own.
pub(crate) const START: u32 = u32::MAX;
/// The polynomials of Castagnoli, and of Ethernet, reflected.
const CASTAGNOLI: [u32; 256] = table(0x82f6_3b78);
const ETHERNET: [u32; 256] = table(0xedb8_8320);

const fn table(polynomial: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut value, mut bit) = (byte as u32, 0);
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ polynomial } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

/// Continues a checksum of CRC-32C with these bytes.
pub(crate) fn crc32c(start: u32, bytes: &[u8]) -> u32 {
    continued(&CASTAGNOLI, start, bytes)
}

/// Continues a checksum of the other polynomial with these bytes.
pub(crate) fn crc32(start: u32, bytes: &[u8]) -> u32 {
    continued(&ETHERNET, start, bytes)
}

fn continued(table: &[u32; 256], start: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(start, |sum, byte| {
        let [low, ..] = sum.to_le_bytes();
        table[usize::from(low ^ byte)] ^ sum >> 8
    })
}

/// Continues a checksum with these bytes, of which those in the range count as zeros: the checksum itself is there.
pub(crate) fn crc32c_without(start: u32, bytes: &[u8], hole: std::ops::Range<usize>) -> u32 {
    let before = crc32c(start, &bytes[..hole.start]);
    let within = hole.clone().fold(before, |sum, _| crc32c(sum, &[0]));
    crc32c(within, &bytes[hole.end..])
}

#[test]
fn the_checksum_is_that_of_the_standard() {
    assert_eq!(!crc32c(START, b"123456789"), 0xe306_9283);
    assert_eq!(!crc32(START, b"123456789"), 0xcbf4_3926);
    assert_eq!(crc32c_without(START, b"12xx56789", 2..4), crc32c(START, b"12\0\x0056789"));
}
