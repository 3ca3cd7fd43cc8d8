//! Options of the commands about backups of disks, except for their files.

use std::path::PathBuf;

use clap::Args;

use super::{Connection, StateDir, TimeSpan, time::time};

/// `berth disk-backup verify`
#[derive(Args, Debug)]
pub struct VerifyBackupOptions {
    /// The name of the Backup.
    pub name: String,
    /// Returns at once: `kubectl get bkp` has the result.
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait for the result. The verification goes on after it.
    #[arg(long, value_parser = time, default_value = "24h")]
    pub timeout: TimeSpan,
    /// Ends a verification that this command asked for.
    #[arg(long, conflicts_with = "no_wait")]
    pub cancel: bool,
    #[command(flatten)]
    pub site: BackupSite,
}

/// `berth disk-backup restore-vm`
#[derive(Args, Debug)]
pub struct RestoreVmOptions {
    /// The Backups of the VM's disks, one for each, of one moment.
    #[arg(required = true, num_args = 1..=16, value_name = "BACKUP")]
    pub backups: Vec<String>,
    /// The name of the new VM. Its disks are named after it. Default: the names that they had.
    #[arg(long = "as", value_name = "NAME")]
    pub rename: Option<String>,
    /// Declares the addresses, the UUID and the identity for cloud-init that the VM had. Only if the former VM is gone. Default: new ones.
    #[arg(long)]
    pub keep_identity: bool,
    /// A disk of the VM that is left out. May be repeated. Default: each disk of the VM needs a Backup.
    #[arg(long, value_name = "DISK")]
    pub without: Vec<String>,
    /// Creates the objects. Default: they are printed as YAML, for kubectl apply.
    #[arg(long)]
    pub apply: bool,
    #[command(flatten)]
    pub site: BackupSite,
}

/// `berth disk-backup list`
#[derive(Args, Debug)]
pub struct ListBackupsOptions {
    /// The folder of the repository: NAMESPACE/NAME in the folder for backups.
    #[arg(
        long,
        value_name = "FOLDER",
        required_unless_present = "s3_endpoint",
        conflicts_with = "s3_endpoint"
    )]
    pub folder: Option<PathBuf>,
    /// The URL of the object store. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY have its credentials.
    #[arg(long, value_name = "URL", requires = "bucket")]
    pub s3_endpoint: Option<String>,
    /// The bucket.
    #[arg(long, requires = "s3_endpoint", conflicts_with = "folder")]
    pub bucket: Option<String>,
    /// The beginning of the keys of the repository, without a slash at either end.
    #[arg(long, requires = "s3_endpoint", conflicts_with = "folder", default_value = "")]
    pub prefix: String,
    /// The region of the object store.
    #[arg(long, requires = "s3_endpoint", conflicts_with = "folder", default_value = "us-east-1")]
    pub region: String,
    /// The file with the password of the repository.
    #[arg(long, value_name = "FILE")]
    pub password_file: PathBuf,
}

/// Where the Backups are.
#[derive(Args, Clone, Debug)]
pub struct BackupSite {
    /// The namespace of the Backups.
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::cli::{Cli, Command, DiskBackupAction};

    fn action(arguments: &[&str]) -> Result<DiskBackupAction, clap::Error> {
        let cli = Cli::try_parse_from(["berth", "disk-backup"].iter().chain(arguments))?;
        let Command::DiskBackup(options) = cli.command else { panic!("it is disk-backup") };
        Ok(options.action)
    }

    #[test]
    fn a_repository_is_in_a_folder_or_in_an_object_store() {
        let list = |place: &[&str]| action(&[&["list", "--password-file", "p"][..], place].concat());
        let Ok(DiskBackupAction::List(options)) = list(&["--folder", "/mnt"]) else { panic!("a folder") };
        assert_eq!((options.region.as_str(), options.prefix.as_str()), ("us-east-1", ""));
        assert!(list(&["--s3-endpoint", "https://s3.example", "--bucket", "b", "--prefix", "a/b"]).is_ok());
        for wrong in [
            &["--s3-endpoint", "https://s3.example"][..],
            &[],
            &["--folder", "/mnt", "--s3-endpoint", "https://s3.example", "--bucket", "b"],
            &["--folder", "/mnt", "--bucket", "b"],
        ] {
            assert!(list(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_vm_is_restored_from_some_backups() {
        let restored = action(&["restore-vm", "a", "b", "--as", "c", "--without", "d", "--without", "e"]);
        let Ok(DiskBackupAction::RestoreVm(options)) = restored else { panic!("{restored:?}") };
        assert_eq!(
            (options.backups.len(), options.without.len(), options.rename.as_deref()),
            (2, 2, Some("c"))
        );
        assert!(!options.apply && !options.keep_identity && options.site.namespace == "default");
        assert!(
            action(&["restore-vm"]).is_err() && action(&["verify", "a", "--cancel", "--no-wait"]).is_err()
        );
    }
}
