//! Programs and files of a fake guest.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// The programs that a fake guest has run, and its files.
#[derive(Debug, Default)]
pub(super) struct GuestPrograms {
    /// By process: the answer when it is asked for; None while it runs.
    exits: BTreeMap<i64, Option<Value>>,
    files: BTreeMap<String, Vec<u8>>,
    /// By handle: path and position.
    open: BTreeMap<i64, (String, usize)>,
    last: i64,
    pub(super) package: AgentPackage,
}

/// The package of the guest's agent, as the script that changes it in a guest does.
#[derive(Debug, Default)]
pub(super) struct AgentPackage {
    /// The actions that were run, the first one first.
    pub(super) actions: Vec<String>,
    /// The exit code of the package manager.
    pub(super) exit_code: u8,
    /// By the identity of the run.
    results: BTreeMap<String, u8>,
}

impl AgentPackage {
    fn change(&mut self, action: &str, run: &str) {
        self.actions.push(action.to_owned());
        self.results.insert(run.to_owned(), self.exit_code);
    }

    /// Whether the last action has removed the agent.
    pub(super) fn is_removed(&self) -> bool {
        self.exit_code == 0 && self.actions.last().is_some_and(|action| action == "remove")
    }
}

impl GuestPrograms {
    /// Answers a command about programs or files; None for any other command.
    pub(super) fn answer(
        &mut self,
        command: &str,
        args: &Map<String, Value>,
    ) -> Option<Result<Value, String>> {
        let text = |key: &str| args.get(key).and_then(Value::as_str).unwrap_or_default();
        let number = |key: &str| args.get(key).and_then(Value::as_i64).unwrap_or_default();
        let data = |key: &str| STANDARD.decode(text(key)).unwrap_or_default();
        Some(match command {
            "guest-exec" => {
                let words = args.get("arg").and_then(Value::as_array).into_iter().flatten();
                let words: Vec<&str> = words.filter_map(Value::as_str).collect();
                self.run(text("path"), &words, &data("input-data"))
            }
            "guest-exec-status" => match self.exits.get(&number("pid")) {
                None => Err("Invalid parameter 'pid'".to_owned()),
                Some(None) => Ok(json!({"exited": false})),
                Some(Some(exit)) => Ok(exit.clone()),
            },
            "guest-file-open" => self.open(text("path"), text("mode")),
            "guest-file-read" => self.read(number("handle"), number("count")),
            "guest-file-write" => self.write(number("handle"), &data("buf-b64")),
            "guest-file-close" => match self.open.remove(&number("handle")) {
                Some(_) => Ok(json!({})),
                None => Err("invalid handle".to_owned()),
            },
            _ => return None,
        })
    }

    /// Creates an empty file, or removes it.
    pub(super) fn set_file(&mut self, path: &str, exists: bool) {
        if exists {
            self.files.insert(path.to_owned(), Vec::new());
        } else {
            self.files.remove(path);
        }
    }

    /// The number of programs that were started.
    pub(super) fn started(&self) -> usize {
        self.exits.len()
    }

    fn next(&mut self) -> i64 {
        self.last += 1;
        self.last
    }

    fn run(&mut self, program: &str, args: &[&str], input: &[u8]) -> Result<Value, String> {
        let exit = |code: i64, out: &[u8], err: &str| {
            Some(
                json!({"exited": true, "exitcode": code, "out-data": STANDARD.encode(out), "err-data": STANDARD.encode(err)}),
            )
        };
        let exit = match (program, args) {
            ("echo", words) => exit(0, format!("{}\n", words.join(" ")).as_bytes(), ""),
            ("cat", _) => exit(0, input, ""),
            ("fail", _) => exit(3, b"", "it failed\n"),
            ("sleep", _) => None,
            ("test", ["-e", path]) => exit(i64::from(!self.files.contains_key(*path)), b"", ""),
            ("yes", _) => exit(0, &vec![b'y'; 5 << 20], ""),
            ("/bin/sh", ["-c", _, _, _, action, run]) => {
                self.package.change(action, run);
                exit(0, b"", "")
            }
            ("/bin/sh", ["-c", _, _, "result", run]) => match self.package.results.get(*run) {
                Some(code) => exit(0, format!("{code}\n").as_bytes(), ""),
                None => exit(1, b"", "No such file or directory\n"),
            },
            ("/bin/sh", ["-c", script, _, path]) if script.contains("umask") => {
                let is_made = !self.files.contains_key(*path);
                self.files.entry((*path).to_owned()).or_default();
                exit(0, if is_made { b"made\n" } else { b"" }, "")
            }
            ("/bin/sh", ["-c", script, _, path]) => {
                // The permissions, so that a test can read them.
                self.files.insert(format!("{path}.mode"), script.as_bytes().to_vec());
                exit(0, b"", "")
            }
            _ => return Err(format!("Failed to execute child process \u{201c}{program}\u{201d}")),
        };
        let pid = self.next();
        self.exits.insert(pid, exit);
        Ok(json!({ "pid": pid }))
    }

    fn open(&mut self, path: &str, mode: &str) -> Result<Value, String> {
        if mode == "w" {
            self.files.insert(path.to_owned(), Vec::new());
        } else if !self.files.contains_key(path) {
            return Err(format!("failed to open file '{path}' (mode: '{mode}'): No such file or directory"));
        }
        let handle = self.next();
        self.open.insert(handle, (path.to_owned(), 0));
        Ok(json!(handle))
    }

    fn read(&mut self, handle: i64, count: i64) -> Result<Value, String> {
        let (path, position) = self.open.get_mut(&handle).ok_or("invalid handle")?;
        let content = self.files.get(path).ok_or("the file is gone")?;
        let rest = &content[*position..];
        let piece = &rest[..rest.len().min(usize::try_from(count).unwrap_or(0))];
        *position += piece.len();
        let is_end = *position == content.len();
        Ok(json!({"count": piece.len(), "buf-b64": STANDARD.encode(piece), "eof": is_end}))
    }

    fn write(&mut self, handle: i64, piece: &[u8]) -> Result<Value, String> {
        let (path, _) = self.open.get(&handle).ok_or("invalid handle")?;
        self.files.get_mut(path).ok_or("the file is gone")?.extend_from_slice(piece);
        Ok(json!({"count": piece.len(), "eof": false}))
    }
}
