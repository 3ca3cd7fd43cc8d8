//! N4: everything on one machine, idle.

use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::figure::Reading;
use super::figures::idle::{API, CPU, PSS, READY, RESTART, RSS};
use super::samples::Samples;
use super::site::{Site, Start};
use crate::proc;
use crate::report::note;

/// The number of first starts, and of starts with an earlier one's data.
const STARTS: usize = 7;
/// The time until the deferred work of a start is done.
const SETTLE: Duration = Duration::from_secs(15);
/// The time over which processor time is counted.
const WINDOW: Duration = Duration::from_secs(40);

/// Measures it.
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let mut site = Site::new(&bench.binaries.berth, &bench.log("N4"))?;
    let (mut first, mut again): (Vec<Start>, Vec<Start>) = (Vec::new(), Vec::new());
    for run in 0..STARTS {
        if run > 0 {
            site.stop()?;
            site.forget()?;
        }
        first.push(site.start(&[])?);
        site.stop()?;
        again.push(site.start(&[])?);
    }
    note(&format!("        waiting {} s for an idle berth", (SETTLE + WINDOW).as_secs()));
    std::thread::sleep(SETTLE);
    let pid = site.pid()?;
    let before = proc::cpu(pid)?;
    std::thread::sleep(WINDOW);
    let busy = (proc::cpu(pid)? - before).as_secs_f64() / WINDOW.as_secs_f64() * 100.0;
    let memory = proc::memory(pid)?;
    site.stop()?;
    let of = |starts: &[Start], which: fn(&Start) -> Duration| {
        Samples::new(starts.iter().map(|start| which(start).as_secs_f64() * 1e3).collect())
            .expect("there was a start")
    };
    Ok(vec![
        Reading::once(RSS, memory.rss),
        Reading::once(PSS, memory.pss),
        Reading::once(CPU, busy),
        Reading::median(READY, &of(&first, |start| start.host)),
        Reading::median(API, &of(&first, |start| start.api)),
        Reading::median(RESTART, &of(&again, |start| start.api)),
    ])
}
