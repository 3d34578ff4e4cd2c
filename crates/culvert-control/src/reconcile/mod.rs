//! Reconcilers: bring external systems in line with the documents. Each has its own file.
//!
//! A reconciler takes no input and can run at any time; it acts on the state that it finds. Commits and a
//! timer start it, so a missed notification only causes a delay. It can be stopped between any two steps.

pub(crate) mod acme;
