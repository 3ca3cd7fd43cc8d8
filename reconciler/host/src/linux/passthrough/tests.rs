//! On a tree of files that behaves as sysfs: the fake kernel moves the links.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use super::*;
use crate::PciMapping;

const GPU: &str = "0000:01:00.0";
const AUDIO: &str = "0000:01:00.1";
const NIC: &str = "0000:02:00.0";
const BRIDGE_ABOVE: &str = "0000:00:01.0";

/// Reacts to writes as the kernel does, and fails at one of them: before it, or after it has taken effect.
#[derive(Debug)]
struct FakeKernel {
    root: PathBuf,
    writes: AtomicUsize,
    fails_at: Option<(usize, bool)>,
    /// A driver that refuses devices.
    broken: Option<&'static str>,
}

impl FakeKernel {
    fn react(&self, path: &Path, text: &str) -> io::Result<()> {
        let file = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let folder = path.parent().expect("a folder");
        let driver = || folder.file_name().and_then(|name| name.to_str()).expect("a driver").to_owned();
        let of = |function: &str| self.root.join("sys/bus/pci/devices").join(function);
        match file {
            "driver_override" => {
                let text = if text.trim().is_empty() { "(null)\n".to_owned() } else { format!("{text}\n") };
                fs::write(path, text)
            }
            "unbind" => {
                assert_eq!(linked_name(&of(text).join("driver")).as_deref(), Some(driver().as_str()));
                fs::remove_file(of(text).join("driver"))
            }
            "drivers_probe" => {
                let wanted = fs::read_to_string(of(text).join("driver_override"))?;
                let wanted = match wanted.trim() {
                    "(null)" => fs::read_to_string(of(text).join("native"))?,
                    wanted => wanted.to_owned(),
                };
                self.link(text, &wanted)
            }
            "bind" => {
                let wanted = fs::read_to_string(of(text).join("driver_override"))?;
                assert_eq!(wanted, "(null)\n", "the override is taken back first");
                self.link(text, &driver())
            }
            other => panic!("a write to {other}"),
        }
    }

    fn link(&self, function: &str, driver: &str) -> io::Result<()> {
        if self.broken == Some(driver) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if !self.root.join("sys/bus/pci/drivers").join(driver).is_dir() {
            return Ok(());
        }
        let target = format!("../../drivers/{driver}");
        symlink(target, self.root.join("sys/bus/pci/devices").join(function).join("driver"))
    }
}

impl Kernel for FakeKernel {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        match self.fails_at {
            Some((at, false)) if at == number => Err(io::ErrorKind::Interrupted.into()),
            Some((at, true)) if at == number => {
                self.react(path, text)?;
                Err(io::ErrorKind::Interrupted.into())
            }
            _ => self.react(path, text),
        }
    }
}

struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { folder: tempfile::tempdir().expect("a folder") };
        for driver in ["nvidia", "snd_hda_intel", "ixgbe", "pcieport", VFIO] {
            fs::create_dir_all(machine.sys("bus/pci/drivers").join(driver)).expect("a driver");
        }
        machine.add(BRIDGE_ABOVE, "8086:1901", "0x060400", Some("pcieport"), Some(1));
        machine.add(GPU, "10de:20b0", "0x030200", Some("nvidia"), Some(1));
        machine.add(AUDIO, "10de:10f0", "0x040300", Some("snd_hda_intel"), Some(1));
        machine.add(NIC, "8086:1563", "0x020000", Some("ixgbe"), Some(2));
        machine
    }

    fn sys(&self, path: &str) -> PathBuf {
        self.folder.path().join("sys").join(path)
    }

    fn add(&self, function: &str, id: &str, class: &str, driver: Option<&str>, group: Option<u32>) {
        let folder = self.sys("bus/pci/devices").join(function);
        fs::create_dir_all(&folder).expect("a device");
        let (vendor, device) = id.split_once(':').expect("an identifier");
        for (file, text) in [
            ("vendor", format!("0x{vendor}\n")),
            ("device", format!("0x{device}\n")),
            ("class", format!("{class}\n")),
            ("driver_override", "(null)\n".to_owned()),
            ("native", driver.unwrap_or("none").to_owned()),
        ] {
            fs::write(folder.join(file), text).expect("a file");
        }
        if let Some(driver) = driver {
            symlink(format!("../../drivers/{driver}"), folder.join("driver")).expect("a link");
        }
        if let Some(group) = group {
            let group_folder = self.sys(&format!("kernel/iommu_groups/{group}/devices"));
            fs::create_dir_all(&group_folder).expect("a group");
            fs::write(group_folder.join(function), "").expect("a member");
            symlink(format!("../../../../kernel/iommu_groups/{group}"), folder.join("iommu_group"))
                .expect("a link");
        }
    }

    fn remove(&self, function: &str) {
        fs::remove_dir_all(self.sys("bus/pci/devices").join(function)).expect("there");
    }

    fn with(
        &self,
        mappings: &[&str],
        fails_at: Option<(usize, bool)>,
        broken: Option<&'static str>,
    ) -> Passthrough {
        let root = self.folder.path().to_owned();
        let kernel = FakeKernel { root: root.clone(), writes: AtomicUsize::new(0), fails_at, broken };
        let mappings: Vec<PciMapping> =
            mappings.iter().map(|text| text.parse().expect("a mapping")).collect();
        Passthrough::new(&root, root.join("pci"), mappings, Arc::new(kernel))
    }

    fn offering(&self, mappings: &[&str]) -> Passthrough {
        self.with(mappings, None, None)
    }

    fn driver(&self, function: &str) -> String {
        let link = self.sys("bus/pci/devices").join(function).join("driver");
        linked_name(&link).unwrap_or_else(|| "none".to_owned())
    }

    fn overridden(&self, function: &str) -> String {
        let file = self.sys("bus/pci/devices").join(function).join("driver_override");
        fs::read_to_string(file).expect("there").trim().to_owned()
    }

    /// As it was before anything was taken.
    fn assert_untouched(&self) {
        let drivers = [GPU, AUDIO, NIC].map(|function| self.driver(function));
        assert_eq!(drivers, ["nvidia", "snd_hda_intel", "ixgbe"]);
        assert_eq!(
            [GPU, AUDIO, NIC].map(|function| self.overridden(function)),
            ["(null)", "(null)", "(null)"]
        );
        assert_eq!(files::names(&self.folder.path().join("pci")).expect("listed"), Vec::<String>::new());
    }
}

fn only(passthrough: &Passthrough) -> PciDeviceFacts {
    let facts = passthrough.facts().expect("facts");
    assert_eq!(facts.len(), 1, "{facts:?}");
    facts.into_iter().next().expect("one")
}

fn problem(passthrough: &Passthrough) -> String {
    only(passthrough).problem.expect("a problem")
}

fn gpu() -> PciDeviceSpec {
    PciDeviceSpec { functions: vec![GPU.to_owned(), AUDIO.to_owned()], groups: vec![1] }
}

#[test]
fn a_device_is_found_by_its_address_and_by_its_identifier_with_the_functions_of_its_group() {
    let machine = Machine::new();
    for mapping in ["gpu=0000:01:00", "gpu=10de:20b0"] {
        assert_eq!(
            only(&machine.offering(&[mapping])),
            PciDeviceFacts {
                name: "gpu".to_owned(),
                address: GPU.to_owned(),
                id: Some("10de:20b0".to_owned()),
                display: true,
                functions: vec![GPU.to_owned(), AUDIO.to_owned()],
                groups: vec![1],
                problem: None,
                held_by: None,
            },
            "{mapping}: the bridge above it does not count"
        );
    }
    let nic = only(&machine.offering(&["nic=0000:02:00.0"]));
    assert!(!nic.display && nic.functions == [NIC] && nic.groups == [2], "{nic:?}");
    // The virtual functions of a card have groups of their own.
    machine.add("0000:02:10.0", "8086:1565", "0x020000", None, Some(3));
    machine.add("0000:02:10.1", "8086:1565", "0x020000", None, Some(4));
    let functions = machine.offering(&["vf=8086:1565"]).facts().expect("facts");
    let addresses: Vec<&str> = functions.iter().map(|facts| facts.address.as_str()).collect();
    assert_eq!(addresses, ["0000:02:10.0", "0000:02:10.1"]);
    assert_eq!(machine.offering(&[]).facts().expect("facts"), []);
}

#[test]
fn each_obstacle_is_named() {
    let machine = Machine::new();
    let of = |mapping: &str| problem(&machine.offering(&[mapping]));
    insta::assert_snapshot!(of("gpu=0000:03:00.0"), @"this host has no device 0000:03:00.0");
    insta::assert_snapshot!(of("gpu=1002:73bf"), @"this host has no device 1002:73bf");
    insta::assert_snapshot!(of("port=0000:00:01.0"), @"0000:00:01.0 is a bridge, which no VM can have");
    insta::assert_snapshot!(of("gpu=0000:01:00.0"), @"its IOMMU group 1 also has 0000:01:00.1, which the VM would reach: offer all functions of the device together (its address without a function), or move the card to another slot");
    machine.add("0000:04:00.0", "1234:5678", "0x020000", None, None);
    insta::assert_snapshot!(of("card=0000:04:00.0"), @"it is in no IOMMU group: switch the IOMMU (VT-d, AMD-Vi) on in the firmware, and with intel_iommu=on on the kernel's command line");
    let twice = machine.offering(&["gpu=0000:01:00", "display=10de:20b0"]).facts().expect("facts");
    assert_eq!(twice[0].problem, None);
    insta::assert_snapshot!(twice[1].problem.clone().unwrap_or_default(), @"it is offered as gpu already");
    fs::remove_dir(machine.sys("bus/pci/drivers/vfio-pci")).expect("there");
    insta::assert_snapshot!(of("gpu=0000:01:00"), @"the kernel has no driver vfio-pci: run modprobe vfio-pci, also at each boot");
}

#[test]
fn a_device_is_bound_to_vfio_and_given_back_to_its_driver() {
    let machine = Machine::new();
    let passthrough = machine.offering(&["gpu=0000:01:00", "nic=0000:02:00.0"]);
    passthrough.take("i-1", &[gpu()]).expect("taken");
    assert_eq!([GPU, AUDIO, NIC].map(|f| machine.driver(f)), [VFIO, VFIO, "ixgbe"]);
    assert_eq!(passthrough.facts().expect("facts")[0].held_by.as_deref(), Some("i-1"));
    // Another run of the agent, which no longer offers them.
    let again = machine.offering(&[]);
    again.give_back("i-2").expect("nothing of it");
    assert_eq!(machine.driver(GPU), VFIO);
    again.give_back("i-1").expect("given back");
    machine.assert_untouched();
}

#[test]
fn a_device_of_another_instance_is_refused_and_its_own_is_taken_again() {
    let machine = Machine::new();
    let passthrough = machine.offering(&["gpu=0000:01:00"]);
    passthrough.take("i-1", &[gpu()]).expect("taken");
    let error = passthrough.take("i-2", &[gpu()]).expect_err("refused");
    insta::assert_snapshot!(error.chain(), @"PCI device 0000:01:00.0: instance i-1 has it");
    passthrough.take("i-1", &[gpu()]).expect("taken again");
    passthrough.give_back("i-1").expect("given back");
    passthrough.take("i-2", &[gpu()]).expect("it is free");
}

#[test]
fn a_device_that_no_guest_can_have_is_not_touched() {
    let machine = Machine::new();
    let alone = PciDeviceSpec { functions: vec![GPU.to_owned()], groups: vec![1] };
    let error =
        machine.offering(&["gpu=0000:01:00.0"]).take("i-1", &[alone]).expect_err("its group is shared");
    assert!(error.chain().contains("IOMMU group 1 also has 0000:01:00.1"), "{}", error.chain());
    let elsewhere = PciDeviceSpec { groups: vec![7], ..gpu() };
    let error = machine.offering(&["gpu=0000:01:00"]).take("i-1", &[elsewhere]).expect_err("another group");
    insta::assert_snapshot!(error.chain(), @"PCI device 0000:01:00.0: it is not what it was any more");
    assert!(machine.offering(&[]).take("i-1", &[gpu()]).is_err(), "it is not offered");
    machine.assert_untouched();
}

#[test]
fn taking_and_giving_back_are_completed_wherever_they_were_interrupted() {
    for took_effect in [false, true] {
        // Two functions with three writes each.
        for at in 0..6 {
            let machine = Machine::new();
            let failing = machine.with(&["gpu=0000:01:00"], Some((at, took_effect)), None);
            failing.take("i-1", &[gpu()]).expect_err("interrupted");
            let restarted = machine.offering(&["gpu=0000:01:00"]);
            restarted.take("i-1", &[gpu()]).expect("completed");
            assert_eq!([GPU, AUDIO].map(|f| machine.driver(f)), [VFIO, VFIO], "write {at}");
            restarted.give_back("i-1").expect("given back");
            machine.assert_untouched();

            // The VM is deleted instead of started again.
            machine
                .with(&["gpu=0000:01:00"], Some((at, took_effect)), None)
                .take("i-1", &[gpu()])
                .expect_err("again");
            restarted.give_back("i-1").expect("undone");
            machine.assert_untouched();

            restarted.take("i-1", &[gpu()]).expect("taken");
            // A driver that does not take a device back is no error.
            let _ = machine.with(&[], Some((at, took_effect)), None).give_back("i-1");
            machine.offering(&[]).give_back("i-1").expect("completed");
            let overridden = [GPU, AUDIO].map(|f| machine.overridden(f));
            assert_eq!(overridden, ["(null)", "(null)"], "write {at}");
            assert!([GPU, AUDIO].iter().all(|f| machine.driver(f) != VFIO), "write {at}");
        }
    }
}

#[test]
fn a_device_that_was_vfios_before_stays_so() {
    let machine = Machine::new();
    let device = machine.sys("bus/pci/devices").join(NIC);
    fs::remove_file(device.join("driver")).expect("there");
    symlink("../../drivers/vfio-pci", device.join("driver")).expect("a link");
    let passthrough = machine.offering(&["nic=0000:02:00.0"]);
    let nic = PciDeviceSpec { functions: vec![NIC.to_owned()], groups: vec![2] };
    passthrough.take("i-1", &[nic]).expect("taken");
    passthrough.give_back("i-1").expect("given back");
    assert_eq!((machine.driver(NIC), machine.overridden(NIC)), (VFIO.to_owned(), "(null)".to_owned()));
}

#[test]
fn a_device_that_vanished_or_whose_driver_refuses_it_does_not_keep_its_vm() {
    let machine = Machine::new();
    let passthrough = machine.offering(&["gpu=0000:01:00"]);
    passthrough.take("i-1", &[gpu()]).expect("taken");
    machine.remove(AUDIO);
    machine.with(&[], None, Some("nvidia")).give_back("i-1").expect("given back");
    assert_eq!(machine.driver(GPU), "none");
    assert_eq!(files::names(&machine.folder.path().join("pci")).expect("listed"), Vec::<String>::new());
    machine.remove(GPU);
    insta::assert_snapshot!(problem(&passthrough), @"this host has no device 0000:01:00");
}

#[test]
fn a_driver_that_does_not_bind_is_an_error_with_the_driver_that_it_has() {
    let machine = Machine::new();
    let broken = machine.with(&["nic=0000:02:00.0"], None, Some(VFIO));
    let nic = PciDeviceSpec { functions: vec![NIC.to_owned()], groups: vec![2] };
    broken.take("i-1", std::slice::from_ref(&nic)).expect_err("not bound");
    assert_eq!(machine.driver(NIC), "none");
    broken.give_back("i-1").expect("undone");
    assert_eq!((machine.driver(NIC), machine.overridden(NIC)), ("ixgbe".to_owned(), "(null)".to_owned()));
}

#[test]
fn a_device_that_is_divided_into_vgpus_or_is_one_by_nvidias_driver_is_not_given_whole() {
    let machine = Machine::new();
    let mdev_type = machine.sys("bus/pci/devices").join(NIC).join("mdev_supported_types/nvidia-558/devices");
    fs::create_dir_all(&mdev_type).expect("a type");
    let passthrough = machine.offering(&["nic=0000:02:00.0"]);
    assert_eq!(only(&passthrough).problem, None, "none was made");
    fs::write(mdev_type.join("0f5b2c6e-8a4b-8d0e-9c1f-1a2b3c4d5e6f"), "").expect("one");
    insta::assert_snapshot!(problem(&passthrough), @"0000:02:00.0 is divided into vGPUs that exist: it can be given whole once they are removed");
    let nic = PciDeviceSpec { functions: vec![NIC.to_owned()], groups: vec![2] };
    assert!(passthrough.take("i-1", &[nic]).is_err(), "its vGPUs would vanish");

    machine.add("0000:03:00.0", "10de:2235", "0x030200", Some("nvidia"), Some(4));
    let whole = machine.offering(&["gpu=0000:03:00.0"]);
    assert_eq!(only(&whole).problem, None);
    symlink(format!("../{NIC}"), machine.sys("bus/pci/devices/0000:03:00.0/virtfn0")).expect("a link");
    insta::assert_snapshot!(problem(&whole), @"0000:03:00.0 is divided into vGPUs that exist: it can be given whole once they are removed");

    machine.add("0000:02:10.0", "10de:2235", "0x030200", Some("nvidia"), Some(3));
    let function = machine.sys("bus/pci/devices/0000:02:10.0");
    fs::create_dir_all(function.join("nvidia")).expect("a folder");
    fs::write(function.join("nvidia/current_vgpu_type"), "558\n").expect("a file");
    symlink(format!("../{NIC}"), function.join("physfn")).expect("a link");
    insta::assert_snapshot!(problem(&machine.offering(&["vgpu=0000:02:10.0"])), @"0000:02:10.0 is for NVIDIA's vGPU driver on the host, which must stay its driver, and VMs have vfio-pci: berth cannot give it");
    machine.assert_untouched();
}
