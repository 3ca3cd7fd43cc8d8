//! Request bodies: accepted formats, size limits and time limits.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use berth_apiserver::{Identity, Server};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body::{Frame, SizeHint};
use serde_json::json;
use tower::ServiceExt as _;

use crate::client::{BOATS, JSON, boat, harbour};

#[tokio::test(start_paused = true)]
async fn bodies_are_json_or_yaml_and_bounded() {
    let (_server, client) = harbour().await;
    let yaml = "apiVersion: toys.example/v1\nkind: Boat\nmetadata:\n  name: yam\nspec:\n  harbour: \"no\"\n";
    let made = client.send(Method::POST, BOATS, "application/yaml", "", yaml).await;
    assert_eq!((made.code, &made.json()["spec"]["harbour"]), (201, &json!("no")));
    let refused = |kind: &'static str, body: Vec<u8>| {
        let client = &client;
        async move { client.send(Method::POST, BOATS, kind, "", body).await.reason() }
    };
    assert_eq!(refused("text/html", b"<p>".to_vec()).await, (415, "UnsupportedMediaType".into()));
    assert_eq!(refused("application/vnd.kubernetes.protobuf", b"k8s\0x".to_vec()).await.0, 415);
    assert_eq!(refused(JSON, b"{".to_vec()).await, (400, "BadRequest".into()));
    assert_eq!(refused(JSON, b"[]".to_vec()).await, (400, "BadRequest".into()));
    assert_eq!(refused(JSON, vec![b' '; (3 << 20) + 1]).await, (413, "RequestEntityTooLarge".into()));
    let mut large = boat("large");
    large["spec"]["tags"] = json!({"x": "x".repeat(1600 * 1024)});
    assert_eq!(client.post(BOATS, &large).await.reason(), (413, "RequestEntityTooLarge".into()));
    let protobuf_only = client.send(Method::GET, BOATS, "", "application/vnd.kubernetes.protobuf", "").await;
    assert_eq!(protobuf_only.reason(), (406, "NotAcceptable".into()));
}

/// A body of a given size that counts the bytes read.
struct Counted {
    left: usize,
    taken: Arc<AtomicUsize>,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let piece = self.left.min(64 << 10);
        self.left -= piece;
        self.taken.fetch_add(piece, Ordering::Relaxed);
        Poll::Ready((piece > 0).then(|| Ok(Frame::data(Bytes::from(vec![b' '; piece])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

#[tokio::test(start_paused = true)]
async fn who_sends_too_much_may_send_it_so_that_he_hears_why() {
    const LIMIT: usize = 3 << 20;
    let (_server, client) = harbour().await;
    for (sent, expected) in [(LIMIT + 1, LIMIT), (10 * LIMIT, LIMIT)] {
        let taken = Arc::default();
        let body = Body::new(Counted { left: sent, taken: Arc::clone(&taken) });
        let refused = client.send(Method::POST, BOATS, JSON, "", body).await.reason();
        assert_eq!(refused, (413, "RequestEntityTooLarge".into()));
        let taken = taken.load(Ordering::Relaxed);
        assert!((expected..=expected + (64 << 10)).contains(&taken), "{taken} of {sent} bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_that_do_not_come_hold_up_nobody_else_and_are_given_up() {
    let (_server, client) = harbour().await;
    // More requests than are processed at once, and than are received at once.
    let slow: Vec<_> = (0..2_500)
        .map(|_| {
            let body = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
            let request = Request::post(BOATS).header("content-type", JSON).body(body).expect("a request");
            let answer = client.0.clone().oneshot(request);
            tokio::spawn(async move { answer.await.expect("the server answers").status() })
        })
        .collect();
    for at in 0..500 {
        tokio::task::yield_now().await;
        assert_eq!(client.get(BOATS).await.code, 200, "{at}");
    }
    let metrics = client.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.text);
    assert!(metrics.contains("berth_apiserver_bodies_received 300\n"), "{metrics}");
    assert!(metrics.contains("berth_apiserver_requests_in_flight 0\n"), "{metrics}");
    assert!(slow.iter().all(|one| !one.is_finished()), "nobody has waited for them");
    for one in slow {
        assert_eq!(one.await.expect("it is answered"), StatusCode::REQUEST_TIMEOUT);
    }
    assert_eq!(client.post(BOATS, &boat("after")).await.code, 201);
}

/// Sends a create request from outside, as a ServiceAccount or as an administrator.
async fn create(server: &Server, user: &str, group: &str, body: Body) -> StatusCode {
    let request = Request::post("/api/v1/namespaces/default/configmaps").header("content-type", JSON);
    let mut request = request.body(body).expect("a request");
    request.extensions_mut().insert(SocketAddr::from(([127, 0, 0, 1], 1)));
    let service = server.service_as(Identity::new(user, [group.to_owned()]));
    service.oneshot(request).await.expect("the server answers").status()
}

fn large(name: &str) -> Body {
    Body::from(json!({"metadata": {"name": name}, "data": {"x": "x".repeat(1 << 20)}}).to_string())
}

#[tokio::test(start_paused = true)]
async fn slow_bodies_of_one_tenant_delay_no_other_and_no_administrator() {
    let (server, client) = harbour().await;
    let everybody = json!({"metadata": {"name": "makers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "makers"},
        "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:authenticated"}]});
    let maps = json!({"metadata": {"name": "makers"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    assert_eq!(client.post(&format!("{rbac}/clusterroles"), &maps).await.code, 201);
    assert_eq!(client.post(&format!("{rbac}/clusterrolebindings"), &everybody).await.code, 201);
    let began = tokio::time::Instant::now();
    // One tenant with many accounts.
    let slow: Vec<_> = (0..40)
        .map(|at| {
            let server = server.clone();
            let body = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
            let user = format!("system:serviceaccount:greedy:a{}", at % 5);
            tokio::spawn(async move { create(&server, &user, "g", body).await })
        })
        .collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(create(&server, "admin", "system:masters", large("m1")).await, 201);
    assert_eq!(create(&server, "system:serviceaccount:modest:a", "g", large("m2")).await, 201);
    assert_eq!(create(&server, "eve", "g", large("m3")).await, 201);
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_secs(1), "they waited {took:?}");
    for one in slow {
        assert_eq!(one.await.expect("it is answered"), StatusCode::REQUEST_TIMEOUT);
    }
}
