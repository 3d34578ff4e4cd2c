//! The addresses of an installation's servers, and which one each session of an agent uses.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::connect::Dialing;

/// Maximum number of sessions of one agent, each with another server.
const SESSIONS_MAX: usize = 2;

/// The servers that a session may use. Sessions of one agent share the list and use different addresses.
#[derive(Clone, Debug)]
pub struct Servers {
    all: Arc<Vec<Dialing>>,
    /// The index of each session's address; `None` before the session begins.
    used: Arc<Mutex<Vec<Option<usize>>>>,
    session: usize,
}

impl From<Dialing> for Servers {
    fn from(only: Dialing) -> Self {
        Self {
            all: Arc::new(vec![only]),
            used: Arc::new(Mutex::new(vec![None])),
            session: 0,
        }
    }
}

impl Servers {
    /// The servers for each session of an agent: one session per address, at most two. A session begins with the first
    /// address that no other session uses then. Until it begins, all addresses are for the others.
    pub fn of_sessions(all: Vec<Dialing>) -> Vec<Self> {
        let sessions = all.len().min(SESSIONS_MAX);
        let all = Arc::new(all);
        let used = Arc::new(Mutex::new(vec![None; sessions]));
        (0..sessions)
            .map(|session| Self {
                all: Arc::clone(&all),
                used: Arc::clone(&used),
                session,
            })
            .collect()
    }

    /// The address that the session uses. It begins to use one with the first call.
    pub(crate) fn current(&self) -> Dialing {
        self.all[self.index(&mut self.used())].clone()
    }

    /// Moves the session to the next address that no other session uses, if there is one.
    pub(crate) fn move_on(&self) {
        let mut used = self.used();
        let (now, count) = (self.index(&mut used), self.all.len());
        let mut others = (1..count).map(|step| (now + step) % count);
        if let Some(next) = others.find(|it| !used.contains(&Some(*it))) {
            used[self.session] = Some(next);
        }
    }

    /// The index of the session's address.
    fn index(&self, used: &mut [Option<usize>]) -> usize {
        if let Some(index) = used[self.session] {
            return index;
        }
        // There are no more sessions than addresses.
        let free = (0..self.all.len()).find(|it| !used.contains(&Some(*it)));
        *used[self.session].insert(free.unwrap_or(0))
    }

    fn used(&self) -> MutexGuard<'_, Vec<Option<usize>>> {
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
        assert_eq!(ports(&two), ["0", "1"]);
        two[0].move_on();
        assert_eq!(ports(&two), ["0", "1"], "there is no other");
        let one = servers(1);
        one[0].move_on();
        assert_eq!(ports(&one), ["0"]);
    }

    #[test]
    fn a_session_that_has_not_begun_takes_no_address_from_another() {
        for count in 2..=4 {
            let sessions = servers(count);
            for failures in 1..=2 * count {
                sessions[0].move_on();
                let expected = (failures % count).to_string();
                assert_eq!(ports(&sessions[..1]), [expected], "of {count}");
            }
            sessions[0].move_on();
            assert_eq!(ports(&sessions), ["1", "0"], "of {count}");
        }
    }
}
