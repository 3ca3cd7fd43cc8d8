//! Tickets for the consoles of VMs, for the other ways into a guest, for uploads and downloads of images, for copies of images to
//! other hosts, and for reads of backups and snapshots ([`crate::disk_read`]).
//!
//! A ticket is a token of a ServiceAccount in the VM's namespace, requested for the audience of one VM and one use. The
//! account depends on the use ([`ConsoleUse::account`]): the right to request its tokens (`create` on `serviceaccounts/token`
//! with its name) is the right to this use of the VMs of the namespace. A ticket opens one connection, within [`TICKET_LIFE`]
//! of its issue. It is stored nowhere, and no role gives the accounts a right on the control plane.

use std::time::Duration;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The ServiceAccount whose tokens open consoles: serial line, its log, screen.
pub const CONSOLE_ACCOUNT: &str = "berth-console";
/// The ServiceAccount whose tokens run programs and copy files in a guest, and press its buttons.
pub const EXEC_ACCOUNT: &str = "berth-exec";
/// The ServiceAccount whose tokens connect to ports of a guest.
pub const FORWARD_ACCOUNT: &str = "berth-port-forward";
/// The ServiceAccount whose tokens connect to vsock ports of a guest.
pub const VSOCK_ACCOUNT: &str = "berth-vsock";
/// The ServiceAccount whose tokens upload images.
pub const UPLOAD_ACCOUNT: &str = "berth-image-upload";
/// The ServiceAccount whose tokens download images, and so all data of the disks that they are made from.
pub const DOWNLOAD_ACCOUNT: &str = "berth-image-download";
/// The ServiceAccount whose tokens read the data of Backups and DiskSnapshots, and so all files in them.
pub const DISK_READ_ACCOUNT: &str = "berth-disk-read";
/// The ServiceAccounts whose tokens are tickets for VMs, in each namespace with VMs.
pub const VM_ACCOUNTS: [&str; 4] = [CONSOLE_ACCOUNT, EXEC_ACCOUNT, FORWARD_ACCOUNT, VSOCK_ACCOUNT];
/// The ServiceAccounts whose tokens are tickets. [`UPLOAD_ACCOUNT`] is in each namespace with images that are uploaded,
/// [`DOWNLOAD_ACCOUNT`] in each with images that were made or uploaded, [`DISK_READ_ACCOUNT`] in each with snapshots or backups.
pub const ACCOUNTS: [&str; 7] = [
    CONSOLE_ACCOUNT,
    EXEC_ACCOUNT,
    FORWARD_ACCOUNT,
    VSOCK_ACCOUNT,
    UPLOAD_ACCOUNT,
    DOWNLOAD_ACCOUNT,
    DISK_READ_ACCOUNT,
];
/// The ServiceAccount in [`crate::SYSTEM_NAMESPACE`] whose tokens copy images to a host without an account of its own: that of `berth up`,
/// and one with an administrator's kubeconfig. No role allows them. The tickets of other hosts are tokens of their own accounts.
pub const COPY_ACCOUNT: &str = "berth-image-copy";
/// How long after its issue a ticket is accepted.
pub const TICKET_LIFE: Duration = Duration::from_secs(60);
/// The name of the protocol to which a client upgrades its HTTP/1.1 request: plain bytes in both directions.
pub const PROTOCOL: &str = "berth-console";

/// The server of a host for consoles, images, backups and snapshots. A client needs a ticket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConsoleAddress {
    /// IP address and port: HTTPS.
    #[schemars(length(max = 64))]
    pub address: String,
    /// SHA-256 of the server's certificate (DER), in hexadecimal digits. A client accepts this certificate and no other.
    #[schemars(length(max = 64), regex(pattern = r"^[0-9a-f]{64}$"))]
    pub certificate_sha256: String,
}

/// The use that a ticket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsoleUse {
    /// To read the serial console and to type into it.
    Console,
    /// To read the log of the serial console, to its end.
    Log,
    /// To read that log and then the output that follows.
    Follow,
    /// To see the screen and to use keyboard and pointer: the protocol of VNC (RFB, RFC 6143) from its greeting on.
    Vnc,
    /// To read the use of the host by the VM, twice, as two lines of JSON.
    Usage,
    /// To run a program in the guest, by its agent: see [`crate::guest_access`].
    Exec,
    /// To read or write a file in the guest, by its agent: see [`crate::guest_access`].
    File,
    /// To connect to a TCP port of the guest, named by [`PORT`] and [`ADDRESS`] in the query of the path.
    PortForward,
    /// To connect to a vsock port of the guest, named by [`PORT`] in the query of the path.
    Vsock,
    /// To read the way of a packet through the rules of the host, as JSON: see [`crate::packet_trace`].
    Trace,
    /// To press the reset button of a guest that runs. The answer is one message of a host: see [`crate::guest_access`].
    Reset,
    /// To send a guest that runs a non-maskable interrupt, on which it may be set up to write a dump. The answer is one message, too.
    Nmi,
}

/// The parameter with the port of a guest: of TCP, of vsock, or for a serial console and its log the number of the serial port.
pub const PORT: &str = "port";
/// The number of the first serial port.
pub const FIRST_SERIAL_PORT: u8 = 1;
/// The number of the last one that a VM can have.
pub const LAST_SERIAL_PORT: u8 = 4;

/// The serial port in the query of a path: that of [`PORT`], or without a query the first. None: there is no such port.
#[must_use]
pub fn serial_port_of(query: Option<&str>) -> Option<u8> {
    let Some(query) = query else { return Some(FIRST_SERIAL_PORT) };
    let number = query.strip_prefix(PORT)?.strip_prefix('=')?.parse().ok()?;
    (FIRST_SERIAL_PORT..=LAST_SERIAL_PORT).contains(&number).then_some(number)
}

/// The vsock port in the query of a path: that of [`PORT`]. None: there is no such port. The first is 1, and the last number stands for any
/// port.
#[must_use]
pub fn vsock_port_of(query: Option<&str>) -> Option<u32> {
    let number = query?.strip_prefix(PORT)?.strip_prefix('=')?.parse().ok()?;
    (1..u32::MAX).contains(&number).then_some(number)
}

/// The parameter with the address of a guest, one of its interfaces. Default: that of the first.
pub const ADDRESS: &str = "address";

impl ConsoleUse {
    const ALL: [Self; 12] = [
        Self::Console,
        Self::Log,
        Self::Follow,
        Self::Vnc,
        Self::Usage,
        Self::Exec,
        Self::File,
        Self::PortForward,
        Self::Vsock,
        Self::Trace,
        Self::Reset,
        Self::Nmi,
    ];

    /// The ServiceAccount whose tokens are tickets for it.
    pub fn account(self) -> &'static str {
        match self {
            Self::Console | Self::Log | Self::Follow | Self::Vnc | Self::Usage | Self::Trace => {
                CONSOLE_ACCOUNT
            }
            Self::Exec | Self::File | Self::Reset | Self::Nmi => EXEC_ACCOUNT,
            Self::PortForward => FORWARD_ACCOUNT,
            Self::Vsock => VSOCK_ACCOUNT,
        }
    }

    /// Its name, in audiences and paths.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Console => "console",
            Self::Log => "log",
            Self::Follow => "follow",
            Self::Vnc => "vnc",
            Self::Usage => "usage",
            Self::Exec => "exec",
            Self::File => "file",
            Self::PortForward => "portforward",
            Self::Vsock => "vsock",
            Self::Trace => "trace",
            Self::Reset => "reset",
            Self::Nmi => "nmi",
        }
    }

    /// The audience of a ticket for this use of the VM with this uid.
    pub fn audience(self, namespace: &str, vm: &str, uid: &str) -> String {
        format!("{}.berth.dev/{namespace}/{vm}/{uid}", self.as_str())
    }

    /// The path of a request for this use.
    pub fn path(self, namespace: &str, vm: &str) -> String {
        format!("/v1/namespaces/{namespace}/vms/{vm}/{}", self.as_str())
    }

    /// Returns namespace, VM and use of a path.
    pub fn of_path(path: &str) -> Option<(&str, &str, Self)> {
        let (namespace, rest) = path.strip_prefix("/v1/namespaces/")?.split_once("/vms/")?;
        let (vm, wanted) = rest.split_once('/')?;
        let found = Self::ALL.into_iter().find(|each| each.as_str() == wanted)?;
        (is_name(namespace) && is_name(vm)).then_some((namespace, vm, found))
    }
}

/// The audience of a ticket for an upload of the Image with this uid.
pub fn upload_audience(namespace: &str, image: &str, uid: &str) -> String {
    format!("image.berth.dev/{namespace}/{image}/{uid}")
}

/// The path of a request for an upload, see [`crate::image_upload`].
pub fn upload_path(namespace: &str, image: &str) -> String {
    format!("/v1/namespaces/{namespace}/images/{image}/upload")
}

/// Returns namespace and Image of a path.
pub fn of_upload_path(path: &str) -> Option<(&str, &str)> {
    let (namespace, rest) = path.strip_prefix("/v1/namespaces/")?.split_once("/images/")?;
    let image = rest.strip_suffix("/upload")?;
    (is_name(namespace) && is_name(image)).then_some((namespace, image))
}

/// The audience of a ticket for a copy of the Image with this uid.
pub fn copy_audience(namespace: &str, image: &str, uid: &str) -> String {
    format!("image-copy.berth.dev/{namespace}/{image}/{uid}")
}

/// The audience of a ticket for a copy from another host than the image's own. `audience`: that of [`copy_audience`]. The host that serves such a
/// copy cannot use the ticket to copy the file from a third one.
pub fn further_copy_audience(audience: &str, host: &str) -> String {
    format!("{audience}/{host}")
}

/// The path of a request for a copy, see [`crate::image_copy`].
pub fn copy_path(namespace: &str, image: &str) -> String {
    format!("/v1/namespaces/{namespace}/images/{image}/file")
}

/// Returns namespace and Image of a path.
pub fn of_copy_path(path: &str) -> Option<(&str, &str)> {
    let (namespace, rest) = path.strip_prefix("/v1/namespaces/")?.split_once("/images/")?;
    let image = rest.strip_suffix("/file")?;
    (is_name(namespace) && is_name(image)).then_some((namespace, image))
}

/// The audience of a ticket for a download of the Image with this uid.
pub fn download_audience(namespace: &str, image: &str, uid: &str) -> String {
    format!("image-download.berth.dev/{namespace}/{image}/{uid}")
}

/// The path of a request for a download, see [`crate::image_download`].
pub fn download_path(namespace: &str, image: &str) -> String {
    format!("/v1/namespaces/{namespace}/images/{image}/download")
}

/// Returns namespace and Image of a path.
pub fn of_download_path(path: &str) -> Option<(&str, &str)> {
    let (namespace, rest) = path.strip_prefix("/v1/namespaces/")?.split_once("/images/")?;
    let image = rest.strip_suffix("/download")?;
    (is_name(namespace) && is_name(image)).then_some((namespace, image))
}

pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 253 && !name.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_one_use_of_one_vm() {
        for wanted in ConsoleUse::ALL {
            assert_eq!(ConsoleUse::of_path(&wanted.path("ns", "web")), Some(("ns", "web", wanted)));
        }
        for wrong in [
            "",
            "/",
            "/v1/namespaces/ns/vms/web",
            "/v1/namespaces//vms/web/log",
            "/v1/namespaces/a/b/vms/web/log",
            "/v1/namespaces/ns/vms/web/log/",
            "/v1/namespaces/ns/vms/web/screen",
        ] {
            assert_eq!(ConsoleUse::of_path(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_query_names_one_serial_port_and_none_is_the_first() {
        let ports = [None, Some("port=1"), Some("port=4")].map(serial_port_of);
        assert_eq!(ports, [Some(1), Some(1), Some(4)]);
        for wrong in ["", "port", "port=", "port=0", "port=5", "port=-1", "port=2&port=3", "x=2", "port=02x"]
        {
            assert_eq!(serial_port_of(Some(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn a_query_names_one_vsock_port_and_none_names_none() {
        let ports = ["port=1", "port=22", "port=4294967294"].map(|query| vsock_port_of(Some(query)));
        assert_eq!(ports, [Some(1), Some(22), Some(4_294_967_294)]);
        assert_eq!(vsock_port_of(None), None);
        for wrong in ["", "port=0", "port=4294967295", "port=-1", "port=22&address=10.0.0.2", "22"] {
            assert_eq!(vsock_port_of(Some(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn each_kind_of_use_is_a_right_of_its_own() {
        assert_eq!(ConsoleUse::Vnc.account(), "berth-console");
        assert_eq!((ConsoleUse::Exec.account(), ConsoleUse::File.account()), ("berth-exec", "berth-exec"));
        assert_eq!(ConsoleUse::PortForward.account(), "berth-port-forward");
        assert_eq!(ConsoleUse::Vsock.account(), "berth-vsock");
        assert!(ConsoleUse::ALL.iter().all(|each| VM_ACCOUNTS.contains(&each.account())));
        let others = [UPLOAD_ACCOUNT, DOWNLOAD_ACCOUNT, DISK_READ_ACCOUNT];
        assert!(!others.iter().any(|account| VM_ACCOUNTS.contains(account)));
        assert!(VM_ACCOUNTS.iter().chain(&others).all(|account| ACCOUNTS.contains(account)));
    }

    #[test]
    fn a_path_of_an_upload_names_one_image() {
        assert_eq!(of_upload_path(&upload_path("ns", "golden")), Some(("ns", "golden")));
        for wrong in [
            "/v1/namespaces/ns/vms/web/upload",
            "/v1/namespaces/ns/images//upload",
            "/v1/namespaces/ns/images/a/b/upload",
            "/v1/namespaces/ns/images/a",
        ] {
            assert_eq!(of_upload_path(wrong), None, "{wrong}");
        }
        assert_eq!(ConsoleUse::of_path(&upload_path("ns", "golden")), None);
        assert_eq!(upload_audience("ns", "golden", "u1"), "image.berth.dev/ns/golden/u1");
    }

    #[test]
    fn a_path_of_a_copy_names_one_image_and_is_no_upload() {
        assert_eq!(of_copy_path(&copy_path("ns", "golden")), Some(("ns", "golden")));
        for wrong in [
            "/v1/namespaces/ns/images//file",
            "/v1/namespaces/ns/images/a/b/file",
            "/v1/namespaces/ns/vms/a/file",
        ] {
            assert_eq!(of_copy_path(wrong), None, "{wrong}");
        }
        assert_eq!(
            (of_upload_path(&copy_path("ns", "a")), of_copy_path(&upload_path("ns", "a"))),
            (None, None)
        );
        let audience = copy_audience("ns", "golden", "u1");
        assert_ne!(audience, upload_audience("ns", "golden", "u1"));
        assert_eq!(further_copy_audience(&audience, "h2"), format!("{audience}/h2"));
        assert!(!ACCOUNTS.contains(&COPY_ACCOUNT), "the role of editors has no right to its tokens");
    }

    #[test]
    fn a_path_of_a_download_names_one_image_and_is_neither_an_upload_nor_a_copy() {
        let path = download_path("ns", "golden");
        assert_eq!(of_download_path(&path), Some(("ns", "golden")));
        assert_eq!((of_upload_path(&path), of_copy_path(&path)), (None, None));
        for wrong in [
            "/v1/namespaces/ns/images//download",
            "/v1/namespaces/ns/images/a/b/download",
            "/v1/namespaces/ns/vms/a/download",
            "/v1/namespaces/ns/images/a/file",
        ] {
            assert_eq!(of_download_path(wrong), None, "{wrong}");
        }
        let audience = download_audience("ns", "golden", "u1");
        assert_eq!(audience, "image-download.berth.dev/ns/golden/u1");
        assert!(audience != copy_audience("ns", "golden", "u1"));
        assert!(audience != upload_audience("ns", "golden", "u1"));
    }

    #[test]
    fn a_ticket_is_for_one_use_of_one_vm_of_one_uid() {
        assert_eq!(ConsoleUse::Console.audience("ns", "web", "u1"), "console.berth.dev/ns/web/u1");
        assert_ne!(
            ConsoleUse::Log.audience("ns", "web", "u1"),
            ConsoleUse::Console.audience("ns", "web", "u1")
        );
    }
}
