//! One variable in a store of UEFI variables, in the form of authenticated ones.
//!
//! ```text
//!    0 start  2 state  4 attributes  8 count  16 time  32 key  36 size of the name  40 size of the data  44 vendor  60 name, data
//! ```

/// Variables begin at multiples of this.
pub(super) const ALIGNMENT: usize = 4;

const START: u16 = 0x55aa;
const HEADER: usize = 60;
/// The state of a variable that counts.
const ADDED: u8 = 0x3f;
/// The state of one that counts until another value of it is complete.
const IN_DELETED_TRANSITION: u8 = 0x3e;
/// Erased flash.
const ERASED: u8 = 0xff;

/// Returns a GUID as it is stored.
pub(super) const fn guid(a: u32, b: u16, c: u16, d: [u8; 8]) -> [u8; 16] {
    let (a, b, c) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]
}

/// Returns the bytes at this place. None: the data ends before.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) vendor: [u8; 16],
    /// UTF-16 with a zero at its end, as it is stored.
    pub(super) name: Vec<u8>,
    pub(super) attributes: u32,
    /// Fields of authenticated variables: the count, the time of the last update, and the key.
    authentication: [u8; 28],
    pub(super) data: Vec<u8>,
}

impl Variable {
    /// A variable that was never updated: every signed update is later.
    pub(super) fn new(vendor: [u8; 16], name: &str, attributes: u32, data: Vec<u8>) -> Self {
        let name = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
        Self { vendor, name, attributes, authentication: [0; 28], data }
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.vendor, &self.name) == (&other.vendor, &other.name)
    }

    /// Adds the variable to the content of a store.
    pub(super) fn write(&self, content: &mut Vec<u8>) {
        let size = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
        content.resize(content.len().next_multiple_of(ALIGNMENT), ERASED);
        content.extend(START.to_le_bytes());
        content.extend([ADDED, 0]);
        content.extend(self.attributes.to_le_bytes());
        content.extend(self.authentication);
        content.extend(size(&self.name));
        content.extend(size(&self.data));
        content.extend(self.vendor);
        content.extend(&self.name);
        content.extend(&self.data);
    }
}

/// Reads the variables of a store, as its firmware does: the newest value of each. None: it is damaged.
pub(super) fn read(content: &[u8]) -> Option<Vec<Variable>> {
    let mut found: Vec<(Variable, u8)> = Vec::new();
    let mut at = 0;
    while array(content, at).is_some_and(|start| u16::from_le_bytes(start) == START) {
        let Some(header) = array::<HEADER>(content, at) else { break };
        let state = header[2];
        let size = |at: usize| array(&header, at).map_or(u32::MAX, u32::from_le_bytes);
        let (name, data) = (size(36), size(40));
        // The header itself was not written to its end.
        let is_cut_off = state == ERASED || [name, data, size(4)].contains(&u32::MAX);
        let (name, data) = if is_cut_off { (0, 0) } else { (name, data) };
        let name_end = (at + HEADER).checked_add(usize::try_from(name).ok()?)?;
        let end = name_end.checked_add(usize::try_from(data).ok()?)?;
        let (name, data) = (content.get(at + HEADER..name_end)?, content.get(name_end..end)?);
        if matches!(state, ADDED | IN_DELETED_TRANSITION) {
            let variable = Variable {
                vendor: array(&header, 44)?,
                name: name.to_owned(),
                attributes: size(4),
                authentication: array(&header, 8)?,
                data: data.to_owned(),
            };
            found.push((variable, state));
        }
        at = end.next_multiple_of(ALIGNMENT);
    }
    // Firmware has room for a few thousand.
    let counts = |variable: &Variable, state: u8| {
        state == ADDED || !found.iter().any(|(other, of)| *of == ADDED && other.is_same(variable))
    };
    Some(found.iter().filter(|(variable, state)| counts(variable, *state)).map(|(v, _)| v.clone()).collect())
}
