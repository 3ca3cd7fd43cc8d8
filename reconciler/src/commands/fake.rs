//! A control plane for the tests of commands.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
};

use http::{Method, Request, Response};
use kube::{Client, client::Body};
use tower::service_fn;

/// The methods and paths of the requests that change something.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes(Arc<Mutex<Vec<String>>>);

impl Changes {
    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Answers each request for an object of one of these names with the object, and any other with 404.
pub(super) fn control_plane(objects: Vec<(&'static str, &'static str)>) -> (Client, Changes) {
    let changes = Changes::default();
    let noted = changes.clone();
    let serve = move |request: Request<Body>| {
        let (path, method) = (request.uri().path(), request.method());
        if method != Method::GET {
            noted.0.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{method} {path}"));
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        let (status, body) = match objects.iter().find(|(known, _)| *known == name) {
            Some((_, object)) => (200_u16, *object),
            None => (
                404,
                r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}"#,
            ),
        };
        let response = Response::builder().status(status).body(Body::from(body.as_bytes().to_vec()));
        std::future::ready(Ok::<_, Infallible>(response.expect("a response")))
    };
    (Client::new(service_fn(serve), "default"), changes)
}
