//! The provider against the real embedded control plane; a task plays the part of the controllers and agents.

mod control_plane;
mod documentation;
mod effects;
mod lifecycle;
mod mapping;
mod refusals;
mod stage;
mod terraform;
mod ways;
