//! The provider against the real embedded control plane; a task acts as the controllers and agents.

mod actions;
mod attribute;
mod bad_input;
mod connections;
mod control_plane;
mod data_sources;
mod documentation;
mod effects;
mod export;
mod inputs;
mod installation;
mod interruptions;
mod lifecycle;
mod list_resources;
mod mapping;
mod moved;
mod reads;
mod references;
mod refusals;
mod renames;
mod rules;
mod secrets;
mod stage;
mod terraform;
mod token;
mod ways;
