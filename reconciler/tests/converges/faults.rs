//! Faults at the n-th external call: a request to the control plane, or a call to the host.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use berth_apiserver::ApiService;
use berth_host::fake::{FaultAction, Faults, When};
use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use tokio::{sync::Notify, time::Instant};
use tower::{BoxError, Service};

/// The environment variable of a run that injects faults at every call.
const EVERY_CALL: &str = "BERTH_TEST_EVERY_CALL";

/// How long a partition, a full disk or a lag lasts.
const LASTS: Duration = Duration::from_secs(50);

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call fails before it has an effect.
    Error,
    /// The call has its effect, but its caller gets an error.
    LostAnswer,
    /// The process ends after the call had its effect, and is started again. A crash just before the next effect leaves
    /// the same state behind, so it is not injected separately.
    CrashAfter,
    /// From here on the control plane cannot be reached for a while.
    Partition,
    /// From here on watches deliver no events for a while, then all of them: decisions are made on a stale cache.
    StaleWatches,
    /// From here on the host's disk is full for a while.
    FullDisk,
}

impl Fault {
    /// Whether this fault is worth injecting at this call, the one after `before` others, `equal` of them of the same
    /// text: a call without an effect has none that could be lost, and a fault that lasts need not begin at every call.
    /// Of equal calls a usual run chooses the first, and gives it one of the two faults after an effect, which leave the
    /// same behind; with [`EVERY_CALL`] set, all calls have both.
    pub(crate) fn strikes(self, before: usize, call: &str, equal: usize) -> bool {
        let is_every = std::env::var_os(EVERY_CALL).is_some();
        let is_chosen = |turn: usize| is_every || (equal == 0 && before % 2 == turn);
        match self {
            Fault::Error => is_every || equal == 0,
            Fault::LostAnswer => has_effect(call) && is_chosen(0),
            Fault::CrashAfter => has_effect(call) && is_chosen(1),
            Fault::Partition | Fault::StaleWatches | Fault::FullDisk => before.is_multiple_of(32),
        }
    }
}

fn has_effect(call: &str) -> bool {
    let reads =
        ["image", "images", "volume", "volumes", "trash", "networks", "taps", "leases_taken", "forwarding"];
    let more = [
        "process",
        "instances",
        "read_journal",
        "stderr_tail",
        "facts",
        "machine_facts",
        "foreign",
        "connect",
        "guest_agent",
        "exited",
        "has_state",
        "kept_state",
        "kept_states",
        "bootstrap_data",
        "check_snapshots",
        "is_as_in_snapshot",
        "read_site",
        "used_bytes",
        "snapshot_bytes",
        "instance_bytes",
        "seen_addresses",
        "external_leases",
        "learned_addresses",
    ];
    !call.starts_with("GET ") && !reads.contains(&call) && !more.contains(&call)
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<String>,
    counting: bool,
    /// The scenario determines from where on calls count, and has not done so yet.
    awaited: bool,
    /// The scenario has determined it.
    has_start: bool,
    /// The call that was struck: its effect happens, and then the fault.
    armed: Option<String>,
    struck: Option<String>,
    since: Option<Instant>,
}

/// Counts calls and strikes one of them.
#[derive(Debug)]
pub(crate) struct Injector {
    at: u64,
    fault: Option<Fault>,
    state: Mutex<State>,
    crashed: Notify,
}

/// The injector's decision on a call, before or after its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Go,
    Fail,
    NoSpace,
    Crash,
}

impl Injector {
    /// Counts calls and strikes none.
    pub(crate) fn counting() -> Arc<Self> {
        Self::new(0, None, false)
    }

    /// Strikes the `at`-th counted call. With `awaited` calls count only from
    /// [`count_from_here`](Self::count_from_here) on.
    pub(crate) fn striking(at: u64, fault: Fault, awaited: bool) -> Arc<Self> {
        Self::new(at, Some(fault), awaited)
    }

    fn new(at: u64, fault: Option<Fault>, awaited: bool) -> Arc<Self> {
        let state = Mutex::new(State { counting: true, awaited, ..State::default() });
        Arc::new(Self { at, fault, state, crashed: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets the count: the next call is the first.
    pub(crate) fn count_from_here(&self) {
        let mut state = self.state();
        assert!(state.struck.is_none(), "no call is struck before the first that counts");
        state.calls.clear();
        state.awaited = false;
        state.has_start = true;
    }

    /// Whether the scenario has determined from where on calls count.
    pub(crate) fn has_start(&self) -> bool {
        self.state().has_start
    }

    /// Turns counting on or off: no call is struck while it is off.
    pub(crate) fn set_counting(&self, counting: bool) {
        self.state().counting = counting;
    }

    /// Returns the counted calls, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Returns the call that was struck, for messages.
    pub(crate) fn struck(&self) -> Option<String> {
        self.state().struck.clone()
    }

    /// Waits until a call ended the process.
    pub(crate) async fn crashed(&self) {
        self.crashed.notified().await;
    }

    fn lasts(&self, fault: Fault) -> bool {
        self.fault == Some(fault) && self.state().since.is_some_and(|since| since.elapsed() < LASTS)
    }

    fn before(&self, call: &str, to_host: bool) -> Verdict {
        let is_struck = {
            let mut state = self.state();
            let counts = state.counting && !state.awaited && state.struck.is_none();
            if counts {
                state.calls.push(call.to_owned());
            }
            let is_struck = counts && state.calls.len() as u64 == self.at && self.fault.is_some();
            if is_struck {
                state.struck = Some(call.to_owned());
                state.since = Some(Instant::now());
                state.armed = Some(call.to_owned());
            }
            is_struck
        };
        match self.fault {
            Some(Fault::Error) if is_struck => Verdict::Fail,
            Some(Fault::Partition) if !to_host && self.lasts(Fault::Partition) => Verdict::Fail,
            Some(Fault::FullDisk) if to_host && self.lasts(Fault::FullDisk) && needs_space(call) => {
                Verdict::NoSpace
            }
            _ => Verdict::Go,
        }
    }

    fn after(&self, call: &str) -> Verdict {
        let mut state = self.state();
        if state.armed.as_deref() != Some(call) {
            return Verdict::Go;
        }
        state.armed = None;
        match self.fault {
            Some(Fault::LostAnswer) => Verdict::Fail,
            Some(Fault::CrashAfter) => Verdict::Crash,
            _ => Verdict::Go,
        }
    }

    /// Ends the process: never returns to its caller, which the rig drops.
    async fn crash<T>(&self) -> T {
        self.crashed.notify_one();
        std::future::pending().await
    }

    async fn wait_for_lag(&self) {
        while self.lasts(Fault::StaleWatches) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

fn needs_space(call: &str) -> bool {
    [
        "create_volume",
        "pull",
        "launch",
        "write_journal",
        "grow_volume",
        "reserve_volume",
        "lend_state",
        "seal_state",
        "keep_state",
        "seal_kept_state",
    ]
    .contains(&call)
}

#[async_trait]
impl Faults for Injector {
    async fn fault(&self, call: &'static str, when: When) -> FaultAction {
        let verdict = match when {
            When::Before => self.before(call, true),
            When::After => self.after(call),
        };
        match verdict {
            Verdict::Go => FaultAction::Continue,
            Verdict::Fail => FaultAction::Error,
            Verdict::NoSpace => FaultAction::NoSpace,
            Verdict::Crash => {
                self.crashed.notify_one();
                FaultAction::Hang
            }
        }
    }
}

/// The control plane, with faults injected.
#[derive(Clone)]
pub(crate) struct FaultyApi {
    inner: ApiService,
    injector: Arc<Injector>,
}

impl fmt::Debug for FaultyApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyApi")
    }
}

impl FaultyApi {
    pub(crate) fn new(inner: ApiService, injector: Arc<Injector>) -> Self {
        Self { inner, injector }
    }
}

type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

impl Service<Request<Body>> for FaultyApi {
    type Response = Response<AnyBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut inner = self.inner.clone();
        let injector = self.injector.clone();
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let call = format!("{} {}", request.method(), request.uri().path());
        Box::pin(async move {
            match injector.before(&call, false) {
                Verdict::Go => {}
                Verdict::Crash => return injector.crash().await,
                Verdict::Fail | Verdict::NoSpace => return Ok(unavailable()),
            }
            let Ok(response) = inner.call(request).await;
            match injector.after(&call) {
                Verdict::Go => Ok(with_lag(response, is_watch, injector)),
                Verdict::Crash => injector.crash().await,
                Verdict::Fail | Verdict::NoSpace => Ok(unavailable()),
            }
        })
    }
}

fn with_lag<B>(response: Response<B>, is_watch: bool, injector: Arc<Injector>) -> Response<AnyBody>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (parts, body) = response.into_parts();
    let body = body.map_err(Into::into);
    if !is_watch {
        return Response::from_parts(parts, body.boxed_unsync());
    }
    let frames = BodyStream::new(body).then(move |frame| {
        let injector = injector.clone();
        async move {
            injector.wait_for_lag().await;
            frame
        }
    });
    Response::from_parts(parts, StreamBody::new(frames).boxed_unsync())
}

fn unavailable() -> Response<AnyBody> {
    let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","message":"struck","code":503}"#;
    let body =
        Full::new(Bytes::from_static(status.as_bytes())).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}
