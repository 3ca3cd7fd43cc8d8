//! The table `inet berth`: written when it is not what it should be, and looked at before that.
//!
//! nftables shows rules in its own words, so what was asked for cannot be compared with what is there. Instead,
//! what it showed after we wrote is kept beside what we had asked for: as long as both are the same, nothing is
//! to be done, and whoever changed our table in between is found out.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use super::super::files::{self, blocking};
use super::super::program::Program;
use super::{Result, ruleset};
use crate::system::{Firewall, SystemError};

pub(super) const NFT: Program = Program {
    name: "nft",
    advice: "berth forwards public addresses with it (Debian, Ubuntu: apt install nftables; Fedora: dnf install nftables)",
};

/// Checksums of what was asked for, and of what nftables then showed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    asked: String,
    shown: String,
}

#[derive(Debug)]
pub(super) struct Rules {
    file: PathBuf,
    /// One writer at a time; what the file says, once it was read.
    written: Mutex<Option<Written>>,
}

impl Rules {
    pub(super) fn new(file: PathBuf) -> Self {
        Self { file, written: Mutex::default() }
    }

    pub(super) async fn apply(&self, firewall: &Firewall) -> Result<()> {
        let mut written = self.written.lock().await;
        let there = listing().await;
        if firewall.nat.is_empty() && firewall.forwards.is_empty() {
            match there {
                Ok(Some(_)) => submit(&ruleset::remove()).await?,
                // Without nftables there are no rules of ours either.
                Ok(None) | Err(SystemError::ProgramMissing { .. }) => {}
                Err(error) => return Err(error),
            }
            *written = None;
            let file = self.file.clone();
            return blocking(move || files::remove_if_there(&file).map_err(files::failed("remove", &file)))
                .await;
        }
        let wanted = ruleset::replace(firewall);
        let asked = checksum(&wanted);
        if written.is_none() {
            *written = self.remembered().await;
        }
        let shown = there?.map(|table| checksum(&table));
        if written.as_ref().is_some_and(|w| w.asked == asked && Some(&w.shown) == shown.as_ref()) {
            return Ok(());
        }
        submit(&wanted).await?;
        let shown = listing().await?.map(|table| checksum(&table)).unwrap_or_default();
        let now = Written { asked, shown };
        let (file, record) = (self.file.clone(), now.clone());
        *written = Some(now);
        tracing::info!(
            networks = firewall.nat.len(),
            forwards = firewall.forwards.len(),
            "firewall rules written"
        );
        blocking(move || {
            files::ensure_folder(file.parent().unwrap_or(&file))?;
            files::write_json(&file, &record, 0o600)
        })
        .await
    }

    async fn remembered(&self) -> Option<Written> {
        let file = self.file.clone();
        // A damaged file costs one more write of the rules.
        blocking(move || files::read_json(&file)).await.ok().flatten()?.ok()
    }
}

/// Our table as nftables shows it; None if there is none.
async fn listing() -> Result<Option<Value>> {
    let output = NFT.run(&["-j", "list", "table", "inet", ruleset::TABLE], Vec::new()).await?;
    if !output.ok {
        if output.stderr.contains("No such file or directory") {
            return Ok(None);
        }
        return Err(NFT.failed(output.stderr));
    }
    let listing = serde_json::from_slice(&output.stdout).map_err(|e| NFT.failed(e.to_string()))?;
    Ok(Some(ruleset::canonical(listing)))
}

async fn submit(transaction: &Value) -> Result<()> {
    let input = serde_json::to_vec(transaction).expect("JSON values are JSON");
    let output = NFT.run(&["-j", "-f", "-"], input).await?;
    if output.ok { Ok(()) } else { Err(NFT.failed(output.stderr)) }
}

fn checksum(value: &Value) -> String {
    Sha256::digest(value.to_string().as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
}
