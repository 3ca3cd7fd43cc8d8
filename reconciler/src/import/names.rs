//! Names of objects for foreign names.

use std::collections::BTreeSet;

use berth_api::ResourceName;

/// The longest DNS label.
const LONGEST: usize = 63;

/// The names that are taken.
#[derive(Debug, Default)]
pub(super) struct Names(BTreeSet<String>);

impl Names {
    /// A free name that resembles the text: `web-01` for `Web_01`, `web-01-2` when that is taken.
    pub(super) fn free(&mut self, text: &str) -> String {
        let base = label(text);
        let numbered = (2_u64..).map(|number| {
            let suffix = format!("-{number}");
            let kept = base.get(..LONGEST - suffix.len()).unwrap_or(&base).trim_end_matches('-');
            format!("{kept}{suffix}")
        });
        let free = std::iter::once(base.clone()).chain(numbered).find(|name| !self.0.contains(name));
        let free = free.unwrap_or_default();
        self.0.insert(free.clone());
        free
    }
}

/// A DNS label that resembles the text.
fn label(text: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let mapped: String = text.chars().map(allowed).collect();
    let mapped = mapped.trim_matches('-');
    let cut = mapped.get(..LONGEST).unwrap_or(mapped).trim_end_matches('-');
    if ResourceName::is_dns_label(cut) { cut.to_owned() } else { "vm".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_has_a_name_of_its_own() {
        let mut names = Names::default();
        let long = "x".repeat(80);
        let made: Vec<String> = ["Web_01", "web-01", "web 01", "été", "-", "", &long, &long]
            .into_iter()
            .map(|text| names.free(text))
            .collect();
        let x = |count: usize| "x".repeat(count);
        assert_eq!(
            made,
            ["web-01", "web-01-2", "web-01-3", "t", "vm", "vm-2", &x(63), &format!("{}-2", x(61))]
        );
        assert!(made.iter().all(|name| ResourceName::is_dns_label(name)));
    }
}
