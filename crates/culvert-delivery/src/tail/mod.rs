//! Live tails: the reading end of one. The other end, to which events are written, is in [`followers`].

pub(crate) mod followers;

use std::sync::Arc;

use culvert_base::{Ksuid, Refusal};

use crate::plane::Plane;
use crate::tail::followers::{Follower, TailSpec, Tailed, compile};

/// The reading end. Dropping it closes the tail.
#[derive(Debug)]
pub struct Tail {
    follower: Arc<Follower>,
    plane: Arc<Plane>,
}

impl Tail {
    /// The next event or loss. Waits until there is one.
    pub async fn next(&mut self) -> Tailed {
        loop {
            let notified = self.follower.arrived.notified();
            if let Some(next) = self.follower.take() {
                return next;
            }
            notified.await;
        }
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.plane.tails.close(&self.follower);
        self.plane.recapture();
    }
}

/// Opens a tail, unless too many are open.
pub(crate) fn open(plane: &Arc<Plane>, spec: TailSpec) -> Result<Tail, Refusal> {
    let text = serde_json::to_string(&spec);
    let mut follower = compile(spec)?;
    if let (true, false, Ok(text)) = (plane.settings.is_shared, follower.traffic.is_empty(), text) {
        let id = Ksuid::new(plane.clock.now(), plane.entropy.bytes());
        follower.shared = Some((format!("tail_{id}"), text));
    }
    let follower = Arc::new(follower);
    plane.tails.open(&follower, plane.settings.tails_max)?;
    plane.recapture();
    Ok(Tail {
        follower,
        plane: plane.clone(),
    })
}
