//! Cancels downloads that no Image needs any more, backups and restores that no object needs, and refuses addresses that no image may come from.

use std::collections::BTreeSet;
use std::net::IpAddr;

use berth_api::NetworkHost;
use berth_host::ImageSource;
use ipnet::IpNet;

use crate::context::Context;
use crate::error::Error;
use crate::index::Tables;
use crate::key::ObjectName;
use crate::kinds::image::wanted_on;
use crate::kinds::{backup, disk};
use crate::moves;
use crate::pulls::Wanted;

/// Cancels the downloads that no Image needs any more and the work on repositories that no object needs, removes their remains, and passes on which addresses belong to
/// other hosts and to guests.
pub(super) async fn prune_downloads(ctx: &Context) -> Result<(), Error> {
    let wanted = || {
        let tables = ctx.index.read();
        let images = tables.images.all().filter_map(|(_, image)| wanted_on(ctx.host(), image));
        let backups = backup::wanted(&tables, ctx.host());
        let of_disks = disk::wanted(&tables).chain(moves::wanted(&tables));
        let of_disks = of_disks.chain(disk::wanted_copies(&tables, ctx.host()));
        let of_disks = of_disks.chain(disk::wanted_fills(&tables));
        images.chain(backups).chain(of_disks).collect::<BTreeSet<Wanted>>()
    };
    let bridged = ctx.networks.bridged();
    let refused = refused(&ctx.index.read(), &bridged);
    ctx.system.refuse_addresses(refused);
    ctx.pulls.keep_only(&wanted()).await;
    // Read again after the wait: an Image may have been created meanwhile.
    let wanted = wanted();
    let sources: BTreeSet<ImageSource> = wanted
        .into_iter()
        .filter_map(|wanted| match wanted {
            Wanted::Image(source) => Some(source),
            Wanted::Checksum(source) => source.computed_from(),
            _ => None,
        })
        .collect();
    Ok(ctx.system.forget_downloads(&sources).await?)
}

/// Returns the addresses of the hosts that networks span, and the ranges of the networks on this host. A bridged network has other machines
/// than guests, which images may come from. Ranges of other networks are not refused: a tenant could declare one to cut off all others from the images there.
fn refused(tables: &Tables, bridged: &[String]) -> BTreeSet<IpNet> {
    let statuses = tables.networks.all().filter_map(|(_, network)| network.status.as_ref());
    let addresses =
        |host: &NetworkHost| [host.address.parse::<IpAddr>().ok(), host.host_address().map(IpAddr::V4)];
    let hosts = statuses.flat_map(|status| &status.hosts).flat_map(addresses).flatten();
    let is_here = |name: &ObjectName| bridged.contains(&format!("{}/{}", name.namespace, name.name));
    let networks =
        tables.networks.all().filter(|(name, network)| is_here(name) && network.host_bridge().is_none());
    let ranges = networks.filter_map(|(_, network)| network.spec.cidr.parse::<IpNet>().ok());
    hosts.map(IpNet::from).chain(ranges).collect()
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    #[test]
    fn images_come_from_no_host_of_a_network_and_from_no_network_that_is_here() {
        let index = Index::default();
        for (name, cidr) in [("here", "198.51.100.0/24"), ("elsewhere", "203.0.113.0/24")] {
            let network = json!({
                "metadata": {"name": name, "namespace": "ns", "resourceVersion": "1"},
                "spec": {"cidr": cidr},
                "status": {"observedGeneration": 1, "hosts": [{"name": "h2", "address": "192.0.2.2"}]},
            });
            let network = serde_json::from_value(network).expect("a Network");
            index.apply::<berth_api::Network>(Event::Apply(network));
        }
        let refused = refused(&index.read(), &["ns/here".to_owned()]);
        let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
        assert_eq!(refused, ["192.0.2.2/32", "198.51.100.0/24"]);
    }
}
