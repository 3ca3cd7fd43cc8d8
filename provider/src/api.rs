//! Requests to the control plane, on plain JSON objects.
//!
//! Must not know Terraform, nor any kind. Everything is bounded: a request takes 30 s at most, retries end.

mod watch;

use std::{fmt, time::Duration};

use http::{Method, Request, StatusCode};
use kube::{
    Client,
    client::Body,
    core::{Status, response::StatusCause},
};
use serde_json::{Value as Json, json};
use tfplugin6::CancellationToken;
use tokio::time::{Instant, sleep, timeout};

pub use watch::{Ended, Verdict, Waiting, until, until_settled};

/// The longest one request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// The largest answer read.
const ANSWER_LIMIT: usize = 16 << 20;

/// Where an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// `apis/berth.dev/v1alpha1` or `api/v1`
    pub group: String,
    /// `vms`
    pub plural: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The control plane answered, and refused.
    #[error("{}", .0.message)]
    Refused(Box<Status>),
    /// No answer.
    #[error("{0}")]
    Unreachable(String),
    /// An answer that is none.
    #[error("the control plane's answer could not be read: {0}")]
    Answer(String),
    /// Terraform was told to stop.
    #[error("stopped")]
    Cancelled,
}

impl ApiError {
    /// The HTTP status of a refusal, else 0.
    #[must_use]
    pub fn code(&self) -> u16 {
        match self {
            Self::Refused(status) => status.code,
            _ => 0,
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

    /// Whether the object is not there, rather than its kind or namespace.
    fn is_object_missing(&self, at: &Address) -> bool {
        match self {
            Self::Refused(status) if status.code == 404 => status
                .details
                .as_ref()
                .is_some_and(|details| details.name == at.name || details.kind == at.plural),
            _ => false,
        }
    }

    fn is_worth_a_retry(&self) -> bool {
        matches!(self, Self::Unreachable(_)) || matches!(self.code(), 429 | 502 | 503 | 504)
    }
}

/// How long to try again while there is no answer.
#[derive(Debug, Clone)]
pub struct Patience {
    /// Not after this.
    pub until: Instant,
    /// Nor after this token is cancelled.
    pub cancel: CancellationToken,
}

impl Patience {
    /// For a limited time.
    #[must_use]
    pub fn seconds(seconds: u64, cancel: &CancellationToken) -> Self {
        Self { until: Instant::now() + Duration::from_secs(seconds), cancel: cancel.clone() }
    }
}

/// The result of a server-side apply.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The object as it is now.
    pub object: Json,
    /// Whether it was made.
    pub created: bool,
    /// Whether an earlier attempt may have made it.
    pub retried: bool,
}

/// The control plane. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    client: Client,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

impl Address {
    /// Of one of berth's own kinds.
    #[must_use]
    pub fn berth(plural: &str, namespace: &str, name: &str) -> Self {
        Self {
            group: format!("apis/{}/{}", berth_api::GROUP, berth_api::VERSION),
            plural: plural.into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// Of a Secret.
    #[must_use]
    pub fn secret(namespace: &str, name: &str) -> Self {
        Self {
            group: "api/v1".into(),
            plural: "secrets".into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// Of another object in the same namespace and group.
    #[must_use]
    pub fn beside(&self, plural: &str, name: &str) -> Self {
        Self { plural: plural.into(), name: name.into(), ..self.clone() }
    }

    fn collection(&self) -> String {
        format!("/{}/namespaces/{}/{}", self.group, self.namespace, self.plural)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.name)
    }
}

impl Api {
    /// On a client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Whether the control plane answers at all, within `limit`.
    pub async fn answers(&self, limit: Duration) -> bool {
        let request = build(Method::GET, "/version".into(), None, Vec::new());
        let Ok(request) = request else { return false };
        matches!(timeout(limit, self.client.send(request)).await, Ok(Ok(_)))
    }

    /// The object, if there is one.
    ///
    /// # Errors
    /// Anything but that there is none.
    pub async fn get(&self, at: &Address, patience: &Patience) -> Result<Option<Json>, ApiError> {
        match self.call(Method::GET, at.path(), None, None, patience).await {
            Ok((_, object, _)) => Ok(Some(object)),
            Err(error) if error.is_object_missing(at) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Declares: one server-side apply.
    ///
    /// # Errors
    /// 409 when another manager has one of the fields and `force` is not set, and whatever admission says.
    pub async fn apply(
        &self,
        at: &Address,
        object: &Json,
        manager: &str,
        mode: ApplyMode,
        patience: &Patience,
    ) -> Result<Applied, ApiError> {
        let path = format!(
            "{}?fieldManager={}&force={}&fieldValidation=Strict{}",
            at.path(),
            manager.replace(':', "%3A"),
            mode.force,
            if mode.dry_run { "&dryRun=All" } else { "" }
        );
        let (status, object, retried) = self
            .call(Method::PATCH, path, Some("application/apply-patch+yaml"), Some(object), patience)
            .await?;
        Ok(Applied { object, created: status == StatusCode::CREATED, retried })
    }

    /// Asks what admission would say of a new object.
    ///
    /// # Errors
    /// What admission says; 409 when there is one of that name already.
    pub async fn dry_create(
        &self,
        at: &Address,
        object: &Json,
        manager: &str,
        patience: &Patience,
    ) -> Result<Json, ApiError> {
        let manager = manager.replace(':', "%3A");
        let path = format!("{}?dryRun=All&fieldManager={manager}&fieldValidation=Strict", at.collection());
        let answer = self.call(Method::POST, path, Some("application/json"), Some(object), patience).await?;
        Ok(answer.1)
    }

    /// Changes an object by a JSON patch.
    ///
    /// # Errors
    /// When a test in the patch fails, and whatever admission says.
    pub async fn json_patch(
        &self,
        at: &Address,
        patch: &Json,
        manager: &str,
        patience: &Patience,
    ) -> Result<Json, ApiError> {
        let path =
            format!("{}?fieldManager={}&fieldValidation=Strict", at.path(), manager.replace(':', "%3A"));
        let answer = self
            .call(Method::PATCH, path, Some("application/json-patch+json"), Some(patch), patience)
            .await?;
        Ok(answer.1)
    }

    /// Asks for the object of this uid to be deleted.
    ///
    /// # Errors
    /// 404 when it is gone, 409 when there is another object of that name, 403 when admission refuses.
    pub async fn delete(&self, at: &Address, uid: &str, patience: &Patience) -> Result<Json, ApiError> {
        let mut options =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        if !uid.is_empty()
            && let Some(options) = options.as_object_mut()
        {
            options.insert("preconditions".into(), json!({"uid": uid}));
        }
        let answer =
            self.call(Method::DELETE, at.path(), Some("application/json"), Some(&options), patience).await?;
        Ok(answer.1)
    }

    /// One request, tried again while there is no answer. Tells also whether it was.
    async fn call(
        &self,
        method: Method,
        path: String,
        content: Option<&'static str>,
        body: Option<&Json>,
        patience: &Patience,
    ) -> Result<(StatusCode, Json, bool), ApiError> {
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| ApiError::Answer(error.to_string()))?,
            None => Vec::new(),
        };
        let mut pause = Duration::from_millis(200);
        let mut retried = false;
        loop {
            if patience.cancel.is_cancelled() {
                return Err(ApiError::Cancelled);
            }
            let request = build(method.clone(), path.clone(), content, body.clone())?;
            let error = match self.call_once(request).await {
                Ok((status, object)) => return Ok((status, object, retried)),
                Err(error) => error,
            };
            if !error.is_worth_a_retry() || Instant::now() + pause > patience.until {
                return Err(error);
            }
            tracing::debug!(%method, path, %error, "no answer, trying again");
            retried = true;
            tokio::select! {
                () = patience.cancel.cancelled() => return Err(ApiError::Cancelled),
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(Duration::from_secs(4));
        }
    }

    async fn call_once(&self, request: Request<Body>) -> Result<(StatusCode, Json), ApiError> {
        let exchange = async {
            let answer =
                self.client.send(request).await.map_err(|error| ApiError::Unreachable(chain(&error)))?;
            let status = answer.status();
            let body = http_body_util::Limited::new(answer.into_body(), ANSWER_LIMIT);
            let body = http_body_util::BodyExt::collect(body).await;
            let body = body.map_err(|error| ApiError::Unreachable(error.to_string()))?.to_bytes();
            Ok((status, body))
        };
        let Ok(answer) = timeout(REQUEST_LIMIT, exchange).await else {
            return Err(ApiError::Unreachable(format!("no answer in {} seconds", REQUEST_LIMIT.as_secs())));
        };
        let (status, body) = answer?;
        if status.is_success() {
            let object =
                serde_json::from_slice(&body).map_err(|error| ApiError::Answer(error.to_string()))?;
            return Ok((status, object));
        }
        Err(ApiError::Refused(Box::new(refusal(status, &body))))
    }
}

/// How a server-side apply goes about it.
#[derive(Debug, Clone, Copy, Default)]
pub struct ApplyMode {
    /// Take over fields of other managers.
    pub force: bool,
    /// Change nothing.
    pub dry_run: bool,
}

fn build(
    method: Method,
    path: String,
    content: Option<&'static str>,
    body: Vec<u8>,
) -> Result<Request<Body>, ApiError> {
    let mut request = Request::builder().method(method).uri(path).header("accept", "application/json");
    if let Some(content) = content {
        request = request.header("content-type", content);
    }
    request.body(Body::from(body)).map_err(|error| ApiError::Answer(error.to_string()))
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

/// An error with its causes, each once.
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
