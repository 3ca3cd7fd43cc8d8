//! Options of backups of the control plane.

use std::path::PathBuf;

use clap::Args;

use super::{StateDir, TimeSpan, time};

/// Scheduled backups of the control plane of `berth up`.
#[derive(Args, Clone, Debug)]
pub struct BackupSchedule {
    /// Backs up the control plane into this folder, which should be a mounted folder of another machine and be used for
    /// this machine only. A failure is logged and exported in /metrics; the server is not affected.
    #[arg(long, env = "BERTH_BACKUP_TO", value_name = "FOLDER")]
    pub backup_to: Option<PathBuf>,
    /// The interval between backups.
    #[arg(long, default_value = "6h", value_name = "TIME", value_parser = time::time, requires = "backup_to")]
    pub backup_every: TimeSpan,
    /// The number of backups to keep; older ones are removed.
    #[arg(long, default_value_t = 14, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1000), requires = "backup_to")]
    pub backup_keep: u16,
    /// Includes the key of Secrets, the CA and the tokens in the backups: any reader of a backup has administrator access.
    #[arg(long, requires = "backup_to")]
    pub backup_with_keys: bool,
}

/// `berth backup`
#[derive(Args, Debug)]
pub struct BackupOptions {
    /// The file to create, or a folder in which each backup gets its own name.
    #[arg(value_name = "FILE|FOLDER")]
    pub target: PathBuf,
    /// Includes the key of Secrets, the CA and the tokens: any reader of the backup has administrator access. Without this
    /// option, keep a copy of control-plane/secrets.key elsewhere; hosts must join again when the CA is lost.
    #[arg(long)]
    pub with_keys: bool,
    #[command(flatten)]
    pub state: StateDir,
}

/// `berth restore`
#[derive(Args, Debug)]
pub struct RestoreOptions {
    /// The backup to restore.
    pub file: PathBuf,
    /// Replaces the existing control plane; its database is renamed and kept.
    #[arg(long)]
    pub replace: bool,
    /// A copy of the secrets.key of the backup, if the key is neither in the backup nor on this machine.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    #[command(flatten)]
    pub state: StateDir,
}
