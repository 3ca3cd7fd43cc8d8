//! Progress for people: lines, and the state of a long step. On a terminal one line is redrawn; elsewhere a line is added
//! every few seconds.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The interval at which a line is added where none can be redrawn.
const LINE: Duration = Duration::from_secs(10);
/// The interval at which a terminal's line is redrawn.
const REDRAWN: Duration = Duration::from_millis(500);
/// The maximum width of a terminal's line, which must not wrap.
const WIDTH: usize = 78;

static STATE: Mutex<State> = Mutex::new(State { doing: String::new(), drawn: false, printed: None });

struct State {
    /// The progress that the step has reported.
    doing: String,
    /// Whether the terminal's last line is ours.
    drawn: bool,
    /// The time of the last new output.
    printed: Option<Instant>,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the progress of the current step, for example `12 of 345 crates`. Shown only while a [`Progress`] exists.
pub fn set(doing: &str) {
    doing.clone_into(&mut state().doing);
}

/// The display of a step until the drop: its elapsed time, and the progress from [`set`].
#[derive(Debug)]
pub struct Progress {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts the display.
    pub fn show() -> Self {
        let begun = Instant::now();
        let terminal = std::io::stdout().is_terminal();
        {
            let mut state = state();
            state.doing.clear();
            state.printed = Some(begun);
        }
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(REDRAWN) == Err(RecvTimeoutError::Timeout) {
                if terminal {
                    draw(begun.elapsed());
                    continue;
                }
                // Not in the condition: the lock would be held during printing, which takes it too.
                let line = due(&mut state(), begun.elapsed(), Instant::now());
                if let Some(line) = line {
                    note(&line);
                }
            }
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // The thread only prints.
            let _ = thread.join();
        }
        set("");
        make_room();
    }
}

/// Prints a line. A closed terminal must not stop the cleanup, so errors are ignored.
pub fn note(text: &str) {
    // Our own unit tests fail cases on purpose, which must not be printed.
    if cfg!(test) {
        return;
    }
    make_room();
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

/// Formats a duration for people.
pub fn spoken(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 10.0 {
        format!("{seconds:.2} s")
    } else if seconds < 100.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {:02} s", duration.as_secs() / 60, duration.as_secs() % 60)
    }
}

/// Clears the drawn line before other output.
fn make_room() {
    let mut state = state();
    state.printed = Some(Instant::now());
    if std::mem::take(&mut state.drawn) {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(b"\r\x1b[2K");
        let _ = out.flush();
    }
}

fn draw(elapsed: Duration) {
    let mut state = state();
    let line: String = line(&state.doing, elapsed).chars().take(WIDTH).collect();
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "\r\x1b[2K{line}");
    let _ = out.flush();
    state.drawn = true;
}

/// The line that is due now, if there is one.
fn due(state: &mut State, elapsed: Duration, now: Instant) -> Option<String> {
    if state.printed.is_some_and(|printed| now.saturating_duration_since(printed) < LINE) {
        return None;
    }
    state.printed = Some(now);
    Some(line(&state.doing, elapsed))
}

fn line(doing: &str, elapsed: Duration) -> String {
    let elapsed = spoken(Duration::from_secs(elapsed.as_secs()));
    if doing.is_empty() { format!("    … {elapsed}") } else { format!("    … {elapsed}: {doing}") }
}

/// The progress in a line of cargo's standard error.
pub fn of_cargo(line: &str) -> Option<String> {
    let line = line.trim();
    let first = line.split_whitespace().next()?;
    if ["Updating", "Downloading", "Downloaded", "Blocking"].contains(&first) {
        return Some(line.to_owned());
    }
    let (_, counted) = line.strip_prefix("Building [")?.split_once("] ")?;
    let (count, crates) = counted.split_once(':').unwrap_or((counted, ""));
    let (done, all) = count.split_once('/')?;
    Some(format!("{} of {} crates:{crates}", done.trim(), all.trim()).trim_end_matches(':').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_progress_bar_is_understood() {
        let bar = "    Building [=====>                   ] 12/345: serde, tokio(build)";
        assert_eq!(of_cargo(bar).as_deref(), Some("12 of 345 crates: serde, tokio(build)"));
        assert_eq!(of_cargo("    Building [====] 345/345").as_deref(), Some("345 of 345 crates"));
        let blocked = "    Blocking waiting for file lock on build directory";
        assert_eq!(of_cargo(blocked).as_deref(), Some(blocked.trim()));
        assert_eq!(of_cargo("warning: unused variable"), None);
    }

    #[test]
    fn a_line_is_due_only_when_nothing_was_said_for_some_seconds() {
        let begun = Instant::now();
        let mut state = State { doing: "2 of 3".to_owned(), drawn: false, printed: Some(begun) };
        let mut after = |seconds| {
            let elapsed = Duration::from_secs(seconds);
            due(&mut state, elapsed, begun + elapsed)
        };
        assert_eq!(after(9), None);
        assert_eq!(after(10).as_deref(), Some("    … 10.0 s: 2 of 3"));
        assert_eq!(after(15), None);
        assert!(after(125).is_some_and(|line| line.contains("2 min 05 s")));
    }
}
