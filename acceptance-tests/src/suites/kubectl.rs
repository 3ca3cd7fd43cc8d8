//! kubectl against `berth up`: the verbs that people use, and the mistakes that people make.

mod processes;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{Kit, manifests};
use crate::berth::{Administrator, METRICS};
use crate::http;
use crate::kubectl::{Kubectl, condition_of};
use crate::platform::Platform;
use crate::process::Daemon;
use crate::report::{Report, note, spoken};
use crate::wait;

const SOON: Duration = Duration::from_secs(30);
/// The time limit for QEMU's start while the machine is busy emulating.
const VM_START: Duration = Duration::from_secs(90);
/// The time limit for a report of what a host looks at once a minute.
const REPORTED: Duration = Duration::from_secs(90);

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("kubectl"))?;
    let started = Instant::now();
    let mut platform = report.step("berth up is ready", || Platform::embedded(&parts))?;
    note(&format!("        ready {} after the start of the simulated site", spoken(started.elapsed())));
    let failed = report.count().failed;
    reading(report, &platform);
    writing(report, &platform);
    refusals(report, &platform);
    machines(report, &mut platform);
    processes::cases(report, &mut platform);
    if report.count().failed > failed {
        note(&platform.keep_evidence());
    }
    Ok(())
}

/// Fails unless the text contains all of `words`.
pub fn contains_all(text: &str, words: &[&str]) -> Result<()> {
    for word in words {
        ensure!(text.contains(word), "expected {word:?} in:\n{text}");
    }
    Ok(())
}

/// Fails unless `kubectl describe` of a VM has the message of its condition `Ready`, and in time a warning with this reason.
pub fn describes_failure(kubectl: &Kubectl, vm: &serde_json::Value, reason: &str) -> Result<()> {
    let name = vm["metadata"]["name"].as_str().context("a VM without a name")?;
    let message =
        condition_of(vm, "Ready").and_then(|ready| ready["message"].as_str()).context("no Ready")?;
    let describe = || kubectl.ok(&["describe", "vm", name]);
    contains_all(&describe()?, &["Conditions:", message, reason])?;
    wait::until("the event in kubectl describe", SOON, || {
        let text = describe()?;
        let (_, events) = text.rsplit_once("Events:").context("no events")?;
        let is_warning = |line: &str| line.contains("Warning") && line.contains(reason);
        ensure!(events.lines().any(is_warning), "no warning {reason} in:\n{events}");
        Ok(())
    })
}

/// Every way to read, once berth is installed.
pub fn reading(report: &mut Report, platform: &Platform) {
    let kubectl = platform.kubectl();
    report.case("api-resources lists every kind with its short name", || {
        let text = kubectl.ok(&["api-resources", "--api-group=berth.dev", "--no-headers"])?;
        for (plural, short, kind) in [
            ("vms", "vm", "VM"),
            ("vmclasses", "vmc", "VMClass"),
            ("keyclasses", "kc", "KeyClass"),
            ("images", "img", "Image"),
            ("disks", "dsk", "Disk"),
            ("hotswapdiskattachments", "hda", "HotswapDiskAttachment"),
            ("placementgroups", "pg", "PlacementGroup"),
            ("vmgroups", "vmg", "VMGroup"),
            ("publicips", "pip", "PublicIP"),
            ("networks", "", "Network"),
            ("securitygroups", "sg", "SecurityGroup"),
            ("disksnapshots", "dsnap", "DiskSnapshot"),
            ("backups", "bkp", "Backup"),
            ("backuprepositories", "brepo", "BackupRepository"),
            ("vmsnapshots", "vmsnap", "VMSnapshot"),
            ("snapshotschedules", "snapsched", "SnapshotSchedule"),
            ("quotas", "vmquota", "Quota"),
            ("ippools", "", "IPPool"),
            ("storagepools", "", "StoragePool"),
            ("hosts", "", "Host"),
        ] {
            let line = text
                .lines()
                .find(|line| line.split_whitespace().next() == Some(plural))
                .with_context(|| format!("no {plural} in:\n{text}"))?;
            contains_all(line, &[short, kind, "berth.dev/v1alpha1"])?;
        }
        Ok(())
    });
    report.case("the default pools exist", || {
        for kind in ["storagepool", "ippool"] {
            kubectl.object(kind, "default")?;
        }
        Ok(())
    });
    report.case("the host reports which accelerator it measured and why", || {
        let hosts: serde_json::Value = serde_json::from_str(&kubectl.ok(&["get", "hosts", "-o", "json"])?)?;
        let status = &hosts["items"][0]["status"];
        let accelerator = status["accelerator"].as_str().context("no accelerator")?;
        ensure!(["kvm", "tcg"].contains(&accelerator), "{accelerator}");
        let usable = status["kvm"]["usable"].as_bool().context("no kvm.usable")?;
        ensure!(usable == (accelerator == "kvm"), "{status:#}");
        ensure!(status["kvm"]["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{status:#}");
        Ok(())
    });
    report.case("explain shows what a field is for", || {
        contains_all(&kubectl.ok(&["explain", "vm.spec.power"])?, &["FIELD", "Running"])?;
        contains_all(&kubectl.ok(&["explain", "disk.spec"])?, &["size", "image", "Grow only"])
    });
    report.case("kubectl auth whoami and can-i answer", || {
        contains_all(&kubectl.ok(&["auth", "can-i", "create", "vms.berth.dev"])?, &["yes"])?;
        kubectl.ok(&["auth", "whoami"]).map(drop)
    });
    report.case("cluster-info finds the control plane and complains of nothing", || {
        let output = kubectl.run(&["cluster-info"])?;
        ensure!(output.code() == 0 && output.stderr.trim().is_empty(), "{}", output.output());
        contains_all(&output.stdout, &["control plane", "is running at", "https://"])
    });
    report.case("a wrong token is refused with a reason", || {
        let text = kubectl.refused(&["get", "vms", "--token=wrong"])?;
        ensure!(text.contains("Unauthorized") || text.contains("must be logged in"), "{text}");
        Ok(())
    });
}

/// Every way to write an object.
pub fn writing(report: &mut Report, platform: &Platform) {
    let kubectl = platform.kubectl();
    report.case("every kind is applied, got with -o wide and described", || {
        let objects = [
            manifests::class("k-class", 1, "256Mi"),
            manifests::image("k-image", &platform.images().url("none"), &"0".repeat(64)),
            manifests::blank_disk("k-disk", "64Mi"),
            manifests::group("k-group"),
            manifests::public_ip("k-ip", "default"),
            manifests::vm("k-vm", "no-such-class", "k-disk"),
            manifests::attachment("k-attachment", "no-such-vm", "k-disk"),
            manifests::schedule("k-schedule", "0 3 * * *", "no-such-vm"),
        ];
        kubectl.apply(&manifests::all(&objects))?;
        for object in &objects {
            let (kind, name) =
                (object["kind"].as_str().unwrap_or_default(), object["metadata"]["name"].as_str());
            let kind = format!("{}.berth.dev", kind.to_lowercase());
            let name = name.unwrap_or_default();
            contains_all(&kubectl.ok(&["get", &kind, name, "-o", "wide"])?, &["NAME", "AGE", name])?;
            contains_all(&kubectl.ok(&["describe", &kind, name])?, &["Name:", "Spec:", name])?;
        }
        contains_all(&kubectl.ok(&["get", "berth"])?, &["k-class", "k-vm", "k-ip"])
    });
    report.case("client-side apply creates, then changes, then has nothing to do", || {
        let apply = |object: serde_json::Value| -> Result<String> {
            kubectl.with_input(&["apply", "-f", "-"], &object.to_string())?.success()
        };
        contains_all(&apply(manifests::class("client", 1, "256Mi"))?, &["created"])?;
        contains_all(&apply(manifests::class("client", 2, "256Mi"))?, &["configured"])?;
        contains_all(&apply(manifests::class("client", 2, "256Mi"))?, &["unchanged"])?;
        ensure!(kubectl.object("vmclass", "client")?["spec"]["cpus"] == 2);
        Ok(())
    });
    report.case("apply --prune -l deletes what the manifest no longer has, and nothing else", || {
        let labelled = |name: &str| {
            let mut object = manifests::class(name, 1, "256Mi");
            object["metadata"]["labels"] = json!({"set": "pruned"});
            object
        };
        let apply = |objects: &[serde_json::Value]| -> Result<String> {
            let allowed = "--prune-allowlist=berth.dev/v1alpha1/VMClass";
            let arguments = ["apply", "--prune", "-l", "set=pruned", allowed, "-f", "-"];
            let finished = kubectl.with_input(&arguments, &manifests::all(objects))?;
            ensure!(!finished.stderr.to_lowercase().contains("error"), "{}", finished.output());
            finished.success()
        };
        // kubectl prunes by its own list of kinds, which contains none of berth's.
        let plain = ["apply", "--prune", "-l", "set=pruned", "-f", "-"];
        kubectl.with_input(&plain, &labelled("pruned-1").to_string())?.success()?;
        apply(&[labelled("pruned-1"), labelled("pruned-2")])?;
        contains_all(&apply(&[labelled("pruned-1")])?, &["pruned-1", "unchanged", "pruned-2", "pruned"])?;
        kubectl.ok(&["get", "vmclass", "pruned-1", "client"])?;
        contains_all(&kubectl.refused(&["get", "vmclass", "pruned-2"])?, &["NotFound"])?;
        kubectl.ok(&["delete", "vmclass", "pruned-1"]).map(drop)
    });
    report.case("diff shows a change and exits with 1, and with 0 when there is none", || {
        let diff = |memory: &str| {
            let object = manifests::class("client", 2, memory).to_string();
            kubectl.with_input(&["diff", "-f", "-"], &object)
        };
        let changed = diff("512Mi")?;
        ensure!(changed.code() == 1, "{}", changed.output());
        contains_all(&changed.stdout, &["512Mi"])?;
        let same = diff("256Mi")?;
        ensure!(same.code() == 0, "{}", same.output());
        Ok(())
    });
    report.case("a List is applied too", || {
        let classes = [manifests::class("listed-1", 1, "256Mi"), manifests::class("listed-2", 1, "256Mi")];
        kubectl.apply(&manifests::list(&classes))?;
        kubectl.ok(&["delete", "vmclass", "listed-1", "listed-2"]).map(drop)
    });
    report.case("a server-side apply conflict names the other manager and is forced on request", || {
        let apply = |manager: &str, cpus: u32, force: bool| {
            let manager = format!("--field-manager={manager}");
            let mut arguments = vec!["apply", "--server-side", &manager, "-f", "-"];
            if force {
                arguments.push("--force-conflicts");
            }
            kubectl.with_input(&arguments, &manifests::class("owned", cpus, "256Mi").to_string())
        };
        apply("pipeline-one", 1, false)?.success()?;
        contains_all(&apply("pipeline-two", 2, false)?.failure()?, &["conflict", "pipeline-one", "cpus"])?;
        apply("pipeline-two", 2, true)?.success().map(drop)
    });
    report.case("patch, label and annotate change an object; a spec change raises its generation", || {
        let before = kubectl.object("vmclass", "owned")?["metadata"]["generation"].clone();
        kubectl.ok(&["label", "vmclass", "owned", "tier=small"])?;
        kubectl.ok(&["annotate", "vmclass", "owned", "note=hello"])?;
        let labelled = kubectl.object("vmclass", "owned")?;
        ensure!(labelled["metadata"]["generation"] == before, "a label raised the generation");
        kubectl.ok(&["patch", "vmclass", "owned", "--type=merge", "-p", r#"{"spec":{"cpus":3}}"#])?;
        let json_patch =
            r#"[{"op":"test","path":"/spec/cpus","value":3},{"op":"replace","path":"/spec/cpus","value":4}]"#;
        kubectl.ok(&["patch", "vmclass", "owned", "--type=json", "-p", json_patch])?;
        let after = kubectl.object("vmclass", "owned")?;
        ensure!(after["spec"]["cpus"] == 4 && after["metadata"]["generation"] != before, "{after:#}");
        contains_all(&kubectl.ok(&["get", "vmclass", "-l", "tier=small", "-o", "name"])?, &["owned"])
    });
    report.case("get -w shows objects as they come", || {
        let log = platform.folder().join("watch.log");
        let watch = Daemon::spawn("kubectl get -w", &mut kubectl.command(&["get", "vmclass", "-w"]), &log)?;
        wait::until("the first table", SOON, || contains_all(&watch.log_tail(), &["owned"]))?;
        kubectl.apply(&manifests::class("watched", 1, "256Mi").to_string())?;
        wait::until("the new object", SOON, || contains_all(&watch.log_tail(), &["watched"]))
    });
    report.case("wait ends when a condition comes and when an object goes", || {
        kubectl.ok(&["wait", "publicip/k-ip", "--for=condition=Ready", "--timeout=30s"])?;
        let address = kubectl.object("publicip", "k-ip")?["status"]["address"].clone();
        ensure!(address.as_str().is_some_and(|address| address.starts_with("198.51.100.")), "{address}");
        kubectl.ok(&["delete", "vmclass", "watched", "--wait=false"])?;
        kubectl.ok(&["wait", "vmclass/watched", "--for=delete", "--timeout=30s"]).map(drop)
    });
    report.case("a field selector finds VMs by class", || {
        let found = kubectl.ok(&["get", "vms", "--field-selector=spec.class=no-such-class", "-o", "name"])?;
        contains_all(&found, &["k-vm"])?;
        let none = kubectl.ok(&["get", "vms", "--field-selector=spec.class=other", "-o", "name"])?;
        ensure!(none.trim().is_empty(), "{none}");
        Ok(())
    });
    report.case("deleting works and what is gone is not found", || {
        let kinds = [
            "snapshotschedule/k-schedule",
            "hotswapdiskattachment/k-attachment",
            "vm/k-vm",
            "disk/k-disk",
            "image/k-image",
            "publicip/k-ip",
            "placementgroup/k-group",
            "vmclass/client",
            "vmclass/owned",
            "vmclass/k-class",
        ];
        for object in kinds {
            kubectl.delete(object)?;
        }
        contains_all(&kubectl.refused(&["get", "vm", "k-vm"])?, &["NotFound"])
    });
}

/// Every mistake that admission must refuse.
pub fn refusals(report: &mut Report, platform: &Platform) {
    let kubectl = platform.kubectl();
    for (memory, words) in [("512MB", &["memory"]), ("-1", &["memory"]), ("lots", &["memory"])] {
        report.case(&format!("memory {memory} is refused"), || {
            contains_all(&kubectl.apply_refused(&manifests::class("bad", 1, memory).to_string())?, words)
        });
    }
    report.case("an object's name must be a DNS label", || {
        for name in ["Web_1", "a.b", &"x".repeat(64)] {
            let text = kubectl.apply_refused(&manifests::blank_disk(name, "64Mi").to_string())?;
            contains_all(&text, &["name"])?;
        }
        Ok(())
    });
    report.case("a name that refers to another object must be a DNS label too", || {
        let text = kubectl.apply_refused(&manifests::vm("bad", "No Such Class", "disk").to_string())?;
        contains_all(&text, &["class", "DNS label"])
    });
    report.case("a boot flag on two disks is refused", || {
        let disks = json!([{"name": "a", "boot": true}, {"name": "b", "boot": true}]);
        let two = manifests::with(manifests::vm("bad", "small", "a"), "disks", disks);
        contains_all(&kubectl.apply_refused(&two.to_string())?, &["exactly one disk must have boot"])
    });
    report.case(
        "more than eight PCI or USB devices or vGPUs, and a suspension beside them, are refused",
        || {
            for (list, noun) in
                [("pciDevices", "PCI devices"), ("usbDevices", "USB devices"), ("vgpus", "vGPUs")]
            {
                let with = |devices: serde_json::Value| {
                    manifests::with(manifests::vm("bad", "small", "a"), list, devices)
                };
                let nine = with(json!([{"name": "gpu", "count": 8}, {"name": "nic"}]));
                let most = format!("at most 8 {noun}");
                contains_all(&kubectl.apply_refused(&nine.to_string())?, &[&most])?;
                let none = with(json!([{"name": "gpu", "count": 0}]));
                contains_all(&kubectl.apply_refused(&none.to_string())?, &["count"])?;
                let suspended = manifests::with(with(json!([{"name": "gpu"}])), "power", json!("Suspended"));
                let refused = format!("{noun} of its host cannot be suspended");
                contains_all(&kubectl.apply_refused(&suspended.to_string())?, &[&refused])?;
            }
            Ok(())
        },
    );
    report.case("a setting of QEMU that is not in the list, or that contains another, is refused", || {
        let with = |name: &str, value: &str| {
            let options = json!([{"name": name, "value": value}]);
            manifests::with(manifests::class("bad", 1, "256Mi"), "qemuOptions", options)
        };
        let kernel = with("machine.kernel", "x").to_string();
        contains_all(&kubectl.apply_refused(&kernel)?, &["machine.kernel", "machine.hpet"])?;
        for value in ["off,kernel=x", "off\n-monitor", ""] {
            contains_all(&kubectl.apply_refused(&with("machine.hpet", value).to_string())?, &["value"])?;
        }
        kubectl.apply(&with("machine.hpet", "off").to_string())?;
        kubectl.ok(&["delete", "vmclass", "bad"]).map(drop)
    });
    report.case("a schedule of snapshots that is none, keeps too many or has no VMs is refused", || {
        let schedule = || manifests::schedule("bad", "0 3 * * *", "web");
        let keep = |keep: serde_json::Value| manifests::with(schedule(), "keep", keep);
        for (object, words) in [
            (manifests::schedule("bad", "0 3 * *", "web"), "must be a cron expression of five fields"),
            (keep(json!({})), "keep must keep at least one"),
            (keep(json!({"hourly": 20, "daily": 5})), "not be more than 24 together"),
            (
                manifests::with(schedule(), "vmSelector", json!({"a": "b"})),
                "set one of vms, vmSelector, disks and diskSelector",
            ),
            (manifests::with(schedule(), "startingDeadlineSeconds", json!(5)), "startingDeadlineSeconds"),
        ] {
            contains_all(&kubectl.apply_refused(&object.to_string())?, &[words])?;
        }
        // An expression cannot say that no month has the day.
        kubectl.apply(&manifests::schedule("never", "0 3 31 2 *", "web").to_string())?;
        let found = kubectl.condition("snapshotschedule/never", "Ready=False", Some("InvalidSpec"), SOON)?;
        contains_all(&found["status"]["conditions"].to_string(), &["it never has a moment"])?;
        let listed = kubectl.ok(&["get", "snapsched", "never"])?;
        contains_all(&listed, &["SCHEDULE", "LAST-SCHEDULE", "0 3 31 2 *", "UTC", "InvalidSpec"])?;
        kubectl.ok(&["delete", "snapsched", "never"]).map(drop)
    });
    report.case("an unknown field is refused by name", || {
        let misspelt = manifests::with(manifests::class("bad", 1, "256Mi"), "memmory", json!("1Gi"));
        contains_all(&kubectl.apply_refused(&misspelt.to_string())?, &["memmory"])
    });
    report.case("shrinking a disk is refused", || {
        kubectl.apply(&manifests::blank_disk("shrinks", "128Mi").to_string())?;
        let text = kubectl.apply_refused(&manifests::blank_disk("shrinks", "64Mi").to_string())?;
        contains_all(&text, &["size can only grow"])?;
        kubectl.apply(&manifests::blank_disk("shrinks", "0.125Gi").to_string())?;
        kubectl.ok(&["delete", "disk", "shrinks"]).map(drop)
    });
}

fn machines(report: &mut Report, platform: &mut Platform) {
    let kubectl = platform.kubectl();
    let administrator =
        Administrator::new(platform.host().program(), platform.namespace(), platform.kubeconfig());
    let blank = |name: &str, disk: &str| {
        manifests::all(&[
            manifests::class("tiny", 1, "64Mi"),
            manifests::blank_disk(disk, "64Mi"),
            manifests::vm(name, "tiny", disk),
        ])
    };
    report.case("a VM without an operating system runs, because running is QEMU's business", || {
        kubectl.apply(&blank("empty", "empty-root"))?;
        kubectl.condition("vm/empty", "Running=True", None, VM_START)?;
        platform.qemu().map(drop)
    });
    report.case("a VM that waits shows its reason, and `berth why` names the cause and the remedy", || {
        let waiting = manifests::all(&[
            manifests::blank_disk("waiting", "64Mi"),
            manifests::vm("waiting", "absent", "waiting"),
        ]);
        kubectl.apply(&waiting)?;
        kubectl.condition("vm/waiting", "Ready=False", Some("WaitingForClass"), SOON)?;
        contains_all(&kubectl.ok(&["get", "vm", "waiting"])?, &["REASON", "WaitingForClass"])?;
        let message = "VMClass absent does not exist in namespace default or berth-shared";
        contains_all(&kubectl.ok(&["describe", "vm", "waiting"])?, &["WaitingForClass", message])?;
        let why = administrator.run(&["why", "vm/waiting"])?.success()?;
        contains_all(
            &why,
            &[
                "vm/waiting is not ready",
                "(WaitingForClass)",
                "Its class, vmclass/absent, does not exist.",
                "What to do: create vmclass/absent.",
            ],
        )?;
        let absent = administrator.run(&["why", "vm/absent"])?.failure()?;
        contains_all(&absent, &["there is no vm absent in namespace default"])?;
        kubectl.ok(&["delete", "vm/waiting", "disk/waiting", "--timeout=60s"]).map(drop)
    });
    report.case(
        "a host reports a PCI and a USB device and a vGPU that are not there, and a VM that declares them waits for a person",
        || {
            let host = kubectl.ok(&["get", "hosts", "-o", "jsonpath={.items[0].status.pciDevices}"])?;
            contains_all(&host, &["gpu-missing", "this host has no device ffff:1f:1f.0", "\"usable\":0"])?;
            let host = kubectl.ok(&["get", "hosts", "-o", "jsonpath={.items[0].status.usbDevices}"])?;
            contains_all(&host, &["key-missing", "this host has no device in port 999-9", "\"usable\":0"])?;
            let host = kubectl.ok(&["get", "hosts", "-o", "jsonpath={.items[0].status.vgpus}"])?;
            contains_all(&host, &["vgpu-missing", "this host has no device ffff:1f:1f.0", "\"usable\":0"])?;
            let vm = manifests::vm("passthrough", "tiny", "passthrough");
            let vm = manifests::with(vm, "pciDevices", json!([{"name": "gpu-missing"}]));
            let vm = manifests::with(vm, "usbDevices", json!([{"name": "key-missing"}]));
            let vm = manifests::with(vm, "vgpus", json!([{"name": "vgpu-missing"}]));
            kubectl.apply(&manifests::all(&[manifests::blank_disk("passthrough", "64Mi"), vm]))?;
            let reason = "NoHostWithDevice";
            let vm = kubectl.condition("vm/passthrough", "Ready=False", Some(reason), SOON)?;
            describes_failure(kubectl, &vm, reason)?;
            let why = administrator.run(&["why", "vm/passthrough"])?.success()?;
            let all = "offers 1 PCI device gpu-missing and 1 USB device key-missing and 1 vGPU vgpu-missing";
            contains_all(&why, &[all, "--pci-device and --usb-device and --vgpu"])?;
            kubectl.ok(&["delete", "vm/passthrough", "disk/passthrough", "--timeout=60s"]).map(drop)
        },
    );
    if !Path::new("/dev/vhost-vsock").exists() {
        report.case("a VM with vsock waits for a person on a host without vsock devices", || {
            let host = kubectl.ok(&["get", "hosts", "-o", "jsonpath={.items[0].status.vsock}"])?;
            ensure!(host == "false", "status.vsock is {host:?}");
            let vm = manifests::with(manifests::vm("vsock", "tiny", "vsock"), "vsock", json!(true));
            kubectl.apply(&manifests::all(&[manifests::blank_disk("vsock", "64Mi"), vm]))?;
            kubectl.condition("vm/vsock", "Ready=False", Some("NoHostWithVsock"), SOON)?;
            kubectl.ok(&["delete", "vm/vsock", "disk/vsock", "--timeout=60s"]).map(drop)
        });
    }
    report.case("the use of a VM that runs: `berth why`, `berth top` and metrics of its host", || {
        kubectl.condition("vm/empty", "Ready=True", None, VM_START)?;
        let why = administrator.run(&["why", "vm/empty"])?.success()?;
        contains_all(&why, &["vm/empty is ready"])?;
        for unmeasured in ["could not be asked", "no measurements"] {
            ensure!(!why.contains(unmeasured), "{why}");
        }
        let top = platform.host().on_state("top", &[])?.success()?;
        contains_all(&top, &["HOST", "NAMESPACE", "default", "empty"])?;
        let metrics = http::get(platform.namespace(), METRICS, "/metrics", SOON)?;
        contains_all(
            &metrics,
            &[
                "berth_vm_cpu_seconds_total{namespace=\"default\",vm=\"empty\"}",
                "berth_vm_disk_operation_duration_seconds_bucket",
                "berth_host_cpu_seconds_total{mode=\"busy\"}",
            ],
        )
    });
    report.case("`berth doctor` finds no fault in this machine, as text and as JSON", || {
        let text = platform.host().on_state("doctor", &[])?.success()?;
        contains_all(&text, &["qemu", "cgroups", "nftables", "firewall"])?;
        let json = platform.host().on_state("doctor", &["-o", "json"])?.success()?;
        let json: serde_json::Value = serde_json::from_str(&json)?;
        let names = json["checks"].as_array().into_iter().flatten();
        ensure!(names.filter(|check| check["level"] == "ok").count() > 5, "{json:#}");
        Ok(())
    });
    report.case("an object deleted while in use names its users, and goes with the last one", || {
        kubectl.apply(&blank("held", "held-root").replace("\"tiny\"", "\"held\""))?;
        kubectl.condition("vm/held", "Running=True", None, VM_START)?;
        kubectl.ok(&["delete", "vmclass/held", "disk/held-root", "--wait=false"])?;
        for (kind, name, user) in [("vmclass", "held", "VM default/held"), ("disk", "held-root", "VM held")] {
            let output =
                kubectl.until(&format!("{kind}/{name}"), "its users in a condition", SOON, |object| {
                    let conditions = object["status"]["conditions"].as_array();
                    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["reason"] == "InUse")
                })?;
            contains_all(&output["status"]["conditions"].to_string(), &["held until nothing uses it", user])?;
        }
        kubectl.condition("vm/held", "Running=True", None, SOON)?;
        kubectl.ok(&["delete", "vm/held", "--timeout=60s"])?;
        kubectl.ok(&["wait", "vmclass/held", "disk/held-root", "--for=delete", "--timeout=60s"]).map(drop)
    });
    report.case("deleting a whole manifest ends with nothing left, whatever comes first in it", || {
        let objects = manifests::all(&[
            manifests::class("whole", 1, "64Mi"),
            manifests::blank_disk("whole", "64Mi"),
            manifests::vm("whole", "whole", "whole"),
        ]);
        kubectl.apply(&objects)?;
        kubectl.condition("vm/whole", "Running=True", None, VM_START)?;
        // In the order of the manifest: the class and the disk come before the VM that uses them.
        kubectl.with_input(&["delete", "-f", "-", "--timeout=60s"], &objects)?.success()?;
        let left = kubectl.ok(&[
            "get",
            "vmclass/whole",
            "disk/whole",
            "vm/whole",
            "--ignore-not-found",
            "-o",
            "name",
        ])?;
        ensure!(left.trim().is_empty(), "left: {left}");
        Ok(())
    });
    report.case("a VM declared stopped and stopped is Ready, and no process is left", || {
        kubectl.ok(&["patch", "vm", "empty", "--type=merge", "-p", r#"{"spec":{"power":"Stopped"}}"#])?;
        kubectl.until("vm/empty", "to be stopped", VM_START, |vm| vm["status"]["state"] == "Stopped")?;
        kubectl.condition("vm/empty", "Ready=True", None, VM_START)?;
        ensure!(platform.qemu().is_err(), "QEMU still runs");
        Ok(())
    });
    report.case("gates hold back a start and a deletion, and go on once they are removed", || {
        let (on, delete) = ("poweron.check.berth.dev/backup", "delete.check.berth.dev/backup");
        kubectl.ok(&["annotate", "vm", "empty", &format!("{on}=restoring"), &format!("{delete}=copying")])?;
        kubectl.ok(&["patch", "vm", "empty", "--type=merge", "-p", r#"{"spec":{"power":"Running"}}"#])?;
        kubectl.condition("vm/empty", "Ready=False", Some("PowerOnHeld"), VM_START)?;
        ensure!(platform.qemu().is_err(), "QEMU runs");
        kubectl.ok(&["annotate", "vm", "empty", &format!("{on}-")])?;
        kubectl.condition("vm/empty", "Running=True", None, VM_START)?;
        let refused = kubectl.refused(&["delete", "vm", "empty"])?;
        contains_all(&refused, &["VM empty is held by the annotation", delete, "copying"])?;
        kubectl.ok(&["annotate", "vm", "empty", &format!("{delete}-")])?;
        kubectl.ok(&["patch", "vm", "empty", "--type=merge", "-p", r#"{"spec":{"power":"Stopped"}}"#])?;
        kubectl.until("vm/empty", "to be stopped", VM_START, |vm| vm["status"]["state"] == "Stopped")?;
        Ok(())
    });
    report.case(
        "deleting a VM and its disk leaves the disk in the trash, and undelete brings it back",
        || {
            kubectl.ok(&["delete", "vm", "empty", "--timeout=60s"])?;
            let volume = kubectl.object("disk", "empty-root")?["status"]["volumeID"].clone();
            wait_for_release(kubectl, "empty-root")?;
            kubectl.ok(&["delete", "disk", "empty-root", "--timeout=60s"])?;
            wait::until("undelete", SOON, || platform.host().undelete("empty-root")?.success())?;
            let back = kubectl.condition("disk/empty-root", "Ready=True", None, VM_START)?;
            ensure!(back["status"]["volumeID"] == volume, "another volume came back: {:#}", back["status"]);
            let retain = r#"{"spec":{"deletionPolicy":"Retain"}}"#;
            kubectl.ok(&["patch", "disk", "empty-root", "--type=merge", "-p", retain]).map(drop)
        },
    );
    report.case(
        "berth trash lists the file of a retained disk, and undelete gives it to a disk again",
        || {
            let volume = kubectl.object("disk", "empty-root")?["status"]["volumeID"].clone();
            let volume = volume.as_str().context("a volume")?;
            kubectl.ok(&["delete", "disk", "empty-root", "--timeout=60s"])?;
            let listed = |state: &str| -> Result<()> {
                let trash = platform.host().on_state("trash", &[])?.success()?;
                let found = trash.lines().any(|line| [state, volume].iter().all(|text| line.contains(text)));
                ensure!(found, "not listed as {state}: {trash}");
                Ok(())
            };
            kubectl.while_hosts_look(REPORTED, |limit| {
                wait::until("its file is listed as retained", limit, || listed("retained"))
            })?;
            wait::until("undelete", SOON, || platform.host().undelete("empty-root")?.success())?;
            let back = kubectl.condition("disk/empty-root", "Ready=True", None, VM_START)?;
            ensure!(back["status"]["volumeID"] == volume, "another volume came back: {:#}", back["status"]);
            kubectl.ok(&["delete", "disk", "empty-root", "--timeout=60s"])?;
            kubectl.while_hosts_look(REPORTED, |limit| {
                wait::until("its file is listed with the hours that it stays", limit, || listed(" h"))
            })
        },
    );
}

/// Waits until nothing uses a disk any more.
pub fn wait_for_release(kubectl: &Kubectl, disk: &str) -> Result<()> {
    kubectl
        .until(&format!("disk/{disk}"), "to be released", Duration::from_secs(60), |disk| {
            disk["status"]["usedBy"].as_array().is_none_or(Vec::is_empty)
        })
        .map(drop)
}
