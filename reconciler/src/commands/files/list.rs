//! The list of a folder, as `ls -l` has it.

use std::time::SystemTime;

use anyhow::ensure;
use berth_filesystems::{FsError, Node, NodeKind, Tree, shown};
use k8s_openapi::jiff::Timestamp;

use super::remote_disk::Alive;

/// The limit of entries of a list.
const MOST_LINES: usize = 100_000;
/// Without permissions in the file system.
const NO_MODE: &str = "?????????";

/// The list of a folder.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) lines: Vec<String>,
    /// The number of entries that are damaged. Each has a line with the reason.
    pub(super) damaged: usize,
}

/// Returns a line for each entry of a folder, or one for a file.
///
/// *Errors:* there is no such path; the disk cannot be read, or reading it does not end.
pub(super) fn lines(tree: &Tree, path: &[u8], alive: &Alive) -> anyhow::Result<Listed> {
    let path = tree.resolve(path, true)?;
    let node = tree.node(&path)?;
    if node.kind != NodeKind::Folder {
        return Ok(Listed { lines: vec![line(&node, &path, None)], damaged: 0 });
    }
    let names = tree.names(&path)?;
    ensure!(names.len() <= MOST_LINES, "{} has more than {MOST_LINES} entries", shown(&path));
    let mut listed = Listed::default();
    for name in names {
        alive.progress();
        let path = below(&path, &name);
        listed.lines.push(match entry(tree, &path, &name) {
            Ok(line) => line,
            Err(error @ (FsError::Read { .. } | FsError::Endless)) => return Err(error.into()),
            Err(error) => {
                listed.damaged += 1;
                format!("?{NO_MODE} {:>12} {:16} {}: {error}", "?", "?", shown(&name))
            }
        });
    }
    Ok(listed)
}

fn entry(tree: &Tree, path: &[u8], name: &[u8]) -> Result<String, FsError> {
    let node = tree.node(path)?;
    let target = if node.kind == NodeKind::Link { Some(tree.link(path)?) } else { None };
    Ok(line(&node, name, target.as_deref()))
}

/// Returns the path of an entry of a folder.
pub(super) fn below(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = folder.to_vec();
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

fn line(node: &Node, name: &[u8], target: Option<&[u8]>) -> String {
    let kind = match node.kind {
        NodeKind::File => '-',
        NodeKind::Folder => 'd',
        NodeKind::Link => 'l',
        NodeKind::Special => 's',
    };
    let mode = node.mode.map_or_else(|| NO_MODE.to_owned(), permissions);
    let target = target.map(|target| format!(" -> {}", shown(target))).unwrap_or_default();
    format!("{kind}{mode} {:>12} {:16} {}{target}", node.size, modified(node.modified), shown(name))
}

fn permissions(mode: u32) -> String {
    let letter = |(place, letter): (u32, char)| if mode & (0o400 >> place) == 0 { '-' } else { letter };
    (0..).zip("rwxrwxrwx".chars()).map(letter).collect()
}

/// In UTC.
fn modified(time: Option<SystemTime>) -> String {
    let time = time.and_then(|time| Timestamp::try_from(time).ok());
    time.map_or_else(|| "?".to_owned(), |time| time.strftime("%Y-%m-%d %H:%M").to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_has_kind_permissions_size_time_and_a_name_without_control_characters() {
        let mut node = Node {
            kind: NodeKind::File,
            size: 5,
            mode: Some(0o4640),
            owner: Some((0, 0)),
            modified: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)),
        };
        assert_eq!(line(&node, b"motd", None), "-rw-r-----            5 2001-09-09 01:46 motd");
        (node.kind, node.mode, node.modified) = (NodeKind::Link, None, None);
        let link = line(&node, b"a\x1b[2Jb", Some(b"/etc\n"));
        assert_eq!(link, "l?????????            5 ?                a\\u{1b}[2Jb -> /etc\\n");
    }

    #[test]
    fn a_path_below_the_root_has_one_slash() {
        assert_eq!(below(b"/", b"etc"), b"/etc");
        assert_eq!(below(b"/etc", b"motd"), b"/etc/motd");
    }
}
