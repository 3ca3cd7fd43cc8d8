//! A minimal guest: one page, one CPU in real mode, one loop.
#![allow(unsafe_code, reason = "a guest's memory is handed to the kernel by address")]

use std::io;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

use super::{API_VERSION, DEVICE, KvmProbe, opened};

const PAGE: usize = 4096;
/// `dec ecx; jnz -4; hlt`, in 16-bit mode.
const CODE: [u8; 5] = [0x66, 0x49, 0x75, 0xfc, 0xf4];
const INSTRUCTIONS_PER_TURN: f64 = 2.0;
/// Runs get longer until one takes this long, so that entering and leaving the guest no longer affects the result.
const LONG_ENOUGH: Duration = Duration::from_millis(20);
const FIRST_TURNS: u64 = 1000;
const MAX_TURNS: u64 = 1 << 31;

/// Runs increasingly long loops, about 40–60 ms in total.
pub(super) fn measure() -> KvmProbe {
    let kvm = match opened() {
        Ok(kvm) => kvm,
        Err(unusable) => return unusable,
    };
    match Guest::new(&kvm).and_then(|mut guest| guest.speed()) {
        Ok(mips) => KvmProbe::judge(mips, API_VERSION),
        Err(what) => {
            let reason = format!("{DEVICE} cannot run a guest: {what}");
            KvmProbe { api_version: Some(API_VERSION), ..KvmProbe::unusable(reason) }
        }
    }
}

/// Field order is drop order: the memory is dropped last, when nothing can run in it any more.
struct Guest {
    processor: VcpuFd,
    _machine: VmFd,
    _memory: Memory,
}

impl Guest {
    fn new(kvm: &Kvm) -> Result<Self, String> {
        let machine = kvm.create_vm().map_err(|e| format!("no machine: {e}"))?;
        let memory = Memory::new().map_err(|e| format!("no memory: {e}"))?;
        memory.write(&CODE);
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: PAGE as u64,
            userspace_addr: memory.0.as_ptr() as u64,
        };
        // SAFETY: the page is mapped, used for nothing else, and outlives the machine (see Guest).
        unsafe { machine.set_user_memory_region(region) }.map_err(|e| format!("no memory: {e}"))?;
        let processor = machine.create_vcpu(0).map_err(|e| format!("no processor: {e}"))?;
        let mut segments = processor.get_sregs().map_err(|e| format!("no registers: {e}"))?;
        segments.cs.base = 0;
        segments.cs.selector = 0;
        processor.set_sregs(&segments).map_err(|e| format!("no registers: {e}"))?;
        Ok(Self { processor, _machine: machine, _memory: memory })
    }

    /// Million instructions per second.
    fn speed(&mut self) -> Result<f64, String> {
        let mut turns = FIRST_TURNS;
        loop {
            let took = self.run(turns)?;
            if took >= LONG_ENOUGH || turns >= MAX_TURNS {
                return Ok(turns as f64 * INSTRUCTIONS_PER_TURN / took.as_secs_f64().max(1e-9) / 1e6);
            }
            turns *= 4;
        }
    }

    fn run(&mut self, turns: u64) -> Result<Duration, String> {
        let mut registers = self.processor.get_regs().map_err(|e| format!("no registers: {e}"))?;
        registers.rip = 0;
        registers.rcx = turns;
        // Bit 1 is always set.
        registers.rflags = 2;
        self.processor.set_regs(&registers).map_err(|e| format!("no registers: {e}"))?;
        let start = Instant::now();
        match self.processor.run() {
            Ok(VcpuExit::Hlt) => Ok(start.elapsed()),
            Ok(other) => Err(format!("it stopped with {other:?}")),
            Err(error) => Err(format!("it does not run: {error}")),
        }
    }
}

/// One page of guest memory.
struct Memory(NonNull<libc::c_void>);

impl Memory {
    fn new() -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping at an address chosen by the kernel touches no existing memory.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, flags, -1, 0) };
        match NonNull::new(address) {
            Some(page) if address != libc::MAP_FAILED => Ok(Self(page)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn write(&self, code: &[u8; 5]) {
        // SAFETY: the page is larger than the code, writable, and no guest runs yet.
        unsafe { self.0.cast::<[u8; 5]>().write(*code) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; the machine that used it has been dropped (see Guest). A failure
        // would leak one page.
        let _ = unsafe { libc::munmap(self.0.as_ptr(), PAGE) };
    }
}
