//! Times in objects, read as Go reads them and written as it writes them.

use jiff::Timestamp;
use jiff::civil::Date;
use serde_json::Value;

use crate::schema::quote;

/// How a time of a built-in object is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `metav1.Time`.
    Seconds,
    /// `MicroTime`, whose six digits must be there.
    Micros,
}

impl Layout {
    /// As Go writes layouts.
    fn text(self) -> &'static str {
        match self {
            Self::Seconds => "2006-01-02T15:04:05Z07:00",
            Self::Micros => "2006-01-02T15:04:05.000000Z07:00",
        }
    }

    /// A time as it is stored: in UTC, and as exact as the layout is.
    pub(crate) fn write(self, at: Timestamp) -> String {
        match self {
            Self::Seconds => crate::clock::seconds(at),
            Self::Micros => at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
        }
    }

    /// The time a value is.
    ///
    /// # Errors
    /// `parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"`.
    pub(crate) fn read(self, value: &Value) -> Result<Timestamp, String> {
        let text = value.as_str().ok_or_else(|| super::decode::misfit(value, "value", "string"))?;
        let mut parts = Parts { rest: text };
        parts.time(self).map_err(|wrong| match wrong {
            Wrong::Part(part) => {
                let (text, rest) = (quote(text), quote(parts.rest));
                format!("parsing time {text} as {:?}: cannot parse {rest} as {part:?}", self.text())
            }
            Wrong::Range(what) => format!("parsing time {}: {what} out of range", quote(text)),
            Wrong::More => format!("parsing time {}: extra text: {}", quote(text), quote(parts.rest)),
        })
    }
}

/// What is wrong where reading stopped.
enum Wrong {
    /// This part of the layout should stand there.
    Part(&'static str),
    Range(&'static str),
    More,
}

struct Parts<'a> {
    rest: &'a str,
}

impl Parts<'_> {
    fn time(&mut self, layout: Layout) -> Result<Timestamp, Wrong> {
        let year = self.number("2006", 4)?;
        self.literal("-")?;
        let month = within(self.number("01", 2)?, 1..=12, "month")?;
        self.literal("-")?;
        let day = self.number("02", 2)?;
        self.literal("T")?;
        let hour = within(self.number("15", 2)?, 0..=23, "hour")?;
        self.literal(":")?;
        let minute = within(self.number("04", 2)?, 0..=59, "minute")?;
        self.literal(":")?;
        let second = within(self.number("05", 2)?, 0..=59, "second")?;
        let nanos = self.fraction(layout)?;
        let offset = self.offset()?;
        if !self.rest.is_empty() {
            return Err(Wrong::More);
        }
        let small = |number: i32| i8::try_from(number).map_err(|_| Wrong::Range("day"));
        let date = i16::try_from(year)
            .ok()
            .and_then(|year| Date::new(year, small(month).ok()?, small(day).ok()?).ok());
        let date = date.ok_or(Wrong::Range("day"))?;
        let at = date.at(small(hour)?, small(minute)?, small(second)?, nanos);
        let at = at.to_zoned(jiff::tz::TimeZone::UTC).map_err(|_| Wrong::Range("year"))?.timestamp();
        at.checked_sub(jiff::SignedDuration::from_secs(offset)).map_err(|_| Wrong::Range("year"))
    }

    /// So many digits.
    fn number(&mut self, part: &'static str, length: usize) -> Result<i32, Wrong> {
        let digits = self.rest.get(..length).filter(|found| found.bytes().all(|byte| byte.is_ascii_digit()));
        let number = digits.and_then(|digits| digits.parse().ok()).ok_or(Wrong::Part(part))?;
        self.rest = &self.rest[length..];
        Ok(number)
    }

    fn literal(&mut self, part: &'static str) -> Result<(), Wrong> {
        self.rest = self.rest.strip_prefix(part).ok_or(Wrong::Part(part))?;
        Ok(())
    }

    /// Nanoseconds. Where the layout has none there may be any number of digits.
    fn fraction(&mut self, layout: Layout) -> Result<i32, Wrong> {
        let after = self.rest.strip_prefix(['.', ',']).unwrap_or_default();
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        let taken = match layout {
            Layout::Micros if digits < 6 => return Err(Wrong::Part(".000000")),
            Layout::Micros => 6,
            Layout::Seconds if digits == 0 => return Ok(0),
            Layout::Seconds => digits,
        };
        self.rest = &after[taken..];
        let nanos = after[..taken.min(9)].bytes().chain(std::iter::repeat(b'0')).take(9);
        Ok(nanos.fold(0, |number, digit| number * 10 + i32::from(digit - b'0')))
    }

    /// Seconds that the clock is ahead of UTC.
    fn offset(&mut self) -> Result<i64, Wrong> {
        const PART: &str = "Z07:00";
        if let Some(rest) = self.rest.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let [sign, h1, h2, b':', m1, m2, ..] = *self.rest.as_bytes() else { return Err(Wrong::Part(PART)) };
        let two = |tens: u8, ones: u8| {
            let digits = tens.is_ascii_digit() && ones.is_ascii_digit();
            digits.then(|| i64::from(tens - b'0') * 10 + i64::from(ones - b'0')).ok_or(Wrong::Part(PART))
        };
        let sign = match sign {
            b'+' => 1,
            b'-' => -1,
            _ => return Err(Wrong::Part(PART)),
        };
        let (hours, minutes) = (two(h1, h2)?, two(m1, m2)?);
        if hours > 24 {
            return Err(Wrong::Range("time zone offset hour"));
        }
        if minutes > 60 {
            return Err(Wrong::Range("time zone offset minute"));
        }
        self.rest = &self.rest[6..];
        Ok(sign * (hours * 3600 + minutes * 60))
    }
}

fn within(number: i32, range: std::ops::RangeInclusive<i32>, what: &'static str) -> Result<i32, Wrong> {
    if range.contains(&number) { Ok(number) } else { Err(Wrong::Range(what)) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_time_is_stored_in_utc_and_as_exactly_as_its_kind_has_it() {
        for (layout, text, stored) in [
            (Layout::Seconds, "2026-01-01T01:02:03Z", "2026-01-01T01:02:03Z"),
            (Layout::Seconds, "2026-01-01T01:02:03.999999Z", "2026-01-01T01:02:03Z"),
            (Layout::Seconds, "2026-01-01T00:00:00+02:30", "2025-12-31T21:30:00Z"),
            (Layout::Micros, "2026-01-01T00:00:00.123456-01:00", "2026-01-01T01:00:00.123456Z"),
            (Layout::Micros, "2026-01-01T00:00:00,000000Z", "2026-01-01T00:00:00.000000Z"),
            (Layout::Seconds, "0000-01-01T00:00:00Z", "0000-01-01T00:00:00Z"),
        ] {
            assert_eq!(layout.read(&json!(text)).map(|at| layout.write(at)).as_deref(), Ok(stored), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_told_where_go_stumbles() {
        for (layout, text, why) in [
            (Layout::Seconds, "yesterday", "cannot parse \"yesterday\" as \"2006\""),
            (Layout::Seconds, "2026-01-01", "cannot parse \"\" as \"T\""),
            (Layout::Seconds, "2026-01-01 00:00:00Z", "cannot parse \" 00:00:00Z\" as \"T\""),
            (Layout::Seconds, "2026-01-01T00:00Z", "cannot parse \"Z\" as \":\""),
            (Layout::Micros, "2026-01-01T00:00:00.1234567Z", "cannot parse \"7Z\" as \"Z07:00\""),
            (Layout::Micros, "2026-01-01T00:00:00Z", "cannot parse \"Z\" as \".000000\""),
            (Layout::Seconds, "2026-01-01T00:00:00+02", "cannot parse \"+02\" as \"Z07:00\""),
            (Layout::Seconds, "2026-01-01T00:00:00+0é:0", "cannot parse \"+0é:0\" as \"Z07:00\""),
            (Layout::Seconds, "2026-01-01T00:00:00Z[UTC]", "extra text: \"[UTC]\""),
            (Layout::Seconds, "2026-13-01T00:00:00Z", "month out of range"),
            (Layout::Seconds, "2026-02-30T00:00:00Z", "day out of range"),
            (Layout::Seconds, "2026-12-31T23:59:60Z", "second out of range"),
        ] {
            let told = layout.read(&json!(text)).expect_err(text);
            assert!(told.ends_with(why), "{told}");
        }
        assert_eq!(
            Layout::Seconds.read(&json!(5)).expect_err("a number"),
            "json: cannot unmarshal number into Go value of type string"
        );
    }
}
