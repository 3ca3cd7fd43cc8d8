//! The users of a guest whose SSH keys are declared, and the keys that they have.

use std::time::Duration;

use berth_api::condition::{self, remove};
use berth_api::vm::GuestUser;
use berth_api::{ConditionType, ConditionUpdate, Reason, VM, VMStatus};
use jiff::Timestamp;

use super::bootstrap::public_keys;
use super::observe::is_left_alone;
use super::observed_users::{GuestUsers, ObservedUser};
use super::secrets::{self, SecretRead};
use super::{Observed, Step};
use crate::context::Context;
use crate::converge::Plan;
use crate::error::Error;
use crate::key::ObjectName;
use crate::ssh_keys::{KeysPlan, UserKeys};

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
    let mut plan = KeysPlan { process: running.identity.clone(), users: Vec::new() };
    let declared = vm.spec.guest_users.iter().map(|user| (user, true));
    for (user, is_declared) in declared.chain(former.iter().map(|user| (user, false))) {
        // While the control plane does not answer, the guest keeps the keys that it has.
        let Some(keys) = declared_keys(ctx, vm, user).await? else {
            observed.guest_users.again = Some(READ_AGAIN);
            return Ok(());
        };
        let found = keys.as_ref().ok().and_then(|keys| ctx.ssh_keys.found(&name, &running.identity, keys));
        users.push(ObservedUser {
            name: user.name.clone(),
            is_declared,
            keys: keys.as_ref().map(UserKeys::count).map_err(Clone::clone),
            found,
        });
        // A user is in the status before it has a key: otherwise the key of a user that is taken off the list could stay.
        if is_recorded(vm, &user.name) {
            plan.users.extend(keys);
        }
    }
    let is_recorded = users.iter().all(|user| is_recorded(vm, &user.name));
    let reads = vm.spec.guest_users.iter().any(|user| user.ssh_authorized_keys_secret.is_some());
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

/// Returns the keys of a user, or why they are not known. None: the control plane does not answer.
async fn declared_keys(
    ctx: &Context,
    vm: &VM,
    user: &GuestUser,
) -> Result<Option<Result<UserKeys, (Reason, String)>>, Error> {
    let inline = user.ssh_authorized_keys.iter().map(String::as_str);
    let Some(name) = &user.ssh_authorized_keys_secret else {
        return Ok(Some(Ok(UserKeys::new(&user.name, inline))));
    };
    let waits = |text: String| Ok(Some(Err((Reason::WaitingForSecret, text))));
    let secret = match secrets::read(ctx, vm, name, "read the Secret with SSH keys").await? {
        SecretRead::Found(secret) => secret,
        SecretRead::Missing => return waits(format!("Secret {name} does not exist")),
        SecretRead::Denied => return waits(format!("this host may not read Secret {name} yet")),
        SecretRead::Unanswered(why) => {
            tracing::debug!(why, "the keys of the guest's users stay as they are");
            return Ok(None);
        }
    };
    Ok(Some(match public_keys(&secret) {
        Ok(more) => Ok(UserKeys::new(&user.name, inline.chain(more.iter().map(String::as_str)))),
        Err(problem) => Err((Reason::InvalidSpec, problem)),
    }))
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
            (reason, format!("the keys of user {} are not the declared ones: {text}", user.name))
        }
    };
    let update = ConditionUpdate::from_bool(synced, reason == Reason::Synced, reason, &text);
    condition::set(&mut status.conditions, update, generation, now);
}
