//! JSON patches (RFC 6902), with limits on what one patch may do.

use json_patch::{PatchOperation, patch_unsafe};
use serde_json::Value;

/// The maximum number of operations of one patch, as in Kubernetes.
const MAX_OPERATIONS: usize = 10_000;
/// The maximum number of bytes that all `copy` operations of one patch may copy, as in Kubernetes.
const MAX_COPIED: usize = 3 << 20;

/// Why a patch cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    #[error("{0}")]
    Malformed(#[source] serde_json::Error),
    #[error("the patch has {0} operations, {MAX_OPERATIONS} are allowed")]
    TooLong(usize),
    #[error("the patch copies more than {MAX_COPIED} bytes")]
    CopiesTooMuch,
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

    /// # Errors
    /// The first operation that fails; the operations before it have been applied.
    pub fn apply(&self, document: &mut Value) -> Result<(), PatchError> {
        let mut copied = 0;
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
            patch_unsafe(document, std::slice::from_ref(operation)).map_err(PatchError::Unfit)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
