//! Images that one host has, on another one. On real sockets, and therefore in real time.

use berth_api::Image;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::*;

const URL: &str = "https://images.example/golden.qcow2";

fn hex_sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A server with a certificate of its own.
pub(crate) async fn server() -> Arc<ConsoleServer> {
    let made = rcgen::generate_simple_self_signed(["berth-console".to_owned()]).expect("a certificate");
    let certificate = made.cert.der().clone();
    let certificate_sha256 = hex_sha256(&certificate);
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let tls = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a certificate");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    Arc::new(ConsoleServer {
        listener,
        tls: Arc::new(tls),
        address,
        is_for_hosts: true,
        moves_guests: true,
        certificate_sha256,
    })
}

impl Fleet {
    /// Declares an image of these bytes, and has them uploaded to the host that it is bound to, the first one.
    async fn upload(&self, name: &str, bytes: &[u8], system: &FakeSystem) {
        let source = json!({"upload": {"size": bytes.len()}, "sha256": hex_sha256(bytes)});
        self.apply("Image", name, json!({"source": source})).await;
        let images: Api<Image> = Api::default_namespaced(self.admin.clone());
        let uid = images.get(name).await.expect("it is there").uid().expect("a uid");
        system.put_upload(&uid, bytes);
        let status = async || images.get(name).await.expect("it is there").status.unwrap_or_default();
        let host = async || status().await.binding.map(|binding| binding.host);
        self.until("it is bound", async || host().await.is_some()).await;
        assert_eq!(host().await.as_deref(), Some("h1"));
        // The bytes came without a client that has the image looked at.
        let patch = Patch::Merge(json!({"metadata": {"labels": {"looked": "at"}}}));
        images.patch(name, &PatchParams::default(), &patch).await.expect("it is there");
        self.until("it is complete", async || status().await.virtual_size.is_some()).await;
    }

    async fn disk_reason(&self, name: &str) -> String {
        let disks: Api<Disk> = Api::default_namespaced(self.admin.clone());
        let status = disks.get(name).await.expect("it is there").status.unwrap_or_default();
        condition::find(&status.conditions, "Ready").map(|ready| ready.reason.clone()).unwrap_or_default()
    }

    /// Declares a disk of the image, and a VM with it on a host.
    async fn declare_vm(&self, name: &str, image: &str, host: &str) {
        self.apply("Disk", name, json!({"image": image, "size": "2Gi"})).await;
        let spec = json!({"class": "small", "disks": [{"name": name, "boot": true}], "networkInterfaces": [],
            "placement": {"host": host}});
        self.apply("VM", name, spec).await;
    }
}

#[tokio::test]
async fn a_vm_on_another_host_runs_from_an_image_that_was_uploaded_to_one_host() {
    let fleet = Fleet::new().await;
    let [first, second] = [image::host(&fleet.clock), image::host(&fleet.clock)];
    let _first = fleet.join_with("h1", "a", &first, Some(server().await)).await;
    fleet.until("h1 is there", async || fleet.host_exists("h1").await).await;
    let golden = [b"QFI\xfb".as_slice(), &[7; 300_000]].concat();
    fleet.upload("golden", &golden, &first).await;
    let _second = fleet.join("h2", "a", &second).await;
    fleet.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
    fleet.declare_vm("web", "golden", "h2").await;
    fleet.until_vm("web", "runs", runs).await;
    assert_eq!((first.copies(), second.copies()), (0, 1));
    fleet.declare_vm("db", "golden", "h2").await;
    fleet.declare_vm("cache", "golden", "h1").await;
    for name in ["db", "cache"] {
        fleet.until_vm(name, "runs", runs).await;
    }
    assert_eq!((first.copies(), second.copies()), (0, 1), "it is copied once");

    let other = [b"QFI\xfb".as_slice(), &[8; 1000]].concat();
    fleet.upload("other", &other, &first).await;
    first.damage_image(&hex_sha256(&other));
    fleet.declare_vm("wrong", "other", "h2").await;
    fleet
        .until("other bytes are refused", async || fleet.disk_reason("wrong").await == "ChecksumMismatch")
        .await;
    assert!(first.violations().is_empty() && second.violations().is_empty());
}

#[tokio::test]
async fn an_image_of_a_url_is_downloaded_by_one_host_and_copied_by_the_other() {
    let fleet = Fleet::new().await;
    let [first, second] = [image::host(&fleet.clock), image::host(&fleet.clock)];
    let _first = fleet.join_with("h1", "a", &first, Some(server().await)).await;
    fleet.until("h1 is there", async || fleet.host_exists("h1").await).await;
    let images: Api<Image> = Api::default_namespaced(fleet.admin.clone());
    let status = async |name: &str| images.get(name).await.expect("it is there").status.unwrap_or_default();
    let mut digests = Vec::new();
    for (name, byte) in [("golden", 7), ("damaged", 8)] {
        let (url, bytes) = (format!("{URL}/{name}"), [b"QFI\xfb".as_slice(), &[byte; 100_000]].concat());
        for host in [&first, &second] {
            host.serve_image(&url, &bytes);
        }
        digests.push(hex_sha256(&bytes));
        fleet.apply("Image", name, json!({"source": {"url": url, "sha256": hex_sha256(&bytes)}})).await;
        fleet.until("it is served", async || status(name).await.server.is_some()).await;
    }
    assert!(status("golden").await.download.is_none(), "clients have its URL");
    let _second = fleet.join("h2", "a", &second).await;
    fleet.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
    fleet.declare_vm("web", "golden", "h2").await;
    fleet.until_vm("web", "runs", runs).await;
    assert_eq!((first.pulls(), second.pulls(), second.copies()), (2, 0, 1));
    let both = async || status("golden").await.hosts == ["h1", "h2"];
    fleet.until("both hosts are listed", both).await;

    first.damage_image(&digests[1]);
    fleet.declare_vm("db", "damaged", "h2").await;
    fleet.until_vm("db", "runs", runs).await;
    assert_eq!((second.pulls(), second.copies()), (1, 1), "other bytes are not taken: it is downloaded");
    assert!(first.violations().is_empty() && second.violations().is_empty());
}

#[tokio::test]
async fn a_copy_of_an_image_has_its_file_without_a_download_and_stays_when_that_one_is_deleted() {
    let fleet = Fleet::new().await;
    let [first, second] = [image::host(&fleet.clock), image::host(&fleet.clock)];
    let _first = fleet.join_with("h1", "a", &first, Some(server().await)).await;
    fleet.until("h1 is there", async || fleet.host_exists("h1").await).await;
    let bytes = [b"QFI\xfb".as_slice(), &[7; 100_000]].concat();
    first.serve_image(URL, &bytes);
    fleet.apply("Image", "copy", json!({"source": {"image": "golden"}})).await;
    let images: Api<Image> = Api::default_namespaced(fleet.admin.clone());
    let status = async |name: &str| images.get(name).await.expect("it is there").status.unwrap_or_default();
    let reason = async |name: &str| {
        let ready =
            condition::find(&status(name).await.conditions, "Ready").map(|ready| ready.reason.clone());
        ready.unwrap_or_default()
    };
    let waits = async || reason("copy").await == "WaitingForImage";
    fleet.until("it waits for the other one", waits).await;
    fleet.apply("Image", "golden", json!({"source": {"url": URL, "sha256": hex_sha256(&bytes)}})).await;
    fleet.until("it is served", async || status("copy").await.server.is_some()).await;
    assert_eq!(status("copy").await.checksum, Some(hex_sha256(&bytes)));
    assert_eq!(first.pulls(), 1, "it has the file of the other one");

    images.delete("golden", &DeleteParams::default()).await.expect("it is there");
    let is_gone = async || images.get_opt("golden").await.expect("an answer").is_none();
    fleet.until("the other one is gone", is_gone).await;
    let _second = fleet.join("h2", "a", &second).await;
    fleet.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
    for (name, host) in [("web", "h1"), ("db", "h2")] {
        fleet.declare_vm(name, "copy", host).await;
        fleet.until_vm(name, "runs", runs).await;
    }
    assert_eq!((first.pulls(), second.pulls(), second.copies()), (1, 0, 1));
    fleet.apply("Image", "raw", json!({"source": {"image": "copy"}, "format": "raw"})).await;
    fleet.until("another format is refused", async || reason("raw").await == "InvalidSpec").await;
    assert!(first.violations().is_empty() && second.violations().is_empty());
}

#[tokio::test]
async fn an_image_is_given_to_a_namespace_that_it_is_shared_with_and_to_no_new_disk_there_afterwards() {
    let fleet = Fleet::new().await;
    let [first, second] = [image::host(&fleet.clock), image::host(&fleet.clock)];
    let _first = fleet.join_with("h1", "a", &first, Some(server().await)).await;
    fleet.until("h1 is there", async || fleet.host_exists("h1").await).await;
    let bytes = [b"QFI\xfb".as_slice(), &[5; 100_000]].concat();
    first.serve_image(URL, &bytes);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "library"}});
    install::apply(&fleet.admin, &[namespace]).await.expect("it applies");
    let share = async |with: Value| {
        let source = json!({"url": URL, "sha256": hex_sha256(&bytes)});
        let original = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Image",
            "metadata": {"name": "debian", "namespace": "library"}, "spec": {"source": source, "sharedWith": with}});
        install::apply(&fleet.admin, &[original]).await.expect("it applies");
    };
    let own: Api<Image> = Api::default_namespaced(fleet.admin.clone());
    let library: Api<Image> = Api::namespaced(fleet.admin.clone(), "library");
    let served = async |images: &Api<Image>, name: &str| {
        let status = images.get(name).await.expect("it is there").status.unwrap_or_default();
        status.server.is_some()
    };
    let reason = async || {
        let status = own.get("copy").await.expect("it is there").status.unwrap_or_default();
        condition::find(&status.conditions, "Ready").map(|ready| ready.reason.clone()).unwrap_or_default()
    };
    let source = json!({"image": "debian", "imageNamespace": "library"});
    fleet.apply("Image", "copy", json!({"source": source})).await;
    fleet.until("there is none", async || reason().await == "ImageNotShared").await;
    share(json!([])).await;
    fleet.until("it is verified", async || served(&library, "debian").await).await;
    assert_eq!(reason().await, "ImageNotShared");
    share(json!(["default"])).await;
    fleet.until("it has the file", async || served(&own, "copy").await).await;
    assert_eq!(first.pulls(), 1, "it is not downloaded again");

    let _second = fleet.join("h2", "a", &second).await;
    fleet.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
    for (name, host) in [("web", "h1"), ("db", "h2")] {
        fleet.declare_vm(name, "copy", host).await;
        fleet.until_vm(name, "runs", runs).await;
    }
    assert_eq!((first.pulls(), second.pulls(), second.copies()), (1, 0, 1));

    share(json!(["others"])).await;
    fleet.apply("Disk", "late", json!({"image": "copy", "size": "2Gi"})).await;
    fleet.until("it is refused", async || fleet.disk_reason("late").await == "ImageNotShared").await;
    share(json!(["*"])).await;
    let is_usable = async || fleet.disk_reason("late").await == "WaitingForFirstUse";
    fleet.until("it is shared again", is_usable).await;
    library.delete("debian", &DeleteParams::default()).await.expect("it is there");
    fleet.until("it is refused", async || fleet.disk_reason("late").await == "ImageNotShared").await;
    for name in ["web", "db"] {
        fleet.until_vm(name, "runs", runs).await;
    }
    assert!(first.violations().is_empty() && second.violations().is_empty());
}

#[tokio::test]
async fn a_disk_is_copied_into_a_namespace_that_it_is_shared_with_and_an_image_is_made_of_it_there() {
    let fleet = Fleet::new().await;
    let host = image::host(&fleet.clock);
    let _agent = fleet.join_with("h1", "a", &host, Some(server().await)).await;
    fleet.until("h1 is there", async || fleet.host_exists("h1").await).await;
    let bytes = [b"QFI\xfb".as_slice(), &[6; 100_000]].concat();
    host.serve_image(URL, &bytes);
    fleet.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
    fleet.apply("Image", "golden", json!({"source": {"url": URL, "sha256": hex_sha256(&bytes)}})).await;
    fleet.declare_vm("web", "golden", "h1").await;
    fleet.until_vm("web", "runs", runs).await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    install::apply(&fleet.admin, &[namespace]).await.expect("it applies");
    for kind in ["Disk", "Image"] {
        let copy = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": "copy", "namespace": "team"},
            "spec": {"source": {"disk": "web", "diskNamespace": "default"}}});
        install::apply(&fleet.admin, &[copy]).await.expect("it applies");
    }
    let disks: Api<Disk> = Api::namespaced(fleet.admin.clone(), "team");
    let images: Api<Image> = Api::namespaced(fleet.admin.clone(), "team");
    let disk = async || disks.get("copy").await.expect("it is there").status.unwrap_or_default();
    let image = async || images.get("copy").await.expect("it is there").status.unwrap_or_default();
    let is_refused = |conditions: &berth_api::Conditions| {
        condition::find(conditions, "Ready").is_some_and(|ready| ready.reason == "SourceNotShared")
    };
    let are_refused = async || is_refused(&disk().await.conditions) && is_refused(&image().await.conditions);
    fleet.until("both are refused", are_refused).await;
    let shared = json!({"image": "golden", "size": "2Gi", "sharedWith": ["team"]});
    fleet.apply("Disk", "web", shared).await;
    let are_made = async || disk().await.size.is_some() && image().await.virtual_size.is_some();
    fleet.until("both are made", are_made).await;
    assert_eq!(image().await.binding.map(|binding| binding.host).as_deref(), Some("h1"));
    assert!(host.violations().is_empty());
}

#[tokio::test]
async fn two_hosts_that_need_an_image_at_once_download_it_once() {
    let fleet = Fleet::new().await;
    let [first, second] = [image::host(&fleet.clock), image::host(&fleet.clock)];
    let bytes = [b"QFI\xfb".as_slice(), &[9; 100_000]].concat();
    let mut agents = Vec::new();
    for (name, host) in [("h1", &first), ("h2", &second)] {
        host.serve_image(URL, &bytes);
        agents.push(fleet.join_with(name, "a", host, Some(server().await)).await);
        fleet.until("the host is there", async || fleet.host_exists(name).await).await;
    }
    fleet.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
    fleet.apply("Image", "golden", json!({"source": {"url": URL, "sha256": hex_sha256(&bytes)}})).await;
    let images: Api<Image> = Api::default_namespaced(fleet.admin.clone());
    let is_bound = async || {
        let status = images.get("golden").await.expect("it is there").status;
        status.is_some_and(|status| status.binding.is_some())
    };
    fleet.until("it is bound", is_bound).await;
    for (name, host) in [("one", "h1"), ("two", "h2")] {
        fleet.declare_vm(name, "golden", host).await;
    }
    for name in ["one", "two"] {
        fleet.until_vm(name, "runs", runs).await;
    }
    assert_eq!((first.pulls() + second.pulls(), first.copies() + second.copies()), (1, 1));
    assert!(first.violations().is_empty() && second.violations().is_empty());
}
