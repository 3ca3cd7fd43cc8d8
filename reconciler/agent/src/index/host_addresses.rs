//! The addresses of all hosts of the site, as listed by the controllers.
//!
//! A list that is deleted or cannot be read changes nothing: the last one read stays in force.

use std::net::IpAddr;

use berth_api::host_addresses::from_data;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::Event;

/// The last list read; see the module.
#[derive(Debug, Default)]
pub(crate) struct HostAddresses {
    listed: Option<Vec<IpAddr>>,
    synced: bool,
}

impl HostAddresses {
    /// Returns the list as last read; `None` before the first.
    pub(crate) fn listed(&self) -> Option<&[IpAddr]> {
        self.listed.as_deref()
    }

    /// Whether the list has been requested from the control plane.
    pub(crate) fn is_synced(&self) -> bool {
        self.synced
    }

    /// Records that the control plane denies access to the list.
    pub(crate) fn set_unreadable(&mut self) {
        self.synced = true;
    }

    /// Applies a watch event. Returns whether the list has changed.
    pub(crate) fn apply(&mut self, event: Event<ConfigMap>) -> bool {
        match event {
            Event::Init | Event::Delete(_) => false,
            Event::InitDone => {
                self.synced = true;
                false
            }
            Event::InitApply(map) | Event::Apply(map) => {
                let Some(listed) = map.data.as_ref().and_then(from_data) else {
                    tracing::warn!(
                        "the list of the hosts' addresses cannot be read: the last one stays in force"
                    );
                    return false;
                };
                let before = self.listed.replace(listed);
                before != self.listed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_api::host_addresses::to_data;

    use super::*;

    #[test]
    fn a_list_stays_in_force_when_it_is_lost_or_spoiled() {
        let map = |last: u8| ConfigMap {
            data: Some(to_data([IpAddr::from([192, 0, 2, last])].into_iter())),
            ..ConfigMap::default()
        };
        let mut addresses = HostAddresses::default();
        assert!(!addresses.apply(Event::Init) && !addresses.apply(Event::InitDone));
        assert_eq!((addresses.listed(), addresses.is_synced()), (None, true), "there is none yet");
        assert!(addresses.apply(Event::Apply(map(1))));
        assert!(!addresses.apply(Event::Apply(map(1))), "the same again");
        let listed = [IpAddr::from([192, 0, 2, 1])];
        for lost in [Event::Delete(map(1)), Event::Apply(ConfigMap::default()), Event::Init, Event::InitDone]
        {
            assert!(!addresses.apply(lost));
            assert_eq!(addresses.listed(), Some(&listed[..]));
        }
        assert!(addresses.apply(Event::Apply(map(2))));
    }
}
