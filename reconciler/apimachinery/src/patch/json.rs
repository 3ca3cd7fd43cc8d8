//! JSON patches (RFC 6902), with limits on what one patch may do.

use json_patch::{PatchOperation, patch_unsafe};
use serde_json::Value;

use crate::schema::{MAX_DEPTH, too_deep};

/// The maximum number of operations of one patch, as in Kubernetes.
const MAX_OPERATIONS: usize = 10_000;
/// The maximum number of bytes that all `copy` operations of one patch may copy, as in Kubernetes.
const MAX_COPIED: usize = 3 << 20;
/// The maximum number of list items that all operations of one patch may shift. An insertion or a removal shifts those behind it: ten
/// thousand in a list of a quarter of a million took ten seconds.
const MAX_SHIFTED: usize = 20_000_000;
/// The maximum number of times that the depth of a document is measured for one patch. Patches that nest nothing need none.
const MAX_MEASURED: usize = 100;

/// Why a patch cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    #[error("{0}")]
    Malformed(#[source] serde_json::Error),
    #[error("the patch has {0} operations, {MAX_OPERATIONS} are allowed")]
    TooLong(usize),
    #[error("the patch copies more than {MAX_COPIED} bytes")]
    CopiesTooMuch,
    #[error("the patch shifts more than {MAX_SHIFTED} items of lists")]
    ShiftsTooMuch,
    #[error("the patch nests values deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error(transparent)]
    Unfit(json_patch::PatchError),
}

/// A well-formed patch.
#[derive(Debug, Default)]
pub struct Patch(Vec<PatchOperation>);

impl Patch {
    pub fn parse(patch: &Value) -> Result<Self, PatchError> {
        match patch.as_array().map(Vec::len) {
            Some(length) if length > MAX_OPERATIONS => Err(PatchError::TooLong(length)),
            _ => serde_json::from_value(patch.clone()).map(Self).map_err(PatchError::Malformed),
        }
    }

    /// Assumptions: neither the document nor the patch nests deeper than [`MAX_DEPTH`].
    ///
    /// # Errors
    /// The first operation that fails; the operations before it have been applied.
    pub fn apply(&self, document: &mut Value) -> Result<(), PatchError> {
        let (mut copied, mut shifted, mut depth) = (0, 0, Depth { most: MAX_DEPTH, measured: 0 });
        for operation in &self.0 {
            // As in Kubernetes, an absent value equals null: clients add the first finalizer under this test.
            if let PatchOperation::Test(test) = operation
                && test.value.is_null()
                && document.pointer(test.path.as_str()).is_none()
            {
                continue;
            }
            // Each copy can double the document, even if the final document is small.
            if let PatchOperation::Copy(copy) = operation
                && let Some(value) = document.pointer(copy.from.as_str())
            {
                copied += serde_json::to_vec(value).map_or(0, |text| text.len());
                if copied > MAX_COPIED {
                    return Err(PatchError::CopiesTooMuch);
                }
            }
            shifted += shifts(operation, document);
            if shifted > MAX_SHIFTED {
                return Err(PatchError::ShiftsTooMuch);
            }
            patch_unsafe(document, std::slice::from_ref(operation)).map_err(PatchError::Unfit)?;
            depth.follow(operation, document)?;
        }
        Ok(())
    }
}

/// Returns the number of items of the lists into which an operation inserts or from which it removes.
fn shifts(operation: &PatchOperation, document: &Value) -> usize {
    let items = |path: &str| {
        // Behind the end there is nothing to shift.
        let place = path.rsplit_once('/').filter(|(_, at)| *at != "-");
        place.and_then(|(list, _)| document.pointer(list)?.as_array()).map_or(0, Vec::len)
    };
    match operation {
        PatchOperation::Add(add) => items(add.path.as_str()),
        PatchOperation::Remove(remove) => items(remove.path.as_str()),
        PatchOperation::Copy(to) => items(to.path.as_str()),
        PatchOperation::Move(to) => items(to.from.as_str()) + items(to.path.as_str()),
        PatchOperation::Replace(_) | PatchOperation::Test(_) => 0,
    }
}

/// An upper bound of a document's depth. Each `move` can nest the document into itself: after thousands of them, whatever reads the
/// document or drops it would overflow its stack.
struct Depth {
    most: usize,
    measured: usize,
}

impl Depth {
    /// Raises the bound by what an operation did. The document is measured only if the bound has become large.
    fn follow(&mut self, operation: &PatchOperation, document: &Value) -> Result<(), PatchError> {
        let levels = |path: &str| path.bytes().filter(|byte| *byte == b'/').count();
        let moved = |from: &str| self.most.saturating_sub(levels(from));
        let (path, of_value) = match operation {
            PatchOperation::Add(add) => (add.path.as_str(), MAX_DEPTH),
            PatchOperation::Replace(replace) => (replace.path.as_str(), MAX_DEPTH),
            PatchOperation::Move(to) => (to.path.as_str(), moved(to.from.as_str())),
            PatchOperation::Copy(to) => (to.path.as_str(), moved(to.from.as_str())),
            PatchOperation::Remove(_) | PatchOperation::Test(_) => return Ok(()),
        };
        self.most = self.most.max(levels(path) + of_value);
        if self.most <= 2 * MAX_DEPTH {
            return Ok(());
        }
        self.measured += 1;
        if self.measured > MAX_MEASURED || too_deep(document) {
            return Err(PatchError::TooDeep);
        }
        self.most = MAX_DEPTH;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
