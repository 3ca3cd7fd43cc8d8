//! The classes by which a network tells packets apart.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

const NAMES: [&str; 21] = [
    "CS0", "CS1", "CS2", "CS3", "CS4", "CS5", "CS6", "CS7", "AF11", "AF12", "AF13", "AF21", "AF22", "AF23",
    "AF31", "AF32", "AF33", "AF41", "AF42", "AF43", "EF",
];

/// A class of packets, with its DSCP (RFC 2474, 2597 and 3246).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[repr(u8)]
pub enum DscpClass {
    Cs0 = 0,
    Cs1 = 8,
    Cs2 = 16,
    Cs3 = 24,
    Cs4 = 32,
    Cs5 = 40,
    Cs6 = 48,
    Cs7 = 56,
    Af11 = 10,
    Af12 = 12,
    Af13 = 14,
    Af21 = 18,
    Af22 = 20,
    Af23 = 22,
    Af31 = 26,
    Af32 = 28,
    Af33 = 30,
    Af41 = 34,
    Af42 = 36,
    Af43 = 38,
    Ef = 46,
}

impl DscpClass {
    /// Its DSCP, 0 to 63.
    #[must_use]
    pub const fn value(self) -> u8 {
        self as u8
    }
}

/// The schema of an optional class: the description is that of the field.
pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "nullable": true, "enum": NAMES})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn class(name: &str) -> Option<DscpClass> {
        serde_json::from_value(name.into()).ok()
    }

    #[test]
    fn classes_have_the_names_and_values_of_their_rfcs() {
        for (name, value) in
            [("CS0", 0), ("CS1", 8), ("CS7", 56), ("AF11", 10), ("AF22", 20), ("AF43", 38), ("EF", 46)]
        {
            assert_eq!(class(name).map(DscpClass::value), Some(value), "{name}");
        }
        assert_eq!((class("ef"), class("46")), (None, None));
    }

    #[test]
    fn each_name_of_the_schema_is_a_class_of_its_own() {
        let values: BTreeSet<u8> =
            NAMES.iter().filter_map(|name| class(name)).map(DscpClass::value).collect();
        assert_eq!(values.len(), NAMES.len());
    }
}
