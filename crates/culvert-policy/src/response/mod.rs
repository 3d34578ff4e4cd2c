//! The responses that the edge makes itself: the table of problems, their forms, and pages for browsers.

pub(crate) mod error_page;
pub mod problem;
pub mod reply;
