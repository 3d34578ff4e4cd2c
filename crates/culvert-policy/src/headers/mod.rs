//! Header fields that the edge owns: its cookies.

pub mod own_cookies;
