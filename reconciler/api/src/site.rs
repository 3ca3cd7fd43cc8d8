//! The control plane in charge of a site: a set of hosts and the control plane that they obey. Pure.
//!
//! A site moves from one control plane to another as a whole (`berth graduate`). Each control plane that took part has
//! the ConfigMap [`SITE`], which has its state; each host keeps a [`TermRecord`] of the newest term it has seen.
//!
//! ```text
//!   the old one:  (none) ─▶ Leaving ─▶ Moved                term n
//!                              └▶ InCharge (given up)
//!   the new one:  (none) ─▶ Receiving ─▶ InCharge           term n + 1
//!     or, if it was in charge before:  Moved ─▶ Returning ─▶ InCharge
//! ```
//!
//! *Guarantees:* of one term there is one control plane; the old one has `Moved` before the new one is `InCharge`; a host
//! that has seen a term never again obeys an older one. So a control plane restored from a backup commands no host.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The ConfigMap in `berth-system`. A control plane without it is in charge and never took part in a move.
pub const SITE: &str = "berth-site";
/// The first term that a move leads to.
const FIRST_MOVED: u64 = 2;

/// The state of a control plane within its site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteState {
    /// Its controllers decide and its hosts obey.
    InCharge,
    /// Hosts still obey it, but berth's objects are read-only: they are being copied.
    Leaving,
    /// Objects are copied into it; nothing acts on them yet.
    Receiving,
    /// As `Receiving`, and its earlier objects are an older state of the site.
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

    /// The state as text.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(state, _)| *state == self).map_or("", |(_, text)| text)
    }
}

/// The content of the ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The identity of the site, the same on each of its control planes.
    pub id: String,
    /// The number of this control plane in the site's history, from 1.
    pub term: u64,
    /// The state of this control plane.
    pub state: SiteState,
    /// The address of the control plane at the other end of the move: `https://host:port`.
    pub other: String,
    /// The identity of that control plane, whatever its address: the uid of its namespace `kube-system`.
    pub cluster: String,
}

/// An invalid value in the ConfigMap.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("ConfigMap berth-system/berth-site is invalid: its {field} is {value:?}")]
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

    /// The record that the successor's hosts keep.
    pub fn next(&self) -> TermRecord {
        TermRecord { site: self.id.clone(), term: self.term + 1 }
    }

    fn record(&self) -> TermRecord {
        TermRecord { site: self.id.clone(), term: self.term }
    }
}

/// A host's record of the newest control plane it obeyed, or was ordered to obey.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermRecord {
    /// The site.
    pub site: String,
    /// The term.
    pub term: u64,
}

/// The relation of a control plane to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authority {
    /// It commands the host, once the host has kept this.
    InCharge(Option<TermRecord>),
    /// It does not (yet), and why.
    NotInCharge(String),
    /// Its successor does, once the host has kept this.
    Moved(TermRecord),
}

/// The relation of a control plane with this state to a host with that record. Its controllers use it too.
///
/// *Guarantees:* at most one of the control planes of a site commands a host, whatever backups come back.
pub fn authority(site: Option<&Site>, record: Option<&TermRecord>) -> Authority {
    let Some(site) = site else {
        return match record {
            None => Authority::InCharge(None),
            Some(record) => Authority::NotInCharge(format!(
                "it does not know that the site moved (term {}): it came back from a backup, or is another site's",
                record.term
            )),
        };
    };
    let newest = record.map_or(0, |record| record.term);
    if record.is_some_and(|record| record.site != site.id) {
        return Authority::NotInCharge(
            "it is another site's: the host has to join it anew to belong to it".to_owned(),
        );
    }
    match site.state {
        SiteState::Receiving | SiteState::Returning => {
            Authority::NotInCharge("objects are still being moved to it".to_owned())
        }
        SiteState::Moved if site.term + 1 >= newest => Authority::Moved(site.next()),
        SiteState::InCharge | SiteState::Leaving if site.term >= newest => {
            let note = site.term > newest && site.term >= FIRST_MOVED;
            Authority::InCharge(note.then(|| site.record()))
        }
        _ => Authority::NotInCharge(format!(
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

    fn record(term: u64) -> TermRecord {
        TermRecord { site: "s".into(), term }
    }

    #[test]
    fn data_reads_back_as_it_was_written_and_other_data_is_an_error() {
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
        assert_eq!(authority(None, None), Authority::InCharge(None));
        assert_eq!(authority(Some(&site(1, SiteState::Leaving)), None), Authority::InCharge(None));
        assert_eq!(
            authority(Some(&site(1, SiteState::InCharge)), None),
            Authority::InCharge(None),
            "it was given up"
        );
    }

    #[test]
    fn a_host_goes_on_to_the_successor_and_never_back_by_itself() {
        let old = site(1, SiteState::Moved);
        assert_eq!(authority(Some(&old), None), Authority::Moved(record(2)));
        assert_eq!(
            authority(Some(&old), Some(&record(2))),
            Authority::Moved(record(2)),
            "it was interrupted on its way"
        );
        assert_eq!(
            authority(Some(&site(2, SiteState::InCharge)), Some(&record(2))),
            Authority::InCharge(None)
        );
        for backup in [None, Some(site(1, SiteState::InCharge)), Some(site(1, SiteState::Leaving))] {
            assert!(
                matches!(authority(backup.as_ref(), Some(&record(2))), Authority::NotInCharge(_)),
                "{backup:?}"
            );
        }
        let taken_back = site(3, SiteState::InCharge);
        assert_eq!(authority(Some(&taken_back), Some(&record(2))), Authority::InCharge(Some(record(3))));
        assert!(
            matches!(authority(Some(&old), Some(&record(3))), Authority::NotInCharge(_)),
            "it leads to an older one"
        );
    }

    #[test]
    fn another_sites_control_plane_is_none_of_a_host_that_moved() {
        let other = Site { id: "t".into(), ..site(9, SiteState::InCharge) };
        assert!(matches!(authority(Some(&other), Some(&record(2))), Authority::NotInCharge(_)));
    }

    proptest! {
        /// A site moves from one control plane to another and on, any of them comes back from a backup of any age, and
        /// a host asks them in any order: the terms it obeys never fall.
        #[test]
        fn a_host_never_obeys_an_older_term_than_one_it_obeyed(
            asked in prop::collection::vec((0u64..6, 0usize..5), 1..60),
        ) {
            let (mut kept, mut obeyed) = (None::<TermRecord>, 0);
            for (term, state) in asked {
                let asked = (term > 0).then(|| site(term, SiteState::ALL[state].0));
                match authority(asked.as_ref(), kept.as_ref()) {
                    Authority::InCharge(note) => {
                        let term = if term >= FIRST_MOVED { term } else { 1 };
                        prop_assert!(term >= obeyed, "{term} after {obeyed}");
                        obeyed = term;
                        kept = note.or(kept);
                    }
                    Authority::Moved(note) => {
                        prop_assert!(kept.as_ref().is_none_or(|kept| note.term >= kept.term));
                        kept = Some(note);
                    }
                    Authority::NotInCharge(_) => {}
                }
            }
        }
    }
}
