//! The user at the other end of a connection on the loopback interface.
//!
//! A port that `berth vnc` or `berth port-forward` serves has no password, and every user of this machine can connect to it.
//! Only the user of this process, and root, may.

use std::net::{SocketAddr, SocketAddrV4};

use anyhow::Context;
use nix::unistd::geteuid;
use tokio::net::TcpStream;

/// The kernel's table of TCP connections over IPv4, with the user of each (proc_pid_net(5)).
const CONNECTIONS: &str = "/proc/net/tcp";
/// The place of a socket's inode in a line of the table.
const INODE: usize = 9;

/// Returns whether the client is this process's user, or root. A client that has closed its end already is neither.
///
/// *Errors:* the kernel's table cannot be read.
pub(in crate::commands) fn may_connect(client: &TcpStream) -> anyhow::Result<bool> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) =
        (client.peer_addr().context("its address")?, client.local_addr().context("its address")?)
    else {
        return Ok(false);
    };
    let table = std::fs::read_to_string(CONNECTIONS).with_context(|| format!("reading {CONNECTIONS}"))?;
    let user = user_of(&table, from, to);
    Ok(user.is_some_and(|user| user == 0 || user == geteuid().as_raw()))
}

/// Returns the user of the socket that is connected from one address to the other. None: a program has it open no more. The kernel lists
/// the rest of a closed socket as one of root, without an inode.
fn user_of(table: &str, from: SocketAddrV4, to: SocketAddrV4) -> Option<u32> {
    let (from, to) = (in_table(from), in_table(to));
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_open = fields.get(INODE).is_some_and(|inode| *inode != "0");
        let is_it = fields.get(1) == Some(&from.as_str()) && fields.get(2) == Some(&to.as_str());
        (is_it && is_open).then(|| fields.get(7)?.parse().ok()).flatten()
    })
}

/// The kernel prints an address as a number in the machine's order of bytes.
fn in_table(address: SocketAddrV4) -> String {
    format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tokio::net::TcpListener;

    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:170C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 26 1 0 100 0 0 10 0
   1: 0100007F:170C 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 27 1 0 20 4 30 10 -1
   2: 0100007F:D431 0100007F:170C 01 00000000:00000000 00:00000000 00000000  1000        0 28 1 0 20 4 30 10 -1
   3: 0100007F:D432 0100007F:170C 05 00000000:00000000 03:00000AE1 00000000     0        0 0 3 0
";

    #[test]
    fn the_user_is_that_of_the_clients_end() {
        let address = |port| SocketAddrV4::new([127, 0, 0, 1].into(), port);
        assert_eq!(user_of(TABLE, address(54321), address(5900)), Some(1000));
        assert_eq!(
            user_of(TABLE, address(54322), address(5900)),
            None,
            "closed: the kernel lists it as one of root"
        );
        assert_eq!(user_of(TABLE, address(54323), address(5900)), None);
        assert_eq!(user_of("", address(1), address(2)), None);
    }

    #[tokio::test]
    async fn ones_own_connection_is_found_in_the_kernels_table() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let _client =
            TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
        let (accepted, _) = listener.accept().await.expect("accepted");
        assert!(may_connect(&accepted).expect("readable"));
    }

    #[tokio::test]
    async fn a_client_that_has_closed_its_end_is_of_no_user() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut client =
            std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        client.write_all(b"for the guest").expect("room");
        drop(client);
        let (accepted, _) = listener.accept().await.expect("accepted");
        assert!(!may_connect(&accepted).expect("readable"));
    }
}
