//! The trash's clock: the total time for which this machine was on, in seconds, over all boots. Unlike the time of day
//! it cannot be set, so a clock that is a day ahead does not empty the trash. It stands still while the machine is off.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::files;
use super::Result;

/// The file name in the state directory.
pub(super) const FILE: &str = "trash-clock.json";

/// The clock at its last reading.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reading {
    /// The total of all boots.
    seconds: u64,
    boot: String,
    /// Uptime in that boot.
    up: u64,
}

/// A boot of this machine, and its uptime in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Boot {
    pub(super) id: String,
    pub(super) up: u64,
}

impl Boot {
    /// Reads the current boot.
    pub(super) fn now() -> Result<Self> {
        let read = |path: &str| {
            let path = Path::new(path);
            fs::read_to_string(path).map_err(files::failed("read", path))
        };
        let up = read("/proc/uptime")?;
        let up = up.split('.').next().and_then(|whole| whole.parse().ok()).unwrap_or(0);
        Ok(Self { id: read("/proc/sys/kernel/random/boot_id")?.trim().to_owned(), up })
    }
}

impl Reading {
    /// Returns the reading in this boot, with `self` as the previous reading.
    fn at(&self, boot: &Boot) -> Self {
        let passed = if self.boot == boot.id { boot.up.saturating_sub(self.up) } else { boot.up };
        Self { seconds: self.seconds.saturating_add(passed), boot: boot.id.clone(), up: boot.up }
    }
}

/// Reads the clock stored in `folder`, and updates it as far as that is possible. A lost clock starts again at 0.
pub(super) fn read(folder: &Path, boot: &Boot) -> Result<u64> {
    let path = folder.join(FILE);
    let before: Option<Reading> = match files::read_json(&path)? {
        None => None,
        Some(Ok(reading)) => Some(reading),
        Some(Err(detail)) => {
            tracing::warn!(detail, "the trash's clock is not readable and begins anew");
            None
        }
    };
    let now = match &before {
        Some(before) => before.at(boot),
        None => Reading { seconds: 0, boot: boot.id.clone(), up: boot.up },
    };
    // On a full disk it is read all the same, as the trash has to be emptied: without this record the clock runs behind after a restart.
    if before.as_ref() != Some(&now)
        && let Err(error) = files::write_json(&path, &now, 0o600)
    {
        tracing::warn!(error = error.chain(), "the trash's clock is not recorded");
    }
    Ok(now.seconds)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn boot(id: &str, up: u64) -> Boot {
        Boot { id: id.to_owned(), up }
    }

    #[test]
    fn it_counts_what_the_machine_was_on_in_this_boot_and_in_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let says = |id: &str, up: u64| read(folder.path(), &boot(id, up)).expect("it is read and kept");
        assert_eq!(says("a", 1000), 0, "it begins");
        assert_eq!(says("a", 1060), 60);
        assert_eq!(says("b", 30), 90, "after a restart: what it was off is not known");
        assert_eq!(says("b", 20), 90, "it never goes back");
        fs::write(folder.path().join(FILE), "{").expect("written");
        assert_eq!(says("b", 50), 0, "it begins anew");
        // Nothing can be written, as on a full disk.
        let unfinished = files::unfinished(&folder.path().join(FILE));
        fs::create_dir(&unfinished).expect("made");
        assert_eq!((says("b", 70), says("b", 90)), (20, 40), "it goes on");
        fs::remove_dir(&unfinished).expect("removed");
        assert_eq!(says("c", 10), 10, "a restart: the time of which there is no record does not count");
    }

    proptest! {
        #[test]
        fn it_never_runs_ahead_of_what_passed(boots in prop::collection::vec(prop::collection::vec(0u64..1000, 1..6), 1..6)) {
            let mut reading = Reading { seconds: 0, boot: "0".into(), up: 0 };
            let (mut passed, mut before) = (0, 0);
            for (n, steps) in boots.iter().enumerate() {
                let mut up = 0;
                for step in steps {
                    up += step;
                    passed += step;
                    reading = reading.at(&boot(&n.to_string(), up));
                    prop_assert!(reading.seconds <= passed && reading.seconds >= before);
                    before = reading.seconds;
                }
            }
            prop_assert_eq!(reading.seconds, passed, "nothing that the machine was seen to be on is lost");
        }
    }
}
