use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use berth_apiserver::{OpenError, Server, ServerConfig};
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};

use crate::toy::{boat, boats, crd};

/// The variable of the process that is killed: the directory it writes to.
const VICTIM: &str = "APISERVER_TEST_VICTIM";

async fn open(directory: &Path) -> (Server, Client) {
    let server = Server::open(ServerConfig::in_directory(directory)).await.expect("it opens");
    let client = Client::new(server.service(), "default");
    (server, client)
}

fn map(name: String) -> ConfigMap {
    ConfigMap { metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() }, ..ConfigMap::default() }
}

#[tokio::test]
async fn everything_is_there_after_a_restart_and_revisions_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let (server, client) = open(directory.path()).await;
    Api::all(client.clone()).create(&PostParams::default(), &crd()).await.unwrap();
    let api = boats(&client);
    let made = api
        .create(&PostParams::default(), &boat("ada", serde_json::json!({"harbour": "kiel"})))
        .await
        .unwrap();
    let second = Server::open(ServerConfig::in_directory(directory.path())).await;
    assert!(
        matches!(second, Err(OpenError::Store(berth_store::OpenError::Locked { .. }))),
        "a second server on the same state is refused"
    );
    server.shutdown().await;
    drop((server, client, api));
    let (_server, client) = open(directory.path()).await;
    let api = boats(&client);
    assert_eq!(api.get("ada").await.unwrap(), made);
    let by_field = ListParams::default().fields("spec.harbour=kiel");
    assert_eq!(api.list(&by_field).await.unwrap().items.len(), 1, "selectable fields are known again");
    let next =
        api.create(&PostParams::default(), &boat("bob", serde_json::json!({"harbour": "x"}))).await.unwrap();
    let number = |revision: Option<String>| revision.unwrap().parse::<u64>().unwrap();
    assert_eq!(number(next.resource_version()), number(made.resource_version()) + 1);
    let mut events =
        api.watch(&WatchParams::default(), &made.resource_version().unwrap()).await.unwrap().boxed();
    let Some(Ok(WatchEvent::Added(seen))) = events.next().await else {
        panic!("a watch resumes across a restart")
    };
    assert_eq!(seen.name_any(), "bob");
}

async fn commits(client: &Client) -> u64 {
    let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
    let text = client.request_text(request).await.expect("metrics");
    let count = text.lines().find_map(|line| line.strip_prefix("berth_apiserver_commits_total "));
    count.expect("it is counted").parse().expect("a number")
}

#[tokio::test]
async fn renewals_of_many_leases_share_transactions_and_survive_a_restart() {
    const LEASES: usize = 20;
    let directory = tempfile::tempdir().unwrap();
    let (server, client) = open(directory.path()).await;
    let leases: Api<Lease> = Api::default_namespaced(client.clone());
    let name = |at: usize| format!("host-{at}");
    for at in 0..LEASES {
        let metadata = ObjectMeta { name: Some(name(at)), ..ObjectMeta::default() };
        let spec = LeaseSpec { holder_identity: Some("agent".into()), ..LeaseSpec::default() };
        let lease = Lease { metadata, spec: Some(spec) };
        leases.create(&PostParams::default(), &lease).await.unwrap();
    }
    let before = commits(&client).await;
    let renewals = (0..LEASES).map(|at| {
        let (leases, name) = (leases.clone(), name(at));
        async move {
            let renewal = serde_json::json!({"spec": {"renewTime": "2026-01-02T03:04:05.000006Z"}});
            leases.patch(&name, &PatchParams::default(), &Patch::Merge(renewal)).await.unwrap()
        }
    });
    let renewed = futures::future::join_all(renewals).await;
    let transactions = commits(&client).await - before;
    assert!(transactions <= 5, "{transactions} transactions");
    server.shutdown().await;
    drop((server, client, leases));
    let (_server, client) = open(directory.path()).await;
    let leases: Api<Lease> = Api::default_namespaced(client);
    for lease in renewed {
        assert!(lease.spec.as_ref().is_some_and(|spec| spec.renew_time.is_some()));
        assert_eq!(leases.get(&lease.name_any()).await.unwrap(), lease);
    }
}

/// Not a test of its own: the code of the killed process. Without its variable it does nothing.
#[tokio::test]
async fn victim_writes_and_says_what_was_acknowledged() {
    let Some(directory) = std::env::var_os(VICTIM) else { return };
    let (_server, client) = open(Path::new(&directory)).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    for round in 0.. {
        let batch = (0..8).map(|at| {
            let maps = maps.clone();
            async move { maps.create(&PostParams::default(), &map(format!("m-{round}-{at}"))).await.unwrap() }
        });
        for made in futures::future::join_all(batch).await {
            eprintln!("ACK {} {}", made.name_any(), made.resource_version().unwrap());
        }
    }
}

#[tokio::test]
async fn every_acknowledged_write_survives_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = Vec::new();
    for acks in [1, 40, 90] {
        let storm = directory.path().join(format!("after-{acks}"));
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "restart::victim_writes_and_says_what_was_acknowledged", "--nocapture"])
            .env(VICTIM, &storm)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(victim.stderr.take().unwrap()).lines().map_while(Result::ok);
        acknowledged.clear();
        acknowledged.extend(lines.filter_map(|line| line.strip_prefix("ACK ").map(str::to_owned)).take(acks));
        assert_eq!(acknowledged.len(), acks, "the victim wrote until it was killed");
        victim.kill().unwrap();
        victim.wait().unwrap();
        let (_server, client) = open(&storm).await;
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let stored = maps.list(&ListParams::default()).await.unwrap().items;
        let stored: Vec<String> =
            stored.iter().map(|m| format!("{} {}", m.name_any(), m.resource_version().unwrap())).collect();
        let lost: Vec<_> = acknowledged.iter().filter(|ack| !stored.contains(ack)).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
        let mut revisions: Vec<u64> =
            stored.iter().map(|s| s.split_once(' ').unwrap().1.parse().unwrap()).collect();
        revisions.sort_unstable();
        assert!(revisions.windows(2).all(|pair| pair[0] < pair[1]), "no revision was given twice");
    }
}

#[tokio::test]
async fn a_server_is_ready_far_below_300_ms() {
    let directory = tempfile::tempdir().unwrap();
    let (server, _) = open(directory.path()).await;
    server.shutdown().await;
    drop(server);
    let mut best = std::time::Duration::MAX;
    for _ in 0..3 {
        let start = std::time::Instant::now();
        let (server, _) = open(directory.path()).await;
        best = best.min(start.elapsed());
        server.shutdown().await;
    }
    assert!(best.as_millis() < 300, "{best:?}");
}
