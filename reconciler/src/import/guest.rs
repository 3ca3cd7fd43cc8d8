//! The system of a guest as its description names it, for the images of its disks.

use berth_api::Architecture;
use berth_hcl::Expression;

/// The longest name and version in characters, as an Image has them.
const MAX_WORD: usize = 64;
/// The longest description in characters.
const MAX_DESCRIPTION: usize = 1024;

/// The product and the operating system of a guest. The texts are foreign.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestSystem {
    /// The product that it is, and its vendor.
    pub description: Option<String>,
    /// The version of the product.
    pub version: Option<String>,
    /// The name of the operating system.
    pub distribution: Option<String>,
    /// The version of the operating system.
    pub os_version: Option<String>,
}

/// Notes the architecture of a guest, if it is another one than a VM has that declares none.
pub(super) fn architecture_note(arch: &str) -> Option<String> {
    match Architecture::of_text(arch) {
        Some(Architecture::X86_64) => None,
        Some(other) => {
            let name = other.as_str();
            Some(format!(
                "its architecture is {name}: set architecture = \"{name}\" of its VM before it is created"
            ))
        }
        None => limited(arch, MAX_WORD)
            .map(|arch| format!("its architecture is {arch}, which berth does not have")),
    }
}

impl GuestSystem {
    /// Reads an identifier of libosinfo: `http://debian.org/debian/12`.
    pub(super) fn of_libosinfo(id: &str) -> Self {
        let path = id.split_once("://").map_or(id, |(_, rest)| rest);
        let mut parts = path.split('/').skip(1).filter(|part| !part.is_empty());
        Self {
            distribution: parts.next().and_then(|name| limited(name, MAX_WORD)),
            os_version: parts.next().and_then(|version| limited(version, MAX_WORD)),
            ..Self::default()
        }
    }

    /// The guest of an appliance: of these texts, those that it has.
    pub(super) fn of_appliance(
        product: Option<&str>,
        vendor: Option<&str>,
        version: Option<&str>,
        system: Option<&str>,
    ) -> Self {
        let description = match (product, vendor) {
            (Some(product), Some(vendor)) => Some(format!("{product} by {vendor}")),
            (product, _) => product.map(str::to_owned),
        };
        Self {
            description: description.and_then(|text| limited(&text, MAX_DESCRIPTION)),
            version: version.and_then(|text| limited(text, MAX_WORD)),
            distribution: system.and_then(|text| limited(text, MAX_WORD)),
            os_version: None,
        }
    }

    /// The attributes of an image of the guest.
    pub(super) fn attributes(&self) -> Vec<(String, Expression)> {
        let attribute = |name: &str, value: &Option<String>| {
            value.as_deref().map(|value| (name.to_owned(), Expression::text(value)))
        };
        let os = [attribute("distribution", &self.distribution), attribute("version", &self.os_version)];
        let os: Vec<(String, Expression)> = os.into_iter().flatten().collect();
        let os = (!os.is_empty()).then(|| ("os".to_owned(), Expression::Object(os)));
        let own = [attribute("description", &self.description), attribute("version", &self.version)];
        os.into_iter().chain(own.into_iter().flatten()).collect()
    }
}

/// The start of a text, without control characters. `None`: nothing is left.
fn limited(text: &str, most: usize) -> Option<String> {
    let text: String = text.trim().chars().filter(|c| !c.is_control()).take(most).collect();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn libosinfo_names_the_distribution_and_its_version() {
        let found = GuestSystem::of_libosinfo("http://debian.org/debian/12");
        assert_eq!((found.distribution, found.os_version), (word("debian"), word("12")));
        let found = GuestSystem::of_libosinfo("http://microsoft.com/win/2k22");
        assert_eq!((found.distribution, found.os_version), (word("win"), word("2k22")));
        assert_eq!(GuestSystem::of_libosinfo("debian"), GuestSystem::default());
    }

    #[test]
    fn an_architecture_is_noted_unless_vms_have_it_anyway() {
        assert_eq!(architecture_note("x86_64"), None);
        let note = architecture_note("aarch64").expect("another one");
        assert!(note.contains("set architecture = \"aarch64\""), "{note}");
        assert_eq!(architecture_note("s390x"), word("its architecture is s390x, which berth does not have"));
    }

    #[test]
    fn the_texts_of_an_appliance_are_limited() {
        let long = "x".repeat(5000);
        let found = GuestSystem::of_appliance(Some(&long), None, Some("4\u{7}.2\n"), Some(" "));
        assert_eq!(found.description.map(|text| text.len()), Some(MAX_DESCRIPTION));
        assert_eq!((found.version, found.distribution), (word("4.2"), None));
        let named = GuestSystem::of_appliance(Some("Probe"), Some("Example"), None, None);
        assert_eq!(named.description, word("Probe by Example"));
    }
}
