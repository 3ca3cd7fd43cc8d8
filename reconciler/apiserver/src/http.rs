//! HTTP: from a request with an identity to a response. Sockets and TLS are handled elsewhere.

mod body;
mod document;
mod fair_queue;
mod health;
mod negotiate;
mod protobuf;
mod respond;
mod shape;
mod shares;
mod unread;
mod watch_budget;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use berth_apimachinery::error::{ApiError, Result};
use http::{Method, Request, Response, StatusCode, Uri, header};
use serde_json::{Value, json};

use crate::audit::Audit;
use crate::authenticate::Credential;
use crate::builtin::decode;
use crate::core::Core;
use crate::discovery::Document;
use crate::identity::Identity;
use crate::request::{Options, Query, ResourcePath, Sub, Target};
use crate::verbs::{CUSTOM_PATCHES, Call, PatchKind};
use crate::{authorize, discovery, history, metrics, openapi, review};
use fair_queue::{Admitted, FairQueue};
use shape::Shape;
use shares::Caller;
use unread::UnreadBudget;
use watch_budget::WatchBudget;

/// The maximum number of open watches.
const MAX_WATCHES: usize = 50_000;
/// The number of requests processed at once; further ones wait. Watches do not count, nor do requests whose body has not arrived.
const MAX_IN_FLIGHT: usize = 400;
/// The number of requests for single Leases processed at once.
const MAX_HEARTBEATS: usize = 100;
/// The number of requests that may wait in either queue; further ones are refused with 429.
const MAX_WAITING: usize = 4_000;
/// The number of impersonated groups in a line of the audit log.
const MAX_AUDITED_GROUPS: usize = 16;
/// The timeout of a request that is not a watch.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The result of a write, for the audit log.
#[derive(Debug, Clone, Default)]
struct WrittenObject {
    name: String,
    revision: Option<u64>,
    /// Also if the body of the request says so.
    dry_run: bool,
}

impl WrittenObject {
    fn finish(self, mut line: Value, verb: &str, status: StatusCode) -> Value {
        line["verb"] = verb.into();
        // A name in a body may be as long as the body, even if the request is then refused.
        line["name"] = short(&self.name).into();
        line["code"] = status.as_u16().into();
        line["revision"] = self.revision.map(|revision| revision.to_string()).into();
        if self.dry_run {
            line["dryRun"] = true.into();
        }
        line
    }
}

/// Returns the beginning of a text from a client, for the audit log.
fn short(text: &str) -> String {
    text.chars().take(256).collect()
}

/// The audit line of a request. Dropped, it is written without a code: a client that goes away before the answer may have written.
#[derive(Debug)]
struct AuditLine<'a> {
    audit: &'a Audit,
    line: Option<Value>,
    is_authenticated: bool,
}

impl AuditLine<'_> {
    fn answered(mut self, written: WrittenObject, verb: &str, status: StatusCode) {
        if let Some(line) = self.line.take() {
            self.tell(written.finish(line, verb, status));
        }
    }

    fn tell(&self, line: Value) {
        match self.is_authenticated {
            true => self.audit.tell(line),
            false => self.audit.tell_unauthenticated(line),
        }
    }
}

impl Drop for AuditLine<'_> {
    fn drop(&mut self) {
        if let Some(mut line) = self.line.take() {
            line["code"] = Value::Null;
            self.tell(line);
        }
    }
}

/// The request handler, shared by all connections.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) core: Arc<Core>,
    queue: FairQueue,
    heartbeats: FairQueue,
    bodies: body::BodyBudget,
    watches: WatchBudget,
    unread: UnreadBudget,
    pub(crate) metrics: metrics::Requests,
}

impl Front {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            queue: FairQueue::new(MAX_IN_FLIGHT, MAX_WAITING),
            heartbeats: FairQueue::new(MAX_HEARTBEATS, MAX_WAITING),
            bodies: body::BodyBudget::default(),
            watches: WatchBudget::of(MAX_WATCHES),
            unread: UnreadBudget::default(),
            metrics: metrics::Requests::default(),
        }
    }

    /// Answers one request. `who` is `None` for an unauthenticated client.
    pub(crate) async fn answer(&self, request: Request<Body>, who: Option<Identity>) -> Response<Body> {
        let mut purpose = metrics::Purpose::other(request.method());
        let compress = request.extensions().get::<respond::MayCompress>().is_some()
            && respond::takes_gzip(request.headers());
        let audited = self.audited(&request, who.as_ref());
        let audited = self.core.audit.as_ref().zip(audited);
        let is_authenticated = who.is_some();
        let audited = audited.map(|(audit, line)| AuditLine { audit, line: Some(line), is_authenticated });
        let is_head = request.method() == Method::HEAD;
        let reader = who.as_ref().filter(|_| request.method() == Method::GET);
        let reader = reader.map(|who| Caller::of(&request, who));
        let mut response =
            match tokio::time::timeout(REQUEST_TIMEOUT, self.route(request, who, &mut purpose)).await {
                Ok(Ok(response)) => response,
                Ok(Err(error)) => respond::failure(&error, &[]),
                Err(_) => respond::failure(&ApiError::timeout("the request took too long"), &[]),
            };
        if let Some(audited) = audited {
            let written = response.extensions_mut().remove::<WrittenObject>().unwrap_or_default();
            audited.answered(written, purpose.verb, response.status());
        }
        self.metrics.count(purpose, response.status());
        let response = match (is_head, compress) {
            (true, _) => respond::head_of(response),
            (false, true) => respond::compressed(response).await,
            (false, false) => response,
        };
        match reader {
            Some(reader) => self.unread.hold(response, &reader).unwrap_or_else(|unread::TooMuchUnread| {
                self.metrics.shed();
                let error = ApiError::too_many_requests("too many long responses are not read");
                respond::failure(&error, &[])
            }),
            None => response,
        }
    }

    async fn route(
        &self,
        request: Request<Body>,
        who: Option<Identity>,
        purpose: &mut metrics::Purpose,
    ) -> Result<Response<Body>> {
        let path = request.uri().path().to_owned();
        let health = health::endpoint(&path);
        if let Some((endpoint, "")) = health {
            return Ok(health::all(&self.core, endpoint, &Query::of(request.uri())?));
        }
        let who = who.ok_or_else(ApiError::unauthorized)?;
        let who = authorize::impersonated(&self.core.access, who, request.headers())?;
        if request.uri().path().len() > 4096 {
            return Err(ApiError::bad_request("path is too long"));
        }
        if let Some(rest) = path.strip_prefix("/history")
            && (rest.is_empty() || rest.starts_with('/'))
        {
            let _admitted = self.admit(&self.queue, &Caller::of(&request, &who)).await?;
            let (method, uri) = (request.method().clone(), request.uri().clone());
            return self.history(&method, &uri, rest, &who).await;
        }
        if let Some((endpoint, check)) = health {
            authorize::path(&self.core.access, &who, &request.method().as_str().to_ascii_lowercase(), &path)?;
            return health::one(&self.core, endpoint, check).ok_or_else(ApiError::no_such_path);
        }
        match ResourcePath::parse(&path) {
            Some(resource) => self.resource(request, resource, who, purpose).await,
            None => self.document(&request, &path, &who),
        }
    }

    /// Answers a request for a document about the server.
    fn document(&self, request: &Request<Body>, path: &str, who: &Identity) -> Result<Response<Body>> {
        let method = request.method();
        authorize::path(&self.core.access, who, &method.as_str().to_ascii_lowercase(), path)?;
        if path == "/metrics" {
            return Ok(respond::metrics(metrics::render(&self.core, &self.metrics, self.load())));
        }
        let accept = negotiate::accept(request.headers());
        if path.starts_with("/openapi/") && !accept.takes_documents() {
            return Err(ApiError::not_acceptable());
        }
        let document = match path {
            "/openapi/v2" if accept.prefers(openapi::V2_PROTOBUF) => Some(Document::openapi_v2_protobuf()),
            _ => discovery::document(&self.core, path, accept.wants_aggregated_discovery()),
        };
        let document = document.ok_or_else(ApiError::no_such_path)?;
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(ApiError::method_not_allowed());
        }
        respond::document(request, document)
    }

    /// Waits until the request may be processed.
    async fn admit<'a>(&self, queue: &'a FairQueue, caller: &Caller) -> Result<Admitted<'a>> {
        queue.take(caller).await.map_err(|fair_queue::QueueFull| {
            self.metrics.shed();
            ApiError::too_many_requests("too many requests are waiting")
        })
    }

    /// A Lease has a queue of its own: behind thousands of other requests it would expire, and a live host would seem lost.
    fn queue_of(&self, target: &Target) -> &FairQueue {
        let is_heartbeat = target.resource.is("coordination.k8s.io", "leases") && !target.name.is_empty();
        if is_heartbeat { &self.heartbeats } else { &self.queue }
    }

    /// Returns the number of requests being processed, of requests that wait, and of bodies being
    /// received.
    pub(crate) fn load(&self) -> [usize; 3] {
        let ([answered, waiting], heartbeats) = (self.queue.load(), self.heartbeats.load());
        [answered + heartbeats[0], waiting + heartbeats[1], self.bodies.taken()]
    }

    /// Answers a history request for an object or a time; `rest` is the object's path.
    async fn history(
        &self,
        method: &Method,
        uri: &Uri,
        rest: &str,
        who: &Identity,
    ) -> Result<Response<Body>> {
        if method != Method::GET {
            return Err(ApiError::method_not_allowed());
        }
        let query = Query::of(uri)?;
        if rest.is_empty() {
            let time = query.first("at");
            let time = time.ok_or_else(|| ApiError::bad_request("at=TIME is required"))?;
            return Ok(respond::json(StatusCode::OK, &history::at(&self.core, time).await?));
        }
        let path = ResourcePath::parse(rest).ok_or_else(ApiError::no_such_path)?;
        authorize::resource(&self.core.access, who, "get", &path, "")?;
        let target = path.resolve(&self.core.catalog.served(), "get")?;
        if target.name.is_empty() || target.sub != Sub::None {
            return Err(ApiError::no_such_path());
        }
        let reported = history::of_object(&self.core, &target, history::limit(&query)?).await?;
        Ok(respond::json(StatusCode::OK, &reported))
    }

    async fn resource(
        &self,
        request: Request<Body>,
        path: ResourcePath,
        who: Identity,
        purpose: &mut metrics::Purpose,
    ) -> Result<Response<Body>> {
        let query = Query::of(request.uri())?;
        let caller = Caller::of(&request, &who);
        let verb = path.verb(request.method(), Options::is_watch(&query));
        if let Some(review) = review::Review::of(&path) {
            authorize::resource(&self.core.access, &who, verb, &path, "")?;
            if verb != "create" {
                return Err(ApiError::method_not_allowed());
            }
            let options = Options::parse(request.method(), &query)?;
            return self.review(request, review, &path.namespace, &who, &options).await;
        }
        let selector = query.first("fieldSelector").unwrap_or_default();
        let target = path.resolve(&self.core.catalog.served(), verb);
        if let Ok(target) = &target {
            *purpose = metrics::Purpose::new(verb, target);
        }
        authorize::resource(&self.core.access, &who, verb, &path, selector)?;
        let target = target?;
        let options = Options::parse(request.method(), &query)?;
        let accept = negotiate::accept(request.headers());
        // Queued only once the body has arrived: a slow sender must not occupy capacity.
        let (request, _body_permit) = match verb {
            "get" | "list" | "watch" => (request, None),
            _ => self.bodies.receive(request, &caller).await?,
        };
        let _admitted = self.admit(self.queue_of(&target), &caller).await?;
        let credential = request.extensions().get::<Credential>().cloned();
        let shape = Shape::new(accept.wanted()?, &target, &options, &self.core.clock);
        let default_manager = body::manager_of(request.headers());
        let core = Arc::clone(&self.core);
        let deprecation = target.resource.versions[target.version].deprecation.clone();
        let warnings = deprecation.into_iter().collect();
        let twice = Vec::new();
        let mut call =
            Call { core, who, target, options, default_manager, warnings, twice, verb, written: None };
        match verb {
            "watch" => {
                let permit = self.watches.try_take(&caller).ok_or_else(|| {
                    self.metrics.shed();
                    ApiError::too_many_requests("too many watches are open")
                })?;
                let stream = call.watch(Box::new(shape), credential).await?;
                return Ok(respond::stream(stream, permit, &call.warnings));
            }
            "list" => {
                let page = call.list().await?;
                return Ok(respond::page(&call, &shape, &page));
            }
            "deletecollection" => {
                take_delete_options(&mut call, request).await?;
                let page = call.delete_collection().await?;
                let mut response = respond::page(&call, &shape, &page);
                let (name, revision, dry_run) = (String::new(), call.written, call.options.dry_run);
                response.extensions_mut().insert(WrittenObject { name, revision, dry_run });
                return Ok(response);
            }
            _ => {}
        }
        let answer = self.single(verb, &mut call, request).await;
        let mut response = match answer {
            Ok(answer) => respond::answer(&answer, &shape, &call.warnings),
            Err(error) => respond::failure(&error, &call.warnings),
        };
        let (name, revision, dry_run) = (call.target.name, call.written, call.options.dry_run);
        response.extensions_mut().insert(WrittenObject { name, revision, dry_run });
        Ok(response)
    }

    async fn review(
        &self,
        request: Request<Body>,
        review: review::Review,
        namespace: &str,
        who: &Identity,
        options: &Options,
    ) -> Result<Response<Body>> {
        let caller = Caller::of(&request, who);
        let (request, _body_permit) = self.bodies.receive(request, &caller).await?;
        let _admitted = self.admit(&self.queue, &caller).await?;
        let mut body = body::object(request).await?;
        let mut warnings = Vec::new();
        let unknown = decode::accept(review.group, review.kind, &mut body.value)
            .map_err(|why| decode::unreadable(review.kind, "v1", &why))?;
        if let Some(strict) = options.field_validation.tell(&body.twice, &unknown, &mut warnings) {
            return Err(decode::unreadable(review.kind, "v1", &strict));
        }
        Ok(match review::answer(&self.core, who, review, namespace, body.value) {
            Ok(answer) => respond::review(&answer, &warnings),
            Err(error) => respond::failure(&error, &warnings),
        })
    }

    /// Returns the beginning of the audit line of a request, if the request is audited.
    fn audited(&self, request: &Request<Body>, who: Option<&Identity>) -> Option<Value> {
        let path = request.uri().path();
        let is_review = || ResourcePath::parse(path).is_some_and(|path| review::Review::of(&path).is_some());
        if self.core.audit.is_none() || request.method().is_safe() || is_review() {
            return None;
        }
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let groups = request.headers().get_all("impersonate-group").iter().take(MAX_AUDITED_GROUPS);
        let groups: Vec<String> = groups.filter_map(|group| group.to_str().ok()).map(short).collect();
        let from = request.extensions().get::<SocketAddr>();
        let mut line = json!({
            "time": self.core.clock.now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string(),
            "user": who.map_or_else(String::new, |who| short(&who.user)),
            "as": header("impersonate-user").map(short),
            "method": request.method().as_str(),
            "path": path.chars().take(1024).collect::<String>(),
            "dryRun": is_dry_run(request.uri()),
            "from": from.map_or_else(|| "in process".to_owned(), ToString::to_string),
            "agent": header("user-agent").map(short),
        });
        if !groups.is_empty() {
            line["asGroups"] = groups.into();
        }
        Some(line)
    }

    async fn single(
        &self,
        verb: &str,
        call: &mut Call,
        request: Request<Body>,
    ) -> Result<crate::verbs::Answer> {
        match verb {
            "get" => call.get(),
            "create" => {
                let body = body::object(request).await?;
                let object = take(call, body);
                if call.target.sub == Sub::Token {
                    return call.create_token(object);
                }
                call.create(object).await
            }
            "update" => {
                let body = body::object(request).await?;
                let object = take(call, body);
                call.update(object).await
            }
            "patch" => {
                let kind = body::content_type(request.headers());
                let accepted = if call.target.resource.is_custom() { CUSTOM_PATCHES } else { PATCHES };
                let kind = PatchKind::of(&kind).ok_or_else(|| ApiError::unsupported_media_type(accepted))?;
                let patch = if kind == PatchKind::Apply {
                    call.verb = "apply";
                    body::applied(request).await?
                } else {
                    body::patch(request).await?
                };
                let patch = take(call, patch);
                call.patch(kind, patch).await
            }
            "delete" => {
                take_delete_options(call, request).await?;
                call.delete().await
            }
            _ => Err(ApiError::method_not_allowed()),
        }
    }
}

const PATCHES: &str = "application/json-patch+json, application/merge-patch+json, \
    application/strategic-merge-patch+json, application/apply-patch+yaml";

/// Whether the query says that the request writes nothing. The text alone may also be the value of another parameter.
fn is_dry_run(uri: &Uri) -> bool {
    let may_be = uri.query().is_some_and(|query| query.contains("dryRun"));
    may_be && Query::of(uri).is_ok_and(|query| query.first("dryRun") == Some("All"))
}

/// Takes the value of a body; the call reports its duplicate fields.
fn take(call: &mut Call, body: body::Decoded) -> Value {
    call.twice = body.twice;
    body.value
}

async fn take_delete_options(call: &mut Call, request: Request<Body>) -> Result<()> {
    let body = body::optional_object(request).await?;
    match body {
        Value::Null => Ok(()),
        options => call.options.take_delete_options(&options),
    }
}

/// Marks a request from a socket: compression for a caller in the same process is a waste.
pub(crate) fn from_socket(request: &mut Request<Body>, peer: SocketAddr) {
    request.extensions_mut().insert(peer);
    request.extensions_mut().insert(respond::MayCompress);
}

/// Returns the bearer token of a request.
pub(crate) fn bearer(request: &Request<Body>) -> Option<&str> {
    let value = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
