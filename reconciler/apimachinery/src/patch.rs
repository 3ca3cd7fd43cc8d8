//! The patch types that need no schema: JSON patch, merge patch and strategic merge. Apply is in [`crate::fields`].

pub mod json;
pub mod merge;
pub mod strategic;
