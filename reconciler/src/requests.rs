//! Plain requests on objects of any kind, as JSON.

use anyhow::bail;
use kube::Client;
use serde_json::Value;

/// The maximum number of pages of one list; a site has fewer objects than this many times 500.
const MAX_PAGES: usize = 200;

/// Sends one GET.
pub(crate) async fn get(client: &Client, path: &str) -> Result<Value, kube::Error> {
    let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request(request).await
}

/// Returns every object of a collection, at a revision or now.
///
/// *Errors:* 410 if the revision is no longer kept.
pub(crate) async fn list(client: &Client, path: &str, revision: Option<&str>) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    let mut next = match revision {
        Some(revision) => format!("{path}?limit=500&resourceVersion={revision}&resourceVersionMatch=Exact"),
        None => format!("{path}?limit=500"),
    };
    for _ in 0..MAX_PAGES {
        let mut page = get(client, &next).await?;
        if let Some(items) = page["items"].as_array_mut() {
            objects.append(items);
        }
        match page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
            Some(token) => next = format!("{path}?limit=500&continue={}", encoded(token)),
            None => return Ok(objects),
        }
    }
    bail!("{path} has more than {} objects", MAX_PAGES * 500)
}

/// Percent-encodes a text for a query.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Whether the control plane responded with this code.
pub(crate) fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Whether the control plane does not answer now, and may answer soon.
pub(crate) fn is_outage(error: &anyhow::Error) -> bool {
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<kube::Error>());
    cause.is_some_and(|cause| match cause {
        kube::Error::Api(status) => status.code >= 500,
        kube::Error::HyperError(_) | kube::Error::Service(_) => true,
        _ => false,
    })
}

/// Sends one request with a body.
///
/// *Errors:* the control plane's.
pub(crate) async fn send(
    client: &Client,
    method: http::Method,
    path: &str,
    content_type: &str,
    body: &Value,
) -> Result<Value, kube::Error> {
    let body = serde_json::to_vec(body).map_err(kube::Error::SerdeError)?;
    let request = http::Request::builder().method(method).uri(path).header("content-type", content_type);
    client.request(request.body(body).map_err(kube::Error::HttpError)?).await
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use kube::core::Status;

    use super::*;

    #[test]
    fn an_outage_is_an_error_of_the_server_or_of_the_way_to_it() {
        let failed = |error: kube::Error| Err::<(), _>(error).context("reading").expect_err("it failed");
        let answered =
            |code| failed(kube::Error::Api(Status::failure("refused", "Refused").with_code(code).boxed()));
        assert!(is_outage(&answered(503)) && is_outage(&answered(500).context("downloading")));
        assert!(is_outage(&failed(kube::Error::Service("connection refused".into()))));
        assert!(!is_outage(&answered(404)) && !is_outage(&answered(403)));
        assert!(!is_outage(&anyhow::anyhow!("Image a was deleted meanwhile")));
    }
}
