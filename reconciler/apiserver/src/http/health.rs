//! `/healthz`, `/livez` and `/readyz`: the health of the server, in kube-apiserver's form. `?verbose` lists the
//! checks.

use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};

use super::respond;
use crate::core::Core;
use crate::request::Query;

/// Returns the endpoint at a path.
pub(super) fn endpoint(path: &str) -> Option<&'static str> {
    ["healthz", "livez", "readyz"].into_iter().find(|name| path.strip_prefix('/') == Some(name))
}

/// Runs the checks of an endpoint.
pub(super) fn answer(core: &Core, endpoint: &str, query: &Query) -> Response<Body> {
    let mut checks = vec![("ping", true), ("database", core.store.is_writable())];
    // A server that is shutting down is alive, but not ready.
    if endpoint == "readyz" {
        checks.push(("shutdown", !core.stopping.is_cancelled()));
    }
    // The reason is logged only: the endpoint is open to all clients.
    let line = |(name, well): &(&str, bool)| match well {
        true => format!("[+]{name} ok\n"),
        false => format!("[-]{name} failed\n"),
    };
    let lines: String = checks.iter().map(line).collect();
    let well = checks.iter().all(|(_, well)| *well);
    let (code, body) = match (well, query.first("verbose")) {
        (true, None) => (StatusCode::OK, "ok".to_owned()),
        (true, Some(_)) => (StatusCode::OK, format!("{lines}{endpoint} check passed\n")),
        (false, _) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{endpoint} check failed\n")),
    };
    let mut response = respond::text(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
