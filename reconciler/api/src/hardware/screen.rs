//! The size of a guest's screen, and the keyboard of its viewers.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The sizes that QEMU's standard VGA card shows with its 16 MiB of memory, in multiples of 8 pixels.
const RESOLUTIONS: [(u16, u16); 14] = [
    (640, 480),
    (800, 600),
    (1024, 768),
    (1280, 720),
    (1280, 800),
    (1280, 1024),
    (1440, 900),
    (1600, 900),
    (1600, 1200),
    (1680, 1050),
    (1920, 1080),
    (1920, 1200),
    (2560, 1440),
    (2560, 1600),
];

/// The layouts that QEMU has, by the names of their files.
const KEYBOARD_LAYOUTS: [&str; 34] = [
    "ar", "bepo", "cz", "da", "de", "de-ch", "en-gb", "en-us", "es", "et", "fi", "fo", "fr", "fr-be",
    "fr-ca", "fr-ch", "hr", "hu", "is", "it", "ja", "lt", "lv", "mk", "nl", "no", "pl", "pt", "pt-br", "ru",
    "sl", "sv", "th", "tr",
];

/// A text that is none of the values of its type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not one of the values")]
pub struct UnknownValue(String);

/// The size of a screen, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Resolution {
    width: u16,
    height: u16,
}

impl Resolution {
    /// Width and height.
    #[must_use]
    pub const fn size(self) -> (u16, u16) {
        (self.width, self.height)
    }
}

impl TryFrom<String> for Resolution {
    type Error = UnknownValue;

    fn try_from(text: String) -> Result<Self, UnknownValue> {
        let mut known = RESOLUTIONS.into_iter().map(|(width, height)| Self { width, height });
        known.find(|known| String::from(*known) == text).ok_or(UnknownValue(text))
    }
}

impl From<Resolution> for String {
    fn from(Resolution { width, height }: Resolution) -> Self {
        format!("{width}x{height}")
    }
}

/// A keyboard layout, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyboardLayout(u8);

impl KeyboardLayout {
    /// The name, which is that of QEMU's file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        KEYBOARD_LAYOUTS[usize::from(self.0)]
    }
}

impl TryFrom<String> for KeyboardLayout {
    type Error = UnknownValue;

    fn try_from(text: String) -> Result<Self, UnknownValue> {
        let place = KEYBOARD_LAYOUTS.iter().position(|name| **name == text);
        place.and_then(|place| u8::try_from(place).ok()).map(Self).ok_or(UnknownValue(text))
    }
}

impl From<KeyboardLayout> for String {
    fn from(layout: KeyboardLayout) -> Self {
        layout.as_str().to_owned()
    }
}

/// The schema of an optional resolution: the description is that of the field.
pub(crate) fn resolution_schema(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<String> =
        RESOLUTIONS.into_iter().map(|(width, height)| Resolution { width, height }.into()).collect();
    json_schema!({"type": "string", "nullable": true, "enum": names})
}

/// The schema of an optional layout, likewise.
pub(crate) fn keyboard_layout_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "nullable": true, "enum": KEYBOARD_LAYOUTS.as_slice()})
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_written_as_it_is_read_and_no_other_is_read() {
        let full: Resolution = serde_json::from_value(json!("1920x1080")).expect("a resolution");
        assert_eq!((full.size(), json!(full)), ((1920, 1080), json!("1920x1080")));
        let german: KeyboardLayout = serde_json::from_value(json!("de-ch")).expect("a layout");
        assert_eq!((german.as_str(), json!(german)), ("de-ch", json!("de-ch")));
        assert_eq!(
            serde_json::from_value::<KeyboardLayout>(json!("tr")).expect("the last one").as_str(),
            "tr"
        );
        for wrong in ["", "1920 x 1080", "1366x768", "01024x768", "1920x1080,x=1"] {
            assert!(serde_json::from_value::<Resolution>(json!(wrong)).is_err(), "{wrong}");
        }
        for wrong in ["", "../etc", "xx", "DE"] {
            assert!(serde_json::from_value::<KeyboardLayout>(json!(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_resolution_fits_into_the_memory_of_the_card() {
        for (width, height) in RESOLUTIONS {
            assert!(u32::from(width) * u32::from(height) * 4 <= 16 << 20, "{width}x{height}");
            assert!(width.is_multiple_of(8), "{width}");
        }
    }
}
