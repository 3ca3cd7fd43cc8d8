//! Options of the controllers: the scheduler, and the Networks of tenants.

use berth_controllers::{self as controllers, PlacementPolicy, TenantNetworks};
use clap::Args;
use ipnet::Ipv4Net;

/// Options of the scheduler.
#[derive(Args, Clone, Copy, Debug)]
pub struct PlacementOptions {
    /// Which host a VM is placed on when several can take it. Placement groups and preferred labels take precedence.
    #[arg(long, env = "BERTH_PLACEMENT", value_enum, default_value_t)]
    pub placement: Placement,
}

/// [`PlacementPolicy`] as an option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Placement {
    /// The host with the largest share of free capacity, which balances the load.
    #[default]
    Balance,
    /// The host with the smallest share, so that hosts fill one after the other.
    Pack,
}

impl From<Placement> for PlacementPolicy {
    fn from(placement: Placement) -> Self {
        match placement {
            Placement::Balance => Self::Balance,
            Placement::Pack => Self::Pack,
        }
    }
}

/// Limits of tenants' Networks: those outside of the administrator's namespace `berth-shared`.
#[derive(Args, Clone, Debug)]
pub struct TenantOptions {
    /// The range of the Networks `default`. Each namespace gets one with a part of this range when a VM first needs it. If
    /// `berth-shared` has a Network `default`, namespaces without their own use that one instead.
    #[arg(long, env = "BERTH_PRIVATE_CIDR", value_name = "CIDR", default_value = controllers::DEFAULT_RANGE)]
    pub private_cidr: Ipv4Net,
    /// The prefix length of these parts. 20 gives a namespace addresses for 4,093 VMs.
    #[arg(long, default_value_t = controllers::DEFAULT_PREFIX, value_name = "LENGTH", value_parser = clap::value_parser!(u8).range(8..=29))]
    pub private_prefix: u8,
    /// The ranges allowed for tenants' Networks. Default: any range that no other Network and no host uses.
    #[arg(long, env = "BERTH_TENANT_RANGES", value_name = "CIDR", value_delimiter = ',')]
    pub tenant_ranges: Vec<Ipv4Net>,
    /// The shortest prefix length of a tenant's Network: 16 allows 10.1.0.0/16 and nothing larger.
    #[arg(long, default_value_t = 16, value_name = "LENGTH", value_parser = clap::value_parser!(u8).range(8..=29))]
    pub tenant_prefix: u8,
    /// The maximum number of Networks in a namespace.
    #[arg(long, default_value_t = 32, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(0..=4096))]
    pub tenant_networks: u16,
}

impl TenantOptions {
    /// The options for the controllers.
    ///
    /// *Errors:* the parts of `--private-cidr` would be larger than the whole.
    pub fn networks(&self) -> anyhow::Result<TenantNetworks> {
        let whole = self.private_cidr.trunc();
        anyhow::ensure!(
            whole.prefix_len() <= self.private_prefix,
            "--private-cidr {whole} has no part with --private-prefix {}: give a prefix of {} or longer",
            self.private_prefix,
            whole.prefix_len(),
        );
        Ok(TenantNetworks {
            ranges: self.tenant_ranges.clone(),
            shortest_prefix: self.tenant_prefix,
            per_namespace: self.tenant_networks.into(),
            default_range: whole,
            default_prefix: self.private_prefix,
        })
    }
}
