//! Opens and closes endpoints while the agent runs.

use std::fmt;

use culvert_base::sync::lock;

use super::{Agent, Slot, Trouble};
use crate::client::endpoint::Endpoint;
use crate::client::session;
use crate::client::status::EndpointStatus;
use crate::wire::{Outcome, StreamType, UnbindRequest};

/// Maximum number of endpoints per agent.
const ENDPOINTS_MAX: usize = 100;

/// Why an endpoint was not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The agent has an endpoint with this name.
    NameInUse,
    /// The agent has reached the limit of endpoints.
    TooMany,
    /// The agent has no session, for example because it reconnects.
    Offline,
    /// The server refused: its message, and the number of its error code if there is one.
    Refused(String, Option<u16>),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameInUse => f.write_str("an endpoint with this name exists"),
            Self::TooMany => write!(f, "an agent may have at most {ENDPOINTS_MAX} endpoints"),
            Self::Offline => f.write_str("the agent is not connected to a server"),
            Self::Refused(text, Some(code)) => write!(f, "{text} (ERR_NGROK_{code})"),
            Self::Refused(text, None) => f.write_str(text),
        }
    }
}

impl std::error::Error for OpenError {}

impl Agent {
    /// Adds an endpoint, and returns its status once the server has established it.
    pub async fn open(&self, endpoint: Endpoint) -> Result<EndpointStatus, OpenError> {
        let Some(session) = lock(&self.main).clone() else {
            return Err(OpenError::Offline);
        };
        let nth = self.add(endpoint)?;
        match self.bind(&session, nth, false).await {
            Ok(()) => Ok(self.status.borrow().endpoints[nth].clone()),
            Err(trouble) => {
                // A new session binds all endpoints, and may have bound this one meanwhile.
                let slot = self.slots.borrow()[nth].clone();
                if slot.bound.is_some() {
                    return Ok(self.status.borrow().endpoints[nth].clone());
                }
                self.remove(nth);
                Err(match trouble {
                    Trouble::Refused(text, code) => OpenError::Refused(text, code),
                    Trouble::Lost(_) | Trouble::Mistaken(_) => OpenError::Offline,
                })
            }
        }
    }

    /// Removes the endpoint with this name. Its open connections continue to their end. `false` if there is none.
    pub async fn close(&self, name: &str) -> bool {
        let found = {
            let slots = self.slots.borrow();
            slots
                .iter()
                .position(|slot| !slot.is_gone && slot.endpoint.name == name)
                .map(|nth| (nth, slots[nth].bound.clone()))
        };
        let Some((nth, bound)) = found else {
            return false;
        };
        self.remove(nth);
        let session = lock(&self.main).clone();
        if let (Some(session), Some(bound)) = (session, bound) {
            let request = UnbindRequest { id: bound.id };
            // The result does not matter: if the connection is lost, the next one does not bind the endpoint again.
            let answer: std::io::Result<Outcome> =
                session::call(&session, StreamType::UNBIND, &request).await;
            if let Err(error) = answer {
                tracing::debug!(%error, name, "the server did not confirm that an endpoint is closed");
            }
        }
        true
    }

    /// Adds a slot, or reuses one whose endpoint is gone. Returns its index, which stays valid: no slot is removed.
    fn add(&self, endpoint: Endpoint) -> Result<usize, OpenError> {
        let status = EndpointStatus::of(&endpoint);
        // Replaced below, unless the limit is reached.
        let mut added = Err(OpenError::TooMany);
        self.slots.send_if_modified(|slots| {
            if slots
                .iter()
                .any(|slot| !slot.is_gone && slot.endpoint.name == endpoint.name)
            {
                added = Err(OpenError::NameInUse);
                return false;
            }
            let free = slots.iter().position(|slot| slot.is_gone);
            let nth = free.unwrap_or(slots.len());
            if nth >= ENDPOINTS_MAX {
                return false;
            }
            let slot = Slot::new(endpoint);
            if nth == slots.len() {
                slots.push(slot);
            } else {
                slots[nth] = slot;
            }
            // Under the lock of the slots, so that an index names the same endpoint in both lists.
            self.status.send_modify(|all| {
                if nth == all.endpoints.len() {
                    all.endpoints.push(status);
                } else {
                    all.endpoints[nth] = status;
                }
            });
            added = Ok(nth);
            true
        });
        added
    }

    /// Marks an endpoint as gone.
    fn remove(&self, nth: usize) {
        self.slots.send_modify(|slots| slots[nth].is_gone = true);
        self.status
            .send_modify(|status| status.endpoints[nth].is_gone = true);
    }
}
