//! Answer files for Windows Setup and Sysprep.
//!
//! Errors never quote one: it may hold passwords.

/// The key of a Secret with the answer file, and its name on the volume.
pub const UNATTEND: &str = "unattend.xml";
/// The most bytes of an answer file.
pub const MAX_UNATTEND: usize = 256 << 10;
const NAMESPACE: &str = "urn:schemas-microsoft-com:unattend";

/// Checks that a text is an answer file: XML with Microsoft's root element.
///
/// # Errors
/// The problem, for people.
pub fn check_unattend(text: &str) -> Result<(), String> {
    if text.len() > MAX_UNATTEND {
        return Err("the answer file is larger than 256 KiB".to_owned());
    }
    // A byte order mark is no part of the document.
    let parsed = roxmltree::Document::parse(text.trim_start_matches('\u{feff}'));
    let document = parsed.map_err(|error| {
        let at = error.pos();
        format!("the answer file is not XML: line {}, column {}", at.row, at.col)
    })?;
    let root = document.root_element().tag_name();
    if root.name() != "unattend" || root.namespace() != Some(NAMESPACE) {
        return Err(format!(
            "the answer file has another root element than <unattend xmlns=\"{NAMESPACE}\">"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_file_has_the_root_element_of_microsoft() {
        let good = r#"<?xml version="1.0" encoding="utf-8"?>
            <unattend xmlns="urn:schemas-microsoft-com:unattend"><settings pass="oobeSystem"/></unattend>"#;
        assert_eq!(check_unattend(good), Ok(()));
        assert_eq!(check_unattend(&format!("\u{feff}{good}")), Ok(()));
        for wrong in [
            "",
            "canary",
            "<unattend/>",
            "<a xmlns='urn:schemas-microsoft-com:unattend'/>",
            "<unattend>\n<canary",
        ] {
            let error = check_unattend(wrong).expect_err("it is refused");
            assert!(!error.contains("canary"), "{error}");
        }
        let entities = r#"<!DOCTYPE a [<!ENTITY b "c">]><unattend xmlns="urn:schemas-microsoft-com:unattend">&b;</unattend>"#;
        assert!(check_unattend(entities).is_err(), "entities could grow without limit");
        assert!(check_unattend(&" ".repeat(MAX_UNATTEND + 1)).is_err());
    }
}
