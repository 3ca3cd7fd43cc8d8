//! Enforces one agent per machine: two would fight over its bridges, its firewall and its guests' addresses.

use std::{
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io::{ErrorKind, Read, Write},
    os::{
        fd::AsRawFd,
        linux::net::SocketAddrExt,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
        unix::net::{SocketAddr, UnixListener},
    },
    path::{Path, PathBuf},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt::PeerCredentials,
};
use nix::unistd::Uid;

/// A file in the state directory: the holder of its lock owns the directory.
pub(super) const LOCK: &str = "agent.lock";
/// Writable by root only, so that no other user can hold a lock there. Volatile, as are bridges and firewall.
const RUN: &str = "/run/berth";
/// The name of an abstract socket. It belongs to the network namespace, so it is visible where `/run` differs, as
/// in containers with the host's network.
const NAME: &str = "berth-agent";
/// How long it may take to identify the holder of the name.
const NAME_WAIT: Duration = Duration::from_secs(2);
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// The maximum length of a process id in bytes.
const MAX_PID: u64 = 16;

/// Gives this process's agent the state directory and this machine's network until the process ends.
///
/// *Errors:* another process has them.
pub(super) fn claim(state_dir: &Path) -> anyhow::Result<()> {
    static CLAIM: OnceLock<Vec<File>> = OnceLock::new();
    let mut held = vec![hold(&state_dir.join(LOCK))?];
    if Uid::effective().is_root() {
        held.push(hold(&network_lock()?)?);
        if let Some(listener) = hold_name(NAME, Uid::is_root)? {
            answer(listener)?;
        }
    }
    // The kernel has already refused a second claim by this same process.
    let _ = CLAIM.set(held);
    Ok(())
}

/// Bridges and firewall belong to a network namespace; one machine may have several.
fn network_lock() -> anyhow::Result<PathBuf> {
    let what = || format!("making {RUN}");
    DirBuilder::new().recursive(true).mode(0o700).create(RUN).with_context(what)?;
    let namespace = std::fs::metadata("/proc/self/ns/net").context("looking at the network namespace")?;
    Ok(Path::new(RUN).join(format!("agent-{}.lock", namespace.ino())))
}

/// Locks a file. The lock is released when this process ends, in whatever way.
fn hold(path: &Path) -> anyhow::Result<File> {
    let what = || format!("claiming this machine by {}", path.display());
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW);
    let mut file = options.open(path).with_context(what)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let who = holder(&mut file).map(|pid| format!(" (process {pid})")).unwrap_or_default();
            return Err(taken(&who));
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(what),
    }
    file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).with_context(what)?;
    Ok(file)
}

fn taken(who: &str) -> anyhow::Error {
    anyhow!(
        "another berth{who} manages the VMs and networks of this machine already, and only one can: \
         stop it first, or start this one with --no-agent if it is to be a control plane only"
    )
}

/// Binds the abstract socket of this name, which is released when this process ends, in whatever way. `None`: a
/// user that runs no agent holds it. Every local user can take the name, but cannot prevent an agent from starting
/// with it.
///
/// *Errors:* a user that may run an agent holds it.
fn hold_name(name: &str, may_run_agent: impl Fn(Uid) -> bool) -> anyhow::Result<Option<UnixListener>> {
    let what = || format!("claiming this machine by the abstract socket {name}");
    let address = SocketAddr::from_abstract_name(name).with_context(what)?;
    let deadline = Instant::now() + NAME_WAIT;
    loop {
        match UnixListener::bind_addr(&address) {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error).with_context(what),
        }
        match name_owner(name) {
            Ok(user) if may_run_agent(user) => bail!(taken(" (with another /run, in a container perhaps)")),
            Ok(user) => {
                tracing::warn!(name, %user, "an unprivileged user holds the name of the agent's socket");
                return Ok(None);
            }
            // The holder has just ended, does not listen yet, or lets its queue fill: an agent empties its own.
            Err(error) if Instant::now() >= deadline => {
                tracing::warn!(name, %error, "the holder of the agent's socket does not answer");
                return Ok(None);
            }
            Err(_) => thread::sleep(ASK_AGAIN),
        }
    }
}

/// Returns the user that first listened at this name, according to the kernel.
fn name_owner(name: &str) -> nix::Result<Uid> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let asking = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(asking.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    Ok(Uid::from_raw(getsockopt(&asking, PeerCredentials)?.uid()))
}

/// Accepts connections for as long as this process lives: with its queue full, the socket would not reveal its
/// owner.
fn answer(listener: UnixListener) -> anyhow::Result<()> {
    let accept = move || {
        for asked in listener.incoming() {
            if asked.is_err() {
                thread::sleep(ASK_AGAIN);
            }
        }
    };
    let spawned = thread::Builder::new().name("agent-name".to_owned()).spawn(accept);
    spawned.map(drop).context("starting a thread")
}

/// Returns the process id that the lock's holder wrote. A process of another PID namespace cannot be distinguished
/// from one of ours.
fn holder(file: &mut File) -> Option<i32> {
    let mut text = String::new();
    file.take(MAX_PID).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_claim_names_who_has_the_first_and_a_claim_ends_with_its_holder() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let lock = folder.path().join(LOCK);
        let first = hold(&lock).expect("it is free");
        let error = hold(&lock).expect_err("it is taken").to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        hold(&lock).expect("it is free again");
    }

    #[test]
    fn who_cannot_write_in_the_state_directory_cannot_hold_an_agent_off() {
        let name = format!("berth-test-squatted-{}", std::process::id());
        let _squatter = hold_name(&name, |_| true).expect("it is free").expect("it is free");
        // As an agent that runs as another user sees it.
        assert!(hold_name(&name, |user| user != Uid::effective()).expect("no reason not to start").is_none());
        let folder = tempfile::tempdir().expect("temporary folder");
        hold(&folder.path().join(LOCK)).expect("nothing stands in the way");
        std::os::unix::fs::symlink("/dev/null", folder.path().join("link")).expect("a link");
        hold(&folder.path().join("link")).expect_err("links are not followed");
    }

    #[test]
    fn an_agent_of_another_run_is_seen_by_its_socket_until_it_ends() {
        let name = format!("berth-test-name-{}", std::process::id());
        let may_run_agent = |user| user == Uid::effective();
        let first = hold_name(&name, may_run_agent).expect("it is free").expect("it is free");
        let error = hold_name(&name, may_run_agent).expect_err("it is taken").to_string();
        assert!(error.contains("only one can"), "{error}");
        drop(first);
        hold_name(&name, may_run_agent).expect("it is free again").expect("it is free again");
    }

    #[test]
    fn a_holder_of_the_name_that_does_not_say_whose_it_is_keeps_no_agent_from_starting() {
        let name = format!("berth-test-full-{}", std::process::id());
        let squatter = hold_name(&name, |_| true).expect("it is free").expect("it is free");
        // A queue that is full at once, and is not emptied.
        nix::sys::socket::listen(&squatter, nix::sys::socket::Backlog::new(0).expect("small")).expect("set");
        name_owner(&name).expect("there is room for one");
        let start = Instant::now();
        assert!(hold_name(&name, |_| true).expect("no reason not to start").is_none());
        assert!((NAME_WAIT..NAME_WAIT * 5).contains(&start.elapsed()), "{:?}", start.elapsed());
    }

    #[test]
    fn an_agent_says_whose_its_socket_is_however_often_it_is_asked() {
        let name = format!("berth-test-asked-{}", std::process::id());
        let listener = hold_name(&name, |_| true).expect("it is free").expect("it is free");
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).expect("small")).expect("set");
        answer(listener).expect("a thread");
        for _ in 0..20 {
            hold_name(&name, |_| true).expect_err("it is known whose it is");
        }
    }
}
