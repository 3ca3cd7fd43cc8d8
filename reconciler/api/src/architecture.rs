//! The architecture of a VM's processors. Pure.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The architecture of a VM's processors, by the names of `uname -m`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Architecture {
    #[default]
    #[serde(rename = "x86_64")]
    X86_64,
    #[serde(rename = "aarch64")]
    Aarch64,
}

impl Architecture {
    /// The value of the attribute.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// The architecture that a text of an Image stands for, also by the names of Debian and Kubernetes. None: one that berth does not know.
    #[must_use]
    pub fn of_text(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "x86_64" | "x86-64" | "amd64" | "x64" => Some(Self::X86_64),
            "aarch64" | "arm64" => Some(Self::Aarch64),
            _ => None,
        }
    }

    /// Whether a machine type, with its version, is of this architecture.
    #[must_use]
    pub fn has_machine_type(self, machine_type: &str) -> bool {
        machine_type.starts_with("virt-") == (self == Self::Aarch64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_name_an_architecture_as_distributions_do() {
        for text in ["x86_64", "amd64", "AMD64", "x86-64", "x64"] {
            assert_eq!(Architecture::of_text(text), Some(Architecture::X86_64), "{text}");
        }
        for text in ["aarch64", "arm64", "ARM64"] {
            assert_eq!(Architecture::of_text(text), Some(Architecture::Aarch64), "{text}");
        }
        for text in ["", "riscv64", "arm", "i686"] {
            assert_eq!(Architecture::of_text(text), None, "{text}");
        }
    }
}
