use proptest::prelude::*;

use super::*;

fn cron(text: &str) -> Cron {
    Cron::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn zone(name: &str) -> TimeZone {
    time_zone(name).unwrap_or_else(|| panic!("no time zone {name}"))
}

/// The moments of an expression that follow one, as local times with their distance from UTC.
fn moments(text: &str, zone_name: &str, after: &str, count: usize) -> Vec<String> {
    let (cron, zone) = (cron(text), zone(zone_name));
    let mut next = at(after);
    let mut found = Vec::new();
    for _ in 0..count {
        next = cron.next_after(next, &zone).expect("there is another one");
        found.push(next.to_zoned(zone.clone()).strftime("%m-%d %H:%M %z").to_string());
    }
    found
}

#[test]
fn the_moments_are_those_of_cron() {
    let utc = |text: &str| moments(text, "UTC", "2026-01-30T10:07:30Z", 3);
    assert_eq!(utc("*/15 * * * *"), ["01-30 10:15 +0000", "01-30 10:30 +0000", "01-30 10:45 +0000"]);
    assert_eq!(utc("0 3 * * *"), ["01-31 03:00 +0000", "02-01 03:00 +0000", "02-02 03:00 +0000"]);
    assert_eq!(utc("@hourly"), ["01-30 11:00 +0000", "01-30 12:00 +0000", "01-30 13:00 +0000"]);
    assert_eq!(utc("@weekly"), ["02-01 00:00 +0000", "02-08 00:00 +0000", "02-15 00:00 +0000"]);
    assert_eq!(utc("30 6 31 * ?"), ["01-31 06:30 +0000", "03-31 06:30 +0000", "05-31 06:30 +0000"]);
    assert_eq!(utc("5/20 9-17/4 * * 7"), ["02-01 09:05 +0000", "02-01 09:25 +0000", "02-01 09:45 +0000"]);
    assert_eq!(utc("0 0 * jan,MAR mon-Tue"), ["03-02 00:00 +0000", "03-03 00:00 +0000", "03-09 00:00 +0000"]);
}

#[test]
fn two_restricted_fields_of_days_allow_the_days_of_either() {
    let days = moments("0 0 13 * 5", "UTC", "2026-01-01T00:00:00Z", 4);
    assert_eq!(days, ["01-02 00:00 +0000", "01-09 00:00 +0000", "01-13 00:00 +0000", "01-16 00:00 +0000"]);
    let steps = moments("0 0 */1 * 5", "UTC", "2026-01-01T00:00:00Z", 2);
    assert_eq!(steps, ["01-02 00:00 +0000", "01-09 00:00 +0000"], "a step of one restricts nothing");
}

#[test]
fn a_time_that_the_clocks_skip_is_the_moment_of_the_change_once() {
    let before = "2026-03-28T12:00:00Z";
    assert_eq!(
        moments("30 2 * * *", "Europe/Stockholm", before, 3),
        ["03-29 03:00 +0200", "03-30 02:30 +0200", "03-31 02:30 +0200"]
    );
    assert_eq!(
        moments("10,40 2,3 * * *", "Europe/Stockholm", before, 4),
        ["03-29 03:00 +0200", "03-29 03:10 +0200", "03-29 03:40 +0200", "03-30 02:10 +0200"]
    );
    let hours = moments("0 * * * *", "Europe/Stockholm", "2026-03-29T00:00:00Z", 3);
    assert_eq!(hours, ["03-29 03:00 +0200", "03-29 04:00 +0200", "03-29 05:00 +0200"]);
}

#[test]
fn a_time_that_the_clocks_repeat_has_one_moment_and_an_interval_has_both() {
    let before = "2026-10-24T12:00:00Z";
    assert_eq!(
        moments("30 2 * * *", "Europe/Stockholm", before, 2),
        ["10-25 02:30 +0200", "10-26 02:30 +0100"]
    );
    let hours = moments("0 * * * *", "Europe/Stockholm", "2026-10-24T23:30:00Z", 3);
    assert_eq!(hours, ["10-25 02:00 +0200", "10-25 02:00 +0100", "10-25 03:00 +0100"]);
    // In the second of the two hours the time of the first is over.
    let second = moments("30 2 * * *", "Europe/Stockholm", "2026-10-25T01:10:00Z", 1);
    assert_eq!(second, ["10-26 02:30 +0100"]);
}

#[test]
fn a_day_that_a_zone_never_had_is_the_moment_of_the_change() {
    let days = moments("0 12 * * *", "Pacific/Apia", "2011-12-30T00:00:00Z", 2);
    assert_eq!(days, ["12-31 00:00 +1400", "12-31 12:00 +1400"]);
}

#[test]
fn a_leap_day_is_found_eight_years_later() {
    assert_eq!(
        cron("0 0 29 2 *").next_after(at("2096-03-01T00:00:00Z"), &TimeZone::UTC),
        Some(at("2104-02-29T00:00:00Z"))
    );
    let sunday = cron("0 0 29 2 *").next_after(at("2026-01-01T00:00:00Z"), &TimeZone::UTC);
    assert_eq!(sunday, Some(at("2028-02-29T00:00:00Z")));
}

#[test]
fn what_is_no_expression_is_refused_with_the_part_that_is_wrong() {
    let refused = |text: &str| Cron::parse(text).expect_err(text).to_string();
    for (text, words) in [
        ("", "0 fields"),
        ("0 3 * *", "4 fields"),
        (" 0 3 * * *", "none is at an end"),
        ("0\t3 * * *", "separated by spaces"),
        ("0 0 3 * * *", "6 fields"),
        ("@every 1h", "@every 1h"),
        ("@reboot", "none of @yearly"),
        ("TZ=UTC 0 3 * * *", "beside the schedule"),
        ("CRON_TZ=UTC 0 3 * * *", "beside the schedule"),
        ("60 3 * * *", "minute: \"60\" is not a number, a range or a step within 0-59"),
        ("0 24 * * *", "hour: \"24\""),
        ("0 3 0 * *", "day of the month: \"0\""),
        ("0 3 * 13 *", "month: \"13\""),
        ("0 3 * * 8", "day of the week: \"8\""),
        ("0 3 * * FRIDAY", "day of the week: \"FRIDAY\""),
        ("0 5-3 * * *", "hour: \"5-3\""),
        ("*/0 * * * *", "minute: \"*/0\""),
        ("*/60 * * * *", "minute: \"*/60\""),
        ("1,,2 * * * *", "minute: \"\""),
        ("+1 * * * *", "minute: \"+1\""),
        ("0 3 31 2 *", "never has a moment"),
        ("0 3 31 2,4,JUN,9,NOV *", "never has a moment"),
    ] {
        let error = refused(text);
        assert!(error.contains(words), "{text:?}: {error}");
    }
    assert!(Cron::parse("0 3 31 2 1").is_ok(), "the Mondays of February");
}

#[test]
fn time_zones_have_names_of_iana() {
    for name in ["UTC", "Europe/Stockholm", "America/Argentina/Buenos_Aires", "Etc/GMT+5"] {
        assert!(time_zone(name).is_some(), "{name}");
    }
    for name in ["", "Local", "CEST", "Europe", "../etc/passwd"] {
        assert!(time_zone(name).is_none(), "{name}");
    }
}

#[test]
fn the_last_moment_of_a_span_is_found() {
    let hourly = cron("@hourly");
    let last = |after, until| hourly.last_between(at(after), at(until), &TimeZone::UTC);
    assert_eq!(last("2026-01-01T00:00:00Z", "2026-01-01T00:59:59Z"), None);
    assert_eq!(last("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"), Some(at("2026-01-01T01:00:00Z")));
    assert_eq!(last("2026-01-01T00:00:00Z", "2026-01-02T00:30:00Z"), Some(at("2026-01-02T00:00:00Z")));
    assert_eq!(last("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"), None, "the clock went back");
}

fn expressions() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "* * * * *",
        "*/7 * * * *",
        "15 */5 * * *",
        "0 3 * * *",
        "30 2 * * *",
        "59 23 31 * *",
        "0 0 1 1 *",
        "10,20 1-4 * * MON-FRI",
        "45 0 13 * 5",
    ])
}

fn zones() -> impl Strategy<Value = &'static str> {
    let names = [
        "UTC",
        "Europe/Stockholm",
        "America/Sao_Paulo",
        "Asia/Beirut",
        "Australia/Lord_Howe",
        "Pacific/Apia",
    ];
    prop::sample::select(names.to_vec())
}

proptest! {
    #[test]
    fn moments_are_full_minutes_in_order_and_none_is_left_out(
        text in expressions(), name in zones(), second in 1_200_000_000_i64..2_000_000_000, between in 1_i64..90_000,
    ) {
        let (cron, zone) = (cron(text), zone(name));
        let start = Timestamp::from_second(second).expect("a time");
        let next = cron.next_after(start, &zone).expect("there is one");
        prop_assert!(next > start);
        prop_assert_eq!(next.as_second() % 60, 0);
        // From anywhere in between, the next one is the same.
        let middle = Timestamp::from_second(second + between).expect("a time");
        if middle < next {
            prop_assert_eq!(cron.next_after(middle, &zone), Some(next));
        }
        prop_assert_eq!(cron.last_between(start, next, &zone), Some(next));
    }
}
