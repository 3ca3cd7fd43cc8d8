//! `docs/SPECIFICATION.md`: puts readings into its tables and changes nothing else in it.
//!
//! A figure's row starts with its key in backticks. Its first four columns describe the figure, its last three hold the
//! reading; the row is written whole, so that the document cannot state another target than the one that is checked.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::figure::{Figure, Reading};

/// The line above the list of machines.
const MACHINES: &str = "<!-- machines: written by `cargo measure --write` -->";
/// The content of the columns of a figure that was never measured.
pub const NEVER: &str = "not measured yet | – | –";

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
            Some(reading) => lines.push(row(reading, &format!("{date}, {letter}"))),
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

fn row(reading: &Reading, when: &str) -> String {
    let met = match reading.met() {
        Some(true) => "yes",
        Some(false) => "**no**",
        None => "–",
    };
    format!("{} {} | {met} | {when} |", head(&reading.figure), reading.formatted())
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
    let named = |letter: &char| lines.iter().any(|line| line.ends_with(&format!(", {letter} |")));
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
        assert!(after.contains("| `N4.rss` | resident | ≤ 40 MiB | no | 41 MiB | **no** | 2026-11-20, A |"));
        assert!(after.contains(&format!("{MACHINES}\n- **A**: 2 × X\n\nend\n")));
        let untouched = |text: &str| {
            let kept = text.lines().filter(|line| !line.contains("N4.rss") && !line.starts_with("- **A"));
            kept.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(untouched(&before), untouched(&after));
    }

    #[test]
    fn machines_keep_their_letters_and_go_with_their_last_row() {
        let one = updated(&document(), &[Reading::once(RSS, 1.0), Reading::once(CPU, 0.1)], "d1", "m1");
        let two = updated(&one.expect("written"), &[Reading::once(RSS, 2.0)], "d2", "m2").expect("written");
        assert!(two.contains("- **A**: m1\n- **B**: m2\n"), "{two}");
        let three = updated(&two, &[Reading::once(CPU, 0.2)], "d3", "m2").expect("written");
        assert!(three.contains(&format!("{MACHINES}\n- **B**: m2\n\n")), "{three}");
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
