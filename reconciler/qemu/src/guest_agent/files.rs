//! Files in the guest, read and written in pieces.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::commands::bytes;
use super::{GuestAgent, GuestAgentError, unexpected};

/// The most bytes of a file in one exchange.
pub const MAX_PIECE: usize = 192 << 10;

/// The access to a file that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    Read,
    /// The file is made, or emptied.
    Write,
}

/// A file that the agent has open, until it is closed or the guest restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHandle(i64);

impl GuestAgent {
    /// Opens a file in the guest. A file that is made can be read and written by every user of the guest.
    pub async fn open_file(&mut self, path: &str, access: FileAccess) -> Result<FileHandle, GuestAgentError> {
        const NAME: &str = "guest-file-open";
        let mode = match access {
            FileAccess::Read => "r",
            FileAccess::Write => "w",
        };
        let answer = self.execute(NAME, json!({"path": path, "mode": mode})).await?;
        answer.as_i64().map(FileHandle).ok_or_else(|| unexpected(NAME, &answer))
    }

    /// Returns the next piece of a file, at most [`MAX_PIECE`] bytes, and whether the file ends with it.
    pub async fn read_file(&mut self, file: FileHandle) -> Result<(Vec<u8>, bool), GuestAgentError> {
        const NAME: &str = "guest-file-read";
        let answer = self.execute(NAME, json!({"handle": file.0, "count": MAX_PIECE})).await?;
        let piece = bytes(&answer["buf-b64"]).filter(|piece| piece.len() <= MAX_PIECE);
        let (Some(piece), Some(is_end)) = (piece, answer["eof"].as_bool()) else {
            return Err(unexpected(NAME, &answer));
        };
        // Without this, a guest could have the file read forever.
        if piece.is_empty() && !is_end {
            return Err(unexpected(NAME, &answer));
        }
        Ok((piece, is_end))
    }

    /// Writes the next piece of a file, at most [`MAX_PIECE`] bytes.
    pub async fn write_file(&mut self, file: FileHandle, piece: &[u8]) -> Result<(), GuestAgentError> {
        const NAME: &str = "guest-file-write";
        let mut rest = piece;
        while !rest.is_empty() {
            let args = json!({"handle": file.0, "buf-b64": STANDARD.encode(rest)});
            let answer = self.execute(NAME, args).await?;
            let count = answer["count"].as_u64().and_then(|count| usize::try_from(count).ok());
            match count.filter(|count| (1..=rest.len()).contains(count)) {
                Some(count) => rest = &rest[count..],
                None => return Err(unexpected(NAME, &answer)),
            }
        }
        Ok(())
    }

    /// Closes a file; what was written is then in the guest.
    pub async fn close_file(&mut self, file: FileHandle) -> Result<(), GuestAgentError> {
        self.execute("guest-file-close", json!({"handle": file.0})).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::Value;

    use super::super::tests::guest;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_file_is_read_to_its_end() {
        let mut agent = guest(|message| match message["execute"].as_str()? {
            "guest-file-open" => (message["arguments"] == json!({"path": "/f", "mode": "r"}))
                .then(|| json!({"return": 1000}).to_string()),
            "guest-file-read" => {
                Some(json!({"return": {"count": 2, "buf-b64": "aGk=", "eof": true}}).to_string())
            }
            "guest-file-close" => Some(json!({"return": {}}).to_string()),
            _ => None,
        });
        let file = agent.open_file("/f", FileAccess::Read).await.expect("opened");
        assert_eq!(agent.read_file(file).await.expect("read"), (b"hi".to_vec(), true));
        agent.close_file(file).await.expect("closed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_piece_that_is_written_in_part_is_continued() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let of_guest = written.clone();
        let mut agent = guest(move |message| {
            let data = STANDARD.decode(message["arguments"]["buf-b64"].as_str()?).ok()?;
            let count = data.len().min(4);
            of_guest.lock().ok()?.extend_from_slice(&data[..count]);
            Some(json!({"return": {"count": count, "eof": false}}).to_string())
        });
        agent.write_file(FileHandle(1), b"hello world").await.expect("written");
        assert_eq!(*written.lock().expect("its lock"), b"hello world");
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_counts_wrongly_is_an_error() {
        let replies = |value: Value| guest(move |_| Some(json!({ "return": value }).to_string()));
        for count in [json!(0), json!(6), json!(-1), json!("5")] {
            let outcome = replies(json!({ "count": count })).write_file(FileHandle(1), b"hello").await;
            assert!(matches!(outcome, Err(GuestAgentError::Unexpected { .. })), "{outcome:?}");
        }
        let too_long = STANDARD.encode(vec![0; MAX_PIECE + 1]);
        for wrong in
            [json!({"buf-b64": "", "eof": false}), json!({"buf-b64": too_long, "eof": true}), json!({})]
        {
            let outcome = replies(wrong).read_file(FileHandle(1)).await;
            assert!(matches!(outcome, Err(GuestAgentError::Unexpected { .. })), "{outcome:?}");
        }
    }
}
