//! `berth disk-backup verify`: asks for the verification of a Backup by an annotation, and waits for its result.

use std::{
    io::Write,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail, ensure};
use berth_agent::TypedApi;
use berth_api::{
    Backup, ConditionType, Quantity,
    backup::{BackupVerification, VERIFY_ANNOTATION},
    condition,
};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    cli::VerifyBackupOptions,
    commands::{connect, outage::Outage, resources},
    failure,
    one_connection::client_of,
    printable::printable,
};

/// How often the Backup is read while its verification goes on.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The exit code if data is damaged or missing.
const DAMAGED: u8 = 1;
/// That if it is not known: a script must not take an outage for the loss of a backup.
const NOT_VERIFIED: u8 = 2;

/// Requests a verification and waits for its result; returns the exit code.
pub(in crate::commands) async fn verify(options: VerifyBackupOptions) -> ExitCode {
    exit_code(Box::pin(run(options)).await)
        .map_or(ExitCode::SUCCESS, |(error, code)| failure::report(&error, code))
}

/// Returns the failure to print and its exit code; none if the data is whole. `Ok` has the damage.
fn exit_code(done: anyhow::Result<Option<String>>) -> Option<(anyhow::Error, u8)> {
    match done {
        Ok(damage) => damage.map(|damage| (anyhow!(damage), DAMAGED)),
        Err(error) => Some((error, NOT_VERIFIED)),
    }
}

/// Returns the damage, if there is some.
///
/// *Errors:* there is no such Backup, or it is not complete; there is no result.
async fn run(options: VerifyBackupOptions) -> anyhow::Result<Option<String>> {
    let VerifyBackupOptions { name, no_wait, timeout, cancel, site } = options;
    let (namespace, name) = (resources::checked(&site.namespace)?, resources::checked(&name)?);
    let client = client_of(connect::admin(&site.connection, &site.state.state_dir).await?)?;
    let backups: TypedApi<Backup> = TypedApi::namespaced(client, namespace);
    let found = backups.get_opt(name).await.with_context(|| format!("reading Backup {name}"))?;
    let Some(found) = found else { bail!("there is no Backup {name} in namespace {namespace} (see -n)") };
    ensure!(found.is_complete(), "Backup {name} is not complete: berth why backup/{name}");
    let token = (!cancel).then(|| Timestamp::now().to_string());
    let patch = json!({"metadata": {"annotations": {VERIFY_ANNOTATION: token}}});
    let patched = backups.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.with_context(|| {
        format!("annotating Backup {name} with {VERIFY_ANNOTATION} (verb patch on backups)")
    })?;
    let Some(token) = token.filter(|_| !no_wait) else { return Ok(None) };
    let (mut shown, end, outage) = (None, Instant::now() + timeout.0, Outage::default());
    loop {
        let read = backups.get(name).await.with_context(|| format!("reading Backup {name}"));
        let answered = outage.answer(read)?.map(|backup| outcome(&backup, &token));
        match answered {
            Some(Outcome::Whole(text)) => {
                writeln!(std::io::stdout(), "{}", printable(&text)).context("printing")?;
                return Ok(None);
            }
            Some(Outcome::Damaged(text)) => return Ok(Some(format!("Backup {name} is damaged: {text}"))),
            Some(Outcome::GivenUp(text)) => bail!("Backup {name} has no result of this request: {text}"),
            Some(Outcome::GoesOn(text)) if shown.as_ref() != Some(&text) => {
                notice!("berth: {text}");
                shown = Some(text);
            }
            Some(Outcome::GoesOn(_)) | None => {}
        }
        if Instant::now() >= end {
            bail!(
                "there is no result yet, and the verification goes on: kubectl get bkp {name} -n {namespace}"
            );
        }
        sleep(LOOK_EVERY).await;
    }
}

/// How far a verification is.
#[derive(Debug, PartialEq)]
enum Outcome {
    GoesOn(String),
    Whole(String),
    Damaged(String),
    /// It is not asked for any more, and why.
    GivenUp(String),
}

/// Returns how far the verification with this token is.
fn outcome(backup: &Backup, token: &str) -> Outcome {
    let conditions = backup.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let verified = condition::find(conditions, ConditionType::Verified.as_str());
    let message = verified.map(|verified| verified.message.clone()).unwrap_or_default();
    match backup.verification() {
        Some(last) if last.token.as_deref() == Some(token) => {
            if last.found_damage() {
                return Outcome::Damaged(message);
            }
            Outcome::Whole(whole(last))
        }
        _ if backup.metadata.deletion_timestamp.is_some() => {
            Outcome::GivenUp("it is being deleted".to_owned())
        }
        _ if backup.verify_token() != Some(token) => {
            Outcome::GivenUp("it was cancelled, or another request has replaced it".to_owned())
        }
        Some(BackupVerification { requested: Some(_), progress: Some(percent), .. }) => {
            Outcome::GoesOn(format!("{percent} % are read"))
        }
        Some(BackupVerification { requested: Some(_), .. })
            if verified.is_some_and(|verified| verified.status == "Unknown") =>
        {
            Outcome::GoesOn(message)
        }
        Some(BackupVerification { requested: Some(_), .. }) => {
            Outcome::GoesOn("waiting for its host".to_owned())
        }
        _ => Outcome::GoesOn("waiting for the controllers".to_owned()),
    }
}

fn whole(last: &BackupVerification) -> String {
    let read = last.read_bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default();
    format!("its data is whole: {} were read back", Quantity::from_bytes(read).0)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn with(verification: &Value, verified: &str) -> Backup {
        serde_json::from_value(
            json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Backup",
            "metadata": {"name": "b", "annotations": {"berth.dev/verify": "mine"}}, "spec": {"repository": "r", "snapshot": "s"},
            "status": {"completedAt": "2026-01-01T00:00:00Z", "verification": verification, "conditions": [{
                "type": "Verified", "status": verified, "reason": "A", "message": "as it is",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
        )
        .expect("a backup")
    }

    #[test]
    fn damage_and_a_verification_without_a_result_have_exit_codes_of_their_own() {
        let code = |done| exit_code(done).map(|(error, code)| (error.to_string(), code));
        assert_eq!(code(Ok(None)), None);
        assert_eq!(code(Ok(Some("it is damaged".to_owned()))), Some(("it is damaged".to_owned(), 1)));
        assert_eq!(code(Err(anyhow!("no answer"))), Some(("no answer".to_owned(), 2)));
    }

    #[test]
    fn the_result_is_that_of_the_own_request() {
        let done =
            |token: &str, damaged: i64| json!({"token": token, "readBytes": 4096, "damagedBlocks": damaged});
        let whole = outcome(&with(&done("mine", 0), "True"), "mine");
        assert_eq!(whole, Outcome::Whole("its data is whole: 4Ki were read back".to_owned()));
        assert_eq!(
            outcome(&with(&done("mine", 2), "False"), "mine"),
            Outcome::Damaged("as it is".to_owned())
        );
        for earlier in [json!(null), done("another", 0), done("another", 1)] {
            let waits = outcome(&with(&earlier, "True"), "mine");
            assert_eq!(waits, Outcome::GoesOn("waiting for the controllers".to_owned()), "{earlier}");
        }
        let asked = json!({"at": "2026-01-02T00:00:00Z", "token": "mine"});
        let runs = outcome(&with(&json!({"requested": asked, "progress": 25}), "True"), "mine");
        assert_eq!(runs, Outcome::GoesOn("25 % are read".to_owned()));
        let unreachable = outcome(&with(&json!({"requested": asked}), "Unknown"), "mine");
        assert_eq!(unreachable, Outcome::GoesOn("as it is".to_owned()));
        let replaced = outcome(&with(&done("another", 0), "True"), "former");
        assert!(matches!(replaced, Outcome::GivenUp(_)), "{replaced:?}");
    }
}
