//! The elements of a description that are not taken over. Each has to be known to be harmless, or is named in a note: one that is added to
//! libvirt later is not lost in silence.

use roxmltree::Node;

/// The greatest number of names in a note, and their greatest length in characters.
const NAMED: usize = 12;
const LONGEST_NAME: usize = 40;

/// Returns the names of the elements within this one, except for these, each once; none if there are no others.
pub(super) fn others(node: Node<'_, '_>, known: &[&str]) -> Option<String> {
    let mut names: Vec<String> = Vec::new();
    let mut is_cut = false;
    for child in node.children().filter(Node::is_element) {
        let name = child.tag_name().name();
        if known.contains(&name) {
            continue;
        }
        let name: String = name.chars().take(LONGEST_NAME).collect();
        if names.contains(&name) {
            continue;
        }
        if names.len() == NAMED {
            is_cut = true;
            break;
        }
        names.push(name);
    }
    if names.is_empty() {
        return None;
    }
    Some(names.join(", ") + if is_cut { ", …" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<String> {
        let document = roxmltree::Document::parse(text).expect("XML");
        others(document.root_element(), &["name", "ip"])
    }

    #[test]
    fn each_unknown_element_is_named_once_and_a_note_is_not_endless() {
        assert_eq!(of("<a><name/>text<ip/></a>"), None);
        assert_eq!(of("<a><mtu/><name/><dns/><mtu/></a>").as_deref(), Some("mtu, dns"));
        let many: String = (0..100).map(|i| format!("<x{i}/>")).collect();
        let named = of(&format!("<a>{many}</a>")).expect("there are some");
        assert!(named.ends_with("x11, …"), "{named}");
        let long = "y".repeat(1000);
        assert_eq!(of(&format!("<a><{long}/></a>")).map(|named| named.len()), Some(LONGEST_NAME));
    }
}
