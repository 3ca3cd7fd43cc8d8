//! Why a request for a console is refused, for the person at the client.

use std::net::IpAddr;

use berth_api::disk_read::NOT_YET;
use berth_host::{RepositoryProblem, SystemError};
use http::StatusCode;

/// The refusal of a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConsoleRefusal {
    #[error(
        "no such path: this server has the consoles of VMs, takes uploads of images, has images for other hosts and for downloads, and \
         the data of backups and snapshots"
    )]
    NoSuchPath,
    #[error("a GET request with the header Upgrade: berth-console is required")]
    NoUpgrade,
    #[error("a ticket is required (Authorization: Bearer TICKET)")]
    NoTicket,
    #[error("the ticket is not valid for this object and this use: request one for it")]
    NotValid,
    #[error("the ticket was used before: a ticket opens one connection")]
    Used,
    #[error(
        "the ticket is {age} seconds old, by this host's clock, and is accepted for {life} seconds: request another, and \
         compare the clocks of the host and of the control plane"
    )]
    Expired { age: i64, life: u64 },
    #[error("the ticket is older than this agent, which has just started: request another")]
    BeforeStart,
    #[error("too many tickets of this account were used in the last ten minutes: wait a minute")]
    TooManyTickets,
    #[error("the console has its maximum of {most} viewers: close one")]
    TooManyViewers { most: usize },
    #[error(
        "the screen has its maximum of {most} viewers, the host its maximum of {most_of_host}, or the namespace three quarters of these: \
         close one"
    )]
    TooManyScreens { most: usize, most_of_host: usize },
    #[error(
        "the VM runs without a screen: set graphics to VGA, which takes effect at the next power cycle, or use its serial console \
         (berth console)"
    )]
    NoGraphics,
    #[error(
        "the VM runs without a serial port {port}: set serialPorts to {port} or more, which takes effect at the next power cycle"
    )]
    NoSerialPort { port: u8 },
    #[error("the request names no serial port from 1 to 4 (?port=2)")]
    NoPortNumber,
    #[error(
        "the VM has its maximum of {most} such connections, the host its maximum of {most_of_host}, or the namespace three quarters of these: \
         wait, or end one"
    )]
    TooManyConnections { most: usize, most_of_host: usize },
    #[error(
        "another upload of this image is in progress, the host has its maximum of {most_of_host} uploads, or the namespace three quarters of \
         these: wait, or end one"
    )]
    TooManyUploads { most_of_host: usize },
    #[error(
        "host {host} copies {most_of_host} images, or disks, from this one, or all hosts together {most}: one ends first"
    )]
    TooManyCopies { host: String, most: usize, most_of_host: usize },
    #[error(
        "{most} downloads of this image are in progress, {most_of_namespace} of the images of its namespace, or {most_of_host} of the host: \
         wait, or end one"
    )]
    TooManyDownloads { most: usize, most_of_namespace: usize, most_of_host: usize },
    #[error(
        "{most_of_namespace} clients read backups and snapshots of this namespace, or {most} those of the host: wait, or end one"
    )]
    TooManyReads { most: usize, most_of_namespace: usize },
    #[error("the {kind} is not on this host any more, is deleted, or is not complete yet")]
    NoData { kind: &'static str },
    #[error("this host cannot open the repository of the backup now: {detail}")]
    Closed { detail: String },
    #[error("the backup cannot be read from its repository: {detail}")]
    Unreadable { detail: String },
    #[error("a download needs an offset in its query, and nothing else")]
    NoOffset,
    #[error("a copy needs the name of the host and an offset in its query")]
    NoCopyQuery,
    #[error(
        "host {host} needs no copy of this image: no Disk without a file and no VM that is bound to it names the image"
    )]
    NotNeeded { host: String },
    #[error(
        "host {host} gets no copy of this volume: a Disk that is bound to it, and whose data is on this host (status.formerHost), names none"
    )]
    NotLeft { host: String },
    #[error(
        "host {host} gets no firmware state of this VM: it is not bound to that host with its firmware state on this one (status.formerHost)"
    )]
    FirmwareNotLeft { host: String },
    #[error(
        "the VM is not one that host {host} sends to this host by this move: status.migration of the VM names another one, or none"
    )]
    NotComing { host: String },
    #[error("the control plane cannot be asked now whether the host needs it: {detail}")]
    CannotReadNeeds { detail: String },
    #[error("the image is not on this host any more, or not complete")]
    NoImage,
    #[error("{detail}")]
    Image { status: StatusCode, detail: String },
    #[error("{detail}")]
    NoSuchPort { detail: String },
    #[error("{detail}")]
    NoPacket { detail: String },
    #[error(
        "the agent of this host has just started and has not applied its networks yet: try again in a moment"
    )]
    NotApplied,
    #[error("the request names no vsock port from 1 to 4294967294 (?port=22)")]
    NoVsockPort,
    #[error(
        "the VM runs without a vsock device: set vsock, which takes effect at the next power cycle, or connect by its network (without \
         --vsock)"
    )]
    NoVsock,
    #[error("vsock port {port} of the VM does not answer: {detail}")]
    NoVsockConnection { port: u32, detail: String },
    #[error("port {port} of {address} does not answer: {detail}")]
    NoConnection { address: IpAddr, port: u16, detail: String },
    #[error("the VM is not on this host any more, or not yet: try again in a moment")]
    NotHere,
    #[error("the VM does not run: start it, or read its log (berth logs)")]
    NotRunning,
    #[error(
        "this host must not verify tickets: apply the manifests of its version (berth crds | kubectl apply --server-side -f -)"
    )]
    MustNotReview,
    #[error("the control plane cannot verify the ticket now: {detail}")]
    CannotReview { detail: String },
    #[error("{detail}")]
    System { detail: String },
}

impl From<SystemError> for ConsoleRefusal {
    fn from(error: SystemError) -> Self {
        let detail = error.chain().to_string();
        match error {
            // The same request fails again until a person has changed something.
            SystemError::BackupLost { .. }
            | SystemError::Repository {
                problem:
                    RepositoryProblem::WrongPassword
                    | RepositoryProblem::NoRepository
                    | RepositoryProblem::Replaced,
                ..
            } => Self::Unreadable { detail },
            _ => Self::System { detail },
        }
    }
}

impl ConsoleRefusal {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::NoSuchPath | Self::NotHere | Self::NoImage | Self::NoData { .. } => StatusCode::NOT_FOUND,
            Self::NoCopyQuery
            | Self::NoOffset
            | Self::NoPortNumber
            | Self::NoSuchPort { .. }
            | Self::NoVsockPort
            | Self::NoPacket { .. } => StatusCode::BAD_REQUEST,
            Self::NoConnection { .. } | Self::NoVsockConnection { .. } => StatusCode::BAD_GATEWAY,
            Self::Image { status, .. } => *status,
            Self::NoUpgrade => StatusCode::UPGRADE_REQUIRED,
            Self::NoTicket => StatusCode::UNAUTHORIZED,
            Self::NotValid
            | Self::Used
            | Self::Expired { .. }
            | Self::BeforeStart
            | Self::NotNeeded { .. }
            | Self::NotLeft { .. }
            | Self::FirmwareNotLeft { .. }
            | Self::NotComing { .. } => StatusCode::FORBIDDEN,
            Self::TooManyTickets
            | Self::TooManyViewers { .. }
            | Self::TooManyScreens { .. }
            | Self::TooManyConnections { .. }
            | Self::TooManyCopies { .. }
            | Self::TooManyDownloads { .. }
            | Self::TooManyReads { .. }
            | Self::TooManyUploads { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::NotRunning
            | Self::NoGraphics
            | Self::NoSerialPort { .. }
            | Self::NoVsock
            | Self::Unreadable { .. } => StatusCode::CONFLICT,
            Self::Closed { .. } => StatusCode::from_u16(NOT_YET).unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
            Self::MustNotReview
            | Self::CannotReview { .. }
            | Self::CannotReadNeeds { .. }
            | Self::NotApplied
            | Self::System { .. } => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}
