//! The request and the message by which a client downloads the file of an image from its host.
//!
//! ```text
//!  client:  a request with OFFSET in its query, and a ticket
//!  host:    a line with Size: the number of bytes of the file
//!           the bytes from OFFSET to the end of the file, or fewer if it stops
//! ```
//!
//! *Guarantees:* the client verifies the checksum of the whole file, which the Image has in its source or its status. A download that
//! ends early continues with the next request.

pub use crate::image_copy::{CopyMessage as DownloadMessage, MAX_LINE, OFFSET};

/// On an Image that is made of a Disk or a DiskSnapshot for a download, and deleted at its end: `disk` or `snapshot`.
pub const DOWNLOAD_LABEL: &str = "berth.dev/download-of";

/// The name of the Image for a download of the object with this uid. Each download has an identity of its own: two to different files
/// share no Image.
pub fn image_name(uid: &str, id: &str) -> String {
    format!("download-{uid}-{id}")
}

/// The query of a request.
pub fn query(offset: u64) -> String {
    format!("{OFFSET}={offset}")
}

/// Returns the offset of a query.
pub fn of_query(query: &str) -> Option<u64> {
    let value = query.strip_prefix(OFFSET)?.strip_prefix('=')?;
    value.parse().ok().filter(|_| value.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_an_offset_and_nothing_else() {
        assert_eq!(of_query(&query(5)), Some(5));
        assert_eq!(of_query(&query(u64::MAX)), Some(u64::MAX));
        for wrong in [
            "",
            "offset",
            "offset=",
            "offset=-1",
            "offset=+1",
            "offset=1&host=h1",
            "host=h1&offset=1",
            "offset=99999999999999999999",
        ] {
            assert_eq!(of_query(wrong), None, "{wrong}");
        }
    }
}
