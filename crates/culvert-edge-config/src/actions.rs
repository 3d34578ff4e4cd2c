//! The actions that the edge runs. Control compiles policies with the same table.

use culvert_policy::action_type::Actions;

/// The actions of traffic policies: those of `culvert-actions`, and the sign-in actions.
pub static ACTIONS: Actions = Actions(&[culvert_actions::ALL, culvert_login::ALL]);
