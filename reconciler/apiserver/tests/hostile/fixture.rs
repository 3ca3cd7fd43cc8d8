//! A server in memory with a few objects. Requests are made in process as the administrator, whom no access
//! rule restricts.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use berth_apiserver::{ApiService, Server, ServerConfig};
use berth_engine::RuntimeClock;
use http::{HeaderValue, Method, Request, Uri, header};
use http_body_util::BodyExt as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

/// The number of inputs per server: its stored objects must not grow forever, and a few inputs may build on
/// each other.
const INPUTS: usize = 50;
/// The address space of the process: all threads, their stacks, and the worst-case need of each input.
const MOST_MEMORY: u64 = 6 << 30;
/// The maximum length of a path, query or header of an input; sockets accept no more either.
const LONGEST_HEAD: usize = 60 << 10;

/// Counts panics of any thread or task: panics of the server's background tasks are not visible otherwise.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    /// Path and query, encoded.
    pub(crate) target: String,
    pub(crate) content_type: Vec<u8>,
    pub(crate) accept: Vec<u8>,
    pub(crate) impersonate: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl Ask {
    pub(crate) fn new(method: Method, target: impl Into<String>) -> Self {
        let target = target.into();
        Self { method, target, content_type: vec![], accept: vec![], impersonate: vec![], body: vec![] }
    }

    pub(crate) fn body(mut self, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        self.content_type = content_type.into();
        self.body = body.into();
        self
    }

    fn request(self) -> Option<Request<Body>> {
        let uri: Uri = self.target.parse().ok().filter(|_| self.target.len() <= LONGEST_HEAD)?;
        let mut request = Request::new(Body::from(self.body));
        *request.method_mut() = self.method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(header::USER_AGENT, HeaderValue::from_static("hostile/1"));
        let sent = [
            (header::CONTENT_TYPE, self.content_type),
            (header::ACCEPT, self.accept),
            ("impersonate-user".parse().expect("a name"), self.impersonate),
        ];
        for (name, value) in sent.into_iter().filter(|(_, value)| !value.is_empty()) {
            headers.insert(name, HeaderValue::from_bytes(&value).ok()?);
        }
        Some(request)
    }
}

/// The response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) code: u16,
}

/// A server and its runtime. The runtime's clock stands still while there is work and jumps ahead otherwise.
pub(crate) struct Fixture {
    runtime: Runtime,
    server: Option<(Server, ApiService)>,
    inputs: usize,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        static COUNTED: Once = Once::new();
        COUNTED.call_once(|| {
            // An input that needs more memory ends this process, not the machine.
            let (_, hard) = getrlimit(Resource::RLIMIT_AS).expect("a limit");
            setrlimit(Resource::RLIMIT_AS, MOST_MEMORY.min(hard), hard).expect("it is lowered");
            let reported = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                PANICS.fetch_add(1, Ordering::Relaxed);
                reported(panic);
            }));
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        Self { runtime: runtime.expect("a runtime"), server: None, inputs: 0 }
    }

    /// Begins an input.
    pub(crate) fn begin(&mut self) {
        if self.server.is_none() || self.inputs >= INPUTS {
            self.begin_anew();
        }
        self.inputs += 1;
    }

    /// Begins an input on a new server.
    pub(crate) fn begin_anew(&mut self) {
        self.end_server();
        self.inputs = 0;
        let server = self.runtime.block_on(async {
            let clock = RuntimeClock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time"));
            let config = ServerConfig {
                clock: std::sync::Arc::new(clock),
                seed: Some(1),
                ..ServerConfig::in_memory()
            };
            Server::open(config).await.expect("a new server opens")
        });
        let service = server.service();
        self.server = Some((server, service));
        let json = "application/json";
        for (path, object) in what_there_is() {
            let made = self.ask(Ask::new(Method::POST, path).body(json, object.to_string()));
            let code = made.map_or(0, |made| made.code);
            assert_eq!(code, 201, "{object}");
        }
    }

    fn end_server(&mut self) {
        if let Some((server, service)) = self.server.take() {
            drop(service);
            self.runtime.block_on(server.shutdown());
        }
    }

    /// Sends a request and checks the invariants of every response; `None` if no client could have sent this
    /// request.
    pub(crate) fn ask(&mut self, ask: Ask) -> Option<Reply> {
        let reported = format!("{} {}", ask.method, ask.target.chars().take(200).collect::<String>());
        let request = ask.request()?;
        let (_, service) = self.server.as_ref().expect("an input has begun");
        let service = service.clone();
        let (code, content_type, text) = self.runtime.block_on(async {
            let response = service.oneshot(request).await.expect("infallible");
            let code = response.status().as_u16();
            let content_type = response.headers().get(header::CONTENT_TYPE).cloned();
            // A watch ends: the clock jumps to its end once there is no other work.
            let text = response.into_body().collect().await.expect("a whole body").to_bytes();
            // Lets the server's own controllers process the write.
            tokio::time::sleep(Duration::from_millis(20)).await;
            (code, content_type, text)
        });
        let is_json = content_type.is_some_and(|kind| kind.as_bytes() == b"application/json");
        for line in text.split(|byte| *byte == b'\n').filter(|line| is_json && !line.is_empty()) {
            check_line(code, line, &reported);
        }
        assert!(
            code < 500 || is_too_new(code, &text),
            "{reported}: {code}: {}",
            String::from_utf8_lossy(&text)
        );
        Some(Reply { code })
    }

    /// Ends an input: no thread or task has panicked.
    pub(crate) fn end(&self) {
        assert_eq!(PANICS.load(Ordering::Relaxed), 0, "something panicked; what is told above says where");
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end_server();
        }
    }
}

fn check_line(code: u16, line: &[u8], reported: &str) {
    let answer: Value = serde_json::from_slice(line).unwrap_or_else(|error| {
        panic!("{reported}: {code} with what is no JSON ({error}): {}", String::from_utf8_lossy(line))
    });
    if code >= 400 {
        assert_eq!((&answer["kind"], &answer["code"]), (&json!("Status"), &json!(code)), "{reported}");
    }
}

/// A revision in the future is answered as in kube-apiserver, with 504 and this cause; the client waits.
fn is_too_new(code: u16, text: &[u8]) -> bool {
    let answer: Value = serde_json::from_slice(text).unwrap_or_default();
    code == 504 && answer["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
}

/// The path of the objects of the test kind.
pub(crate) const BOATS: &str = "/apis/toys.example/v1/namespaces/default/boats";
/// The path of the definitions.
pub(crate) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn what_there_is() -> Vec<(&'static str, Value)> {
    let boat = json!({"apiVersion": "toys.example/v1", "kind": "Boat",
        "metadata": {"name": "ada", "labels": {"fleet": "north", "size": "5"}, "annotations": {"note": "old"}},
        "spec": {"harbour": "kiel", "oars": 4, "tags": {"a": "b"}, "crew": [{"name": "x", "role": "cook"}]},
        "status": {"oars": 4}});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "chart", "finalizers": ["toys.example/kept"]}, "data": {"depth": "9"}});
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "seen"}, "reason": "Seen",
        "involvedObject": {"kind": "Boat", "namespace": "default", "name": "ada"}, "message": "m", "type": "Normal"});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "pilot"}});
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "calm"}, "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"], "resources": ["configmaps", "boats"]}]},
            "validations": [{"expression": "!has(object.metadata.labels) || !('storm' in object.metadata.labels)"}]}});
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "calm"},
        "spec": {"policyName": "calm", "validationActions": ["Deny"]}});
    vec![
        (CRDS, crate::definition::crd_json()),
        (BOATS, boat),
        ("/api/v1/namespaces/default/configmaps", map),
        ("/api/v1/namespaces/default/events", event),
        ("/api/v1/namespaces/default/serviceaccounts", account),
        ("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", policy),
        ("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", binding),
    ]
}
