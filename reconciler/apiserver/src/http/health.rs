//! `/healthz`, `/livez` and `/readyz`: the health of the server, in kube-apiserver's form.
//!
//! Each combines several checks. `?verbose` lists them, `?exclude=NAME` skips one, `/livez/NAME` runs a
//! single one.

use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};

use super::respond;
use crate::core::Core;
use crate::request::Query;

/// A check: its name, and whether it passes.
type Check = (&'static str, fn(&Core) -> bool);

const PING: Check = ("ping", |_| true);
const DATABASE: Check = ("database", |core| core.store.is_writable());
const SHUTDOWN: Check = ("shutdown", |core| !core.stopping.is_cancelled());

/// Returns the endpoint at a path, and the rest of the path.
pub(super) fn endpoint(path: &str) -> Option<(&'static str, &str)> {
    ["healthz", "livez", "readyz"].into_iter().find_map(|name| {
        let rest = path.strip_prefix('/')?.strip_prefix(name)?;
        (rest.is_empty() || rest.starts_with('/')).then_some((name, rest))
    })
}

fn checks(endpoint: &str) -> &'static [Check] {
    // A server that is shutting down is alive, but not ready.
    if endpoint == "readyz" { &[PING, DATABASE, SHUTDOWN] } else { &[PING, DATABASE] }
}

/// Runs all checks of an endpoint.
pub(super) fn all(core: &Core, endpoint: &str, query: &Query) -> Response<Body> {
    let excluded: Vec<&str> = query.all("exclude").flat_map(|names| names.split(',')).collect();
    let (mut lines, mut failed) = (String::new(), false);
    for (name, is_well) in checks(endpoint).iter().filter(|(name, _)| !excluded.contains(name)) {
        let well = is_well(core);
        failed |= !well;
        // The reason is logged only: the endpoint is open to all clients.
        lines.push_str(&if well { format!("[+]{name} ok\n") } else { format!("[-]{name} failed\n") });
    }
    if failed {
        return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{endpoint} check failed\n"));
    }
    match query.first("verbose") {
        None => text(StatusCode::OK, "ok".into()),
        Some(_) => text(StatusCode::OK, format!("{lines}{endpoint} check passed\n")),
    }
}

/// Runs one check; `None` if there is none of that name.
pub(super) fn one(core: &Core, endpoint: &str, name: &str) -> Option<Response<Body>> {
    let (_, is_well) = checks(endpoint).iter().find(|(known, _)| *known == name)?;
    Some(match is_well(core) {
        true => text(StatusCode::OK, "ok".into()),
        false => {
            text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {name} does not work\n"))
        }
    })
}

fn text(code: StatusCode, body: String) -> Response<Body> {
    let mut response = respond::text(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
