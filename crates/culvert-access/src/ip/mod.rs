//! IP policies, and the restrictions that use them.

mod lockout;
pub mod policy;
pub mod policy_model;
pub mod policy_rule;
pub mod policy_rule_model;
pub mod restriction;
pub mod restriction_model;
pub mod restrictions;
pub mod rules;
