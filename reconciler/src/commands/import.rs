//! `berth import libvirt`: writes HCL for libvirt's domains.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use berth_host::linux::libvirt::{DiskFileError, Virsh, image_checksum};

use crate::{
    cli::LibvirtOptions,
    import::{self, Described, DiskFiles, DiskSource, Domain, ImageFile, MAX_XML, Network, Unread},
};

/// The file with the configuration.
const FILE: &str = "main.tf";

pub(super) async fn libvirt(options: LibvirtOptions) -> anyhow::Result<()> {
    let target = options.out.join(FILE);
    ensure!(!target.exists(), "{} exists: give another folder with --out", target.display());
    let files = DiskFiles { image_dir: image_dir(&options.image_dir)?, in_place: options.in_place };
    let (domains, networks) = if options.files.is_empty() {
        from_virsh(&Virsh { uri: options.connect.clone() }).await?
    } else {
        from_files(&options.files)?
    };
    ensure!(!domains.is_empty(), "there is no domain to import");
    let mut read_disk = |path: &str, format: &str| {
        if options.no_checksums {
            return Err(Unread::Unasked);
        }
        tracing::info!(path, "reading a disk for its checksum");
        match image_checksum(Path::new(path), format) {
            Ok(sha256) => Ok(ImageFile { sha256 }),
            Err(DiskFileError::Unfit(why)) => Err(Unread::Unfit(why)),
            Err(DiskFileError::Unreadable(why)) => Err(Unread::Unreadable(why)),
        }
    };
    let written = import::configuration(&domains, &networks, files, &mut read_disk);
    fs::create_dir_all(&options.out).with_context(|| format!("creating {}", options.out.display()))?;
    let file = OpenOptions::new().write(true).create_new(true).open(&target);
    file.and_then(|mut file| file.write_all(written.text.as_bytes()))
        .with_context(|| format!("writing {}", target.display()))?;
    for note in &written.notes {
        eprintln!("berth: {}", note.replace(char::is_control, " "));
    }
    let mut out = std::io::stdout().lock();
    let (vms, images, taken) = (written.vms, written.images, written.taken);
    let disks = match taken {
        0 => String::new(),
        taken => format!(" and of {taken} disks that are taken over"),
    };
    writeln!(
        out,
        "{}: {vms} VMs. The comments of its {images} images{disks} have the steps that bring the disks in.",
        target.display()
    )
    .context("printing")
}

/// The folder for images, which commands and URLs in the configuration name.
fn image_dir(folder: &Path) -> anyhow::Result<&str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    let text = folder.to_str().unwrap_or_default();
    let is_usable = text.starts_with('/') && text.chars().all(is_plain) && !text.contains("/../");
    ensure!(
        is_usable,
        "--image-dir {folder:?}: give an absolute path of letters, digits, \".\", \"_\", \"-\" and \"/\""
    );
    Ok(text.trim_end_matches('/'))
}

fn from_files(files: &[impl AsRef<Path>]) -> anyhow::Result<(Vec<Domain>, Vec<Network>)> {
    let (mut domains, mut networks) = (Vec::new(), Vec::new());
    for path in files {
        let path = path.as_ref();
        let described = read(path).with_context(|| format!("{} cannot be imported", path.display()))?;
        match described {
            Described::Domain(domain) => domains.push(domain),
            Described::Network(network) => networks.push(network),
        }
    }
    Ok((domains, networks))
}

fn read(path: &Path) -> anyhow::Result<Described> {
    let mut text = String::new();
    let file = File::open(path)?;
    match file.take(MAX_XML as u64 + 1).read_to_string(&mut text) {
        Err(error) if error.kind() == ErrorKind::InvalidData => bail!("it is not UTF-8"),
        result => result?,
    };
    Ok(import::read(&text)?)
}

/// All domains, the networks that they are on, and the paths of their volumes.
async fn from_virsh(virsh: &Virsh) -> anyhow::Result<(Vec<Domain>, Vec<Network>)> {
    let mut domains = Vec::new();
    for listed in virsh.domains().await.context("listing the domains of libvirt")? {
        let text = virsh.domain(&listed.uuid).await?;
        let described =
            import::read(&text).with_context(|| format!("domain {} cannot be imported", listed.uuid))?;
        let Described::Domain(mut domain) = described else { bail!("{} is no domain", listed.uuid) };
        domain.is_running = Some(listed.is_running);
        for disk in &mut domain.disks {
            // A volume that is gone stays one: its step names it.
            if let DiskSource::Volume { pool, volume } = &disk.source
                && let Ok(path) = virsh.volume_path(pool, volume).await
            {
                disk.source = DiskSource::Path(path);
            }
        }
        domains.push(domain);
    }
    let on = domains
        .iter()
        .flat_map(|domain| &domain.interfaces)
        .filter_map(|interface| interface.network.clone());
    let mut networks = Vec::new();
    for name in on.collect::<BTreeSet<String>>() {
        // The interfaces of a network that is gone have a note of it.
        if let Ok(text) = virsh.network(&name).await
            && let Described::Network(network) = import::read(&text)?
        {
            networks.push(network);
        }
    }
    Ok((domains, networks))
}
