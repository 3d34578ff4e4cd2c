//! The event fields that sign-ins fill, all of `http_request_complete`.

use culvert_events::{HTTP_REQUEST_COMPLETE as KIND, Slot, Text};

pub(crate) const OAUTH_APP_CLIENT_ID: Slot<Text> = KIND.slot("oauth.app_client_id");
pub(crate) const OAUTH_DECISION: Slot<Text> = KIND.slot("oauth.decision");
pub(crate) const OAUTH_USER_ID: Slot<Text> = KIND.slot("oauth.user.id");
pub(crate) const OAUTH_USER_NAME: Slot<Text> = KIND.slot("oauth.user.name");
