//! Moves a site from one control plane to another while its guests run: `berth graduate`.
//!
//! ```text
//!      source                                         target
//!   1  Leaving, and rejects writes                    Receiving or Returning: its controllers and agents do not act
//!   2        ── definitions, namespaces, Secrets, pools … Hosts, Disks, VMs, attachments, statuses ──▶
//!   3  a ticket for each host                         an account for each host
//!   4  Moved      ◀── point of no return: after this, only another move leads back
//!   5                                                 InCharge
//!   6        ── hosts follow their tickets ──▶
//! ```
//!
//! *Guarantees:* a move can be interrupted at any point and run again; the next run resumes it. Before step 4 it can be
//! aborted, which restores the previous state. Between steps 4 and 5 neither control plane is in charge: guests run, and no
//! new decisions are made. The two are never in charge at the same time (see [`berth_api::site`]).
//!
//! The way back is the same procedure with source and target exchanged. The target then holds an older state of the same
//! site, which is brought up to date.

mod copy;
mod freeze;
mod hosts;
mod kinds;
mod stage;
mod translate;

use std::{collections::BTreeSet, fmt::Write as _, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use berth_api::{
    MOVED_FROM_ANNOTATION,
    site::{Site, SiteState, TermRecord},
};
use berth_engine::{Clock, Identities};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use serde_json::json;
use tracing::info;

use crate::{install, requests, site};
use copy::{Contents, Copying};
use kinds::{HOST, NAMESPACE, OURS, Object, SECRET};
use stage::{Begun, End, Stage, abortable, stage};

pub use hosts::{Destination, ticket};

/// A move to make.
#[derive(Clone)]
pub struct Graduation {
    /// The control plane in charge, accessed as administrator.
    pub source: Client,
    /// The control plane to move to, accessed as administrator.
    pub target: Client,
    /// The target accessed as a member of `system:masters`, for operations that it permits to this group only.
    pub masters: Client,
    /// The source's address, for messages.
    pub from: String,
    /// The target as hosts reach it.
    pub to: Destination,
    /// Whether the target holds an older state of the same site: the way back.
    pub back: bool,
    /// How long to wait for hosts to follow.
    pub wait: Duration,
    /// The source of a new site's identity.
    pub identities: Identities,
    /// The clock that the times of the hosts' Leases are compared with.
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Graduation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graduation")
            .field("from", &self.from)
            .field("to", &self.to.server)
            .finish_non_exhaustive()
    }
}

/// The result of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Hosts that were alive and have not followed yet.
    pub missing: BTreeSet<String>,
    /// Hosts that were silent: they follow when they are back.
    pub silent: BTreeSet<String>,
}

async fn understood(client: &Client, which: &str) -> anyhow::Result<(Option<ConfigMap>, Option<Site>)> {
    let map =
        site::found(client).await.with_context(|| format!("asking the {which} whether it is in charge"))?;
    let data = map.as_ref().map(|map| map.data.clone().unwrap_or_default());
    let site = data.map(|data| Site::from_data(&data)).transpose().with_context(|| format!("the {which}"))?;
    Ok((map, site))
}

/// Returns the cluster's identity, which does not depend on its address.
async fn cluster(client: &Client, which: &str) -> anyhow::Result<String> {
    let namespace = requests::get(client, "/api/v1/namespaces/kube-system").await;
    let namespace = namespace.with_context(|| format!("asking the {which} which cluster it is"))?;
    let uid = namespace["metadata"]["uid"].as_str().map(str::to_owned);
    uid.with_context(|| format!("the {which} does not say which cluster it is"))
}

/// Checks for administrator rights up front, so that no request is refused half-way.
async fn require_administrator(client: &Client, address: &str) -> anyhow::Result<()> {
    let everything = json!({"verb": "*", "group": "*", "resource": "*"});
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": everything}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer = requests::send(client, http::Method::POST, path, "application/json", &review).await;
    let answer = answer.with_context(|| format!("asking what may be done on {address}"))?;
    if answer["status"]["allowed"] != true {
        bail!("the kubeconfig for {address} is not an administrator's: ClusterRole cluster-admin is needed");
    }
    Ok(())
}

/// The recorded site state of source and target.
struct Ends {
    source_map: Option<ConfigMap>,
    source: Option<Site>,
    target_map: Option<ConfigMap>,
    target: Option<Site>,
    /// The identities of the two control planes.
    source_cluster: String,
    target_cluster: String,
}

impl Graduation {
    async fn ends(&self) -> anyhow::Result<Ends> {
        let (source_map, source) = understood(&self.source, "source").await?;
        let (target_map, target) = understood(&self.target, "target").await?;
        let source_cluster = cluster(&self.source, "source").await?;
        let target_cluster = cluster(&self.target, "target").await?;
        if source_cluster == target_cluster {
            bail!(
                "{} is the control plane that the site uses now: give the kubeconfig of another one as the target",
                self.to.server
            );
        }
        Ok(Ends { source_map, source, target_map, target, source_cluster, target_cluster })
    }

    fn stage(&self, ends: &Ends) -> anyhow::Result<Stage> {
        let to = End { address: &self.to.server, cluster: &ends.target_cluster };
        stage(ends.source.as_ref(), ends.target.as_ref(), &to, self.back)
    }

    /// Describes the move for the user without making it.
    ///
    /// *Errors:* the reason why the move cannot be made; a control plane's error.
    pub async fn plan(&self) -> anyhow::Result<String> {
        let begun = match self.stage(&self.ends().await?)? {
            Stage::Before(begun) => begun,
            Stage::HandedOver(_) => {
                return Ok("The source has handed over: the target is in charge, and hosts follow.\n".into());
            }
        };
        let contents = self.require_free(&begun).await?;
        let mut text = format!("From {} to {}:\n", self.from, self.to.server);
        for kind in [NAMESPACE, SECRET].into_iter().chain(OURS) {
            let count = contents.of(kind).count();
            if count > 0 {
                let _ = writeln!(text, "  {:<24} {count:>6}", kind.name);
            }
        }
        let (all, alive) =
            (hosts::all(&self.source).await?, hosts::alive(&self.source, self.clock.now()).await?);
        let silent: Vec<&String> = all.difference(&alive).collect();
        let _ = writeln!(text, "{} hosts follow by themselves.", all.len() - silent.len());
        if !silent.is_empty() {
            let _ = writeln!(text, "Silent, follow when they are back: {silent:?}");
        }
        text.push_str("Guests go on running; what is declared cannot be changed until it is done.\n");
        Ok(text)
    }

    /// Returns the objects to move after a check that the target has no conflicting objects.
    ///
    /// *Errors:* the conflicts; the caller lacks a permission; a control plane's error.
    async fn require_free(&self, begun: &Begun) -> anyhow::Result<Contents> {
        require_administrator(&self.source, &self.from).await?;
        require_administrator(&self.target, &self.to.server).await?;
        let contents = Contents::read(&self.source).await?;
        let target = Contents::read_with(&self.target, &contents.secrets_named()).await?;
        let conflicts = conflicts(&contents, &target, begun.older);
        if conflicts.is_empty() {
            return Ok(contents);
        }
        let some: Vec<&str> = conflicts.iter().take(8).map(String::as_str).collect();
        bail!(
            "the target has objects of its own ({} of them): {}. A site moves to a control plane without one: delete \
             them, or choose another cluster",
            conflicts.len(),
            some.join(", ")
        )
    }

    /// Makes or resumes the move. `tell` receives progress messages for the user.
    ///
    /// *Errors:* a control plane's error; the target has objects of its own. The call can be repeated.
    pub async fn run(&self, tell: &mut (dyn FnMut(&str) + Send)) -> anyhow::Result<Outcome> {
        let ends = self.ends().await?;
        let leaving = match self.stage(&ends)? {
            Stage::Before(begun) => Box::pin(self.move_objects(&ends, begun, tell)).await?,
            Stage::HandedOver(site) => site,
        };
        tell("hosts get access to the target");
        let now = self.clock.now();
        Box::pin(hosts::invite(&self.source, &self.target, &self.to, &leaving.next(), now)).await?;
        let alive = Box::pin(self.hand_over(&leaving, tell)).await?;
        hosts::nudge(&self.source, &leaving.next()).await?;
        let all = hosts::all(&self.source).await?;
        tell("waiting for the hosts");
        let missing = hosts::arrived(&self.target, &all & &alive, self.wait, self.clock.as_ref()).await?;
        let here = hosts::alive(&self.target, self.clock.now()).await?;
        Ok(Outcome { missing, silent: &(&all - &alive) - &here })
    }

    /// Performs the steps before the hosts get access. Returns the site state that the source records then.
    async fn move_objects(
        &self,
        ends: &Ends,
        begun: Begun,
        tell: &mut (dyn FnMut(&str) + Send),
    ) -> anyhow::Result<Site> {
        if !begun.receiving {
            self.require_free(&begun).await?;
            tell("definitions, roles and admission policies");
            install::manifests(&self.target).await.context("installing berth's definitions on the target")?;
        }
        let leaving = Site {
            id: begun.id.unwrap_or_else(|| self.identities.hex(16)),
            term: begun.term,
            state: SiteState::Leaving,
            other: self.to.server.clone(),
            cluster: ends.target_cluster.clone(),
        };
        if ends.source.as_ref() != Some(&leaving) {
            site::write(&self.source, ends.source_map.as_ref(), &leaving)
                .await
                .context("beginning to leave")?;
        }
        tell("the source takes no more writes");
        freeze::freeze(&self.source, &self.to.server).await?;
        let coming = if begun.older { SiteState::Returning } else { SiteState::Receiving };
        self.receive(&self.next(&leaving, coming, &ends.source_cluster), ends).await?;
        tell("objects, statuses and field owners");
        let copying = Copying {
            from: &self.source,
            to: &self.target,
            masters: &self.masters,
            replace: begun.older,
            address: &self.to.server,
        };
        Box::pin(copying.run()).await?;
        Ok(leaving)
    }

    /// Returns the target's site state that corresponds to `leaving` on the source.
    fn next(&self, leaving: &Site, state: SiteState, source_cluster: &str) -> Site {
        let TermRecord { site: id, term } = leaving.next();
        Site { id, term, state, other: self.from.clone(), cluster: source_cluster.to_owned() }
    }

    /// Records on the target that a site moves to it: from then on its controllers and agents do not act.
    async fn receive(&self, coming: &Site, ends: &Ends) -> anyhow::Result<()> {
        if ends.target.as_ref() != Some(coming) {
            site::write(&self.target, ends.target_map.as_ref(), coming)
                .await
                .context("telling the target that it receives a site")?;
        }
        // An earlier move may have frozen the target when the site left it.
        freeze::thaw(&self.target).await?;
        copy::until_served(&self.target).await?;
        freeze::until_thawed(&self.target).await?;
        // Controllers that run on the target have noticed after this time.
        tokio::time::sleep(site::LOOK_EVERY * 2).await;
        Ok(())
    }

    /// Passes the point of no return and puts the target in charge. Returns the hosts that were alive before.
    async fn hand_over(
        &self,
        leaving: &Site,
        tell: &mut (dyn FnMut(&str) + Send),
    ) -> anyhow::Result<BTreeSet<String>> {
        let alive = hosts::alive(&self.source, self.clock.now()).await?;
        let (map, now) = understood(&self.source, "source").await?;
        let moved = Site { state: SiteState::Moved, ..leaving.clone() };
        match now {
            Some(now) if now == moved => {}
            Some(now) if now == *leaving => {
                site::write(&self.source, map.as_ref(), &moved).await.context("handing over")?;
                info!(site = moved.id, "the source has handed over");
            }
            _ => bail!("the move was cancelled by another command"),
        }
        let source_cluster = cluster(&self.source, "source").await?;
        let in_charge = self.next(leaving, SiteState::InCharge, &source_cluster);
        let (map, now) = understood(&self.target, "target").await?;
        match now.filter(|now| now.next() == in_charge.next()).map(|now| now.state) {
            Some(SiteState::InCharge) => {}
            Some(SiteState::Receiving | SiteState::Returning) => {
                site::write(&self.target, map.as_ref(), &in_charge).await.context("taking charge")?;
            }
            _ => bail!("the target is not waiting for this site any more"),
        }
        tell("the target is in charge");
        Ok(alive)
    }

    /// Aborts the move and restores the previous state on both control planes. A target that was in charge before
    /// keeps the objects copied to it; its controllers and agents do not act until the site moves to it again.
    ///
    /// *Errors:* the source has handed over, so that only a move in the other direction leads back; a control
    /// plane's error.
    pub async fn abort(&self) -> anyhow::Result<()> {
        let ends = self.ends().await?;
        // The source takes charge again before anything is removed: another process may still run the move and
        // could hand over.
        stay(&self.source, ends.source_map.as_ref(), ends.source.as_ref()).await?;
        if let (Some(source), Some(target), Some(map)) = (&ends.source, &ends.target, &ends.target_map)
            && target.state == SiteState::Receiving
            && source.id == target.id
        {
            self.remove_copies().await?;
            hosts::shut_out(&self.source, &self.target).await?;
            site::forget(&self.target, map).await.context("the target is no longer moved to")?;
        }
        reopen(&self.source).await
    }

    /// Removes the copied objects; objects that the target had before stay.
    async fn remove_copies(&self) -> anyhow::Result<()> {
        // Secrets are copied before the VMs that name them, and VMs are removed first.
        let named = Contents::read(&self.source).await?.secrets_named();
        let copies = Contents::read_with(&self.target, &named).await?;
        for object in copies.0.iter().rev().filter(|object| object.kind != NAMESPACE) {
            let done = match object.annotation(MOVED_FROM_ANNOTATION) {
                Some(_) if object.was(object.uid()) => copy::unmark(&self.target, object).await,
                Some(_) => copy::remove(&self.target, object).await,
                None => Ok(()),
            };
            done.with_context(|| format!("taking away {}", object.title()))?;
        }
        Ok(())
    }
}

/// Aborts a move when the target cannot be reached: the target stays as it is, and its controllers and agents do
/// not act.
///
/// *Errors:* see [`Graduation::abort`].
pub async fn abort_source(source: &Client) -> anyhow::Result<()> {
    let (map, known) = understood(source, "source").await?;
    stay(source, map.as_ref(), known.as_ref()).await?;
    reopen(source).await
}

/// Puts the source in charge again, which prevents a later handover. A handover that has already happened is not
/// undone.
async fn stay(source: &Client, map: Option<&ConfigMap>, known: Option<&Site>) -> anyhow::Result<()> {
    abortable(known)?;
    if let Some(known) = known.filter(|known| known.state == SiteState::Leaving) {
        let in_charge = Site { state: SiteState::InCharge, ..known.clone() };
        site::write(source, map, &in_charge).await.context("being in charge again")?;
    }
    Ok(())
}

/// Revokes the hosts' tickets and accepts writes again.
async fn reopen(source: &Client) -> anyhow::Result<()> {
    hosts::revoke(source).await?;
    freeze::thaw(source).await
}

/// Returns the target's objects that conflict with the move. An older state of the same site does not conflict if
/// at least one of its objects has moved away from the target; otherwise it belongs to some other site.
fn conflicts(source: &Contents, target: &Contents, older: bool) -> Vec<String> {
    let twin = |theirs: &Object| source.0.iter().find(|object| object.key() == theirs.key());
    let older =
        older && target.0.iter().any(|theirs| twin(theirs).is_some_and(|ours| copy::is_moved(ours, theirs)));
    let fine = |theirs: &&Object| {
        older
            || match twin(theirs) {
                Some(object) => copy::is_same(object, theirs),
                None => !theirs.kind.ours || theirs.annotation(MOVED_FROM_ANNOTATION).is_some(),
            }
    };
    let theirs = target.0.iter().filter(|theirs| theirs.kind != NAMESPACE);
    theirs.filter(|theirs| !fine(theirs)).map(Object::title).collect()
}

/// Reports the hosts that have not followed.
pub fn hosts_of(outcome: &Outcome) -> String {
    let mut text = String::new();
    for (names, what) in [
        (&outcome.missing, "have not followed yet (do they reach the new control plane?)"),
        (&outcome.silent, "were silent and follow when they are back"),
    ] {
        if !names.is_empty() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let _ = writeln!(text, "{}s {} {what}", HOST.name, names.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, uid: &str, before: &str) -> Object {
        let kind = *OURS.iter().find(|kind| kind.name == "VMClass").expect("a kind");
        let mut value = json!({"metadata": {"name": name, "uid": uid}});
        if !before.is_empty() {
            value["metadata"]["annotations"] = json!({MOVED_FROM_ANNOTATION: before});
        }
        Object::new(kind, value)
    }

    #[test]
    fn an_older_state_of_the_site_may_be_brought_up_to_date_and_no_other() {
        let source = Contents(vec![class("a", "a2", "a1")]);
        let older = Contents(vec![class("a", "a1", ""), class("gone", "g1", "")]);
        assert!(conflicts(&source, &older, true).is_empty());
        assert_eq!(conflicts(&source, &older, false), ["VMClass gone"], "unless that is what it is");
        let others = Contents(vec![class("a", "x", ""), class("b", "y", "")]);
        assert_eq!(conflicts(&source, &others, true), ["VMClass a", "VMClass b"]);
        let copied = Contents(vec![class("a", "a3", "a2,a1"), class("left", "l3", "l2")]);
        assert!(conflicts(&source, &copied, false).is_empty(), "an attempt of before");
        let beside = Contents(vec![class("a", "b2", "a1")]);
        assert!(conflicts(&source, &beside, false).is_empty(), "both are copies of one");
    }
}
