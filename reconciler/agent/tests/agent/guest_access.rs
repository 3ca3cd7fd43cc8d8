//! Programs, files and ports of a guest, for clients with a ticket. On real sockets, and therefore in real time.

use berth_api::VM;
use berth_api::console::ConsoleUse;
use berth_api::guest_access::{ClientMessage, Content, Exec, HostMessage, MAX_PIECE, WriteFile};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::consoles::{SOON, Site};
use crate::fixture::{INSTANCE, is_ready};

/// A session with a guest's agent.
struct Session(BufReader<TlsStream<TcpStream>>);

impl Session {
    async fn open(site: &Site, wanted: ConsoleUse) -> Self {
        Self(BufReader::new(site.open(wanted).await))
    }

    async fn send(&mut self, message: &ClientMessage) {
        self.send_line(&serde_json::to_string(message).expect("JSON")).await;
    }

    async fn send_line(&mut self, line: &str) {
        self.0.write_all(format!("{line}\n").as_bytes()).await.expect("sent");
    }

    async fn next(&mut self) -> HostMessage {
        let mut line = String::new();
        timeout(SOON, self.0.read_line(&mut line)).await.expect("in time").expect("an answer");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    async fn error(&mut self) -> String {
        match self.next().await {
            HostMessage::Error(text) => text,
            other => panic!("no error: {other:?}"),
        }
    }
}

fn command(words: &[&str], input: &str, seconds: u64) -> ClientMessage {
    let command = words.iter().map(|word| (*word).to_owned()).collect();
    ClientMessage::Exec(Exec { command, input: Content(input.into()), seconds })
}

async fn run(site: &Site, words: &[&str], input: &str) -> HostMessage {
    let mut session = Session::open(site, ConsoleUse::Exec).await;
    session.send(&command(words, input, 10)).await;
    session.next().await
}

#[tokio::test]
async fn a_program_in_the_guest_has_input_output_and_an_exit_code() {
    let site = Site::start().await;
    for (words, input, expected) in [
        (&["echo", "a b", "c"][..], "", (Some(0), "a b c\n", "")),
        (&["cat"], "typed", (Some(0), "typed", "")),
        (&["fail"], "", (Some(3), "", "it failed\n")),
    ] {
        let HostMessage::Exit(exit) = run(&site, words, input).await else { panic!("{words:?} failed") };
        let text = |content: &Content| String::from_utf8(content.0.clone()).expect("text");
        let (code, stdout, stderr) = expected;
        assert_eq!((exit.code, text(&exit.stdout), text(&exit.stderr)), (code, stdout.into(), stderr.into()));
    }
    let HostMessage::Error(text) = run(&site, &["missing"], "").await else { panic!("it ran") };
    assert!(text.contains("the guest agent refused guest-exec: Failed to execute"), "{text}");
}

#[tokio::test]
async fn a_program_without_end_or_with_endless_output_delays_nothing() {
    let site = Site::start().await;
    let mut session = Session::open(&site, ConsoleUse::Exec).await;
    session.send(&command(&["sleep"], "", 1)).await;
    let text = session.error().await;
    assert_eq!(text, "the program did not end within 1 seconds; it may still run in the guest");
    let mut runs = Session::open(&site, ConsoleUse::Exec).await;
    runs.send(&command(&["sleep"], "", 600)).await;

    let HostMessage::Error(text) = run(&site, &["yes"], "").await else { panic!("it ran") };
    assert!(text.starts_with("the program's output is lost: it is larger than 4 MiB"), "{text}");
    let HostMessage::Exit(exit) = run(&site, &["echo", "again"], "").await else { panic!("it failed") };
    assert_eq!(exit.stdout, Content(b"again\n".to_vec()), "the channel is in order again");

    site.fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    site.fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    assert_eq!(runs.error().await, "the VM no longer runs");
}

#[tokio::test]
async fn messages_that_make_no_sense_end_a_session_only() {
    let site = Site::start().await;
    for (line, why) in [
        ("{}", "does not know"),
        ("\"end\"", "another use"),
        (r#"{"read":"/etc/shadow"}"#, "another use"),
        (r#"{"exec":{"command":[],"seconds":5}}"#, "the command is empty"),
        (r#"{"exec":{"command":["a"],"seconds":99999}}"#, "1 to 3600 seconds"),
        (&"x".repeat(3 << 20), "too long"),
    ] {
        let mut session = Session::open(&site, ConsoleUse::Exec).await;
        session.send_line(line).await;
        let text = session.error().await;
        assert!(text.contains(why), "{why}: {text}");
    }
    assert!(matches!(run(&site, &["echo"], "").await, HostMessage::Exit(_)));
}

#[tokio::test]
async fn a_file_is_copied_into_the_guest_and_back() {
    let site = Site::start().await;
    let content: Vec<u8> = (0..MAX_PIECE + 1000).map(|n| (n % 251) as u8).collect();
    let mut session = Session::open(&site, ConsoleUse::File).await;
    session.send(&ClientMessage::Write(WriteFile { path: "/opt/tool".into(), mode: 0o4755 })).await;
    assert_eq!(session.next().await, HostMessage::Ready);
    for piece in content.chunks(MAX_PIECE) {
        session.send(&ClientMessage::Piece(Content(piece.to_vec()))).await;
    }
    session.send(&ClientMessage::End).await;
    assert_eq!(session.next().await, HostMessage::End);
    assert_eq!(fetch(&site, "/opt/tool").await.expect("read"), content);
    // The fake keeps the script that sets the permissions.
    let script = fetch(&site, "/opt/tool.mode").await.expect("set");
    assert_eq!(String::from_utf8(script).expect("text"), r#"chmod 755 -- "$1""#, "no set-user-ID");
    let missing = fetch(&site, "/missing").await.expect_err("there is none");
    assert!(missing.contains("No such file or directory"), "{missing}");
}

async fn fetch(site: &Site, path: &str) -> Result<Vec<u8>, String> {
    let mut session = Session::open(site, ConsoleUse::File).await;
    session.send(&ClientMessage::Read(path.to_owned())).await;
    let mut content = Vec::new();
    loop {
        match session.next().await {
            HostMessage::Piece(Content(piece)) => content.extend_from_slice(&piece),
            HostMessage::End => return Ok(content),
            HostMessage::Error(text) => return Err(text),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_piece_that_is_too_large_is_refused_and_so_is_another_message() {
    let site = Site::start().await;
    for wrong in [ClientMessage::Piece(Content(vec![0; MAX_PIECE + 1])), ClientMessage::Read("/a".into())] {
        let mut session = Session::open(&site, ConsoleUse::File).await;
        session.send(&ClientMessage::Write(WriteFile { path: "/a".into(), mode: 0o644 })).await;
        assert_eq!(session.next().await, HostMessage::Ready);
        session.send(&wrong).await;
        assert!(session.error().await.contains("something else than a piece of the file"));
    }
}

#[tokio::test]
async fn a_guest_without_an_agent_runs_no_program() {
    let site = Site::start().await;
    site.fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.guest_agent = false);
    let HostMessage::Error(text) = run(&site, &["echo"], "").await else { panic!("it ran") };
    assert_eq!(text, "no guest agent runs in the VM: install and start qemu-guest-agent in it");
}

#[tokio::test]
async fn the_reset_button_and_an_nmi_reach_a_guest_that_runs_and_no_other() {
    let site = Site::start().await;
    let boot = || site.fixture.system.hypervisor().view(INSTANCE).and_then(|seen| seen.boot);
    let booted = async || {
        let wait = async {
            while boot().is_none() {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, wait).await.expect("in time");
        boot()
    };
    let before = booted().await;
    let press = async |wanted: ConsoleUse| Session::open(&site, wanted).await.next().await;
    assert_eq!(press(ConsoleUse::Nmi).await, HostMessage::End);
    assert_eq!(boot(), before);
    assert_eq!(press(ConsoleUse::Reset).await, HostMessage::End);
    assert!(booted().await != before, "it has booted again");
    site.fixture.change::<VM>("web", json!({"power": "Paused"})).await;
    site.fixture.until::<VM>("web", |vm| is_ready(vm, "Paused")).await;
    for wanted in [ConsoleUse::Reset, ConsoleUse::Nmi] {
        let HostMessage::Error(text) = press(wanted).await else { panic!("it was pressed") };
        assert!(text.contains("is not possible while the machine is Paused"), "{text}");
    }
}

#[tokio::test]
async fn each_way_into_a_guest_needs_the_ticket_of_its_own_account() {
    let site = Site::start().await;
    for (wanted, account) in [
        (ConsoleUse::Exec, "berth-console"),
        (ConsoleUse::File, "berth-console"),
        (ConsoleUse::PortForward, "berth-exec"),
        (ConsoleUse::Console, "berth-exec"),
        (ConsoleUse::Exec, "berth-port-forward"),
        (ConsoleUse::Reset, "berth-console"),
        (ConsoleUse::Nmi, "berth-port-forward"),
        (ConsoleUse::Vsock, "berth-port-forward"),
        (ConsoleUse::PortForward, "berth-vsock"),
        (ConsoleUse::Exec, "berth-vsock"),
    ] {
        let ticket = site.token("ns", account, site.audience(wanted)).await;
        let answer = site.refused(&wanted.path("ns", "web"), &ticket).await;
        assert!(answer.starts_with("403 the ticket is not valid"), "{account}: {answer}");
    }
    let answer =
        site.refused(&ConsoleUse::Exec.path("ns", "web"), &site.ticket(ConsoleUse::File).await).await;
    assert!(answer.starts_with("403 the ticket is not valid"), "{answer}");
}

/// Serves one client, after whose end it sends back what came. The ports of a fake guest are those of this machine.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut all = Vec::new();
        // To the client's end; the answer comes after it.
        stream.read_to_end(&mut all).await.expect("read");
        stream.write_all(&all).await.expect("written");
    });
    port
}

/// Sends words to a port of the guest, and returns what it sends back after their end.
async fn echoed(site: &Site, wanted: ConsoleUse, port: u16) -> String {
    let path = format!("{}?port={port}", wanted.path("ns", "web"));
    let (mut stream, head) = site.request(&path, &site.ticket(wanted).await).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    stream.write_all(b"hello").await.expect("sent");
    stream.shutdown().await.expect("ended");
    let mut answer = String::new();
    timeout(SOON, stream.read_to_string(&mut answer)).await.expect("in time").expect("an orderly end");
    answer
}

#[tokio::test]
async fn a_vsock_port_of_the_guest_is_connected_in_both_directions() {
    let site = Site::with_vsock().await;
    let hardware = site.vm.status.as_ref().and_then(|status| status.hardware.as_ref()).expect("it runs");
    assert!(hardware.vsock_cid.is_some_and(|cid| cid >= 65_536), "{hardware:?}");
    assert_eq!(echoed(&site, ConsoleUse::Vsock, echo().await).await, "hello");
    let path = ConsoleUse::Vsock.path("ns", "web");
    for (query, expected) in [
        ("", "400 the request names no vsock port"),
        ("?port=0", "400 the request names no vsock port"),
        ("?port=22&address=10.0.0.2", "400 the request names no vsock port"),
        ("?port=1", "502 vsock port 1 of the VM does not answer: "),
    ] {
        let ticket = site.ticket(ConsoleUse::Vsock).await;
        let answer = site.refused(&format!("{path}{query}"), &ticket).await;
        assert!(answer.starts_with(expected), "{query}: {answer}");
    }
}

#[tokio::test]
async fn a_vm_without_a_vsock_device_has_no_vsock_ports() {
    let site = Site::start().await;
    let path = format!("{}?port=22", ConsoleUse::Vsock.path("ns", "web"));
    let answer = site.refused(&path, &site.ticket(ConsoleUse::Vsock).await).await;
    assert!(answer.starts_with("409 the VM runs without a vsock device: set vsock"), "{answer}");
}

#[tokio::test]
async fn a_port_of_the_guest_is_connected_in_both_directions() {
    let site = Site::start().await;
    assert_eq!(echoed(&site, ConsoleUse::PortForward, echo().await).await, "hello");
    let path = ConsoleUse::PortForward.path("ns", "web");

    for (query, expected) in [
        ("", "400 the request names no port"),
        ("?port=0", "400 the request names no port"),
        ("?port=80&address=192.0.2.1", "400 the address is not the VM's: it has 10."),
        ("?port=1", "502 port 1 of 10."),
    ] {
        let ticket = site.ticket(ConsoleUse::PortForward).await;
        let answer = site.refused(&format!("{path}{query}"), &ticket).await;
        assert!(answer.starts_with(expected), "{query}: {answer}");
    }
}
