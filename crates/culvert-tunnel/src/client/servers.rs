//! The addresses of an installation's servers, and which one each session of an agent uses.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::connect::Dialing;

/// Maximum number of sessions of one agent, each with another server.
const SESSIONS_MAX: usize = 2;

/// The servers that a session may use. Sessions of one agent share the list and use different addresses.
#[derive(Clone, Debug)]
pub struct Servers {
    all: Arc<Vec<Dialing>>,
    /// The index of each session's address.
    used: Arc<Mutex<Vec<usize>>>,
    session: usize,
}

impl From<Dialing> for Servers {
    fn from(only: Dialing) -> Self {
        Self {
            all: Arc::new(vec![only]),
            used: Arc::new(Mutex::new(vec![0])),
            session: 0,
        }
    }
}

impl Servers {
    /// The servers for each session of an agent: one session per address, at most two. The first session
    /// begins with the first address.
    pub fn of_sessions(all: Vec<Dialing>) -> Vec<Self> {
        let sessions = all.len().min(SESSIONS_MAX);
        let all = Arc::new(all);
        let used = Arc::new(Mutex::new((0..sessions).collect()));
        (0..sessions)
            .map(|session| Self {
                all: Arc::clone(&all),
                used: Arc::clone(&used),
                session,
            })
            .collect()
    }

    /// The address that the session uses.
    pub(crate) fn current(&self) -> Dialing {
        self.all[self.used()[self.session]].clone()
    }

    /// Moves the session to the next address that no other session uses, if there is one.
    pub(crate) fn move_on(&self) {
        let mut used = self.used();
        let (now, count) = (used[self.session], self.all.len());
        let mut others = (1..count).map(|step| (now + step) % count);
        if let Some(next) = others.find(|it| !used.contains(it)) {
            used[self.session] = next;
        }
    }

    fn used(&self) -> MutexGuard<'_, Vec<usize>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(count: usize) -> Vec<Servers> {
        let address = |nth| Dialing::new(&format!("localhost:{nth}"), None).unwrap();
        Servers::of_sessions((0..count).map(address).collect())
    }

    fn ports(sessions: &[Servers]) -> Vec<String> {
        let port = |it: &Servers| {
            it.current()
                .address()
                .rsplit(':')
                .next()
                .unwrap()
                .to_owned()
        };
        sessions.iter().map(port).collect()
    }

    #[test]
    fn sessions_use_different_addresses_and_pass_over_those_that_fail() {
        let three = servers(3);
        assert_eq!(ports(&three), ["0", "1"]);
        three[0].move_on();
        assert_eq!(ports(&three), ["2", "1"]);
        three[0].move_on();
        assert_eq!(ports(&three), ["0", "1"], "not where the other session is");
        three[1].move_on();
        assert_eq!(ports(&three), ["0", "2"]);
        let two = servers(2);
        two[0].move_on();
        assert_eq!(ports(&two), ["0", "1"], "there is no other");
        let one = servers(1);
        one[0].move_on();
        assert_eq!(ports(&one), ["0"]);
    }
}
