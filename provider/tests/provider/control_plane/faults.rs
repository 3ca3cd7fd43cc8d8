//! Faults of the connection and of the control plane: requests that fail, a provider that is killed, restarts.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use berth_apiserver::{ApiService, Server, ServerConfig};
use kube::Client;
use tokio_util::sync::CancellationToken;

/// Faults of the connection.
#[derive(Clone, Default)]
pub(crate) struct Line {
    /// The number of requests so far.
    pub(crate) requests: Arc<AtomicUsize>,
    /// The number of further requests that fail.
    pub(crate) failures: Arc<AtomicUsize>,
    /// No request gets through.
    pub(crate) cut: Arc<AtomicBool>,
    /// The next declaration arrives, but its response is lost.
    pub(crate) lose_answer: Arc<AtomicBool>,
}

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// The provider's process is killed before a request arrives.
    KilledBefore,
    /// The provider's process is killed after a request had its effect.
    KilledAfter,
    /// From a request on, none arrives.
    CutBefore,
    /// A request has its effect, its response is lost, and no later request arrives.
    CutAfter,
}

impl Interruption {
    pub(crate) const ALL: [Self; 4] =
        [Self::KilledBefore, Self::KilledAfter, Self::CutBefore, Self::CutAfter];

    fn kills(self) -> bool {
        matches!(self, Self::KilledBefore | Self::KilledAfter)
    }
}

/// A connection that ends at one of its requests.
#[derive(Clone)]
pub(crate) struct Interrupted {
    pub(super) at: usize,
    pub(super) by: Interruption,
    pub(super) requests: Arc<AtomicUsize>,
    pub(super) killed: CancellationToken,
}

impl Interrupted {
    /// Whether the connection has ended.
    pub(crate) fn is_reached(&self) -> bool {
        self.requests.load(Ordering::SeqCst) >= self.at
    }

    /// Waits until the process is killed.
    pub(crate) async fn killed(&self) {
        self.killed.cancelled().await;
    }

    /// Ends the request: it has no response, or an error.
    pub(super) async fn end<T>(&self) -> Result<T, tower::BoxError> {
        if self.by.kills() {
            self.killed.cancel();
            std::future::pending::<()>().await;
        }
        Err(tower::BoxError::from("the line is cut"))
    }
}

type Answer = <ApiService as tower::Service<http::Request<kube::client::Body>>>::Response;

/// A control plane on disk that is ended and opened again.
#[derive(Clone)]
pub(crate) struct Restart {
    pub(super) directory: PathBuf,
    /// None while it is away.
    pub(super) server: Arc<Mutex<Option<Server>>>,
}

impl Restart {
    fn server(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn restart(&self) {
        let Some(old) = self.server().take() else { return };
        old.shutdown().await;
        drop(old);
        let new = Server::open(ServerConfig::in_directory(&self.directory)).await.expect("it opens again");
        *self.server() = Some(new);
    }

    /// Sends a request, unless the control plane is away.
    async fn send(&self, request: http::Request<kube::client::Body>) -> Result<Answer, tower::BoxError> {
        use tower::Service as _;
        let service = self.server().as_ref().map(Server::service);
        let mut service = service.ok_or("the connection is refused")?;
        let Ok(answer) = service.call(request).await;
        Ok(answer)
    }

    pub(super) fn client(&self) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request| {
            let this = this.clone();
            async move { this.send(request).await }
        });
        Client::new(service, "default")
    }

    pub(crate) async fn close(self) {
        let server = self.server().take();
        if let Some(server) = server {
            server.shutdown().await;
        }
    }
}

/// One restart of the control plane, at the same request of several operations.
pub(crate) struct Meeting {
    restart: Restart,
    /// The number of the request, from 1.
    at: usize,
    /// Whether the requests have their effect before the restart. All of them fail.
    after: bool,
    /// The number of operations that have neither come to the request nor ended.
    expected: AtomicUsize,
    arrived: AtomicUsize,
    over: CancellationToken,
}

/// An operation that the control plane's restart concerns.
#[derive(Clone)]
pub(crate) struct Participant {
    meeting: Arc<Meeting>,
    requests: Arc<AtomicUsize>,
    is_counted: Arc<AtomicBool>,
}

impl Meeting {
    pub(crate) fn new(restart: &Restart, operations: usize, at: usize, after: bool) -> Arc<Self> {
        let (expected, arrived) = (AtomicUsize::new(operations), AtomicUsize::new(0));
        let over = CancellationToken::new();
        Arc::new(Self { restart: restart.clone(), at, after, expected, arrived, over })
    }

    /// Waits until no operation comes to the request any more, and the control plane runs.
    pub(crate) async fn end(&self) {
        self.over.cancelled().await;
    }

    /// The number of operations that came to the request.
    pub(crate) fn arrived(&self) -> usize {
        self.arrived.load(Ordering::SeqCst)
    }

    /// A client for one of the operations.
    pub(crate) fn join(self: &Arc<Self>) -> (Client, Participant) {
        let participant =
            Participant { meeting: self.clone(), requests: Arc::default(), is_counted: Arc::default() };
        let this = participant.clone();
        let service = tower::service_fn(move |request| {
            let this = this.clone();
            async move { this.send(request).await }
        });
        (Client::new(service, "default"), participant)
    }
}

impl Participant {
    async fn send(&self, request: http::Request<kube::client::Body>) -> Result<Answer, tower::BoxError> {
        let meeting = &self.meeting;
        if self.requests.fetch_add(1, Ordering::SeqCst) + 1 != meeting.at {
            return meeting.restart.send(request).await;
        }
        let answer = if meeting.after { Some(meeting.restart.send(request).await?) } else { None };
        meeting.arrived.fetch_add(1, Ordering::SeqCst);
        self.count();
        meeting.over.cancelled().await;
        drop(answer);
        Err(tower::BoxError::from("the connection is reset"))
    }

    /// Whether the operation came to the request.
    pub(crate) fn has_arrived(&self) -> bool {
        self.requests.load(Ordering::SeqCst) >= self.meeting.at
    }

    /// Notes that the operation has ended: others do not wait for it.
    pub(crate) fn leave(&self) {
        self.count();
    }

    fn count(&self) {
        if self.is_counted.swap(true, Ordering::SeqCst) {
            return;
        }
        if self.meeting.expected.fetch_sub(1, Ordering::SeqCst) == 1 {
            let meeting = self.meeting.clone();
            tokio::spawn(async move {
                if meeting.arrived() > 0 {
                    meeting.restart.restart().await;
                }
                meeting.over.cancel();
            });
        }
    }
}
