//! cty's MessagePack: the content of `DynamicValue.msgpack`.

mod decode;
mod encode;

pub(crate) use decode::decode;
pub(crate) use encode::{encode, kind};

/// Extension type of an unknown value without constraints.
const EXT_UNKNOWN: i8 = 0;
/// Extension type of a refined unknown value: its payload is a map of the keys below.
const EXT_REFINED: i8 = 12;
/// Terraform refuses longer refinements.
const MAX_REFINEMENT: usize = 1024;

/// Keys of a refinement.
mod refinement {
    pub(super) const NULLNESS: u64 = 1;
    pub(super) const PREFIX: u64 = 2;
    pub(super) const NUMBER_MIN: u64 = 3;
    pub(super) const NUMBER_MAX: u64 = 4;
    pub(super) const LENGTH_MIN: u64 = 5;
    pub(super) const LENGTH_MAX: u64 = 6;
}
