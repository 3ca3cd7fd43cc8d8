//! Interfaces of WireGuard that the kernel itself serves.

use rtnetlink::LinkWireguard;

use super::{Netlink, Result, errno};

impl Netlink {
    pub(in super::super) async fn add_wireguard(&self, name: &str) -> Result<()> {
        self.add(name, LinkWireguard::new(name).build()).await
    }

    /// Whether the kernel has WireGuard, after it has loaded its module for it. Asks for an interface with an MTU that none can have, which
    /// makes none.
    pub(in super::super) async fn has_kernel_wireguard(&self) -> bool {
        let name = "btw-probe";
        let message = LinkWireguard::new(name).mtu(u32::MAX).build();
        match self.handle.link().add(message).execute().await {
            Err(error) => errno(&error) == Some(libc::EINVAL),
            // A kernel that does not look at the MTU.
            Ok(()) => {
                if let Ok(Some(link)) = self.link(name).await {
                    let _ = self.remove(&link).await;
                }
                true
            }
        }
    }
}
