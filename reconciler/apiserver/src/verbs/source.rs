//! The source of a new state of an object.

/// The kind of request that produced a new state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A whole object: the request's manager becomes the owner of the changed fields.
    Update,
    /// A patch of the live object: ownership as for an update, but the result cannot be meant for another
    /// object.
    Patch,
    /// Server-side apply: the state already contains the ownership.
    Apply,
}
