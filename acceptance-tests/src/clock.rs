//! A clock that a test sets. It is that of the programs started with it and of nobody else: what time of day it is changes,
//! how fast time passes does not.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// How long a program may go on with the time it has read.
const NOTICED: u32 = 1;

/// The clock. Its programs find it in a file.
#[derive(Debug, Clone)]
pub struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// One that is right, by libfaketime at `library`.
    pub fn new(library: &Path, file: &Path) -> Result<Self> {
        let clock = Self { library: library.to_owned(), file: file.to_owned() };
        clock.jump(0)?;
        Ok(clock)
    }

    /// Puts it this many seconds ahead of the right time.
    pub fn jump(&self, seconds: i64) -> Result<()> {
        let fresh = self.file.with_extension("new");
        fs::write(&fresh, format!("{seconds:+}\n"))?;
        Ok(fs::rename(&fresh, &self.file)?)
    }

    /// The environment a program has it by.
    pub fn variables(&self) -> [String; 5] {
        [
            format!("LD_PRELOAD={}", self.library.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display()),
            format!("FAKETIME_CACHE_DURATION={NOTICED}"),
            // Durations are measured by another clock, which no machine sets.
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "NO_FAKE_STAT=1".to_owned(),
        ]
    }
}
