//! Who may do what: keys and credentials, users, bots, addresses, sign-in to the console, and sign-ins of visitors.
//!
//! [`Identity`] finds out who a caller is ([`authentication`]) and whether calls from its address are accepted
//! (`crates/culvert-access/src/ip`). [`lockout`] refuses changes that would leave an account without an admin who gets
//! in. The role that an operation requires is in the row of its resource, in `crates/culvert-resources`.

mod admission;
pub mod api_key;
pub mod application;
pub mod authentication;
pub mod bot_user;
pub mod console;
pub mod credential;
pub mod leak;
pub mod lockout;
pub mod standing;
mod subject;
pub mod user;

pub use crate::subject::Identity;

use culvert_access::ip;
use culvert_resources::operation::Operation;
use culvert_resources::resource::operations::of_resource;

/// The operations of the subject.
pub fn operations() -> Vec<Operation<Identity>> {
    let of_resources = [
        of_resource(&api_key::TYPE, &api_key::operations::OPERATIONS),
        of_resource(&application::session::TYPE, &[]),
        of_resource(&application::user::TYPE, &[]),
        of_resource(&bot_user::TYPE, &[]),
        of_resource(&bot_user::service_user::TYPE, &[]),
        of_resource(&credential::TYPE, &[]),
        of_resource(&ip::policy::TYPE, &[]),
        of_resource(&ip::policy_rule::TYPE, &[]),
        of_resource(&ip::restriction::TYPE, &[]),
        of_resource(&user::TYPE, user::OPERATIONS),
    ];
    let of_resources = of_resources.into_iter().flatten();
    of_resources
        .chain(leak::operations())
        .chain(api_key::rules::operations())
        .collect()
}
