//! The actions of policies: one file per action, each exporting one `static TYPE`.
//!
//! An action is compiled once for each place in a policy, and runs for every exchange that its rule applies to. It sets
//! its own fields of the event ([`Exchange::set_field`]), stores its results for later expressions
//! ([`Exchange::result`]), and decides how the exchange continues ([`Flow`]).
//!
//! [`Exchange::set_field`]: culvert_policy::policy::exchange::Exchange::set_field
//! [`Exchange::result`]: culvert_policy::policy::exchange::Exchange::result
//! [`Flow`]: culvert_policy::policy::run::Flow

mod add_headers;
mod basic_auth;
mod capture;
mod circuit_breaker;
mod close_connection;
mod compress_response;
mod custom_response;
mod deny;
mod forward_internal;
mod http_request;
mod jwt_validation;
mod log;
mod rate_limit;
mod redirect;
mod remove_headers;
mod request_body_find_replace;
mod response_body_find_replace;
mod restrict_ips;
mod set_headers;
mod set_vars;
mod terminate_tls;
mod url_rewrite;
mod verify_webhook;

use culvert_policy::action_type::ActionType;

/// The actions of this crate, sorted by name.
pub static ALL: &[&ActionType] = &[
    &add_headers::TYPE,
    &basic_auth::TYPE,
    &capture::TYPE,
    &circuit_breaker::TYPE,
    &close_connection::TYPE,
    &compress_response::TYPE,
    &custom_response::TYPE,
    &deny::TYPE,
    &forward_internal::TYPE,
    &http_request::TYPE,
    &jwt_validation::TYPE,
    &log::TYPE,
    &rate_limit::TYPE,
    &redirect::TYPE,
    &remove_headers::TYPE,
    &request_body_find_replace::TYPE,
    &response_body_find_replace::TYPE,
    &restrict_ips::TYPE,
    &set_headers::TYPE,
    &set_vars::TYPE,
    &terminate_tls::TYPE,
    &url_rewrite::TYPE,
    &verify_webhook::TYPE,
];

#[cfg(test)]
mod tests {
    use super::*;
    use culvert_policy::action_type::NOT_BUILT;

    #[test]
    fn each_action_is_complete_and_listed_once() {
        for ty in ALL {
            assert!(!ty.name.is_empty() && ty.doc.ends_with('.'), "{}", ty.name);
            assert!(
                !ty.phases.is_empty() && !ty.schemes.is_empty(),
                "{}",
                ty.name
            );
            assert!(
                !NOT_BUILT.iter().any(|row| row.name == ty.name),
                "{}",
                ty.name
            );
        }
        assert!(ALL.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(NOT_BUILT.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}
