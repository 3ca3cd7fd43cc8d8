//! Whether `/dev/kvm` is worth using: measured, because it may exist but be slow.
//!
//! On some (nested) hosts the device opens, returns API version 12, runs a guest, and emulates every instruction: at
//! 1.7 million per second in one measurement, a hundredth of the speed of QEMU's own translator. So the probe runs a
//! loop of known length in a guest of one page and decides by its speed.

#[cfg(target_arch = "x86_64")]
mod kvm;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Below this, QEMU's translator (some 200–500 million such instructions per second) is the better choice. Hardware
/// virtualisation, including nested, runs the loop at a thousand million per second and more.
pub const MIN_MIPS: f64 = 100.0;
/// The only version of the interface in existence.
const API_VERSION: i32 = 12;
/// The time limit for the whole measurement, which normally takes 60 ms. A measurement that hangs is abandoned on its
/// thread.
const LIMIT: Duration = Duration::from_secs(3);
const DEVICE: &str = "/dev/kvm";

/// The result of the measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvmProbe {
    /// Machines should run on KVM.
    pub usable: bool,
    /// Why it is usable or not, for people.
    pub reason: String,
    /// Million guest instructions per second, if the measurement got that far.
    pub mips: Option<f64>,
    pub api_version: Option<i32>,
}

impl KvmProbe {
    fn unusable(reason: impl Into<String>) -> Self {
        Self { usable: false, reason: reason.into(), mips: None, api_version: None }
    }

    #[cfg(any(target_arch = "x86_64", test))]
    fn judge(mips: f64, api_version: i32) -> Self {
        let usable = mips >= MIN_MIPS;
        let reason = if usable {
            format!("{DEVICE} runs {mips:.0} million instructions a second")
        } else {
            format!(
                "{DEVICE} runs only {mips:.1} million instructions a second ({MIN_MIPS:.0} are the least): the host \
                 emulates instead of virtualising, and QEMU's own emulation (TCG) is faster"
            )
        };
        Self { usable, reason, mips: Some(mips), api_version: Some(api_version) }
    }
}

/// Measures `/dev/kvm` of this machine. Takes about 60 ms, at most 3 s. Never returns an error: a failure becomes the
/// reason.
pub async fn kvm() -> KvmProbe {
    if let Some(why) = not_openable(Path::new(DEVICE)) {
        return KvmProbe::unusable(why);
    }
    within(LIMIT, measure).await
}

/// Runs on its own thread: KVM_RUN cannot be cancelled, and must not block one of the runtime's threads.
async fn within(limit: Duration, measure: fn() -> KvmProbe) -> KvmProbe {
    let (done, result) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("kvm-probe".to_owned()).spawn(move || {
        // After the limit there is no receiver.
        let _ = done.send(measure());
    });
    if let Err(error) = thread {
        return KvmProbe::unusable(format!("no thread for measuring {DEVICE}: {error}"));
    }
    match tokio::time::timeout(limit, result).await {
        Ok(Ok(probe)) => probe,
        Ok(Err(_)) => KvmProbe::unusable(format!("measuring {DEVICE} broke off")),
        Err(_) => KvmProbe::unusable(format!("a guest on {DEVICE} did not come back within {limit:?}")),
    }
}

fn not_openable(device: &Path) -> Option<String> {
    let error = std::fs::OpenOptions::new().read(true).write(true).open(device).err()?;
    Some(match error.kind() {
        std::io::ErrorKind::NotFound => format!(
            "{} does not exist: the processor or the hypervisor below gives no virtualisation, it is off in the \
             firmware, or the module kvm_intel or kvm_amd is not loaded",
            device.display()
        ),
        std::io::ErrorKind::PermissionDenied => {
            format!("no permission for {}: run as root or as a member of its group (kvm)", device.display())
        }
        _ => format!("{} cannot be opened: {error}", device.display()),
    })
}

/// Opens the device, if it has the interface that is known here.
fn opened() -> Result<kvm_ioctls::Kvm, KvmProbe> {
    let kvm = kvm_ioctls::Kvm::new()
        .map_err(|error| KvmProbe::unusable(format!("{DEVICE} cannot be opened: {error}")))?;
    let version = kvm.get_api_version();
    if version != API_VERSION {
        let reason = format!("{DEVICE} speaks version {version} of its interface, not {API_VERSION}");
        return Err(KvmProbe { api_version: Some(version), ..KvmProbe::unusable(reason) });
    }
    Ok(kvm)
}

#[cfg(target_arch = "x86_64")]
fn measure() -> KvmProbe {
    kvm::measure()
}

/// Without the loop, which is code of x86-64: a machine with a processor can be made.
#[cfg(not(target_arch = "x86_64"))]
fn measure() -> KvmProbe {
    let kvm = match opened() {
        Ok(kvm) => kvm,
        Err(unusable) => return unusable,
    };
    let version = API_VERSION;
    let made = kvm.create_vm().and_then(|machine| machine.create_vcpu(0).map(drop));
    match made {
        Ok(()) => KvmProbe {
            usable: true,
            reason: format!("{DEVICE} makes machines; its speed is measured on x86-64 only"),
            mips: None,
            api_version: Some(version),
        },
        Err(error) => {
            let reason = format!("{DEVICE} cannot run a guest: {error}");
            KvmProbe { api_version: Some(version), ..KvmProbe::unusable(reason) }
        }
    }
}
