//! The Terraform client: its capabilities, and the deferred response that only some clients accept.

/// The capabilities of the Terraform client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCapabilities {
    /// A response may be [`Deferred`].
    pub deferral_allowed: bool,
    /// The configuration may hold write-only values.
    pub write_only_attributes_allowed: bool,
    /// The private bytes of a plan are kept when it is planned again.
    pub store_planned_private: bool,
    /// Blocks may be computed.
    pub computed_blocks_allowed: bool,
}

/// The reason for a deferral. Only for a client that allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deferred {
    /// The resource's configuration is unknown.
    ResourceConfigUnknown,
    /// The provider's configuration is unknown.
    ProviderConfigUnknown,
    /// A prerequisite does not exist yet.
    AbsentPrerequisite,
}
