//! Requests to the control plane, on plain JSON objects.
//!
//! Must not know Terraform, nor any kind. Everything is bounded: a request takes at most 30 s, and retries end.

mod list;
mod refresh;
mod token;
mod watch;

use std::{fmt, sync::Arc, time::Duration};

use http::{Method, Request, StatusCode};
use kube::{
    Client,
    client::Body,
    core::{Status, response::StatusCause},
};
use serde_json::{Value as Json, json};
use tfplugin6::CancellationToken;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::failure::{self, Place};
pub use list::Selection;
pub use watch::{ObjectWait, Verdict, WaitEnd, wait_until, wait_until_settled};

/// The time limit of one request.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// The largest response body, in bytes.
const RESPONSE_LIMIT: usize = 16 << 20;

/// The address of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// `apis/berth.dev/v1alpha1` or `api/v1`
    pub group: String,
    /// `vms`
    pub plural: String,
    /// The namespace; empty for a cluster-scoped kind.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// The error of a request.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The control plane refused the request.
    #[error("{}", .0.message)]
    Refused(Box<Status>),
    /// The control plane did not respond.
    #[error("{0}")]
    Unreachable(String),
    /// The connection fails for as long as the configuration stays as it is.
    #[error("{0}")]
    Misconfigured(String),
    /// The request cannot be built.
    #[error("the request could not be built: {0}")]
    InvalidRequest(String),
    /// The response is malformed, or too large.
    #[error("the response of the control plane cannot be used: {0}")]
    InvalidResponse(String),
    /// Terraform cancelled the operation.
    #[error("stopped")]
    Cancelled,
}

impl ApiError {
    /// The HTTP status of a refusal, otherwise 0.
    #[must_use]
    pub fn code(&self) -> u16 {
        match self {
            Self::Refused(status) => status.code,
            _ => 0,
        }
    }

    /// The words of an admission policy that refuses a request which the user has the right to make.
    #[must_use]
    pub fn denial(&self) -> Option<&str> {
        match self {
            Self::Refused(status) if status.code == 403 => {
                status.message.split_once(" denied request: ").map(|(_, words)| words)
            }
            _ => None,
        }
    }

    /// The causes of a refusal.
    #[must_use]
    pub fn causes(&self) -> &[StatusCause] {
        match self {
            Self::Refused(status) => status.details.as_ref().map_or(&[], |details| &details.causes),
            _ => &[],
        }
    }

    /// Whether the object itself is missing, rather than its kind or namespace.
    #[must_use]
    pub fn is_object_missing(&self, at: &Address) -> bool {
        match self {
            Self::Refused(status) if status.code == 404 => status
                .details
                .as_ref()
                .is_some_and(|details| details.name == at.name || details.kind == at.plural),
            _ => false,
        }
    }

    /// Whether the namespace of the object is missing.
    #[must_use]
    pub fn is_namespace_missing(&self) -> bool {
        match self {
            Self::Refused(status) if status.code == 404 => {
                status.details.as_ref().is_some_and(|details| details.kind == "namespaces")
            }
            _ => false,
        }
    }

    /// Whether there was no response.
    #[must_use]
    pub fn is_without_response(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Misconfigured(_))
    }

    fn is_worth_a_retry(&self) -> bool {
        matches!(self, Self::Unreachable(_)) || matches!(self.code(), 429 | 502 | 503 | 504)
    }
}

/// The time for which a request is retried while the control plane does not respond.
#[derive(Debug, Clone)]
pub struct RetryLimit {
    /// The deadline.
    pub until: Instant,
    /// Cancelling this token ends the retries, too.
    pub cancel: CancellationToken,
}

impl RetryLimit {
    /// Retries for a limited time.
    #[must_use]
    pub fn seconds(seconds: u64, cancel: &CancellationToken) -> Self {
        Self { until: Instant::now() + Duration::from_secs(seconds), cancel: cancel.clone() }
    }
}

/// The result of a server-side apply.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The object after the apply.
    pub object: Json,
    /// Whether the apply created the object.
    pub created: bool,
    /// Whether the request was retried, so that an earlier attempt may have created the object.
    pub retried: bool,
}

/// A client of the control plane. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    client: Client,
    place: Option<Arc<Place>>,
    listings: Arc<refresh::Listings>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

impl Address {
    /// The address of an object of one of berth's own kinds.
    #[must_use]
    pub fn berth(plural: &str, namespace: &str, name: &str) -> Self {
        Self {
            group: format!("apis/{}/{}", berth_api::GROUP, berth_api::VERSION),
            plural: plural.into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The address of a Secret.
    #[must_use]
    pub fn secret(namespace: &str, name: &str) -> Self {
        Self {
            group: "api/v1".into(),
            plural: "secrets".into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The address of a ServiceAccount.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self { plural: "serviceaccounts".into(), ..Self::secret(namespace, name) }
    }

    /// The address of a cluster-scoped object.
    #[must_use]
    pub fn cluster(plural: &str, name: &str) -> Self {
        Self::berth(plural, "", name)
    }

    /// The address of another object in the same namespace and group.
    #[must_use]
    pub fn sibling(&self, plural: &str, name: &str) -> Self {
        Self { plural: plural.into(), name: name.into(), ..self.clone() }
    }

    /// `namespace/name`, or the name alone of a cluster-scoped object.
    #[must_use]
    pub fn id(&self) -> String {
        if self.namespace.is_empty() {
            self.name.clone()
        } else {
            format!("{}/{}", self.namespace, self.name)
        }
    }

    fn collection(&self) -> String {
        if self.namespace.is_empty() {
            return format!("/{}/{}", self.group, self.plural);
        }
        format!("/{}/namespaces/{}/{}", self.group, self.namespace, self.plural)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.name)
    }
}

impl Api {
    /// Requests through this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, place: None, listings: Arc::default() }
    }

    /// Requests through a client of the control plane at this place, which errors name.
    #[must_use]
    pub fn at(client: Client, place: Place) -> Self {
        Self { client, place: Some(Arc::new(place)), listings: Arc::default() }
    }

    /// Returns once the control plane responds to anything, with whatever status.
    ///
    /// # Errors
    /// Why it did not within `limit`.
    pub async fn probe(&self, limit: Duration) -> Result<(), ApiError> {
        let until = Instant::now() + limit;
        let mut pause = Duration::from_millis(200);
        let mut last = None;
        loop {
            let request = Call::get("/version".into()).request()?;
            let error = match timeout_at(until, self.call_once(request)).await {
                Ok(Ok(_) | Err(ApiError::Refused(_) | ApiError::InvalidResponse(_))) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => {
                    return Err(last.unwrap_or_else(|| self.silent(limit)));
                }
            };
            if !error.is_worth_a_retry() || Instant::now() + pause > until {
                return Err(error);
            }
            last = Some(error);
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// The error of a request without a response in this time.
    #[must_use]
    pub fn silent(&self, limit: Duration) -> ApiError {
        self.failed(&format!("no response in {} seconds", limit.as_secs_f32()))
    }

    /// The error of a request that failed without a response.
    fn failed(&self, error: &str) -> ApiError {
        let failure = failure::explain(self.place.as_deref(), error);
        if failure.is_lasting {
            ApiError::Misconfigured(failure.text)
        } else {
            ApiError::Unreachable(failure.text)
        }
    }

    /// Returns the object, or none if it does not exist.
    ///
    /// # Errors
    /// Every failure except that the object does not exist.
    pub async fn get(&self, at: &Address, retry_limit: &RetryLimit) -> Result<Option<Json>, ApiError> {
        match self.call(Call::get(at.path()), retry_limit).await {
            Ok((_, object, _)) => Ok(Some(object)),
            Err(error) if error.is_object_missing(at) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Declares an object with one server-side apply.
    ///
    /// # Errors
    /// 409 when another manager owns one of the fields and `force` is not set, and admission's refusals.
    pub async fn apply(
        &self,
        at: &Address,
        object: &Json,
        options: ApplyOptions<'_>,
        retry_limit: &RetryLimit,
    ) -> Result<Applied, ApiError> {
        let path = format!(
            "{}?fieldManager={}&force={}&fieldValidation=Strict{}",
            at.path(),
            options.manager.replace(':', "%3A"),
            options.force,
            if options.dry_run { "&dryRun=All" } else { "" }
        );
        let call = Call::new(Method::PATCH, path, "application/apply-patch+yaml", object)?;
        let (status, object, retried) = self.call(call, retry_limit).await?;
        Ok(Applied { object, created: status == StatusCode::CREATED, retried })
    }

    /// Creates a new object with a dry run: admission decides, nothing is stored.
    ///
    /// # Errors
    /// Admission's refusals; 409 when an object of that name exists already.
    pub async fn dry_create(
        &self,
        at: &Address,
        object: &Json,
        manager: &str,
        retry_limit: &RetryLimit,
    ) -> Result<Json, ApiError> {
        let manager = manager.replace(':', "%3A");
        let path = format!("{}?dryRun=All&fieldManager={manager}&fieldValidation=Strict", at.collection());
        let call = Call::new(Method::POST, path, "application/json", object)?;
        Ok(self.call(call, retry_limit).await?.1)
    }

    /// Changes an object with a JSON patch.
    ///
    /// # Errors
    /// When a test in the patch fails, and admission's refusals.
    pub async fn json_patch(
        &self,
        at: &Address,
        patch: &Json,
        manager: &str,
        retry_limit: &RetryLimit,
    ) -> Result<Json, ApiError> {
        let path =
            format!("{}?fieldManager={}&fieldValidation=Strict", at.path(), manager.replace(':', "%3A"));
        let call = Call::new(Method::PATCH, path, "application/json-patch+json", patch)?;
        Ok(self.call(call, retry_limit).await?.1)
    }

    /// Requests the deletion of the object with this uid.
    ///
    /// # Errors
    /// 404 when it is gone, 409 when another object has that name, 403 when admission refuses.
    pub async fn delete(&self, at: &Address, uid: &str, retry_limit: &RetryLimit) -> Result<Json, ApiError> {
        let mut options =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        if !uid.is_empty()
            && let Some(options) = options.as_object_mut()
        {
            options.insert("preconditions".into(), json!({"uid": uid}));
        }
        let call = Call::new(Method::DELETE, at.path(), "application/json", &options)?;
        Ok(self.call(call, retry_limit).await?.1)
    }

    /// Sends one request and retries it while there is no response. The last value returned is whether it was retried.
    async fn call(&self, call: Call, retry_limit: &RetryLimit) -> Result<(StatusCode, Json, bool), ApiError> {
        let mut pause = Duration::from_millis(200);
        let mut retried = false;
        loop {
            if retry_limit.cancel.is_cancelled() {
                return Err(ApiError::Cancelled);
            }
            // Before, too: a write whose response is not awaited to its end may be carried out.
            self.listings.wrote_if(call.method != Method::GET);
            let sent = self.call_once(call.request()?).await;
            self.listings.wrote_if(call.method != Method::GET);
            let error = match sent {
                Ok((status, object)) => return Ok((status, object, retried)),
                Err(error) => error,
            };
            if !error.is_worth_a_retry() || Instant::now() + pause > retry_limit.until {
                return Err(error);
            }
            tracing::debug!(method = %call.method, path = call.path, %error, "no response, trying again");
            retried = true;
            tokio::select! {
                () = retry_limit.cancel.cancelled() => return Err(ApiError::Cancelled),
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(Duration::from_secs(4));
        }
    }

    async fn call_once(&self, request: Request<Body>) -> Result<(StatusCode, Json), ApiError> {
        let exchange = async {
            let response = self.client.send(request).await.map_err(|error| self.failed(&chain(&error)))?;
            let status = response.status();
            let body = http_body_util::Limited::new(response.into_body(), RESPONSE_LIMIT);
            let body = http_body_util::BodyExt::collect(body).await;
            let body = body.map_err(|error| match error.is::<http_body_util::LengthLimitError>() {
                // The same request has the same response again.
                true => ApiError::InvalidResponse(format!("it has more than {} MiB", RESPONSE_LIMIT >> 20)),
                false => self.failed(&error.to_string()),
            });
            let body = body?.to_bytes();
            Ok((status, body))
        };
        let Ok(exchanged) = timeout(REQUEST_LIMIT, exchange).await else {
            return Err(self.silent(REQUEST_LIMIT));
        };
        let (status, body) = exchanged?;
        if status.is_success() {
            let object = serde_json::from_slice(&body)
                .map_err(|error| ApiError::InvalidResponse(error.to_string()))?;
            return Ok((status, object));
        }
        let refusal = refusal(status, &body);
        // The response of a server made with Go to a request without TLS.
        if status == StatusCode::BAD_REQUEST && refusal.message.contains("HTTP request to an HTTPS server") {
            return Err(self.failed(&refusal.message));
        }
        Err(ApiError::Refused(Box::new(refusal)))
    }
}

/// Options of a server-side apply.
#[derive(Debug, Clone, Copy)]
pub struct ApplyOptions<'a> {
    /// The field manager.
    pub manager: &'a str,
    /// Takes over fields of other managers.
    pub force: bool,
    /// Changes nothing.
    pub dry_run: bool,
}

/// One HTTP request, which may be sent several times.
struct Call {
    method: Method,
    path: String,
    content_type: Option<&'static str>,
    body: Vec<u8>,
}

impl Call {
    fn get(path: String) -> Self {
        Self { method: Method::GET, path, content_type: None, body: Vec::new() }
    }

    fn new(method: Method, path: String, content_type: &'static str, body: &Json) -> Result<Self, ApiError> {
        let body = serde_json::to_vec(body).map_err(|error| ApiError::InvalidRequest(error.to_string()))?;
        Ok(Self { method, path, content_type: Some(content_type), body })
    }

    fn request(&self) -> Result<Request<Body>, ApiError> {
        let request = Request::builder().method(self.method.clone()).uri(&self.path);
        let mut request = request.header("accept", "application/json");
        if let Some(content_type) = self.content_type {
            request = request.header("content-type", content_type);
        }
        let request = request.body(Body::from(self.body.clone()));
        request.map_err(|error| ApiError::InvalidRequest(error.to_string()))
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> Status {
    let mut refusal = serde_json::from_slice::<Status>(body).unwrap_or_else(|_| {
        let text: String = String::from_utf8_lossy(body).trim().chars().take(500).collect();
        let text = if text.is_empty() { status.to_string() } else { text };
        Status::failure(&text, "")
    });
    refusal.code = status.as_u16();
    refusal
}

/// An error with its causes, each of them once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
