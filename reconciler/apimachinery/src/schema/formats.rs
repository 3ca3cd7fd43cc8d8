//! The string formats that Kubernetes validates. An unknown format is no constraint.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use regex::Regex;

pub(super) fn matches(format: &str, text: &str) -> bool {
    match format.replace('-', "").as_str() {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => text.contains('/') && text.parse::<ipnet::IpNet>().is_ok(),
        "mac" => is_mac(text),
        "uuid" | "uuid3" | "uuid4" | "uuid5" => is_uuid(text),
        "byte" => STANDARD.decode(text).is_ok() || URL_SAFE.decode(text).is_ok(),
        "date" => is_date(text),
        "datetime" => is_date_time(text),
        "duration" => is_duration(text),
        "uri" => is_uri(text),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        _ => true,
    }
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a constant pattern, compiled by a test")
}

static TIME: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)^([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})$"));
static WORDY_DURATION: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"^(\d+)\s*(ns|us|µs|ms|s|m|h|d|w|nanos?|micros?|millis?|seconds?|minutes?|hours?|days?|weeks?)$")
});
static GO_DURATION: LazyLock<Regex> =
    LazyLock::new(|| regex(r"^[+-]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)$"));

fn is_mac(text: &str) -> bool {
    let separator = if text.contains('-') { '-' } else { ':' };
    let parts: Vec<&str> = text.split(separator).collect();
    matches!(parts.len(), 6 | 8 | 20)
        && parts.iter().all(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Whether a text is a UUID; dashes are optional, as in strfmt.
fn is_uuid(text: &str) -> bool {
    let mut digits = text.chars().filter(|c| *c != '-');
    digits.clone().count() == 32 && digits.all(|c| c.is_ascii_hexdigit())
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    let Some((date, time)) = text.split_once(['T', 't']) else { return false };
    let Some(parts) = TIME.captures(time) else { return false };
    let below = |group: usize, limit: u32| parts[group].parse::<u32>().is_ok_and(|n| n < limit);
    is_date(date) && below(1, 24) && below(2, 60) && below(3, 60)
}

fn is_duration(text: &str) -> bool {
    GO_DURATION.is_match(text) || WORDY_DURATION.is_match(text)
}

/// Whether a text is a host name: letters, digits and symbols of any script; of several labels the last
/// consists of letters only.
fn is_hostname(text: &str) -> bool {
    let label = |label: &str| {
        let allowed = |c: char| c.is_alphanumeric() || c == '-' || (!c.is_ascii() && !c.is_control());
        (1..=63).contains(&label.chars().count())
            && label.chars().all(allowed)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let top = |last: &str| last.chars().count() >= 2 && last.chars().all(char::is_alphabetic);
    text.len() <= 255 && text.split('.').all(label) && text.rsplit_once('.').is_none_or(|(_, last)| top(last))
}

/// Whether Go's `url.ParseRequestURI` accepts the text: absolute, or a path from the root.
fn is_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|b| b <= b' ' || b == 0x7f) {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
        && !rest.is_empty()
}

fn is_email(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    !local.is_empty() && !domain.is_empty() && !text.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn formats_accept_and_refuse() {
        let cases = [
            ("ipv4", "10.0.0.1", "10.0.0.256"),
            ("ipv6", "fd00::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0"),
            ("mac", "52:54:00:12:34:56", "52:54:00:12:34"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
            ("uuid4", "123e4567e89b42d3a456426614174000", "123e4567-e89b-42d3-a456-42661417400g"),
            ("byte", "aGVsbG8=", "aGVsbG8!"),
            ("date", "2026-11-20", "2026-13-20"),
            ("date-time", "2026-11-20T10:00:00Z", "2026-11-20"),
            ("duration", "1h30m", "1 fortnight"),
            ("uri", "https://example.com/x", "example.com"),
            ("email", "a@example.com", "example.com"),
            ("hostname", "host.example.com", "-x-"),
        ];
        for (format, good, bad) in cases {
            assert!(matches(format, good), "{format} accepts {good}");
            assert!(!matches(format, bad), "{format} refuses {bad}");
        }
        assert!(matches("no-such-format", "anything"));
    }
}
