//! Where the state directory is: a record in it of its path, and of the directory itself.
//!
//! A directory that was moved or copied, or whose path leads to another one, is used only if no machine runs that was started from where it
//! was before: such a machine has the former files open, and its monitor is at a path that leads elsewhere.
//!
//! | the recorded directory | machines started from its path | |
//! |---|---|---|
//! | is this one | | used |
//! | is still there, and an agent runs on it | | used: this one is a copy, and the Lease decides between the two agents |
//! | is still there without an agent, elsewhere, or gone | none | used, and recorded |
//! | is still there without an agent, elsewhere, or gone | some | refused |

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use berth_qemu::process::list_qemu;
use serde::{Deserialize, Serialize};

use super::files;
use crate::SystemError;

const FILE: &str = "place.json";

/// A directory, by its path and by its identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Place {
    fn of(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        Ok(Self { path: path.to_owned(), device: found.dev(), inode: found.ino() })
    }

    fn is_same_directory(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error(transparent)]
    System(#[from] SystemError),
    #[error(
        "the state directory {} is not the one at {} from which these QEMU processes were started, and they still run: {}. They go on \
         with the files of the former directory. Move that one back to its path if it was moved, and start berth with it, or end these \
         processes first",
        here.display(), former.display(), pids(running)
    )]
    Moved { here: PathBuf, former: PathBuf, running: Vec<i32> },
}

fn pids(running: &[i32]) -> String {
    running.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Use,
    Record,
    Refuse(Vec<i32>),
}

/// Checks that the state directory, an absolute path without links, is where it was, and records where it is. `lock` is the name of the
/// file in it that its agent holds locked.
///
/// *Errors:* it was moved, copied or replaced, and machines run that were started before that; the record cannot be read or written.
pub fn check(state_dir: &Path, lock: &str) -> Result<(), PlaceError> {
    let file = state_dir.join(FILE);
    let recorded: Option<Place> = match files::read_json(&file)? {
        None => None,
        Some(Ok(recorded)) => Some(recorded),
        // A crash of the machine may have emptied it.
        Some(Err(_)) => None,
    };
    let here = Place::of(state_dir).map_err(files::failed("look at", state_dir))?;
    let at = |path: &Path| Place::of(path).ok();
    let verdict = match &recorded {
        None => Verdict::Record,
        Some(recorded) => {
            let is_used = |directory: &Path| is_locked(&directory.join(lock));
            let found = judge(recorded, &here, at, is_used, machines_of);
            found.map_err(files::failed("look for machines of", &recorded.path))?
        }
    };
    match (verdict, recorded) {
        (Verdict::Use, _) => {}
        (Verdict::Refuse(running), Some(recorded)) => {
            return Err(PlaceError::Moved { here: here.path, former: recorded.path, running });
        }
        (Verdict::Record | Verdict::Refuse(_), _) => files::write_json(&file, &here, 0o600)?,
    }
    Ok(())
}

fn judge(
    recorded: &Place,
    here: &Place,
    at: impl Fn(&Path) -> Option<Place>,
    is_used: impl Fn(&Path) -> bool,
    machines_of: impl Fn(&Path) -> io::Result<Vec<i32>>,
) -> io::Result<Verdict> {
    if recorded == here {
        return Ok(Verdict::Use);
    }
    let is_still_there = at(&recorded.path).is_some_and(|found| found.is_same_directory(recorded));
    let is_this_one = here.is_same_directory(recorded);
    if recorded.path != here.path && is_still_there && (is_this_one || is_used(&recorded.path)) {
        return Ok(Verdict::Use);
    }
    let running = machines_of(&recorded.path)?;
    Ok(if running.is_empty() { Verdict::Record } else { Verdict::Refuse(running) })
}

/// Whether a process holds this file locked.
fn is_locked(file: &Path) -> bool {
    File::open(file).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Returns the QEMU processes with a path below this directory in their arguments.
fn machines_of(directory: &Path) -> io::Result<Vec<i32>> {
    let below = format!("{}/", directory.display());
    let found = list_qemu().map_err(io::Error::other)?;
    let ours = found.into_iter().filter(|qemu| qemu.argv.iter().any(|argument| argument.contains(&below)));
    let mut running: Vec<i32> = ours.map(|qemu| qemu.identity.pid).collect();
    running.sort_unstable();
    Ok(running)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    const LOCK: &str = "agent.lock";

    fn place(path: &str, inode: u64) -> Place {
        Place { path: path.into(), device: 1, inode }
    }

    #[test]
    fn a_moved_directory_is_refused_only_while_machines_run_that_were_started_before() {
        let old = place("/old", 7);
        let verdict = |here: &Place, still: Option<u64>, is_used: bool, running: &[i32]| {
            let at = |path: &Path| still.map(|inode| Place { path: path.to_owned(), ..place("", inode) });
            let machines = |path: &Path| {
                assert_eq!(path, Path::new("/old"));
                Ok(running.to_vec())
            };
            judge(&old, here, at, |_| is_used, machines).expect("judged")
        };
        assert_eq!(verdict(&old, Some(7), false, &[5]), Verdict::Use);
        assert_eq!(verdict(&place("/new", 7), Some(7), false, &[5]), Verdict::Use, "by another path");
        assert_eq!(verdict(&place("/new", 8), Some(7), true, &[5]), Verdict::Use, "a copy beside an agent");
        for (here, still) in [
            (place("/new", 8), Some(7)),
            (place("/new", 7), None),
            (place("/new", 8), None),
            (place("/new", 8), Some(9)),
            (place("/old", 8), Some(8)),
        ] {
            assert_eq!(verdict(&here, still, false, &[5, 6]), Verdict::Refuse(vec![5, 6]), "{here:?}");
            assert_eq!(verdict(&here, still, false, &[]), Verdict::Record, "{here:?}");
        }
    }

    #[test]
    fn an_agent_on_the_former_directory_is_seen_by_its_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        let (held, free) = (folder.path().join(LOCK), folder.path().join("free"));
        assert!(!is_locked(&held), "there is no file");
        let file = File::create(&held).expect("made");
        file.try_lock().expect("locked");
        File::create(&free).expect("made");
        assert!(is_locked(&held) && !is_locked(&free));
    }

    #[test]
    fn a_directory_that_is_moved_below_a_running_machine_is_used_again_where_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().canonicalize().expect("a path");
        let (old, new) = (folder.join("old"), folder.join("new"));
        fs::create_dir(&old).expect("made");
        check(&old, LOCK).expect("the first start");
        let mut machine = Command::new("/bin/sh");
        machine.arg0("qemu-system-x86_64").args(["-c", "read line; :", "-name"]).arg(old.join("qmp.sock"));
        machine.stdin(Stdio::piped());
        let mut machine = machine.spawn().expect("it starts");
        // A process has no command line yet when its program has just been loaded.
        while machines_of(&old).expect("listed").is_empty() {
            std::thread::yield_now();
        }
        check(&old, LOCK).expect("nothing has changed");
        fs::rename(&old, &new).expect("moved");
        let refused = check(&new, LOCK);
        let text = refused.as_ref().map_or_else(ToString::to_string, |_| String::new());
        fs::rename(&new, &old).expect("moved back");
        let back = check(&old, LOCK);
        machine.kill().expect("killed");
        machine.wait().expect("it ends");
        assert!(matches!(&refused, Err(PlaceError::Moved { .. })), "{refused:?}");
        assert!(text.contains(&machine.id().to_string()) && text.contains("Move that one back"), "{text}");
        back.expect("it is where it was");
        fs::rename(&old, &new).expect("moved");
        check(&new, LOCK).expect("nothing runs any more");
        check(&new, LOCK).expect("it is recorded");
    }
}
