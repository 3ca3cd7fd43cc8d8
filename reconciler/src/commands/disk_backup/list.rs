//! `berth disk-backup list`: the backups in a repository, for a person with its password. Nothing else of a site is needed.

use std::{env, io::Write as _};

use anyhow::{Context, anyhow, ensure};
use berth_api::{Quantity, backup::declaration::VMDeclaration};
use berth_host::linux::{ObjectStore, RepositoryEntry, RepositoryReader};

use crate::{cli::ListBackupsOptions, commands::small_file, top::aligned};

/// The longest password, with the end of its line.
const MOST_PASSWORD: u64 = 4096;
const HEAD: [&str; 5] = ["VM", "DISK", "TAKEN-AT", "SIZE", "EXISTING"];
/// In the place of what is not known.
const UNKNOWN: &str = "-";

/// *Errors:* there is no repository, the password does not open it, or the store does not answer; a backup is damaged.
pub(in crate::commands) async fn list(options: ListBackupsOptions) -> anyhow::Result<()> {
    let entries = reader(options)?.list().await.map_err(|detail| anyhow!(one_line(&detail)))?;
    let table = table(&entries);
    let mut out = std::io::stdout().lock();
    out.write_all(table.as_bytes()).and_then(|()| out.flush()).context("printing")?;
    let mut damaged = 0;
    for entry in &entries {
        if let Err(detail) = &entry.facts {
            notice!("berth: {}/{}: {}", entry.disk, entry.backup, one_line(detail));
            damaged += 1;
        }
    }
    ensure!(damaged == 0, "{damaged} backups are damaged: each has a line with the reason");
    Ok(())
}

/// A server chose parts of the text: no control character in it reaches the terminal.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn reader(options: ListBackupsOptions) -> anyhow::Result<RepositoryReader> {
    let ListBackupsOptions { folder, s3_endpoint, bucket, prefix, region, password_file } = options;
    let password = small_file::read(&password_file, MOST_PASSWORD).context("--password-file")?;
    // As that of a Secret.
    let password = password.trim_end_matches(['\r', '\n']).to_owned();
    if let Some(folder) = folder {
        let folder = std::path::absolute(folder).context("the folder")?;
        return Ok(RepositoryReader::in_folder(folder, password));
    }
    let variable = |name: &str| {
        env::var(name).with_context(|| format!("the environment variable {name}, which --s3-endpoint needs"))
    };
    let credentials = (variable("AWS_ACCESS_KEY_ID")?, variable("AWS_SECRET_ACCESS_KEY")?);
    let (endpoint, bucket) = (s3_endpoint.unwrap_or_default(), bucket.unwrap_or_default());
    let store = ObjectStore { endpoint, region, bucket, prefix };
    Ok(RepositoryReader::in_object_store(store, credentials, password))
}

/// Returns the backups by VM, moment and disk, as lines with columns.
fn table(entries: &[RepositoryEntry]) -> String {
    let mut rows: Vec<[String; 5]> = entries.iter().map(row).collect();
    rows.sort_by(|a, b| (&a[0], &a[2], &a[1]).cmp(&(&b[0], &b[2], &b[1])));
    let lines: Vec<Vec<String>> = [HEAD.map(str::to_owned)].into_iter().chain(rows).map(Vec::from).collect();
    aligned(&lines)
}

fn row(entry: &RepositoryEntry) -> [String; 5] {
    let existing = format!("{}/{}", entry.disk, entry.backup);
    let unknown = || UNKNOWN.to_owned();
    let Ok(facts) = &entry.facts else {
        return [unknown(), unknown(), "damaged".to_owned(), unknown(), existing];
    };
    let text = facts.declaration.as_ref();
    let declared = text.and_then(|text| VMDeclaration::decode(text.as_bytes()).ok());
    let (vm, disk) = declared.map_or_else(|| (unknown(), unknown()), |found| (found.vm, found.disk));
    [vm, disk, facts.taken_at.to_string(), Quantity::from_bytes(facts.size).0, existing]
}

#[cfg(test)]
mod tests {
    use berth_host::linux::EntryFacts;
    use serde_json::json;

    use super::*;

    fn entry(disk: &str, vm: &str, taken_at: &str) -> RepositoryEntry {
        let declaration =
            json!({"vm": vm, "spec": {}, "disk": format!("{vm}-data"), "diskSpec": {}}).to_string();
        let facts = EntryFacts {
            taken_at: taken_at.parse().expect("a time"),
            size: 4 << 30,
            declaration: Some(declaration).filter(|_| !vm.is_empty()),
        };
        RepositoryEntry { disk: disk.into(), backup: "b-1".into(), facts: Ok(facts) }
    }

    #[test]
    fn backups_are_listed_by_vm_and_moment_with_the_text_for_existing() {
        let strange =
            RepositoryEntry { backup: "b\u{1b}[2J\n1".into(), ..entry("v-5", "", "2026-01-04T00:00:00Z") };
        assert!(table(&[strange]).ends_with("v-5/b\\u{1b}[2J\\n1\n"));
        let damaged =
            RepositoryEntry { facts: Err("damaged".into()), ..entry("v-4", "", "2026-01-01T00:00:00Z") };
        let entries = [
            entry("v-1", "web", "2026-01-02T00:00:00Z"),
            entry("v-1", "web", "2026-01-01T00:00:00Z"),
            entry("v-2", "a\u{1b}[31m", "2026-01-03T00:00:00Z"),
            entry("v-3", "", "2026-01-03T00:00:00Z"),
            damaged,
        ];
        let lines: Vec<String> = table(&entries).lines().map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "VM   DISK      TAKEN-AT              SIZE  EXISTING",
                "-    -         2026-01-03T00:00:00Z  4Gi   v-2/b-1",
                "-    -         2026-01-03T00:00:00Z  4Gi   v-3/b-1",
                "-    -         damaged               -     v-4/b-1",
                "web  web-data  2026-01-01T00:00:00Z  4Gi   v-1/b-1",
                "web  web-data  2026-01-02T00:00:00Z  4Gi   v-1/b-1",
            ]
        );
    }
}
