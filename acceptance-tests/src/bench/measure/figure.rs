//! A figure: one quantity that `docs/SPECIFICATION.md` publishes, and a reading of it.

use serde_json::{Value, json};

use super::samples::Samples;

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// 1/1000 second.
    Milliseconds,
    /// Seconds.
    Seconds,
    /// 2²⁰ bytes: memory.
    Mebibytes,
    /// 10⁶ bytes: files.
    Megabytes,
    /// 2²⁰ bytes a second: throughput.
    MebibytesPerSecond,
    /// Percent of one processor core.
    Percent,
    /// Our value divided by the anchor's, both from the same run.
    Ratio,
    /// A number of items.
    Count,
}

impl Unit {
    fn symbol(self) -> &'static str {
        match self {
            Self::Milliseconds => " ms",
            Self::Seconds => " s",
            Self::Mebibytes => " MiB",
            Self::Megabytes => " MB",
            Self::MebibytesPerSecond => " MiB/s",
            Self::Percent => " %",
            Self::Ratio => " ×",
            Self::Count => "",
        }
    }

    /// Formats a value for people: three significant digits.
    pub fn say(self, value: f64) -> String {
        format!("{}{}", digits(value), self.symbol())
    }
}

fn digits(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if size >= 99.95 || value == 0.0 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.995 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    // A target of 40 is written without decimals.
    match text.split_once('.') {
        Some((whole, rest)) if rest.chars().all(|digit| digit == '0') => whole.to_owned(),
        _ => text,
    }
}

/// One quantity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The name in the document and on the command line, such as `N4.rss`.
    pub key: &'static str,
    /// The description.
    pub what: &'static str,
    /// The unit.
    pub unit: Unit,
    /// The upper limit that is the target. None: an anchor, or context.
    pub at_most: Option<f64>,
    /// Whether it is a size, a count or a ratio that does not drift with the machine, so that `--check` enforces it.
    pub enforced: bool,
}

impl Figure {
    /// A figure without a target: the value of another program, for comparison.
    pub const fn anchor(key: &'static str, what: &'static str, unit: Unit) -> Self {
        Self { key, what, unit, at_most: None, enforced: false }
    }

    /// A figure with an upper limit.
    pub const fn at_most(key: &'static str, what: &'static str, unit: Unit, limit: f64) -> Self {
        Self { key, what, unit, at_most: Some(limit), enforced: false }
    }

    /// Makes `--check` enforce the target.
    pub const fn enforced(self) -> Self {
        Self { enforced: true, ..self }
    }

    /// The number it belongs to: `N4` for `N4.rss`.
    pub fn number(&self) -> &'static str {
        self.key.split('.').next().unwrap_or(self.key)
    }

    /// The target, formatted for people.
    pub fn target(&self) -> String {
        self.at_most.map_or_else(|| "–".to_owned(), |limit| format!("≤ {limit}{}", self.unit.symbol()))
    }
}

/// A measured value of a figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The figure.
    pub figure: Figure,
    /// The published value.
    pub value: f64,
    /// The least and the greatest of the runs, if there were several.
    pub range: Option<(f64, f64)>,
    /// The number of runs, machines or other samples behind the value.
    pub count: usize,
}

impl Reading {
    /// The median of several runs.
    pub fn median(figure: Figure, samples: &Samples) -> Self {
        let range = (samples.count() > 1).then(|| (samples.least(), samples.greatest()));
        Self { figure, value: samples.median(), range, count: samples.count() }
    }

    /// A percentile over many samples in one run.
    pub fn percentile(figure: Figure, samples: &Samples, percent: usize) -> Self {
        Self { figure, value: samples.percentile(percent), range: None, count: samples.count() }
    }

    /// A value that can only be measured once, or needs no repetition.
    pub fn once(figure: Figure, value: f64) -> Self {
        Self { figure, value, range: None, count: 1 }
    }

    /// Whether the target is met; None without a target.
    pub fn met(&self) -> Option<bool> {
        self.figure.at_most.map(|limit| self.value <= limit)
    }

    /// The value, formatted for people.
    pub fn formatted(&self) -> String {
        let unit = self.figure.unit;
        match self.range {
            Some((least, greatest)) => {
                let range = format!("{}–{}", digits(least), digits(greatest));
                format!("{} ({range}; {} runs)", unit.say(self.value), self.count)
            }
            None => unit.say(self.value),
        }
    }

    /// The reading as JSON.
    pub fn json(&self) -> Value {
        json!({
            "figure": self.figure.key,
            "what": self.figure.what,
            "unit": self.figure.unit.symbol().trim(),
            "value": self.value,
            "least": self.range.map(|(least, _)| least),
            "greatest": self.range.map(|(_, greatest)| greatest),
            "count": self.count,
            "target": self.figure.at_most,
            "met": self.met(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RSS: Figure = Figure::at_most("N4.rss", "resident", Unit::Mebibytes, 40.0);

    #[test]
    fn values_are_formatted_with_the_digits_that_count() {
        let found: Vec<String> =
            [0.034, 2.8, 40.0, 41.25, 1234.6].iter().map(|value| Unit::Milliseconds.say(*value)).collect();
        assert_eq!(found, ["0.034 ms", "2.80 ms", "40 ms", "41.2 ms", "1235 ms"]);
    }

    #[test]
    fn a_value_above_the_target_is_a_miss() {
        assert_eq!(Reading::once(RSS, 40.0).met(), Some(true));
        assert_eq!(Reading::once(RSS, 40.1).met(), Some(false));
        assert_eq!(Reading::once(Figure::anchor("N4.k3s", "k3s", Unit::Mebibytes), 1.0).met(), None);
    }

    #[test]
    fn several_runs_are_formatted_with_their_range() {
        let samples = Samples::new(vec![38.0, 36.0, 37.5]).expect("numbers");
        assert_eq!(Reading::median(RSS, &samples).formatted(), "37.5 MiB (36–38; 3 runs)");
        assert_eq!(RSS.number(), "N4");
    }
}
