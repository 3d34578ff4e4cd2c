//! The names of the kinds of events of the server.

pub(crate) const SERVER_STARTED: &str = "server_started.v0";
pub(crate) const SERVER_STOPPED: &str = "server_stopped.v0";
pub(crate) const SETTINGS_RELOADED: &str = "settings_reloaded.v0";
pub(crate) const NODE_JOINED: &str = "node_joined.v0";
pub(crate) const NODE_LEFT: &str = "node_left.v0";
pub(crate) const MASTER_KEY_ROTATED: &str = "master_key_rotated.v0";
pub(crate) const AUDIT_TREE_DAMAGED: &str = "audit_tree_damaged.v0";
pub(crate) const BACKUP_MADE: &str = "backup_made.v0";
pub(crate) const RESTORED: &str = "restored.v0";
pub(crate) const ADMIN_COMMAND: &str = "admin_command.v0";
pub(crate) const EVENT_LOG_PRUNED: &str = "event_log_pruned.v0";
pub(crate) const TRAFFIC_LOG_HASHED: &str = "traffic_log_hashed.v0";
pub(crate) const DESTINATION_FAILING: &str = "destination_failing.v0";
pub(crate) const DESTINATION_RECOVERED: &str = "destination_recovered.v0";
pub(crate) const DESTINATION_DISABLED: &str = "destination_disabled.v0";
pub(crate) const CERTIFICATE_EXPIRING: &str = "certificate_expiring.v0";
pub(crate) const API_KEY_EXPIRING: &str = "api_key_expiring.v0";
pub(crate) const API_KEY_UNUSED: &str = "api_key_unused.v0";
