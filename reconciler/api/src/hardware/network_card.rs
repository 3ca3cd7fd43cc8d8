//! The models of network cards.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The model of a network card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NicModel {
    #[default]
    Virtio,
    E1000,
    E1000e,
    Rtl8139,
}

impl NicModel {
    /// The model with this name, the one that QEMU and libvirt give it too. None if berth does not have it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Virtio, Self::E1000, Self::E1000e, Self::Rtl8139]
            .into_iter()
            .find(|model| model.as_str() == name)
    }

    /// The value of the attribute.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Virtio => "virtio",
            Self::E1000 => "e1000",
            Self::E1000e => "e1000e",
            Self::Rtl8139 => "rtl8139",
        }
    }
}
