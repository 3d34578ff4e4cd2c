//! The OpenID provider at which people sign in to the console, and the roles of its groups.

use std::collections::BTreeMap;

use culvert_login::ConsoleProvider;
use culvert_resources::access::caller::Role;

/// How people sign in to the console at an OpenID provider.
#[derive(Debug)]
pub struct ConsoleSignIn {
    /// The provider.
    pub provider: ConsoleProvider,
    /// Name of the provider on the sign-in page.
    pub name: String,
    /// The roles of groups.
    pub roles: BTreeMap<String, Role>,
}

impl ConsoleSignIn {
    /// The highest role of these groups.
    pub fn role_of(&self, groups: &[String]) -> Option<Role> {
        groups
            .iter()
            .filter_map(|group| self.roles.get(group))
            .max()
            .copied()
    }
}
