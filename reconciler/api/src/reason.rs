//! The reasons for an object's state: one vocabulary for conditions and events. The comment of a reason is its meaning, and the
//! text after `=>` is the next step of a person: `berth why` shows both, as does the page `docs/states.md`.

use std::fmt;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident $(=> $advice:literal)?),+ $(,)?) => {
        /// A machine-readable reason, the same word in a condition and an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $($(#[doc = $doc])+ $name),+ }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),+];

            /// The reason as it is written in conditions and events.
            pub const fn as_str(self) -> &'static str {
                match self { $(Reason::$name => stringify!($name)),+ }
            }

            /// Returns its meaning, for people.
            pub const fn meaning(self) -> &'static str {
                match self { $(Reason::$name => concat!($($doc),+).trim_ascii_start()),+ }
            }

            /// Returns what a person can do about it. Empty: nothing has to be done.
            pub const fn advice(self) -> &'static str {
                match self { $(Reason::$name => concat!($($advice)?)),+ }
            }
        }
    };
}

reasons! {
    // Converged.
    /// Everything declared is real.
    Available,
    /// The VM runs as declared.
    Running,
    /// The VM is stopped as declared.
    Stopped,
    /// The guest's CPUs are stopped.
    Paused,
    /// The guest is suspended: its memory is in a file of its host, or, with `suspendMode` `Memory`, in the memory of its host.
    Suspended,
    /// The disk has no file yet: its first VM decides the host.
    WaitingForFirstUse,
    /// The image's checksum, format and virtual size were verified, or all data of the backup was read back.
    Verified,
    /// The disk is attached to the running VM.
    Attached,
    /// The address is allocated.
    Allocated,
    /// The guest agent or a DHCP lease showed that the guest is up.
    GuestSeen,
    /// Effective settings are those declared.
    Synced,
    /// The schedule is suspended: no snapshot and no backup is made, and none is deleted.
    ScheduleSuspended => "Set `suspend` to false to go on.",

    // On the way, by itself.
    /// The object has not been observed yet.
    Pending,
    /// Bound to a host that has not reported yet.
    Bound => "If it stays so, see that the agent of the host runs: `kubectl get host`, `berth doctor` on the host.",
    /// No host can take it now; the message names each rule that failed.
    Unschedulable => "Make room on one of the hosts in the message, add a host, or lower what the VM requests.",
    /// A host has not reported its guests and files yet, or its report is being processed.
    WaitingForInventory => "If it stays so, see that the agent of the host runs: `kubectl get host`, `berth doctor` on the host.",
    /// The host it was bound to refused it, for the reason in the message. It is placed anew.
    Refused => "If it repeats: the message has the host's reason.",
    /// The VMClass does not exist yet.
    WaitingForClass => "Create the VMClass, in the VM's namespace or in `berth-shared`.",
    /// A Disk does not exist yet or has no file yet.
    WaitingForDisk => "Create the Disk, or look at it with `berth why disk/NAME`.",
    /// The Image does not exist yet or is not verified yet, or the one host that has it is away.
    WaitingForImage => "Create the Image, or look at it with `berth why image/NAME`. Start the host that the message names.",
    /// The DiskSnapshot does not exist yet or is not taken yet.
    WaitingForSnapshot => "Create the DiskSnapshot, or look at it with `berth why disksnapshot/NAME`.",
    /// The BackupRepository does not exist yet.
    WaitingForRepository => "Create the BackupRepository in the same namespace.",
    /// Of a Disk: the Backup does not exist yet or is not complete yet. Of a Backup: the host that the disk has left still has another one of the disk.
    WaitingForBackup => "Create the Backup, or look at it with `berth why backup/NAME`.",
    /// The PlacementGroup or the VMGroup does not exist yet.
    WaitingForGroup => "Create the group that the message names.",
    /// The KeyClass does not exist yet.
    WaitingForKeyClass => "Create the KeyClass, in the Disk's namespace or in `berth-shared`.",
    /// The host does not have the key of an encrypted disk yet.
    WaitingForKey => "See the condition `EncryptionSynced` of the Disk: `kubectl describe disk NAME`.",
    /// The Network does not exist yet.
    WaitingForNetwork => "Create the Network, in the VM's namespace or in `berth-shared`.",
    /// A SecurityGroup does not exist yet. A running VM receives and sends only what its other groups allow.
    WaitingForSecurityGroup => "Create the SecurityGroup, or take its name out of the VM's `securityGroups`.",
    /// The PublicIP does not exist yet or has no address yet.
    WaitingForPublicIP => "Create the PublicIP, or look at it with `berth why publicip/NAME`.",
    /// The Secret with bootstrap data does not exist yet.
    WaitingForBootstrap => "Create the Secret.",
    /// The Secret with the credentials of an Image, the keys of a guest's user, the keys of Secure Boot, the credentials or password of a BackupRepository, or the key of a KeyClass or what opens its Vault does not exist yet, or the host may not read it yet.
    WaitingForSecret => "Create the Secret in the namespace of the object that names it.",
    /// The image's host has not received the whole file yet; the message has the progress.
    WaitingForUpload => "Upload the file: `berth image push FILE --name NAME`, or apply its `source.file` again with Terraform. An interrupted upload continues.",
    /// The VM does not exist yet or is not bound or not running yet.
    WaitingForVM => "Create the VM, or look at it with `berth why vm/NAME`.",
    /// The file of the host that the disk is made of is not there yet, or another program has it open.
    WaitingForFile => "Put the file there, on the host of the VM, or end the program that has it open: for a VM of libvirt, shut it down.",
    /// The IPPool or StoragePool does not exist yet, or the namespace has several default pools.
    WaitingForPool => "Create the IPPool or the StoragePool, or name the pool of the disk.",
    /// The image is being downloaded, or copied from another host.
    Pulling,
    /// A file is being made.
    Provisioning,
    /// The data is being written to the repository; the message has the progress.
    BackingUp,
    /// The data is being written from a backup to the disk; the message has the progress.
    Restoring,
    /// The file of the disk is being moved to another pool of its host, or with its VM to another host; the message has the progress.
    Moving,
    /// The former host of the VM does not give its firmware variables and the memory of its TPM to the present one (yet); the message has the error.
    WaitingForFormerHost => "Start the agent of the former host, and open its TCP port between the hosts. If it is lost for good, declare that (`berth host forget HOST --lost`); the message has the annotation that starts the VM without them.",
    /// The memory of the TPM of the VM, with its keys, is on no host and in no pool any more.
    FirmwareStateLost => "Have the recovery keys of encrypted disks at hand, and set the annotation in the message: the VM starts with an empty TPM.",
    /// QEMU is being started.
    Starting,
    /// The guest was asked to shut down.
    Stopping,
    /// The guest's memory is being saved.
    Suspending,
    /// Being attached.
    Attaching,
    /// Being detached.
    Detaching,
    /// Another program has removed the tap of a network interface of a running VM from its host: the guest has no connection by it. The message
    /// names the interface.
    TapMissing => "A card that can be plugged is exchanged by itself. Otherwise restart the VM (`restartToken`).",
    /// Being grown.
    Growing,
    /// Being deleted.
    Deleting,
    /// Deleted, and held until nothing uses it; the message names the users.
    InUse => "Delete or change the objects in the message that use it.",
    /// An annotation holds back the start of the VM; the message names it.
    PowerOnHeld => "Ask the person or program that set the annotation; only gatekeepers remove it.",
    /// Its host has booted, and VMs with a lower `startOrder` are started before it, or its VMGroup does not start it yet; the message names the order or the group.
    StartOrderHeld => "By `startOrder` it starts by itself, at the latest five minutes and the `startDelaySeconds` after the others. A member of a VMGroup starts once the members before it are ready: `kubectl describe vmgroup NAME`.",
    /// A declared change takes effect at the next power cycle.
    PowerCycleNeeded => "Stop and start the VM when it suits.",
    /// The disk is moved to another pool once no VM has it open and no snapshot of it is being taken, or the VM is moved to another host
    /// once it is off; the message has the cause.
    MoveWaits => "Stop and start the VM at a convenient time: the move takes place in between. To cancel the move, restore the former `pool` or `placement`.",
    /// The VM's host is not one that its placement allows: a placed VM moves only with `movePolicy` `WhenStopped`.
    PlacedElsewhere => "Set `placement.movePolicy` to `WhenStopped` and restart the VM to move it, or change its `placement` to allow its host.",
    /// A step failed and is being tried again; the message is the error.
    Retrying => "The message has the error. If it stays, look at the agent's log on the host.",
    /// QEMU runs and does not answer its monitor; the message has the state of its process. The guest may stand still, too.
    NotResponding => "Look at the process on the host: one that was stopped goes on with `kill -CONT PID`, one that waits for a disk or a network file system when that answers. To end it, stop the VM with `stop.mode` `Hard`.",
    /// The guest ended by itself and was started again; the message has the cause. The reason of an event only.
    Restarted => "Read what the guest wrote before its end with `berth logs`.",
    /// The guest was asked to shut down, did not within its grace period, and was powered off. The reason of an event only.
    PoweredOff => "Give it more time with `stop.gracePeriodSeconds`, or see in the guest why it does not react to the power button: `berth logs`.",
    /// The readiness probe fails, or has not succeeded yet; the message has the cause.
    ProbeFailed => "See what the guest does: `berth logs`, `berth exec`, `berth port-forward`.",
    /// A hook after the start of the guest has not ended yet.
    HookRunning => "It ends within its `timeoutSeconds`.",
    /// The guest was not seen yet.
    GuestNotSeen => "Look at the guest with `berth logs` and `berth console`. Without DHCP and without qemu-guest-agent it is never seen.",
    /// No guest agent has answered, so the keys of the guest's users are not known.
    NoGuestAgent => "Install and start qemu-guest-agent in the guest.",
    /// The guest agent did not do what the VM declares, such as setting the keys of a user; the message has the cause.
    GuestAgentRefused => "Use qemu-guest-agent 5.2 or later, and allow the command in its configuration: `guest-ssh-…`, `guest-set-user-password` or `guest-exec`.",
    /// The package of the guest agent is about to be upgraded or removed.
    GuestPackagePending,
    /// The package manager in the guest did not upgrade or remove the guest agent; the message has the cause.
    GuestPackageFailed => "Correct the cause in the guest. It is tried again every ten minutes.",
    /// The guest has no user with this name.
    NoSuchGuestUser => "Create the user in the guest, or correct `guestUsers`.",
    /// The host's Lease is stale: the state of its objects is unknown.
    HostSilent => "See whether the host is up and reaches the control plane. If the machine is lost for good: `berth host forget HOST --lost`.",

    /// The host is drained: the VM stays stopped until the host is uncordoned.
    HostDraining => "When the maintenance is over: `berth host uncordon HOST`.",
    /// The host is about to be shut down: the VM is stopped or suspended, and goes on after the host's next boot.
    HostShuttingDown => "None: it goes on once the host has booted. If the host is not shut down after all: `berth service start-guests` there.",

    // A person must change something.
    /// The host was declared lost for good, with everything on it.
    HostFenced => "Delete the object, and create it anew elsewhere.",
    /// The downloaded bytes do not have the declared checksum.
    ChecksumMismatch => "Correct the checksum of the Image, or find out why the source has other bytes.",
    /// The source answered that there is no such image.
    ImageNotFound => "Correct the source of the Image.",
    /// The download failed as often as the Image allows (`source.retries`).
    DownloadFailed => "Find out why the source does not answer as the message says, then change `source.url`, `source.retries` or `source.timeoutSeconds`.",
    /// The host may not fetch from there: a file outside of the folders, or an address outside of the ranges, that its
    /// administrator allows.
    ImageNotAllowed => "Have the host's administrator allow the folder or range: `--image-dir`, `--image-allow`.",
    /// No Image of that name is shared with this namespace by the other one (`sharedWith`), whether there is one or not.
    ImageNotShared => "Ask for the namespace in `sharedWith` of the Image, or take the data from an Image of your own.",
    /// The Disk or the DiskSnapshot of the other namespace does not exist, or is not shared with this namespace (`sharedWith`).
    SourceNotShared => "Have this namespace added to `sharedWith` of the Disk or the DiskSnapshot, or use a source in this namespace.",
    /// The file of an image that was made from a disk, a snapshot or another image, or was uploaded, is gone from its host.
    ImageLost => "Restore the file on its host, or replace the Image. Upload an uploaded one again: `berth image push`.",
    /// The bytes are not an image of the declared format or compression, or one that is refused (backing file, external data file).
    ImageInvalid => "Declare the [format and compression](images.md#formats) that the bytes have, or convert the image: `qemu-img convert -O qcow2`.",
    /// The image's virtual size is larger than allowed.
    ImageTooLarge => "Use an image with a smaller virtual size.",
    /// The disk is smaller than the image, the disk or the snapshot that it is made from.
    DiskSmallerThanImage => "Raise the size of the Disk to at least that of the image, disk or snapshot.",
    /// The file of the host cannot become a disk: it is in none of the allowed folders, or no self-contained image of the declared format.
    FileRefused => "Have the host's administrator allow the folder with `--disk-dir`, or declare another format (`source.format`) or convert the file, as the message says.",
    /// The disk is used by another VM.
    DiskInUse => "Detach the disk from the other VM, or use another disk.",
    /// The disk's file is on another host.
    DiskOnOtherHost => "Use disks that are on one host: the VM runs there.",
    /// The disk's file is gone from its host.
    DiskLost => "Restore the file on its host, or replace the Disk.",
    /// The folder of the disk's pool cannot be used on its host now, as when its file system is not mounted; the message has the cause.
    /// Nothing is lost by that.
    PoolAway => "Mount the file system on the host, or correct there what the message says: see `status.pools` of the Host.",
    /// The snapshot's file is gone from its host.
    SnapshotLost => "Restore the file on its host, or delete the DiskSnapshot.",
    /// The password does not open the repository.
    WrongPassword => "Correct the password in the Secret that `passwordSecretName` of the BackupRepository names.",
    /// The key in the Secret of the KeyClass is no key, or another one than that which protects the disk's key; or the key in its Vault is another one.
    WrongKey => "Bring the former key back into the Secret that `secret` of the KeyClass names, or back into its Vault. Another key needs another KeyClass.",
    /// The Vault of the KeyClass does not answer, is sealed, or answers with an error; the message has the cause.
    VaultUnreachable => "See that the host reaches the Vault at `vault.address`, and unseal it if it is sealed. It is tried again.",
    /// The Vault refuses the token or the AppRole of the KeyClass, or what they are used for.
    VaultAccessDenied => "Renew the token or the secret ID in the Secret that `vault` of the KeyClass names, or correct the Vault's policy: [update on encrypt and decrypt](encryption.md#keys-in-vault).",
    /// The Vault has no such transit engine, or no such key in it.
    VaultKeyMissing => "Create or restore the key in the Vault, or correct `vault` in another KeyClass.",
    /// The server or the folder of the repository does not answer, or answers with an error; the message has the cause.
    RepositoryUnreachable => "See that the host reaches the server, or that the folder is mounted. It is tried again.",
    /// The server refuses the credentials of the repository, or what they are used for.
    RepositoryAccessDenied => "Correct the Secret that `credentialsSecretName` of the BackupRepository names, or what the account may do in the bucket.",
    /// There is something else than a repository, or none where there was one before.
    NoRepository => "Use another prefix or folder, mount the folder, or create another BackupRepository.",
    /// Another repository is in the place of the one that was opened before.
    RepositoryReplaced => "Bring the former one back, or create another BackupRepository for this one.",
    /// The host does not offer the folder of the repository, or cannot use it; the message has the cause.
    BackupFolderUnavailable => "See `status.backupFolders` of the Host: offer the folder there (`--backup-folder`), or correct the cause in the message.",
    /// The backup is not in the repository, or a part of it is missing or damaged.
    BackupLost => "Use another Backup, and delete this one.",
    /// The disk is on the largest number of snapshots that is supported.
    TooManySnapshots => "Delete DiskSnapshots of the disk, and the copies that are based on deleted ones.",
    /// The last snapshot of a VM of the schedule, or the one of a hook before a stop, is not taken, or QEMU did not save the guest's memory
    /// for one; the message has the cause.
    SnapshotFailed => "Do what the message says, or look at the snapshot with `berth why vmsnapshot/NAME`. One with memory is not tried again: delete it, and create another. The next moment of the schedule, or the next stop, takes another one.",
    /// The last backup of a disk of the schedule is not complete; the message names the disk and the Backup, and has the cause.
    BackupFailed => "Do what the message says, or look at the backup with `berth why backup/NAME`. It is tried again; once its snapshot is gone, the next snapshot of the schedule is backed up in its place.",
    /// The schedule has snapshots or backups of moments that are in the future by the clock of the controllers: none is made before then.
    ClockBehind => "Correct the clock. If an earlier clock was wrong, delete the VMSnapshots and Backups of the future that the message names, or take the label `berth.dev/snapshot-schedule` off those to keep.",
    /// The VM was started, or a disk exchanged, while the snapshot of its disks was being taken: they would be of different moments.
    SnapshotInterrupted => "Delete the VMSnapshot, and create another.",
    /// The declared restore cannot be done: its DiskSnapshot is of another disk or in another pool, it was restored before and another
    /// one since, or the VM cannot go on with the memory of its VMSnapshot.
    RestoreRefused => "Name a DiskSnapshot of this disk, or set another `restore.token` to restore it once more; set `restore.memory` of a VM to false to restore only its disks; or take `restore` out.",
    /// The disk cannot be moved to the declared pool, or the VM to another host, and stays where it is; the message has the cause.
    MoveRefused => "Remove the cause that the message names, for example make room in the pool, or mount its file system on the host. The move is tried again. To cancel it, restore the former `pool` or `placement`.",
    /// A port of the address has no target that runs and whose health check succeeds: connections to it are refused. The message has
    /// the targets.
    NoAvailableTarget => "Start one of the targets in the message, correct its health check, or see whether its security groups let it through.",
    /// No address is free in the pool.
    NoFreeAddress => "Delete PublicIPs or VMs that are not needed, or enlarge the range.",
    /// No port of the range of the PublicIP is free for an entry that declares none. The message has the range and the entries.
    NoFreePort => "Enlarge `portRange` of the PublicIP, declare a `port`, or take out entries that are not needed.",
    /// The declared address is not in the pool, or is in use.
    AddressUnavailable => "Declare another address, or none for a free one.",
    /// QEMU is not installed on the host.
    QemuMissing => "Install QEMU on the host: `berth doctor` there names the packages.",
    /// QEMU failed at start; the message is its standard error.
    QemuFailed => "The message is QEMU's. `berth doctor` on the host checks what it needs.",
    /// The VM's QEMU ended repeatedly; restarts are backed off.
    CrashLoop => "Read what the guest wrote last with `berth logs`. Another `restartToken` starts it at once.",
    /// The guest ended and the restart policy leaves it ended.
    GuestEnded => "Change `restartToken` to start it, or `restartPolicy` to have it started.",
    /// The kernel of the host ended the VM's QEMU for lack of memory (OOM killer), of the host or of the VM's control group. The reason of an event if the VM was started again.
    OutOfMemory => "Make room on the host: `berth top` there shows what uses its memory. Move VMs elsewhere, give the host swap space, or raise `memoryReservation` of its VMs. If its policy leaves the VM off, change `restartToken` to start it.",
    /// The guest still uses the disk (a mounted filesystem): unmount it or set force.
    GuestBusy => "Unmount the file system in the guest, or set `force`.",
    /// No guest agent reports whether the running guest has the disk mounted: run one, stop the VM, or set force.
    MountsUnknown => "Run qemu-guest-agent in the guest, stop the VM, or set `force`.",
    /// The guest's file systems stay frozen after a snapshot: its agent does not thaw them, and programs in the guest wait when they write.
    GuestFrozen => "The host asks the agent again every 30 seconds. Thaw them in the guest (`fsfreeze --unfreeze MOUNTPOINT`), or restart the VM with `restartMode: Hard`.",
    /// The guest was asked to shut down and still runs; the mode `Soft` leaves it running.
    ShutdownIgnored => "Shut the guest down from inside, or set `stop.mode` to `Graceful` or `Hard`.",
    /// A hook with the policy `Fail` has failed: the guest runs on. The message has the cause.
    HookFailed => "Correct what the hook calls, and stop or restart the VM again; or set `failurePolicy` to `Ignore`.",
    /// The guest could not be suspended, to a file or to its memory: the guest runs on.
    SuspendFailed => "It is tried every minute. The message has the cause, as QEMU or the guest reports it; set `power` to `Running` to leave it.",
    /// The guest's saved memory could not be loaded: the VM stays suspended.
    ResumeFailed => "Set `power` to `Suspended` and back to try again, or change `restartToken`, which boots the guest without its memory.",
    /// The host does not support what is declared.
    NotSupported => "Change the declaration as the message says, or use another host.",
    /// The declared data cannot be used (for example bootstrap data that is too large).
    InvalidSpec => "Correct the declaration as the message says.",
    /// The host has no space left for the file.
    NoSpace => "Free space on the host, or add some.",
    /// No host is large enough for the VM, however empty; the message names the largest.
    NoHostLargeEnough => "Lower the VM's size, or add a host of that size.",
    /// No host that the VM may run on can emulate a TPM, which the VM or its class declares.
    NoHostWithTPM => "Install swtpm on a host that the VM may run on.",
    /// No host that the VM may run on can give it the vsock device that it declares.
    NoHostWithVsock => "Load the module `vhost_vsock` on a host that the VM may run on, or leave `vsock` out.",
    /// No host that the VM may run on has the bridge or the interface of one of its Networks.
    NoHostWithBridge => "Give one of these hosts the bridge or the interface that the message names, or correct `bridge` of the Network.",
    /// No host that the VM may run on offers the PCI or USB devices or vGPUs that it declares, or the block devices of its Disks.
    NoHostWithDevice => "Offer devices of that name on a host that the VM may run on (`--pci-device`, `--usb-device`, `--vgpu`, `--block-device`), or correct `pciDevices`, `usbDevices` or `vgpus`, or `source.device` of the Disk.",
    /// A PCI or USB device or a vGPU that the VM declares, or the block device of a Disk, is not free on its host, or no VM can have it; the message has the cause.
    DeviceUnavailable => "See `status.pciDevices`, `status.usbDevices`, `status.vgpus` or `status.blockDevices` of the Host, and correct there what the message says.",
    /// No host that the VM may run on shares the folders that it declares, or shares one of them read-only.
    NoHostWithShare => "Share the folder on a host that the VM may run on (`--share`), or correct `shares`.",
    /// No host that it may be on offers the folder of the repository.
    NoHostWithBackupFolder => "Offer the folder on a host (`--backup-folder`), or correct `folder` of the BackupRepository.",
    /// The host does not share a folder that the VM declares, or cannot; the message has the cause.
    ShareUnavailable => "See `status.shares` of the Host, and correct there the cause in the message.",
    /// The server of a shared folder (virtiofsd) has ended: the guest cannot reach the folder.
    ShareFailed => "Restart the VM: it then has a server again.",
    /// No host that the VM may run on has as many huge pages, used or not, as its memory needs.
    NoHostWithHugePages => "Reserve huge pages on a host that the VM may run on (docs/performance.md), or lower its memory.",
    /// No host that the VM may run on has as many CPUs for single VMs, used or not, as it needs.
    NoHostWithDedicatedCPUs => "Start the agent of a host that the VM may run on with `--dedicated-cpus`, or lower its CPUs.",
    /// The emulator of the VM's TPM has ended: the guest's TPM does not answer.
    TPMFailed => "Restart the VM: it then has an emulator again.",
    /// No host, or not the one where a disk would be, has the name or the labels that the VM, its placement group or its disk asks for.
    NoSuchHost => "Correct `placement`, or the labels that the group asks for, or label a host: `kubectl label host`.",
    /// The placement group has more members than hosts, or zones, to keep them apart.
    GroupTooLarge => "Add hosts or zones, put fewer VMs into the group, or create it with `enforcement: preferred`.",
    /// Members of the placement group are placed against its rule.
    GroupRuleBroken => "Replace one of the VMs in the message.",
    /// The declared MTU does not fit through the tunnels between hosts; a smaller one is used.
    MTUTooLarge => "Lower the Network's `mtu`, or raise that of the hosts' interfaces.",
    /// The address for a VM is an address of a host.
    HostAddress => "Use a range without addresses of hosts.",
    /// The network's identifier is in use by another network.
    IdentifierInUse => "Create the Network anew: it gets another identifier.",
    /// The namespace would use more than its quota allows; the message has the numbers.
    QuotaExceeded => "Delete some of them, or have the administrator raise the limit.",
    /// Another machine on the segment answers for the address.
    AddressConflict => "Find the machine with the MAC address in the message, and give it another address.",
    /// The host has no interface to announce public addresses on, or that interface is not configured for it.
    NoPublicInterface => "Name the interface with `--public-interface`, and configure it.",

    // Hosts.
    /// The host agent reports.
    AgentReady,
    /// The accelerator is usable.
    Accelerated,
    /// The accelerator is not usable; emulation is used.
    Emulated => "Make `/dev/kvm` usable: `berth doctor` on the host tells how.",
    /// Guests run or files lie on the host that no object owns.
    OrphansFound => "They are in `status.orphans` of the Host: adopt or release each of them, `berth host adopt`, `berth host release`.",
    /// All that the host has, or more, is reserved for the host itself.
    ReservedTooLarge => "Lower `reserved` of the Host.",
    /// A bridge or an interface of the host that a Network of VMs here needs is missing, has no carrier, is used by the host itself, or has VLAN filtering beside a trunk.
    BridgeUnavailable => "Correct that on the host: guests that run there are connected again within minutes.",
    /// The DHCP and DNS server of a Network on the host (dnsmasq) ended several times within minutes, or a Network cannot be made with its server. Guests keep their addresses, but get none anew; VMs on other Networks are not affected.
    NetworkServerEnds => "Read the message and the host's logs: another program may end it, have its port, or take its memory.",
    /// Guests run in the systemd unit of the host's agent: when it is stopped or restarted, systemd can end them. The message names them.
    SharedUnit => "Run `berth service install` on the host, and restart its agent: guests leave the unit at their next power cycle.",
    /// A firewall that is not berth's drops packets of guests: forwarded ones, or those by which they ask the host for addresses and names.
    ForeignFirewall => "Accept them in that firewall: the message has the chain and the commands, as has `berth doctor` on the host.",
    /// The host takes no new VMs.
    Cordoned => "When it may take VMs again: `berth host uncordon HOST`.",
    /// The control plane's definitions are older than the host's agent.
    OlderDefinitions => "Upgrade the control plane: `berth crds`, or `berth up`.",
    /// The control plane's definitions are newer than the host's agent: it takes no new VMs.
    NewerDefinitions => "Upgrade berth on the host.",
}

impl Reason {
    /// The reasons of `Ready` of a VM whose guest has ended by itself and is off: for good, or until a delay is over.
    pub const OF_ENDED_GUESTS: [Self; 3] = [Self::GuestEnded, Self::CrashLoop, Self::OutOfMemory];
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/states.md");

    #[test]
    fn the_page_explains_each_reason() {
        let row = |reason: &Reason| {
            let advice = if reason.advice().is_empty() { "–" } else { reason.advice() };
            format!("| `{reason}` | {} | {advice} |", reason.meaning())
        };
        let missing: Vec<String> =
            Reason::ALL.iter().map(row).filter(|row| !PAGE.lines().any(|line| line == row)).collect();
        assert!(missing.is_empty(), "docs/states.md needs these lines:\n{}", missing.join("\n"));
        let (_, reasons) = PAGE.split_once("\n## Reasons\n").expect("a chapter on reasons");
        let lines = reasons.lines().filter(|line| line.starts_with("| `"));
        assert_eq!(lines.count(), Reason::ALL.len(), "docs/states.md has a reason that does not exist");
    }
}
