//! Requests to Vaults, beside the reconciles: tenants name the servers, and one that takes its time holds no worker.
//!
//! ```text
//!  look ──▶ request, a task ──answer in a moment──▶ taken
//!                           ──none yet────────────▶ the next look takes it
//! ```

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::{Readiness, Reason};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::key_provider::Missing;

/// How long a look waits for the answer of a server that is not known to be slow.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long a server that was slow is known as such.
const SLOW: Duration = Duration::from_secs(60);
/// How long a server that did not answer is not asked again: many disks may wait for it.
const SILENCE: Duration = Duration::from_secs(8);
/// How long an answer is kept for the next look.
const KEPT: Duration = Duration::from_secs(60);
/// How long the failure of a server is shown until there is another answer.
const SHOWN: Duration = Duration::from_secs(600);
/// The maximum number of requests that are waited for, and that of one namespace.
const MOST: usize = 256;
const MOST_OF_A_NAMESPACE: usize = 16;

/// The requests that are waited for, by their names.
pub(crate) struct VaultRequests<T> {
    running: Mutex<BTreeMap<String, Request<T>>>,
    /// By the names of the classes.
    servers: Mutex<BTreeMap<String, Server>>,
}

struct Request<T> {
    class: String,
    begun: Instant,
    task: JoinHandle<Result<T, Missing>>,
}

/// The latest experience with the server of a class.
#[derive(Default)]
struct Server {
    slow: Option<Instant>,
    silent: Option<(Instant, Missing)>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn namespace_of(class: &str) -> &str {
    class.split('/').next().unwrap_or_default()
}

fn unanswered(class: &str, why: &str) -> Missing {
    let text = format!("Vault of KeyClass {class}: {why}");
    Missing { readiness: Readiness::Reconciling(Reason::VaultUnreachable, text), is_gone: false }
}

impl<T> Default for VaultRequests<T> {
    fn default() -> Self {
        Self { running: Mutex::default(), servers: Mutex::default() }
    }
}

impl<T: Send + 'static> VaultRequests<T> {
    /// Begins a request with this name, unless it is running, and returns its answer if there is one soon.
    pub(crate) async fn ask(
        &self,
        class: &str,
        name: &str,
        work: impl Future<Output = Result<T, Missing>> + Send + 'static,
    ) -> Result<T, Missing> {
        let running = locked(&self.running).remove(name);
        let mut request = match running {
            Some(request) => request,
            None => self.begin(class, work)?,
        };
        let patience = if self.is_slow(class) { Duration::ZERO } else { PATIENCE };
        match tokio::time::timeout(patience, &mut request.task).await {
            Ok(ended) => {
                let answer =
                    ended.unwrap_or_else(|_| Err(unanswered(class, "the request ended without an answer")));
                self.note(class, answer.as_ref().err());
                answer
            }
            Err(_) => {
                locked(&self.running).insert(name.to_owned(), request);
                Err(self.waits(class))
            }
        }
    }

    /// Forgets the answers that no look has taken.
    pub(crate) fn forget_old(&self) {
        locked(&self.running).retain(|_, request| request.begun.elapsed() < KEPT);
    }

    fn begin(
        &self,
        class: &str,
        work: impl Future<Output = Result<T, Missing>> + Send + 'static,
    ) -> Result<Request<T>, Missing> {
        if let Some(missing) = self.silence(class) {
            return Err(missing);
        }
        self.forget_old();
        let running = locked(&self.running);
        let namespace = namespace_of(class);
        let own = running.values().filter(|request| namespace_of(&request.class) == namespace).count();
        if running.len() >= MOST || own >= MOST_OF_A_NAMESPACE {
            return Err(unanswered(class, "the answers to other requests are waited for"));
        }
        Ok(Request { class: class.to_owned(), begun: Instant::now(), task: tokio::spawn(work) })
    }

    /// Returns the failure of a server that is not to be asked yet.
    fn silence(&self, class: &str) -> Option<Missing> {
        let servers = locked(&self.servers);
        let (at, missing) = servers.get(class)?.silent.as_ref()?;
        (at.elapsed() < SILENCE).then(|| missing.clone())
    }

    fn is_slow(&self, class: &str) -> bool {
        let servers = locked(&self.servers);
        servers.get(class).and_then(|server| server.slow).is_some_and(|at| at.elapsed() < SLOW)
    }

    /// Notes that a server has not answered yet. Returns its former failure, so that a state does not change with each look.
    fn waits(&self, class: &str) -> Missing {
        let mut servers = locked(&self.servers);
        let server = servers.entry(class.to_owned()).or_default();
        if server.slow.is_none_or(|at| at.elapsed() >= SLOW) {
            server.slow = Some(Instant::now());
        }
        match &server.silent {
            Some((_, missing)) => missing.clone(),
            None => unanswered(class, "it has not answered yet"),
        }
    }

    fn note(&self, class: &str, failure: Option<&Missing>) {
        let silent = failure.filter(|missing| !missing.is_gone);
        let mut servers = locked(&self.servers);
        servers.entry(class.to_owned()).or_default().silent =
            silent.map(|missing| (Instant::now(), missing.clone()));
        servers.retain(|_, server| {
            server.slow.is_some_and(|at| at.elapsed() < SLOW)
                || server.silent.as_ref().is_some_and(|(at, _)| at.elapsed() < SHOWN)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    async fn later(after: Duration, answer: Result<u8, Missing>) -> Result<u8, Missing> {
        tokio::time::sleep(after).await;
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_takes_its_time_holds_no_worker_and_its_answer_is_taken_by_the_next_look() {
        let requests = VaultRequests::default();
        assert_eq!(requests.ask("ns/a", "1", later(SECOND / 10, Ok(1))).await.expect("in time"), 1);
        let begun = Instant::now();
        let waits = requests.ask("ns/a", "2", later(SECOND * 5, Ok(2))).await.expect_err("not yet");
        assert_eq!((waits.readiness.reason(), waits.is_gone), (Reason::VaultUnreachable, false));
        assert!(begun.elapsed() < SECOND);
        let begun = Instant::now();
        for _ in 0..100 {
            requests.ask("ns/a", "2", later(SECOND, Ok(9))).await.expect_err("not yet");
        }
        assert!(begun.elapsed() < SECOND, "it is known to be slow");
        tokio::time::sleep(SECOND * 10).await;
        assert_eq!(requests.ask("ns/a", "2", later(SECOND, Ok(9))).await.expect("answered"), 2);
        requests.ask("ns/a", "3", later(SECOND * 5, Ok(3))).await.expect_err("not yet");
        tokio::time::sleep(KEPT * 2).await;
        requests.forget_old();
        assert_eq!(requests.ask("ns/a", "3", later(SECOND / 10, Ok(4))).await.expect("asked again"), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_fails_is_left_alone_for_a_moment_and_one_that_refuses_is_not() {
        let (requests, asked) = (VaultRequests::default(), Arc::new(AtomicUsize::new(0)));
        let failing = |is_gone: bool| {
            let asked = Arc::clone(&asked);
            async move {
                asked.fetch_add(1, Ordering::SeqCst);
                Err::<u8, _>(Missing { is_gone, ..unanswered("ns/a", "sealed") })
            }
        };
        for _ in 0..9 {
            let missing = requests.ask("ns/a", "1", failing(false)).await.expect_err("it fails");
            assert!(missing.readiness.message().ends_with("sealed"), "{missing:?}");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        tokio::time::sleep(SILENCE).await;
        for _ in 0..3 {
            requests.ask("ns/a", "1", failing(true)).await.expect_err("it refuses");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn the_requests_of_a_namespace_are_limited_and_leave_room_for_others() {
        let requests = VaultRequests::default();
        let ask = async |class: &str, name: usize| {
            let missing = requests.ask(class, &name.to_string(), later(SECOND * 9, Ok(0))).await;
            missing.expect_err("not yet").readiness.message().to_owned()
        };
        for name in 0..MOST_OF_A_NAMESPACE {
            assert!(ask(&format!("ns/{name}"), name).await.ends_with("not answered yet"));
        }
        assert!(ask("ns/more", 100).await.ends_with("are waited for"));
        assert!(ask("other/a", 101).await.ends_with("not answered yet"));
    }
}
