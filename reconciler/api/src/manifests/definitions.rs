//! The definitions of the kinds, one file for each. The files are generated from the types by [`super::derived`]: a program
//! parses them, and does without the code that derives them.

use serde_json::Value;

/// The file of each of these plurals.
macro_rules! files {
    ($($plural:literal)*) => {
        [$(($plural, include_str!(concat!("definitions/", $plural, ".json")))),*]
    };
}

/// The plural of each kind and its definition, in the order of the kinds' names.
pub(super) static FILES: [(&str, &str); 20] = files![
    "backups"
    "backuprepositories"
    "disks"
    "disksnapshots"
    "hosts"
    "hotswapdiskattachments"
    "images"
    "ippools"
    "keyclasses"
    "networks"
    "placementgroups"
    "publicips"
    "quotas"
    "securitygroups"
    "snapshotschedules"
    "storagepools"
    "vms"
    "vmclasses"
    "vmgroups"
    "vmsnapshots"
];

/// All definitions, in the order of the kinds' names.
pub(super) fn all() -> impl Iterator<Item = Value> {
    FILES.iter().map(|(_, text)| parsed(text))
}

/// The definition of one kind, without the label of the version; `None` for a plural that is not berth's.
pub fn definition(plural: &str) -> Option<Value> {
    FILES.iter().find(|(of, _)| *of == plural).map(|(_, text)| parsed(text))
}

fn parsed(text: &str) -> Value {
    // Not `serde_json::from_str`: it is compiled with this crate, and in debug builds without optimisation.
    text.parse().expect("a test compares the file with JSON that is written from a value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_is_found_by_its_plural() {
        for (plural, _) in FILES {
            let definition = definition(plural).expect("it has a file");
            assert_eq!(definition["spec"]["names"]["plural"], plural);
            assert_eq!(definition["metadata"]["name"], format!("{plural}.{}", crate::GROUP));
        }
        assert_eq!(definition("submarines"), None);
    }
}
