//! The crate against published values, a second way of computing trees, and changed bits.

mod texts;
mod trees;
