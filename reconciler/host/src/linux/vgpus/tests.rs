//! On a tree of files that behaves as sysfs: the fake kernel makes and removes the folders of mediated devices.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use super::*;

const GPU: &str = "0000:41:00.0";
const SECOND: &str = "0000:61:00.0";
const WHOLE: &str = "0000:01:00.0";
const TYPE: &str = "nvidia-558";
const ONE: &str = "0f5b2c6e-8a4b-8d0e-9c1f-1a2b3c4d5e6f";
const TWO: &str = "7d1a9e40-35c2-8b6f-a0d4-6f5e4d3c2b1a";
const OTHER: &str = "c3a5e1f2-6b7d-8c4e-b2a1-0d9e8f7a6b5c";

/// Reacts to writes as the kernel does, and fails at one of them: before it, or after it has taken effect.
#[derive(Debug)]
struct FakeKernel {
    root: PathBuf,
    writes: AtomicUsize,
    fails_at: Option<(usize, bool)>,
    /// Whether mediated devices are in a VFIO group.
    has_groups: bool,
}

impl FakeKernel {
    fn react(&self, path: &Path, text: &str) -> io::Result<()> {
        let folder = path.parent().expect("a folder");
        match path.file_name().and_then(|name| name.to_str()) {
            Some("create") => self.create(folder, text),
            Some("remove") => {
                assert_eq!(text, "1");
                remove(&self.root, folder.file_name().and_then(|uuid| uuid.to_str()).expect("a UUID"))
            }
            other => panic!("a write to {other:?}"),
        }
    }

    fn create(&self, mdev_type: &Path, uuid: &str) -> io::Result<()> {
        let left = available(mdev_type);
        if left == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let (root, parent) = (&self.root, mdev_type.parent().and_then(Path::parent).expect("a device"));
        let real = root.join("sys/devices").join(parent.file_name().expect("a name")).join(uuid);
        fs::create_dir(&real)?;
        fs::write(real.join("remove"), "")?;
        symlink(mdev_type, real.join("mdev_type"))?;
        if self.has_groups {
            symlink("../../../kernel/iommu_groups/77", real.join("iommu_group"))?;
        }
        symlink(&real, root.join("sys/bus/mdev/devices").join(uuid))?;
        symlink(&real, mdev_type.join("devices").join(uuid))?;
        set_available(mdev_type, left - 1);
        Ok(())
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

fn available(mdev_type: &Path) -> u32 {
    let text = fs::read_to_string(mdev_type.join("available_instances")).expect("there");
    text.trim().parse().expect("a number")
}

fn set_available(mdev_type: &Path, number: u32) {
    fs::write(mdev_type.join("available_instances"), format!("{number}\n")).expect("written");
}

/// Removes a mediated device, as the kernel does.
fn remove(root: &Path, uuid: &str) -> io::Result<()> {
    let link = root.join("sys/bus/mdev/devices").join(uuid);
    let real = fs::canonicalize(&link)?;
    let mdev_type = fs::read_link(real.join("mdev_type"))?;
    set_available(&mdev_type, available(&mdev_type) + 1);
    fs::remove_file(mdev_type.join("devices").join(uuid))?;
    fs::remove_dir_all(real)?;
    fs::remove_file(link)
}

struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { folder: tempfile::tempdir().expect("a folder") };
        for folder in ["bus/mdev/devices", "bus/pci/devices", "class/mdev_bus", "devices"] {
            fs::create_dir_all(machine.sys(folder)).expect("a folder");
        }
        machine.add(WHOLE, "10de:20b0", "0x030200");
        for gpu in [GPU, SECOND] {
            machine.add(gpu, "10de:2235", "0x030200");
            machine.add_type(gpu, TYPE, "NVIDIA A40-8Q", 2);
            machine.add_type(gpu, "nvidia-556", "NVIDIA A40-2Q", 24);
        }
        machine
    }

    fn sys(&self, path: &str) -> PathBuf {
        self.folder.path().join("sys").join(path)
    }

    fn add(&self, address: &str, id: &str, class: &str) {
        let real = self.sys("devices").join(address);
        fs::create_dir_all(&real).expect("a device");
        let (vendor, device) = id.split_once(':').expect("an identifier");
        for (file, text) in [
            ("vendor", format!("0x{vendor}")),
            ("device", format!("0x{device}")),
            ("class", class.to_owned()),
        ] {
            fs::write(real.join(file), format!("{text}\n")).expect("a file");
        }
        symlink(&real, self.sys("bus/pci/devices").join(address)).expect("a link");
    }

    fn type_of(&self, address: &str, mdev_type: &str) -> PathBuf {
        self.sys("devices").join(address).join("mdev_supported_types").join(mdev_type)
    }

    fn add_type(&self, address: &str, mdev_type: &str, name: &str, available: u32) {
        let folder = self.type_of(address, mdev_type);
        fs::create_dir_all(folder.join("devices")).expect("a type");
        for (file, text) in [("name", name), ("device_api", API), ("create", "")] {
            fs::write(folder.join(file), format!("{text}\n")).expect("a file");
        }
        set_available(&folder, available);
        let bus = self.sys("class/mdev_bus").join(address);
        if !bus.exists() {
            symlink(self.sys("devices").join(address), bus).expect("a link");
        }
    }

    /// Makes a mediated device as another program does.
    fn make(&self, address: &str, mdev_type: &str, uuid: &str) {
        self.kernel(None).create(&self.type_of(address, mdev_type), uuid).expect("made");
    }

    fn kernel(&self, fails_at: Option<(usize, bool)>) -> FakeKernel {
        let root = self.folder.path().to_owned();
        FakeKernel { root, writes: AtomicUsize::new(0), fails_at, has_groups: true }
    }

    fn with(&self, mappings: &[&str], kernel: FakeKernel) -> Vgpus {
        let mappings = mappings.iter().map(|text| text.parse().expect("a mapping")).collect();
        let root = self.folder.path();
        Vgpus::new(root, root.join("vgpus"), mappings, Arc::new(kernel))
    }

    fn offering(&self, mappings: &[&str]) -> Vgpus {
        self.with(mappings, self.kernel(None))
    }

    fn made(&self) -> Vec<String> {
        files::names(&self.sys("bus/mdev/devices")).expect("listed")
    }

    fn records(&self) -> Vec<String> {
        files::names(&self.folder.path().join("vgpus")).expect("listed")
    }

    /// Loses all mediated devices, as a boot of the host does.
    fn boot(&self) {
        for uuid in self.made() {
            remove(self.folder.path(), &uuid).expect("removed");
        }
    }
}

/// All vGPUs of the type.
const ALL: &[&str] = &["a40-8q=10de:2235/nvidia-558"];

fn vgpu(parent: &str, uuid: &str) -> VgpuSpec {
    VgpuSpec { uuid: uuid.to_owned(), parent: parent.to_owned(), mdev_type: TYPE.to_owned() }
}

fn counts(vgpus: &Vgpus) -> Vec<(String, u32, usize)> {
    let facts = vgpus.facts().expect("facts");
    facts.into_iter().map(|facts| (facts.parent, facts.usable, facts.held_by.len())).collect()
}

#[test]
fn vgpus_are_found_by_device_and_by_identifier_and_by_either_name_of_their_type() {
    let machine = Machine::new();
    let first = VgpuFacts {
        name: "a40-8q".to_owned(),
        parent: GPU.to_owned(),
        mdev_type: TYPE.to_owned(),
        type_name: Some("NVIDIA A40-8Q".to_owned()),
        display: true,
        usable: 2,
        held_by: BTreeMap::new(),
        made: BTreeSet::new(),
        problem: None,
    };
    let found = |mapping: &str| machine.offering(&[mapping]).facts().expect("facts");
    assert_eq!(found("a40-8q=0000:41:00.0/nvidia-558"), std::slice::from_ref(&first));
    assert_eq!(found("a40-8q=0000:41:00/nvidia-558"), std::slice::from_ref(&first));
    let second = VgpuFacts { parent: SECOND.to_owned(), ..first.clone() };
    assert_eq!(found("a40-8q=10de:2235/NVIDIA A40-8Q"), [first, second]);
    assert_eq!(machine.offering(&[]).facts().expect("facts"), []);
}

#[test]
fn each_obstacle_is_named() {
    let machine = Machine::new();
    let of = |mapping: &str| {
        let facts = machine.offering(&[mapping]).facts().expect("facts");
        facts.first().and_then(|facts| facts.problem.clone()).expect("a problem")
    };
    insta::assert_snapshot!(of("a=0000:07:00.0/nvidia-558"), @"this host has no device 0000:07:00.0");
    insta::assert_snapshot!(of("a=10de:20b0/nvidia-558"), @"10de:20b0 has no mediated devices: its driver makes none, or is not loaded (/sys/class/mdev_bus lists the devices with some)");
    insta::assert_snapshot!(of("a=0000:41:00.0/nvidia-9"), @"it has no type nvidia-9: its types are nvidia-556 (NVIDIA A40-2Q), nvidia-558 (NVIDIA A40-8Q)");
    let twice = machine.offering(&["a=0000:41:00.0/nvidia-558", "b=10de:2235/NVIDIA A40-8Q"]);
    let problems: Vec<_> =
        twice.facts().expect("facts").into_iter().map(|facts| (facts.parent, facts.problem)).collect();
    let already = Some("it is offered as a already".to_owned());
    let expected = [(GPU.to_owned(), None), (GPU.to_owned(), already), (SECOND.to_owned(), None)];
    assert_eq!(problems, expected);
    fs::write(machine.type_of(GPU, TYPE).join("device_api"), "vfio-ccw\n").expect("written");
    insta::assert_snapshot!(of("a=0000:41:00.0/nvidia-558"), @"its type is for vfio-ccw, and VMs have vfio-pci");
}

#[test]
fn what_a_driver_calls_its_types_is_made_harmless_and_a_number_that_is_none_counts_as_zero() {
    let machine = Machine::new();
    let folder = machine.type_of(GPU, TYPE);
    fs::write(folder.join("name"), [b'x'; 4096]).expect("written");
    fs::write(folder.join("available_instances"), "many").expect("written");
    let facts = machine.offering(&["a=0000:41:00.0/nvidia-558"]).facts().expect("facts").remove(0);
    assert_eq!((facts.type_name.map(|name| name.len()), facts.usable), (Some(64), 0));
    fs::write(folder.join("name"), "a\x1b[31m\n").expect("written");
    let facts = machine.offering(&["a=0000:41:00.0/nvidia-558"]).facts().expect("facts").remove(0);
    assert_eq!(facts.type_name.as_deref(), Some("a?[31m"));
}

#[test]
fn virtual_functions_of_a_gpu_have_together_no_more_vgpus_than_it_has_room_for() {
    let machine = Machine::new();
    let functions = ["0000:81:00.4", "0000:81:00.5", "0000:81:00.6", "0000:81:00.7"];
    for function in functions {
        machine.add(function, "10de:2236", "0x030200");
        machine.add_type(function, TYPE, "NVIDIA A10-8Q", 1);
        let text = "num_heads=4, framebuffer=8192M, max_instance=2\n";
        fs::write(machine.type_of(function, TYPE).join("description"), text).expect("written");
        symlink("../0000:81:00.0", machine.sys("devices").join(function).join("physfn")).expect("a link");
    }
    let vgpus = machine.offering(&["a10-8q=0000:81:00.4/nvidia-558", "a10-8q=10de:2236/nvidia-558"]);
    let usable = || {
        let facts = vgpus.facts().expect("facts");
        let offered = facts.into_iter().filter(|facts| facts.problem.is_none());
        offered.map(|facts| facts.usable).collect::<Vec<u32>>()
    };
    assert_eq!(usable(), [1, 1, 0, 0]);
    vgpus.take("i-1", &[vgpu(functions[1], ONE)]).expect("taken");
    assert_eq!(usable(), [1, 1, 0, 0]);
    machine.make(functions[3], TYPE, TWO);
    assert_eq!(usable(), [0, 1, 0, 0], "another program has one");
}

#[test]
fn a_vgpu_exists_while_its_instance_has_it_and_counts_as_usable_all_the_time() {
    let machine = Machine::new();
    let vgpus = machine.offering(ALL);
    let (first, second) = (GPU.to_owned(), SECOND.to_owned());
    assert_eq!(counts(&vgpus), [(first.clone(), 2, 0), (second.clone(), 2, 0)]);
    vgpus.take("i-1", &[vgpu(GPU, ONE), vgpu(SECOND, TWO)]).expect("taken");
    assert_eq!(machine.made(), [ONE, TWO]);
    assert_eq!(group_of(machine.folder.path(), &vgpu(GPU, ONE)).expect("a group"), 77);
    assert_eq!(counts(&vgpus), [(first.clone(), 2, 1), (second.clone(), 2, 1)]);
    let of_first = vgpus.facts().expect("facts").remove(0);
    assert_eq!(of_first.held_by, [(ONE.to_owned(), "i-1".to_owned())].into());
    assert_eq!(of_first.made, BTreeSet::from([ONE.to_owned()]));
    vgpus.take("i-1", &[vgpu(GPU, ONE), vgpu(SECOND, TWO)]).expect("taken again");
    assert_eq!(machine.made(), [ONE, TWO]);

    // Another run of the agent, which no longer offers them.
    let again = machine.offering(&[]);
    again.give_back("i-2").expect("nothing of it");
    assert_eq!(machine.made(), [ONE, TWO]);
    again.give_back("i-1").expect("given back");
    assert_eq!((machine.made(), machine.records()), (vec![], vec![]));
    assert_eq!(counts(&vgpus), [(first, 2, 0), (second, 2, 0)]);
}

#[test]
fn a_vgpu_of_another_instance_and_one_that_is_not_offered_are_refused() {
    let machine = Machine::new();
    let vgpus = machine.offering(&["a=0000:41:00.0/nvidia-558"]);
    vgpus.take("i-1", &[vgpu(GPU, ONE)]).expect("taken");
    let refused =
        |uuid: &str, parent: &str| vgpus.take("i-2", &[vgpu(parent, uuid)]).expect_err("refused").chain();
    insta::assert_snapshot!(refused(ONE, GPU), @"vGPU nvidia-558 of 0000:41:00.0: instance i-1 has 0f5b2c6e-8a4b-8d0e-9c1f-1a2b3c4d5e6f");
    insta::assert_snapshot!(refused(TWO, SECOND), @"vGPU nvidia-558 of 0000:61:00.0: this host does not offer it any more");
    assert_eq!((machine.made(), machine.records().len()), (vec![ONE.to_owned()], 1));
}

#[test]
fn mediated_devices_of_other_programs_are_neither_used_nor_removed() {
    let machine = Machine::new();
    machine.make(GPU, TYPE, ONE);
    let vgpus = machine.offering(ALL);
    assert_eq!(counts(&vgpus), [(GPU.to_owned(), 1, 0), (SECOND.to_owned(), 2, 0)], "VMs can have one less");
    let error = vgpus.take("i-1", &[vgpu(GPU, ONE)]).expect_err("refused").chain();
    insta::assert_snapshot!(error, @"vGPU nvidia-558 of 0000:41:00.0: another program made /sys/bus/mdev/devices/0f5b2c6e-8a4b-8d0e-9c1f-1a2b3c4d5e6f: remove it by writing 1 to its file remove");
    assert_eq!((machine.made(), machine.records()), (vec![ONE.to_owned()], vec![]));

    // After a boot another program takes the UUID, on another device.
    vgpus.take("i-1", &[vgpu(GPU, TWO)]).expect("taken");
    machine.boot();
    machine.make(SECOND, TYPE, TWO);
    assert!(vgpus.take("i-1", &[vgpu(GPU, TWO)]).is_err(), "it is not its own");
    vgpus.give_back("i-1").expect("given back");
    assert_eq!((machine.made(), machine.records()), (vec![TWO.to_owned()], vec![]));
}

#[test]
fn a_boot_of_the_host_leaves_records_which_are_used_again_or_removed() {
    let machine = Machine::new();
    let vgpus = machine.offering(ALL);
    vgpus.take("i-1", &[vgpu(GPU, ONE)]).expect("taken");
    vgpus.take("i-2", &[vgpu(GPU, TWO)]).expect("taken");
    machine.boot();
    assert_eq!(counts(&vgpus)[0], (GPU.to_owned(), 2, 2), "both are still theirs");
    vgpus.take("i-1", &[vgpu(GPU, ONE)]).expect("made again");
    vgpus.give_back("i-2").expect("nothing to remove");
    assert_eq!((machine.made(), machine.records().len()), (vec![ONE.to_owned()], 1));
}

#[test]
fn after_a_boot_another_program_can_have_the_room_of_one_and_the_first_to_start_has_the_other() {
    let machine = Machine::new();
    let vgpus = machine.offering(ALL);
    vgpus.take("i-1", &[vgpu(GPU, ONE)]).expect("taken");
    vgpus.take("i-2", &[vgpu(GPU, TWO)]).expect("taken");
    machine.boot();
    machine.make(GPU, TYPE, OTHER);
    let first = || vgpus.facts().expect("facts").remove(0);
    assert_eq!((first().usable, first().held_by.len(), first().made), (1, 2, BTreeSet::new()));
    vgpus.take("i-2", &[vgpu(GPU, TWO)]).expect("made again");
    assert_eq!((first().usable, first().made), (1, BTreeSet::from([TWO.to_owned()])));
    vgpus.take("i-1", &[vgpu(GPU, ONE)]).expect_err("there is no room left");
    assert_eq!(machine.records().len(), 2, "the record is of an earlier start");
    vgpus.take("i-1", &[vgpu(SECOND, ONE)]).expect("another device has room");
    assert_eq!((first().held_by.len(), machine.records().len()), (1, 2));
}

#[test]
fn taking_and_giving_back_are_completed_wherever_they_were_interrupted() {
    let both = [vgpu(GPU, ONE), vgpu(SECOND, TWO)];
    for took_effect in [false, true] {
        for at in 0..2 {
            let machine = Machine::new();
            let failing = || machine.with(ALL, machine.kernel(Some((at, took_effect))));
            failing().take("i-1", &both).expect_err("interrupted");
            let vgpus = machine.offering(ALL);
            vgpus.take("i-1", &both).expect("completed");
            assert_eq!(machine.made(), [ONE, TWO], "write {at}");

            // An error of a write that took effect is none.
            assert_eq!(failing().give_back("i-1").is_ok(), took_effect, "write {at}");
            vgpus.give_back("i-1").expect("completed");
            assert_eq!((machine.made(), machine.records()), (vec![], vec![]), "write {at}");

            // The VM is deleted instead of started again.
            failing().take("i-1", &both).expect_err("again");
            vgpus.give_back("i-1").expect("undone");
            assert_eq!((machine.made(), machine.records()), (vec![], vec![]), "write {at}");
        }
    }
}

#[test]
fn a_choice_that_changed_replaces_what_the_instance_had() {
    let machine = Machine::new();
    let vgpus = machine.offering(ALL);
    vgpus.take("i-1", &[vgpu(GPU, ONE), vgpu(GPU, TWO)]).expect("taken");
    vgpus.take("i-1", &[vgpu(SECOND, ONE)]).expect("taken");
    assert_eq!(counts(&vgpus), [(GPU.to_owned(), 2, 0), (SECOND.to_owned(), 2, 1)]);
    vgpus.take("i-1", &[]).expect("nothing is wanted");
    assert_eq!((machine.made(), machine.records()), (vec![], vec![]));
}

#[test]
fn a_driver_that_makes_no_more_and_a_kernel_without_a_group_are_errors_with_a_remedy() {
    let machine = Machine::new();
    let vgpus = machine.offering(ALL);
    set_available(&machine.type_of(GPU, TYPE), 0);
    let error = vgpus.take("i-1", &[vgpu(GPU, ONE)]).expect_err("refused").chain();
    assert!(error.contains("its driver does not make it (") && error.contains("kernel's log"), "{error}");
    assert_eq!((machine.made(), machine.records()), (vec![], vec![]), "it leaves nothing");
    vgpus.give_back("i-1").expect("nothing was made");

    let without_groups = FakeKernel { has_groups: false, ..machine.kernel(None) };
    let vgpus = machine.with(ALL, without_groups);
    let error = vgpus.take("i-1", &[vgpu(SECOND, ONE)]).expect_err("refused").chain();
    insta::assert_snapshot!(error, @"vGPU nvidia-558 of 0000:61:00.0: the kernel has it in no VFIO group: older kernels need the module vfio_mdev (modprobe vfio_mdev)");
    vgpus.give_back("i-1").expect("removed");
    assert_eq!((machine.made(), machine.records()), (vec![], vec![]));
}
