//! Explains to the user why no host takes a VM: with the numbers, and with the change that would help.

mod capabilities;
mod of_its_own;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use berth_api::{
    CpuAmount, DeviceBus, Enforcement, HugeMemory, HugePages, Quantity, Readiness, Reason, Strategy,
};

use crate::{
    cache::capacity::Candidate,
    scheduler::{
        Request, Rules, Unfit, architecture, displays, filter, free, free_huge_memory, has_cpu_model,
        has_labels, has_machine_type, is_large_enough, lacking, missing_shares, offers_devices, space,
        usable,
    },
};

use of_its_own::{too_few_dedicated_cpus, too_few_huge_pages};

/// The reason why a VM has no host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unplaced {
    /// In the hosts' current state: freed capacity, or a host that comes back, changes it.
    Now(String),
    /// With the existing hosts, however empty: an administrator must change something.
    Never(Reason, String),
}

impl Unplaced {
    /// Returns the VM's readiness. `prefix` names what ties the VM to a host, if anything does.
    pub(crate) fn readiness(self, prefix: &str) -> Readiness {
        match self {
            Self::Now(text) => Readiness::Reconciling(Reason::Unschedulable, format!("{prefix}{text}")),
            Self::Never(reason, text) => Readiness::Stalled(reason, format!("{prefix}{text}")),
        }
    }
}

impl Unfit {
    fn counted(self, count: usize, request: &Request) -> String {
        let group = request.group.as_ref().map_or("", |g| g.name.as_str());
        let key = request.group.as_ref().map_or("", |g| g.topology_key.as_str());
        match self {
            Self::NotTheOne => format!("{count} not the host named in placement.host"),
            Self::NotReady => format!("{count} not ready"),
            Self::Cordoned => format!("{count} cordoned"),
            Self::DiskElsewhere => format!("{count} without the files of its disks"),
            Self::Labels => format!("{count} without the labels of host_selector"),
            Self::OtherNamespaces => format!("{count} reserved for other namespaces"),
            Self::NoTpm => format!("{count} without swtpm, which a TPM needs"),
            Self::NoVsock => format!("{count} without vsock devices"),
            Self::NoWireguard => format!("{count} without WireGuard, which a network with encryption needs"),
            Self::NoEncryption => format!("{count} with an older agent, which does not encrypt disks"),
            Self::NoBridge => format!("{count} without {}", names(&request.bridges)),
            Self::NoDevice => format!("{count} that do not offer {}", devices(request)),
            Self::NoShare => format!("{count} that do not share {}", shares(request)),
            Self::NoBackupFolder => {
                format!("{count} without the folders for backups {}", names(&request.backup_folders))
            }
            Self::Display => {
                format!("{count} on which graphics excludes a display controller among its devices")
            }
            Self::Devices => format!("{count} without {} free", devices(request)),
            Self::TopologyLabel => format!("{count} without the label {key} of placement group {group}"),
            Self::GroupMember => format!("{count} already with a member of placement group {group}"),
            Self::GroupElsewhere => format!("{count} apart from the members of placement group {group}"),
            Self::Affinity(broken) => format!("{count} {}", broken.of_hosts(request)),
            Self::Refused => format!("{count} that just refused it"),
            Self::Architecture => architecture::of_several(count, request),
            Self::CpuModel => {
                format!("{count} without the CPU model {}", request.cpu_model.as_deref().unwrap_or_default())
            }
            Self::MachineType => format!("{count} without the machine type {}", machine_type(request)),
            Self::Cpus => format!("{count} with too few free CPUs"),
            Self::DedicatedCpus => format!("{count} with too few free dedicated CPUs"),
            Self::ReservedCpus => format!("{count} with too few CPUs that are not reserved"),
            Self::Memory => format!("{count} with too little free memory"),
            Self::HugePages => format!("{count} with too few free huge pages"),
            Self::Space => {
                let pools: BTreeSet<&String> = space::pools(request).collect();
                format!("{count} without room for its disks in the pools {}", names(&pools))
            }
        }
    }

    /// Explains why the only candidate does not take it.
    fn of_one(self, candidate: &Candidate, request: &Request) -> String {
        let name = &candidate.name;
        let group = request.group.as_ref().map_or("", |g| g.name.as_str());
        match self {
            Self::NotReady => format!("host {name} is not ready: its agent does not report"),
            Self::Cordoned => format!("host {name} is cordoned: it takes no new VMs"),
            Self::Labels => format!("host {name} does not have the labels of host_selector"),
            Self::OtherNamespaces => format!("host {name} is reserved for other namespaces"),
            Self::NoTpm => format!("host {name} has no swtpm, which a TPM needs"),
            Self::NoVsock => format!("host {name} has no vsock devices (modprobe vhost_vsock)"),
            Self::NoWireguard => {
                format!(
                    "host {name} has no WireGuard, which a network with encryption needs: see its status.wireguard"
                )
            }
            Self::NoEncryption => {
                format!("host {name} has an older agent, which does not encrypt disks: upgrade berth there")
            }
            Self::NoBridge => {
                let why = candidate.networks.why_not(&request.bridges).unwrap_or_default();
                format!("host {name} {why}")
            }
            Self::NoDevice => {
                let short =
                    request.devices.iter().filter(|(device, count)| usable(candidate, device) < **count);
                let short = short.map(|(device, count)| {
                    format!("{} {device} for VMs and it needs {count}", usable(candidate, device))
                });
                format!("host {name} offers {}", short.collect::<Vec<_>>().join(", and "))
            }
            Self::NoShare => {
                let missing = missing_shares(candidate, request).map(|share| {
                    let writable = candidate.shares.get(share);
                    if writable.is_some() {
                        format!("{share} read-only")
                    } else {
                        format!("no folder {share}")
                    }
                });
                format!("host {name} shares {}", missing.collect::<Vec<_>>().join(", and "))
            }
            Self::NoBackupFolder => {
                let missing = request.backup_folders.difference(&candidate.backup_folders);
                let missing: BTreeSet<String> = missing.cloned().collect();
                format!("host {name} does not offer the folder for backups {}", names(&missing))
            }
            Self::Display => {
                let displays: Vec<&str> = displays(candidate, request).collect();
                format!(
                    "{} of host {name} is a display controller, which excludes graphics",
                    displays.join(", ")
                )
            }
            Self::Devices => {
                let short = lacking(candidate, request).map(|(device, count)| {
                    let (free, usable) = (free(candidate, device), usable(candidate, device));
                    format!("{free} of {usable} {device} free and it needs {count}")
                });
                format!("host {name} has {}", short.collect::<Vec<_>>().join(", and "))
            }
            Self::TopologyLabel => {
                let key = request.group.as_ref().map_or("", |g| g.topology_key.as_str());
                format!("host {name} does not have the label {key} of placement group {group}")
            }
            Self::GroupMember => format!("host {name} already has a member of placement group {group}"),
            Self::GroupElsewhere => format!("the other members of placement group {group} are elsewhere"),
            Self::Affinity(broken) => format!("host {name} is one {}", broken.of_hosts(request)),
            Self::Refused => format!("host {name} has just refused it"),
            Self::Architecture => architecture::of_one(candidate, request),
            Self::CpuModel => format!(
                "host {name} does not have the CPU model {}",
                request.cpu_model.as_deref().unwrap_or_default()
            ),
            Self::MachineType => {
                format!("the QEMU of host {name} does not have the machine type {}", machine_type(request))
            }
            Self::Cpus => format!(
                "host {name} has {} of {} CPUs free and it needs {}",
                (candidate.allocatable_cpus - candidate.used.cpus).max(0),
                candidate.allocatable_cpus,
                request.cpus
            ),
            Self::DedicatedCpus => format!(
                "host {name} has {} of {} dedicated CPUs free and it needs {}",
                (candidate.dedicated_cpus - candidate.used.dedicated_cpus).max(0),
                candidate.dedicated_cpus,
                request.dedicated_cpus
            ),
            Self::ReservedCpus => format!(
                "host {name} has {} of {} CPUs left that are not reserved and it reserves {}",
                cpus(candidate.reservable.saturating_sub(candidate.used.reserved)),
                cpus(candidate.reservable),
                cpus(request.reserved)
            ),
            Self::Memory if !is_large_enough(request, candidate) => format!(
                "host {name} has {} of memory for VMs and it has {} and {} of overhead",
                mib(candidate.allocatable_memory),
                mib(request.memory.max(request.whole_memory)),
                mib(candidate.overhead)
            ),
            Self::Memory => {
                let overhead = candidate.used.vms * candidate.overhead;
                let used = candidate.used.memory.saturating_add(overhead);
                format!(
                    "host {name} has {} of {} memory free and it needs {} and {} of overhead",
                    mib(candidate.allocatable_memory.saturating_sub(used)),
                    mib(candidate.allocatable_memory),
                    mib(request.memory),
                    mib(candidate.overhead)
                )
            }
            Self::HugePages => {
                let free = free_huge_memory(candidate);
                let pages = request.huge_memory.exceeds(&free).unwrap_or_default();
                format!(
                    "host {name} has {} of {} huge pages of {} free and it needs {}",
                    page_count(&free, pages),
                    page_count(&candidate.huge_memory, pages),
                    pages.as_str(),
                    page_count(&request.huge_memory, pages)
                )
            }
            Self::Space => space::explain(candidate, request),
            Self::NotTheOne | Self::DiskElsewhere => {
                format!("its disks are on another host than {name}, which placement.host names")
            }
        }
    }
}

fn page_count(memory: &HugeMemory, pages: HugePages) -> u64 {
    pages.bytes().map_or(0, |bytes| memory.bytes(pages) / bytes)
}

fn names(all: &BTreeSet<impl ToString>) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

/// The devices that it needs: `2 PCI devices gpu-a100`.
fn devices(request: &Request) -> String {
    let of_name = request.devices.iter().map(|(name, count)| name.counted(*count));
    of_name.collect::<Vec<_>>().join(" and ")
}

fn cpus(millis: u32) -> CpuAmount {
    CpuAmount::from_millis(millis)
}

fn mib(bytes: u64) -> Quantity {
    Quantity::from_bytes(bytes >> 20 << 20)
}

/// Returns why no host takes it.
pub(crate) fn why<'a>(
    request: &Request,
    rules: &Rules<'_, '_>,
    candidates: impl Iterator<Item = &'a Candidate> + Clone,
) -> Unplaced {
    let hosts = candidates.clone().count();
    if hosts == 0 {
        return Unplaced::Now("there is no host yet".into());
    }
    if let Some((reason, text)) = never(request, rules, candidates.clone()) {
        return Unplaced::Never(reason, text);
    }
    // Tied to one host: only the reason of that one matters.
    let tied = request.host.as_ref().or(request.disk_hosts.first());
    if let Some(tied) = tied {
        let Some(candidate) = candidates.clone().find(|c| c.name == *tied) else {
            return Unplaced::Now(format!("host {tied} is not there (any more)"));
        };
        let unfit = filter(request, rules, candidate).err().unwrap_or(Unfit::DiskElsewhere);
        return Unplaced::Now(unfit.of_one(candidate, request));
    }
    let mut unfit: BTreeMap<Unfit, usize> = BTreeMap::new();
    for reason in candidates.filter_map(|c| filter(request, rules, c).err()) {
        *unfit.entry(reason).or_default() += 1;
    }
    let reasons: Vec<String> = unfit.iter().map(|(reason, count)| reason.counted(*count, request)).collect();
    let mut text = format!("0 of {hosts} hosts can take it: {}", reasons.join(", "));
    let memory = request.memory.saturating_add(request.huge_memory.total());
    let cpus = match request.dedicated_cpus {
        0 => format!("{} CPUs", request.cpus),
        dedicated => format!("{dedicated} dedicated CPUs"),
    };
    let _ = write!(text, " (it needs {cpus} and {} MiB", memory >> 20);
    if let Some(pages) = request.huge_memory.exceeds(&HugeMemory::default()) {
        let count = page_count(&request.huge_memory, pages);
        let _ = write!(text, " in {count} huge pages of {}", pages.as_str());
    }
    text.push(')');
    Unplaced::Now(text)
}

/// Returns why it will not run with the existing hosts, even if they were all up, empty and uncordoned.
fn never<'a>(
    request: &Request,
    rules: &Rules<'_, '_>,
    candidates: impl Iterator<Item = &'a Candidate> + Clone,
) -> Option<(Reason, String)> {
    let hosts = candidates.clone().count();
    if request.disk_hosts.len() > 1 {
        let list: Vec<&str> = request.disk_hosts.iter().map(String::as_str).collect();
        let text = format!("its disks are on different hosts ({}): it can run on one only", list.join(", "));
        return Some((Reason::DiskOnOtherHost, text));
    }
    if let Some(host) = &request.host {
        if !candidates.clone().any(|c| c.name == *host) {
            let text = format!("there is no host {host}, which placement.host names");
            return Some((Reason::NoSuchHost, text));
        }
        if let Some(other) = request.disk_hosts.iter().find(|d| *d != host) {
            let text = format!("its disks are on host {other} and placement.host names {host}");
            return Some((Reason::DiskOnOtherHost, text));
        }
    }
    let labelled = candidates.clone().filter(|c| has_labels(c, &request.selector));
    if labelled.clone().next().is_none() {
        let labels: Vec<String> = request.selector.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let text = format!("none of {hosts} hosts has the labels {}", labels.join(", "));
        return Some((Reason::NoSuchHost, text));
    }
    // A host that has not reported may have it.
    let may_have_tpm = |c: &Candidate| c.tpm || c.allocatable_cpus == 0;
    let tied = request.host.as_ref().or(request.disk_hosts.first());
    let mut eligible = labelled.clone().filter(|c| tied.is_none_or(|tied| c.name == *tied)).peekable();
    if request.tpm && eligible.peek().is_some() && !eligible.any(may_have_tpm) {
        let text = match tied {
            Some(host) => format!("host {host} cannot emulate a TPM"),
            None => "no host that it may run on can emulate a TPM".to_owned(),
        };
        let text = format!("{text}: install swtpm there (Debian: apt install swtpm), or leave tpm out");
        return Some((Reason::NoHostWithTPM, text));
    }
    if let Some(found) =
        capabilities::never(request, labelled.clone().filter(|c| tied.is_none_or(|t| c.name == *t)))
    {
        return Some(found);
    }
    let on_bridges = labelled.clone().filter(|c| tied.is_none_or(|tied| c.name == *tied));
    if let Some(text) = never_on_bridges(request, on_bridges) {
        return Some((Reason::NoHostWithBridge, text));
    }
    if let Some(found) =
        never_with_devices(request, labelled.clone().filter(|c| tied.is_none_or(|t| c.name == *t)))
    {
        return Some(found);
    }
    let sharing = labelled.clone().filter(|c| tied.is_none_or(|tied| c.name == *tied));
    if let Some(text) = never_with_shares(request, sharing) {
        return Some((Reason::NoHostWithShare, text));
    }
    let offering = labelled.clone().filter(|c| tied.is_none_or(|tied| c.name == *tied));
    if let Some(text) = never_with_backup_folders(request, offering) {
        return Some((Reason::NoHostWithBackupFolder, text));
    }
    if let Some(text) = too_large_group(request, rules, labelled.clone()) {
        return Some((Reason::GroupTooLarge, text));
    }
    let eligible = labelled.filter(|c| tied.is_none_or(|tied| c.name == *tied));
    if let Some(text) = architecture::never(request, eligible.clone()) {
        return Some((Reason::NotSupported, text));
    }
    if let Some(model) = &request.cpu_model
        // A host that has not reported may have any.
        && !eligible.clone().any(|c| c.allocatable_cpus == 0 || has_cpu_model(c, request))
    {
        let text =
            format!("no host it may run on has the CPU model {model}: see status.cpuModels of the Hosts");
        return Some((Reason::NotSupported, text));
    }
    if let Some(name) = &request.machine_type
        && !eligible.clone().any(|c| c.allocatable_cpus == 0 || has_machine_type(c, request))
    {
        let text = format!(
            "no host it may run on has the machine type {name}: see status.machineTypes of the Hosts"
        );
        return Some((Reason::NotSupported, text));
    }
    if let Some(text) = too_few_dedicated_cpus(request, eligible.clone()) {
        return Some((Reason::NoHostWithDedicatedCPUs, text));
    }
    if let Some(text) = too_few_huge_pages(request, eligible.clone()) {
        return Some((Reason::NoHostWithHugePages, text));
    }
    let text = too_large_vm(request, eligible.clone()).or_else(|| space::too_large(request, eligible));
    text.map(|text| (Reason::NoHostLargeEnough, text))
}

fn machine_type(request: &Request) -> &str {
    request.machine_type.as_deref().unwrap_or_default()
}

/// The number of hosts of which a message says why they cannot be used.
const EXPLAINED_HOSTS: usize = 3;

/// Returns why none of these hosts has the bridges of its Networks.
fn never_on_bridges<'a>(
    request: &Request,
    eligible: impl Iterator<Item = &'a Candidate> + Clone,
) -> Option<String> {
    // A host that has not reported may have them.
    let may_have = |c: &Candidate| c.allocatable_cpus == 0 || c.networks.why_not(&request.bridges).is_none();
    if eligible.clone().next().is_none() || eligible.clone().any(may_have) {
        return None;
    }
    let why = |c: &'a Candidate| Some(format!("host {} {}", c.name, c.networks.why_not(&request.bridges)?));
    let mut hosts: Vec<String> = eligible.clone().filter_map(why).take(EXPLAINED_HOSTS).collect();
    let more = eligible.count().saturating_sub(hosts.len());
    if more > 0 {
        hosts.push(format!("{more} more"));
    }
    Some(format!(
        "no host that it may run on has {}: {} (see status.networks of the Hosts, and the Networks that it names)",
        names(&request.bridges),
        hosts.join("; ")
    ))
}

/// Returns why none of these hosts will take it with its PCI and USB devices and vGPUs, even if no other VM had one.
fn never_with_devices<'a>(
    request: &Request,
    eligible: impl Iterator<Item = &'a Candidate> + Clone,
) -> Option<(Reason, String)> {
    if request.devices.is_empty() || eligible.clone().next().is_none() {
        return None;
    }
    // A host that has not reported may have any.
    let may_offer = |c: &&Candidate| c.allocatable_cpus == 0 || offers_devices(c, request);
    let mut offering = eligible.filter(may_offer).peekable();
    if offering.peek().is_none() {
        let is_of = |bus: &DeviceBus| request.devices.keys().any(|device| device.bus == *bus);
        let listed = |text: &dyn Fn(DeviceBus) -> String| {
            DeviceBus::ALL.into_iter().filter(is_of).map(text).collect::<Vec<_>>().join(" and ")
        };
        let text = format!(
            "no host that it may run on offers {} to VMs: see {} of the Hosts, and offer devices with {}",
            devices(request),
            listed(&|bus| format!("status.{}", bus.field())),
            listed(&|bus| bus.option().to_owned())
        );
        return Some((Reason::NoHostWithDevice, text));
    }
    let excluded: Vec<&Candidate> = offering.collect();
    if excluded.iter().any(|c| displays(c, request).next().is_none()) {
        return None;
    }
    let names: BTreeSet<String> =
        excluded.iter().flat_map(|c| displays(c, request)).map(str::to_owned).collect();
    let text = format!(
        "{} is a display controller, and a VM with one has no graphics: set graphics to None, or take the device out",
        self::names(&names)
    );
    Some((Reason::NotSupported, text))
}

/// Returns why none of these hosts has the folders that it mounts.
fn never_with_shares<'a>(
    request: &Request,
    eligible: impl Iterator<Item = &'a Candidate> + Clone,
) -> Option<String> {
    // A host that has not reported may have any.
    let may_have = |c: &Candidate| c.allocatable_cpus == 0 || missing_shares(c, request).next().is_none();
    if eligible.clone().next().is_none() || eligible.clone().any(may_have) {
        return None;
    }
    let why = |c: &'a Candidate| Unfit::NoShare.of_one(c, request);
    let mut hosts: Vec<String> = eligible.clone().map(why).take(EXPLAINED_HOSTS).collect();
    let more = eligible.count().saturating_sub(hosts.len());
    if more > 0 {
        hosts.push(format!("{more} more"));
    }
    Some(format!(
        "no host that it may run on shares {}: {}. See status.shares of the Hosts, and share folders with --share; a folder that is \
         shared read-only needs read_only in the VM",
        shares(request),
        hosts.join("; ")
    ))
}

/// Returns why none of these hosts has the folders with the backups that its disks are made from.
fn never_with_backup_folders<'a>(
    request: &Request,
    mut eligible: impl Iterator<Item = &'a Candidate> + Clone,
) -> Option<String> {
    // A host that has not reported may have any.
    let may_have =
        |c: &Candidate| c.allocatable_cpus == 0 || request.backup_folders.is_subset(&c.backup_folders);
    if eligible.clone().next().is_none() || eligible.any(may_have) {
        return None;
    }
    Some(format!(
        "no host that it may run on offers the folder for backups {}, from which its disks are made: see status.backupFolders of the \
         Hosts, and offer folders with --backup-folder",
        names(&request.backup_folders)
    ))
}

/// The shares of the VM, for people.
fn shares(request: &Request) -> String {
    let share = |(name, writes): (&String, &bool)| {
        if *writes { format!("{name} for writing") } else { name.clone() }
    };
    request.shares.iter().map(share).collect::<Vec<_>>().join(", ")
}

fn too_large_vm<'a>(
    request: &Request,
    eligible: impl Iterator<Item = &'a Candidate> + Clone,
) -> Option<String> {
    // A host that has not reported may be of any size.
    let fits = |c: &Candidate| {
        let enough = request.cpus <= c.allocatable_cpus && is_large_enough(request, c);
        c.allocatable_cpus == 0 || enough
    };
    let has_cpus = |c: &Candidate| c.allocatable_cpus == 0 || request.reserved <= c.reservable;
    if eligible.clone().any(|c| fits(c) && has_cpus(c)) {
        return None;
    }
    if let Some(most) = eligible.clone().filter(|c| fits(c)).max_by_key(|c| (c.reservable, &c.name)) {
        return Some(format!(
            "it reserves {} CPUs and no host it may run on has that many: {} has {} that can be reserved",
            cpus(request.reserved),
            most.name,
            cpus(most.reservable)
        ));
    }
    let largest = eligible.max_by_key(|c| (c.allocatable_memory, c.allocatable_cpus, &c.name))?;
    Some(format!(
        "it needs {} CPUs and {} of memory and no host it may run on is that large: the largest, {}, offers {} CPUs and {} to one VM",
        request.cpus,
        mib(request.memory.max(request.whole_memory)),
        largest.name,
        largest.allocatable_cpus,
        mib(largest.allocatable_memory.saturating_sub(largest.overhead)),
    ))
}

/// Returns the distinct values of the key among the hosts.
pub(crate) fn topology_values<'a>(
    key: &str,
    candidates: impl Iterator<Item = &'a Candidate>,
) -> BTreeSet<&'a str> {
    candidates.filter_map(|c| c.labels.get(key)).map(String::as_str).collect()
}

fn too_large_group<'a>(
    request: &Request,
    rules: &Rules<'_, '_>,
    eligible: impl Iterator<Item = &'a Candidate>,
) -> Option<String> {
    let spread = rules.spread.as_ref()?;
    let group = spread.group;
    if group.enforcement != Enforcement::Required || group.strategy != Strategy::Spread {
        return None;
    }
    let values = topology_values(&group.topology_key, eligible);
    if values.iter().any(|value| spread.members_at(value) == 0) {
        return None;
    }
    let placed: usize = rules.members.values().sum();
    let text = match (values.len(), request.selector.is_empty()) {
        (0, _) => format!("no host has the label {}", group.topology_key),
        (n, true) => format!("hosts have {n} different values of {}", group.topology_key),
        (n, false) => {
            format!("hosts with the labels asked for have {n} different values of {}", group.topology_key)
        }
    };
    Some(format!(
        "placement group {} keeps its members apart: {text} and {placed} other members are placed; add a host, or take a member out",
        group.name
    ))
}
