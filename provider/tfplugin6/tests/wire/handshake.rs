//! The life of the process, from start to end.

use std::time::Duration;

use tfplugin6::proto::{
    health::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient},
    plugin::{Empty, grpc_controller_client::GrpcControllerClient, grpc_stdio_client::GrpcStdioClient},
    tfplugin6::{get_metadata, provider_client::ProviderClient},
};
use tonic::transport::Channel;

use crate::client::{COOKIE, ClientIdentity, Plugin, Session, run_to_end};

async fn is_served(channel: Channel) -> bool {
    ProviderClient::new(channel).get_metadata(get_metadata::Request {}).await.is_ok()
}

#[tokio::test]
async fn the_line_has_the_address_and_the_pinned_client_is_served() {
    let session = Session::new().await;
    let parts: Vec<&str> = session.plugin.line.split('|').collect();
    assert_eq!(parts.len(), 6);
    assert_eq!((parts[0], parts[1], parts[2], parts[4]), ("1", "6", "unix", "grpc"));
    assert!(is_served(session.channel.clone()).await);
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let client = ClientIdentity::new();
    let plugin = Plugin::start(&client);
    // With TLS 1.3 a client sees the refusal only when it reads: the connection may seem to exist.
    if let Ok(channel) = plugin.connect(None).await {
        assert!(!is_served(channel).await);
    }
    if let Ok(channel) = plugin.connect_plainly().await {
        assert!(!is_served(channel).await);
    }
    assert!(is_served(plugin.connect(Some(&client)).await.unwrap()).await, "and the right one still served");
}

#[tokio::test]
async fn a_client_with_another_certificate_is_refused() {
    let client = ClientIdentity::new();
    let plugin = Plugin::start(&client);
    if let Ok(channel) = plugin.connect(Some(&ClientIdentity::new())).await {
        assert!(!is_served(channel).await);
    }
    assert!(is_served(plugin.connect(Some(&client)).await.unwrap()).await, "and the right one still served");
}

#[tokio::test]
async fn where_a_socket_cannot_be_tcp_in_the_given_ports_is_served() {
    let client = ClientIdentity::new();
    let pem = client.pem();
    let plugin = Plugin::start_with(&[
        ("PLUGIN_CLIENT_CERT", pem),
        ("PLUGIN_UNIX_SOCKET_DIR", "/nonexistent/directory"),
        ("PLUGIN_MIN_PORT", "20000"),
        ("PLUGIN_MAX_PORT", "25000"),
    ]);
    assert_eq!(plugin.part(2), "tcp");
    let port: u16 = plugin.part(3).strip_prefix("127.0.0.1:").unwrap().parse().unwrap();
    assert!((20_000..=25_000).contains(&port));
    assert!(is_served(plugin.connect(Some(&client)).await.unwrap()).await);
}

#[tokio::test]
async fn the_socket_is_where_the_host_wants_it() {
    let directory = tempfile::tempdir().unwrap();
    let client = ClientIdentity::new();
    let wanted = directory.path().join("plugins");
    std::fs::create_dir(&wanted).unwrap();
    let plugin = Plugin::start_with(&[
        ("PLUGIN_CLIENT_CERT", client.pem()),
        ("PLUGIN_UNIX_SOCKET_DIR", wanted.to_str().unwrap()),
    ]);
    assert_eq!(plugin.socket().parent().unwrap(), wanted);
    assert!(is_served(plugin.connect(Some(&client)).await.unwrap()).await);
}

#[tokio::test]
async fn it_is_healthy_until_shut_down_and_then_leaves_nothing() {
    let mut session = Session::new().await;
    let health = HealthClient::new(session.channel.clone())
        .check(HealthCheckRequest { service: "plugin".to_owned() })
        .await
        .unwrap();
    assert_eq!(health.into_inner().status(), ServingStatus::Serving);
    // A host keeps this stream open all the time: it must not keep the process alive.
    let mut stdio =
        GrpcStdioClient::new(session.channel.clone()).stream_stdio(()).await.unwrap().into_inner();

    GrpcControllerClient::new(session.channel.clone()).shutdown(Empty {}).await.unwrap();
    assert!(matches!(stdio.message().await, Ok(None)), "the stream ends by itself");
    let status = session.plugin.ends_within(Duration::from_secs(2)).await.expect("it ends");
    assert!(status.success());
    assert!(!session.plugin.socket().exists(), "the socket is still there");
    assert!(!session.plugin.socket().parent().unwrap().exists(), "the directory is still there");
}

#[tokio::test]
async fn an_interrupt_is_left_to_terraform() {
    let mut session = Session::new().await;
    let interrupted =
        std::process::Command::new("kill").args(["-INT", &session.plugin.id().to_string()]).status();
    assert!(interrupted.unwrap().success());
    assert!(session.plugin.ends_within(Duration::from_millis(300)).await.is_none(), "it ended");
    assert!(is_served(session.channel).await);
}

#[test]
fn run_by_hand_it_explains_itself() {
    let output = run_to_end(&[("TF_PLUGIN_MAGIC_COOKIE", "")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty(), "stdout is for hosts");
    assert!(String::from_utf8_lossy(&output.stderr).contains("This is a Terraform provider"));
}

#[test]
fn a_host_without_protocol_6_receives_an_error() {
    let output = run_to_end(&[("PLUGIN_PROTOCOL_VERSIONS", "5"), ("TF_PLUGIN_MAGIC_COOKIE", COOKIE)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("protocol 6"));
}

#[test]
fn a_malformed_client_certificate_is_an_error() {
    let output = run_to_end(&[("PLUGIN_CLIENT_CERT", "garbage")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("PLUGIN_CLIENT_CERT"));
}

#[tokio::test]
async fn the_line_is_printed_before_the_provider_is_created() {
    let client = ClientIdentity::new();
    let directory = tempfile::tempdir().unwrap();
    let create_after = directory.path().join("create");
    let environment = [
        ("PLUGIN_CLIENT_CERT", client.pem()),
        ("TOY_CREATE_AFTER", create_after.to_str().expect("a path in UTF-8")),
    ];
    // The provider waits for the file, so the line that this reads was printed before.
    let plugin = Plugin::start_with(&environment);
    std::fs::write(&create_after, "").unwrap();
    assert!(is_served(plugin.connect(Some(&client)).await.unwrap()).await);
}
