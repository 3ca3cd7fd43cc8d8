//! Opens repositories, and explains their errors.

use std::io;
use std::path::PathBuf;

use berth_backup::{Error, Location, Repository, Resolver, S3Location};
use berth_engine::ErrorChain;

use super::super::LinuxSystem;
use super::super::files::{self, blocking, is_full};
use super::super::layout::check_name;
use crate::{RepositoryAccess, RepositoryPlace, RepositoryProblem, Result, SystemError};

impl LinuxSystem {
    /// Opens a repository, or makes it if `makes` and none was opened before. Returns None if there is none and none was opened
    /// before.
    pub(super) async fn open_repository(
        &self,
        access: &RepositoryAccess,
        makes: bool,
    ) -> Result<Option<Repository>> {
        let is_new = access.id.is_none();
        let location = self.location(access, makes && is_new).await?;
        let opened = Repository::open(&location, &access.password, makes && is_new).await;
        let repository = match opened {
            Err(Error::NoRepository { .. }) if is_new && !makes => return Ok(None),
            // The password of the former one is not that of another one.
            Err(Error::Password { id, place }) => {
                let replaced = replaced(access, &id.to_string());
                return Err(replaced.unwrap_or_else(|| failed(access, Error::Password { id, place })));
            }
            opened => opened.map_err(|error| failed(access, error))?,
        };
        match replaced(access, &repository.id().to_string()) {
            Some(replaced) => Err(replaced),
            None => Ok(Some(repository)),
        }
    }

    async fn location(&self, access: &RepositoryAccess, makes: bool) -> Result<Location> {
        match &access.place {
            RepositoryPlace::Folder { name, namespace, repository } => {
                check_name("namespace", namespace)?;
                check_name("repository", repository)?;
                let namespace = self.backup_folders.path(name).await?.join(namespace);
                let path = namespace.join(repository);
                if makes {
                    blocking(move || files::ensure_private_folder(&namespace)).await?;
                }
                Ok(Location::Folder(path))
            }
            RepositoryPlace::S3 { endpoint, region, bucket, prefix } => {
                let s3 = access.s3.as_ref().ok_or_else(|| SystemError::Repository {
                    repository: access.shown.clone(),
                    problem: RepositoryProblem::Denied,
                    detail: "it has no credentials".to_owned(),
                })?;
                if !self.images.allows_url(endpoint) {
                    return Err(SystemError::Repository {
                        repository: access.shown.clone(),
                        problem: RepositoryProblem::Denied,
                        detail: format!(
                            "{endpoint} has an address that is not public: this host's administrator allows it with --image-allow"
                        ),
                    });
                }
                Ok(Location::S3(S3Location {
                    resolver: Some(Resolver(self.images.resolver())),
                    endpoint: endpoint.clone(),
                    region: region.clone(),
                    bucket: bucket.clone(),
                    prefix: prefix.clone(),
                    access_key_id: s3.key_id.clone(),
                    secret_access_key: s3.secret.clone(),
                    ca_certificates: s3.ca.clone(),
                }))
            }
        }
    }
}

/// The error if a repository with this identity is not the one that was opened before.
fn replaced(access: &RepositoryAccess, found: &str) -> Option<SystemError> {
    let id = access.id.as_ref().filter(|id| *id != found)?;
    Some(SystemError::Repository {
        repository: access.shown.clone(),
        problem: RepositoryProblem::Replaced,
        detail: format!(
            "the repository there is {found}, and it was {id} when it was first opened: restore that one, have all hosts use the \
             same folder, or declare another BackupRepository for this one. Nothing is written to it"
        ),
    })
}

/// Explains an error of a repository by what a person can do about it.
pub(super) fn failed(access: &RepositoryAccess, error: Error) -> SystemError {
    let repository = || access.shown.clone();
    let detail = ErrorChain(&error).to_string();
    let problem =
        |problem| SystemError::Repository { repository: repository(), problem, detail: detail.clone() };
    match error {
        Error::Password { .. } | Error::NoPassword => problem(RepositoryProblem::WrongPassword),
        Error::Replaced { .. } => problem(RepositoryProblem::Replaced),
        Error::NoRepository { .. } if access.id.is_some() => SystemError::Repository {
            repository: repository(),
            problem: RepositoryProblem::NoRepository,
            detail: format!("{detail}. To begin anew in an empty place, create the BackupRepository again"),
        },
        Error::NoRepository { .. }
        | Error::NotEmpty { .. }
        | Error::Version { .. }
        | Error::Location { .. } => problem(RepositoryProblem::NoRepository),
        Error::Refused { ref code, .. } if code == "NoSuchBucket" => problem(RepositoryProblem::NoRepository),
        Error::Refused { status: 401 | 403, .. } => problem(RepositoryProblem::Denied),
        Error::Folder { path, source, .. } => of_folder(path, &source, problem),
        Error::NoAnswer { .. }
        | Error::FolderStalled { .. }
        | Error::Refused { .. }
        | Error::UnexpectedAnswer { .. } => problem(RepositoryProblem::Unreachable),
        Error::NoBackup { disk, backup } => {
            let backup = format!("{disk}/{backup}");
            SystemError::BackupLost { backup, repository: repository(), detail }
        }
        Error::Damaged { place, .. } | Error::MissingBlock { place } | Error::BlocksDeleted { place } => {
            SystemError::BackupLost { backup: place, repository: repository(), detail }
        }
        // The error of the disk, as its own functions explain it.
        Error::Source { source, .. } | Error::Sink { source, .. } => match source.downcast::<SystemError>() {
            Ok(own) => *own,
            Err(_) => SystemError::Program { program: "qemu-nbd", detail },
        },
        _ => SystemError::Program { program: "the backup", detail },
    }
}

fn of_folder(
    path: PathBuf,
    error: &io::Error,
    problem: impl Fn(RepositoryProblem) -> SystemError,
) -> SystemError {
    if is_full(error) {
        let free = path.parent().map_or(0, |folder| files::space(folder).map_or(0, |space| space.free));
        return SystemError::NoSpace { what: path.display().to_string(), needed: 0, free };
    }
    problem(match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => RepositoryProblem::Denied,
        _ => RepositoryProblem::Unreachable,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(id: Option<&str>) -> RepositoryAccess {
        let place = RepositoryPlace::Folder {
            name: "nas".to_owned(),
            namespace: "ns".to_owned(),
            repository: "r".to_owned(),
        };
        RepositoryAccess {
            shown: "BackupRepository r".to_owned(),
            place,
            password: "p".into(),
            s3: None,
            id: id.map(str::to_owned),
        }
    }

    #[test]
    fn a_repository_that_is_gone_or_another_one_is_explained() {
        let gone = || Error::NoRepository { place: "/nas/ns/r".to_owned() };
        let text = |id: Option<&str>| failed(&access(id), gone()).to_string();
        assert!(text(Some("r-1")).contains("create the BackupRepository again"), "{}", text(Some("r-1")));
        assert!(!text(None).contains("again"), "there was none before");
        assert!(replaced(&access(Some("r-1")), "r-1").is_none() && replaced(&access(None), "r-2").is_none());
        let other = replaced(&access(Some("r-1")), "r-2").map(|error| error.to_string()).unwrap_or_default();
        assert!(other.contains("r-2, and it was r-1"), "{other}");
    }

    #[test]
    fn blocks_that_others_delete_are_a_loss_with_its_cause() {
        let error = failed(&access(None), Error::BlocksDeleted { place: "/nas/x".to_owned() });
        let SystemError::BackupLost { detail, .. } = error else { panic!("{error:?}") };
        assert!(detail.contains("another site deletes backups of this disk"), "{detail}");
    }
}
