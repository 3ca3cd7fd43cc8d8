//! Whether a VM that is bound here may run here.

use berth_api::{Enforcement, Host, PlacementGroup, VM, VMStatus};
use kube::{Client, ResourceExt};

use crate::admission::{Admission, Offer};
use crate::context::Context;
use crate::definitions::VersionSkew;
use crate::error::Error;
use crate::typed_api::TypedApi;
use berth_host::HostFacts;

/// Decides whether a VM that has nothing on this host may run here. `read`: the host's facts, if they are needed for that.
pub(super) async fn admission(
    ctx: &Context,
    vm: &VM,
    read: &mut Option<HostFacts>,
) -> Result<Admission, Error> {
    let status = vm.status.as_ref();
    if status.is_some_and(VMStatus::is_admitted) || vm.metadata.deletion_timestamp.is_some() {
        return Ok(Admission::Recorded);
    }
    if let Some(refusal) = status.and_then(VMStatus::refused) {
        return Ok(Admission::Refused(refusal.message.clone()));
    }
    let facts = &*read.insert(ctx.facts().await?);
    let skew = ctx.definitions.version_skew();
    let offer = Offer {
        host: ctx.host().to_owned(),
        capacity: ctx.offered(facts),
        reservable: ctx.reservable(facts),
        overhead: facts.overhead_bytes,
        group: group(&ctx.client, vm).await?,
        has_claims: !matches!(skew, VersionSkew::Older(_)),
        outdated: matches!(skew, VersionSkew::Newer(_)),
    };
    let judged = ctx.reservations.judge(&ctx.index.read(), vm, offer);
    // A VM that fits is judged again once capacity is reserved for it.
    let is_decided = matches!(judged, Admission::Granted | Admission::Refused(_));
    if is_decided && in_recovery(&ctx.client, ctx.host()).await? {
        return Ok(Admission::Unknown);
    }
    Ok(judged)
}

/// Whether this host is in a recovery: a VM bound here may run elsewhere under a later binding that the control plane
/// has lost. Read each time, as a table may be older than the binding.
async fn in_recovery(client: &Client, host: &str) -> Result<bool, Error> {
    let hosts: TypedApi<Host> = TypedApi::all(client.clone());
    let host = hosts.get_opt(host).await.map_err(Error::api("read the Host"))?;
    Ok(host.is_some_and(|host| host.spec.recovery.is_some()))
}

/// Reads the VM's required placement group: a table's copy may be older than the binding.
async fn group(client: &Client, vm: &VM) -> Result<Option<PlacementGroup>, Error> {
    let Some(name) = vm.spec.placement.as_ref().and_then(|p| p.group.as_ref()) else { return Ok(None) };
    let groups: TypedApi<PlacementGroup> =
        TypedApi::namespaced(client.clone(), &vm.namespace().unwrap_or_default());
    let found = groups.get_opt(name.as_str()).await.map_err(Error::api("read the PlacementGroup"))?;
    Ok(found.filter(|group| group.spec.enforcement == Enforcement::Required))
}
