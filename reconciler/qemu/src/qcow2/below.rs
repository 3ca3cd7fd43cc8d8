//! The name of the file below a qcow2 file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::InspectError;
use super::header::Header;

const MAX_NAME: usize = 1023;

/// Returns the name of the file below, as it is in the header: that file is not looked at.
pub fn name_below(mut file: &File) -> Result<Option<String>, InspectError> {
    Ok(Header::read(&mut file)?.backing)
}

/// Writes another name of the file below into the header of a file that has one, and that nothing else opens. The name is the last thing in
/// the first cluster.
///
/// # Errors
/// `InvalidInput` when the file has none below, or the name does not fit.
pub fn rename_below(file: &File, name: &str) -> io::Result<()> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let mut fields = [0_u8; 24];
    file.read_exact_at(&mut fields, 0)?;
    let offset = u64::from_be_bytes(fields[8..16].try_into().map_err(|_| invalid())?);
    let bits = u32::from_be_bytes(fields[20..24].try_into().map_err(|_| invalid())?);
    let length = u32::try_from(name.len()).map_err(|_| invalid())?;
    let cluster = 1_u64.checked_shl(bits).unwrap_or_default();
    let fits = offset.checked_add(u64::from(length)).is_some_and(|end| end <= cluster);
    if offset == 0 || name.is_empty() || name.len() > MAX_NAME || !fits {
        return Err(invalid());
    }
    file.write_all_at(name.as_bytes(), offset)?;
    file.write_all_at(&length.to_be_bytes(), 16)
}
