//! The messages by which a client uploads the file of an image to its host, once its ticket is accepted.
//!
//! ```text
//!  host:    a line with Offset: the number of bytes that it has already
//!  client:  the bytes of the file from there to its end
//!  host:    a line with Received, or a line with Error at any time
//! ```
//!
//! *Guarantees:* the host keeps the bytes that arrived, whatever ends the session: the next one continues there. It verifies the
//! checksum once it has all of them.

use serde::{Deserialize, Serialize};

/// The longest line from a host.
pub const MAX_LINE: usize = 16 << 10;

/// A message of a host: a line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UploadMessage {
    /// The number of bytes that the host has: the client sends the rest.
    Offset(u64),
    /// The host has all bytes.
    Received,
    /// The failure, for people. Nothing follows.
    Error(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_lines_of_json() {
        for (message, line) in [
            (UploadMessage::Offset(5), r#"{"offset":5}"#),
            (UploadMessage::Received, r#""received""#),
            (UploadMessage::Error("no".to_owned()), r#"{"error":"no"}"#),
        ] {
            assert_eq!(serde_json::to_string(&message).expect("JSON"), line);
            assert_eq!(serde_json::from_str::<UploadMessage>(line).expect("a message"), message);
        }
    }
}
