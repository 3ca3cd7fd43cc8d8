//! Reads the Secrets that a VM names. May contain secrets: never printed.

use std::time::Duration;

use berth_api::VM;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;

use super::bootstrap::Bootstrap;
use super::secure_boot_keys::KeysToEnroll;
use crate::context::Context;
use crate::error::Error;
use crate::journal::Journal;
use crate::typed_api::TypedApi;

/// How long an answer is awaited. It takes longer until a dead connection is noticed, and a guest that is restarted without the Secret
/// does not wait for that.
const ANSWER: Duration = Duration::from_secs(10);

/// A Secret as it was read.
pub(super) enum SecretRead {
    Found(Box<Secret>),
    Missing,
    /// The controllers grant this host access to the Secret once the VM is bound here.
    Denied,
    /// The control plane does not answer; the text says how.
    Unanswered(String),
}

/// Reads the Secret of this name in the VM's namespace.
///
/// *Errors:* the control plane answered with another error.
pub(super) async fn read(
    ctx: &Context,
    vm: &VM,
    name: &str,
    attempt: &'static str,
) -> Result<SecretRead, Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let secrets: TypedApi<Secret> = TypedApi::namespaced(ctx.client.clone(), &namespace);
    match tokio::time::timeout(ANSWER, secrets.get_opt(name)).await {
        Ok(Ok(Some(secret))) => Ok(SecretRead::Found(Box::new(secret))),
        Ok(Ok(None)) => Ok(SecretRead::Missing),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Ok(SecretRead::Denied),
        Ok(Err(error)) => {
            let error = Error::api(attempt)(error);
            if error.is_unanswered() { Ok(SecretRead::Unanswered(error.chain())) } else { Err(error) }
        }
        Err(_) => {
            let seconds = ANSWER.as_secs();
            let text = format!("cannot {attempt}: the control plane has not answered in {seconds} seconds");
            Ok(SecretRead::Unanswered(text))
        }
    }
}

/// Observes the bootstrap data with which the VM is started next. They are read anew for each start.
pub(super) async fn bootstrap(ctx: &Context, vm: &VM, instance: &str) -> Result<Bootstrap, Error> {
    let Some(spec) = &vm.spec.bootstrap else { return Ok(Bootstrap::of(vm, None, None)) };
    let mut found = Vec::new();
    for name in [&spec.secret_name, &spec.ssh_authorized_keys_secret] {
        let Some(name) = name else {
            found.push(None);
            continue;
        };
        match read(ctx, vm, name, "read the bootstrap Secret").await? {
            SecretRead::Found(secret) => found.push(Some(secret)),
            SecretRead::Missing | SecretRead::Denied => return Ok(Bootstrap::Missing(name.clone())),
            SecretRead::Unanswered(why) => {
                let has_files = !ctx.system.bootstrap_data(instance).await?.is_empty();
                return Ok(Bootstrap::Unreadable { why, has_files });
            }
        }
    }
    let of = |index: usize| found.get(index).and_then(Option::as_deref);
    Ok(Bootstrap::of(vm, of(0), of(1)))
}

/// Observes the keys of Secure Boot that are to be enrolled when the VM is started next.
pub(super) async fn secure_boot_keys(
    ctx: &Context,
    vm: &VM,
    journal: &Journal,
) -> Result<KeysToEnroll, Error> {
    let Some(declared) = vm.spec.secure_boot_keys.as_deref() else { return Ok(KeysToEnroll::NotDue) };
    if journal.enrolled.as_ref() == Some(declared) {
        return Ok(KeysToEnroll::NotDue);
    }
    let name = &declared.secret_name;
    Ok(match read(ctx, vm, name, "read the Secret with keys of Secure Boot").await? {
        SecretRead::Found(secret) => KeysToEnroll::of(name, &secret),
        SecretRead::Missing | SecretRead::Denied => KeysToEnroll::Missing(name.clone()),
        SecretRead::Unanswered(why) => KeysToEnroll::Unreadable(why),
    })
}
