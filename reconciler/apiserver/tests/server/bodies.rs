//! Bodies of requests: what is read, how much of it, and how long it may take to come.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
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

/// A body of so many bytes, which counts those that were taken.
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
    // More than are answered at once, and than are received at once.
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
    assert!(metrics.contains("berth_apiserver_bodies_received 2000\n"), "{metrics}");
    assert!(metrics.contains("berth_apiserver_requests_in_flight 0\n"), "{metrics}");
    assert!(slow.iter().all(|one| !one.is_finished()), "nobody has waited for them");
    for one in slow {
        assert_eq!(one.await.expect("it is answered"), StatusCode::REQUEST_TIMEOUT);
    }
    assert_eq!(client.post(BOATS, &boat("after")).await.code, 201);
}
