//! The users of a guest whose SSH keys or passwords are declared, and the keys that they have.

use std::time::Duration;

use berth_api::condition::{self, remove};
use berth_api::vm::GuestUser;
use berth_api::{ConditionType, ConditionUpdate, Reason, VM, VMStatus, password};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use sha2::{Digest, Sha256};

use super::bootstrap::public_keys;
use super::observe::is_left_alone;
use super::observed_users::{GuestUsers, ObservedUser};
use super::secrets::{self, SecretRead};
use super::{Observed, Step};
use crate::context::Context;
use crate::converge::Plan;
use crate::error::Error;
use crate::key::ObjectName;
use crate::ssh_keys::{KeysPlan, PasswordVersions, UserKeys};

/// How often Secrets are read again.
const READ_AGAIN: Duration = Duration::from_secs(30);
/// The time until users that are not in the status yet are looked at again.
const SOON: Duration = Duration::from_secs(1);
/// The most users in a status.
const MOST_USERS: usize = 32;

/// Observes the users of a guest. A machine whose monitor does not answer keeps what it has.
pub(super) async fn observe(ctx: &Context, vm: &VM, observed: &mut Observed) -> Result<(), Error> {
    let name = ObjectName::of(vm);
    let stop = || (!ctx.ssh_keys.is_keeping(&name, None)).then_some(None);
    let Some(running) = observed.process.clone() else {
        observed.guest_users.watch = stop();
        return Ok(());
    };
    if observed.machine.is_none() {
        return Ok(());
    }
    let former = former_users(vm);
    if !is_left_alone(vm, observed) || (vm.spec.guest_users.is_empty() && former.is_empty()) {
        observed.guest_users.watch = stop();
        return Ok(());
    }
    let mut users = Vec::new();
    let data = data_of_guest(vm, observed);
    let recorded = recorded_passwords(vm);
    let mut versions = recorded.clone();
    versions.extend(ctx.ssh_keys.password_versions(&name));
    let mut plan = KeysPlan { process: running.identity.clone(), users: Vec::new(), recorded };
    let declared = vm.spec.guest_users.iter().map(|user| (user, true));
    for (user, is_declared) in declared.chain(former.iter().map(|user| (user, false))) {
        // While the control plane does not answer, the guest keeps the keys that it has.
        let Some(keys) = declared_keys(ctx, vm, user, &data).await? else {
            observed.guest_users.again = Some(READ_AGAIN);
            return Ok(());
        };
        let found = keys.as_ref().ok().and_then(|keys| ctx.ssh_keys.found(&name, &running.identity, keys));
        users.push(ObservedUser {
            name: user.name.clone(),
            is_declared,
            keys: keys.as_ref().map(UserKeys::count).map_err(Clone::clone),
            found,
            has_password: user.password_secret.is_some(),
            password_version: versions.get(&user.name).cloned(),
        });
        // A user is in the status before it has a key: otherwise the key of a user that is taken off the list could stay.
        if is_recorded(vm, &user.name) {
            plan.users.extend(keys);
        }
    }
    let is_recorded = users.iter().all(|user| is_recorded(vm, &user.name));
    let reads = vm.spec.guest_users.iter().any(|user| user.secrets().next().is_some());
    let is_kept = !is_recorded || ctx.ssh_keys.is_keeping(&name, Some(&plan));
    observed.guest_users = GuestUsers {
        users: Some(users),
        watch: (!is_kept).then(|| Some(Box::new(plan))),
        again: if is_recorded { reads.then_some(READ_AGAIN) } else { Some(SOON) },
    };
    Ok(())
}

/// Returns the users that are no longer declared and may have keys of berth.
fn former_users(vm: &VM) -> Vec<GuestUser> {
    let recorded = vm.status.iter().flat_map(|status| &status.guest_users);
    let former =
        recorded.filter(|user| vm.spec.guest_users.iter().all(|declared| declared.name != user.name));
    former.map(|user| GuestUser { name: user.name.clone(), ..GuestUser::default() }).collect()
}

fn is_recorded(vm: &VM, user: &str) -> bool {
    vm.status.iter().flat_map(|status| &status.guest_users).any(|recorded| recorded.name == user)
}

fn recorded_passwords(vm: &VM) -> PasswordVersions {
    let recorded = vm.status.iter().flat_map(|status| &status.guest_users);
    recorded.filter_map(|user| Some((user.name.clone(), user.password_version.clone()?))).collect()
}

/// Names the data of the guest: other ones may have another password.
fn data_of_guest(vm: &VM, observed: &Observed) -> String {
    let restored = vm.status.as_ref().and_then(|status| status.restored_from.as_ref());
    let restored = restored.map(|restored| restored.restored_at.as_str()).unwrap_or_default();
    let boot = observed.journal.run.as_ref().map(|run| run.boot_volume.as_str()).unwrap_or_default();
    format!("{} {boot} {restored}", observed.journal.cloud_instance(&observed.instance))
}

/// A part of a declaration, or why it is not known. None: the control plane does not answer.
type Declared<T> = Option<Result<T, (Reason, String)>>;

async fn read_secret(
    ctx: &Context,
    vm: &VM,
    name: &str,
    attempt: &'static str,
) -> Result<Declared<Secret>, Error> {
    let waits = |text: String| Ok(Some(Err((Reason::WaitingForSecret, text))));
    match secrets::read(ctx, vm, name, attempt).await? {
        SecretRead::Found(secret) => Ok(Some(Ok(*secret))),
        SecretRead::Missing => waits(format!("Secret {name} does not exist")),
        SecretRead::Denied => waits(format!("this host may not read Secret {name} yet")),
        SecretRead::Unanswered(why) => {
            tracing::debug!(why, "the users of the guest stay as they are");
            Ok(None)
        }
    }
}

/// Returns the keys and the password of a user. `data`: names the data of the guest.
async fn declared_keys(
    ctx: &Context,
    vm: &VM,
    user: &GuestUser,
    data: &str,
) -> Result<Declared<UserKeys>, Error> {
    let inline = user.ssh_authorized_keys.iter().map(String::as_str);
    let keys = match &user.ssh_authorized_keys_secret {
        None => UserKeys::new(&user.name, inline),
        Some(name) => {
            let secret = match read_secret(ctx, vm, name, "read the Secret with SSH keys").await? {
                Some(Ok(secret)) => secret,
                Some(Err(problem)) => return Ok(Some(Err(problem))),
                None => return Ok(None),
            };
            match public_keys(&secret) {
                Ok(more) => UserKeys::new(&user.name, inline.chain(more.iter().map(String::as_str))),
                Err(problem) => return Ok(Some(Err((Reason::InvalidSpec, problem)))),
            }
        }
    };
    let Some(name) = &user.password_secret else { return Ok(Some(Ok(keys))) };
    let secret = match read_secret(ctx, vm, name, "read the Secret with a password").await? {
        Some(Ok(secret)) => secret,
        Some(Err(problem)) => return Ok(Some(Err(problem))),
        None => return Ok(None),
    };
    Ok(Some(match password_of(&secret) {
        Ok(text) => Ok(keys.with_password(version_of(&secret, data), text)),
        Err(problem) => Err((Reason::InvalidSpec, format!("Secret {name}: {problem}"))),
    }))
}

/// Returns the password in a Secret, without the line break of the file that it may come from.
///
/// *Errors*: the problem, for people. It does not quote the value.
fn password_of(secret: &Secret) -> Result<String, &'static str> {
    let value = secret.data.as_ref().and_then(|data| data.get("password")).ok_or("it has no key password")?;
    let text = str::from_utf8(&value.0).map_err(|_| "its key password is not UTF-8")?;
    let text = text.trim_end_matches(['\r', '\n']);
    password::check(text)?;
    Ok(text.to_owned())
}

/// Names the version of a Secret, and the data of the guest. It does not depend on the content.
fn version_of(secret: &Secret, data: &str) -> String {
    let (uid, version) = (&secret.metadata.uid, &secret.metadata.resource_version);
    let digest = Sha256::digest(format!("{uid:?} {version:?} {data}"));
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the step that has the declared keys kept, if others are.
pub(super) fn step(users: &GuestUsers) -> Option<Step> {
    users.watch.clone().map(Step::KeepKeys)
}

/// Has the VM observed again in time.
pub(super) fn requeue(users: &GuestUsers, plan: Plan<Step>) -> Plan<Step> {
    match users.again {
        Some(after) => plan.requeue_after(after),
        None => plan,
    }
}

/// Writes the users and their condition.
pub(super) fn write(status: &mut VMStatus, observed: &Observed, generation: i64, now: Timestamp) {
    let synced = ConditionType::GuestUsersSynced;
    let Some(users) = &observed.guest_users.users else {
        // The record of a guest that does not run stays.
        if observed.process.is_none() || status.guest_users.is_empty() {
            remove(&mut status.conditions, synced);
        }
        return;
    };
    // An agent that was restarted does not know them for a moment.
    let is_unknown = users.iter().any(|user| user.keys.is_ok() && user.found.is_none());
    let before = condition::find(&status.conditions, synced.as_str());
    let is_current = before.is_some_and(|before| before.observed_generation == Some(generation));
    if is_unknown
        && is_current
        && users.iter().all(|user| status.guest_users.iter().any(|s| s.name == user.name))
    {
        return;
    }
    let users: Vec<&ObservedUser> = users.iter().filter(|user| !user.is_done()).take(MOST_USERS).collect();
    status.guest_users = users.iter().map(|user| user.status()).collect();
    if users.is_empty() {
        remove(&mut status.conditions, synced);
        return;
    }
    let first = users.iter().find_map(|user| Some((user, user.problem()?)));
    let (reason, text) = match first {
        None => (Reason::Synced, String::new()),
        Some((user, (reason, text))) => {
            (reason, format!("{} of user {} are not the declared ones: {text}", user.subject(), user.name))
        }
    };
    let update = ConditionUpdate::from_bool(synced, reason == Reason::Synced, reason, &text);
    condition::set(&mut status.conditions, update, generation, now);
}
