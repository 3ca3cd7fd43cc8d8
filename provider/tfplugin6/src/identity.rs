//! What identifies a resource: a small flat object beside its state (Terraform 1.12 and later).

use crate::ty::Type;

/// The shape of an identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdentitySchema {
    /// Raised when an identity of the version before cannot be read with this one.
    pub version: i64,
    /// The attributes.
    pub attributes: Vec<IdentityAttribute>,
}

/// One attribute of an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityAttribute {
    /// Its name.
    pub name: String,
    /// Its type: `bool`, `number`, `string`, or a list of one of them.
    pub ty: Type,
    /// Whether an import must say it; if not, it may.
    pub required_for_import: bool,
    /// What it is.
    pub description: String,
}

impl IdentityAttribute {
    /// A string that an import must say.
    #[must_use]
    pub fn required(name: impl Into<String>, description: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ty: Type::String,
            required_for_import: true,
            description: description.into(),
        }
    }

    /// A string that an import may say.
    #[must_use]
    pub fn optional(name: impl Into<String>, description: impl Into<String>) -> Self {
        Self { required_for_import: false, ..Self::required(name, description) }
    }
}

impl IdentitySchema {
    /// An identity of version 0.
    #[must_use]
    pub const fn new(attributes: Vec<IdentityAttribute>) -> Self {
        Self { version: 0, attributes }
    }

    /// The type of an identity.
    #[must_use]
    pub fn ty(&self) -> Type {
        Type::object(self.attributes.iter().map(|attribute| (attribute.name.clone(), attribute.ty.clone())))
    }
}
