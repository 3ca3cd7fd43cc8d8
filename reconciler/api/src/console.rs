//! Tickets for the consoles of VMs.
//!
//! A ticket is a token of the ServiceAccount [`ACCOUNT`] in the VM's namespace, requested for the audience of one VM and one
//! use. The right to request such tokens (`create` on `serviceaccounts/token` with this name) is therefore the right to
//! open the consoles of the namespace. A ticket opens one connection, within [`TICKET_LIFE`] of its issue. It is stored
//! nowhere, and no role gives the account a right on the control plane.

use std::time::Duration;

/// The ServiceAccount whose tokens are tickets, in each namespace with VMs.
pub const ACCOUNT: &str = "berth-console";
/// How long after its issue a ticket is accepted.
pub const TICKET_LIFE: Duration = Duration::from_secs(60);
/// The name of the protocol to which a client upgrades its HTTP/1.1 request: plain bytes in both directions.
pub const PROTOCOL: &str = "berth-console";

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
}

impl ConsoleUse {
    const ALL: [Self; 5] = [Self::Console, Self::Log, Self::Follow, Self::Vnc, Self::Usage];

    /// Its name, in audiences and paths.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Console => "console",
            Self::Log => "log",
            Self::Follow => "follow",
            Self::Vnc => "vnc",
            Self::Usage => "usage",
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
        let is_name = |name: &str| !name.is_empty() && name.len() <= 253 && !name.contains('/');
        (is_name(namespace) && is_name(vm)).then_some((namespace, vm, found))
    }
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
    fn a_ticket_is_for_one_use_of_one_vm_of_one_uid() {
        assert_eq!(ConsoleUse::Console.audience("ns", "web", "u1"), "console.berth.dev/ns/web/u1");
        assert_ne!(
            ConsoleUse::Log.audience("ns", "web", "u1"),
            ConsoleUse::Console.audience("ns", "web", "u1")
        );
    }
}
