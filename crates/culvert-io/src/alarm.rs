//! A timer for deadlines that move with every message.
//!
//! A deadline that moves later costs nothing: the timer stays armed for the old moment, and looks at
//! the deadline again when it fires. Only one that moves earlier touches the runtime's timer wheel.

use std::pin::Pin;
use std::task::Context;

use tokio::time::{Instant, Sleep};

/// A lazily armed timer. Armed for no moment until first polled.
#[derive(Debug, Default)]
pub struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Whether `deadline` has passed; if not, the task is woken when it has.
    #[inline]
    pub fn is_due(&mut self, cx: &mut Context<'_>, deadline: Instant) -> bool {
        let sleep = match &mut self.sleep {
            Some(sleep) => {
                if deadline < sleep.deadline() {
                    sleep.as_mut().reset(deadline);
                }
                sleep
            }
            None => self
                .sleep
                .insert(Box::pin(tokio::time::sleep_until(deadline))),
        };
        while sleep.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                return true;
            }
            sleep.as_mut().reset(deadline);
        }
        false
    }
}
