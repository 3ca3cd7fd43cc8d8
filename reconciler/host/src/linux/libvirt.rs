//! libvirt beside berth: its machines as virsh describes them, and the files of disks.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use berth_qemu::{machine::Format, qcow2};
use sha2::{Digest as _, Sha256};

use super::program::{Output, Program};
use crate::SystemError;

/// The size of one read of a file to hash.
const CHUNK: usize = 1 << 20;

const VIRSH: Program = Program { name: "virsh", advice: "install the package libvirt-clients" };

const LONGEST_MAGIC: u64 = 32;
/// The first bytes of files in a format.
const MAGICS: [(&[u8], &str); 10] = [
    (b"QFI\xfb", "qcow2"),
    (b"KDMV", "vmdk"),
    (b"COWD", "vmdk"),
    (b"# Disk DescriptorFile", "vmdk"),
    (b"vhdxfile", "vhdx"),
    (b"conectix", "vpc"),
    (b"<<< ", "vdi"),
    (b"QED\0", "qed"),
    (b"WithoutFreeSpace", "parallels"),
    (b"WithouFreSpacExt", "parallels"),
];

/// A connection of virsh.
#[derive(Clone, Debug, Default)]
pub struct Virsh {
    /// The connection URI. Default: virsh's own.
    pub uri: Option<String>,
}

/// A domain in virsh's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDomain {
    pub uuid: String,
    pub is_running: bool,
}

impl Virsh {
    /// All domains. A name could be taken for a number of a running domain: they are named by their UUIDs.
    pub async fn domains(&self) -> Result<Vec<ListedDomain>, SystemError> {
        let all = self.run(&["list", "--all", "--uuid"]).await?;
        let running = self.run(&["list", "--uuid"]).await?;
        let uuids = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let running = uuids(&running);
        let listed = |uuid: String| ListedDomain { is_running: running.contains(&uuid), uuid };
        Ok(uuids(&all).into_iter().map(listed).collect())
    }

    /// The description of a domain, as it is at its next start.
    pub async fn domain(&self, uuid: &str) -> Result<String, SystemError> {
        self.run(&["dumpxml", "--inactive", &format!("--domain={uuid}")]).await
    }

    /// The description of a network.
    pub async fn network(&self, name: &str) -> Result<String, SystemError> {
        self.run(&["net-dumpxml", "--inactive", &format!("--network={name}")]).await
    }

    /// The path of a volume.
    pub async fn volume_path(&self, pool: &str, volume: &str) -> Result<String, SystemError> {
        let path = self.run(&["vol-path", &format!("--pool={pool}"), &format!("--vol={volume}")]).await?;
        Ok(path.trim().to_owned())
    }

    async fn run(&self, args: &[&str]) -> Result<String, SystemError> {
        let mut all = vec!["--quiet", "--readonly"];
        if let Some(uri) = &self.uri {
            all.extend(["--connect", uri]);
        }
        all.extend(args);
        let Output { ok, stdout, stderr } = VIRSH.run(&all, Vec::new()).await?;
        if !ok {
            return Err(VIRSH.failed(stderr));
        }
        String::from_utf8(stdout).map_err(|_| VIRSH.failed("its output is not UTF-8"))
    }
}

/// Why the file of a disk is not an image as it is.
#[derive(Debug, thiserror::Error)]
pub enum DiskFileError {
    /// It is no regular file, or cannot be opened or read.
    #[error("{0}")]
    Unreadable(String),
    /// Its format is another one, or it needs other files.
    #[error("{0}")]
    Unfit(String),
}

/// The SHA-256 of a file that a berth Image accepts in this format.
pub fn image_checksum(path: &Path, format: &str) -> Result<String, DiskFileError> {
    let unreadable = |error: std::io::Error| DiskFileError::Unreadable(error.to_string());
    // The opening of a pipe would wait for its writer.
    let about = std::fs::metadata(path).map_err(unreadable)?;
    if !about.is_file() {
        return Err(DiskFileError::Unfit("it is no regular file".to_owned()));
    }
    let format = match format {
        "qcow2" => Format::Qcow2,
        "raw" => Format::Raw,
        other => return Err(DiskFileError::Unfit(format!("its format is {other}"))),
    };
    let mut file = File::open(path).map_err(unreadable)?;
    qcow2::inspect(&mut file, format).map_err(|error| DiskFileError::Unfit(error.to_string()))?;
    let mut file = File::open(path).map_err(unreadable)?;
    let (mut hasher, mut chunk) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        match file.read(&mut chunk).map_err(unreadable)? {
            0 => break,
            read => hasher.update(chunk.get(..read).unwrap_or_default()),
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The format that QEMU finds in a file: that of its first bytes.
///
/// # Errors
/// When it is no regular file, or cannot be read.
pub fn image_format(path: &Path) -> std::io::Result<&'static str> {
    // The opening of a pipe would wait for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    let mut start = Vec::new();
    File::open(path)?.take(LONGEST_MAGIC).read_to_end(&mut start)?;
    let magic = MAGICS.iter().find(|(magic, _)| start.starts_with(magic));
    Ok(magic.map_or("raw", |(_, format)| *format))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use berth_qemu::machine::Backing;

    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_file_and_only_of_one_that_berth_accepts() {
        let folder = tempfile::tempdir().expect("a new folder");
        let raw = folder.path().join("disk.raw");
        fs::write(&raw, [7; 512]).expect("a new file");
        let sum = image_checksum(&raw, "raw").expect("it is an image");
        let expected: String = Sha256::digest([7; 512]).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(sum, expected);
        let base = folder.path().join("base.qcow2");
        qcow2::create(&base, 1 << 20).expect("a new file");
        assert!(image_checksum(&base, "qcow2").is_ok());
        let backing = Backing { file: base, format: Format::Qcow2, backing: None };
        let overlay = folder.path().join("overlay.qcow2");
        qcow2::create_overlay(&overlay, 1 << 20, &backing).expect("a new file");
        for (path, format, expected) in [
            (overlay.as_path(), "qcow2", "base.qcow2"),
            (&raw, "qcow2", "declared as qcow2"),
            (&raw, "vmdk", "its format is vmdk"),
            (folder.path(), "raw", "no regular file"),
        ] {
            let error = image_checksum(path, format).expect_err("it has to be converted");
            assert!(matches!(&error, DiskFileError::Unfit(why) if why.contains(expected)), "{error}");
        }
        let short = folder.path().join("short.raw");
        fs::write(&short, b"QF").expect("a new file");
        let formats = [&raw, &overlay, &short].map(|path| image_format(path).ok());
        assert_eq!(formats, [Some("raw"), Some("qcow2"), Some("raw")]);
        assert!(image_format(folder.path()).is_err());
        let absent = image_checksum(&folder.path().join("absent"), "raw").expect_err("there is no file");
        assert!(matches!(absent, DiskFileError::Unreadable(_)), "{absent}");
    }
}
