//! A file system as the tools of the system make it.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{PermissionsExt, symlink},
    process::Command,
    rc::Rc,
    time::{Duration, SystemTime},
};

use berth_filesystems::{Choice, Disk, Tree};
use tempfile::TempDir;

struct Memory(Vec<u8>);

impl Disk for Memory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).expect("64 bits");
        into.copy_from_slice(&self.0[start..start + into.len()]);
        Ok(())
    }
}

/// A file system with files, links and a pipe; `None`, with the reason, without the program that makes it.
pub(super) fn tree(folder: &TempDir) -> Option<Tree> {
    let (root, image) = (folder.path().join("root"), folder.path().join("image"));
    fs::create_dir_all(root.join("etc/deep")).expect("made");
    fs::write(root.join("etc/motd"), "hello").expect("written");
    let mut sparse = vec![0; 300_000];
    sparse.extend_from_slice(b"end");
    fs::write(root.join("etc/deep/sparse"), sparse).expect("written");
    fs::set_permissions(root.join("etc/motd"), Permissions::from_mode(0o4751)).expect("set");
    fs::set_permissions(root.join("etc/deep"), Permissions::from_mode(0o500)).expect("set");
    let motd = File::options().write(true).open(root.join("etc/motd")).expect("opened");
    motd.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).expect("set");
    symlink("/etc/passwd", root.join("etc/outwards")).expect("linked");
    symlink("motd", root.join("etc/link")).expect("linked");
    nix::unistd::mkfifo(&root.join("etc/pipe"), nix::sys::stat::Mode::S_IRWXU).expect("made");
    for program in ["mkfs.ext4", "/usr/sbin/mkfs.ext4"] {
        let made = Command::new(program).args(["-q", "-F", "-d"]).arg(&root).arg(&image).arg("4M").output();
        let Ok(made) = made else { continue };
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        // So that the folder can be removed.
        fs::set_permissions(root.join("etc/deep"), Permissions::from_mode(0o700)).expect("set");
        let disk: Rc<dyn Disk> = Rc::new(Memory(fs::read(&image).expect("an image")));
        return Some(berth_filesystems::open(&disk, &Choice::Largest).expect("opened"));
    }
    eprintln!("skipped: there is no mkfs.ext4 (Debian, Ubuntu: apt install e2fsprogs)");
    None
}
