//! Moves a site from one control plane to another while its guests run: `berth graduate`.
//!
//! ```text
//!      source                                         target
//!   1  Leaving, and takes no more writes              Receiving or Returning: nobody acts on what is there
//!   2        ── definitions, namespaces, Secrets, pools … Hosts, Disks, VMs, attachments, statuses ──▶
//!   3  a ticket for each host                         an account for each host
//!   4  Moved      ◀── from here on there is no way back but another move
//!   5                                                 InCharge
//!   6        ── hosts follow their tickets ──▶
//! ```
//!
//! *Guarantees:* it can be interrupted at any point and run again, which goes on where that was; up to step 4 it can be
//! given up, and then all is as before. Between 4 and 5 nobody is in charge: guests run, nothing new is decided. Never are
//! both (see [`berth_api::site`]).
//!
//! The way back is the same with the ends exchanged. What the target has then is an older state of the same site, which
//! is brought up to date.

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
    site::{Record, Site, SiteState},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use serde_json::json;
use tracing::info;

use crate::{
    clock::{Clock, Identities},
    install, requests, site,
};
use copy::{Contents, Copying};
use kinds::{HOST, NAMESPACE, OURS, Object, SECRET};
use stage::{Begun, End, Stage, abortable, stage};

pub use hosts::{Destination, ticket};

/// A move that is to be made.
#[derive(Clone)]
pub struct Graduation {
    /// The control plane that is in charge, as administrator.
    pub source: Client,
    /// The one that is to be, as administrator.
    pub target: Client,
    /// The target as a member of `system:masters`, for what it takes from nobody else.
    pub masters: Client,
    /// The source, for messages.
    pub from: String,
    /// The target as hosts reach it.
    pub to: Destination,
    /// What the target has is an older state of the same site: the way back.
    pub back: bool,
    /// How long is waited for hosts to follow.
    pub wait: Duration,
    /// Where a new site's identity comes from.
    pub identities: Identities,
    /// What the times of the hosts' Leases are compared with.
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

/// What became of it.
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

/// Which control plane it is, whatever it is called.
async fn cluster(client: &Client, which: &str) -> anyhow::Result<String> {
    let namespace = requests::get(client, "/api/v1/namespaces/kube-system").await;
    let namespace = namespace.with_context(|| format!("asking the {which} which cluster it is"))?;
    let uid = namespace["metadata"]["uid"].as_str().map(str::to_owned);
    uid.with_context(|| format!("the {which} does not say which cluster it is"))
}

/// Makes sure that nothing will be refused half-way.
async fn is_administrator(client: &Client, address: &str) -> anyhow::Result<()> {
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

/// What both ends say.
struct Ends {
    source_map: Option<ConfigMap>,
    source: Option<Site>,
    target_map: Option<ConfigMap>,
    target: Option<Site>,
    /// Which control planes they are.
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
            bail!("{} is the control plane that the site is to leave", self.to.server);
        }
        Ok(Ends { source_map, source, target_map, target, source_cluster, target_cluster })
    }

    fn stage(&self, ends: &Ends) -> anyhow::Result<Stage> {
        let to = End { address: &self.to.server, cluster: &ends.target_cluster };
        stage(ends.source.as_ref(), ends.target.as_ref(), &to, self.back)
    }

    /// What would be done, for people.
    ///
    /// *Errors:* it cannot be done, and why; a control plane's.
    pub async fn plan(&self) -> anyhow::Result<String> {
        let begun = match self.stage(&self.ends().await?)? {
            Stage::Before(begun) => begun,
            Stage::HandedOver(_) => {
                return Ok("The source has handed over: the target is in charge, and hosts follow.\n".into());
            }
        };
        let contents = self.is_free(&begun).await?;
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

    /// What moves, once it is sure that the target has nothing that is in the way.
    ///
    /// *Errors:* it has, and what; somebody who may not do all of it asks; a control plane's.
    async fn is_free(&self, begun: &Begun) -> anyhow::Result<Contents> {
        is_administrator(&self.source, &self.from).await?;
        is_administrator(&self.target, &self.to.server).await?;
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

    /// Makes the move, or goes on with it. `tell` hears what is done, for people.
    ///
    /// *Errors:* a control plane's; the target has objects of its own. It can be run again.
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

    /// All that comes before access for the hosts. Returns what the source says then.
    async fn move_objects(
        &self,
        ends: &Ends,
        begun: Begun,
        tell: &mut (dyn FnMut(&str) + Send),
    ) -> anyhow::Result<Site> {
        if !begun.receiving {
            self.is_free(&begun).await?;
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
        tell("objects, statuses and who owns what");
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

    /// What the target says when the source says this.
    fn next(&self, leaving: &Site, state: SiteState, source_cluster: &str) -> Site {
        let Record { site: id, term } = leaving.next();
        Site { id, term, state, other: self.from.clone(), cluster: source_cluster.to_owned() }
    }

    /// The target says that it is being moved to: from then on nobody acts there.
    async fn receive(&self, coming: &Site, ends: &Ends) -> anyhow::Result<()> {
        if ends.target.as_ref() != Some(coming) {
            site::write(&self.target, ends.target_map.as_ref(), coming)
                .await
                .context("telling the target that it receives a site")?;
        }
        // It may have been left before, on the way there.
        freeze::thaw(&self.target).await?;
        copy::until_served(&self.target).await?;
        freeze::until_thawed(&self.target).await?;
        // Controllers that run there have noticed by then.
        tokio::time::sleep(site::LOOK_EVERY * 2).await;
        Ok(())
    }

    /// The point of no return, and the target's first moment in charge. Returns which hosts were alive before.
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
            _ => bail!("somebody gave the move up meanwhile"),
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

    /// Gives the move up: everything is as before, on both. A target that was in charge before keeps what it was given:
    /// nobody acts there until the site moves to it again.
    ///
    /// *Errors:* the source has handed over: there is no way back but the other direction; a control plane's.
    pub async fn abort(&self) -> anyhow::Result<()> {
        let ends = self.ends().await?;
        // Before anything is taken away that a move which still goes on elsewhere could hand over.
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

    /// Takes away what was copied; what the target had before stays.
    async fn remove_copies(&self) -> anyhow::Result<()> {
        // Secrets are copied before the VMs that name them, and those are taken away first.
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

/// Gives a move up when the target cannot be asked: it stays as it is, and nobody acts there.
///
/// *Errors:* see [`Graduation::abort`].
pub async fn abort_source(source: &Client) -> anyhow::Result<()> {
    let (map, known) = understood(source, "source").await?;
    stay(source, map.as_ref(), known.as_ref()).await?;
    reopen(source).await
}

/// In charge again: nobody can hand over any more, and whoever has done so already is not undone.
async fn stay(source: &Client, map: Option<&ConfigMap>, known: Option<&Site>) -> anyhow::Result<()> {
    abortable(known)?;
    if let Some(known) = known.filter(|known| known.state == SiteState::Leaving) {
        let in_charge = Site { state: SiteState::InCharge, ..known.clone() };
        site::write(source, map, &in_charge).await.context("being in charge again")?;
    }
    Ok(())
}

/// No host finds a way elsewhere, and writes are taken again.
async fn reopen(source: &Client) -> anyhow::Result<()> {
    hosts::revoke(source).await?;
    freeze::thaw(source).await
}

/// What the target has that is in the way. An older state of the same site is not, if any object of it is one that moved
/// away from there: else it is some other site's.
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

/// What the report says of hosts.
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
