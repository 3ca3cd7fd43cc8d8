//! The names of machines in a private network.

use std::fmt;
use std::net::IpAddr;

/// The names that the name server of a private network knows.
#[derive(Clone, PartialEq, Eq)]
pub struct Names {
    /// The domain of the names: they are complete, so that no other name server is asked about it.
    pub domain: String,
    /// Whether guests look up short names in the domain.
    pub is_searched: bool,
    pub records: Vec<NameRecord>,
}

/// An address of a machine, which its name leads to and which leads to its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameRecord {
    /// Without the domain: one label or several.
    pub name: String,
    pub address: IpAddr,
}

/// Without the records: a network may have thousands.
impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("domain", &self.domain).field("records", &self.records.len()).finish()
    }
}
