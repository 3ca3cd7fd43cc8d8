//! Foreign XML, within limits.

use roxmltree::{Document, Node, ParsingOptions};

/// The most bytes of a document. A domain with hundreds of devices has less than a tenth of it.
pub const MAX_XML: usize = 1 << 20;
/// The most elements, attributes and texts of a document.
const MAX_NODES: u32 = 50_000;
/// The most attributes of an element. The parser compares each with all others.
const MAX_ATTRIBUTES: usize = 500;
/// The most declarations of namespaces. The parser compares those of an element with all around it; a descriptor has about ten.
const MAX_NAMESPACES: usize = 256;

/// Why a text is not read as XML.
#[derive(Debug)]
pub(super) enum XmlError {
    /// It exceeds a limit before it is parsed.
    TooLarge,
    /// Not well-formed, or with a DTD or too many elements.
    Malformed(roxmltree::Error),
}

/// Parses a document. A DTD is refused, and with it every entity that is not one of XML's own.
pub(super) fn parse(text: &str) -> Result<Document<'_>, XmlError> {
    if text.len() > MAX_XML || has_long_tag(text) || text.matches("xmlns").count() > MAX_NAMESPACES {
        return Err(XmlError::TooLarge);
    }
    let options = ParsingOptions { allow_dtd: false, nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).map_err(XmlError::Malformed)
}

/// Whether an element may have too many attributes: none of their values contains a "<", and each follows a "=" in quotes. A licence
/// has lines of "=" without them.
fn has_long_tag(text: &str) -> bool {
    let is_value = |rest: &&str| rest.trim_start().starts_with(['"', '\'']);
    text.split('<').any(|tag| tag.split('=').skip(1).filter(is_value).count() > MAX_ATTRIBUTES)
}

/// The elements of this name below a path of elements: `["os", "boot"]`.
pub(super) fn all<'a, 'i>(node: Node<'a, 'i>, path: &[&str]) -> Vec<Node<'a, 'i>> {
    let mut nodes = vec![node];
    for name in path {
        nodes = nodes
            .into_iter()
            .flat_map(|node| node.children())
            .filter(|child| child.is_element() && child.tag_name().name() == *name)
            .collect();
    }
    nodes
}

/// The first element below a path of elements.
pub(super) fn first<'a, 'i>(node: Node<'a, 'i>, path: &[&str]) -> Option<Node<'a, 'i>> {
    all(node, path).into_iter().next()
}

/// The text of the first element below a path.
pub(super) fn text<'a>(node: Node<'a, '_>, path: &[&str]) -> Option<&'a str> {
    first(node, path)?.text().map(str::trim).filter(|text| !text.is_empty())
}

/// An attribute of the first element below a path.
pub(super) fn attribute<'a>(node: Node<'a, '_>, path: &[&str], name: &str) -> Option<&'a str> {
    first(node, path)?.attribute(name).filter(|text| !text.is_empty())
}

/// An attribute by its name without a namespace.
pub(super) fn local<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    let mut attributes = node.attributes();
    attributes.find(|attribute| attribute.name() == name).map(|attribute| attribute.value().trim())
}

/// An amount of bytes with libvirt's units.
pub(super) fn bytes(node: Node<'_, '_>, path: &[&str], default_unit: &str) -> Option<u64> {
    let amount: u64 = text(node, path)?.parse().ok()?;
    let factor: u64 = match attribute(node, path, "unit").unwrap_or(default_unit) {
        "b" | "bytes" => 1,
        "KB" => 1_000,
        "k" | "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "M" | "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "G" | "GiB" => 1 << 30,
        "TB" => 1_000_000_000_000,
        "T" | "TiB" => 1 << 40,
        _ => return None,
    };
    amount.checked_mul(factor)
}
