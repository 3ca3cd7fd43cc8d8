//! Resource identities: a small flat object beside the state that identifies the resource (Terraform 1.12 and later).

use crate::ty::Type;

/// The schema of an identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdentitySchema {
    /// Raised when an identity of the previous version cannot be read with this schema.
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
    /// Whether an import must specify it; otherwise it is optional.
    pub required_for_import: bool,
    /// The description.
    pub description: String,
}

impl IdentityAttribute {
    /// A string that is required for import.
    #[must_use]
    pub fn required(name: impl Into<String>, description: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ty: Type::String,
            required_for_import: true,
            description: description.into(),
        }
    }

    /// A string that is optional for import.
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
