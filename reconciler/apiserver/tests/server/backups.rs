use std::path::Path;
use std::time::Duration;

use berth_apiserver::{BackupSchedule, RestoreOptions, Server, ServerConfig, restore};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};

const SOON: Duration = Duration::from_secs(60);

async fn open(directory: &Path, folder: &Path) -> (Server, Client) {
    let every = Duration::from_secs(1);
    let schedule = BackupSchedule { folder: folder.into(), every, keep: 2, with_keys: true };
    let config = ServerConfig { backups: Some(schedule), ..ServerConfig::in_directory(directory) };
    let server = Server::open(config).await.expect("it opens");
    let client = Client::new(server.service(), "default");
    (server, client)
}

async fn metric(client: &Client, name: &str) -> u64 {
    let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
    let text = client.request_text(request).await.expect("metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).expect("it is told");
    line.parse().expect("a number")
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(SOON, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what}"));
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_server_backs_itself_up_keeps_so_many_and_outlives_a_folder_that_fails() {
    let place = tempfile::tempdir().unwrap();
    let (state, folder) = (place.path().join("state"), place.path().join("mounted"));
    let (server, client) = open(&state, &folder).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    until("it is told", async || metric(&client, "berth_apiserver_backup_failing").await == 1).await;
    let named = |name: &str| ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    let map = ConfigMap { metadata: named("m"), ..ConfigMap::default() };
    maps.create(&PostParams::default(), &map).await.expect("nothing else stops");
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let secret = Secret {
        metadata: named("s"),
        string_data: Some([("a".to_owned(), "of the secret".to_owned())].into()),
        ..Secret::default()
    };
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    std::fs::create_dir(&folder).unwrap();
    until("more than are kept", async || metric(&client, "berth_apiserver_backups_total").await >= 4).await;
    assert_eq!(metric(&client, "berth_apiserver_backup_failing").await, 0);
    server.shutdown().await;
    let kept: Vec<String> = files(&folder).into_iter().filter(|name| !name.starts_with('.')).collect();
    assert!((2..=3).contains(&kept.len()), "{kept:?}: the third is not counted yet");
    // Restored elsewhere it is the same server: the same administrator's token, the same Secrets.
    let other = place.path().join("other");
    restore(&folder.join(kept.last().unwrap()), &other, &RestoreOptions::default()).unwrap();
    for file in ["ca.crt", "ca.key", "admin.token", "service-account.key", "secrets.key"] {
        let read = |directory: &Path| std::fs::read(directory.join(file)).unwrap();
        assert_eq!(read(&other), read(&state), "{file}");
    }
    let server = Server::open(ServerConfig::in_directory(&other)).await.unwrap();
    let secrets: Api<Secret> = Api::default_namespaced(Client::new(server.service(), "default"));
    assert_eq!(secrets.get("s").await.unwrap().data.unwrap()["a"].0, b"of the secret");
}
