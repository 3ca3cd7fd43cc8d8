//! Builds a document from the events of its text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use granit_parser::{Event, ScalarStyle, Tag};
use serde_json::Value;

use crate::{MAX_BYTES, MAX_NODES, MAX_TWICE, Ordered, scalar};

/// A problem with an event, which quotes nothing of the text.
type Problem = &'static str;

const TOO_LARGE: Problem = "the document is too large";
const TOO_DEEP: Problem = "the document is nested too deep";
const NO_TEXT: Problem = "a key is neither a text nor a number";
const NO_MERGE: Problem = "the value of a merge key << is neither a mapping nor a list of mappings";

/// A number of values, and the size of their texts.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    nodes: usize,
    bytes: usize,
}

impl Size {
    fn add(&mut self, other: Self) {
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// A complete value.
#[derive(Clone, Debug)]
struct Node {
    value: Ordered,
    size: Size,
    /// How deep lists and mappings nest in it.
    height: usize,
}

/// The key of the value that comes next.
enum Key {
    Name(String),
    Merge,
}

#[derive(Default)]
struct Mapping {
    /// Each with its place in the mapping.
    members: BTreeMap<String, (usize, Ordered)>,
    /// Mappings whose members count where there is no own one, the first before the others.
    merged: Vec<Vec<(String, Ordered)>>,
    key: Option<Key>,
}

enum Content {
    List(Vec<Ordered>),
    Map(Mapping),
}

/// A list or a mapping that is not complete.
struct Open {
    content: Content,
    anchor: usize,
    size: Size,
    height: usize,
}

pub(crate) struct Reader {
    max_depth: usize,
    open: Vec<Open>,
    anchors: BTreeMap<usize, Node>,
    /// Of everything that was built, with the copies for aliases.
    size: Size,
    has_document: bool,
    value: Ordered,
    twice: Vec<String>,
}

impl Reader {
    pub(crate) fn new(max_depth: usize) -> Self {
        Self {
            max_depth,
            open: Vec::new(),
            anchors: BTreeMap::new(),
            size: Size::default(),
            has_document: false,
            value: Ordered::Scalar(Value::Null),
            twice: Vec::new(),
        }
    }

    /// Returns the value, and the paths of duplicate keys.
    pub(crate) fn end(self) -> (Ordered, Vec<String>) {
        (self.value, self.twice)
    }

    pub(crate) fn event(&mut self, event: Event<'_>) -> Result<(), Problem> {
        match event {
            Event::DocumentStart(..) if self.has_document => Err("a second document begins"),
            Event::DocumentStart(..) => {
                self.has_document = true;
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => self.scalar(text, style, anchor, tag.as_deref()),
            Event::Alias(anchor) => self.alias(anchor),
            Event::SequenceStart(_, anchor, _) => self.begin(Content::List(Vec::new()), anchor),
            Event::MappingStart(_, anchor, _) => self.begin(Content::Map(Mapping::default()), anchor),
            Event::SequenceEnd | Event::MappingEnd => self.complete(),
            _ => Ok(()),
        }
    }

    fn scalar(
        &mut self,
        text: Cow<'_, str>,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
    ) -> Result<(), Problem> {
        let size = Size { nodes: 1, bytes: text.len() };
        self.spend(size)?;
        let is_bare = style == ScalarStyle::Plain && tag.is_none();
        let value = match self.next_key() {
            Some(key) if is_bare && text == "<<" => {
                *key = Some(Key::Merge);
                return Ok(());
            }
            Some(_) if is_bare && scalar::is_null(&text) => return Err(NO_TEXT),
            Some(_) => Value::String(text.into_owned()),
            None => scalar::value(text.into_owned(), style, tag)?,
        };
        self.node(Node { value: Ordered::Scalar(value), size, height: 0 }, anchor)
    }

    /// The key of the innermost mapping, if it comes next.
    fn next_key(&mut self) -> Option<&mut Option<Key>> {
        match self.open.last_mut().map(|open| &mut open.content) {
            Some(Content::Map(mapping)) if mapping.key.is_none() => Some(&mut mapping.key),
            _ => None,
        }
    }

    fn alias(&mut self, anchor: usize) -> Result<(), Problem> {
        let node =
            self.anchors.get(&anchor).ok_or("an alias is part of the value that it stands for")?.clone();
        if self.open.len() + node.height > self.max_depth {
            return Err(TOO_DEEP);
        }
        self.spend(node.size)?;
        self.add(node)
    }

    fn begin(&mut self, content: Content, anchor: usize) -> Result<(), Problem> {
        if self.next_key().is_some() {
            return Err(NO_TEXT);
        }
        if self.open.len() >= self.max_depth {
            return Err(TOO_DEEP);
        }
        let size = Size { nodes: 1, bytes: 0 };
        self.spend(size)?;
        self.open.push(Open { content, anchor, size, height: 0 });
        Ok(())
    }

    fn complete(&mut self) -> Result<(), Problem> {
        let Some(Open { content, anchor, size, height }) = self.open.pop() else { return Ok(()) };
        let value = match content {
            Content::List(items) => Ordered::List(items),
            Content::Map(Mapping { mut members, merged, .. }) => {
                for (name, value) in merged.into_iter().flatten() {
                    let place = members.len();
                    members.entry(name).or_insert((place, value));
                }
                Ordered::Map(in_order(members))
            }
        };
        self.node(Node { value, size, height: height + 1 }, anchor)
    }

    /// Adds a value, and keeps it for aliases if it has an anchor.
    fn node(&mut self, node: Node, anchor: usize) -> Result<(), Problem> {
        if anchor > 0 {
            self.spend(node.size)?;
            self.anchors.insert(anchor, node.clone());
        }
        self.add(node)
    }

    fn add(&mut self, Node { value, size, height }: Node) -> Result<(), Problem> {
        let Some(open) = self.open.last_mut() else {
            self.value = value;
            return Ok(());
        };
        open.size.add(size);
        open.height = open.height.max(height);
        let mapping = match &mut open.content {
            Content::List(items) => {
                items.push(value);
                return Ok(());
            }
            Content::Map(mapping) => mapping,
        };
        match (mapping.key.take(), value) {
            (Some(Key::Name(name)), value) => {
                // The last value of a key counts, at the place of the first.
                let place = mapping.members.len();
                mapping.members.entry(name).or_insert((place, Ordered::Scalar(Value::Null))).1 = value;
            }
            (Some(Key::Merge), Ordered::Map(members)) => mapping.merged.push(members),
            (Some(Key::Merge), Ordered::List(items)) => {
                for item in items {
                    let Ordered::Map(members) = item else { return Err(NO_MERGE) };
                    mapping.merged.push(members);
                }
            }
            (Some(Key::Merge), _) => return Err(NO_MERGE),
            (None, Ordered::Scalar(Value::String(name))) => return self.key(name),
            // An alias: a number that stands there itself is a text already.
            (None, Ordered::Scalar(Value::Number(number))) => return self.key(number.to_string()),
            (None, _) => return Err(NO_TEXT),
        }
        Ok(())
    }

    /// Adds a key to the innermost mapping.
    fn key(&mut self, name: String) -> Result<(), Problem> {
        let Some(Open { content: Content::Map(mapping), .. }) = self.open.last_mut() else { return Ok(()) };
        let is_twice = mapping.members.contains_key(&name);
        mapping.key = Some(Key::Name(name));
        if is_twice && self.twice.len() < MAX_TWICE {
            let path = self.path();
            // A path repeats all keys that lead to it.
            self.spend(Size { nodes: 0, bytes: path.len() })?;
            self.twice.push(path);
        }
        Ok(())
    }

    /// The path of the value that comes next.
    fn path(&self) -> String {
        let mut path = String::new();
        for open in &self.open {
            match &open.content {
                Content::List(items) => {
                    // Writing into a String cannot fail.
                    let _ = write!(path, "[{}]", items.len());
                }
                Content::Map(Mapping { key: Some(Key::Name(name)), .. }) => {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(name);
                }
                Content::Map(_) => {}
            }
        }
        path
    }

    fn spend(&mut self, size: Size) -> Result<(), Problem> {
        self.size.add(size);
        if self.size.nodes > MAX_NODES || self.size.bytes > MAX_BYTES { Err(TOO_LARGE) } else { Ok(()) }
    }
}

/// Returns the members of a mapping in the order of their places.
fn in_order(members: BTreeMap<String, (usize, Ordered)>) -> Vec<(String, Ordered)> {
    let mut members: Vec<(String, (usize, Ordered))> = members.into_iter().collect();
    members.sort_unstable_by_key(|(_, (place, _))| *place);
    members.into_iter().map(|(name, (_, value))| (name, value)).collect()
}
