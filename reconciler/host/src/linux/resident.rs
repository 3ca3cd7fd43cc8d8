//! The host memory that a QEMU uses beyond its guest's.

use super::Result;
use super::files::blocking;

/// Returns bytes; `None` if the process has ended.
pub(super) async fn above_guest_memory(pid: i32, guest_memory: u64) -> Result<Option<u64>> {
    let read = blocking(move || std::fs::read_to_string(format!("/proc/{pid}/smaps"))).await;
    Ok(read.ok().and_then(|smaps| in_smaps(&smaps, guest_memory)))
}

/// Computes a process's memory beyond its guest's from its `/proc/PID/smaps`, in bytes: its share of every mapping
/// except the guest's memory, which is the first mapping of at least that size.
fn in_smaps(smaps: &str, guest_memory: u64) -> Option<u64> {
    let mut is_guest = false;
    let mut seen_guest = false;
    let mut kib = 0u64;
    for line in smaps.lines() {
        let Some((name, rest)) = line.split_once(':') else { continue };
        let amount = || rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok();
        match name {
            "Size" => {
                is_guest = !seen_guest && amount()?.saturating_mul(1024) >= guest_memory;
                seen_guest |= is_guest;
            }
            "Pss" if !is_guest => kib = kib.saturating_add(amount()?),
            _ => {}
        }
    }
    // A process that is ending has no mappings any more.
    seen_guest.then(|| kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_process_is_counted_without_the_memory_of_its_guest() {
        let smaps = "\
55d0c000-55d1c000 r-xp 00000000 fe:00 12 /usr/bin/qemu-system-x86_64
Size:               6144 kB
Rss:                5000 kB
Pss:                2500 kB
Pss_Dirty:             0 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0020000000 rw-p 00000000 00:00 0
Size:             524288 kB
Rss:              300000 kB
Pss:              300000 kB
7f0030000000-7f0032000000 rwxp 00000000 00:00 0
Size:              32768 kB
Rss:               20480 kB
Pss:               20480 kB
";
        assert_eq!(in_smaps(smaps, 512 * MIB), Some((2500 + 20480) * 1024));
        assert_eq!(in_smaps("", 512 * MIB), None, "it is gone");
        assert_eq!(in_smaps("Size: x kB\n", 1), None);
    }

    #[tokio::test]
    async fn this_process_is_counted_and_one_that_is_gone_is_not() {
        let pid = i32::try_from(std::process::id()).expect("a pid");
        // With this size, only the first mapping counts as guest memory, however small it is.
        let counted = above_guest_memory(pid, 1).await.expect("read").expect("it is there");
        assert!((MIB / 4..64 << 30).contains(&counted), "{counted}");
        assert_eq!(above_guest_memory(i32::MAX, 1).await.expect("read"), None);
    }
}
