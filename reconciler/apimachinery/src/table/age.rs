//! Ages in kubectl's format.

use jiff::Timestamp;

/// Returns the age of an RFC 3339 time; `<invalid>` for any other text.
pub(super) fn since(text: &str, now: Timestamp) -> String {
    match text.parse::<Timestamp>() {
        Ok(then) => human_duration(now.as_second().saturating_sub(then.as_second())),
        Err(_) => "<invalid>".to_owned(),
    }
}

/// Formats a duration as `5s`, `3m20s`, `45m`, `7h30m`, `2d3h`, `40d`, `3y10d`: the shorter it is, the finer.
pub(crate) fn human_duration(seconds: i64) -> String {
    let pair = |big: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{small_unit}") }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    // The clocks of two machines may differ a little.
    if seconds < -1 {
        "<invalid>".to_owned()
    } else if seconds < 0 {
        "0s".to_owned()
    } else if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        pair(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        pair(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 192 {
        pair(days, "d", hours % 24, "h")
    } else if days < 730 {
        format!("{days}d")
    } else if days < 2920 {
        pair(days / 365, "y", days % 365, "d")
    } else {
        format!("{}y", days / 365)
    }
}
