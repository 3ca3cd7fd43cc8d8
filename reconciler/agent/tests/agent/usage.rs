//! The use of the host, over HTTP. On real sockets, and therefore in real time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_agent::{GuestsLeft, History, Usage, UsageServer};
use berth_api::VM;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;

use crate::fixture::{Fixture, is_ready, vm_reason};

const SOON: Duration = Duration::from_secs(20);

/// Starts an agent that serves metrics, and a VM that runs.
async fn site() -> (Fixture, SocketAddr) {
    let fixture = Fixture::without_agent().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = UsageServer { tcp: Some(listener), ..UsageServer::default() };
    fixture.start_agent_configured(|config| config.usage = Some(Arc::new(server)));
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    (fixture, address)
}

/// Sends a request; returns head and body of the answer.
async fn request(address: SocketAddr, line: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    stream.write_all(format!("{line} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).await.expect("sent");
    let mut answer = String::new();
    timeout(SOON, stream.read_to_string(&mut answer)).await.expect("in time").expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

#[tokio::test]
async fn a_running_vm_has_metrics_until_it_stops() {
    let (fixture, address) = site().await;
    let (head, body) = request(address, "GET /metrics").await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("openmetrics-text"), "{head}");
    for line in [
        "berth_vm_cpus{namespace=\"ns\",vm=\"web\"} 1",
        "berth_vm_memory_bytes{namespace=\"ns\",vm=\"web\"} 536870912",
        "berth_vm_disk_operations_total{namespace=\"ns\",vm=\"web\",disk=\"root\",operation=\"read\"} 0",
        "berth_host_vms 1",
    ] {
        assert!(body.lines().any(|found| found == line), "{line} is not in\n{body}");
    }
    assert!(body.contains("berth_agent_reconciles_total{kind=\"VM\",result=\"success\"}"), "{body}");
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    // A reading is used again for a second.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let (_, body) = request(address, "GET /metrics").await;
    assert!(body.contains("berth_host_vms 0") && !body.contains("vm=\"web\""), "{body}");
}

#[tokio::test]
async fn the_use_is_read_as_json_and_nothing_else_is_answered() {
    let (_fixture, address) = site().await;
    let (_, body) = request(address, "GET /usage").await;
    let usage: Usage = serde_json::from_str(&body).expect("a reading");
    assert_eq!((usage.host.as_str(), usage.vms.len()), ("h1", 1));
    assert_eq!(usage.vms[0].disks.len(), 1);
    // The guest is asked from the first reading on, which is used again for a second.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let (_, body) = request(address, "GET /usage").await;
    let usage: Usage = serde_json::from_str(&body).expect("a reading");
    let memory = usage.vms[0].guest_memory.expect("the guest reports its memory");
    assert_eq!((memory.total, memory.used(), usage.vms[0].ballooned_bytes), (512 << 20, 64 << 20, 0));
    let (_, body) = request(address, "GET /history").await;
    let history: History = serde_json::from_str(&body).expect("the last hour");
    assert_eq!((history.host.as_str(), history.points.len()), ("h1", 1), "of the agent's start");
    // Guests are stopped through the socket for root only.
    for (line, code) in [
        ("POST /metrics", "405"),
        ("GET /", "404"),
        ("GET /metrics/x", "404"),
        ("GET /guests", "404"),
        ("POST /guests/stop", "405"),
    ] {
        let (head, _) = request(address, line).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{line}: {head}");
    }
}

#[tokio::test]
async fn root_has_the_guests_stopped_at_the_socket_and_started_again() {
    let fixture = Fixture::without_agent().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("usage.sock");
    let server = UsageServer { local: Some(UnixListener::bind(&path).expect("bound")), tcp: None };
    fixture.start_agent_configured(|config| config.usage = Some(Arc::new(server)));
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    let ask = async |line: &str| -> GuestsLeft {
        let mut stream = UnixStream::connect(&path).await.expect("connected");
        stream.write_all(format!("{line} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).await.expect("sent");
        let mut answer = String::new();
        timeout(SOON, stream.read_to_string(&mut answer)).await.expect("in time").expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
        serde_json::from_str(body).expect("the guests that run")
    };
    let running = |under_way| GuestsLeft { under_way, is_working: true, vms: vec!["ns/web".into()] };
    assert_eq!(ask("GET /guests").await, running(false));
    assert_eq!(ask("POST /guests/stop").await, running(true));
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "HostShuttingDown").await;
    assert_eq!(ask("GET /guests").await.vms, [""; 0]);
    assert!(!ask("POST /guests/start").await.under_way);
    fixture.running_vm().await;
}

#[tokio::test]
async fn clients_that_send_nothing_keep_out_others_only_for_a_while() {
    let (_fixture, address) = site().await;
    let mut idle = Vec::new();
    for _ in 0..32 {
        idle.push(TcpStream::connect(address).await.expect("connected"));
    }
    let (head, _) = request(address, "GET /metrics").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
}
