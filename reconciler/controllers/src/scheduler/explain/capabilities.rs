//! Why a VM waits for a host with a capability that none has.

use berth_api::Reason;

use crate::cache::capacity::Candidate;
use crate::scheduler::Request;

const NO_VSOCK: &str = "no host that it may run on has vsock devices: load the module there (modprobe vhost_vsock), or leave vsock out";
const NO_WIREGUARD: &str = "no host that it may run on has WireGuard, which a network with encryption needs: install wireguard-tools there \
                            (status.wireguard of the Hosts has the details), or use another network";

/// Returns why none of these hosts can give it a vsock device, or encrypt the packets of its networks.
pub(super) fn never<'a>(
    request: &Request,
    eligible: impl Iterator<Item = &'a Candidate> + Clone,
) -> Option<(Reason, String)> {
    eligible.clone().next()?;
    // A host that has not reported may have everything.
    let any = |has: fn(&Candidate) -> bool| eligible.clone().any(|c| c.allocatable_cpus == 0 || has(c));
    if request.vsock && !any(|c| c.vsock) {
        return Some((Reason::NoHostWithVsock, NO_VSOCK.to_owned()));
    }
    if request.wireguard && !any(|c| c.wireguard) {
        return Some((Reason::NotSupported, NO_WIREGUARD.to_owned()));
    }
    None
}
