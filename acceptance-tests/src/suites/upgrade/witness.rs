//! Polls one endpoint during another operation, and reports how long it was unavailable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use crate::access::Access;
use crate::http;
use crate::namespace::Namespace;
use crate::report::{note, spoken};

/// The pause between two requests.
const PAUSE: Duration = Duration::from_millis(100);
/// The time limit for a guest's response on a machine that is busy emulating.
const PATIENCE: Duration = Duration::from_secs(20);

/// A polling thread.
#[derive(Debug)]
pub struct Witness {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

/// The results of the polling.
#[derive(Debug, Default)]
pub struct Seen {
    /// The number of requests with a response.
    pub answered: u32,
    /// The number of failed requests, and the last error.
    pub failed: u32,
    why: Option<String>,
    /// The longest time without a response.
    pub gap: Duration,
}

impl Witness {
    /// Polls a guest for its page from now on.
    pub fn of_guest(from: &Arc<Namespace>, address: &str) -> Self {
        let (from, address) = (Arc::clone(from), address.to_owned());
        Self::start(move || http::get(&from, &address, "/", PATIENCE).map(drop))
    }

    /// Polls a control plane's readiness, each time on a new connection.
    pub fn of_control_plane(access: Access) -> Self {
        Self::start(move || access.connect()?.get("/readyz").map(drop))
    }

    fn start(mut ask: impl FnMut() -> Result<()> + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let (mut seen, mut last) = (Seen::default(), Instant::now());
            while !ends.load(Ordering::Relaxed) {
                match ask() {
                    Ok(()) => {
                        seen.answered += 1;
                        seen.gap = seen.gap.max(last.elapsed());
                        last = Instant::now();
                    }
                    Err(error) => {
                        seen.failed += 1;
                        seen.why = Some(format!("{error:#}"));
                    }
                }
                std::thread::sleep(PAUSE);
            }
            seen.gap = seen.gap.max(last.elapsed());
            seen
        });
        Self { over, thread }
    }

    /// Stops polling.
    pub fn end(self) -> Result<Seen> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("a witness panicked"))
    }
}

/// Polls these guests and the control plane during `during`: each guest must respond every time.
pub fn watch<T>(
    guests: &[(&Arc<Namespace>, &str)],
    control_plane: Access,
    during: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let asked: Vec<Witness> = guests.iter().map(|(from, address)| Witness::of_guest(from, address)).collect();
    let plane = Witness::of_control_plane(control_plane);
    let happened = during();
    let plane = plane.end()?;
    let seen = asked.into_iter().map(Witness::end).collect::<Result<Vec<Seen>>>()?;
    note(&format!("    control plane: at most {} without an answer", spoken(plane.gap)));
    for (guest, (_, address)) in seen.iter().zip(guests) {
        let (answered, gap) = (guest.answered, spoken(guest.gap));
        note(&format!(
            "    guest {address}: {answered} answers, at most {gap} between two, {} failed",
            guest.failed
        ));
    }
    let happened = happened?;
    for (guest, (_, address)) in seen.iter().zip(guests) {
        ensure!(guest.answered > 0, "{address} was not asked");
        let why = guest.why.as_deref().unwrap_or_default();
        ensure!(guest.failed == 0, "{address} did not answer {} times: {why}", guest.failed);
    }
    Ok(happened)
}
