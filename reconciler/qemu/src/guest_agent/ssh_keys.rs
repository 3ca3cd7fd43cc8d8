//! The SSH keys of users of the guest, which are the lines of their `authorized_keys` files (QEMU guest agent 5.2 or later), and their
//! passwords.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::{GuestAgent, GuestAgentError, unexpected};

/// The most lines of a file that are read, and the length of the longest in bytes.
const MAX_LINES: usize = 4096;
const MAX_LINE: usize = 16 << 10;

/// Why an agent refused a command for the keys of a user, as far as its words tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysRefusal {
    /// It does not have the command, or it is disabled.
    NoCommand,
    NoUser,
    /// The user has no `authorized_keys` file.
    NoFile,
    Other,
}

impl GuestAgent {
    /// Lists the keys of a user, without comments and empty lines.
    ///
    /// *Errors*: also if the user has no `authorized_keys` file: see [`GuestAgentError::keys_refusal`].
    pub async fn authorized_keys(&mut self, user: &str) -> Result<Vec<String>, GuestAgentError> {
        const NAME: &str = "guest-ssh-get-authorized-keys";
        let answer = self.execute(NAME, json!({"username": user})).await?;
        let lines = answer["keys"].as_array().ok_or_else(|| unexpected(NAME, &answer))?;
        let lines = lines.iter().take(MAX_LINES).filter_map(|line| line.as_str());
        Ok(lines.filter(|line| line.len() <= MAX_LINE).map(str::to_owned).collect())
    }

    /// Adds keys to those of a user. A file that does not exist is made.
    pub async fn add_authorized_keys(&mut self, user: &str, keys: &[String]) -> Result<(), GuestAgentError> {
        let args = json!({"username": user, "keys": keys});
        self.execute("guest-ssh-add-authorized-keys", args).await.map(|_| ())
    }

    /// Removes exactly these lines from the keys of a user.
    pub async fn remove_authorized_keys(
        &mut self,
        user: &str,
        keys: &[String],
    ) -> Result<(), GuestAgentError> {
        let args = json!({"username": user, "keys": keys});
        self.execute("guest-ssh-remove-authorized-keys", args).await.map(|_| ())
    }

    /// Sets the password of a user to the one with this hash of crypt(5).
    pub async fn set_password_hash(&mut self, user: &str, hash: &str) -> Result<(), GuestAgentError> {
        let args = json!({"username": user, "password": STANDARD.encode(hash), "crypted": true});
        self.execute("guest-set-user-password", args).await.map(|_| ())
    }
}

impl GuestAgentError {
    /// Returns why the agent refused a command for the keys of a user; None if it did not refuse.
    pub fn keys_refusal(&self) -> Option<KeysRefusal> {
        let Self::Refused { desc, is_unknown, .. } = self else { return None };
        let has = |words: &str| desc.contains(words);
        Some(match () {
            () if *is_unknown => KeysRefusal::NoCommand,
            () if has("lookup user") || has("look up user") => KeysRefusal::NoUser,
            () if has("No such file") => KeysRefusal::NoFile,
            () => KeysRefusal::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::guest;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_password_is_set_by_its_hash() {
        let mut agent = guest(|message| {
            let expected = json!({"username": "debian", "password": "JDYkYSRi", "crypted": true});
            let is_right =
                message["execute"] == "guest-set-user-password" && message["arguments"] == expected;
            is_right.then(|| json!({"return": {}}).to_string())
        });
        agent.set_password_hash("debian", "$6$a$b").await.expect("set");
    }

    #[tokio::test(start_paused = true)]
    async fn the_lines_of_a_user_are_read_added_and_removed() {
        let mut agent = guest(|message| {
            let args = &message["arguments"];
            match message["execute"].as_str()? {
                "guest-ssh-get-authorized-keys" => (*args == json!({"username": "debian"}))
                    .then(|| json!({"return": {"keys": ["ssh-rsa A a", "ssh-rsa B"]}}).to_string()),
                "guest-ssh-add-authorized-keys" | "guest-ssh-remove-authorized-keys" => (*args
                    == json!({"username": "debian", "keys": ["ssh-rsa C c"]}))
                .then(|| json!({"return": {}}).to_string()),
                _ => None,
            }
        });
        assert_eq!(agent.authorized_keys("debian").await.expect("read"), ["ssh-rsa A a", "ssh-rsa B"]);
        let keys = ["ssh-rsa C c".to_owned()];
        agent.add_authorized_keys("debian", &keys).await.expect("added");
        agent.remove_authorized_keys("debian", &keys).await.expect("removed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_with_endless_lines_gives_a_bounded_answer_or_an_error() {
        let lines = vec!["ssh-rsa A".to_owned(); 20_000];
        let many = json!({"return": {"keys": lines}}).to_string();
        let read = guest(move |_| Some(many.clone())).authorized_keys("debian").await.expect("read");
        assert_eq!(read.len(), MAX_LINES);
        let long = json!({"return": {"keys": ["x".repeat(MAX_LINE + 1), "ssh-rsa B", 7, null]}}).to_string();
        let read = guest(move |_| Some(long.clone())).authorized_keys("debian").await.expect("read");
        assert_eq!(read, ["ssh-rsa B"]);
        for wrong in [json!({}), json!({"keys": "ssh-rsa A"}), json!(null), json!([])] {
            let answer = json!({"return": wrong}).to_string();
            let outcome = guest(move |_| Some(answer.clone())).authorized_keys("debian").await;
            assert!(matches!(outcome, Err(GuestAgentError::Unexpected { .. })), "{outcome:?}");
        }
        let outcome = guest(|_| Some("x".repeat(3 << 20))).authorized_keys("debian").await;
        assert!(matches!(outcome, Err(GuestAgentError::Broken { .. })), "{outcome:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_told_apart_by_its_class_and_its_words() {
        for (class, desc, expected) in [
            (
                "CommandNotFound",
                "The command guest-ssh-get-authorized-keys has not been found",
                KeysRefusal::NoCommand,
            ),
            (
                "CommandNotFound",
                "Command guest-ssh-get-authorized-keys has been disabled",
                KeysRefusal::NoCommand,
            ),
            ("GenericError", "failed to lookup user 'x': No such file or directory", KeysRefusal::NoUser),
            (
                "GenericError",
                "failed to read '/home/x/.ssh/authorized_keys': No such file or directory",
                KeysRefusal::NoFile,
            ),
            (
                "GenericError",
                "failed to read '/home/x/.ssh/authorized_keys': Permission denied",
                KeysRefusal::Other,
            ),
        ] {
            let answer = json!({"error": {"class": class, "desc": desc}}).to_string();
            let outcome = guest(move |_| Some(answer.clone())).authorized_keys("x").await;
            assert_eq!(outcome.expect_err("refused").keys_refusal(), Some(expected), "{desc}");
        }
        assert_eq!(GuestAgentError::Broken { detail: String::new() }.keys_refusal(), None);
    }
}
