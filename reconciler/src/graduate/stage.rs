//! The progress of a move, read from both ends. Pure.

use anyhow::{Context, bail};
use berth_api::site::{Site, SiteState};

/// A control plane at one end, as its site's other end names it.
#[derive(Clone, Debug)]
pub(super) struct End<'a> {
    /// `https://host:port`, for messages.
    pub(super) address: &'a str,
    /// See [`Site::cluster`].
    pub(super) cluster: &'a str,
}

/// The progress of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Before the point of no return.
    Before(Begun),
    /// The source has moved; the target may not be in charge yet.
    HandedOver(Site),
}

/// A move before the point of no return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Begun {
    /// The site's name, if it has one: a site that never moved has none.
    pub(super) id: Option<String>,
    /// The source's term.
    pub(super) term: u64,
    /// The target receives objects: those it has are of this move, or were checked when it began.
    pub(super) receiving: bool,
    /// The target holds an older state of the same site, to be brought up to date.
    pub(super) older: bool,
}

/// Returns the progress of the move from the site states of source and target. `back`: the target was in charge
/// before, even if it no longer records that.
///
/// *Errors:* there is no such move; the message is for the user.
pub(super) fn stage(
    source: Option<&Site>,
    target: Option<&Site>,
    to: &End<'_>,
    back: bool,
) -> anyhow::Result<Stage> {
    let moved = match source {
        Some(source) if is_coming(source) => {
            bail!("the source is itself being moved to: from {}", source.other)
        }
        Some(source) if source.state != SiteState::InCharge && source.cluster != to.cluster => bail!(
            "the site {} {}, which is not {}{}",
            if source.state == SiteState::Moved { "has moved to" } else { "is on its way to" },
            source.other,
            to.address,
            if source.state == SiteState::Moved { "" } else { ": give that up first, with --abort" },
        ),
        Some(source) => source.state == SiteState::Moved,
        None => false,
    };
    let term = source.map_or(1, |source| source.term);
    let id = source.map(|source| source.id.clone());
    let Some(target) = target else {
        if moved {
            bail!("the site has moved to {}, which knows nothing of it: was it set back?", to.address);
        }
        return Ok(Stage::Before(Begun { id, term, receiving: false, older: back }));
    };
    let same = id.as_ref() == Some(&target.id);
    let is_next = same && target.term == term + 1;
    if moved {
        if is_next && (is_coming(target) || target.state == SiteState::InCharge) {
            return Ok(Stage::HandedOver(source.cloned().context("a site that moved has a name")?));
        }
        let (state, term) = (target.state.as_str(), target.term);
        bail!("the site has moved to {}, which reports state {state} with term {term}", to.address);
    }
    match target.state {
        SiteState::Receiving if is_next => {
            Ok(Stage::Before(Begun { id, term, receiving: true, older: false }))
        }
        SiteState::Returning if is_next => {
            Ok(Stage::Before(Begun { id, term, receiving: true, older: true }))
        }
        // The target was in charge before: it records that, or was restored from a backup. Or a move there was
        // aborted on the source only.
        state if same && target.term <= term && (back || state != SiteState::InCharge) => {
            let older = state != SiteState::Receiving;
            Ok(Stage::Before(Begun { id, term, receiving: false, older }))
        }
        _ => bail!(
            "{} is another site's control plane already (ConfigMap berth-system/berth-site)",
            to.address
        ),
    }
}

fn is_coming(site: &Site) -> bool {
    matches!(site.state, SiteState::Receiving | SiteState::Returning)
}

/// Checks that a move away can be aborted.
///
/// *Errors:* it cannot; the message is for the user.
pub(super) fn abortable(source: Option<&Site>) -> anyhow::Result<()> {
    match source.map(|source| source.state) {
        Some(SiteState::Moved) => bail!(
            "the site has been handed over: run `berth graduate` again to end it, or `berth graduate --back` to come back"
        ),
        Some(SiteState::Receiving | SiteState::Returning) => {
            bail!("the site is being moved here, not away: give it up where it began")
        }
        Some(SiteState::Leaving | SiteState::InCharge) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SiteState::{InCharge, Leaving, Moved, Receiving, Returning};

    const TO: End<'static> = End { address: "https://cluster:6443", cluster: "c" };

    fn site(term: u64, state: SiteState) -> Site {
        Site { id: "s".into(), term, state, other: TO.address.into(), cluster: TO.cluster.into() }
    }

    fn at(source: Option<Site>, target: Option<Site>, back: bool) -> Option<Stage> {
        stage(source.as_ref(), target.as_ref(), &TO, back).ok()
    }

    fn before(term: u64, receiving: bool, older: bool) -> Option<Stage> {
        Some(Stage::Before(Begun { id: Some("s".into()), term, receiving, older }))
    }

    #[test]
    fn where_it_was_interrupted_is_read_from_both_ends() {
        let first = Begun { id: None, term: 1, receiving: false, older: false };
        assert_eq!(at(None, None, false), Some(Stage::Before(first)));
        assert_eq!(at(Some(site(1, Leaving)), None, false), before(1, false, false));
        assert_eq!(at(Some(site(1, Leaving)), Some(site(2, Receiving)), false), before(1, true, false));
        let given_up_here_only = at(Some(site(1, InCharge)), Some(site(2, Receiving)), false);
        assert_eq!(given_up_here_only, before(1, true, false));
        let handed_over = Some(Stage::HandedOver(site(1, Moved)));
        for target in [Receiving, Returning, InCharge] {
            assert_eq!(at(Some(site(1, Moved)), Some(site(2, target)), false), handed_over, "{target:?}");
        }
    }

    #[test]
    fn what_is_no_such_move_is_refused() {
        let elsewhere = |state| Site { cluster: "another".into(), ..site(1, state) };
        for (source, target) in [
            (Some(site(1, Moved)), None),
            (None, Some(site(2, InCharge))),
            (None, Some(site(2, Receiving))),
            (Some(site(1, Leaving)), Some(site(3, Receiving))),
            (Some(site(2, Receiving)), None),
            (Some(site(2, Returning)), None),
            (Some(site(1, Moved)), Some(site(4, InCharge))),
            // Two control planes that receive the same term: only the one that was moved to takes charge.
            (Some(elsewhere(Moved)), Some(site(2, Receiving))),
            (Some(elsewhere(Moved)), Some(site(2, InCharge))),
            (Some(elsewhere(Leaving)), None),
        ] {
            assert_eq!(at(source.clone(), target.clone(), false), None, "{source:?} {target:?}");
        }
        assert!(at(Some(elsewhere(InCharge)), None, false).is_some(), "where it came from is no obstacle");
    }

    #[test]
    fn the_way_back_leads_to_one_that_was_in_charge_before() {
        let here = Some(site(2, InCharge));
        assert_eq!(at(here.clone(), Some(site(1, Moved)), true), before(2, false, true));
        assert_eq!(at(here.clone(), Some(site(3, Returning)), true), before(2, true, true), "interrupted");
        assert_eq!(at(here.clone(), Some(site(2, Returning)), true), before(2, false, true), "given up then");
        assert_eq!(at(here.clone(), Some(site(1, InCharge)), true), before(2, false, true), "a backup");
        assert_eq!(at(here.clone(), None, true), before(2, false, true), "a backup of before");
        let others = Site { id: "t".into(), ..site(1, InCharge) };
        assert_eq!(at(here.clone(), Some(others), true), None);
        assert_eq!(at(here, Some(site(1, InCharge)), false), None, "not unless asked for");
    }
}
