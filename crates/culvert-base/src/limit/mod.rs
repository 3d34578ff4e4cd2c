//! Limits with bounded memory: permits that owners share, and states by key.

pub mod fair_permits;
pub mod limit_table;
