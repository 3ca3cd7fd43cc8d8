//! The fields of a resource: one table per kind, from which the schema, the mapping to and from the custom resource, the plan
//! and the documentation are derived.
//!
//! Must not know Terraform's requests, nor any client.

use std::borrow::Cow;

use berth_api::Power;
use serde_json::Value as Json;
use tfplugin6::{Attribute, Type, Value, schema::Nesting};

use crate::{form::Form, references::Reference};

/// One attribute of a resource.
#[derive(Debug, Clone)]
pub struct Field {
    /// The name in HCL.
    pub name: &'static str,
    /// The place of the value in the custom resource.
    pub source: Source,
    /// The kind of values it accepts.
    pub shape: Shape,
    /// The origin of the value.
    pub presence: Presence,
    /// The effect of a change.
    pub effect: Effect,
    /// Whether plans hide the value.
    pub sensitive: bool,
    /// Whether the value is in no plan or state.
    pub write_only: bool,
    /// For observed fields: the attributes that may change this one when they change.
    pub follows: &'static [&'static str],
    /// The kind of object that the text names.
    pub refers: Option<Reference>,
    /// The description; empty until taken from the custom resource's definition.
    pub text: Cow<'static, str>,
    /// The words it accepts, if it is an enumeration.
    pub one_of: Vec<String>,
    /// The range of integers it accepts.
    pub range: Option<(i64, i64)>,
    /// The maximum length of the text or list.
    pub max_length: Option<u64>,
    /// The minimum length of the text or list.
    pub min_length: Option<u64>,
}

/// The place of a field's value in the custom resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Declared: under this key of `spec`, or of the enclosing object.
    Spec(Cow<'static, str>),
    /// Reported: at this JSON pointer from the object's root.
    Observed(&'static str),
    /// Only in Terraform.
    Local,
}

/// The kind of values a field accepts.
#[derive(Debug, Clone)]
pub enum Shape {
    /// A text of a given form.
    Text(Form),
    /// A whole number.
    Integer,
    /// True or false.
    Bool,
    /// A map of texts.
    TextMap,
    /// A map of texts of any form, under keys of the form of those of labels.
    Annotations,
    /// A list of texts.
    TextList(Form),
    /// A map of lists of texts. Only reported, never declared.
    TextListMap,
    /// An object of fields.
    Object(Vec<Field>),
    /// A list of objects, keyed by the field `name`.
    Keyed(Vec<Field>),
}

/// The origin of a field's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Presence {
    /// Must be configured.
    Required,
    /// May be configured; otherwise null.
    Optional,
    /// May be configured; otherwise null, or the value that the `provider` block has for new objects.
    Filled,
    /// May be configured; otherwise this value.
    Default(Value),
    /// May be configured; otherwise null, which stands for this value: a state need not have it. An object is written with it, a single
    /// value is left to the control plane.
    Implied(Value),
    /// May be configured; otherwise this prefix and the index in the list.
    Numbered(&'static str),
    /// May be configured; otherwise the kind derives it from other attributes, or it is null.
    Derived,
    /// May be configured; otherwise the control plane sets it once and it is kept.
    Kept,
    /// Set by the control plane.
    Computed,
}

/// The effect of a change of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Takes effect at once, without a restart.
    Live,
    /// Takes effect at the next start of the VM.
    PowerCycle,
    /// More CPUs: live as far as a VM has places for them, otherwise at its next start.
    Grow,
    /// More memory: live up to the maximum of a VM's start. Less: as far as the guest gives it back, otherwise at its next start.
    Resize,
    /// Restarts the VM.
    Reboot,
    /// Destroys the resource and creates another.
    Replace,
    /// Determined by `bootstrap.user_data_policy`.
    Policy,
    /// Refused: the element of the list cannot change.
    Fixed,
    /// Live if the VM's host satisfies it or the VM has no host yet, otherwise refused.
    Placement,
    /// Only affects the provider.
    Local,
    /// Takes effect when the stopped VM is started.
    Start,
    /// Refused: there is no guest that runs.
    NotRunning,
}

/// The power that a state declares. Objects of other kinds than VM reach VMs that run.
#[must_use]
pub fn declared_power(state: &Value) -> Power {
    let word = state.get("power").as_str();
    Power::ALL.into_iter().find(|power| Some(power.as_str()) == word).unwrap_or_default()
}

/// Whether the control plane refuses a change of this attribute of a suspended VM: the saved guest goes on with the cards that it has, and a
/// VM with devices or folders of its host cannot be suspended.
#[must_use]
pub fn is_refused_while_suspended(attribute: &str) -> bool {
    let list = attribute.split('.').next().unwrap_or_default();
    attribute == "network_interfaces" || ["pci_devices", "usb_devices", "vgpus", "shares"].contains(&list)
}

impl Effect {
    /// The effect of the change on a VM with this declared power: one table for the pages and for the plan's warnings.
    #[must_use]
    pub const fn with_power(self, power: Power) -> Self {
        match (self, power) {
            (Self::PowerCycle | Self::Grow | Self::Resize, Power::Stopped) => Self::Start,
            (Self::Grow | Self::Resize, Power::Paused | Power::Suspended) => Self::PowerCycle,
            (Self::Reboot, Power::Stopped | Power::Paused | Power::Suspended) => Self::NotRunning,
            (effect, _) => effect,
        }
    }

    /// The word in the documentation.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::PowerCycle => "next power cycle",
            Self::Grow => "live up to `max_cpus`, else next power cycle",
            Self::Resize => "live up to `max_memory`, else next power cycle",
            Self::Reboot => "reboot",
            Self::Replace => "replace",
            Self::Fixed => "cannot change: give the element another name",
            Self::Placement => {
                "live if the VM's host fits or it has none yet; else live with `move_policy` `Live` between hosts that offer that, next power cycle with `WhenStopped` and between other hosts, or refused"
            }
            Self::Policy => "according to `user_data_policy`",
            Self::Local => "provider only",
            Self::Start => "next start",
            Self::NotRunning => "refused",
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
            refers: None,
            text: Cow::Borrowed(""),
            one_of: Vec::new(),
            range: None,
            max_length: None,
            min_length: None,
        }
    }

    /// A field declared in the custom resource, under its own name in camel case. Optional and live by default.
    #[must_use]
    pub fn spec(name: &'static str, shape: Shape) -> Self {
        Self::new(name, Source::Spec(camel(name)), shape, Presence::Optional, Effect::Live)
    }

    /// A field that the control plane reports, at a JSON pointer from the object's root.
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

    /// A field that only affects the provider.
    #[must_use]
    pub fn local(name: &'static str, shape: Shape, text: &'static str) -> Self {
        Self::new(name, Source::Local, shape, Presence::Optional, Effect::Local).text(text)
    }

    /// Sets the key in the custom resource.
    #[must_use]
    pub fn key(mut self, key: &'static str) -> Self {
        self.source = Source::Spec(Cow::Borrowed(key));
        self
    }

    /// Makes it required.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.presence = Presence::Required;
        self
    }

    /// Sets the value used when it is not configured.
    #[must_use]
    pub fn default(mut self, value: impl Into<Value>) -> Self {
        self.presence = Presence::Default(value.into());
        self
    }

    /// Sets the value that null stands for.
    #[must_use]
    pub fn implied(mut self, value: impl Into<Value>) -> Self {
        self.presence = Presence::Implied(value.into());
        self
    }

    /// The value, or the one that null stands for.
    #[must_use]
    pub fn meant<'a>(&'a self, value: &'a Value) -> &'a Value {
        match &self.presence {
            Presence::Implied(implied) if value.is_null() => implied,
            _ => value,
        }
    }

    /// Sets the presence.
    #[must_use]
    pub fn presence(mut self, presence: Presence) -> Self {
        self.presence = presence;
        self
    }

    /// Sets the effect.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Sets the description.
    #[must_use]
    pub fn text(mut self, text: &'static str) -> Self {
        self.text = Cow::Borrowed(text);
        self
    }

    /// Sets the words it accepts.
    #[must_use]
    pub fn one_of(mut self, words: &[&str]) -> Self {
        self.one_of = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Sets the kind of object that the text names.
    #[must_use]
    pub fn refers(mut self, reference: Reference) -> Self {
        self.refers = Some(reference);
        self
    }

    /// Sets the least integer it accepts.
    #[must_use]
    pub fn at_least(mut self, least: i64) -> Self {
        self.range = Some((least, i64::MAX));
        self
    }

    /// Sets the attributes that may change this one when they change.
    #[must_use]
    pub fn follows(mut self, attributes: &'static [&'static str]) -> Self {
        self.follows = attributes;
        self
    }

    /// Hides the value in plans.
    #[must_use]
    pub fn sensitive(mut self) -> Self {
        self.sensitive = true;
        self
    }

    /// Keeps the value out of plans and states.
    #[must_use]
    pub fn write_only(mut self) -> Self {
        self.write_only = true;
        self
    }

    /// The field as a data source shows it: computed, and without anything sensitive or only in Terraform. None if nothing of it
    /// is left.
    #[must_use]
    pub fn shown(&self) -> Option<Self> {
        if self.source == Source::Local || self.sensitive || self.write_only {
            return None;
        }
        let shown = |fields: &[Self]| fields.iter().filter_map(Self::shown).collect::<Vec<_>>();
        let shape = match &self.shape {
            Shape::Object(fields) => Shape::Object(shown(fields)),
            Shape::Keyed(fields) => Shape::Keyed(shown(fields)),
            other => other.clone(),
        };
        Some(Self { shape, presence: Presence::Computed, ..self.clone() })
    }

    /// The fields of the object, or of each object in the list.
    #[must_use]
    pub fn children(&self) -> &[Field] {
        match &self.shape {
            Shape::Object(fields) | Shape::Keyed(fields) => fields,
            _ => &[],
        }
    }

    /// Whether the effect of a change of it, or of a part of it, depends on the power of a VM.
    #[must_use]
    pub fn depends_on_power(&self) -> bool {
        let differs = self.effect.with_power(Power::Stopped) != self.effect;
        differs || self.children().iter().any(Self::depends_on_power)
    }

    /// Whether it can be configured.
    #[must_use]
    pub fn is_input(&self) -> bool {
        self.presence != Presence::Computed
    }

    /// The attribute in the Terraform schema.
    #[must_use]
    pub fn attribute(&self) -> Attribute {
        let nested = |nesting, fields: &[Self]| {
            Attribute::nested(self.name, nesting, fields.iter().map(Self::attribute).collect())
        };
        let attribute = match &self.shape {
            Shape::Text(_) => Attribute::string(self.name),
            Shape::Integer => Attribute::number(self.name),
            Shape::Bool => Attribute::bool(self.name),
            Shape::TextMap | Shape::Annotations => Attribute::new(self.name, Type::map(Type::String)),
            Shape::TextList(_) => Attribute::new(self.name, Type::list(Type::String)),
            Shape::TextListMap => Attribute::new(self.name, Type::map(Type::list(Type::String))),
            Shape::Object(fields) => nested(Nesting::Single, fields),
            Shape::Keyed(fields) => nested(Nesting::List, fields),
        };
        let mut attribute = attribute.description(self.text.clone());
        match self.presence {
            Presence::Required => attribute.required = true,
            Presence::Optional => attribute.optional = true,
            Presence::Computed => attribute.computed = true,
            Presence::Filled
            | Presence::Default(_)
            | Presence::Implied(_)
            | Presence::Numbered(_)
            | Presence::Derived
            | Presence::Kept => {
                attribute.optional = true;
                attribute.computed = true;
            }
        }
        attribute.sensitive = self.sensitive;
        attribute.write_only = self.write_only;
        attribute
    }

    /// Fills in the description and the limits that are not set from the schema of the custom resource.
    pub fn fill_from_schema(&mut self, schema: &Json) {
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
        let length = |of: [&str; 2]| of.iter().find_map(|name| schema.get(*name)).and_then(Json::as_u64);
        self.max_length = length(["maxLength", "maxItems"]);
        self.min_length = length(["minLength", "minItems"]);
        match &mut self.shape {
            Shape::Object(fields) => fields.iter_mut().for_each(|field| field.fill_from_schema(schema)),
            Shape::Keyed(fields) => {
                let items = schema.get("items").unwrap_or(&Json::Null);
                fields.iter_mut().for_each(|field| field.fill_from_schema(items));
            }
            _ => {}
        }
    }
}

/// `host_selector` becomes `hostSelector`.
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
