//! The tables `inet berth` and `bridge berth`: written when they differ from the desired state, and checked before
//! that.
//!
//! nftables lists rules in its own notation, so the desired rules cannot be compared with a listing. Instead, a
//! checksum of the listing after a write is stored beside that of the desired rules: if both are unchanged, there is
//! nothing to do. A foreign change to berth's tables in between changes the listing.
//!
//! A write replaces all rules in one transaction, which takes longer with each guest and each rule. Where the last write differs in
//! nothing but the members of security groups, and no program has changed any rule since, only these members are changed.
//!
//! A listing takes longer with each guest. While the kernel's generation is that of the write, no program has changed any
//! rule, and nothing is listed. The first check after a write lists the rules once, for the checks after a foreign change.

use std::path::PathBuf;
use std::sync::Arc;

use ipnet::Ipv6Net;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use super::super::files::{self, blocking};
use super::super::program::Program;
use super::{Result, generation, ruleset};
use crate::{Firewall, SystemError};
use ruleset::Table;

pub(in crate::linux) const NFT: Program = Program {
    name: "nft",
    advice: "berth forwards public addresses with it (Debian, Ubuntu: apt install nftables; Fedora: dnf install nftables)",
};

/// The rules that were written.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Written {
    /// Checksum of the desired rules.
    asked: String,
    /// Checksum of nftables' listing after they were written. None: they were not listed yet.
    shown: Option<String>,
    /// The kernel's generation since they were written or seen unchanged. Not stored: another network namespace counts from the start.
    #[serde(skip)]
    generation: Option<u32>,
    /// The rules and closed prefixes that it was made of, in this process.
    #[serde(skip)]
    of: Option<Arc<(Firewall, Vec<Ipv6Net>)>>,
}

impl Written {
    /// Whether no program has changed any rule since the generation was read.
    fn is_of(&self, generation: Option<u32>) -> bool {
        generation.is_some() && self.generation == generation
    }

    /// Returns the transaction that makes these rules of the last ones, if they differ in the members of security groups only.
    fn change_members(&self, firewall: &Firewall, ipv6_closed: &[Ipv6Net]) -> Option<Value> {
        let (before, closed_before) = self.of.as_deref()?;
        if closed_before != ipv6_closed {
            return None;
        }
        ruleset::change_members(before, firewall)
    }
}

/// Whether the kernel has the rules that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Installed {
    Yes,
    /// Another program has changed them, or others are wanted by now.
    Changed,
    Missing,
}

#[derive(Debug)]
pub(super) struct Rules {
    file: PathBuf,
    /// Locked by the one writer; the file's content, once it has been read.
    written: Mutex<Option<Written>>,
}

impl Rules {
    pub(super) fn new(file: PathBuf) -> Self {
        Self { file, written: Mutex::default() }
    }

    /// `ipv6_closed`: prefixes to which guests' IPv6 packets are not forwarded.
    pub(super) async fn apply(&self, firewall: &Firewall, ipv6_closed: &[Ipv6Net]) -> Result<()> {
        let mut written = self.written.lock().await;
        if firewall.is_empty() {
            match listing().await {
                Ok(there) if there.is_empty() => {}
                Ok(there) => submit(&ruleset::remove(&tables(&there))).await?,
                // Without nftables there are no berth rules either.
                Err(SystemError::ProgramMissing { .. }) => {}
                Err(error) => return Err(error),
            }
            *written = None;
            let file = self.file.clone();
            return blocking(move || files::remove_if_there(&file).map_err(files::failed("remove", &file)))
                .await;
        }
        let rules = transaction(firewall, ipv6_closed);
        let asked = checksum(&rules);
        if written.is_none() {
            *written = self.remembered().await;
        }
        // Other rules are written whatever the kernel has.
        let before = generation::current().await;
        if let Some(last) = written.as_mut().filter(|last| last.asked == asked) {
            if last.is_of(before) && last.shown.is_some() {
                return Ok(());
            }
            let shown = Some(checksum_of(&listing().await?));
            if last.is_of(before) && last.is_of(generation::current().await) {
                last.shown = shown;
                return self.record(last.clone()).await;
            }
            if last.shown.is_some() && last.shown == shown {
                last.generation = before;
                return Ok(());
            }
        }
        let last = written.as_ref().filter(|last| last.is_of(before));
        let change = last.and_then(|last| last.change_members(firewall, ipv6_closed));
        let is_changed = match change {
            // A change that another program has made just before is undone by writing all rules.
            Some(change) => {
                submit(&change).await.is_ok() && generation::is_next(before, generation::current().await)
            }
            None => false,
        };
        // nftables may refuse a range that overlaps one that the same transaction deletes.
        if !is_changed {
            run(rules).await?;
        }
        let after = generation::current().await;
        let of = Some(Arc::new((firewall.clone(), ipv6_closed.to_vec())));
        let now = match generation::is_next(before, after) {
            true => Written { asked, shown: None, generation: after, of },
            // Another program changed rules, perhaps these.
            false => Written { asked, shown: Some(checksum_of(&listing().await?)), generation: None, of },
        };
        *written = Some(now.clone());
        tracing::info!(
            networks = firewall.nat.len(),
            forwards = firewall.forwards.len(),
            "firewall rules written"
        );
        self.record(now).await
    }

    async fn record(&self, record: Written) -> Result<()> {
        let file = self.file.clone();
        blocking(move || {
            files::ensure_folder(file.parent().unwrap_or(&file))?;
            // The kernel does not keep the rules over a boot either.
            files::write_json_until_boot(&file, &record, 0o600)
        })
        .await
    }

    /// Compares the kernel's rules with these, and changes none.
    pub(super) async fn installed(&self, firewall: &Firewall, ipv6_closed: &[Ipv6Net]) -> Result<Installed> {
        // Listed first, so that a question does not hold up a write. A write in between is a difference.
        let there = listing().await?;
        let mut written = self.written.lock().await;
        if there.is_empty() {
            return Ok(if firewall.is_empty() { Installed::Yes } else { Installed::Missing });
        }
        if written.is_none() {
            *written = self.remembered().await;
        }
        let asked = checksum(&transaction(firewall, ipv6_closed));
        let Some(written) = written.as_ref().filter(|written| written.asked == asked) else {
            return Ok(Installed::Changed);
        };
        let is_same = match &written.shown {
            Some(shown) => *shown == checksum_of(&there),
            None => written.is_of(generation::current().await),
        };
        Ok(if is_same { Installed::Yes } else { Installed::Changed })
    }

    async fn remembered(&self) -> Option<Written> {
        let file = self.file.clone();
        // A damaged file only causes one more write of the rules.
        blocking(move || files::read_json(&file)).await.ok().flatten()?.ok()
    }
}

/// Lists the existing tables of berth's as nftables shows them.
async fn listing() -> Result<Vec<(Table, Value)>> {
    let [first, second] = ruleset::TABLES;
    let (first, second) = tokio::join!(listed(first), listed(second));
    Ok([first?, second?].into_iter().flatten().collect())
}

/// Lists a table. None: it is not there.
async fn listed(table: Table) -> Result<Option<(Table, Value)>> {
    let output = NFT.run(&["-j", "list", "table", table.family, table.name], Vec::new()).await?;
    if output.ok {
        let listing = serde_json::from_slice(&output.stdout).map_err(|e| NFT.failed(e.to_string()))?;
        return Ok(Some((table, ruleset::canonical(listing))));
    }
    match output.stderr.contains("No such file or directory") || is_unsupported(table, &output.stderr) {
        true => Ok(None),
        false => Err(NFT.failed(output.stderr)),
    }
}

/// A kernel without bridge rules has no such table; the error is only reported when such a rule is written.
fn is_unsupported(table: Table, stderr: &str) -> bool {
    table.family == "bridge" && (stderr.contains("not supported") || stderr.contains("Address family"))
}

fn tables(there: &[(Table, Value)]) -> Vec<Table> {
    there.iter().map(|(table, _)| *table).collect()
}

fn checksum_of(there: &[(Table, Value)]) -> String {
    checksum(&there.iter().map(|(_, listing)| listing.clone()).collect::<Value>().to_string())
}

/// Returns the transaction that writes these rules. It makes both tables, and so may delete both, also one that is not there.
fn transaction(firewall: &Firewall, ipv6_closed: &[Ipv6Net]) -> String {
    ruleset::replace(firewall, ipv6_closed, &ruleset::TABLES).to_string()
}

pub(super) async fn submit(transaction: &Value) -> Result<()> {
    run(transaction.to_string()).await
}

/// Submits one transaction in the language of `nft`, for what its JSON cannot express.
pub(super) async fn submit_text(commands: String) -> Result<()> {
    run_with(&["-f", "-"], commands).await
}

async fn run(transaction: String) -> Result<()> {
    run_with(&["-j", "-f", "-"], transaction).await
}

async fn run_with(args: &[&str], input: String) -> Result<()> {
    let output = NFT.run(args, input.into_bytes()).await?;
    if output.ok { Ok(()) } else { Err(NFT.failed(output.stderr)) }
}

fn checksum(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
}
