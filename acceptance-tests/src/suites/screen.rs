//! The screen of a VM: a screenshot, a viewer that types, and other users of the viewer's machine.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::console::{self, administrator};
use super::kubectl::contains_all;
use super::rules::project;
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::{Report, note};
use crate::terraform::unwrapped;
use crate::{process, wait};

const SOON: Duration = Duration::from_secs(60);
const GUEST: &str = r#"
variable "image" {
  type = object({ url = string, sha256 = string })
}

resource "berth_image" "guest" {
  name   = "screen"
  source = var.image
}

resource "berth_disk" "root" {
  name  = "screen"
  image = berth_image.guest.name
  size  = "64Mi"
}

resource "berth_vm" "guest" {
  name               = "screen"
  cpus               = 1
  memory             = "128Mi"
  firmware           = "BIOS"
  graphics           = "VGA"
  resolution         = "1024x768"
  keyboard_layout    = "de"
  sound              = true
  disks              = [{ name = berth_disk.root.name, boot = true }]
  network_interfaces = []
  # The machine has a controller for USB.
  bootstrap          = { sysprep_unattend = "<unattend xmlns='urn:schemas-microsoft-com:unattend'/>" }
  allow_reboot       = true
  stop               = { grace_period_seconds = 2 }
}
"#;

/// Runs the cases.
pub fn run(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    let failed = report.count().failed;
    // A failed step has been counted, and the steps after it cannot run.
    let _ = cases(report, platform, guest);
    if report.count().failed > failed {
        note(&platform.keep_evidence());
    }
}

fn cases(report: &mut Report, platform: &Platform, guest: &GuestImage) -> Result<()> {
    let project =
        report.step("graphics = VGA gives a guest a screen, and berth screenshot saves it", || {
            let project = project(platform, GUEST)?;
            let url = platform.images().put("screen.qcow2", Content::File(guest.path.clone()));
            let variables = json!({"image": {"url": url, "sha256": guest.sha256}});
            project.write("terraform.tfvars.json", &variables.to_string())?;
            project.init()?;
            project.apply()?;
            project.plan_is_empty()?;
            wait::until("the guest's blue screen", SOON, || {
                let shown = screenshot(platform)?;
                // The guest has painted the background of its text console.
                let is_blue = |pixel: &&[u8]| matches!(pixel, [0, 0, 0x80..=0xff]);
                let blue = shown.pixels.chunks_exact(3).filter(is_blue).count();
                ensure!(
                    shown.width >= 640 && blue * 10 > shown.pixels.len() / 3 * 9,
                    "{blue} pixels are blue"
                );
                Ok(())
            })?;
            Ok(project)
        })?;
    report.case("two viewers of berth vnc share the screen, and their keys reach the guest", || {
        let viewers = Viewers::start(platform)?;
        let mut first = viewers.connect(platform)?;
        let mut second = viewers.connect(platform)?;
        typed(platform, &mut first, "hello", "hello")?;
        typed(platform, &mut second, "again", "again")
    });
    report.case("characters are the keys of the declared layout", || {
        let viewers = Viewers::start(platform)?;
        // The guest's own layout is that of a US keyboard, on which both keys are swapped.
        typed(platform, &mut viewers.connect(platform)?, "zy", "yz")
    });
    report.case("the machine has the declared resolution and sound card", || {
        let arguments = std::fs::read(format!("/proc/{}/cmdline", platform.qemu()?))?;
        let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
        contains_all(&arguments, &[r#""xres":1024,"yres":768"#, "ich9-intel-hda", "audiodev=audio0"])
    });
    report.case("another user of the viewer's machine sees nothing", || {
        let viewers = Viewers::start(platform)?;
        let mut command = platform.namespace().command("setpriv");
        command.args(["--reuid", "65534", "--clear-groups", "busybox", "nc", "127.0.0.1", &viewers.port]);
        command.stdin(Stdio::null());
        let seen = process::run(&mut command, SOON)?;
        ensure!(seen.stdout.is_empty(), "{:?}", seen.stdout);
        // The user who runs it is served.
        viewers.connect(platform).map(drop)
    });
    report.case("graphics = None takes it away in the same apply, and the refusal says why", || {
        project.edit("main.tf", r#""VGA""#, r#""None""#)?;
        contains_all(&unwrapped(&project.apply_refused()?), &["set graphics to \"VGA\""])?;
        project.edit(
            "main.tf",
            "  resolution         = \"1024x768\"\n  keyboard_layout    = \"de\"\n",
            "",
        )?;
        let plan = project.plan()?;
        ensure!(plan.changes() == ["berth_vm.guest: update"], "{:?}", plan.changes());
        project.apply()?;
        let refused = administrator(platform).run(&["screenshot", "screen"])?.failure()?;
        contains_all(&refused, &["the VM runs without a screen", "set graphics to VGA"])
    });
    report.case("destroy takes it away", || project.destroy().map(drop));
    Ok(())
}

/// Types a word and waits until the guest has read this one.
fn typed(platform: &Platform, viewer: &mut TcpStream, word: &str, read: &str) -> Result<()> {
    type_line(viewer, word)?;
    wait::until("what was typed", SOON, || {
        contains_all(&console::log(platform, "screen")?, &[&format!("berth-guest-typed {read}")])
    })
}

/// A picture, three bytes for each pixel.
struct Picture {
    width: u32,
    pixels: Vec<u8>,
}

fn screenshot(platform: &Platform) -> Result<Picture> {
    let file = platform.folder().join("screen.png");
    let path = file.to_str().context("a path in UTF-8")?;
    administrator(platform).run(&["screenshot", "screen", "--output", path])?.success()?;
    let mut reader = png::Decoder::new(std::io::BufReader::new(File::open(&file)?)).read_info()?;
    let mut pixels = vec![0; reader.output_buffer_size().context("a picture of a usable size")?];
    let frame = reader.next_frame(&mut pixels)?;
    ensure!(frame.color_type == png::ColorType::Rgb, "{:?}", frame.color_type);
    Ok(Picture { width: frame.width, pixels })
}

/// A running `berth vnc`.
struct Viewers {
    program: Child,
    port: String,
}

impl Drop for Viewers {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

impl Viewers {
    fn start(platform: &Platform) -> Result<Self> {
        let shown = platform.folder().join("vnc.out");
        let mut command: Command = platform.namespace().command(platform.host().program());
        command.args(["vnc", "screen", "--kubeconfig"]).arg(platform.kubeconfig());
        command.stdin(Stdio::null()).stdout(File::create(&shown)?).stderr(Stdio::inherit());
        let mut started =
            Self { program: command.spawn().context("starting berth vnc")?, port: String::new() };
        started.port = wait::until("the port of berth vnc", SOON, || {
            let text = std::fs::read_to_string(&shown)?;
            let port = text.strip_prefix("vnc://127.0.0.1:").and_then(|rest| rest.strip_suffix('\n'));
            port.map(str::to_owned).with_context(|| format!("{text:?}"))
        })?;
        Ok(started)
    }

    /// Connects a viewer, as far as its first messages.
    fn connect(&self, platform: &Platform) -> Result<TcpStream> {
        let port: u16 = self.port.parse()?;
        let mut stream = platform.namespace().inside(move || Ok(TcpStream::connect(("127.0.0.1", port))?))?;
        stream.set_read_timeout(Some(SOON))?;
        let mut version = [0; 12];
        stream.read_exact(&mut version).context("the greeting")?;
        ensure!(version == *b"RFB 003.008\n", "{version:?}");
        stream.write_all(&version)?;
        let mut types = [0; 2];
        stream.read_exact(&mut types)?;
        ensure!(types == [1, 1], "a server without a password, not {types:?}");
        stream.write_all(&[1])?;
        let mut result = [0; 4];
        stream.read_exact(&mut result)?;
        ensure!(result == [0; 4], "{result:?}");
        // Alone: other viewers stay connected all the same.
        stream.write_all(&[0])?;
        let mut init = [0; 24];
        stream.read_exact(&mut init)?;
        Ok(stream)
    }
}

/// Sends the keys of a word and of Return, pressed and released.
fn type_line(viewer: &mut TcpStream, word: &str) -> Result<()> {
    let keys = word.bytes().map(u32::from).chain([0xff0d]);
    for key in keys {
        for pressed in [1, 0] {
            let mut event = vec![4, pressed, 0, 0];
            event.extend(key.to_be_bytes());
            viewer.write_all(&event)?;
        }
    }
    Ok(())
}
