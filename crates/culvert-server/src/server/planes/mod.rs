//! The planes of a process, with one file for each: how it is made of the settings.

pub(super) mod control;
pub(super) mod delivery;
pub(super) mod edge;
pub(super) mod nodes;
