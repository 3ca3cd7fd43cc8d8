//! The huge pages of this machine by size and NUMA node, and how many of them its configuration asks for.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::huge_pages;

/// The folders of files for `sysctl`: a file in an earlier one replaces one of the same name in a later one.
const SYSCTL_FOLDERS: [&str; 3] = ["etc/sysctl.d", "run/sysctl.d", "usr/lib/sysctl.d"];
/// The file that is read after those of the folders.
const SYSCTL_CONF: &str = "etc/sysctl.conf";
/// The greatest length in bytes of a file of configuration that is read.
const LONGEST_FILE: u64 = 1 << 16;
/// The greatest number of files that are read in a folder.
const MOST_FILES: usize = 256;

/// The huge pages of one size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DoctorHugePages {
    pub page_bytes: u64,
    pub total: u64,
    /// Those that no process uses or is promised.
    pub free: u64,
    /// The number that kernel parameters or files for `sysctl` ask for, if they do.
    pub wanted: Option<u64>,
    /// NUMA node with memory → its pages.
    pub nodes: BTreeMap<u32, u64>,
}

/// Reads the pages of a machine with this root directory, sorted by size. A size without pages that none is asked for is left out.
/// `default_bytes`: the size that counts where none is named.
pub(super) fn read(root: &Path, default_bytes: u64) -> Vec<DoctorHugePages> {
    let sys = root.join("sys");
    let mut wanted = wanted_at_boot(&text(&root.join("proc/cmdline")), default_bytes);
    if let Some(pages) = wanted_by_sysctl(root) {
        // Applied later.
        wanted.insert(default_bytes, pages);
    }
    let sizes = huge_pages::all(&sys).into_iter().map(|pages| DoctorHugePages {
        page_bytes: pages.page_bytes,
        total: pages.total,
        free: pages.free,
        wanted: wanted.get(&pages.page_bytes).copied(),
        nodes: on_nodes(&sys, pages.page_bytes),
    });
    sizes.filter(|pages| pages.total > 0 || pages.wanted.is_some_and(|wanted| wanted > 0)).collect()
}

fn on_nodes(sys: &Path, page_bytes: u64) -> BTreeMap<u32, u64> {
    let Ok(nodes) = fs::read_dir(sys.join("devices/system/node")) else { return BTreeMap::new() };
    let count = |entry: fs::DirEntry| {
        let node: u32 = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let folder = entry.path().join(format!("hugepages/hugepages-{}kB", page_bytes >> 10));
        Some((node, text(&folder.join("nr_hugepages")).trim().parse::<u64>().ok()?))
    };
    nodes.flatten().filter_map(count).collect()
}

/// Returns the pages that the kernel's parameters ask for, by the size of a page.
fn wanted_at_boot(parameters: &str, default_bytes: u64) -> BTreeMap<u64, u64> {
    let mut wanted = BTreeMap::new();
    // A number without a size before it is of the default size.
    let mut size = Some(default_bytes);
    for parameter in parameters.split_whitespace() {
        if let Some(named) = parameter.strip_prefix("hugepagesz=") {
            size = bytes(named);
        } else if let Some(number) = parameter.strip_prefix("hugepages=")
            && let (Some(size), Some(number)) = (size, pages(number))
        {
            wanted.insert(size, number);
        }
    }
    wanted
}

/// Parses a number of pages, or the sum of those of nodes: `512`, `0:256,1:256`.
fn pages(text: &str) -> Option<u64> {
    let mut sum: u64 = 0;
    for part in text.split(',') {
        let number = part.split_once(':').map_or(part, |(_, number)| number);
        sum = sum.checked_add(number.parse().ok()?)?;
    }
    Some(sum)
}

/// Parses a size as the kernel does: `2M`, `1G`.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let factor: u64 = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Returns the pages of the default size that the files for `sysctl` ask for.
fn wanted_by_sysctl(root: &Path) -> Option<u64> {
    let mut files = BTreeMap::new();
    for folder in SYSCTL_FOLDERS {
        let Ok(entries) = fs::read_dir(root.join(folder)) else { continue };
        for entry in entries.flatten().take(MOST_FILES) {
            if entry.path().extension().is_some_and(|extension| extension == "conf") {
                files.entry(entry.file_name()).or_insert(entry.path());
            }
        }
    }
    let in_order = files.into_values().chain([root.join(SYSCTL_CONF)]);
    in_order.filter_map(|file| in_file(&text(&file))).next_back()
}

/// Returns the last value in the text of a file for `sysctl`.
fn in_file(text: &str) -> Option<u64> {
    let value = |line: &str| {
        let (name, value) = line.split_once('=')?;
        let name = name.trim().trim_start_matches('-').replace('/', ".");
        if name == "vm.nr_hugepages" { value.trim().parse::<u64>().ok() } else { None }
    };
    text.lines().filter_map(value).next_back()
}

/// Reads a file, or the beginning of a long one; one that cannot be read, or is none, is empty.
fn text(path: &Path) -> String {
    let mut found = Vec::new();
    // A pipe would not end.
    if path.is_file()
        && let Ok(file) = fs::File::open(path)
        && file.take(LONGEST_FILE).read_to_end(&mut found).is_err()
    {
        found.clear();
    }
    String::from_utf8_lossy(&found).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn pages_are_counted_by_size_and_node_beside_those_that_are_asked_for() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        assert_eq!(read(root, 2 << 20), []);
        let size = |kib: u64, total: u64, free: u64| {
            let folder = format!("sys/kernel/mm/hugepages/hugepages-{kib}kB");
            write(root, &format!("{folder}/nr_hugepages"), &format!("{total}\n"));
            write(root, &format!("{folder}/free_hugepages"), &format!("{free}\n"));
        };
        size(2048, 100, 60);
        size(1_048_576, 0, 0);
        size(64, 0, 0);
        for (node, pages) in [(0, 100), (1, 0)] {
            let folder = format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB");
            write(root, &format!("{folder}/nr_hugepages"), &format!("{pages}\n"));
        }
        write(root, "proc/cmdline", "ro hugepages=9 hugepagesz=1G hugepages=0:2,1:3 quiet\n");
        write(root, "etc/sysctl.d/50-pages.conf", "# more\nvm.nr_hugepages = 128\n");
        let nodes = [(0, 100), (1, 0)].into();
        assert_eq!(
            read(root, 2 << 20),
            [
                DoctorHugePages { page_bytes: 2 << 20, total: 100, free: 60, wanted: Some(128), nodes },
                DoctorHugePages { page_bytes: 1 << 30, wanted: Some(5), ..DoctorHugePages::default() },
            ]
        );
    }

    #[test]
    fn the_last_file_for_sysctl_counts_and_one_in_etc_replaces_its_namesake() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        assert_eq!(wanted_by_sysctl(root), None);
        write(root, "usr/lib/sysctl.d/90-db.conf", "vm.nr_hugepages=7\n");
        write(root, "etc/sysctl.d/10-first.conf", "vm.nr_hugepages=1\n");
        assert_eq!(wanted_by_sysctl(root), Some(7));
        write(root, "etc/sysctl.d/90-db.conf", "vm.swappiness=1\n");
        assert_eq!(wanted_by_sysctl(root), Some(1));
        write(root, "etc/sysctl.conf", "-vm/nr_hugepages = 3\n");
        assert_eq!(wanted_by_sysctl(root), Some(3));
    }

    #[test]
    fn parameters_that_the_kernel_does_not_take_ask_for_nothing() {
        for parameters in ["hugepages=many", "hugepagesz=2X hugepages=4", "nohugepages=4", ""] {
            assert!(wanted_at_boot(parameters, 2 << 20).is_empty(), "{parameters}");
        }
    }
}
