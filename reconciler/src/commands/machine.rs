//! One agent a machine: two would fight over its bridges, its firewall and its guests' addresses.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::OnceLock,
};

use anyhow::{Context, bail};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// An abstract socket belongs to a network namespace, as do the bridges and the firewall it speaks for, and it goes with its
/// process however that ends.
const NAME: &str = "berth-agent";

/// Makes this process the one whose agent manages this machine, until it ends.
///
/// *Errors:* another one does.
pub(super) fn claim() -> anyhow::Result<()> {
    static CLAIM: OnceLock<UnixListener> = OnceLock::new();
    let listener = listen(NAME)?;
    // A second claim by this very process has been refused by the kernel already.
    let _ = CLAIM.set(listener);
    Ok(())
}

fn listen(name: &str) -> anyhow::Result<UnixListener> {
    let address = SocketAddr::from_abstract_name(name).context("naming this machine's claim")?;
    match UnixListener::bind_addr(&address) {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let who = holder(&address).map(|pid| format!(" (process {pid})")).unwrap_or_default();
            bail!(
                "another berth{who} manages the VMs and networks of this machine already: one agent a machine \
                 (stop it first, or start this one with --no-agent if it is to be a control plane only)"
            )
        }
        Err(error) => Err(error).context("claiming this machine"),
    }
}

/// Who listens there. 0 is a process of a namespace that we cannot see.
fn holder(address: &SocketAddr) -> Option<i32> {
    let stream = UnixStream::connect_addr(address).ok()?;
    let credentials = getsockopt(&stream, PeerCredentials).ok()?;
    Some(credentials.pid()).filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_claim_names_who_has_the_first_and_a_claim_ends_with_its_holder() {
        let name = format!("berth-test-{}", std::process::id());
        let first = listen(&name).expect("nobody has it");
        let error = listen(&name).expect_err("it is taken").to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        listen(&name).expect("it is free again");
    }
}
