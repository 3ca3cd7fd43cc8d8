//! Programs that the agent runs in the guest.
//!
//! The agent starts a program and returns its process identifier; the exit is asked for until the program has ended, and
//! comes with all of the output at once. The agent cannot end a program.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{GuestAgent, GuestAgentError, Limits, unexpected};

/// The most output, standard output and errors together, that fits into a reply. After more than that the channel is broken,
/// and the exit of the program is lost.
pub const MAX_OUTPUT: usize = 4 << 20;
/// The length of a reply with that output: base64, and some more.
const MAX_REPLY: usize = MAX_OUTPUT / 3 * 4 + (64 << 10);
/// The time for such a reply.
const REPLY_TIME: Duration = Duration::from_secs(15);

/// A program to run in the guest. Arguments and input may hold secrets: they are never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct GuestCommand {
    /// A path, or a name that the guest looks up in its `PATH`.
    pub program: String,
    pub args: Vec<String>,
    /// `NAME=VALUE`. Empty: the agent's own environment.
    pub env: Vec<String>,
    /// The standard input; an empty one without it.
    pub input: Vec<u8>,
}

impl fmt::Debug for GuestCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestCommand").field("program", &self.program).finish_non_exhaustive()
    }
}

/// How a program in the guest ended, in the guest's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestExit {
    /// None: a signal ended it.
    pub code: Option<i64>,
    pub signal: Option<i64>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Whether the agent did not keep all of the output.
    pub is_truncated: bool,
}

impl GuestAgent {
    /// Starts a program in the guest, and returns its process identifier.
    pub async fn start_command(&mut self, command: &GuestCommand) -> Result<i64, GuestAgentError> {
        const NAME: &str = "guest-exec";
        let mut args = json!({"path": command.program, "arg": command.args, "capture-output": true});
        if !command.env.is_empty() {
            args["env"] = json!(command.env);
        }
        if !command.input.is_empty() {
            args["input-data"] = STANDARD.encode(&command.input).into();
        }
        let answer = self.execute(NAME, args).await?;
        answer["pid"].as_i64().ok_or_else(|| unexpected(NAME, &answer))
    }

    /// Returns how a program ended; None while it runs. The agent forgets a program whose exit it has returned.
    ///
    /// *Errors*: [`GuestAgentError::Broken`] also if there is more than [`MAX_OUTPUT`].
    pub async fn command_exit(&mut self, pid: i64) -> Result<Option<GuestExit>, GuestAgentError> {
        const NAME: &str = "guest-exec-status";
        let limits = Limits { time: REPLY_TIME.max(self.timeout), reply: MAX_REPLY };
        let answer = self.execute_within(limits, NAME, json!({"pid": pid})).await?;
        match answer["exited"].as_bool() {
            None => Err(unexpected(NAME, &answer)),
            Some(false) => Ok(None),
            Some(true) => exit(&answer).map(Some).ok_or_else(|| unexpected(NAME, &answer)),
        }
    }
}

fn exit(answer: &Value) -> Option<GuestExit> {
    let is_set = |key: &str| answer[key].as_bool().unwrap_or(false);
    Some(GuestExit {
        code: answer["exitcode"].as_i64(),
        signal: answer["signal"].as_i64(),
        stdout: bytes(&answer["out-data"])?,
        stderr: bytes(&answer["err-data"])?,
        is_truncated: is_set("out-truncated") || is_set("err-truncated"),
    })
}

/// Decodes base64. Without a text there are no bytes.
pub(super) fn bytes(value: &Value) -> Option<Vec<u8>> {
    value.as_str().map_or(Some(Vec::new()), |text| STANDARD.decode(text).ok())
}

#[cfg(test)]
mod tests {
    use super::super::tests::guest;
    use super::*;

    fn replies(exit: Value) -> GuestAgent {
        guest(move |message| match message["execute"].as_str() {
            Some("guest-exec") => Some(json!({"return": {"pid": 7}}).to_string()),
            _ => Some(json!({ "return": exit }).to_string()),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_gets_its_arguments_and_input_and_its_exit_is_returned() {
        let mut agent = guest(|message| match message["execute"].as_str()? {
            "guest-exec" => {
                let expected = json!({"path": "cat", "arg": ["-n"], "capture-output": true, "env": ["A=b"], "input-data": "aGk="});
                (message["arguments"] == expected).then(|| json!({"return": {"pid": 7}}).to_string())
            }
            _ => (message["arguments"]["pid"] == 7).then(|| {
                json!({"return": {"exited": true, "exitcode": 3, "out-data": "aGk=", "err-data": "Ym8="}})
                    .to_string()
            }),
        });
        let command = GuestCommand {
            program: "cat".to_owned(),
            args: vec!["-n".to_owned()],
            env: vec!["A=b".to_owned()],
            input: b"hi".to_vec(),
        };
        assert_eq!(agent.start_command(&command).await.expect("started"), 7);
        let exit = agent.command_exit(7).await.expect("answered").expect("ended");
        let expected = GuestExit {
            code: Some(3),
            stdout: b"hi".to_vec(),
            stderr: b"bo".to_vec(),
            ..GuestExit::default()
        };
        assert_eq!(exit, expected);
        assert!(!format!("{command:?}").contains("A=b"), "it may hold secrets");
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_runs_has_no_exit_and_one_that_was_killed_has_a_signal() {
        assert_eq!(replies(json!({"exited": false})).command_exit(7).await.expect("answered"), None);
        let exit = replies(json!({"exited": true, "signal": 9, "out-truncated": true})).command_exit(7).await;
        let exit = exit.expect("answered").expect("ended");
        assert_eq!((exit.code, exit.signal, exit.is_truncated), (None, Some(9), true));
    }

    #[tokio::test(start_paused = true)]
    async fn output_that_is_no_base64_or_without_end_is_an_error() {
        for wrong in [json!({"exited": true, "out-data": "%%"}), json!({"pid": 7}), json!([])] {
            let outcome = replies(wrong).command_exit(7).await;
            assert!(matches!(outcome, Err(GuestAgentError::Unexpected { .. })), "{outcome:?}");
        }
        let largest = STANDARD.encode(vec![b'x'; MAX_OUTPUT - 3]);
        let exit = replies(json!({"exited": true, "out-data": largest})).command_exit(7).await;
        assert_eq!(exit.expect("fits").expect("ended").stdout.len(), MAX_OUTPUT - 3);
        let larger = STANDARD.encode(vec![b'x'; MAX_OUTPUT + (64 << 10)]);
        let outcome = replies(json!({"exited": true, "out-data": larger})).command_exit(7).await;
        assert!(matches!(outcome, Err(GuestAgentError::Broken { .. })), "{outcome:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_reply_is_taken_from_this_command_only() {
        let mut agent = guest(|message| {
            let data = if message["execute"] == "guest-exec-status" {
                "eHh4".repeat(1 << 19)
            } else {
                String::new()
            };
            let name = "n".repeat(2 << 20);
            Some(json!({"return": {"exited": true, "out-data": data, "host-name": name}}).to_string())
        });
        assert!(agent.command_exit(7).await.is_ok());
        assert!(matches!(agent.host_name().await, Err(GuestAgentError::Broken { .. })));
    }
}
