//! The SSH keys and passwords of users of the guests that run here: a task for each VM that declares some.
//!
//! ```text
//!   reconcile ──keep(plan)──▶ task: each user: read ▸ add ▸ remove ▸ read ▸ set the password
//!       ▲                      │  ▲
//!       └──────── queue ◀──────┘  └── the guest agent starts, or after a while
//! ```
//!
//! berth's keys are the lines that end with [`MARK`]: only they are removed, and the guest's files are the record of them.
//! A password cannot be read back: it is set once for each version of its Secret, which the VM's status records afterwards.
//! Tasks are not waited for: a guest that does not answer holds up its own keys only. Its answers change nothing but what is
//! reported of it, and what is written to its own files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::{Reason, VM, password};
use berth_engine::Queue;
use berth_qemu::guest_agent::{GuestAgentError, KeysRefusal};
use berth_qemu::hypervisor::ProcessIdentity;
use sha2::{Digest, Sha256};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::key::{Key, ObjectName};
use crate::machine::{GuestError, Machine};

/// The end of the comment of each key that berth sets.
const MARK: &str = " managed-by=berth";
/// How often keys are compared with those in the guest: if they were the declared ones, and otherwise.
const CHECK_EVERY: Duration = Duration::from_secs(300);
const RETRY_EVERY: Duration = Duration::from_secs(30);
/// The most keys that are removed in one exchange.
const MOST_REMOVED: usize = 128;

/// The keys and the password that a user of a guest is to have.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct UserKeys {
    pub(crate) user: String,
    /// Lines of the guest's file.
    lines: Vec<String>,
    password: Option<UserPassword>,
}

/// A password, or its hash. Never printed.
#[derive(Clone, PartialEq, Eq)]
struct UserPassword {
    /// Names the Secret in this version, and the guest's data that it is for.
    version: String,
    text: String,
}

/// The hashes of passwords, by user.
type Hashes = BTreeMap<String, String>;

impl UserPassword {
    /// Returns the hash, which is computed once: that takes tens of milliseconds, and a guest may refuse it every second.
    fn hash_once(&self, user: &str, hashes: &mut Hashes) -> Option<String> {
        if let Some(hash) = hashes.get(user) {
            return Some(hash.clone());
        }
        let hash = self.hash(user)?;
        hashes.insert(user.to_owned(), hash.clone());
        Some(hash)
    }

    /// Returns the hash. The version, which is another one for each user and Secret, makes the salt.
    fn hash(&self, user: &str) -> Option<String> {
        let salt = Sha256::digest(format!("{user} {}", self.version)).first_chunk().copied()?;
        password::hashed(&self.text, salt)
    }
}

impl UserKeys {
    /// Returns the keys of a user: each once, with berth's mark.
    pub(crate) fn new<'a>(user: &str, keys: impl IntoIterator<Item = &'a str>) -> Self {
        let mut seen = BTreeSet::new();
        let marked = |key: &str| {
            let key = key.trim();
            if is_ours(key) { key.to_owned() } else { format!("{key}{MARK}") }
        };
        let lines = keys.into_iter().map(marked).filter(|line| seen.insert(line.clone())).collect();
        Self { user: user.to_owned(), lines, password: None }
    }

    /// Adds a password, or its hash, of this version.
    pub(crate) fn with_password(self, version: String, text: String) -> Self {
        Self { password: Some(UserPassword { version, text }), ..self }
    }

    /// The number of keys.
    pub(crate) fn count(&self) -> usize {
        self.lines.len()
    }
}

impl fmt::Debug for UserKeys {
    /// The keys may come from a Secret, and the password does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys of {}", self.lines.len(), self.user)
    }
}

fn is_ours(line: &str) -> bool {
    line.trim_end().ends_with(MARK)
}

/// The version of the password that each user was given last.
pub(crate) type PasswordVersions = BTreeMap<String, String>;

/// The users of a running guest whose keys are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeysPlan {
    pub(crate) process: ProcessIdentity,
    pub(crate) users: Vec<UserKeys>,
    /// As the VM's status has them.
    pub(crate) recorded: PasswordVersions,
}

impl KeysPlan {
    /// Whether both keep the same.
    fn has_same_aim(&self, other: &Self) -> bool {
        (&self.process, &self.users) == (&other.process, &other.users)
    }
}

/// The keys of a user as they were last found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeysFound {
    /// The declared ones, and no other ones of berth.
    Synced,
    Differ(KeysProblem),
}

/// Why a user does not have the declared keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeysProblem {
    NoAgent,
    NoCommand(&'static str),
    NoUser,
    /// The agent refused a command otherwise.
    Refused(&'static str),
    /// The agent's answers cannot be used.
    Unusable,
    /// The guest has other keys than those that its agent accepted.
    NotKept,
}

impl KeysProblem {
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::NoAgent => Reason::NoGuestAgent,
            Self::NoUser => Reason::NoSuchGuestUser,
            Self::NoCommand(_) | Self::Refused(_) | Self::Unusable | Self::NotKept => {
                Reason::GuestAgentRefused
            }
        }
    }
}

impl fmt::Display for KeysProblem {
    /// The text has nothing that the guest wrote.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAgent => f.write_str("no guest agent has answered"),
            Self::NoCommand(command) => {
                write!(
                    f,
                    "the guest agent does not have the command {command}, or its configuration forbids it"
                )
            }
            Self::NoUser => f.write_str("the guest has no such user"),
            Self::Refused(command) => {
                write!(f, "the guest agent could not do {command}: its log in the guest has the cause")
            }
            Self::Unusable => f.write_str("the guest agent gave no usable answer"),
            Self::NotKept => f.write_str("the guest has other keys than those that its agent accepted"),
        }
    }
}

impl From<GuestError> for KeysProblem {
    fn from(error: GuestError) -> Self {
        let GuestError::Agent(error) = error else { return Self::NoAgent };
        match (&error, error.keys_refusal()) {
            (GuestAgentError::Refused { command, .. }, Some(KeysRefusal::NoCommand)) => {
                Self::NoCommand(command)
            }
            (_, Some(KeysRefusal::NoUser)) => Self::NoUser,
            (GuestAgentError::Refused { command, .. }, _) => Self::Refused(command),
            (GuestAgentError::Silent { .. } | GuestAgentError::Connect { .. }, _) => Self::NoAgent,
            _ => Self::Unusable,
        }
    }
}

/// The keys that are kept.
#[derive(Debug)]
pub(crate) struct SshKeys {
    queue: Arc<Queue<Key>>,
    kept: Mutex<BTreeMap<ObjectName, Kept>>,
}

type Results = BTreeMap<String, KeysFound>;

#[derive(Debug)]
struct Kept {
    plan: KeysPlan,
    machine: Machine,
    results: Arc<Mutex<Results>>,
    passwords: Arc<Mutex<PasswordVersions>>,
    task: JoinHandle<()>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SshKeys {
    pub(crate) fn new(queue: Arc<Queue<Key>>) -> Self {
        Self { queue, kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<ObjectName, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether exactly these keys are kept, on a machine that is connected.
    pub(crate) fn is_keeping(&self, vm: &ObjectName, plan: Option<&KeysPlan>) -> bool {
        match (self.kept().get(vm), plan) {
            (None, None) => true,
            (Some(has), Some(plan)) => has.plan.has_same_aim(plan) && !has.machine.is_closed(),
            _ => false,
        }
    }

    /// Keeps exactly these keys of a VM from now on.
    pub(crate) fn keep(&self, vm: &ObjectName, plan: KeysPlan, machine: Machine) {
        let results = Arc::new(Mutex::new(Results::new()));
        // What this process has set may not be recorded yet.
        let mut versions = plan.recorded.clone();
        versions.extend(self.password_versions(vm));
        let passwords = Arc::new(Mutex::new(versions));
        let (users, guest, found) = (plan.users.clone(), machine.clone(), results.clone());
        let given = passwords.clone();
        let (queue, key) = (self.queue.clone(), Key::new::<VM>(vm.clone()));
        let task = tokio::spawn(async move {
            let mut hashes = Hashes::new();
            loop {
                let seen = guest.agent_starts();
                let latest = sync_all(&guest, &users, &given, &mut hashes).await;
                let all_synced = latest.values().all(|found| *found == KeysFound::Synced);
                let before = std::mem::replace(&mut *lock(&found), latest.clone());
                if before != latest {
                    queue.add(key.clone());
                }
                let wait = if all_synced { CHECK_EVERY } else { RETRY_EVERY };
                tokio::select! {
                    () = guest.next_agent_start(seen) => {}
                    () = sleep(wait) => {}
                }
                if guest.is_closed() {
                    return;
                }
            }
        });
        self.kept().insert(vm.clone(), Kept { plan, machine, results, passwords, task });
    }

    /// Leaves the keys of a VM as they are.
    pub(crate) fn forget(&self, vm: &ObjectName) {
        self.kept().remove(vm);
    }

    /// Returns the versions of the passwords that the users were given, as far as this agent knows.
    pub(crate) fn password_versions(&self, vm: &ObjectName) -> PasswordVersions {
        self.kept().get(vm).map(|kept| lock(&kept.passwords).clone()).unwrap_or_default()
    }

    /// Returns the keys of a user as they were last found in this process; None before that, and if others are kept.
    pub(crate) fn found(
        &self,
        vm: &ObjectName,
        process: &ProcessIdentity,
        keys: &UserKeys,
    ) -> Option<KeysFound> {
        let kept = self.kept();
        let kept =
            kept.get(vm).filter(|kept| kept.plan.process == *process && kept.plan.users.contains(keys))?;
        lock(&kept.results).get(&keys.user).cloned()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn sync_all(
    guest: &Machine,
    users: &[UserKeys],
    passwords: &Mutex<PasswordVersions>,
    hashes: &mut Hashes,
) -> Results {
    let mut results = Results::new();
    for keys in users {
        let of_keys = sync(guest, keys).await;
        let of_password = sync_password(guest, keys, passwords, hashes).await;
        let found = match of_keys.and(of_password) {
            Ok(()) => KeysFound::Synced,
            Err(problem) => KeysFound::Differ(problem),
        };
        results.insert(keys.user.clone(), found);
    }
    results
}

/// Sets the keys of a user: new ones first, so that one of them always gets in.
async fn sync(guest: &Machine, keys: &UserKeys) -> Result<(), KeysProblem> {
    let present = read(guest, &keys.user).await?;
    let Some((missing, surplus)) = difference(&keys.lines, &present) else { return Ok(()) };
    if !missing.is_empty() {
        let user = keys.user.clone();
        guest
            .exchange(move |agent| Box::pin(async move { agent.add_authorized_keys(&user, &missing).await }))
            .await?;
    }
    if !surplus.is_empty() {
        let user = keys.user.clone();
        guest
            .exchange(move |agent| {
                Box::pin(async move { agent.remove_authorized_keys(&user, &surplus).await })
            })
            .await?;
    }
    let present = read(guest, &keys.user).await?;
    match difference(&keys.lines, &present) {
        None => Ok(()),
        Some(_) => Err(KeysProblem::NotKept),
    }
}

/// Sets the password of a user, unless the user was given this version before.
async fn sync_password(
    guest: &Machine,
    keys: &UserKeys,
    versions: &Mutex<PasswordVersions>,
    hashes: &mut Hashes,
) -> Result<(), KeysProblem> {
    let Some(password) = &keys.password else { return Ok(()) };
    let given = lock(versions).get(&keys.user).cloned();
    if given.as_ref() == Some(&password.version) {
        return Ok(());
    }
    let hash = password.hash_once(&keys.user, hashes).ok_or(KeysProblem::Unusable)?;
    let user = keys.user.clone();
    guest.exchange(move |agent| Box::pin(async move { agent.set_password_hash(&user, &hash).await })).await?;
    lock(versions).insert(keys.user.clone(), password.version.clone());
    Ok(())
}

async fn read(guest: &Machine, user: &str) -> Result<Vec<String>, KeysProblem> {
    let name = user.to_owned();
    let read = guest.exchange(move |agent| Box::pin(async move { agent.authorized_keys(&name).await })).await;
    match read {
        Err(GuestError::Agent(error)) if error.keys_refusal() == Some(KeysRefusal::NoFile) => Ok(Vec::new()),
        read => Ok(read?),
    }
}

/// Returns the lines to add and those to remove; None if there are none.
fn difference(declared: &[String], present: &[String]) -> Option<(Vec<String>, Vec<String>)> {
    let missing: Vec<String> = declared.iter().filter(|line| !present.contains(line)).cloned().collect();
    let surplus = present.iter().filter(|line| is_ours(line) && !declared.contains(line));
    let surplus: Vec<String> = surplus.take(MOST_REMOVED).cloned().collect();
    (!missing.is_empty() || !surplus.is_empty()).then_some((missing, surplus))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn each_key_is_there_once_with_the_mark() {
        let keys = UserKeys::new("a", ["ssh-rsa A me\n", "ssh-rsa A me", "ssh-rsa B managed-by=berth"]);
        assert_eq!(keys.lines, ["ssh-rsa A me managed-by=berth", "ssh-rsa B managed-by=berth"]);
        assert_eq!(format!("{keys:?}"), "2 keys of a", "keys are not printed");
        let keys = keys.with_password("1".to_owned(), "canary".to_owned());
        assert_eq!(format!("{keys:?}"), "2 keys of a", "nor is a password");
    }

    #[test]
    fn the_hash_of_a_password_is_computed_once() {
        let keys = UserKeys::new("a", []).with_password("1".to_owned(), "canary".to_owned());
        let password = keys.password.expect("a password");
        let mut hashes = Hashes::new();
        let hash = password.hash_once("a", &mut hashes).expect("a hash");
        assert_eq!(hashes, Hashes::from([("a".to_owned(), hash)]));
        hashes.insert("a".to_owned(), "the one before".to_owned());
        assert_eq!(password.hash_once("a", &mut hashes).as_deref(), Some("the one before"));
    }

    #[test]
    fn only_keys_with_the_mark_are_removed() {
        let declared = UserKeys::new("a", ["ssh-rsa A", "ssh-rsa B"]).lines;
        let present = lines(&[
            "ssh-rsa A managed-by=berth",
            "ssh-rsa C managed-by=berth",
            "ssh-rsa D",
            "ssh-rsa B",
            "",
        ]);
        let expected = (lines(&["ssh-rsa B managed-by=berth"]), lines(&["ssh-rsa C managed-by=berth"]));
        assert_eq!(difference(&declared, &present), Some(expected));
        assert_eq!(difference(&declared, &declared), None);
        assert_eq!(difference(&[], &lines(&["ssh-rsa D", "# managed-by=berth is a mark"])), None);
    }
}
