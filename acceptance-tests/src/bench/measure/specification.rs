//! `docs/SPECIFICATION.md`: puts readings into its tables and changes nothing else in it.
//!
//! A figure's row starts with its key in backticks. Its first four columns describe the figure and are written with every reading,
//! so that the document cannot state another target than the one that is checked. The fifth holds the last reading of each
//! machine, the sixth whether all of them meet the target.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

use super::figure::{Figure, Reading};

/// The line above the list of machines.
const MACHINES: &str = "<!-- machines: written by `cargo measure --write` -->";
/// The content of the last two columns of a figure that was never measured.
pub const NEVER: &str = "not measured yet | –";
/// What separates the readings of two machines.
const BREAK: &str = "<br>";

/// Returns the document with these readings in it.
///
/// *Errors:* a figure has no row, or the list of machines is missing.
pub fn updated(text: &str, readings: &[Reading], date: &str, machine: &str) -> Result<String> {
    ensure!(text.contains(MACHINES), "docs/SPECIFICATION.md has no line {MACHINES}");
    let mut machines = machines(text);
    let letter = machines
        .iter()
        .find_map(|(letter, known)| (known == machine).then_some(*letter))
        .unwrap_or_else(|| free_letter(&machines));
    machines.insert(letter, machine.to_owned());
    let mut wanted: BTreeMap<&str, &Reading> =
        readings.iter().map(|reading| (reading.figure.key, reading)).collect();
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match key(line).and_then(|key| wanted.remove(key)) {
            Some(reading) => lines.push(row(line, reading, letter, date)),
            None => lines.push(line.to_owned()),
        }
    }
    let missing: Vec<&str> = wanted.into_keys().collect();
    ensure!(missing.is_empty(), "docs/SPECIFICATION.md has no row for {}", missing.join(", "));
    Ok(with_machines(&lines, &machines))
}

/// A figure's row, up to the columns of the reading.
pub fn head(figure: &Figure) -> String {
    let held = if figure.enforced { "yes" } else { "no" };
    format!("| `{}` | {} | {} | {held} |", figure.key, figure.what, figure.target())
}

/// The row with this reading in the place of the machine's last one.
fn row(before: &str, reading: &Reading, letter: char, date: &str) -> String {
    let mut readings: BTreeMap<char, String> =
        kept(before).map(|(letter, text)| (letter, text.to_owned())).collect();
    let mut missed = missed(before);
    readings.insert(letter, format!("{}, {date}", reading.formatted()));
    missed.remove(&letter);
    if reading.met() == Some(false) {
        missed.insert(letter);
    }
    let met = match (reading.met(), missed.is_empty()) {
        (None, _) => "–".to_owned(),
        (Some(_), true) => "yes".to_owned(),
        (Some(_), false) => {
            let letters: Vec<String> = missed.iter().map(char::to_string).collect();
            format!("**no** ({})", letters.join(", "))
        }
    };
    let readings: Vec<String> =
        readings.iter().map(|(letter, text)| format!("**{letter}** {text}")).collect();
    format!("{} {} | {met} |", head(&reading.figure), readings.join(BREAK))
}

/// The last two columns of a figure's row.
fn columns(row: &str) -> (&str, &str) {
    let mut columns = row.trim_end_matches(" |").rsplit(" | ");
    let met = columns.next().unwrap_or_default();
    (columns.next().unwrap_or_default(), met)
}

/// The readings in a row, by machine.
fn kept(row: &str) -> impl Iterator<Item = (char, &str)> {
    columns(row).0.split(BREAK).filter_map(|reading| {
        let (letter, text) = reading.strip_prefix("**")?.split_once("** ")?;
        Some((letter.parse().ok()?, text))
    })
}

/// The machines on which the target of a row is missed.
fn missed(row: &str) -> BTreeSet<char> {
    let letters = columns(row).1.strip_prefix("**no** (").and_then(|rest| rest.strip_suffix(')'));
    letters
        .into_iter()
        .flat_map(|letters| letters.split(", "))
        .filter_map(|letter| letter.parse().ok())
        .collect()
}

/// The key of the figure in this row.
pub fn key(line: &str) -> Option<&str> {
    line.strip_prefix("| `")?.split('`').next().filter(|key| key.starts_with('N'))
}

fn machine_line(line: &str) -> Option<(char, &str)> {
    let (letter, machine) = line.strip_prefix("- **")?.split_once("**: ")?;
    let mut letters = letter.chars();
    letters.next().filter(|_| letters.next().is_none()).map(|letter| (letter, machine))
}

fn machines(text: &str) -> BTreeMap<char, String> {
    let listed = text.lines().skip_while(|line| *line != MACHINES).skip(1);
    listed.map_while(machine_line).map(|(letter, machine)| (letter, machine.to_owned())).collect()
}

fn free_letter(machines: &BTreeMap<char, String>) -> char {
    ('A'..='Z').find(|letter| !machines.contains_key(letter)).unwrap_or('Z')
}

/// Writes the list anew, without machines that no row refers to.
fn with_machines(lines: &[String], machines: &BTreeMap<char, String>) -> String {
    let rows = || lines.iter().filter(|line| key(line).is_some());
    let named = |letter: &char| rows().any(|row| kept(row).any(|(machine, _)| machine == *letter));
    let mut text = String::new();
    let mut inside = false;
    for line in lines {
        inside &= machine_line(line).is_some();
        if inside {
            continue;
        }
        text += line;
        text += "\n";
        if line == MACHINES {
            inside = true;
            for (letter, machine) in machines.iter().filter(|(letter, _)| named(letter)) {
                text += &format!("- **{letter}**: {machine}\n");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::figure::Unit;
    use super::super::figures;
    use super::*;

    const RSS: Figure = Figure::at_most("N4.rss", "resident", Unit::Mebibytes, 40.0);
    const CPU: Figure = Figure::at_most("N4.cpu", "busy", Unit::Percent, 0.5);

    fn document() -> String {
        format!(
            "# Numbers\n\n{} {NEVER} |\n{} {NEVER} |\n\nprose\n\n{MACHINES}\n\nend\n",
            head(&RSS),
            head(&CPU)
        )
    }

    #[test]
    fn a_reading_goes_into_its_row_and_nothing_else_changes() {
        let before = document();
        let after =
            updated(&before, &[Reading::once(RSS, 41.0)], "2026-11-20", "2 × X").expect("the row is there");
        assert!(
            after.contains("| `N4.rss` | resident | ≤ 40 MiB | no | **A** 41 MiB, 2026-11-20 | **no** (A) |")
        );
        assert!(after.contains(&format!("{MACHINES}\n- **A**: 2 × X\n\nend\n")));
        let untouched = |text: &str| {
            let kept = text.lines().filter(|line| !line.contains("N4.rss") && !line.starts_with("- **A"));
            kept.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(untouched(&before), untouched(&after));
    }

    #[test]
    fn each_machine_keeps_its_last_reading_and_all_must_meet_the_target() {
        let mut text = document();
        let mut measured = |value: f64, date: &str, machine: &str| {
            text = updated(&text, &[Reading::once(RSS, value)], date, machine).expect("written");
            text.lines().find(|line| key(line) == Some("N4.rss")).expect("the row").to_owned()
        };
        measured(41.0, "d1", "m1");
        let both = measured(39.0, "d2", "m2");
        assert!(both.ends_with("| **A** 41 MiB, d1<br>**B** 39 MiB, d2 | **no** (A) |"), "{both}");
        let again = measured(40.0, "d3", "m1");
        assert!(again.ends_with("| **A** 40 MiB, d3<br>**B** 39 MiB, d2 | yes |"), "{again}");
        let missed = measured(50.0, "d4", "m2");
        assert!(missed.ends_with("| **A** 40 MiB, d3<br>**B** 50 MiB, d4 | **no** (B) |"), "{missed}");
        assert!(text.contains("- **A**: m1\n- **B**: m2\n"), "{text}");
    }

    #[test]
    fn a_machine_without_a_reading_leaves_the_list() {
        let one = updated(&document(), &[Reading::once(RSS, 1.0)], "d1", "m1").expect("written");
        let edited = one.replace("**A** 1 MiB, d1 | yes", NEVER);
        let two = updated(&edited, &[Reading::once(CPU, 0.2)], "d3", "m2").expect("written");
        assert!(two.contains(&format!("{MACHINES}\n- **B**: m2\n\n")), "{two}");
    }

    #[test]
    fn a_figure_without_a_row_is_an_error() {
        let stranger = Figure::anchor("N4.other", "other", Unit::Count);
        let error = updated(&document(), &[Reading::once(stranger, 1.0)], "d", "m").expect_err("no such row");
        assert!(error.to_string().contains("N4.other"), "{error}");
    }

    #[test]
    fn the_document_has_every_figure_once_with_the_target_that_is_checked() {
        let text = std::fs::read_to_string(crate::workspace::root().join("docs/SPECIFICATION.md"))
            .expect("the document is there");
        for figure in figures::all() {
            let rows: Vec<&str> = text.lines().filter(|line| key(line) == Some(figure.key)).collect();
            assert_eq!(rows.len(), 1, "{}: one row", figure.key);
            assert!(rows[0].starts_with(&head(figure)), "{}\nmust start with\n{}", rows[0], head(figure));
        }
        assert!(text.contains(MACHINES));
    }
}
