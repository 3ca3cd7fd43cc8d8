//! On a tree of files in place of sysfs and of the device files.

use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use super::*;

/// Notes writes, of which each may fail.
#[derive(Debug, Default)]
struct FakeKernel {
    probed: Mutex<Vec<String>>,
    refuses: bool,
}

impl Kernel for FakeKernel {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        assert!(path.ends_with("sys/bus/usb/drivers_probe"), "a write to {}", path.display());
        self.probed.lock().expect("no panic").push(text.to_owned());
        if self.refuses { Err(io::ErrorKind::InvalidInput.into()) } else { Ok(()) }
    }
}

struct Machine {
    folder: TempDir,
    kernel: Arc<FakeKernel>,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { folder: tempfile::tempdir().expect("a folder"), kernel: Arc::default() };
        machine.plug("usb1", "1d6b:0002", 1, "09");
        machine.plug("1-1", "05e3:0610", 2, "09");
        machine.plug("1-1.4", "0403:6001", 3, "00");
        machine.plug("1-2", "0403:6001", 4, "00");
        machine
    }

    fn devices(&self) -> PathBuf {
        self.folder.path().join("sys/bus/usb/devices")
    }

    fn node(&self, number: u16) -> PathBuf {
        self.folder.path().join(format!("dev/bus/usb/001/{number:03}"))
    }

    fn plug(&self, port: &str, id: &str, number: u16, class: &str) {
        let folder = self.devices().join(port);
        fs::create_dir_all(&folder).expect("a device");
        let (vendor, product) = id.split_once(':').expect("an identifier");
        for (file, text) in [
            ("idVendor", vendor),
            ("idProduct", product),
            ("busnum", "1"),
            ("devnum", &number.to_string()),
            ("bDeviceClass", class),
            ("product", "FT232R USB UART"),
        ] {
            fs::write(folder.join(file), format!("{text}\n")).expect("a file");
        }
        fs::create_dir_all(self.devices().join(format!("{port}:1.0"))).expect("an interface");
        fs::create_dir_all(self.node(number).parent().expect("a folder")).expect("made");
        fs::write(self.node(number), "").expect("a file in place of a device file");
        self.set_mode(number, 0o664);
    }

    fn unplug(&self, port: &str, number: u16) {
        fs::remove_dir_all(self.devices().join(port)).expect("there");
        fs::remove_dir_all(self.devices().join(format!("{port}:1.0"))).expect("there");
        fs::remove_file(self.node(number)).expect("there");
    }

    fn set_mode(&self, number: u16, mode: u32) {
        fs::set_permissions(self.node(number), fs::Permissions::from_mode(mode)).expect("ours");
    }

    fn mode(&self, number: u16) -> u32 {
        fs::metadata(self.node(number)).expect("there").mode() & 0o777
    }

    fn offering(&self, mappings: &[&str]) -> UsbPassthrough {
        let root = self.folder.path();
        let mappings = mappings.iter().map(|text| text.parse().expect("a mapping")).collect();
        UsbPassthrough::new(root, root.join("usb"), mappings, self.kernel.clone())
    }

    fn records(&self) -> Vec<String> {
        files::names(&self.folder.path().join("usb")).expect("listed")
    }

    fn probed(&self) -> Vec<String> {
        self.kernel.probed.lock().expect("no panic").clone()
    }
}

fn in_port(port: &str, number: u16) -> UsbDeviceSpec {
    UsbDeviceSpec { port: port.to_owned(), bus: 1, number }
}

#[test]
fn a_device_is_found_by_its_port_and_by_its_identifier() {
    let machine = Machine::new();
    let first = UsbDeviceFacts {
        name: "key".to_owned(),
        port: "1-1.4".to_owned(),
        id: Some("0403:6001".to_owned()),
        product: Some("FT232R USB UART".to_owned()),
        bus: 1,
        number: 3,
        problem: None,
        held_by: None,
    };
    assert_eq!(machine.offering(&["key=1-1.4"]).facts().expect("facts"), std::slice::from_ref(&first));
    let second = UsbDeviceFacts { port: "1-2".to_owned(), number: 4, ..first.clone() };
    assert_eq!(machine.offering(&["key=0403:6001"]).facts().expect("facts"), [first, second]);
    assert_eq!(machine.offering(&[]).facts().expect("facts"), []);
}

#[test]
fn each_obstacle_is_named() {
    let machine = Machine::new();
    let of = |mapping: &str| {
        let facts = machine.offering(&[mapping]).facts().expect("facts");
        facts.first().and_then(|facts| facts.problem.clone()).expect("a problem")
    };
    insta::assert_snapshot!(of("key=1-3"), @"this host has no device in port 1-3");
    insta::assert_snapshot!(of("key=046d:c31c"), @"this host has no device 046d:c31c");
    insta::assert_snapshot!(of("hub=1-1"), @"it is a hub, which no VM can have: offer the devices in its ports");
    insta::assert_snapshot!(of("hub=1d6b:0002"), @"it is a hub, which no VM can have: offer the devices in its ports");
    let twice = machine.offering(&["key=1-2", "serial=0403:6001"]).facts().expect("facts");
    let problems: Vec<_> =
        twice.iter().map(|facts| (facts.port.as_str(), facts.problem.as_deref())).collect();
    assert_eq!(problems, [("1-2", None), ("1-1.4", None), ("1-2", Some("it is offered as key already"))]);
    fs::remove_file(machine.node(4)).expect("there");
    insta::assert_snapshot!(of("key=1-2"), @"this host has no device file /dev/bus/usb/001/004 for it");
}

#[test]
fn the_words_of_a_device_are_made_harmless() {
    let machine = Machine::new();
    let product = |text: &[u8]| {
        fs::write(machine.devices().join("1-2/product"), text).expect("written");
        machine.offering(&["key=1-2"]).facts().expect("facts").remove(0).product
    };
    assert_eq!(product(b"Cl\xc3\xa9 \x1b[31mrouge\xe2\x80\xae\n").as_deref(), Some("Clé ?[31mrouge?"));
    assert_eq!(product(&[b'x'; 4096]).map(|text| text.len()), Some(64));
    assert_eq!(product(b"\n"), None);
}

#[test]
fn a_device_belongs_to_its_instance_until_it_is_given_back_with_its_owner_and_its_drivers() {
    let machine = Machine::new();
    let passthrough = machine.offering(&["key=0403:6001"]);
    passthrough.take("i-1", &[in_port("1-2", 4)]).expect("taken");
    // QEMU's launch.
    machine.set_mode(4, 0o600);
    let held: Vec<_> = passthrough.facts().expect("facts").into_iter().map(|facts| facts.held_by).collect();
    assert_eq!(held, [None, Some("i-1".to_owned())]);
    let error = passthrough.take("i-2", &[in_port("1-2", 4)]).expect_err("refused");
    insta::assert_snapshot!(error.chain(), @"USB device 1-2: instance i-1 has it");
    passthrough.take("i-1", &[in_port("1-2", 4)]).expect("taken again");

    // Another run of the agent, which no longer offers them.
    let again = machine.offering(&[]);
    again.give_back("i-2").expect("nothing of it");
    assert_eq!((machine.mode(4), machine.probed()), (0o600, vec![]));
    again.give_back("i-1").expect("given back");
    assert_eq!(machine.mode(4), 0o664, "as before it was first taken");
    assert_eq!(machine.probed(), ["1-2:1.0"]);
    assert_eq!(machine.records(), Vec::<String>::new());
    passthrough.take("i-2", &[in_port("1-2", 4)]).expect("it is free");
}

#[test]
fn a_device_that_no_guest_can_have_is_not_taken() {
    let machine = Machine::new();
    let passthrough = machine.offering(&["key=1-2", "hub=1-1"]);
    let refused = |device: UsbDeviceSpec| passthrough.take("i-1", &[device]).expect_err("refused").chain();
    insta::assert_snapshot!(refused(in_port("1-1", 2)), @"USB device 1-1: it is a hub, which no VM can have: offer the devices in its ports");
    insta::assert_snapshot!(refused(in_port("1-2", 5)), @"USB device 1-2: it was unplugged, or plugged in again");
    insta::assert_snapshot!(refused(in_port("1-1.4", 3)), @"USB device 1-1.4: it was unplugged, or plugged in again");
    assert_eq!(machine.records(), Vec::<String>::new());
}

#[test]
fn a_device_that_is_unplugged_stays_its_instances_and_its_next_device_file_is_left_alone() {
    let machine = Machine::new();
    let passthrough = machine.offering(&["key=1-2"]);
    passthrough.take("i-1", &[in_port("1-2", 4)]).expect("taken");
    machine.unplug("1-2", 4);
    insta::assert_snapshot!(passthrough.facts().expect("facts")[0].problem.clone().unwrap_or_default(), @"this host has no device in port 1-2");
    machine.plug("1-2", "0403:6001", 7, "00");
    machine.set_mode(7, 0o640);
    assert_eq!(passthrough.facts().expect("facts")[0].held_by.as_deref(), Some("i-1"));
    passthrough.give_back("i-1").expect("given back");
    assert_eq!((machine.mode(7), machine.probed()), (0o640, vec![]));

    passthrough.take("i-1", &[in_port("1-2", 7)]).expect("taken");
    machine.unplug("1-2", 7);
    passthrough.give_back("i-1").expect("given back");
    assert_eq!(machine.records(), Vec::<String>::new());
}

#[test]
fn a_driver_that_refuses_a_device_or_has_it_already_does_not_keep_its_vm() {
    let mut machine = Machine::new();
    machine.kernel = Arc::new(FakeKernel { refuses: true, ..FakeKernel::default() });
    let passthrough = machine.offering(&["key=1-2"]);
    passthrough.take("i-1", &[in_port("1-2", 4)]).expect("taken");
    passthrough.give_back("i-1").expect("given back");
    assert_eq!(machine.probed(), ["1-2:1.0"]);
    let driver = machine.folder.path().join("sys/bus/usb/drivers/ftdi_sio");
    fs::create_dir_all(&driver).expect("a driver");
    symlink(driver, machine.devices().join("1-2:1.0/driver")).expect("a link");
    passthrough.take("i-1", &[in_port("1-2", 4)]).expect("taken");
    passthrough.give_back("i-1").expect("given back");
    assert_eq!(machine.probed().len(), 1, "a driver has it: {:?}", machine.probed());
}
