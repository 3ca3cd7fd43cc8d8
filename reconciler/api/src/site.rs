//! Which control plane is in charge of a site: of all hosts that obey one another's placement. Pure.
//!
//! A site moves from one control plane to another as a whole (`berth graduate`). Each control plane that took part has
//! the ConfigMap [`SITE`], which says how it stands; each host keeps a [`Record`] of the newest term it has seen.
//!
//! ```text
//!   the old one:  (none) ─▶ Leaving ─▶ Moved                term n
//!                              └▶ InCharge (given up)
//!   the new one:  (none) ─▶ Receiving ─▶ InCharge           term n + 1
//!     or, if it was in charge before:  Moved ─▶ Returning ─▶ InCharge
//! ```
//!
//! *Guarantees:* of one term there is one control plane; the old one has `Moved` before the new one is `InCharge`; a host
//! that has seen a term never again obeys an older one. So what comes back from a backup commands nobody.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The ConfigMap in `berth-system`. A control plane without it is in charge and never took part in a move.
pub const SITE: &str = "berth-site";
/// The first term that a move leads to: what is of an earlier one is no reason to refuse anything.
const FIRST_MOVED: u64 = 2;

/// How a control plane stands to its site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteState {
    /// Its controllers decide and its hosts obey.
    InCharge,
    /// Still obeyed, but nothing of berth's can be written any more: it is being copied.
    Leaving,
    /// Objects come in; nobody acts on them yet.
    Receiving,
    /// The same, and what it had before is an older state of the site.
    Returning,
    /// Another one is in charge, with the next term. Final for this term.
    Moved,
}

impl SiteState {
    const ALL: [(Self, &str); 5] = [
        (Self::InCharge, "InCharge"),
        (Self::Leaving, "Leaving"),
        (Self::Receiving, "Receiving"),
        (Self::Returning, "Returning"),
        (Self::Moved, "Moved"),
    ];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(state, _)| *state == self).map_or("", |(_, text)| text)
    }
}

/// What the ConfigMap says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The same on every control plane the site was ever on.
    pub id: String,
    /// Counts the control planes the site was on, the first one is 1.
    pub term: u64,
    /// How this one stands.
    pub state: SiteState,
    /// The control plane at the other end of the move, as people know it: `https://host:port`.
    pub other: String,
    /// Which one that is, whatever it is called: the uid of its namespace `kube-system`.
    pub cluster: String,
}

/// Why the ConfigMap cannot be understood.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("ConfigMap berth-system/berth-site cannot be understood: its {field} is {value:?}")]
pub struct SiteError {
    field: &'static str,
    value: String,
}

impl Site {
    /// The ConfigMap's data.
    pub fn to_data(&self) -> BTreeMap<String, String> {
        [
            ("site", self.id.clone()),
            ("term", self.term.to_string()),
            ("state", self.state.as_str().to_owned()),
            ("other", self.other.clone()),
            ("cluster", self.cluster.clone()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    /// Reads the ConfigMap's data.
    ///
    /// *Errors:* a newer berth wrote it, or a person.
    pub fn from_data(data: &BTreeMap<String, String>) -> Result<Self, SiteError> {
        let text = |field: &str| data.get(field).cloned().unwrap_or_default();
        let wrong = |field: &'static str| SiteError { field, value: text(field) };
        let state = SiteState::ALL.iter().find(|(_, name)| *name == text("state"));
        Ok(Self {
            id: Some(text("site")).filter(|id| !id.is_empty()).ok_or_else(|| wrong("site"))?,
            term: text("term").parse().map_err(|_| wrong("term"))?,
            state: state.map(|(state, _)| *state).ok_or_else(|| wrong("state"))?,
            other: text("other"),
            cluster: text("cluster"),
        })
    }

    /// What the successor's hosts keep.
    pub fn next(&self) -> Record {
        Record { site: self.id.clone(), term: self.term + 1 }
    }

    fn record(&self) -> Record {
        Record { site: self.id.clone(), term: self.term }
    }
}

/// What a host keeps of the newest control plane it obeyed, or was told to obey.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The site.
    pub site: String,
    /// The term.
    pub term: u64,
}

/// What a control plane is to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It commands the host, once the host has kept this.
    Commands(Option<Record>),
    /// It does not (yet), and why.
    Waits(String),
    /// Its successor does, once the host has kept this.
    Moved(Record),
}

/// What a control plane that says this of itself is to a host that has kept that. Also what its controllers go by.
///
/// *Guarantees:* at most one of the control planes of a site commands a host, whatever backups come back.
pub fn judge(site: Option<&Site>, record: Option<&Record>) -> Standing {
    let Some(site) = site else {
        return match record {
            None => Standing::Commands(None),
            Some(record) => Standing::Waits(format!(
                "it does not know that the site moved (term {}): it came back from a backup, or is another site's",
                record.term
            )),
        };
    };
    let newest = record.map_or(0, |record| record.term);
    if record.is_some_and(|record| record.site != site.id) {
        return Standing::Waits(
            "it is another site's: the host has to join it anew to belong to it".to_owned(),
        );
    }
    match site.state {
        SiteState::Receiving | SiteState::Returning => {
            Standing::Waits("objects are still being moved to it".to_owned())
        }
        SiteState::Moved if site.term + 1 >= newest => Standing::Moved(site.next()),
        SiteState::InCharge | SiteState::Leaving if site.term >= newest => {
            let note = site.term > newest && site.term >= FIRST_MOVED;
            Standing::Commands(note.then(|| site.record()))
        }
        _ => Standing::Waits(format!(
            "it was in charge before (term {}), another one was since (term {newest})",
            site.term
        )),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn site(term: u64, state: SiteState) -> Site {
        Site { id: "s".into(), term, state, other: "https://other:6443".into(), cluster: "c".into() }
    }

    fn record(term: u64) -> Record {
        Record { site: "s".into(), term }
    }

    #[test]
    fn the_data_says_again_what_it_was_made_from_and_nothing_else_is_taken_for_it() {
        for (state, _) in SiteState::ALL {
            assert_eq!(Site::from_data(&site(3, state).to_data()), Ok(site(3, state)));
        }
        for field in ["site", "term", "state"] {
            let mut data = site(3, SiteState::Moved).to_data();
            data.insert(field.into(), String::new());
            assert!(Site::from_data(&data).is_err(), "{field}");
        }
    }

    #[test]
    fn a_site_that_never_moved_is_as_if_there_were_no_such_thing() {
        assert_eq!(judge(None, None), Standing::Commands(None));
        assert_eq!(judge(Some(&site(1, SiteState::Leaving)), None), Standing::Commands(None));
        assert_eq!(
            judge(Some(&site(1, SiteState::InCharge)), None),
            Standing::Commands(None),
            "it was given up"
        );
    }

    #[test]
    fn a_host_goes_on_to_the_successor_and_never_back_by_itself() {
        let old = site(1, SiteState::Moved);
        assert_eq!(judge(Some(&old), None), Standing::Moved(record(2)));
        assert_eq!(
            judge(Some(&old), Some(&record(2))),
            Standing::Moved(record(2)),
            "it was interrupted on its way"
        );
        assert_eq!(judge(Some(&site(2, SiteState::InCharge)), Some(&record(2))), Standing::Commands(None));
        for backup in [None, Some(site(1, SiteState::InCharge)), Some(site(1, SiteState::Leaving))] {
            assert!(matches!(judge(backup.as_ref(), Some(&record(2))), Standing::Waits(_)), "{backup:?}");
        }
        let taken_back = site(3, SiteState::InCharge);
        assert_eq!(judge(Some(&taken_back), Some(&record(2))), Standing::Commands(Some(record(3))));
        assert!(
            matches!(judge(Some(&old), Some(&record(3))), Standing::Waits(_)),
            "it leads to an older one"
        );
    }

    #[test]
    fn another_sites_control_plane_is_none_of_a_host_that_moved() {
        let other = Site { id: "t".into(), ..site(9, SiteState::InCharge) };
        assert!(matches!(judge(Some(&other), Some(&record(2))), Standing::Waits(_)));
    }

    proptest! {
        /// A site moves from one control plane to another and on, any of them comes back from a backup of any age, and
        /// a host asks them in any order: the terms it obeys never fall.
        #[test]
        fn a_host_never_obeys_an_older_term_than_one_it_obeyed(
            asked in prop::collection::vec((0u64..6, 0usize..5), 1..60),
        ) {
            let (mut kept, mut obeyed) = (None::<Record>, 0);
            for (term, state) in asked {
                let asked = (term > 0).then(|| site(term, SiteState::ALL[state].0));
                match judge(asked.as_ref(), kept.as_ref()) {
                    Standing::Commands(note) => {
                        let term = if term >= FIRST_MOVED { term } else { 1 };
                        prop_assert!(term >= obeyed, "{term} after {obeyed}");
                        obeyed = term;
                        kept = note.or(kept);
                    }
                    Standing::Moved(note) => {
                        prop_assert!(kept.as_ref().is_none_or(|kept| note.term >= kept.term));
                        kept = Some(note);
                    }
                    Standing::Waits(_) => {}
                }
            }
        }
    }
}
