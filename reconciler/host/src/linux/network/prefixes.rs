//! The routes of public prefixes to guests. Those of berth have a mark: routes of other programs stay as they are.

use super::Result;
use super::netlink::{Netlink, PrefixRoute};
use crate::RoutedPrefix;

/// Makes exactly these routes. A prefix that leads to another guest by now has no route in between.
pub(super) async fn only(netlink: &Netlink, wanted: &[RoutedPrefix]) -> Result<()> {
    let mut routes = Vec::new();
    for RoutedPrefix { prefix, via, bridge } in wanted {
        let link = netlink.expect(bridge).await?;
        routes.push(PrefixRoute { to: *prefix, via: *via, link: link.index });
    }
    let there = netlink.prefix_routes().await?;
    for route in there.iter().filter(|route| !routes.contains(route)) {
        netlink.remove_prefix_route(*route).await?;
    }
    for route in routes.into_iter().filter(|route| !there.contains(route)) {
        netlink.add_prefix_route(route).await?;
    }
    Ok(())
}
