//! What makes the world outside match the documents, one file for each part of it.
//!
//! A reconciler takes no input and may run at any time: what it finds decides what it does. It is
//! woken by commits and by a timer, so a missed wake costs time and not truth, and it can be stopped
//! between any two steps.

pub(crate) mod acme;
