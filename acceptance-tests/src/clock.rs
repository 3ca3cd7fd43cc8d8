//! A clock that a test sets. Only the programs started with it use it: it shifts the time of day, not the speed at which time
//! passes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// The time for which a program may cache the clock, in seconds.
const NOTICED: u32 = 1;

/// The clock. Its programs read it from a file.
#[derive(Debug, Clone)]
pub struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// A correct clock, by libfaketime at `library`.
    pub fn new(library: &Path, file: &Path) -> Result<Self> {
        let clock = Self { library: library.to_owned(), file: file.to_owned() };
        clock.jump(0)?;
        Ok(clock)
    }

    /// Sets the clock this many seconds ahead of the correct time.
    pub fn jump(&self, seconds: i64) -> Result<()> {
        let fresh = self.file.with_extension("new");
        fs::write(&fresh, format!("{seconds:+}\n"))?;
        Ok(fs::rename(&fresh, &self.file)?)
    }

    /// The environment variables that give a program this clock.
    pub fn variables(&self) -> [String; 5] {
        [
            format!("LD_PRELOAD={}", self.library.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display()),
            format!("FAKETIME_CACHE_DURATION={NOTICED}"),
            // Durations are measured by the monotonic clock, which cannot be set on a real machine either.
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "NO_FAKE_STAT=1".to_owned(),
        ]
    }
}
