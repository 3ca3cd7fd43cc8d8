//! The request and the message by which a host copies the file of an image from the host that has it.
//!
//! ```text
//!  client:  a request with HOST and OFFSET in its query, and a ticket
//!  host:    a line with Size: the number of bytes of the file
//!           the bytes from OFFSET to the end of the file, or fewer if it stops
//! ```
//!
//! *Guarantees:* the client verifies the checksum of the whole file. A copy that ends early continues with the next request.

use serde::{Deserialize, Serialize};

/// The parameter with the name of the host that copies.
pub const HOST: &str = "host";
/// The parameter with the number of bytes that it has already.
pub const OFFSET: &str = "offset";
/// The longest line from the host that serves the file.
pub const MAX_LINE: usize = 1 << 10;

/// The message of the host that serves the file: a line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CopyMessage {
    /// The number of bytes of the file. The bytes follow.
    Size(u64),
}

/// The query of a request.
pub fn query(host: &str, offset: u64) -> String {
    format!("{HOST}={host}&{OFFSET}={offset}")
}

/// Returns the host and the offset of a query.
pub fn of_query(query: &str) -> Option<(&str, u64)> {
    let value = |name: &str| {
        query
            .split('&')
            .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name))
            .map(|(_, value)| value)
    };
    let host = value(HOST)?;
    let is_host = !host.is_empty()
        && host.len() <= 253
        && host
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte));
    Some((host, value(OFFSET)?.parse().ok()?)).filter(|_| is_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_one_host_and_an_offset() {
        assert_eq!(of_query(&query("kvm-1.rack2", 5)), Some(("kvm-1.rack2", 5)));
        for wrong in [
            "",
            "host=h1",
            "offset=5",
            "host=&offset=5",
            "host=h1&offset=-1",
            "host=h1:x&offset=0",
            "host=h%31&offset=0",
        ] {
            assert_eq!(of_query(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_message_is_a_line_of_json() {
        assert_eq!(serde_json::to_string(&CopyMessage::Size(5)).expect("JSON"), r#"{"size":5}"#);
    }
}
