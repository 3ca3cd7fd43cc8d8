//! Requests to servers that are not the control plane: HTTPS, few redirects, small answers.

use std::net::IpAddr;

use http::{
    HeaderMap, HeaderValue, Request, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, LOCATION, USER_AGENT},
};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;

/// The largest number of redirects that are followed.
const MOST_REDIRECTS: usize = 5;

/// A client for one read of the data source.
#[derive(Clone)]
pub(super) struct Client {
    http: kube::Client,
}

/// The answer to a request.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

impl Client {
    pub(super) fn new(http: kube::Client) -> Self {
        Self { http }
    }

    /// Gets `url`, with at most `most` bytes. The credentials go to the server of `url` and to no other.
    ///
    /// *Errors:* no answer, too large a one, or a redirect that must not be followed.
    pub(super) async fn get(
        &self,
        url: &Uri,
        authorization: Option<&HeaderValue>,
        most: usize,
    ) -> Result<Answer, String> {
        let mut at = url.clone();
        for _ in 0..=MOST_REDIRECTS {
            check_scheme(&at)?;
            let mut request = Request::get(at.clone())
                .header(ACCEPT, "*/*")
                .header(USER_AGENT, concat!("terraform-provider-berth/", env!("CARGO_PKG_VERSION")));
            if let Some(authorization) = authorization.filter(|_| is_same_server(url, &at)) {
                request = request.header(AUTHORIZATION, authorization.clone());
            }
            let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
            let response = self.http.send(request).await.map_err(|error| chain(&error))?;
            let (parts, body) = response.into_parts();
            if let Some(to) = parts.headers.get(LOCATION).filter(|_| parts.status.is_redirection()) {
                let to = to.to_str().ok().and_then(|to| joined(&at, to));
                let to = to.ok_or("it redirects to an invalid address")?;
                if at.scheme_str() == Some("https") && to.scheme_str() != Some("https") {
                    return Err("it redirects to an address without HTTPS".to_owned());
                }
                at = to;
                continue;
            }
            let body = Limited::new(body, most).collect().await;
            let body = body.map_err(|error| format!("reading at most {most} bytes: {error}"))?;
            let body = body.to_bytes().to_vec();
            return Ok(Answer { status: parts.status, headers: parts.headers, body });
        }
        Err(format!("it redirects more than {MOST_REDIRECTS} times"))
    }
}

/// Checks that an answer from the address cannot be forged on its way.
pub(super) fn check_scheme(url: &Uri) -> Result<(), String> {
    let host = url.host().unwrap_or_default();
    match url.scheme_str() {
        Some("https") if !host.is_empty() => Ok(()),
        Some("http") if is_loopback(host) => Ok(()),
        Some("http") => {
            Err("over http, others could read passwords and change checksums: use https://".to_owned())
        }
        _ => Err("an address has https:// and a host".to_owned()),
    }
}

pub(super) fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

pub(super) fn is_same_server(one: &Uri, other: &Uri) -> bool {
    one.scheme() == other.scheme() && one.authority() == other.authority()
}

/// The address that a reference in an answer from `base` means.
pub(super) fn joined(base: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.split('#').next().unwrap_or_default();
    // A scheme ends before the path and the query, in which "://" means nothing.
    if reference.split(['/', '?']).next().is_some_and(|begin| begin.ends_with(':')) {
        return reference.parse().ok();
    }
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    if let Some(rest) = reference.strip_prefix("//") {
        return format!("{scheme}://{rest}").parse().ok();
    }
    if reference.starts_with('/') {
        return format!("{scheme}://{authority}{reference}").parse().ok();
    }
    if reference.starts_with('?') {
        return format!("{scheme}://{authority}{}{reference}", base.path()).parse().ok();
    }
    let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{scheme}://{authority}{folder}/{reference}").parse().ok()
}

/// An error with its causes, each of them once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = cause.source();
    }
    text
}

/// Percent-encodes what must not be in a part of a path or in a value of a query.
pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().expect("an address")
    }

    #[test]
    fn a_reference_is_resolved_against_its_page() {
        let base = uri("https://a.example/x/SUMS?sig=1");
        for (reference, expected) in [
            ("https://b.example/y", "https://b.example/y"),
            ("//b.example/y", "https://b.example/y"),
            ("/y?n=1", "https://a.example/y?n=1"),
            ("y.iso", "https://a.example/x/y.iso"),
            ("y?to=https://b.example/", "https://a.example/x/y?to=https://b.example/"),
            ("?n=2", "https://a.example/x/SUMS?n=2"),
            ("/y#part", "https://a.example/y"),
        ] {
            assert_eq!(joined(&base, reference), Some(uri(expected)), "{reference}");
        }
        assert_eq!(joined(&uri("https://a.example"), "y"), Some(uri("https://a.example/y")));
        assert_eq!(joined(&base, "ht tp://x"), None);
    }

    #[test]
    fn only_loopback_addresses_go_without_https() {
        for good in ["https://a.example/x", "http://127.0.0.1:5000/", "http://[::1]/", "http://localhost/x"] {
            assert_eq!(check_scheme(&uri(good)), Ok(()), "{good}");
        }
        for wrong in ["http://a.example/x", "ftp://a.example/x", "/x"] {
            assert!(check_scheme(&uri(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn text_is_encoded_for_a_path_and_a_query() {
        assert_eq!(encoded("a b/ü&~"), "a%20b%2F%C3%BC%26~");
    }
}
