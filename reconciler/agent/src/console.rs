//! The consoles of the machines on this host, the other ways into a guest, uploads and downloads of images, copies of images and volumes to other
//! hosts, and reads of backups and snapshots, served over HTTPS to clients with a ticket.
//!
//! ```text
//!  client ─ TLS ─▶ one HTTP/1.1 request ─▶ ticket verified ─▶ 101, then plain bytes in both directions
//!                                                                  │
//!                          viewers ◀── broadcast ◀── serial line (one connection to QEMU for all viewers)
//!                          viewer  ◀───────────────▶ VNC server  (one connection to QEMU for each viewer)
//!                          client  ◀───────────────▶ guest agent (one exchange at a time), or a port of the guest
//!                          client  ────────────────▶ the partial file of an image
//!                          client, or host  ◀─────── the file of an image
//!                          host             ◀─────── the file of a volume, or the firmware state of a VM
//!                          host             ◀───────▶ a running guest, which comes to this host
//!                          client  ◀───────────────▶ parts of the data of a backup or a snapshot
//!                          client  ◀──────────────── the way of a packet through the host's rules
//! ```
//!
//! *Guarantees:* a ticket opens one connection (`ticket`). A viewer that does not read loses output and is then
//! disconnected; it delays neither the guest nor another viewer (`serial_line`, `session`). Connections, requests and
//! memory are limited, also for clients without a ticket. Nothing here changes an object, and nothing but the reset button and the
//! non-maskable interrupt of a client, and the arrival of a guest, changes a machine.

mod arrival;
mod copying;
mod disk_read;
mod download;
mod file_copy;
mod firmware;
mod forward;
mod guest_session;
mod log_places;
mod packet_trace;
mod places;
mod refusal;
mod screen;
mod serial_line;
mod session;
mod ticket;
mod upload;
mod use_of_vm;
mod volume_copy;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_api::console::{
    ConsoleUse, PROTOCOL, UPLOAD_ACCOUNT, of_copy_path, of_download_path, of_upload_path, serial_port_of,
    upload_audience,
};
use berth_api::disk_read::DiskOrigin;
use berth_api::firmware_copy;
use berth_api::live_move;
use berth_api::volume_copy::of_path;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::context::Context;
use crate::index::instance_of;
use crate::key::ObjectName;
use arrival::ArrivalSession;
use disk_read::DiskReadSession;
use download::DownloadSession;
use file_copy::FileCopy;
use firmware::FirmwareSession;
use forward::Forward;
use guest_session::GuestSession;
use log_places::LogPlaces;
use packet_trace::TraceSession;
use places::{Place, Places};
use refusal::ConsoleRefusal;
use screen::Screen;
use serial_line::SerialLines;
use session::SerialSession;
use ticket::{Claim, Tickets};
use upload::UploadSession;
use use_of_vm::UsageSession;
use volume_copy::VolumeCopy;

/// The limit of connections, with and without a ticket.
const CONNECTIONS: usize = 256;
/// The limit of connections from one address.
const CONNECTIONS_OF_ADDRESS: usize = 64;
/// The time for the TLS handshake, and again for the headers of the request.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The time for the whole request until its answer.
const REQUEST: Duration = Duration::from_secs(30);
/// The limit of a request's headers in bytes. A ticket has some 1,200.
const MAX_HEADERS: usize = 16 << 10;
/// The number of logs that are read and sent at a time: each is in memory.
const LOGS: usize = 4;
/// The number of connections to the screens of this host.
const SCREENS: usize = 64;
/// The number of connections to the screen of a VM: each takes memory of its QEMU.
const SCREENS_OF_VM: usize = 8;
/// The number of sessions with the agents of guests on this host, and with that of a VM: each has some MiB in memory.
const GUEST_SESSIONS: usize = 16;
const GUEST_SESSIONS_OF_VM: usize = 4;
/// The number of connections to ports of guests on this host, and of a VM.
const FORWARDS: usize = 128;
const FORWARDS_OF_VM: usize = 64;
/// The number of uploads to this host. An image has one at a time.
const UPLOADS: usize = 8;
/// The number of downloads from this host, of the images of a namespace, and of an image.
const DOWNLOADS: usize = 8;
const DOWNLOADS_OF_NAMESPACE: usize = 4;
const DOWNLOADS_OF_IMAGE: usize = 2;
/// The number of copies of images to other hosts, and to one of them.
const COPIES: usize = 16;
const COPIES_OF_HOST: usize = 4;
/// The number of copies of volumes to other hosts, and to one of them: each reads as fast as the network allows.
const VOLUME_COPIES: usize = 4;
const VOLUME_COPIES_OF_HOST: usize = 2;
/// The number of running guests that come to this host at a time, and from one host.
const ARRIVALS: usize = 2;
const ARRIVALS_OF_HOST: usize = 2;
/// The number of clients that read backups and snapshots of this host, and those of a namespace: each takes up to 16 MiB of memory, or
/// a process.
const DISK_READS: usize = 8;
const DISK_READS_OF_NAMESPACE: usize = 2;
/// The number of packets that are traced at a time on this host, and for a VM: each reads the host's rules.
const TRACES: usize = 4;
const TRACES_OF_VM: usize = 1;
/// The time for a client to read what was written.
const STALLED: Duration = Duration::from_secs(30);
/// The time without a byte in either direction after which a session ends.
const IDLE: Duration = Duration::from_secs(3600);

/// The state shared by all connections.
struct Consoles {
    tickets: Tickets,
    lines: SerialLines,
    logs: LogPlaces,
    /// By instance.
    screens: Places<String>,
    guest_sessions: Places<String>,
    forwards: Places<String>,
    /// By the uid of the image.
    uploads: Places<String>,
    /// By the uid of the image.
    downloads: Places<String>,
    downloads_by_namespace: Places<String>,
    /// By the host that copies.
    copies: Places<String>,
    /// By the host that copies.
    volume_copies: Places<String>,
    /// By the host that they leave.
    arrivals: Places<String>,
    /// By namespace.
    disk_reads: Places<String>,
    traces: Places<String>,
}

/// A session to run.
enum Session {
    Serial(SerialSession),
    Screen(Screen),
    Usage(UsageSession),
    Trace(TraceSession),
    Guest(GuestSession),
    Forward(Forward),
    Upload(Box<UploadSession>),
    Download(Box<DownloadSession>),
    Copy(Box<FileCopy>),
    VolumeCopy(Box<VolumeCopy>),
    Firmware(Box<FirmwareSession>),
    Arrival(Box<ArrivalSession>),
    DiskRead(Box<DiskReadSession>),
}

impl Session {
    async fn run(self, stream: TokioIo<Upgraded>) {
        match self {
            Self::Serial(session) => session.run(stream).await,
            Self::Screen(session) => session.run(stream).await,
            Self::Usage(session) => session.run(stream).await,
            Self::Trace(session) => session.run(stream).await,
            Self::Guest(session) => session.run(stream).await,
            Self::Forward(session) => session.run(stream).await,
            Self::Upload(session) => session.run(stream).await,
            Self::Download(session) => session.run(stream).await,
            Self::Copy(session) => session.run(stream).await,
            Self::VolumeCopy(session) => session.run(stream).await,
            Self::Firmware(session) => session.run(stream).await,
            Self::Arrival(session) => Box::pin(session.run(stream)).await,
            Self::DiskRead(session) => session.run(stream).await,
        }
    }
}

/// Serves the consoles for as long as it is polled; never, if the agent serves none.
pub(crate) async fn serve(ctx: &Arc<Context>) {
    let Some(server) = ctx.config.console.clone() else { return std::future::pending().await };
    let consoles = Arc::new(Consoles {
        tickets: Tickets::new(ctx.now()),
        lines: SerialLines::new(ctx.system.clone()),
        logs: LogPlaces::new(LOGS),
        screens: Places::among_namespaces(SCREENS, SCREENS_OF_VM),
        guest_sessions: Places::among_namespaces(GUEST_SESSIONS, GUEST_SESSIONS_OF_VM),
        forwards: Places::among_namespaces(FORWARDS, FORWARDS_OF_VM),
        uploads: Places::among_namespaces(UPLOADS, 1),
        downloads: Places::new(DOWNLOADS, DOWNLOADS_OF_IMAGE),
        downloads_by_namespace: Places::new(DOWNLOADS, DOWNLOADS_OF_NAMESPACE),
        copies: Places::new(COPIES, COPIES_OF_HOST),
        volume_copies: Places::new(VOLUME_COPIES, VOLUME_COPIES_OF_HOST),
        arrivals: Places::new(ARRIVALS, ARRIVALS_OF_HOST),
        disk_reads: Places::new(DISK_READS, DISK_READS_OF_NAMESPACE),
        traces: Places::among_namespaces(TRACES, TRACES_OF_VM),
    });
    let places = Places::<IpAddr>::new(CONNECTIONS, CONNECTIONS_OF_ADDRESS);
    let acceptor = TlsAcceptor::from(server.tls.clone());
    tracing::info!(address = %server.address, "serving consoles");
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = server.listener.accept() => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // The process is out of file descriptors, or the client disconnected.
                tracing::warn!(%error, "accepting a console connection failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // Without a place the connection is closed.
        let Some(place) = places.take(peer.ip()) else {
            tracing::debug!(%peer, "too many console connections");
            continue;
        };
        let (ctx, consoles, acceptor) = (ctx.clone(), consoles.clone(), acceptor.clone());
        connections.spawn(async move {
            connection(&ctx, &consoles, &acceptor, stream, peer).await;
            drop(place);
        });
    }
}

/// A session that was granted, and the connection that it is to use.
type Granted = Arc<Mutex<Option<(Session, OnUpgrade)>>>;

async fn connection(
    ctx: &Arc<Context>,
    consoles: &Arc<Consoles>,
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    peer: SocketAddr,
) {
    // Each typed character is a packet.
    let _ = stream.set_nodelay(true);
    let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        _ => return tracing::debug!(%peer, "no TLS handshake on a console connection"),
    };
    let granted = Granted::default();
    let service = service_fn(|mut request: Request<Incoming>| {
        let (ctx, consoles, granted) = (ctx.clone(), consoles.clone(), granted.clone());
        async move {
            let answer = match open(&ctx, &consoles, &request, peer).await {
                Ok(session) => {
                    let upgrade = hyper::upgrade::on(&mut request);
                    *granted.lock().unwrap_or_else(PoisonError::into_inner) = Some((session, upgrade));
                    switching_protocols()
                }
                Err(refusal) => refused(&refusal, peer),
            };
            Ok::<_, Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HANDSHAKE).max_buf_size(MAX_HEADERS).keep_alive(false);
    let request = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    if !matches!(timeout(REQUEST, request).await, Ok(Ok(()))) {
        return tracing::debug!(%peer, "no request on a console connection");
    }
    let session = granted.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((session, upgrade)) = session
        && let Ok(Ok(stream)) = timeout(REQUEST, upgrade).await
    {
        session.run(TokioIo::new(stream)).await;
    }
}

/// Verifies a request and prepares its session.
async fn open(
    ctx: &Arc<Context>,
    consoles: &Consoles,
    request: &Request<Incoming>,
    peer: SocketAddr,
) -> Result<Session, ConsoleRefusal> {
    let path = request.uri().path();
    let is_of_image =
        [of_upload_path(path), of_download_path(path), of_copy_path(path)].iter().any(Option::is_some);
    let is_of_disk = DiskOrigin::of_path(path).is_some() || of_path(path).is_some();
    let is_of_move = live_move::of_path(path).is_some() || firmware_copy::of_path(path).is_some();
    let is_of_data = is_of_image || is_of_disk || is_of_move;
    let of_vm = ConsoleUse::of_path(path);
    if !is_of_data && of_vm.is_none() {
        return Err(ConsoleRefusal::NoSuchPath);
    }
    let is_upgrade = request.headers().get(header::UPGRADE).is_some_and(|value| value == PROTOCOL);
    if request.method() != http::Method::GET || !is_upgrade {
        return Err(ConsoleRefusal::NoUpgrade);
    }
    let bearer = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let ticket = bearer.and_then(|value| value.strip_prefix("Bearer ")).ok_or(ConsoleRefusal::NoTicket)?;
    if is_of_data {
        return open_of_data(ctx, consoles, request, ticket, peer).await;
    }
    let (namespace, name, wanted) = of_vm.ok_or(ConsoleRefusal::NoSuchPath)?;
    let vm = ctx.index.read().vms.get(&ObjectName::new(namespace, name));
    // The VM's uid is part of the ticket, so that only a ticket's holder learns which VMs are here.
    let uid = vm.as_ref().and_then(|vm| vm.metadata.uid.clone()).unwrap_or_default();
    let audience = wanted.audience(namespace, name, &uid);
    let claim = Claim { namespace, audience, accounts: &[wanted.account()] };
    consoles.tickets.redeem(&ctx.client, ctx.now(), ticket, &claim).await?;
    let instance = vm.as_deref().and_then(instance_of).map(str::to_owned).ok_or(ConsoleRefusal::NotHere)?;
    tracing::info!(namespace, vm = name, used = wanted.as_str(), %peer, "console opened");
    if wanted == ConsoleUse::Log {
        return open_serial(consoles, namespace, &instance, wanted, request.uri().query()).await;
    }
    if ctx.system.process(&instance).await?.is_none() {
        return Err(ConsoleRefusal::NotRunning);
    }
    match wanted {
        ConsoleUse::Usage => {
            return Ok(Session::Usage(UsageSession::new(ctx.clone(), ObjectName::new(namespace, name))));
        }
        ConsoleUse::Trace => {
            let _place = taken(&consoles.traces, namespace, &instance, TRACES_OF_VM, TRACES)?;
            let (name, query) = (ObjectName::new(namespace, name), request.uri().query());
            return TraceSession::open(ctx, &name, vm.as_deref(), query).await.map(Session::Trace);
        }
        ConsoleUse::Exec | ConsoleUse::File | ConsoleUse::Reset | ConsoleUse::Nmi => {
            let place =
                taken(&consoles.guest_sessions, namespace, &instance, GUEST_SESSIONS_OF_VM, GUEST_SESSIONS)?;
            let machine = ctx.machines.get(&instance).ok_or(ConsoleRefusal::NotRunning)?;
            return Ok(Session::Guest(GuestSession::new(machine, wanted, place)));
        }
        ConsoleUse::PortForward => {
            let place = taken(&consoles.forwards, namespace, &instance, FORWARDS_OF_VM, FORWARDS)?;
            let vm = vm.ok_or(ConsoleRefusal::NotHere)?;
            let forward = Forward::connect(ctx, &vm, request.uri().query(), place).await?;
            return Ok(Session::Forward(forward));
        }
        ConsoleUse::Vsock => {
            let place = taken(&consoles.forwards, namespace, &instance, FORWARDS_OF_VM, FORWARDS)?;
            let forward = Forward::connect_vsock(ctx, &instance, request.uri().query(), place).await?;
            return Ok(Session::Forward(forward));
        }
        ConsoleUse::Console | ConsoleUse::Log | ConsoleUse::Follow | ConsoleUse::Vnc => {}
    }
    if wanted == ConsoleUse::Vnc {
        let place = consoles.screens.take_in(namespace, instance.clone());
        let place =
            place.ok_or(ConsoleRefusal::TooManyScreens { most: SCREENS_OF_VM, most_of_host: SCREENS })?;
        let stream = ctx.system.vnc(&instance).await?.ok_or(ConsoleRefusal::NoGraphics)?;
        return Ok(Session::Screen(Screen::new(stream, place)));
    }
    open_serial(consoles, namespace, &instance, wanted, request.uri().query()).await
}

/// Prepares a session with the serial port that the query names: to read and type, to read its log, or to follow that.
async fn open_serial(
    consoles: &Consoles,
    namespace: &str,
    instance: &str,
    wanted: ConsoleUse,
    query: Option<&str>,
) -> Result<Session, ConsoleRefusal> {
    let port = serial_port_of(query).ok_or(ConsoleRefusal::NoPortNumber)?;
    if wanted == ConsoleUse::Console {
        return Ok(Session::Serial(SerialSession::console(consoles.lines.view(instance, port).await?)));
    }
    let viewer = match wanted {
        ConsoleUse::Follow => Some(consoles.lines.view(instance, port).await?),
        _ => None,
    };
    let place = consoles.logs.take(namespace).await;
    let log = consoles.lines.log(instance, port).await?;
    Ok(Session::Serial(match viewer {
        Some(viewer) => SerialSession::follow(viewer, &log, place),
        None => SerialSession::log(log, place),
    }))
}

/// Verifies the ticket for the file of an image, or for the data of a backup or a snapshot, and prepares its session.
async fn open_of_data(
    ctx: &Arc<Context>,
    consoles: &Consoles,
    request: &Request<Incoming>,
    ticket: &str,
    peer: SocketAddr,
) -> Result<Session, ConsoleRefusal> {
    let (path, query) = (request.uri().path(), request.uri().query());
    if let Some((origin, namespace, name)) = DiskOrigin::of_path(path) {
        let name = ObjectName::new(namespace, name);
        let session = DiskReadSession::open(ctx, consoles, origin, name, ticket).await?;
        return Ok(Session::DiskRead(Box::new(session)));
    }
    if let Some((namespace, name, volume)) = of_path(path) {
        let disk = (ObjectName::new(namespace, name), volume);
        let session = VolumeCopy::open(ctx, consoles, disk, query, ticket).await?;
        return Ok(Session::VolumeCopy(Box::new(session)));
    }
    if let Some((namespace, name, instance)) = firmware_copy::of_path(path) {
        let vm = (ObjectName::new(namespace, name), instance);
        // In a box: a VM is large.
        let session = Box::pin(FirmwareSession::open(ctx, consoles, vm, query, ticket)).await?;
        return Ok(Session::Firmware(Box::new(session)));
    }
    if let Some((namespace, name, id)) = live_move::of_path(path) {
        let name = ObjectName::new(namespace, name);
        let session = ArrivalSession::open(ctx, consoles, name, id, query, ticket).await?;
        return Ok(Session::Arrival(Box::new(session)));
    }
    if let Some((namespace, name)) = of_upload_path(path) {
        return open_upload(ctx, consoles, ObjectName::new(namespace, name), ticket, peer).await;
    }
    if let Some((namespace, name)) = of_download_path(path) {
        let name = ObjectName::new(namespace, name);
        let session = DownloadSession::open(ctx, consoles, name, query, ticket).await?;
        return Ok(Session::Download(Box::new(session)));
    }
    let (namespace, name) = of_copy_path(path).ok_or(ConsoleRefusal::NoSuchPath)?;
    let name = ObjectName::new(namespace, name);
    FileCopy::open(ctx, consoles, name, query, ticket).await.map(Box::new).map(Session::Copy)
}

/// Verifies the ticket for an upload and prepares its session.
async fn open_upload(
    ctx: &Arc<Context>,
    consoles: &Consoles,
    name: ObjectName,
    ticket: &str,
    peer: SocketAddr,
) -> Result<Session, ConsoleRefusal> {
    let image = ctx.index.read().images.get(&name);
    // As for a VM: only a ticket's holder learns which images are here.
    let uid = image.as_ref().and_then(|image| image.metadata.uid.clone()).unwrap_or_default();
    let audience = upload_audience(&name.namespace, &name.name, &uid);
    let claim = Claim { namespace: &name.namespace, audience, accounts: &[UPLOAD_ACCOUNT] };
    consoles.tickets.redeem(&ctx.client, ctx.now(), ticket, &claim).await?;
    let image = image.ok_or(ConsoleRefusal::NotHere)?;
    let place = consoles.uploads.take_in(&name.namespace, uid);
    let place = place.ok_or(ConsoleRefusal::TooManyUploads { most_of_host: UPLOADS })?;
    tracing::info!(namespace = name.namespace, image = name.name, %peer, "upload opened");
    Ok(Session::Upload(Box::new(UploadSession::open(ctx, name, &image, place).await?)))
}

fn taken(
    places: &Places<String>,
    namespace: &str,
    instance: &str,
    most: usize,
    most_of_host: usize,
) -> Result<Place<String>, ConsoleRefusal> {
    let place = places.take_in(namespace, instance.to_owned());
    place.ok_or(ConsoleRefusal::TooManyConnections { most, most_of_host })
}

fn switching_protocols() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response
}

fn refused(refusal: &ConsoleRefusal, peer: SocketAddr) -> Response<Full<Bytes>> {
    tracing::info!(%peer, reason = %refusal, "console refused");
    let mut response = Response::new(Full::from(refusal.to_string()));
    *response.status_mut() = refusal.status();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}
