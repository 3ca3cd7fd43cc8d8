//! Paths in file systems whose folders name their entries' nodes by numbers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::error::{FsError, Result};
use crate::volume::{MOST_NAMES, shown};

/// A file system whose nodes have numbers.
pub(crate) trait Numbered {
    /// Returns the number of the root.
    fn root(&self) -> u64;

    /// Calls `visit` with the name and the number of each entry of a folder, as it is stored. The path is for people.
    fn entries(
        &self,
        folder: u64,
        path: &[u8],
        visit: &mut dyn FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<()>;

    /// Something was found.
    fn found(&self);

    /// Returns a name in the form that equal names share.
    fn folded(&self, name: &[u8]) -> Vec<u8> {
        name.to_vec()
    }
}

/// The folder that was read last, whose entries are usually looked up one after the other.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    last: RefCell<Option<Listing>>,
}

/// The numbers of the entries of a folder, by their folded names.
#[derive(Debug)]
struct Listing {
    path: Vec<u8>,
    numbers: Rc<BTreeMap<Vec<u8>, u64>>,
}

impl Lookup {
    /// Returns the number of the node at a path.
    pub(crate) fn number(&self, files: &impl Numbered, path: &[u8]) -> Result<u64> {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let (folder, name) = match slash {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&path[..0], path),
        };
        if name.is_empty() {
            return Ok(files.root());
        }
        let found = self.numbers_in(files, folder)?.get(&files.folded(name)).copied();
        found.ok_or_else(|| FsError::NotFound { path: shown(path) })
    }

    /// Returns the numbers of the entries of a folder. The path has no slash at its end.
    fn numbers_in(&self, files: &impl Numbered, path: &[u8]) -> Result<Rc<BTreeMap<Vec<u8>, u64>>> {
        if let Some(last) = self.last.borrow().as_ref()
            && last.path == path
        {
            return Ok(last.numbers.clone());
        }
        let mut at = files.root();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let (wanted, mut found) = (files.folded(name), None);
            entries(files, at, path, &mut |entry: &[u8], number| {
                if files.folded(entry) == wanted {
                    found = Some(number);
                }
                Ok(())
            })?;
            at = found.ok_or_else(|| FsError::NotFound { path: shown(path) })?;
        }
        let mut numbers = BTreeMap::new();
        entries(files, at, path, &mut |entry: &[u8], number| {
            numbers.insert(files.folded(entry), number);
            Ok(())
        })?;
        let numbers = Rc::new(numbers);
        *self.last.borrow_mut() = Some(Listing { path: path.to_vec(), numbers: numbers.clone() });
        Ok(numbers)
    }
}

/// Calls `visit` with the name and the number of each entry of a folder. There is a limit of entries, and each is progress.
pub(crate) fn entries(
    files: &impl Numbered,
    folder: u64,
    path: &[u8],
    visit: &mut dyn FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let mut count = 0;
    files.entries(folder, path, &mut |name: &[u8], number| {
        count += 1;
        if count > MOST_NAMES {
            let detail = format!("{} has more than {MOST_NAMES} entries", shown(path));
            return Err(FsError::Damaged { what: "folder", detail });
        }
        files.found();
        visit(name, number)
    })
}
