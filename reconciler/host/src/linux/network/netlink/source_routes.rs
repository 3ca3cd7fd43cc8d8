//! Messages about routes of the packets of one source address: a rule, and a table of its own.

use std::net::{IpAddr, Ipv4Addr};

use futures::TryStreamExt;
use ipnet::Ipv4Net;
use rtnetlink::packet_route::route::RouteScope;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::{IpVersion, RouteMessageBuilder};

use super::{Link, Netlink, added, errno, on};
use crate::SystemError;

/// Before the rule of the main table.
const PRIORITY: u32 = 9_800;

impl Netlink {
    /// Has the packets from an address to a range leave by the link. `table`: of this link alone.
    pub(in super::super) async fn ensure_source_route(
        &self,
        link: &Link,
        table: u32,
        (from, to): (Ipv4Addr, Ipv4Net),
    ) -> Result<(), SystemError> {
        let message = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(to.network(), to.prefix_len())
            .output_interface(link.index)
            .table_id(table)
            .scope(RouteScope::Link)
            .build();
        let request = self.handle.route().add(message).replace();
        request.execute().await.map_err(on("add a route by", &link.name))?;
        if self.remove_source_rules(table, Some(from)).await? {
            return Ok(());
        }
        let rule = self.handle.rule().add().v4().source_prefix(from, 32).table_id(table);
        let rule = rule.priority(PRIORITY).action(RuleAction::ToTable);
        added(rule.execute().await, "add a rule of routes for", &from.to_string())
    }

    /// Removes the rules that lead to a table, except for the one of an address. Returns whether that is there.
    pub(in super::super) async fn remove_source_rules(
        &self,
        table: u32,
        keep: Option<Ipv4Addr>,
    ) -> Result<bool, SystemError> {
        let found: Result<Vec<RuleMessage>, _> =
            self.handle.rule().get(IpVersion::V4).execute().try_collect().await;
        let all = match found {
            Ok(all) => all,
            // A kernel without tables of routes has no rules.
            Err(error) if errno(&error) == Some(libc::EOPNOTSUPP) => Vec::new(),
            Err(error) => return Err(on("list", "rules of routes")(error)),
        };
        let mut is_there = false;
        for rule in all.into_iter().filter(|rule| rule.attributes.contains(&RuleAttribute::Table(table))) {
            let is_of = |from: Ipv4Addr| rule.attributes.contains(&RuleAttribute::Source(IpAddr::V4(from)));
            if !is_there && keep.is_some_and(is_of) {
                is_there = true;
                continue;
            }
            match self.handle.rule().del(rule).execute().await {
                Err(error) if errno(&error) != Some(libc::ENOENT) => {
                    return Err(on("remove", "a rule of routes")(error));
                }
                _ => {}
            }
        }
        Ok(is_there)
    }
}
