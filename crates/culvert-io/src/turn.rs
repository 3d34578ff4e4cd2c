//! The end of a task's turn while it still has work.

use std::pin::pin;
use std::task::{Context, Poll};

/// Lets the other tasks of the thread run, and its runtime look at sockets and timers, before the current task is polled
/// again. Always pending, so that a `poll` function can return it.
///
/// A task that wakes itself instead stays in the queue of its runtime, which looks at sockets only when that queue is empty
/// or after 61 polls: the peer of one busy task could keep the thread from all others.
pub fn yield_turn<T>(cx: &mut Context<'_>) -> Poll<T> {
    let _pending = pin!(tokio::task::yield_now()).poll(cx);
    Poll::Pending
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write as _;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_socket_is_noticed_after_a_single_turn_of_a_busy_task() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap());
        let (far, near) = tokio::join!(far, listener.accept());
        let (mut far, mut near) = (far.unwrap().into_std().unwrap(), near.unwrap().0);
        let has_read = AtomicBool::new(false);
        let reading = async {
            near.read_u8().await.unwrap();
            has_read.store(true, Ordering::Relaxed);
        };
        let mut turns = 0;
        let busy = poll_fn(|cx| {
            if has_read.load(Ordering::Relaxed) {
                return Poll::Ready(());
            }
            if turns == 0 {
                far.write_all(&[1]).unwrap();
            }
            turns += 1;
            yield_turn(cx)
        });
        tokio::join!(reading, busy);
        // The first writes, and the byte may need one more to arrive.
        assert!(turns <= 3, "{turns}");
    }
}
