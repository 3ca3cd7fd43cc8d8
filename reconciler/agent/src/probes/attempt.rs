//! One attempt of a probe. Whatever the guest does, it ends within its time.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use berth_api::VM;
use berth_api::probe::{Exec, HttpGet, Question};
use berth_host::System;
use berth_qemu::guest_agent::GuestCommand;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{CONNECTION, HOST, USER_AGENT};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::machine::{GuestError, Machine};

/// The most that is read of the head of an answer.
const LONGEST_HEAD: usize = 16 << 10;
const MOST_HEADERS: usize = 100;
/// After this time a program in the guest that does not end is given up, and the next attempt starts another.
const FORGET_PROGRAM: Duration = Duration::from_secs(3600);

/// The address at which a host reaches its guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestAddress {
    pub(crate) bridge: String,
    pub(crate) address: IpAddr,
}

impl GuestAddress {
    /// Returns the address of a VM's first interface: that of IPv4, or in a network without IPv4 that of IPv6. `bridges`: by network.
    pub(crate) fn of(vm: &VM, bridges: &BTreeMap<String, String>) -> Option<Self> {
        let interface = vm.status.as_ref()?.interfaces.first()?;
        let bridge = bridges.get(&interface.network)?.clone();
        Some(Self { bridge, address: interface.reached_at()? })
    }
}

/// The ports of a guest.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    pub(crate) system: Arc<dyn System>,
    /// None: it has no network here.
    pub(crate) address: Option<GuestAddress>,
}

/// Asks one question again and again.
pub(crate) struct Asker {
    ports: Ports,
    machine: Machine,
    /// A program of an earlier attempt that has not ended: a guest agent cannot end it, and no second one is started beside it.
    program: Option<BoxFuture<'static, Result<(), String>>>,
}

impl Asker {
    pub(crate) fn new(ports: Ports, machine: Machine) -> Self {
        Self { ports, machine, program: None }
    }

    /// Returns why the guest does not answer as it should. The text has nothing that the guest wrote.
    pub(crate) async fn ask(&mut self, question: Question<'_>, limit: Duration) -> Result<(), String> {
        match question {
            Question::TcpSocket(tcp) => within(limit, self.ports.connect(tcp.port)).await.map(drop),
            Question::HttpGet(get) => within(limit, self.ports.get(get)).await,
            Question::Exec(exec) => {
                let start = || Box::pin(run(self.machine.clone(), exec.clone())) as BoxFuture<'static, _>;
                let program = self.program.get_or_insert_with(start);
                let Ok(ended) = timeout(limit, program).await else { return Err(no_answer(limit)) };
                self.program = None;
                ended
            }
        }
    }
}

async fn within<T>(limit: Duration, answer: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(limit, answer).await.unwrap_or_else(|_| Err(no_answer(limit)))
}

fn no_answer(limit: Duration) -> String {
    format!("no answer within {} s", limit.as_secs())
}

impl Ports {
    pub(crate) async fn connect(&self, port: i64) -> Result<TcpStream, String> {
        let place = self.address.as_ref().ok_or("the VM has no address that berth gives out")?;
        let port = u16::try_from(port).map_err(|_| format!("{port} is no port"))?;
        let guest = SocketAddr::new(place.address, port);
        let connected = self.system.connect_to_guest(&place.bridge, guest).await;
        connected.map_err(|error| format!("no connection to port {port}: {}", error.chain()))
    }

    /// Reads the head of the answer only.
    pub(crate) async fn get(&self, get: &HttpGet) -> Result<(), String> {
        let stream = self.connect(get.port).await?;
        let broken = |error: hyper::Error| format!("port {} does not speak HTTP: {error}", get.port);
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(LONGEST_HEAD)
            .max_headers(MOST_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        let port = u16::try_from(get.port).map_err(|_| format!("{} is no port", get.port))?;
        let host = self.address.as_ref().map(|place| SocketAddr::new(place.address, port).to_string());
        let request = http::Request::get(&get.path)
            .header(HOST, host.unwrap_or_default())
            .header(USER_AGENT, "berth-probe")
            .header(CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .map_err(|error| error.to_string())?;
        tokio::pin!(connection);
        let mut answer = std::pin::pin!(sender.send_request(request));
        let answer = tokio::select! {
            biased;
            answer = &mut answer => answer,
            // The answer may have arrived with the end of the connection.
            ended = &mut connection => match ended {
                Ok(()) => answer.await,
                Err(error) => Err(error),
            },
        };
        let status = answer.map_err(broken)?.status();
        match status.as_u16() {
            200..=399 => Ok(()),
            code => Err(format!("port {} answered with status {code}", get.port)),
        }
    }
}

/// Runs a program in the guest to its end.
async fn run(machine: Machine, exec: Exec) -> Result<(), String> {
    let mut words = exec.command.into_iter();
    let command = GuestCommand {
        program: words.next().unwrap_or_default(),
        args: words.collect(),
        ..GuestCommand::default()
    };
    let exit = machine.run_in_guest(command, FORGET_PROGRAM).await.map_err(|error| match error {
        // The agent's own words come from the guest.
        GuestError::Agent(_) => "the guest agent did not run the program".to_owned(),
        other => other.to_string(),
    })?;
    match (exit.code, exit.signal) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(format!("the program ended with exit code {code}")),
        (None, _) => Err("the program was ended by a signal".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use std::net::Ipv4Addr;

    use berth_engine::RuntimeClock;
    use berth_host::fake::FakeSystem;
    use jiff::Timestamp;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn ports() -> Ports {
        let system = FakeSystem::new(Arc::new(RuntimeClock::starting_at(Timestamp::UNIX_EPOCH)));
        let address = GuestAddress { bridge: "bth-1".into(), address: Ipv4Addr::new(10, 0, 0, 2).into() };
        Ports { system: Arc::new(system), address: Some(address) }
    }

    /// Returns the port of a guest that sends this to the first connection, without an end if `hangs`, and the requests it got.
    async fn guest(answer: Vec<u8>, hangs: bool) -> (i64, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap_or(0);
            // The other end may have closed.
            let _ = stream.write_all(&answer).await;
            if hangs {
                pending::<()>().await;
            }
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        (i64::from(port), served)
    }

    async fn get(port: i64, limit: Duration) -> Result<(), String> {
        let get = HttpGet { port, path: "/ready?a=b".to_owned() };
        within(limit, ports().get(&get)).await
    }

    #[tokio::test]
    async fn a_status_up_to_399_is_a_success_and_the_request_is_the_declared_one() {
        for (status, expected) in
            [("200 OK", true), ("302 Found", true), ("404 Not Found", false), ("500 No", false)]
        {
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 5\r\n\r\nhello");
            let (port, served) = guest(answer.into_bytes(), false).await;
            let outcome = get(port, LIMIT).await;
            assert_eq!(outcome.is_ok(), expected, "{status}: {outcome:?}");
            let request = served.await.expect("served").to_ascii_lowercase();
            assert!(request.starts_with("get /ready?a=b http/1.1\r\n"), "{request}");
            assert!(request.contains(&format!("host: 10.0.0.2:{port}\r\n")), "{request}");
        }
        let (port, _) = guest(b"HTTP/1.1 503 Busy\r\n\r\n".to_vec(), false).await;
        let refused = get(port, LIMIT).await.expect_err("503");
        assert_eq!(refused, format!("port {port} answered with status 503"));
    }

    #[tokio::test]
    async fn a_guest_that_hangs_closes_or_sends_garbage_fails_the_attempt_in_time() {
        let soon = Duration::from_millis(300);
        let (port, _hanging) = guest(Vec::new(), true).await;
        assert_eq!(get(port, soon).await.expect_err("it hangs"), "no answer within 0 s");
        let (port, _) = guest(Vec::new(), false).await;
        assert!(get(port, LIMIT).await.expect_err("it closes").contains("does not speak HTTP"));
        let (port, _) = guest(b"SSH-2.0-OpenSSH\r\n".to_vec(), true).await;
        assert!(get(port, LIMIT).await.expect_err("garbage").contains("does not speak HTTP"));
        let endless = [b"HTTP/1.1 200 OK\r\n".to_vec(), b"a: b\r\n".repeat(1 << 20)].concat();
        let (port, _) = guest(endless, true).await;
        assert!(get(port, LIMIT).await.expect_err("an endless head").contains("does not speak HTTP"));
    }

    #[tokio::test]
    async fn a_port_that_accepts_is_a_success_and_a_closed_one_is_none() {
        let (port, _guest) = guest(Vec::new(), true).await;
        assert!(ports().connect(port).await.is_ok());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let closed = i64::from(listener.local_addr().expect("an address").port());
        drop(listener);
        let error = ports().connect(closed).await.expect_err("closed");
        assert!(error.starts_with(&format!("no connection to port {closed}: ")), "{error}");
        let without = Ports { address: None, ..ports() };
        assert_eq!(
            without.connect(80).await.expect_err("none"),
            "the VM has no address that berth gives out"
        );
    }
}
