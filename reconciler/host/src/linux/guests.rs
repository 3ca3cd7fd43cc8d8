//! The end of guests without an agent, before the machine is shut down.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use berth_qemu::machine::MachinePaths;
use berth_qemu::power::{self, RunState};
use berth_qemu::qmp::{Qmp, QmpError};
use berth_qemu::saved_state::{Transfer, transfer};
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout_at};

use super::layout::Layout;
use crate::SystemError;

/// The time for a monitor to answer. Another client keeps it from doing so.
const ANSWER: Duration = Duration::from_secs(5);
/// How often a guest is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often the power button is pressed, within the time for the guests.
const PRESSES: u32 = 3;

/// Asks all guests of this machine to shut down, by their power buttons, and ends the QEMUs of those that have. Returns the instances
/// whose QEMU still runs after this time.
///
/// *Assumptions:* no agent runs that would start them again. One may stop them at the same time.
///
/// # Errors
/// The folder of instances cannot be read.
pub async fn shut_down_guests(state_dir: &Path, within: Duration) -> Result<Vec<String>, SystemError> {
    let layout = Layout::new(state_dir);
    let folder = layout.instances();
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(SystemError::File { attempt: "read", path: folder, source }),
    };
    let mut instances: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    instances.sort();
    let end = Instant::now() + within;
    let asked = instances.into_iter().map(|instance| {
        // An agent, which may be of another version or wait for its control plane, has the other monitor.
        let monitor = MachinePaths::in_directory(layout.instance(&instance).join("run")).rescue;
        let saved = layout.state(&instance);
        async move {
            // A QEMU that a guest has taken over may answer late, or not at all, after its greeting.
            let ended = timeout_at(end, shut_down(&monitor, &saved, within, end)).await;
            (!ended.unwrap_or(false)).then_some(instance)
        }
    });
    Ok(join_all(asked).await.into_iter().flatten().collect())
}

/// Shuts down the guest with this monitor. `saved`: the file of its memory, if that is saved. False: its QEMU still runs.
async fn shut_down(monitor: &Path, saved: &Path, within: Duration, end: Instant) -> bool {
    let mut pressed: Option<Instant> = None;
    loop {
        let answered = timeout_at(end.min(Instant::now() + ANSWER), Qmp::connect(monitor)).await;
        let qmp = match answered {
            Ok(Ok((qmp, _events))) => qmp,
            // Without a process nothing listens at the socket.
            Ok(Err(QmpError::Connect { source, .. }))
                if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
            {
                return true;
            }
            Ok(Err(_)) | Err(_) if Instant::now() >= end => return false,
            Ok(Err(_)) | Err(_) => {
                sleep(LOOK_EVERY).await;
                continue;
            }
        };
        while let Ok(state) = power::run_state(&qmp).await {
            let is_due = pressed.is_none_or(|at| at.elapsed() > within / PRESSES);
            let done = match state {
                RunState::Running if is_due => {
                    pressed = Some(Instant::now());
                    power::powerdown(&qmp).await
                }
                state => bring_on(&qmp, &state, saved).await,
            };
            if done.is_err() {
                break;
            }
            if Instant::now() >= end {
                return false;
            }
            sleep(LOOK_EVERY).await;
        }
        // QEMU ends, or its answer was lost: the next connection shows which.
        if Instant::now() >= end {
            return false;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Brings a guest to where it can be asked, or ends a QEMU whose guest has ended, or has not begun.
async fn bring_on(qmp: &Qmp, state: &RunState, saved: &Path) -> Result<(), QmpError> {
    match state {
        RunState::Shutdown
        | RunState::GuestPanicked
        | RunState::Watchdog
        | RunState::InternalError
        | RunState::Prelaunch
        | RunState::InMigrate
        | RunState::PostMigrate => power::quit(qmp).await,
        // A guest that went on would change its disks, and a memory of before that would be loaded after the boot.
        RunState::Paused if saved.exists() => match transfer(qmp).await? {
            Transfer::Active => Ok(()),
            Transfer::Idle | Transfer::Completed | Transfer::Failed(_) => power::quit(qmp).await,
        },
        RunState::Paused | RunState::IoError => power::start(qmp).await,
        RunState::Suspended => power::wake_up(qmp).await,
        RunState::Running | RunState::Other(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    use super::*;

    #[tokio::test]
    async fn files_of_instances_without_a_process_are_no_guests_that_run() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(shut_down_guests(folder.path(), ANSWER).await.expect("none"), [""; 0]);
        fs::create_dir_all(folder.path().join("instances/i-1/run")).expect("made");
        // A socket that an earlier process has left.
        let socket = folder.path().join("instances/i-1/run/rescue.sock");
        drop(std::os::unix::net::UnixListener::bind(socket).expect("bound"));
        assert_eq!(shut_down_guests(folder.path(), ANSWER).await.expect("none"), [""; 0]);
    }

    #[tokio::test]
    async fn a_guest_whose_monitor_does_not_answer_still_runs() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("instances/i-1/run")).expect("made");
        let socket = folder.path().join("instances/i-1/run/rescue.sock");
        let _listener = tokio::net::UnixListener::bind(socket).expect("bound");
        let left = shut_down_guests(folder.path(), Duration::from_millis(100)).await.expect("asked");
        assert_eq!(left, ["i-1"]);
    }

    #[tokio::test]
    async fn a_monitor_that_falls_silent_after_its_greeting_takes_no_more_than_the_time() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("instances/i-1/run")).expect("made");
        let socket = folder.path().join("instances/i-1/run/rescue.sock");
        let listener = tokio::net::UnixListener::bind(socket).expect("bound");
        let monitor = tokio::spawn(async move {
            let mut client = BufReader::new(listener.accept().await.expect("a client").0);
            let version = r#"{"qemu": {"major": 9, "minor": 2, "micro": 0}}"#;
            let greeting = format!("{{\"QMP\": {{\"version\": {version}}}}}\n");
            client.write_all(greeting.as_bytes()).await.expect("written");
            client.read_line(&mut String::new()).await.expect("negotiates");
            client.write_all(b"{\"return\": {}, \"id\": 1}\n").await.expect("written");
            std::future::pending::<()>().await;
        });
        let begun = Instant::now();
        let left = shut_down_guests(folder.path(), Duration::from_secs(1)).await.expect("asked");
        assert_eq!(left, ["i-1"]);
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        monitor.abort();
    }
}
