//! Images of foreign formats, converted by the real `qemu-img`.

use std::process::Command;

use berth_qemu::machine::ForeignFormat;

use super::super::super::tests::SmallDisk;
use super::*;

/// Every format, and what `qemu-img` calls it.
const FORMATS: [(ForeignFormat, &str, &str); 6] = [
    (ForeignFormat::Vmdk, "vmdk", "subformat=monolithicSparse"),
    (ForeignFormat::Vmdk, "vmdk", "subformat=streamOptimized"),
    (ForeignFormat::Vdi, "vdi", "static=off"),
    (ForeignFormat::Vhdx, "vhdx", "subformat=dynamic"),
    (ForeignFormat::Vhd, "vpc", "subformat=dynamic,force_size=on"),
    (ForeignFormat::Vhd, "vpc", "subformat=fixed,force_size=on"),
];

fn qemu_img(args: &[&str]) {
    let output = Command::new("qemu-img").args(args).output().expect("qemu-img is installed (qemu-utils)");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes the image of another format from the bytes of a raw disk.
fn made(folder: &Path, raw: &[u8], driver: &str, options: &str) -> Vec<u8> {
    let (from, to) = (folder.join("raw"), folder.join("made"));
    fs::write(&from, raw).expect("written");
    let paths = [from.to_str().expect("UTF-8"), to.to_str().expect("UTF-8")];
    qemu_img(&["convert", "-f", "raw", "-O", driver, "-o", options, paths[0], paths[1]]);
    fs::read(&to).expect("made")
}

fn foreign(server: &Server, bytes: &[u8], format: ForeignFormat) -> ImageSource {
    let encoding = Encoding { foreign: Some(format), ..Encoding::default() };
    ImageSource { encoding, ..source(server.url("/a"), bytes, Format::Qcow2) }
}

#[tokio::test]
async fn every_foreign_format_becomes_qcow2_with_the_same_content() {
    let disk = raw(MIB);
    for (format, driver, options) in FORMATS {
        let folder = tempfile::tempdir().expect("temporary folder");
        let bytes = made(folder.path(), &disk, driver, options);
        let body = bytes.clone();
        let server = Server::start(move |_| Reply::file(&body));
        let cache = Cache::new();
        let source = foreign(&server, &bytes, format);
        let facts = cache.images.pull(&source, &Credentials::default(), &quiet()).await.expect(options);
        assert_eq!((facts.format, facts.virtual_size), (Format::Qcow2, MIB as u64), "{options}");
        assert_eq!(fs::metadata(&facts.path).expect("there").permissions().mode() & 0o777, 0o440);
        let back = folder.path().join("back");
        let paths = [facts.path.to_str().expect("UTF-8"), back.to_str().expect("UTF-8")];
        qemu_img(&["convert", "-f", "qcow2", "-O", "raw", paths[0], paths[1]]);
        assert!(fs::read(&back).expect("converted") == disk, "{options}");
        assert_eq!(cache.files().len(), 2, "{options}: {:?}", cache.files());
        assert_eq!(cache.restarted().image(&source).await.expect("asked"), Some(facts), "{options}");
    }
}

#[tokio::test]
async fn a_disk_that_a_conversion_fills_is_called_full_and_freed_again() {
    let Some(disk) = SmallDisk::mount(3 * MIB) else { return };
    let folder = tempfile::tempdir().expect("temporary folder");
    let bytes = made(folder.path(), &raw(2 * MIB), "vmdk", "subformat=monolithicSparse");
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let images = open(disk.path(), 1 << 30);
    let source = foreign(&server, &bytes, ForeignFormat::Vmdk);
    let error = images.pull(&source, &Credentials::default(), &quiet()).await.expect_err("full");
    assert_eq!(error.variant(), "NoSpace", "{}", error.chain());
    let left = files::names(&disk.path().join("images")).expect("list");
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_vmdk_that_names_another_file_is_refused() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let secret = folder.path().join("secret");
    fs::write(&secret, vec![b'x'; MIB]).expect("written");
    let text = format!(
        "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\nRW 2048 FLAT \"{}\" 0\n",
        secret.display()
    );
    let bytes = text.into_bytes();
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let cache = Cache::new();
    let error = cache
        .images
        .pull(&foreign(&server, &bytes, ForeignFormat::Vmdk), &Credentials::default(), &quiet())
        .await;
    let error = error.expect_err("refused").chain();
    assert!(error.contains("names other files"), "{error}");
    assert!(cache.files().is_empty(), "{:?}", cache.files());
}

/// The descriptor is inside a file with the right signature, where only `qemu-img` finds it.
#[tokio::test]
async fn a_vmdk_with_an_embedded_descriptor_cannot_name_another_file() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let secret = folder.path().join("secret");
    fs::write(&secret, vec![b'x'; MIB]).expect("written");
    let mut bytes = made(folder.path(), &raw(MIB), "vmdk", "subformat=monolithicSparse");
    // Capacity zero: the driver then reads the disk from the embedded descriptor alone.
    bytes[12..20].fill(0);
    let text = format!(
        "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\nRW 2048 FLAT \"{}\" 0\n",
        secret.display()
    );
    bytes[512..512 + text.len()].copy_from_slice(text.as_bytes());
    bytes[512 + text.len()..512 + 2048].fill(0);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let cache = Cache::new();
    let source = foreign(&server, &bytes, ForeignFormat::Vmdk);
    let error =
        cache.images.pull(&source, &Credentials::default(), &quiet()).await.expect_err("refused").chain();
    assert!(error.contains("cannot be undone") && error.contains("Permission denied"), "{error}");
    assert!(cache.files().is_empty(), "{:?}", cache.files());
}

#[tokio::test]
async fn an_image_of_another_format_than_declared_is_refused_and_not_kept() {
    let bytes = raw(MIB);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let cache = Cache::new();
    for (format, _, options) in FORMATS {
        let error =
            cache.images.pull(&foreign(&server, &bytes, format), &Credentials::default(), &quiet()).await;
        let error = error.expect_err(options);
        assert!(matches!(error, SystemError::ImageRefused { .. }), "{options}: {error:?}");
        assert!(cache.files().is_empty(), "{options}: {:?}", cache.files());
    }
}

#[tokio::test]
async fn a_conversion_that_becomes_too_large_is_refused() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let bytes = made(folder.path(), &vec![b'x'; 8 * MIB], "vmdk", "subformat=streamOptimized");
    assert!(bytes.len() < MIB, "compressed");
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let cache = Cache::with_limit(2 << 20);
    let error = cache
        .images
        .pull(&foreign(&server, &bytes, ForeignFormat::Vmdk), &Credentials::default(), &quiet())
        .await;
    let error = error.expect_err("too large");
    assert!(matches!(error, SystemError::ImageTooLarge { .. }), "{error:?}");
    assert!(cache.files().is_empty(), "{:?}", cache.files());
}

/// Makes a VMDK in which each grain is where the first one is, or has only zeros, by its tables (VMware's Virtual Disk Format 5.0).
fn with_grains(folder: &Path, entry: Option<u32>) -> Vec<u8> {
    let disk = [vec![b'x'; 64 << 10], vec![0; 8 * MIB - (64 << 10)]].concat();
    let mut bytes = made(folder, &disk, "vmdk", "subformat=monolithicSparse");
    let number =
        |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let short =
        |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    // Grains of zeros are a feature of the header.
    bytes[8] |= 4;
    for directory in [48, 56].map(|at| number(&bytes, at)) {
        let directory = usize::try_from(directory).expect("small") * 512;
        let table = usize::try_from(short(&bytes, directory)).expect("small") * 512;
        let first = short(&bytes, table);
        assert_ne!(first, 0, "the first grain has data");
        for grain in 0..128 {
            let at = table + grain * 4;
            bytes[at..at + 4].copy_from_slice(&entry.unwrap_or(first).to_le_bytes());
        }
    }
    bytes
}

#[tokio::test]
async fn a_vmdk_whose_grains_are_all_the_same_one_ends_at_the_limit() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let bytes = with_grains(folder.path(), None);
    assert!(bytes.len() < 2 * MIB, "{} bytes for 8 MiB", bytes.len());
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let cache = Cache::with_limit(2 << 20);
    let source = foreign(&server, &bytes, ForeignFormat::Vmdk);
    let error = cache.images.pull(&source, &Credentials::default(), &quiet()).await.expect_err("too large");
    assert!(matches!(error, SystemError::ImageTooLarge { .. }), "{error:?}");
    assert!(cache.files().is_empty(), "{:?}", cache.files());
}

#[tokio::test]
async fn a_vmdk_of_grains_of_zeros_takes_no_space() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let bytes = with_grains(folder.path(), Some(1));
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let cache = Cache::with_limit(2 << 20);
    let source = foreign(&server, &bytes, ForeignFormat::Vmdk);
    let facts = cache.images.pull(&source, &Credentials::default(), &quiet()).await.expect("an image");
    assert_eq!(facts.virtual_size, 8 * MIB as u64);
    assert!(facts.bytes < MIB as u64, "{} bytes", facts.bytes);
}

/// Pulls an image that the test has changed after `qemu-img` made it. Returns why it is refused.
async fn refused(
    format: ForeignFormat,
    driver: &str,
    options: &str,
    change: impl FnOnce(&mut Vec<u8>),
) -> String {
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut bytes = made(folder.path(), &raw(MIB), driver, options);
    change(&mut bytes);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let cache = Cache::new();
    let source = foreign(&server, &bytes, format);
    let error = cache.images.pull(&source, &Credentials::default(), &quiet()).await.expect_err(driver);
    assert!(matches!(error, SystemError::ImageRefused { .. }), "{error:?}");
    assert!(cache.files().is_empty(), "{:?}", cache.files());
    error.chain()
}

#[tokio::test]
async fn a_disk_that_continues_another_one_is_refused() {
    let vhd = refused(ForeignFormat::Vhd, "vpc", "subformat=dynamic,force_size=on", |bytes| {
        let end = bytes.len() - 512;
        for footer in [0, end] {
            bytes[footer + 63] = 4;
        }
    });
    let vdi = refused(ForeignFormat::Vdi, "vdi", "static=off", |bytes| bytes[0x1b8] = 1);
    let vhdx = refused(ForeignFormat::Vhdx, "vhdx", "subformat=dynamic", |bytes| {
        let at = file_parameters(bytes);
        bytes[at + 4] |= 2;
    });
    for (error, name) in [(vhd.await, "(vhd)"), (vdi.await, "(vdi)"), (vhdx.await, "(vhdx)")] {
        assert!(error.contains("differencing disk") && error.contains(name), "{error}");
        assert!(error.contains("merge both into one file"), "{error}");
    }
}

/// The place of the block size in a VHDX, which the flags follow (MS-VHDX, File Parameters Item).
fn file_parameters(bytes: &[u8]) -> usize {
    const ITEM: [u8; 16] =
        [0x37, 0x67, 0xa1, 0xca, 0x36, 0xfa, 0x43, 0x4d, 0xb3, 0xb6, 0x33, 0xf0, 0xaa, 0x44, 0xe7, 0x6b];
    let place = |wanted: &[u8]| bytes.windows(wanted.len()).position(|found| found == wanted);
    let (table, entry) = (place(&b"metadata"[..]).expect("a table"), place(&ITEM[..]).expect("an entry"));
    let offset: [u8; 4] = bytes[entry + 16..entry + 20].try_into().expect("four bytes");
    table + usize::try_from(u32::from_le_bytes(offset)).expect("small")
}

#[tokio::test]
async fn absurd_sizes_of_blocks_and_tables_are_refused() {
    let dynamic = "subformat=dynamic,force_size=on";
    // The header of a VHD that grows is in its second sector, with numbers in big-endian order.
    let vhd = |at: usize, value: u32| {
        refused(ForeignFormat::Vhd, "vpc", dynamic, move |bytes| {
            bytes[512 + at..512 + at + 4].copy_from_slice(&value.to_be_bytes());
        })
    };
    let vdi = |at: usize, value: u32| {
        refused(ForeignFormat::Vdi, "vdi", "static=off", move |bytes| {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        })
    };
    let vhdx = |value: u32| {
        refused(ForeignFormat::Vhdx, "vhdx", "subformat=dynamic", move |bytes| {
            let at = file_parameters(bytes);
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        })
    };
    let errors = [
        ("vhd", vhd(32, 3).await),
        ("vhd", vhd(28, u32::MAX).await),
        ("vdi", vdi(0x178, 1 << 31).await),
        ("vdi", vdi(0x180, u32::MAX).await),
        ("vhdx", vhdx(3).await),
        ("vhdx", vhdx(1 << 31).await),
    ];
    for (name, error) in errors {
        assert!(error.contains(&format!("the format {name} cannot be undone")), "{error}");
    }
}

#[tokio::test]
async fn a_vhd_without_its_footer_is_no_vhd() {
    let error = refused(ForeignFormat::Vhd, "vpc", "subformat=fixed,force_size=on", |bytes| {
        bytes.truncate(bytes.len() - 512);
    });
    let error = error.await;
    assert!(error.contains("declared as vhd and is something else"), "{error}");
}
