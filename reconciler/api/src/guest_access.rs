//! The messages by which a client runs a program or copies a file in a guest, once its ticket is accepted: lines of JSON.
//!
//! ```text
//!  exec   client: Exec                       host: Exit, or Error
//!  file   client: Read                       host: Piece*, End, or Error
//!         client: Write   Piece*, End        host: Ready after Write, End at the end, or Error at any time
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most bytes of the standard input of a program.
pub const MAX_INPUT: usize = 1 << 20;
/// The most words of a command, and the most bytes of all of them.
pub const MAX_ARGUMENTS: usize = 1 << 10;
/// See [`MAX_ARGUMENTS`].
pub const MAX_COMMAND: usize = 128 << 10;
/// The longest time that a program may take, in seconds.
pub const MAX_SECONDS: u64 = 3600;
/// The most bytes of a file that is copied.
pub const MAX_FILE: u64 = 4 << 30;
/// The most bytes of a piece of a file.
pub const MAX_PIECE: usize = 192 << 10;
/// The longest line from a client: a command with its input.
pub const MAX_CLIENT_LINE: usize = 2 << 20;
/// The longest line from a host: the exit of a program with 4 MiB of output.
pub const MAX_HOST_LINE: usize = 6 << 20;

/// Bytes, in base64. May be secret: never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Content(pub Vec<u8>);

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Content({} bytes)", self.0.len())
    }
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Self).map_err(|_| serde::de::Error::custom("not base64"))
    }
}

/// A message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ClientMessage {
    /// Runs a program.
    Exec(Exec),
    /// Reads the file with this path.
    Read(String),
    /// Writes a file.
    Write(WriteFile),
    /// The next bytes of the file.
    Piece(Content),
    /// The file is complete.
    End,
}

/// A program to run.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exec {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its standard input.
    #[serde(default)]
    pub input: Content,
    /// The time after which its end is no longer waited for.
    pub seconds: u64,
}

impl std::fmt::Debug for Exec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exec").field("seconds", &self.seconds).finish_non_exhaustive()
    }
}

/// A file to write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteFile {
    /// Its path in the guest.
    pub path: String,
    /// The permissions of a file that does not exist yet. A file that exists keeps its own.
    pub mode: u32,
}

/// A message of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HostMessage {
    /// The end of the program.
    Exit(Exit),
    /// The file is open.
    Ready,
    /// The next bytes of the file.
    Piece(Content),
    /// The file is complete.
    End,
    /// The failure, for people. Nothing follows.
    Error(String),
}

/// How a program ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    /// None: a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i64>,
    /// The signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i64>,
    /// Its standard output.
    pub stdout: Content,
    /// Its standard error.
    pub stderr: Content,
    /// Whether some of the output is missing.
    #[serde(default)]
    pub is_truncated: bool,
}

impl Exec {
    /// Checks the limits.
    ///
    /// # Errors
    /// The limit that is exceeded, for people.
    pub fn check(&self) -> Result<(), String> {
        let bytes: usize = self.command.iter().map(String::len).sum();
        match () {
            () if self.command.first().is_none_or(String::is_empty) => Err("the command is empty".to_owned()),
            () if self.command.len() > MAX_ARGUMENTS || bytes > MAX_COMMAND => {
                Err(format!("the command is longer than {MAX_ARGUMENTS} words or {MAX_COMMAND} bytes"))
            }
            () if self.command.iter().any(|word| word.contains('\0')) => {
                Err("the command has a NUL character".to_owned())
            }
            () if self.input.0.len() > MAX_INPUT => Err(format!(
                "the standard input is longer than {MAX_INPUT} bytes: copy it into the guest first (berth cp)"
            )),
            () if !(1..=MAX_SECONDS).contains(&self.seconds) => {
                Err(format!("the time limit must be 1 to {MAX_SECONDS} seconds"))
            }
            () => Ok(()),
        }
    }
}

/// Checks a path in a guest.
///
/// # Errors
/// The problem, for people.
pub fn check_path(path: &str) -> Result<(), String> {
    if path.is_empty() || path.len() > 4096 || path.contains('\0') {
        return Err("a path in the guest has 1 to 4,096 bytes and no NUL character".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_lines_of_json() {
        let exec =
            Exec { command: vec!["id".into(), "a\nb".into()], input: Content(b"hi".to_vec()), seconds: 5 };
        let message = ClientMessage::Exec(exec.clone());
        let line = serde_json::to_string(&message).expect("JSON");
        insta::assert_snapshot!(line, @r#"{"exec":{"command":["id","a\nb"],"input":"aGk=","seconds":5}}"#);
        assert_eq!(serde_json::from_str::<ClientMessage>(&line).expect("a message"), message);
        insta::assert_snapshot!(serde_json::to_string(&HostMessage::End).expect("JSON"), @r#""end""#);
        assert!(serde_json::from_str::<ClientMessage>(r#"{"piece":"%"}"#).is_err());
        assert!(!format!("{message:?}").contains("id"), "it may hold secrets");
    }

    #[test]
    fn a_command_has_limits() {
        let good = Exec { command: vec!["id".into()], input: Content::default(), seconds: MAX_SECONDS };
        assert_eq!(good.check(), Ok(()));
        let wrong = [
            Exec { command: Vec::new(), ..good.clone() },
            Exec { command: vec![String::new()], ..good.clone() },
            Exec { command: vec!["a\0b".into()], ..good.clone() },
            Exec { command: vec!["a".into(); MAX_ARGUMENTS + 1], ..good.clone() },
            Exec { command: vec!["a".repeat(MAX_COMMAND + 1)], ..good.clone() },
            Exec { input: Content(vec![0; MAX_INPUT + 1]), ..good.clone() },
            Exec { seconds: 0, ..good.clone() },
            Exec { seconds: MAX_SECONDS + 1, ..good.clone() },
        ];
        assert!(wrong.iter().all(|exec| exec.check().is_err()));
        assert!(check_path("/etc/hostname").is_ok() && check_path("").is_err() && check_path("a\0").is_err());
    }
}
