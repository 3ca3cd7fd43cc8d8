//! Consoles: tickets, viewers, and clients that misbehave. On real sockets, and therefore in real time.

use std::sync::Arc;
use std::time::Duration;

use berth_agent::{ConsoleServer, PacketTrace, Usage};
use berth_api::console::ConsoleUse;
use berth_api::{Graphics, VM, VMState};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::fixture::{Fixture, INSTANCE, is_ready};

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// An agent that serves consoles, and a VM that runs.
pub(crate) struct Site {
    pub(crate) fixture: Fixture,
    address: std::net::SocketAddr,
    connector: TlsConnector,
    tls: Arc<ServerConfig>,
    pub(crate) vm: VM,
}

/// A server at the address of this socket. The clients of these tests do not read the hash of its certificate.
fn server(listener: TcpListener, tls: Arc<ServerConfig>) -> ConsoleServer {
    let address = listener.local_addr().expect("an address");
    ConsoleServer {
        listener,
        tls,
        address,
        is_for_hosts: true,
        moves_guests: true,
        certificate_sha256: "0".repeat(64),
    }
}

impl Site {
    pub(crate) async fn start() -> Self {
        Self::with_clock_ahead(Duration::ZERO).await
    }

    /// The VM has a screen.
    async fn with_screen() -> Self {
        Self::make(Duration::ZERO, json!({"graphics": "VGA"})).await
    }

    /// The VM has a vsock device.
    pub(crate) async fn with_vsock() -> Self {
        Self::make(Duration::ZERO, json!({"vsock": true})).await
    }

    /// The agent's clock is ahead of the control plane's.
    async fn with_clock_ahead(ahead: Duration) -> Self {
        Self::make(ahead, json!({})).await
    }

    async fn make(ahead: Duration, spec: serde_json::Value) -> Self {
        let fixture = Fixture::without_agent().await;
        let made = rcgen::generate_simple_self_signed(["berth-console".to_owned()]).expect("a certificate");
        let certificate: CertificateDer<'static> = made.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = Arc::new(aws_lc_rs::default_provider());
        let tls = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .expect("a certificate");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let tls = Arc::new(tls);
        let server = server(listener, tls.clone());
        let mut roots = RootCertStore::empty();
        roots.add(certificate).expect("a certificate");
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        for namespace in ["ns", "default"] {
            let accounts: Api<ServiceAccount> = Api::namespaced(fixture.client.clone(), namespace);
            for name in berth_api::console::ACCOUNTS.into_iter().chain(["other"]) {
                let mut account = ServiceAccount::default();
                account.metadata.name = Some(name.to_owned());
                accounts.create(&PostParams::default(), &account).await.expect("created");
            }
        }
        fixture.start_agent_with(Some(Arc::new(server)), ahead);
        fixture.furnish().await;
        fixture.make_vm(spec).await;
        let vm = fixture.running_vm().await;
        // Tickets are accepted from the second after the agent's start.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        Self { fixture, address, connector: TlsConnector::from(Arc::new(client)), tls, vm }
    }

    /// Crashes the agent, and starts it again on another port.
    pub(crate) async fn restart_agent(&mut self) {
        self.fixture.crash_agent().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        self.address = listener.local_addr().expect("an address");
        let server = server(listener, self.tls.clone());
        self.fixture.start_agent_with(Some(Arc::new(server)), Duration::ZERO);
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) async fn token(&self, namespace: &str, account: &str, audience: String) -> String {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.fixture.client.clone(), namespace);
        let spec = TokenRequestSpec { audiences: Some(vec![audience]), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let made = accounts.create_token_request(account, &PostParams::default(), &request).await;
        made.expect("a token").status.and_then(|status| status.token).expect("a token")
    }

    pub(crate) fn audience(&self, wanted: ConsoleUse) -> String {
        wanted.audience("ns", "web", &self.vm.uid().expect("a uid"))
    }

    pub(crate) async fn ticket(&self, wanted: ConsoleUse) -> String {
        self.token("ns", wanted.account(), self.audience(wanted)).await
    }

    async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        self.connector.connect(ServerName::try_from("berth-console").expect("a name"), stream).await
    }

    /// Sends a request; returns the connection and the head of the answer.
    pub(crate) async fn request(&self, path: &str, ticket: &str) -> (TlsStream<TcpStream>, String) {
        let mut stream = self.connect().await.expect("connected");
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: berth-console\r\n\
             Authorization: Bearer {ticket}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(timeout(SOON, stream.read_u8()).await.expect("in time").expect("an answer"));
        }
        (stream, String::from_utf8(head).expect("text"))
    }

    pub(crate) async fn open(&self, wanted: ConsoleUse) -> TlsStream<TcpStream> {
        let ticket = self.ticket(wanted).await;
        let (stream, head) = self.request(&wanted.path("ns", "web"), &ticket).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        stream
    }

    /// Sends a request that is refused; returns the code and the text.
    pub(crate) async fn refused(&self, path: &str, ticket: &str) -> String {
        let (mut stream, head) = self.request(path, ticket).await;
        let mut body = Vec::new();
        // The server closes the connection without an end of TLS: the length is in the head.
        let _ = timeout(SOON, stream.read_to_end(&mut body)).await.expect("in time");
        format!("{} {}", &head["HTTP/1.1 ".len()..][..3], String::from_utf8(body).expect("text"))
    }
}

/// Reads until the text has come.
async fn until(stream: &mut TlsStream<TcpStream>, text: &str) -> String {
    let mut read = Vec::new();
    let search = async {
        while !String::from_utf8_lossy(&read).contains(text) {
            let mut chunk = [0; 4096];
            let count = stream.read(&mut chunk).await.expect("connected");
            assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&read));
            read.extend_from_slice(&chunk[..count]);
        }
    };
    timeout(SOON, search).await.unwrap_or_else(|_| panic!("never {text:?}"));
    String::from_utf8_lossy(&read).into_owned()
}

#[tokio::test]
async fn viewers_share_a_console_and_the_log_outlives_the_machine() {
    let site = Site::start().await;
    let published = site.vm.status.as_ref().and_then(|status| status.console.clone()).expect("published");
    assert_eq!(published.address, site.address.to_string());
    let mut first = site.open(ConsoleUse::Console).await;
    until(&mut first, &format!("serial console of {INSTANCE}")).await;
    let mut follower = site.open(ConsoleUse::Follow).await;
    first.write_all(b"hello\r").await.expect("typed");
    until(&mut first, "hello\r").await;
    until(&mut follower, "hello\r").await;
    follower.write_all(b"ignored").await.expect("sent");
    let mut second = site.open(ConsoleUse::Console).await;
    let scroll_back = until(&mut second, "hello\r").await;
    assert!(!scroll_back.contains("ignored"), "a reader of the log must not type: {scroll_back:?}");
    second.write_all(b"again\r").await.expect("typed");
    until(&mut first, "again\r").await;

    site.fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    site.fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    until(&mut first, "[berth: the VM no longer runs]").await;
    let mut log = site.open(ConsoleUse::Log).await;
    let mut text = String::new();
    log.read_to_string(&mut text).await.expect("a log");
    assert!(text.contains("serial console of"), "{text:?}");
    for wanted in [ConsoleUse::Console, ConsoleUse::Follow] {
        let answer = site.refused(&wanted.path("ns", "web"), &site.ticket(wanted).await).await;
        assert!(answer.starts_with("409 the VM does not run"), "{answer}");
    }
    let stopped = site.fixture.until::<VM>("web", |_| true).await.status.expect("reported");
    assert_eq!(stopped.state, Some(VMState::Stopped));
}

#[tokio::test]
async fn each_serial_port_has_a_console_and_a_log_of_its_own() {
    let site = Site::start().await;
    let path = |wanted: ConsoleUse, port: &str| format!("{}?port={port}", wanted.path("ns", "web"));
    for (port, words) in
        [("2", "409 the VM runs without a serial port 2"), ("9", "400 the request names no serial port")]
    {
        let ticket = site.ticket(ConsoleUse::Console).await;
        let answer = site.refused(&path(ConsoleUse::Console, port), &ticket).await;
        assert!(answer.starts_with(words), "{answer}");
    }
    site.fixture.change::<VM>("web", json!({"serialPorts": 2, "restartToken": "1"})).await;
    let has_two = |vm: &VM| {
        let hardware = vm.status.as_ref().and_then(|status| status.hardware.as_ref());
        is_ready(vm, "Running") && hardware.is_some_and(|hardware| hardware.serial_ports == Some(2))
    };
    site.fixture.until::<VM>("web", has_two).await;
    let ticket = site.ticket(ConsoleUse::Console).await;
    let (mut second, head) = site.request(&path(ConsoleUse::Console, "2"), &ticket).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    until(&mut second, &format!("serial port 2 of {INSTANCE}")).await;
    let mut first = site.open(ConsoleUse::Console).await;
    second.write_all(b"second\r").await.expect("typed");
    until(&mut second, "second\r").await;
    first.write_all(b"first\r").await.expect("typed");
    let seen = until(&mut first, "first\r").await;
    assert!(seen.contains("serial console of") && !seen.contains("second"), "{seen}");
    let ticket = site.ticket(ConsoleUse::Log).await;
    let (mut log, _) = site.request(&path(ConsoleUse::Log, "2"), &ticket).await;
    until(&mut log, "serial port 2 of").await;
}

#[tokio::test]
async fn a_ticket_for_the_use_of_a_vm_gives_two_readings_of_this_vm() {
    let site = Site::start().await;
    let mut stream = site.open(ConsoleUse::Usage).await;
    let mut text = String::new();
    timeout(SOON, stream.read_to_string(&mut text)).await.expect("in time").expect("readings");
    let readings: Vec<Usage> =
        text.lines().map(|line| serde_json::from_str(line).expect("a reading")).collect();
    let [before, after] = readings.as_slice() else { panic!("{text}") };
    assert!(after.time > before.time, "two readings, not one twice");
    assert_eq!(after.vms.iter().map(|vm| vm.name.as_str()).collect::<Vec<_>>(), ["web"]);
    let path = ConsoleUse::Usage.path("ns", "web");
    let answer = site.refused(&path, &site.ticket(ConsoleUse::Log).await).await;
    assert!(answer.starts_with("403 the ticket is not valid"), "{answer}");
}

#[tokio::test]
async fn a_ticket_for_a_trace_gives_the_way_of_a_packet_in_names_of_objects() {
    let site = Site::start().await;
    let path = ConsoleUse::Trace.path("ns", "web");
    let ticket = site.ticket(ConsoleUse::Trace).await;
    let (mut stream, head) = site.request(&format!("{path}?to=192.0.2.9&protocol=icmp"), &ticket).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let mut text = String::new();
    timeout(SOON, stream.read_to_string(&mut text)).await.expect("in time").expect("an answer");
    let answer: PacketTrace = serde_json::from_str(&text).expect("a trace");
    assert_eq!((answer.host.as_str(), answer.interface.as_str()), ("h1", "nic0"));
    let by = serde_json::to_value(&answer.trace.steps[0].by).expect("JSON");
    assert_eq!(by, json!({"kind": "interface", "name": "web/nic0"}));

    for (query, expected) in [
        ("", "400 a trace has either"),
        ("?to=192.0.2.9&protocol=tcp", "400 a packet of tcp and udp has a port"),
        ("?to=fd00::1&protocol=icmpv6", "400 interface nic0 has no IPv6 address"),
        ("?to=192.0.2.9&protocol=icmp&interface=nic7", "400 the VM has no interface nic7: it has nic0"),
        (
            "?from=192.0.2.9&public=198.51.100.1&protocol=icmp",
            "400 this host does not forward public address",
        ),
    ] {
        let answer = site.refused(&format!("{path}{query}"), &site.ticket(ConsoleUse::Trace).await).await;
        assert!(answer.starts_with(expected), "{query}: {answer}");
    }
    let answer = site.refused(&path, &site.ticket(ConsoleUse::Usage).await).await;
    assert!(answer.starts_with("403 the ticket is not valid"), "{answer}");
}

#[tokio::test]
async fn a_ticket_opens_one_console_of_one_vm_once() {
    let site = Site::start().await;
    let path = ConsoleUse::Console.path("ns", "web");
    let ticket = site.ticket(ConsoleUse::Console).await;
    let (_open, head) = site.request(&path, &ticket).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(site.refused(&path, &ticket).await.starts_with("403 the ticket was used before"));

    // Each of these is a genuine token of the control plane.
    let audience = site.audience(ConsoleUse::Console);
    for (token, is_for) in [
        (site.ticket(ConsoleUse::Log).await, "another use"),
        (site.token("ns", "berth-console", "console.berth.dev/ns/web/other".to_owned()).await, "another uid"),
        (site.token("ns", "berth-console", "console.berth.dev/ns/db/u".to_owned()).await, "another VM"),
        (site.token("ns", "other", audience.clone()).await, "another account"),
        (site.token("default", "berth-console", audience.clone()).await, "an account of another namespace"),
    ] {
        let answer = site.refused(&path, &token).await;
        assert!(answer.starts_with("403 the ticket is not valid"), "{is_for}: {answer}");
    }
    for forged in ["x", "a.b.c", &format!("{}x", site.ticket(ConsoleUse::Console).await)] {
        assert!(site.refused(&path, forged).await.starts_with("403 the ticket is not valid"), "{forged}");
    }
    assert!(site.refused("/metrics", "x").await.starts_with("404 "));
    let absent = site.token("ns", "berth-console", "console.berth.dev/ns/absent/".to_owned()).await;
    let answer = site.refused(&ConsoleUse::Console.path("ns", "absent"), &absent).await;
    assert!(answer.starts_with("404 the VM is not on this host"), "{answer}");
}

#[tokio::test]
async fn an_old_ticket_is_refused() {
    let site = Site::with_clock_ahead(Duration::from_secs(90)).await;
    let ticket = site.ticket(ConsoleUse::Console).await;
    let answer = site.refused(&ConsoleUse::Console.path("ns", "web"), &ticket).await;
    assert!(
        answer.starts_with("403 the ticket is ") && answer.contains("accepted for 60 seconds"),
        "{answer}"
    );
}

#[tokio::test]
async fn garbage_and_idle_connections_take_no_console_from_others() {
    let site = Site::start().await;
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 5000]] {
        let mut stream = TcpStream::connect(site.address).await.expect("connected");
        let _ = stream.write_all(garbage).await;
        let mut answer = Vec::new();
        let _ = timeout(SOON, stream.read_to_end(&mut answer)).await.expect("closed");
    }
    let mut stream = site.connect().await.expect("connected");
    stream.write_all(&[b'x'; 64 << 10]).await.expect("sent");
    let mut answer = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut answer)).await.expect("closed");
    assert!(!answer.starts_with(b"HTTP/1.1 101"), "{answer:?}");

    let mut open = site.open(ConsoleUse::Console).await;
    until(&mut open, "serial console").await;
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(TcpStream::connect(site.address).await.expect("connected"));
    }
    let refused = async {
        while site.connect().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, refused).await.expect("an address has 64 connections at most");
    open.write_all(b"still\r").await.expect("typed");
    until(&mut open, "still\r").await;
    drop(idle);
    let admitted = async {
        while site.connect().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, admitted).await.expect("closed connections are free again");
}

#[tokio::test]
async fn a_viewer_that_does_not_read_delays_no_other() {
    let site = Site::start().await;
    let silent = site.open(ConsoleUse::Console).await;
    let mut viewer = site.open(ConsoleUse::Console).await;
    until(&mut viewer, "serial console of").await;
    let line = [b'x'; 16 << 10];
    // More than all buffers on the way to the silent viewer hold.
    for _ in 0..1_000 {
        viewer.write_all(&line).await.expect("typed");
        let mut left = line.len();
        while left > 0 {
            let mut chunk = [0; 16 << 10];
            let count =
                timeout(SOON, viewer.read(&mut chunk[..left])).await.expect("not delayed").expect("output");
            assert!(count > 0, "closed");
            left -= count;
        }
    }
    drop(silent);
}

#[tokio::test]
async fn a_screen_has_a_connection_for_each_viewer_and_a_limit_of_them() {
    let site = Site::with_screen().await;
    let mut viewers = Vec::new();
    for _ in 0..8 {
        viewers.push(site.open(ConsoleUse::Vnc).await);
    }
    for (n, viewer) in viewers.iter_mut().enumerate() {
        // The fake repeats what each connection sends.
        let sent = format!("viewer {n}");
        viewer.write_all(sent.as_bytes()).await.expect("sent");
        assert_eq!(until(viewer, &sent).await, sent);
    }
    let path = ConsoleUse::Vnc.path("ns", "web");
    let answer = site.refused(&path, &site.ticket(ConsoleUse::Vnc).await).await;
    assert!(answer.starts_with("429 the screen has its maximum of 8 viewers"), "{answer}");
    drop(viewers.pop());
    let again = async {
        while !site.request(&path, &site.ticket(ConsoleUse::Vnc).await).await.1.contains(" 101 ") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, again).await.expect("a place is free again");
    let hardware = site.vm.status.as_ref().and_then(|status| status.hardware.clone()).expect("reported");
    assert_eq!(hardware.graphics, Some(Graphics::VGA));

    site.fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    site.fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    let mut rest = Vec::new();
    let ended = timeout(SOON, viewers[0].read_to_end(&mut rest)).await;
    ended.expect("the end of the machine ends its viewers").expect("an orderly end");
    let answer = site.refused(&path, &site.ticket(ConsoleUse::Vnc).await).await;
    assert!(answer.starts_with("409 the VM does not run"), "{answer}");
}

#[tokio::test]
async fn a_vm_without_graphics_has_no_screen_until_its_next_power_cycle() {
    let site = Site::start().await;
    let path = ConsoleUse::Vnc.path("ns", "web");
    let answer = site.refused(&path, &site.ticket(ConsoleUse::Vnc).await).await;
    assert!(answer.starts_with("409 the VM runs without a screen: set graphics to VGA"), "{answer}");
    let answer = site.refused(&path, &site.ticket(ConsoleUse::Console).await).await;
    assert!(answer.starts_with("403 the ticket is not valid"), "a ticket for another use: {answer}");

    site.fixture.change::<VM>("web", json!({"graphics": "VGA"})).await;
    let pending = |vm: &VM| vm.status.as_ref().is_some_and(|s| s.pending_power_cycle == ["graphics"]);
    site.fixture.until::<VM>("web", pending).await;
    let answer = site.refused(&path, &site.ticket(ConsoleUse::Vnc).await).await;
    assert!(answer.starts_with("409 the VM runs without a screen"), "{answer}");
    site.fixture.change::<VM>("web", json!({"restartToken": "1"})).await;
    site.fixture
        .until::<VM>("web", |vm| vm.status.as_ref().is_some_and(|s| s.pending_power_cycle.is_empty()))
        .await;
    site.fixture.running_vm().await;
    site.open(ConsoleUse::Vnc).await;
}
