//! Notices, by the kernel's messages about interfaces, when this host may no longer answer for announced IPv6 addresses: the kernel
//! forgets the answers of an interface that goes down or loses its carrier, and a program that configures the interface may turn them
//! off.

use std::fmt;
use std::io;
use std::time::Duration;

use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};

use super::Result;
use super::netlink::network;

/// The multicast groups of messages about interfaces (`RTNLGRP_LINK`, 1) and of their IPv6 settings (`RTNLGRP_IPV6_NETCONF`, 25), as
/// bits.
const GROUPS: u32 = 1 | (1 << 24);
/// After a message, the time in which its program may send more.
const PATIENCE: Duration = Duration::from_millis(100);
/// The messages that count as one change at most.
const MOST: usize = 1024;

/// The messages of the kernel. One receiver, which sees all messages since it was opened.
pub(super) struct Changes {
    socket: TokioSocket,
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").finish_non_exhaustive()
    }
}

impl Changes {
    pub(super) fn open() -> Result<Self> {
        let open = || {
            let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
            socket.socket_mut().bind(&SocketAddr::new(0, GROUPS))?;
            Ok(socket)
        };
        let socket =
            open().map_err(|e: io::Error| network("listen to", "network interfaces", e.to_string()))?;
        Ok(Self { socket })
    }

    /// Returns once an interface has changed, and its changes have ended or go on for long.
    pub(super) async fn next(&self) {
        // After an error messages were lost, so that there was a change too.
        drop(self.socket.recv_from_full().await);
        tokio::time::sleep(PATIENCE).await;
        for _ in 0..MOST {
            if tokio::time::timeout(Duration::ZERO, self.socket.recv_from_full()).await.is_err() {
                return;
            }
        }
    }
}
