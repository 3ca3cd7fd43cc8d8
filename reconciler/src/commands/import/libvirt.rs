//! The domains and networks of libvirt, from files or from virsh.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use anyhow::{Context, bail};
use berth_host::linux::libvirt::Virsh;

use crate::{
    cli::LibvirtOptions,
    import::{self, Described, DiskSource, Domain, MAX_XML, Network},
};

pub(super) async fn read(options: &LibvirtOptions) -> anyhow::Result<(Vec<Domain>, Vec<Network>)> {
    if options.files.is_empty() {
        from_virsh(&Virsh { uri: options.connect.clone() }).await
    } else {
        from_files(&options.files)
    }
}

fn from_files(files: &[impl AsRef<Path>]) -> anyhow::Result<(Vec<Domain>, Vec<Network>)> {
    let (mut domains, mut networks) = (Vec::new(), Vec::new());
    for path in files {
        let path = path.as_ref();
        let described = described(path).with_context(|| format!("{} cannot be imported", path.display()))?;
        match described {
            Described::Domain(domain) => domains.push(*domain),
            Described::Network(network) => networks.push(network),
        }
    }
    Ok((domains, networks))
}

fn described(path: &Path) -> anyhow::Result<Described> {
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
        domains.push(*domain);
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
