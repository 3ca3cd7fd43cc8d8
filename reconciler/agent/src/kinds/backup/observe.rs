//! Observation of a backup. Nothing is read from the repository here: the work in the background does.

use berth_api::Backup;
use berth_api::vm::ConsoleAddress;

use super::{made_by, wanted_by};
use crate::context::Context;
use crate::key::{Key, ObjectName};
use crate::pulls::{Pull, Wanted};

/// Everything a backup's plan is made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    /// Whether its BackupRepository exists.
    pub(crate) has_repository: bool,
    /// The work that it needs now.
    pub(crate) wanted: Option<Wanted>,
    pub(crate) pull: Option<Pull>,
    /// Of one that is deleted: the work that makes it, which is not ended yet.
    pub(crate) unfinished: Option<Wanted>,
    /// The server that clients read a complete one from. None: this host has none.
    pub(crate) server: Option<ConsoleAddress>,
}

pub(super) fn observe(ctx: &Context, backup: &Backup) -> Observed {
    let key = Key::of(backup);
    let (has_repository, wanted, made) = {
        let tables = ctx.index.read();
        let repository = ObjectName::of(backup).beside(backup.spec.repository.as_str());
        let made = backup.metadata.deletion_timestamp.is_some().then(|| made_by(&tables, backup)).flatten();
        (tables.backup_repositories.get(&repository).is_some(), wanted_by(&tables, backup), made)
    };
    let pull = wanted
        .as_ref()
        .and_then(|wanted| ctx.pulls.state(wanted, &key).filter(|pull| !is_in_another(wanted, pull)));
    let unfinished = made.filter(|made| ctx.pulls.state(made, &key).is_some());
    let server = ctx.config.console.as_ref().map(|own| own.published());
    Observed { has_repository, wanted, pull, unfinished, server }
}

/// Whether a backup is in another repository than the one that was recorded while it was made, such as in a folder that its host does not
/// share with the others. It is made again, which is refused with the cause as long as that repository is there.
pub(super) fn is_in_another(wanted: &Wanted, pull: &Pull) -> bool {
    match (wanted, pull) {
        (Wanted::Backup(repository, ..) | Wanted::Existing(repository, _), Pull::Stored(facts)) => {
            repository.id.0.as_ref().is_some_and(|id| *id != facts.repository)
        }
        _ => false,
    }
}
