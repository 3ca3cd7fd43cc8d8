//! Watches: their starting point, and which events are sent together.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::client::{BOATS, CRDS, MERGE, boat, harbour};

#[tokio::test(start_paused = true)]
async fn watches_start_where_asked() {
    let (_server, client) = harbour().await;
    let first = client.post(BOATS, &boat("a")).await.json();
    client.post(BOATS, &boat("b")).await;
    let kinds = |events: &[Value]| -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        events.iter().map(|e| (text(&e["type"]), text(&e["object"]["metadata"]["name"]))).collect()
    };
    let pair = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
    let watch = |query: &str| format!("{BOATS}?watch=true&timeoutSeconds=1&{query}");
    let all = client.watch(&watch("")).await;
    assert_eq!(kinds(&all), [pair("ADDED", "a"), pair("ADDED", "b")]);
    let revision = first["metadata"]["resourceVersion"].as_str().unwrap();
    let later = client.watch(&watch(&format!("resourceVersion={revision}"))).await;
    assert_eq!(kinds(&later), [pair("ADDED", "b")]);
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let streamed = client.watch(&watch(initial)).await;
    assert_eq!(kinds(&streamed), [pair("ADDED", "a"), pair("ADDED", "b"), pair("BOOKMARK", "")]);
    let end = &streamed[2]["object"]["metadata"];
    assert_eq!(end["annotations"]["k8s.io/initial-events-end"], "true");
    let one = client.watch(&watch("fieldSelector=metadata.name%3Db")).await;
    assert_eq!(kinds(&one), [pair("ADDED", "b")]);
    assert_eq!(client.get(&watch("sendInitialEvents=true")).await.reason(), (422, "Invalid".into()));
    assert_eq!(client.get(&watch("resourceVersion=999999")).await.reason(), (504, "Timeout".into()));
    assert_eq!(client.get(&watch("resourceVersion=x")).await.reason(), (400, "BadRequest".into()));
    assert_eq!(client.get(&watch("fieldSelector=spec.oars%3D1")).await.reason(), (400, "BadRequest".into()));
}

/// Returns the frames of a watch until it ends, each as its number of lines, which is that of its events.
async fn pieces(service: berth_apiserver::ApiService, path: String) -> Vec<usize> {
    let request = Request::builder().uri(path).body(Body::empty()).expect("a request");
    let mut body = service.oneshot(request).await.expect("the server answers").into_body();
    let mut pieces = Vec::new();
    while let Some(frame) = body.frame().await {
        let data = frame.expect("a piece").into_data().expect("no trailers");
        pieces.push(data.split(|b| *b == b'\n').filter(|line| !line.is_empty()).count());
    }
    pieces
}

#[tokio::test(start_paused = true)]
async fn where_many_watch_what_follows_soon_is_told_together_and_where_few_do_at_once() {
    const EVENTS: usize = 10;
    for (watchers, gathered) in [(100, true), (3, false)] {
        let (server, client) = harbour().await;
        let path = format!("{BOATS}?watch=true&timeoutSeconds=5");
        let watching: Vec<_> =
            (0..watchers).map(|_| tokio::spawn(pieces(server.service(), path.clone()))).collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        for number in 0..EVENTS {
            client.post(BOATS, &boat(&format!("b{number}"))).await;
            // Every watcher takes its pending events before the next write.
            tokio::time::sleep(Duration::from_micros(10)).await;
        }
        for watcher in watching {
            let pieces = watcher.await.expect("a watch ends");
            assert_eq!(pieces.iter().sum::<usize>(), EVENTS, "{watchers} watchers: {pieces:?}");
            assert_eq!(pieces[0], 1, "the first is told at once: {pieces:?}");
            assert_eq!(pieces.len() < EVENTS, gathered, "{watchers} watchers: {pieces:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn events_at_hand_are_sent_together_up_to_a_size() {
    let (_server, client) = harbour().await;
    let watch = || async {
        let path = format!("{BOATS}?watch=true&resourceVersion=0&timeoutSeconds=600");
        let request = Request::builder().uri(path).body(Body::empty()).expect("a request");
        client.0.clone().oneshot(request).await.expect("the server answers").into_body()
    };
    let lines = |chunk: &Bytes| chunk.iter().filter(|byte| **byte == b'\n').count();
    async fn next(body: &mut Body) -> Bytes {
        let frame = body.frame().await.expect("it goes on").expect("it is whole");
        frame.into_data().expect("data")
    }
    let mut body = watch().await;
    assert_eq!(client.post(BOATS, &boat("first")).await.code, 201);
    assert_eq!(lines(&next(&mut body).await), 1, "what happens is told at once");
    for at in 0..10 {
        assert_eq!(client.post(BOATS, &boat(&format!("small-{at}"))).await.code, 201);
    }
    assert_eq!(lines(&next(&mut body).await), 10, "what has happened meanwhile is told together");
    for at in 0..10 {
        let mut large = boat(&format!("large-{at}"));
        large["spec"]["tags"] = json!({"x": "x".repeat(10 << 10)});
        assert_eq!(client.post(BOATS, &large).await.code, 201);
    }
    let mut reported = Vec::new();
    while reported.iter().sum::<usize>() < 10 {
        let chunk = next(&mut body).await;
        assert!(chunk.ends_with(b"\n") && chunk.len() < 48 << 10, "{} bytes", chunk.len());
        reported.push(lines(&chunk));
    }
    assert!(reported.len() > 2 && reported[0] > 1, "{reported:?}");
    // A later watcher receives the existing objects in the same way.
    assert!(lines(&next(&mut watch().await).await) > 1);
}

/// It would go on in the form of the old definition, or of a version that is no longer served. A label changes neither.
#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_its_definition_is_changed_or_deleted_and_others_go_on() {
    let (server, client) = harbour().await;
    let crd = format!("{CRDS}/boats.toys.example");
    let maps = "/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=3600";
    let other = tokio::spawn(pieces(server.service(), maps.to_owned()));
    let more = json!({"spec": {"names": {"shortNames": ["bt", "boaty"]}}});
    for deletes in [false, true] {
        let boats = format!("{BOATS}?watch=true&timeoutSeconds=3600&allowWatchBookmarks=true");
        let watching = tokio::spawn(pieces(server.service(), boats));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let label = json!({"metadata": {"labels": {"deletes": deletes.to_string()}}});
        assert_eq!(client.patch(&crd, MERGE, &label).await.code, 200);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!watching.is_finished());
        let begun = tokio::time::Instant::now();
        let code = if deletes {
            client.send(http::Method::DELETE, &crd, "", "", Body::empty()).await.code
        } else {
            client.patch(&crd, MERGE, &more).await.code
        };
        assert_eq!(code, 200);
        let last = watching.await.expect("it ends");
        assert_eq!(last, vec![1; usize::from(!deletes)], "a client resumes after the bookmark");
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }
    assert!(!other.is_finished());
    other.abort();
}
