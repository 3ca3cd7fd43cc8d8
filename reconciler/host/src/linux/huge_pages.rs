//! The huge pages of the host, as the kernel counts them.

use std::fs;
use std::path::Path;

use crate::HugePagesFacts;

/// Reads the huge pages of a machine whose `/sys` is this folder, sorted by size. A size without pages is left out.
pub(super) fn read(sys: &Path) -> Vec<HugePagesFacts> {
    let mut found = all(sys);
    found.retain(|pages| pages.total > 0);
    found
}

/// Reads the huge pages of all sizes that the kernel has, sorted by size.
pub(super) fn all(sys: &Path) -> Vec<HugePagesFacts> {
    // A kernel without huge pages has no such folder.
    let Ok(sizes) = fs::read_dir(sys.join("kernel/mm/hugepages")) else { return Vec::new() };
    let mut found: Vec<HugePagesFacts> = sizes.flatten().filter_map(|size| pages(&size.path())).collect();
    found.sort_by_key(|pages| pages.page_bytes);
    found
}

fn pages(folder: &Path) -> Option<HugePagesFacts> {
    let kib = folder.file_name()?.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    let count = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // Pages that a process was promised and has not touched yet are still counted as free.
    let free = count("free_hugepages")?.saturating_sub(count("resv_hugepages").unwrap_or_default());
    Some(HugePagesFacts {
        page_bytes: kib.parse::<u64>().ok()?.checked_mul(1024)?,
        total: count("nr_hugepages")?,
        free,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_by_size_without_those_that_are_promised() {
        let sys = tempfile::tempdir().expect("a directory");
        assert_eq!(read(sys.path()), [], "no support for huge pages");
        let size = |name: &str, counts: [&str; 3]| {
            let folder = sys.path().join("kernel/mm/hugepages").join(name);
            fs::create_dir_all(&folder).expect("a directory");
            for (file, count) in ["nr_hugepages", "free_hugepages", "resv_hugepages"].iter().zip(counts) {
                fs::write(folder.join(file), format!("{count}\n")).expect("a file");
            }
        };
        size("hugepages-2048kB", ["64", "40", "8"]);
        size("hugepages-1048576kB", ["0", "0", "0"]);
        size("hugepages-64kB", ["3", "3", "0"]);
        size("something-else", ["9", "9", "9"]);
        assert_eq!(
            read(sys.path()),
            [
                HugePagesFacts { page_bytes: 64 << 10, total: 3, free: 3 },
                HugePagesFacts { page_bytes: 2 << 20, total: 64, free: 32 },
            ]
        );
    }
}
