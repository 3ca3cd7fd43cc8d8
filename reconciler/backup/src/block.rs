//! Blocks and their ids.

use std::fmt;

/// The length of a block, in bytes. The last one of a disk may be shorter.
pub(crate) const BLOCK_SIZE: usize = 4 << 20;

/// The id of a block: HMAC-SHA256 of its data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId(pub(crate) [u8; 32]);

impl BlockId {
    /// A block of zeros, which is not stored.
    pub(crate) const ZERO: Self = Self([0; 32]);

    /// Reads the form with 64 hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 || !digits.iter().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let digit = |c: u8| if c <= b'9' { c - b'0' } else { c - b'a' + 10 };
        let mut id = [0; 32];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0]) << 4 | digit(pair[1]);
        }
        Some(Self(id))
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether all bytes are zeros.
pub(crate) fn is_zero(data: &[u8]) -> bool {
    // A comparison of the data with itself is a `memcmp`, which is fast in debug builds too.
    data.first().is_none_or(|first| *first == 0 && data[1..] == data[..data.len() - 1])
}

#[test]
fn an_id_is_read_in_the_form_it_is_written() {
    let id = BlockId(std::array::from_fn(|at| (at * 7) as u8));
    assert_eq!(BlockId::parse(&id.to_string()), Some(id));
    let text = id.to_string();
    for wrong in ["", &text[1..], &text.to_uppercase(), &text.replace('7', "/"), &format!("{text}0")] {
        assert_eq!(BlockId::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn one_byte_makes_a_block_differ_from_zeros() {
    assert!(is_zero(&[]) && is_zero(&[0]) && is_zero(&[0; 100]));
    for at in 0..100 {
        let mut data = [0; 100];
        data[at] = 1;
        assert!(!is_zero(&data), "{at}");
    }
    assert!(!is_zero(&[1; 100]));
}
