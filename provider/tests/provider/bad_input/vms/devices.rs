//! Bad disks, drives, devices of the host, and shares of a VM.

use serde_json::{Value as Json, json};

use super::{own, vm};
use crate::bad_input::{Bad, everywhere, with};

pub(super) fn devices() -> Vec<Bad> {
    let disks = |disks: Json| with(vm(), "/disks", disks);
    vec![
        everywhere(
            disks(json!([{"name": "a", "boot": true}, {"name": "b", "boot": true}])),
            "disks[1].boot",
            "2 disks have boot = true",
        ),
        everywhere(
            disks(json!([{"name": "a", "boot": false}])),
            "disks",
            "Exactly one disk must have boot = true",
        ),
        everywhere(disks(json!([])), "disks", "The list is empty"),
        everywhere(
            disks((0..17).map(|number| json!({"name": format!("d{number}"), "boot": number == 0})).collect()),
            "disks",
            "at most 16 are allowed",
        ),
        everywhere(
            own("disks", json!([{"name": "a", "boot": true, "bus": "sata", "read_only": true}])),
            "disks[0].read_only",
            "cannot be read-only",
        ),
        everywhere(
            own("disks", json!([{"name": "a", "boot": true, "bus": "ide"}])),
            "disks[0].bus",
            "is not one of",
        ),
        everywhere(
            own(
                "disks",
                json!([{"name": "a", "boot": true, "bus": "sata"}, {"name": "b", "bus": "sata"}, {"name": "c", "bus": "sata"},
                    {"name": "d", "bus": "sata"}, {"name": "e", "bus": "sata"}, {"name": "f", "bus": "sata"}, {"name": "g", "bus": "sata"}]),
            ),
            "disks[6].bus",
            "At most 6 disks",
        ),
        everywhere(
            own("cdroms", json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}])),
            "cdroms[1].image",
            "in one drive only",
        ),
        everywhere(
            own("cdroms", json!([{"name": "a", "boot_first": true}, {"name": "b", "boot_first": true}])),
            "cdroms[1].boot_first",
            "one may",
        ),
        everywhere(
            own("pci_devices", json!([{"name": "gpu", "count": 4}, {"name": "nic", "count": 5}])),
            "pci_devices",
            "at most 8",
        ),
        everywhere(
            own("pci_devices", json!([{"name": "gpu", "count": 0}])),
            "pci_devices[0].count",
            "0 is not between 1 and 8",
        ),
        everywhere(own("pci_devices", json!([{"name": "GPU"}])), "pci_devices[0].name", "is not a DNS label"),
        everywhere(
            own("pci_devices", json!([{"name": "a"}, {"name": "a"}])),
            "pci_devices",
            "\"a\" is used twice",
        ),
        everywhere(
            with(own("pci_devices", json!([{"name": "gpu"}])), "/power", json!("Suspended")),
            "power",
            "cannot be suspended",
        ),
        everywhere(
            own("usb_devices", json!([{"name": "key", "count": 8}, {"name": "serial"}])),
            "usb_devices",
            "9 USB devices are declared; a VM can have at most 8",
        ),
        everywhere(
            own("usb_devices", json!([{"name": "key", "count": 9}])),
            "usb_devices[0].count",
            "9 is not between 1 and 8",
        ),
        everywhere(
            own("usb_devices", json!([{"name": "1-2"}, {"name": "1-2"}])),
            "usb_devices",
            "is used twice",
        ),
        everywhere(
            own("usb_devices", json!([{"name": "0403:6001"}])),
            "usb_devices[0].name",
            "is not a DNS label",
        ),
        everywhere(
            with(own("usb_devices", json!([{"name": "key"}])), "/power", json!("Suspended")),
            "power",
            "cannot be suspended",
        ),
        everywhere(
            own("vgpus", json!([{"name": "a40-8q", "count": 8}, {"name": "a40-1q"}])),
            "vgpus",
            "9 vGPUs are declared; a VM can have at most 8",
        ),
        everywhere(own("vgpus", json!([{"name": "NVIDIA A40-8Q"}])), "vgpus[0].name", "is not a DNS label"),
        everywhere(
            with(own("vgpus", json!([{"name": "a40-8q"}])), "/power", json!("Suspended")),
            "power",
            "cannot be suspended",
        ),
        everywhere(own("shares", json!([{"name": "Media"}])), "shares[0].name", "is not a DNS label"),
        everywhere(own("shares", json!([{"name": "a"}, {"name": "a"}])), "shares", "\"a\" is used twice"),
        everywhere(own("shares", json!([{"name": "a", "tag": "x,y"}])), "shares[0].tag", "is not a tag"),
        everywhere(
            own("shares", json!([{"name": "a".repeat(37)}])),
            "shares[0].name",
            "longer than 36 characters",
        ),
        everywhere(
            own("shares", json!([{"name": "a"}, {"name": "b", "tag": "a"}])),
            "shares[1].tag",
            "the tag \"a\"",
        ),
        everywhere(
            with(own("shares", json!([{"name": "a"}])), "/power", json!("Suspended")),
            "power",
            "cannot be suspended",
        ),
        everywhere(own("cdroms", json!([{"name": "a"}, {"name": "a"}])), "cdroms", "\"a\" is used twice"),
        everywhere(
            own("cdroms", json!([{"name": "a".repeat(37)}])),
            "cdroms[0].name",
            "more than 36 characters",
        ),
        everywhere(own("cdroms", json!([{}, {}, {}, {}, {}])), "cdroms", "at most 4"),
        everywhere(
            disks(json!([{"name": "a", "boot": true}, {"name": "a"}])),
            "disks",
            "\"a\" is used twice",
        ),
        everywhere(disks(json!([{"name": "A", "boot": true}])), "disks[0].name", "\"A\" is not a DNS label"),
        everywhere(
            with(vm(), "/disks", json!([{"name": "d", "boot": true, "template": {"image": "a/b"}}])),
            "disks[0].template.image",
            "not a DNS label",
        ),
        everywhere(
            with(vm(), "/disks", json!([{"name": "d", "boot": true, "template": {"pool": "fast"}}])),
            "disks[0].template.size",
            "needs a size",
        ),
    ]
}
