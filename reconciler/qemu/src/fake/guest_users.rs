//! The users of a fake guest and their SSH keys.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// The lines of the `authorized_keys` file of each user; None without a file.
#[derive(Debug)]
pub(super) struct GuestUsers(BTreeMap<String, Option<Vec<String>>>);

impl Default for GuestUsers {
    /// As after an installation: no user has a file.
    fn default() -> Self {
        Self(["debian", "root"].map(|user| (user.to_owned(), None)).into())
    }
}

impl GuestUsers {
    pub(super) fn keys(&self, user: &str) -> Vec<String> {
        self.0.get(user).cloned().flatten().unwrap_or_default()
    }

    pub(super) fn set_keys(&mut self, user: &str, keys: &[&str]) {
        self.0.insert(user.to_owned(), Some(keys.iter().map(|key| (*key).to_owned()).collect()));
    }

    pub(super) fn remove_user(&mut self, user: &str) {
        self.0.remove(user);
    }

    /// Answers a command about keys, in the agent's words; None for any other command.
    pub(super) fn answer(
        &mut self,
        command: &str,
        args: &Map<String, Value>,
    ) -> Option<Result<Value, String>> {
        let command = command.strip_prefix("guest-ssh-")?.strip_suffix("-authorized-keys")?;
        let user = args.get("username").and_then(Value::as_str).unwrap_or_default();
        let Some(file) = self.0.get_mut(user) else {
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
