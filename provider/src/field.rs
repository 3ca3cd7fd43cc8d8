//! What a resource is made of: one table a kind, from which the schema, the mapping to and from the custom resource,
//! the plan and the documentation are all derived.
//!
//! Must not know Terraform's requests, nor any client.

use std::borrow::Cow;

use serde_json::Value as Json;
use tfplugin6::{Attribute, Type, Value, schema::Nesting};

use crate::form::Form;

/// One attribute of a resource.
#[derive(Debug, Clone)]
pub struct Field {
    /// Its name in HCL.
    pub name: &'static str,
    /// Where its value stands in the custom resource.
    pub source: Source,
    /// What values it takes.
    pub shape: Shape,
    /// Who gives it a value.
    pub presence: Presence,
    /// What a change of it does.
    pub effect: Effect,
    /// Never shown in a plan.
    pub sensitive: bool,
    /// Never in a plan or state.
    pub write_only: bool,
    /// For what is observed: the attributes whose change may change it.
    pub follows: &'static [&'static str],
    /// The description; empty until taken from the custom resource's definition.
    pub text: Cow<'static, str>,
    /// The words it takes, when it takes only some.
    pub one_of: Vec<String>,
    /// The integers it takes.
    pub range: Option<(i64, i64)>,
    /// The longest text or list it takes.
    pub max_length: Option<u64>,
}

/// Where a field's value stands in the custom resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Declared: under this key of `spec`, or of the object that holds it.
    Spec(Cow<'static, str>),
    /// Reported: at this JSON pointer from the object's root.
    Observed(&'static str),
    /// Only in Terraform.
    Local,
}

/// What values a field takes.
#[derive(Debug, Clone)]
pub enum Shape {
    /// A text of a form.
    Text(Form),
    /// A whole number.
    Integer,
    /// True or false.
    Bool,
    /// Texts by name.
    TextMap,
    /// Texts in order.
    TextList(Form),
    /// An object of fields.
    Object(Vec<Field>),
    /// Objects of fields, keyed by the one called `name`.
    Keyed(Vec<Field>),
}

/// Who gives a field its value.
#[derive(Debug, Clone, PartialEq)]
pub enum Presence {
    /// Must be written.
    Required,
    /// May be written; null if not.
    Optional,
    /// May be written; this if not.
    Default(Value),
    /// May be written; if not, this prefix and the place in the list.
    Numbered(&'static str),
    /// May be written; decided once by the control plane and kept if not.
    Kept,
    /// Decided by the control plane.
    Computed,
}

/// What a change of an attribute does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Takes effect at once, nothing restarts.
    Live,
    /// Takes effect when the VM is next started.
    PowerCycle,
    /// Restarts the VM.
    Reboot,
    /// Destroys the resource and makes another.
    Replace,
    /// As `bootstrap.user_data_policy` says.
    Policy,
    /// Only tells the provider what to do.
    Local,
}

impl Effect {
    /// The word in the documentation.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::PowerCycle => "next power cycle",
            Self::Reboot => "reboot",
            Self::Replace => "replace",
            Self::Policy => "as `user_data_policy` says",
            Self::Local => "provider only",
        }
    }
}

impl Field {
    fn new(name: &'static str, source: Source, shape: Shape, presence: Presence, effect: Effect) -> Self {
        Self {
            name,
            source,
            shape,
            presence,
            effect,
            sensitive: false,
            write_only: false,
            follows: &[],
            text: Cow::Borrowed(""),
            one_of: Vec::new(),
            range: None,
            max_length: None,
        }
    }

    /// Something declared in the custom resource, under its own name in camel case. Optional and live until said
    /// otherwise.
    #[must_use]
    pub fn spec(name: &'static str, shape: Shape) -> Self {
        Self::new(name, Source::Spec(camel(name)), shape, Presence::Optional, Effect::Live)
    }

    /// Something the control plane reports, at a JSON pointer from the object's root.
    #[must_use]
    pub fn observed(name: &'static str, pointer: &'static str, text: &'static str) -> Self {
        let field = Self::new(
            name,
            Source::Observed(pointer),
            Shape::Text(Form::Any),
            Presence::Computed,
            Effect::Live,
        );
        field.text(text)
    }

    /// Something that tells the provider what to do.
    #[must_use]
    pub fn local(name: &'static str, shape: Shape, text: &'static str) -> Self {
        Self::new(name, Source::Local, shape, Presence::Optional, Effect::Local).text(text)
    }

    /// Under another key.
    #[must_use]
    pub fn key(mut self, key: &'static str) -> Self {
        self.source = Source::Spec(Cow::Borrowed(key));
        self
    }

    /// Must be written.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.presence = Presence::Required;
        self
    }

    /// This when it is not written.
    #[must_use]
    pub fn default(mut self, value: impl Into<Value>) -> Self {
        self.presence = Presence::Default(value.into());
        self
    }

    /// Another presence.
    #[must_use]
    pub fn presence(mut self, presence: Presence) -> Self {
        self.presence = presence;
        self
    }

    /// Another effect.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// A description of its own.
    #[must_use]
    pub fn text(mut self, text: &'static str) -> Self {
        self.text = Cow::Borrowed(text);
        self
    }

    /// The words it takes.
    #[must_use]
    pub fn one_of(mut self, words: &[&str]) -> Self {
        self.one_of = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// The attributes whose change may change it.
    #[must_use]
    pub fn follows(mut self, attributes: &'static [&'static str]) -> Self {
        self.follows = attributes;
        self
    }

    /// Never shown.
    #[must_use]
    pub fn sensitive(mut self) -> Self {
        self.sensitive = true;
        self
    }

    /// Never in a plan or state.
    #[must_use]
    pub fn write_only(mut self) -> Self {
        self.write_only = true;
        self
    }

    /// The fields of the object, or of each object, it holds.
    #[must_use]
    pub fn children(&self) -> &[Field] {
        match &self.shape {
            Shape::Object(fields) | Shape::Keyed(fields) => fields,
            _ => &[],
        }
    }

    /// Whether a user may write it.
    #[must_use]
    pub fn is_input(&self) -> bool {
        self.presence != Presence::Computed
    }

    /// The attribute Terraform is told of.
    #[must_use]
    pub fn attribute(&self) -> Attribute {
        let nested = |nesting, fields: &[Self]| {
            Attribute::nested(self.name, nesting, fields.iter().map(Self::attribute).collect())
        };
        let attribute = match &self.shape {
            Shape::Text(_) => Attribute::string(self.name),
            Shape::Integer => Attribute::number(self.name),
            Shape::Bool => Attribute::bool(self.name),
            Shape::TextMap => Attribute::new(self.name, Type::map(Type::String)),
            Shape::TextList(_) => Attribute::new(self.name, Type::list(Type::String)),
            Shape::Object(fields) => nested(Nesting::Single, fields),
            Shape::Keyed(fields) => nested(Nesting::List, fields),
        };
        let mut attribute = attribute.description(self.text.clone());
        match self.presence {
            Presence::Required => attribute.required = true,
            Presence::Optional => attribute.optional = true,
            Presence::Computed => attribute.computed = true,
            Presence::Default(_) | Presence::Numbered(_) | Presence::Kept => {
                attribute.optional = true;
                attribute.computed = true;
            }
        }
        attribute.sensitive = self.sensitive;
        attribute.write_only = self.write_only;
        attribute
    }

    /// Takes what it does not say itself from the schema of the custom resource: the description and the limits.
    pub fn learn(&mut self, schema: &Json) {
        let Source::Spec(key) = &self.source else { return };
        let Some(schema) = schema.get("properties").and_then(|fields| fields.get(key.as_ref())) else {
            return;
        };
        if self.text.is_empty() {
            let text = schema.get("description").and_then(Json::as_str).unwrap_or_default();
            self.text = Cow::Owned(text.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        if self.one_of.is_empty() {
            let words = schema.get("enum").and_then(Json::as_array).into_iter().flatten();
            self.one_of = words.filter_map(|word| word.as_str().map(str::to_owned)).collect();
        }
        let bound = |name: &str| {
            let bound = schema.get(name)?;
            bound.as_i64().or_else(|| bound.as_f64().map(|float| float as i64))
        };
        if let (Some(least), Some(most)) = (bound("minimum"), bound("maximum")) {
            self.range = Some((least, most));
        }
        self.max_length = schema.get("maxLength").or_else(|| schema.get("maxItems")).and_then(Json::as_u64);
        match &mut self.shape {
            Shape::Object(fields) => fields.iter_mut().for_each(|field| field.learn(schema)),
            Shape::Keyed(fields) => {
                let items = schema.get("items").unwrap_or(&Json::Null);
                fields.iter_mut().for_each(|field| field.learn(items));
            }
            _ => {}
        }
    }
}

/// `host_selector` is `hostSelector`.
fn camel(name: &'static str) -> Cow<'static, str> {
    if !name.contains('_') {
        return Cow::Borrowed(name);
    }
    let mut words = name.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    Cow::Owned(camel)
}
