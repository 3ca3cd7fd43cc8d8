use super::*;

#[test]
fn a_time_is_stored_in_utc_with_the_precision_of_its_field() {
    for (precision, text, stored) in [
        (Precision::Seconds, "2026-01-01T01:02:03Z", "2026-01-01T01:02:03Z"),
        (Precision::Seconds, "2026-01-01T01:02:03.999999Z", "2026-01-01T01:02:03Z"),
        (Precision::Seconds, "2026-01-01T00:00:00+02:30", "2025-12-31T21:30:00Z"),
        (Precision::Micros, "2026-01-01T00:00:00.123456-01:00", "2026-01-01T01:00:00.123456Z"),
        (Precision::Micros, "2026-01-01T00:00:00,000000Z", "2026-01-01T00:00:00.000000Z"),
        (Precision::Seconds, "0000-01-01T00:00:00Z", "0000-01-01T00:00:00Z"),
    ] {
        assert_eq!(precision.parse(text).map(|at| precision.format(at)).as_deref(), Some(stored), "{text}");
    }
}

#[test]
fn any_other_text_is_refused() {
    for (precision, text) in [
        (Precision::Seconds, "yesterday"),
        (Precision::Seconds, "2026-01-01"),
        (Precision::Seconds, "2026-01-01 00:00:00Z"),
        (Precision::Seconds, "2026-01-01t00:00:00z"),
        (Precision::Seconds, "2026-01-01T00:00Z"),
        (Precision::Micros, "2026-01-01T00:00:00.1234567Z"),
        (Precision::Micros, "2026-01-01T00:00:00Z"),
        (Precision::Seconds, "2026-01-01T00:00:00+02"),
        (Precision::Seconds, "2026-01-01T00:00:00Z[UTC]"),
        (Precision::Seconds, "2026-13-01T00:00:00Z"),
        (Precision::Seconds, "2026-02-30T00:00:00Z"),
        (Precision::Seconds, "2026-01-01T24:00:00Z"),
        (Precision::Seconds, "2026-12-31T23:59:60Z"),
    ] {
        assert_eq!(precision.parse(text), None, "{text}");
    }
}
