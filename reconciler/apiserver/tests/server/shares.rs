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
    send(server, user, request.body(Body::from(map)).expect("a request")).await
}

/// Renews the Lease `host` like [`create`].
async fn renew(server: &Server, user: &str) -> u16 {
    let lease =
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "host"}});
    let request =
        Request::patch("/apis/coordination.k8s.io/v1/namespaces/default/leases/host?fieldManager=test");
    let request = request.header("content-type", "application/apply-patch+yaml");
    send(server.clone(), user, request.body(Body::from(lease.to_string())).expect("a request")).await
}

async fn send(server: Server, user: &str, mut request: Request<Body>) -> u16 {
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
    // All hosts of a site may be one user, and their Leases must not expire.
    assert_eq!(renew(&server, "greedy").await, 201);
    let waiting = greedy.iter().filter(|one| !one.is_finished()).count();
    assert!(waiting > 1_000, "the Lease did not wait for the others, of which {waiting} are waiting");
    let mut codes = std::collections::BTreeMap::new();
    for one in greedy {
        *codes.entry(one.await.expect("it is answered")).or_insert(0) += 1;
    }
    assert_eq!(codes.keys().copied().collect::<Vec<_>>(), [201, 429], "{codes:?}");
    assert!(codes[&201] >= 3_300, "what was let in was answered: {codes:?}");
}
