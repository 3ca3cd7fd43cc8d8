//! `/healthz`, `/livez` and `/readyz`: the health of the server, in kube-apiserver's form. `?verbose` lists the
//! checks, `/livez/NAME` runs a single one.

use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};

use super::respond;
use crate::core::Core;
use crate::request::Query;

/// Returns the endpoint at a path, and the name of a single check or an empty one.
pub(super) fn endpoint(path: &str) -> Option<(&'static str, &str)> {
    let path = path.strip_prefix('/')?;
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    ["healthz", "livez", "readyz"].into_iter().find(|name| *name == first).map(|name| (name, rest))
}

fn checks(core: &Core, endpoint: &str) -> Vec<(&'static str, bool)> {
    let mut checks = vec![("ping", true), ("database", core.store.is_writable())];
    // A server that is shutting down is alive, but not ready.
    if endpoint == "readyz" {
        checks.push(("shutdown", !core.stopping.is_cancelled()));
    }
    checks
}

/// Runs one check; `None` if there is none of that name.
pub(super) fn one(core: &Core, endpoint: &str, name: &str) -> Option<Response<Body>> {
    let (_, well) = checks(core, endpoint).into_iter().find(|(known, _)| *known == name)?;
    Some(match well {
        true => plain(StatusCode::OK, "ok".to_owned()),
        false => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{name} failed\n")),
    })
}

/// Runs all checks of an endpoint.
pub(super) fn all(core: &Core, endpoint: &str, query: &Query) -> Response<Body> {
    let checks = checks(core, endpoint);
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
    plain(code, body)
}

fn plain(code: StatusCode, body: String) -> Response<Body> {
    let mut response = respond::text(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
