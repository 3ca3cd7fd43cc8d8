//! `berth backup`, `berth restore`, `berth secrets`: operations on the database of this machine's `berth up`.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::cli::{BackupOptions, BackupSchedule, RestoreOptions, SecretsAction, SecretsOptions, StateDir};

use super::state_dir::{self, CONTROL_PLANE};

/// The shortest interval: with a shorter one, a slow folder would be written to all the time.
const LEAST: Duration = Duration::from_secs(60);

fn control_plane(state: &StateDir) -> PathBuf {
    state.state_dir.join(CONTROL_PLANE)
}

pub(super) fn run(options: &BackupOptions) -> anyhow::Result<()> {
    let directory = control_plane(&options.state);
    let made = berth_apiserver::backup(&directory, &options.target, options.with_keys)
        .with_context(|| format!("backing up {} (as root?)", directory.display()))?;
    writeln!(std::io::stdout(), "{}", made.file.display()).context("printing")?;
    notice!("revision {}, {} rows, {} bytes, verified", made.revision, made.rows, made.bytes);
    if made.with_keys {
        notice!(
            "it holds the key of Secrets, the CA and the tokens: read access to it is administrator access"
        );
    } else {
        notice!(
            "Secrets in it are encrypted, and the key is not in it: keep a copy of {} elsewhere, or back up with \
             --with-keys",
            directory.join("secrets.key").display()
        );
    }
    Ok(())
}

pub(super) fn restore(options: &RestoreOptions) -> anyhow::Result<()> {
    let state_dir = state_dir::prepare(&options.state.state_dir)?;
    let directory = state_dir.join(CONTROL_PLANE);
    let how = berth_apiserver::RestoreOptions { replace: options.replace, key: options.key.clone() };
    let done = berth_apiserver::restore(&options.file, &directory, &how)
        .with_context(|| format!("restoring {} to {}", options.file.display(), directory.display()))?;
    notice!("restored revision {}; revisions go on from {}", done.revision, done.goes_on_from);
    if let Some(aside) = done.aside {
        notice!("the database that was there is {}", aside.display());
    }
    if !done.with_keys {
        notice!(
            "CA and tokens are those of this machine: if it had none, kubeconfigs and hosts need new ones"
        );
    }
    notice!(
        "start it with `berth up`: each host in it reports its VMs before anything is placed; one that is gone for good keeps \
         its VMs from being placed until `berth host forget NAME --lost`"
    );
    Ok(())
}

pub(super) fn secrets(options: &SecretsOptions) -> anyhow::Result<()> {
    let SecretsAction::RotateKey = options.action;
    let directory = control_plane(&options.state);
    let done = berth_apiserver::rotate_key(&directory)
        .with_context(|| format!("rotating the key of Secrets in {}", directory.display()))?;
    notice!("all Secrets are encrypted under a new key, in {}", done.key.display());
    notice!(
        "backups made before need the old one, {}: delete it once there are none",
        done.retired.display()
    );
    Ok(())
}

/// Returns the schedule of `berth up`, if the options ask for one.
///
/// *Errors:* the path is not a folder.
pub(super) fn schedule(options: &BackupSchedule) -> anyhow::Result<Option<berth_apiserver::BackupSchedule>> {
    let Some(folder) = options.backup_to.clone() else { return Ok(None) };
    let every = options.backup_every.0;
    if every < LEAST {
        bail!("--backup-every: the interval must be at least {} seconds", LEAST.as_secs());
    }
    if !folder.is_absolute() {
        bail!("--backup-to {}: give an absolute path, which begins with /", folder.display());
    }
    Ok(Some(berth_apiserver::BackupSchedule {
        folder,
        every,
        keep: options.backup_keep.into(),
        with_keys: options.backup_with_keys,
    }))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::cli::{Cli, Command};

    #[test]
    fn a_schedule_has_a_folder_and_sensible_times() {
        let schedule = |arguments: &[&str]| {
            let cli = Cli::try_parse_from(["berth", "up"].iter().chain(arguments)).expect("it parses");
            let Command::Up(options) = cli.command else { panic!("it is up") };
            super::schedule(&options.backups)
        };
        assert!(schedule(&[]).unwrap().is_none());
        let one = schedule(&["--backup-to", "/mnt/b", "--backup-every", "1h"]).unwrap().unwrap();
        assert_eq!((one.every.as_secs(), one.keep, one.with_keys), (3600, 14, false));
        assert!(schedule(&["--backup-to", "/mnt/b", "--backup-every", "1s"]).is_err());
        assert!(schedule(&["--backup-to", "b"]).is_err());
        assert!(Cli::try_parse_from(["berth", "up", "--backup-keep", "3"]).is_err(), "of what?");
    }
}
