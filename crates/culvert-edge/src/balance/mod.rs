//! Several upstreams of one endpoint: which of them serves a request or a connection, which are ejected, and how they are
//! checked.
//!
//! A request reads one [`View`](view::View), which is made again only when an upstream is ejected or returns. So the choice
//! takes no lock, and the turns are exact: of a number of requests equal to the sum of the weights, each upstream gets
//! its weight.

pub(crate) mod attempt;
pub(crate) mod budget;
pub(crate) mod check_state;
pub(crate) mod checks;
pub(crate) mod gate;
pub(crate) mod target_set;
pub(crate) mod view;
