//! The users of a fake guest, their SSH keys and their passwords.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

#[derive(Debug)]
pub(super) struct GuestUsers {
    /// The lines of the `authorized_keys` file of each user; None without a file.
    files: BTreeMap<String, Option<Vec<String>>>,
    /// The hashes that the password of each user was set to, the first one first.
    passwords: BTreeMap<String, Vec<String>>,
}

impl Default for GuestUsers {
    /// As after an installation: no user has a file.
    fn default() -> Self {
        let files = ["debian", "root"].map(|user| (user.to_owned(), None)).into();
        Self { files, passwords: BTreeMap::new() }
    }
}

impl GuestUsers {
    pub(super) fn keys(&self, user: &str) -> Vec<String> {
        self.files.get(user).cloned().flatten().unwrap_or_default()
    }

    pub(super) fn set_keys(&mut self, user: &str, keys: &[&str]) {
        self.files.insert(user.to_owned(), Some(keys.iter().map(|key| (*key).to_owned()).collect()));
    }

    pub(super) fn remove_user(&mut self, user: &str) {
        self.files.remove(user);
    }

    pub(super) fn passwords(&self, user: &str) -> Vec<String> {
        self.passwords.get(user).cloned().unwrap_or_default()
    }

    fn set_password(&mut self, args: &Map<String, Value>) -> Result<Value, String> {
        let text = |key: &str| args.get(key).and_then(Value::as_str).unwrap_or_default();
        let user = text("username");
        let decoded = STANDARD.decode(text("password")).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        match decoded {
            Some(hash)
                if self.files.contains_key(user) && args.get("crypted") == Some(&Value::Bool(true)) =>
            {
                self.passwords.entry(user.to_owned()).or_default().push(hash);
                Ok(json!({}))
            }
            _ => Err("child process has failed to set user password".to_owned()),
        }
    }

    /// Answers a command about keys or passwords, in the agent's words; None for any other command.
    pub(super) fn answer(
        &mut self,
        command: &str,
        args: &Map<String, Value>,
    ) -> Option<Result<Value, String>> {
        if command == "guest-set-user-password" {
            return Some(self.set_password(args));
        }
        let command = command.strip_prefix("guest-ssh-")?.strip_suffix("-authorized-keys")?;
        let user = args.get("username").and_then(Value::as_str).unwrap_or_default();
        let Some(file) = self.files.get_mut(user) else {
            return Some(Err(format!("failed to lookup user '{user}'")));
        };
        let no_file = || {
            format!(
                "failed to read '/home/{user}/.ssh/authorized_keys': Failed to open file: No such file or directory"
            )
        };
        let keys = args.get("keys").and_then(Value::as_array).into_iter().flatten();
        let keys: Vec<String> = keys.filter_map(Value::as_str).map(str::to_owned).collect();
        if keys.iter().any(|key| key.is_empty() || key.starts_with('#') || key.contains(['\r', '\n'])) {
            return Some(Err("invalid SSH key".to_owned()));
        }
        Some(match (command, file) {
            ("get", Some(lines)) => Ok(json!({ "keys": lines })),
            ("remove", Some(lines)) => {
                lines.retain(|line| !keys.contains(line));
                Ok(json!({}))
            }
            ("get" | "remove", None) => Err(no_file()),
            ("add", file) => {
                let lines = file.get_or_insert_default();
                for key in keys {
                    if !lines.contains(&key) {
                        lines.push(key);
                    }
                }
                Ok(json!({}))
            }
            _ => return None,
        })
    }
}
