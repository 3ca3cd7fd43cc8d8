//! The routes of public prefixes to guests. Those of berth have a mark: routes of other programs stay as they are.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::Result;
use super::netlink::{Link, Netlink, PrefixRoute};
use crate::{NetworkConfig, RoutedPrefix};

/// The routes of public prefixes, as far as this process knows them.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    /// The bridges without such routes. A host may have very many routes: they are not listed for these.
    unrouted: Mutex<BTreeSet<String>>,
}

impl Prefixes {
    /// Makes exactly the routes of a network's prefixes.
    pub(super) async fn route(
        &self,
        netlink: &Netlink,
        bridge: &Link,
        network: &NetworkConfig,
    ) -> Result<()> {
        if network.prefixes.is_empty() && self.is_unrouted(&bridge.name) {
            return Ok(());
        }
        self.set_unrouted(&bridge.name, false);
        only(netlink, bridge, &network.prefixes).await?;
        self.set_unrouted(&bridge.name, network.prefixes.is_empty());
        Ok(())
    }

    fn is_unrouted(&self, bridge: &str) -> bool {
        self.unrouted.lock().unwrap_or_else(PoisonError::into_inner).contains(bridge)
    }

    fn set_unrouted(&self, bridge: &str, unrouted: bool) {
        let mut all = self.unrouted.lock().unwrap_or_else(PoisonError::into_inner);
        if unrouted {
            all.insert(bridge.to_owned());
        } else {
            all.remove(bridge);
        }
    }
}

async fn only(netlink: &Netlink, bridge: &Link, wanted: &[RoutedPrefix]) -> Result<()> {
    let route =
        |routed: &RoutedPrefix| PrefixRoute { to: routed.prefix, via: routed.via, link: bridge.index };
    let wanted: Vec<PrefixRoute> = wanted.iter().map(route).collect();
    let mut there = netlink.prefix_routes().await?;
    there.retain(|route| route.link == bridge.index);
    for route in there.iter().filter(|route| !wanted.contains(route)) {
        netlink.remove_prefix_route(*route).await?;
    }
    for route in wanted.into_iter().filter(|route| !there.contains(route)) {
        netlink.set_prefix_route(route).await?;
    }
    Ok(())
}
