//! The screen with its keyboard and pointer, and the sound card. Pure.

use std::path::Path;

use serde_json::json;

use super::super::{Architecture, Graphics, MachineSpec, slot};
use super::{Arguments, FUNCTIONS, SLOT_MORE_NIC_PORTS, escape, text, usb_controller};

/// The PCI slot of the graphics card.
const SLOT_CARD: u8 = 0x1;
/// With further ports for network cards the sound card is the last function of their slot: no slot is free, and the first function is theirs.
const SLOT_SOUND: u8 = SLOT_MORE_NIC_PORTS;

/// The id of the host's side of the sound card.
const SOUND_OUTPUT: &str = "audio0";

pub(super) fn graphics(spec: &MachineSpec, vnc: &Path, args: &mut Arguments) {
    match spec.graphics {
        Graphics::None => args.pair("-display", "none"),
        Graphics::Vga => {
            let driver = match spec.architecture() {
                Architecture::X86_64 => "VGA",
                // Its firmware has no driver for VGA, whose memory processors of ARM with KVM do not see as QEMU does.
                Architecture::Aarch64 => "virtio-gpu-pci",
            };
            let mut card = json!({"driver": driver, "id": "vga0", "bus": "pcie.0", "addr": slot(SLOT_CARD)});
            if let Some((width, height)) = spec.extras.resolution {
                // As the monitor's own (EDID).
                card["xres"] = json!(width);
                card["yres"] = json!(height);
            }
            args.device(card);
            usb_controller(spec, args);
            args.device(json!({"driver": "usb-tablet", "id": "tablet0", "bus": "usb0.0"}));
            if spec.architecture() == Architecture::Aarch64 {
                // A PC has another one.
                args.device(json!({"driver": "usb-kbd", "id": "keyboard0", "bus": "usb0.0"}));
            }
            // A viewer that asks for the screen alone does not disconnect the others.
            let mut server = format!("unix:{},share=ignore", escape(&text(vnc)));
            if spec.extras.sound {
                server.push_str(&format!(",audiodev={SOUND_OUTPUT}"));
            }
            args.pair("-vnc", server);
            if let Some(layout) = &spec.extras.keyboard_layout {
                args.pair("-k", layout.clone());
            }
        }
    }
}

/// A sound card that plays into nothing on the host, from where viewers of the screen get it.
pub(super) fn sound(nic_ports: u8, args: &mut Arguments) {
    args.pair("-audiodev", format!("none,id={SOUND_OUTPUT}"));
    let last = format!("{SLOT_SOUND:#x}.{}", FUNCTIONS - 1);
    let addr = if nic_ports > FUNCTIONS { last } else { slot(SLOT_SOUND) };
    args.device(json!({"driver": "ich9-intel-hda", "id": "sound0", "bus": "pcie.0", "addr": addr}));
    args.device(
        json!({"driver": "hda-duplex", "id": "sound-codec0", "bus": "sound0.0", "audiodev": SOUND_OUTPUT}),
    );
}
