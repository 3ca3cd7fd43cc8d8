//! Connections to the sockets of programs that a guest may have taken over.
//!
//! Such a program owns the folder of its sockets, and may have put a link in the place of one. The agent runs as root: a link that it
//! follows leads to a service of the host.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use tokio::net::UnixStream;

/// Connects to a socket. Symbolic links at its path and at that of its folder are not followed.
///
/// *Errors*: [`io::ErrorKind::InvalidInput`] if the path leads to something else than a socket in a folder of the same user.
pub(crate) async fn connect(path: &Path) -> io::Result<UnixStream> {
    // The descriptor names the socket that was looked at, whatever takes its place.
    let found = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path)?;
    let metadata = found.metadata()?;
    if !metadata.file_type().is_socket() {
        return Err(refused("not a socket"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let of_folder = std::fs::symlink_metadata(folder)?;
    if !of_folder.is_dir() || of_folder.uid() != metadata.uid() {
        return Err(refused("not a socket of the user that owns its folder"));
    }
    UnixStream::connect(format!("/proc/self/fd/{}", found.as_raw_fd())).await
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_socket_is_reached_and_one_without_a_server_refuses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        assert_eq!(connect(&path).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        let listener = UnixListener::bind(&path).unwrap();
        let mut near = connect(&path).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        near.write_all(b"hello").await.unwrap();
        let mut said = [0; 5];
        far.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"hello");
        drop(listener);
        assert_eq!(connect(&path).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_link_a_plain_file_and_a_folder_that_is_a_link_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| folder.path().join(name);
        let _service = UnixListener::bind(of("service.sock")).unwrap();
        symlink(of("service.sock"), of("link.sock")).unwrap();
        std::fs::write(of("file.sock"), "").unwrap();
        symlink(folder.path(), of("folder")).unwrap();
        for path in [of("link.sock"), of("file.sock"), of("folder/service.sock")] {
            assert_eq!(connect(&path).await.unwrap_err().kind(), io::ErrorKind::InvalidInput, "{path:?}");
        }
    }

    #[tokio::test]
    async fn a_socket_of_another_user_than_its_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        if chown(&path, Some(60_001), None).is_err() {
            println!("skipped: this user changes no owners");
            return;
        }
        assert_eq!(connect(&path).await.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
