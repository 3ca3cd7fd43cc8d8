//! The upload of `source.file` to the host of the image.

use std::time::Duration;

use async_trait::async_trait;
use berth_api::{
    Image,
    console::{UPLOAD_ACCOUNT, upload_audience, upload_path},
};
use berth_console_client::{Awaited, Next, PushError, Seen, Target, UploadPlace, push};
use serde_json::{Value as Json, json};
use tfplugin6::{AttributePath, Diagnostic};
use tokio::time::{Instant, sleep, timeout_at};

use super::file::measured;
use crate::{
    api::{Address, Api, RetryLimit},
    kind::Supply,
};

/// The shortest lifetime in seconds that Kubernetes gives a token.
const TOKEN_SECONDS: i64 = 600;
/// The time for which a request is retried while the control plane is away, as `berth image push` does: an upload of hours is worth it.
const RETRIES: Duration = Duration::from_secs(5 * 60);
const PAUSE: Duration = Duration::from_millis(500);

/// The image that the file is uploaded for.
struct Place<'a> {
    api: &'a Api,
    at: &'a Address,
    uid: &'a str,
    awaited: Awaited,
    /// That of the whole upload.
    limit: &'a RetryLimit,
}

impl Place<'_> {
    fn limit(&self) -> RetryLimit {
        limited(self.limit)
    }

    async fn read(&self) -> Result<Image, String> {
        let found = self.api.get(self.at, &self.limit()).await.map_err(|error| error.to_string())?;
        let image: Option<Image> = found.and_then(|found| serde_json::from_value(found).ok());
        let image = image.filter(|image| image.metadata.uid.as_deref() == Some(self.uid));
        image.ok_or_else(|| "the Image was deleted meanwhile".to_owned())
    }
}

/// Returns the limit of a request within that of the upload.
fn limited(upload: &RetryLimit) -> RetryLimit {
    RetryLimit { until: upload.until.min(Instant::now() + RETRIES), cancel: upload.cancel.clone() }
}

#[async_trait]
impl UploadPlace for Place<'_> {
    type Error = String;

    async fn next(&self) -> Result<Next, String> {
        let server = match self.awaited.look(&self.read().await?)? {
            Seen::Ready => return Ok(Next::Done),
            Seen::Wait => return Ok(Next::Wait),
            Seen::Upload(server) => server,
        };
        let Address { namespace, name, .. } = self.at;
        let account = Address::service_account(namespace, UPLOAD_ACCOUNT);
        let spec = json!({
            "audiences": [upload_audience(namespace, name, self.uid)], "expirationSeconds": TOKEN_SECONDS,
        });
        let issued = match self.api.request_token(&account, spec, &self.limit()).await {
            Ok(issued) => issued,
            Err(error) if error.code() == 403 => {
                return Err(format!(
                    "{error}. This needs the verb create on serviceaccounts/token of {UPLOAD_ACCOUNT} in namespace {namespace} (role \
                     berth-editor has it)"
                ));
            }
            Err(error) if error.code() == 404 => {
                return Err(format!(
                    "{error}. The controllers create this account; or: kubectl create serviceaccount {UPLOAD_ACCOUNT} -n {namespace}"
                ));
            }
            Err(error) => return Err(error.to_string()),
        };
        let ticket = issued.get("token").and_then(Json::as_str).unwrap_or_default().to_owned();
        Ok(Next::Upload(Box::new(Target { server, path: upload_path(namespace, name), ticket })))
    }

    fn progress(&self, done: u64) {
        tracing::debug!(name = self.at.name, done, "uploading");
    }
}

/// Uploads the file of an image that is declared, and waits until the host has verified it or says why not.
///
/// *Errors*: the file cannot be read or has changed, the host refuses it, or the time is over. The host keeps the bytes that it has.
pub(super) async fn run(supply: Supply<'_>) -> Result<(), Box<Diagnostic>> {
    let Supply { api, at, object, planned, private, ref limit } = supply;
    let source = planned.get("source");
    let Some(path) = source.get("file").as_str() else { return Ok(()) };
    let uid = object.pointer("/metadata/uid").and_then(Json::as_str).unwrap_or_default();
    let place = |awaited| Place { api, at, uid, awaited, limit };
    let looking = place(Awaited::host(limit.until));
    let failed = |why: String| {
        let detail = format!(
            "source.file: uploading {path}: {why}. What was uploaded stays on the host: apply again to continue."
        );
        let at_file = AttributePath::root("source").attribute("file");
        Box::new(Diagnostic::error(format!("Image {} is not uploaded", at.id()), detail).at(at_file))
    };
    if matches!(looking.awaited.look(&looking.read().await.map_err(failed)?), Ok(Seen::Ready)) {
        return Ok(());
    }
    let file = measured(path, private.file.as_ref()).await.map_err(|error| failed(error.to_string()))?;
    if source.get("sha256").as_str().is_some_and(|planned| planned != file.sha256) {
        return Err(failed("it has other content than at the plan: plan again".to_owned()));
    }
    let work = async {
        match push(&looking, &file).await {
            Ok(()) => {}
            Err(PushError::Place(why)) => return Err(why),
            Err(PushError::Upload(error)) => return Err(error.to_string()),
        }
        let verified = place(Awaited::verified(limit.until));
        // The wait for the object that follows reports why it is stalled.
        while let Ok(Seen::Wait) = verified.awaited.look(&verified.read().await?) {
            sleep(PAUSE).await;
        }
        Ok(())
    };
    let done = tokio::select! {
        done = timeout_at(limit.until, work) => done,
        () = limit.cancel.cancelled() => return Err(failed("Terraform was interrupted".to_owned())),
    };
    match done {
        Ok(done) => done.map_err(failed),
        Err(_) => Err(failed("the timeout has passed: set a longer one in timeouts".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use tfplugin6::CancellationToken;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_upload_outlasts_minutes_without_the_control_plane_within_its_time() {
        let left = |seconds: u64| {
            let limit = limited(&RetryLimit::seconds(seconds, &CancellationToken::new()));
            limit.until - Instant::now()
        };
        assert_eq!(left(3600), RETRIES);
        assert_eq!(left(20), Duration::from_secs(20));
    }
}
