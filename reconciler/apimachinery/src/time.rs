//! Timestamps in objects: RFC 3339.

use std::sync::LazyLock;

use jiff::Timestamp;
use regex::Regex;

/// The fields that hold a `MicroTime`; all others hold a `Time`.
const MICRO_TIMES: [&str; 4] = ["eventTime", "lastObservedTime", "acquireTime", "renewTime"];

/// Formats a time with whole seconds, the form of `metav1.Time`.
pub fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The precision of a timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// `metav1.Time`: any fraction is read and none is written.
    Seconds,
    /// `MicroTime`: exactly six fractional digits.
    Micros,
}

impl Precision {
    /// Returns the precision of the field with this name.
    pub(crate) fn of(field: &str) -> Self {
        if MICRO_TIMES.contains(&field) { Self::Micros } else { Self::Seconds }
    }

    /// Parses a timestamp; `None` for any other text.
    pub(crate) fn parse(self, text: &str) -> Option<Timestamp> {
        // The parser of jiff accepts more forms than RFC 3339.
        static RFC_3339: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:[0-5]\d([.,](?<fraction>\d{1,9}))?(Z|[+-]\d\d:\d\d)$")
                .expect("a constant pattern, compiled by a test")
        });
        let parts = RFC_3339.captures(text)?;
        let digits = parts.name("fraction").map_or(0, |fraction| fraction.len());
        if self == Self::Micros && digits != 6 {
            return None;
        }
        text.replace(',', ".").parse().ok()
    }

    /// Formats a time as it is stored: in UTC.
    pub(crate) fn format(self, at: Timestamp) -> String {
        match self {
            Self::Seconds => seconds(at),
            Self::Micros => at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
