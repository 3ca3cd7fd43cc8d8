//! Fairness between users.

use std::net::SocketAddr;

use axum::body::Body;
use berth_apiserver::{Identity, Server, ServerConfig};
use http::Request;
use serde_json::json;
use tower::ServiceExt as _;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Sends a create request over a socket, as a user with all permissions.
async fn create(server: Server, user: &str, name: String) -> u16 {
    let map = json!({"metadata": {"name": name}}).to_string();
    let request = Request::post(MAPS).header("content-type", "application/json");
    let mut request = request.body(Body::from(map)).expect("a request");
    request.extensions_mut().insert(SocketAddr::from(([127, 0, 0, 1], 1)));
    let service = server.service_as(Identity::new(user, ["system:masters".to_owned()]));
    service.oneshot(request).await.expect("the server answers").status().as_u16()
}

#[tokio::test]
async fn one_who_asks_for_everything_is_in_the_way_of_nobody_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::open(ServerConfig::in_directory(folder.path())).await.expect("it opens");
    let greedy: Vec<_> =
        (0..6_000).map(|at| tokio::spawn(create(server.clone(), "greedy", format!("g{at}")))).collect();
    for at in 0..20 {
        // By now each of them has sent its request.
        tokio::task::yield_now().await;
        assert_eq!(create(server.clone(), "modest", format!("m{at}")).await, 201, "{at}");
    }
    let mut codes = std::collections::BTreeMap::new();
    for one in greedy {
        *codes.entry(one.await.expect("it is answered")).or_insert(0) += 1;
    }
    assert_eq!(codes.keys().copied().collect::<Vec<_>>(), [201, 429], "{codes:?}");
    assert!(codes[&201] >= 3_300, "what was let in was answered: {codes:?}");
}
