//! Schemas of providers, resources and data sources.

pub(crate) mod conform;

use crate::{ty::Type, value::Value};

/// A versioned [`Block`]. The version determines the upgrade that an older state needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Schema {
    /// Raised when a state of the previous version cannot be read with this schema.
    pub version: i64,
    /// The attributes and blocks.
    pub block: Block,
}

/// Attributes and nested blocks: the body of a resource.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Block {
    /// `name = value`
    pub attributes: Vec<Attribute>,
    /// `name { … }`
    pub blocks: Vec<NestedBlock>,
    /// The description for the documentation, in Markdown.
    pub description: String,
    /// The deprecation message, if it is deprecated.
    pub deprecated: Option<String>,
}

/// `name = value`. Built as
/// `Attribute::new("cpus", Type::Number).optional().default(1).description("How many.")`.
#[derive(Debug, Clone, PartialEq)]
pub struct Attribute {
    /// The name in HCL.
    pub name: String,
    /// The kind of values it accepts.
    pub kind: AttributeKind,
    /// The description for the documentation, in Markdown.
    pub description: String,
    /// Must be configured.
    pub required: bool,
    /// May be configured.
    pub optional: bool,
    /// The provider sets the value when it is not configured.
    pub computed: bool,
    /// Never shown in a plan.
    pub sensitive: bool,
    /// Only in the configuration, never in a plan or state (Terraform 1.11 and later).
    pub write_only: bool,
    /// The deprecation message, if it is deprecated.
    pub deprecated: Option<String>,
    /// The planned value when it is not configured. See [`crate::plan`]; never on the wire.
    pub default: Option<Value>,
    /// Keeps its prior value through updates when it is not configured and has a value. See [`crate::plan`]; never on the
    /// wire.
    pub keeps_state: bool,
}

/// The kind of values an [`Attribute`] accepts.
#[derive(Debug, Clone, PartialEq)]
pub enum AttributeKind {
    /// Values of a type.
    Type(Type),
    /// Objects with attributes that have their own descriptions and rules.
    Nested(NestedAttribute),
}

/// One or many objects with attributes of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct NestedAttribute {
    /// Whether it is one object, or the kind of collection.
    pub nesting: Nesting,
    /// The attributes of each object.
    pub attributes: Vec<Attribute>,
    /// For a list: the attribute that identifies its objects, so that a value [`crate::plan`] keeps for an object follows the
    /// object when others are added or removed before it. None: the index identifies them. Never on the wire.
    pub key: Option<String>,
}

/// The collection of objects in a [`NestedAttribute`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nesting {
    /// One object.
    Single,
    /// Many, in order.
    List,
    /// Many, in no order.
    Set,
    /// Many, by name.
    Map,
}

/// `name { … }`
#[derive(Debug, Clone, PartialEq)]
pub struct NestedBlock {
    /// The name in HCL.
    pub name: String,
    /// The body.
    pub block: Block,
    /// The number of blocks and their kind of collection.
    pub nesting: BlockNesting,
    /// The minimum number of blocks.
    pub min_items: i64,
    /// The maximum number of blocks; 0 means no limit.
    pub max_items: i64,
}

/// The number of blocks of a [`NestedBlock`] and their kind of collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockNesting {
    /// None or one; null when there is none.
    Single,
    /// Many, in order; empty when there is none, never null.
    List,
    /// Many, in no order; empty when there is none, never null.
    Set,
    /// Many, by label; empty when there is none, never null.
    Map,
    /// Always one: an object of nulls when it is not written.
    Group,
}

impl Schema {
    /// A schema of version 0.
    #[must_use]
    pub fn new(attributes: Vec<Attribute>) -> Self {
        Self { version: 0, block: Block::new(attributes) }
    }

    /// Sets the nested blocks.
    #[must_use]
    pub fn blocks(mut self, blocks: Vec<NestedBlock>) -> Self {
        self.block.blocks = blocks;
        self
    }

    /// Sets the version.
    #[must_use]
    pub const fn version(mut self, version: i64) -> Self {
        self.version = version;
        self
    }

    /// Sets the description (Markdown).
    #[must_use]
    pub fn description(mut self, markdown: impl Into<String>) -> Self {
        self.block.description = markdown.into();
        self
    }

    /// The type of a state.
    #[must_use]
    pub fn ty(&self) -> Type {
        self.block.ty()
    }
}

impl Block {
    /// A body without nested blocks.
    #[must_use]
    pub fn new(attributes: Vec<Attribute>) -> Self {
        Self { attributes, ..Self::default() }
    }

    /// The type of the body's value.
    #[must_use]
    pub fn ty(&self) -> Type {
        let attributes = self.attributes.iter().map(|attribute| (attribute.name.clone(), attribute.ty()));
        let blocks = self.blocks.iter().map(|block| (block.name.clone(), block.ty()));
        Type::Object(attributes.chain(blocks).collect())
    }
}

impl Attribute {
    /// An attribute of a type. Follow with [`Self::required`], [`Self::optional`] or [`Self::computed`].
    #[must_use]
    pub fn new(name: impl Into<String>, ty: Type) -> Self {
        Self::of(name.into(), AttributeKind::Type(ty))
    }

    /// An attribute of type `string`.
    #[must_use]
    pub fn string(name: impl Into<String>) -> Self {
        Self::new(name, Type::String)
    }

    /// An attribute of type `number`.
    #[must_use]
    pub fn number(name: impl Into<String>) -> Self {
        Self::new(name, Type::Number)
    }

    /// An attribute of type `bool`.
    #[must_use]
    pub fn bool(name: impl Into<String>) -> Self {
        Self::new(name, Type::Bool)
    }

    /// A nested attribute.
    #[must_use]
    pub fn nested(name: impl Into<String>, nesting: Nesting, attributes: Vec<Self>) -> Self {
        Self::of(name.into(), AttributeKind::Nested(NestedAttribute { nesting, attributes, key: None }))
    }

    fn of(name: String, kind: AttributeKind) -> Self {
        Self {
            name,
            kind,
            description: String::new(),
            required: false,
            optional: false,
            computed: false,
            sensitive: false,
            write_only: false,
            deprecated: None,
            default: None,
            keeps_state: false,
        }
    }

    /// Makes it required: it must be configured.
    #[must_use]
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Makes it optional: it may be configured.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Makes it computed: the provider sets the value when it is not configured.
    #[must_use]
    pub const fn computed(mut self) -> Self {
        self.computed = true;
        self
    }

    /// Makes it sensitive: plans never show it.
    #[must_use]
    pub const fn sensitive(mut self) -> Self {
        self.sensitive = true;
        self
    }

    /// Makes it write-only: it is never in a plan or state.
    #[must_use]
    pub const fn write_only(mut self) -> Self {
        self.write_only = true;
        self
    }

    /// Sets the description (Markdown).
    #[must_use]
    pub fn description(mut self, markdown: impl Into<String>) -> Self {
        self.description = markdown.into();
        self
    }

    /// Sets the planned value when it is not configured. Makes the attribute optional and computed, as Terraform requires.
    #[must_use]
    pub fn default(mut self, value: impl Into<Value>) -> Self {
        self.default = Some(value.into());
        self.optional = true;
        self.computed = true;
        self
    }

    /// Keeps the value through updates: an identifier, or an address that is assigned once. Otherwise every update plans
    /// `(known after apply)`.
    #[must_use]
    pub const fn keeps_state(mut self) -> Self {
        self.keeps_state = true;
        self
    }

    /// Identifies the objects of this nested list by one of their attributes, not by their index.
    #[must_use]
    pub fn keyed_by(mut self, attribute: impl Into<String>) -> Self {
        if let AttributeKind::Nested(nested) = &mut self.kind {
            nested.key = Some(attribute.into());
        }
        self
    }

    /// The type of its values.
    #[must_use]
    pub fn ty(&self) -> Type {
        match &self.kind {
            AttributeKind::Type(ty) => ty.clone(),
            AttributeKind::Nested(nested) => nested.ty(),
        }
    }
}

impl NestedAttribute {
    /// The type of one object.
    #[must_use]
    pub fn element_ty(&self) -> Type {
        Type::object(self.attributes.iter().map(|attribute| (attribute.name.clone(), attribute.ty())))
    }

    /// The type of the whole attribute.
    #[must_use]
    pub fn ty(&self) -> Type {
        let element = self.element_ty();
        match self.nesting {
            Nesting::Single => element,
            Nesting::List => Type::list(element),
            Nesting::Set => Type::set(element),
            Nesting::Map => Type::map(element),
        }
    }
}

impl NestedBlock {
    /// A block that may occur once, such as `timeouts { … }`.
    #[must_use]
    pub fn single(name: impl Into<String>, attributes: Vec<Attribute>) -> Self {
        Self::new(name, BlockNesting::Single, Block::new(attributes))
    }

    /// A block.
    #[must_use]
    pub fn new(name: impl Into<String>, nesting: BlockNesting, block: Block) -> Self {
        Self { name: name.into(), block, nesting, min_items: 0, max_items: 0 }
    }

    /// The type of its value.
    #[must_use]
    pub fn ty(&self) -> Type {
        let body = self.block.ty();
        match self.nesting {
            BlockNesting::Single | BlockNesting::Group => body,
            // Bodies of different types do not fit in a list: Terraform's own rule for `any` inside a block.
            BlockNesting::List | BlockNesting::Map if body.has_dynamic() => Type::Dynamic,
            BlockNesting::List => Type::list(body),
            BlockNesting::Set => Type::set(body),
            BlockNesting::Map => Type::map(body),
        }
    }
}
