//! Of which objects the condition of a rule is true, by the known facts. Nothing here reads the store.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::Timestamp;
use culvert_certificates::expiry::Expiry;
use culvert_delivery::DestinationState;
use culvert_event_config::alert::condition::{Condition, Quantile};
use culvert_event_config::alert::model::{Alert, Subject};
use culvert_event_config::alert::rule_model::AlertRule;
use culvert_resources::access::tenant::Account;
use culvert_resources::input::period::Period;
use culvert_statistics::{Field, Point};

use super::facts::{Detail, Fact, Facts};
use super::{Known, subjects};

/// How long after its end a certificate or key is still reported.
const OVER: Duration = Duration::from_secs(7 * 24 * 3_600);

/// An object of which a condition is true.
#[derive(Clone, Debug)]
pub(super) struct Truth {
    pub(super) subject: Subject,
    /// ID of the owner of the object; empty if it belongs to the admins.
    pub(super) owner_id: String,
    pub(super) value: f64,
    pub(super) threshold: f64,
    /// One sentence.
    pub(super) summary: String,
    /// ID of the event that made it true, if an event did.
    pub(super) cause: Option<String>,
}

/// The objects of which the condition of a rule is true, in the order of their IDs.
#[derive(Debug, Default)]
pub(super) struct Truths {
    pub(super) found: Vec<Truth>,
    /// IDs of objects of which nothing is known: their alerts stay as they are.
    pub(super) unknown: HashSet<String>,
}

/// What the condition of a rule is true of; `Err` says why it is not known.
pub(super) fn of(
    rule: &Known<AlertRule>,
    facts: &Facts,
    open: &[&Arc<Known<Alert>>],
    now: Timestamp,
) -> Result<Truths, String> {
    let asked = Asked {
        account: &rule.document.head.account,
        ids: &rule.form.object_ids,
        facts,
        open: subjects(open),
        now,
    };
    match &rule.form.condition {
        Condition::AgentOffline { lasting } => Ok(asked.offline(*lasting)),
        Condition::CertificateExpiring { within } => Ok(asked.certificates(*within)),
        Condition::DestinationFailing { lasting } => asked.destinations(*lasting),
        Condition::EndpointWithoutUpstream { over, min_requests } => {
            asked.without_upstream(*over, *min_requests)
        }
        Condition::ErrorRate {
            above,
            over,
            min_requests,
        } => asked.errors(*above, *over, *min_requests),
        Condition::Latency {
            quantile,
            above_ms,
            over,
            min_requests,
        } => asked.slow((*quantile, *above_ms), *over, *min_requests),
        Condition::KeyExpiring { within } => asked.keys_expiring(*within),
        Condition::KeyUnused { lasting } => asked.keys_unused(*lasting),
        Condition::SignInsFailed { count, over } => asked.sign_ins(*count, *over),
    }
}

/// The objects that a rule asks about.
struct Asked<'a> {
    account: &'a str,
    /// Empty for all.
    ids: &'a [String],
    facts: &'a Facts,
    /// IDs of objects with open alerts.
    open: HashSet<&'a str>,
    now: Timestamp,
}

impl<'a> Asked<'a> {
    /// The objects of a kind, with their IDs.
    fn objects(&self, kind: &'static str) -> impl Iterator<Item = (&'a str, &'a Fact)> + use<'a> {
        let (account, ids) = (self.account, self.ids);
        let all = self.facts.facts_of(kind);
        all.filter(move |(id, fact)| {
            fact.account == account && (ids.is_empty() || ids.iter().any(|one| one == id))
        })
    }

    fn truth(
        &self,
        (kind, id, fact): (&str, &str, &Fact),
        (value, threshold): (f64, f64),
        summary: String,
    ) -> Truth {
        Truth {
            subject: Subject {
                kind: kind.to_owned(),
                id: id.to_owned(),
                name: fact.name.clone(),
            },
            owner_id: fact.owner_id.clone(),
            value,
            threshold,
            summary,
            cause: None,
        }
    }

    fn offline(&self, lasting: Period) -> Truths {
        let mut truths = Truths::default();
        for kind in Facts::CREDENTIALS {
            for (id, fact) in self.objects(kind) {
                let Some(since) = self.facts.agents.offline_since(id) else {
                    continue;
                };
                let time = self.now.since(since);
                // The clock may have been set back since the alert began.
                if time < lasting.time() && !self.open.contains(id) {
                    continue;
                }
                let summary = format!(
                    "No agent is connected with the credential {} for {}; the bound is {lasting}.",
                    fact.name,
                    shown(time)
                );
                let numbers = (time.as_secs_f64(), lasting.time().as_secs_f64());
                truths
                    .found
                    .push(self.truth((kind, id, fact), numbers, summary));
            }
        }
        truths
    }

    fn certificates(&self, within: Period) -> Truths {
        let mut truths = Truths::default();
        for kind in Facts::CERTIFICATES {
            for (id, fact) in self.objects(kind) {
                let Detail::Certificate(expiry) = &fact.detail else {
                    continue;
                };
                let bound = within.time().min(watched_part(expiry));
                let end = ("certificate", expiry.expires_at, bound);
                truths.found.extend(self.ending((kind, id, fact), end));
            }
        }
        truths
    }

    fn keys_expiring(&self, within: Period) -> Result<Truths, String> {
        let kind = Facts::KEY;
        let rules = self.facts.key_rules.as_ref().map_err(String::clone)?;
        let rules = rules.get(self.account).copied().unwrap_or_default();
        let mut truths = Truths::default();
        for (id, fact) in self.objects(kind) {
            let Detail::Key {
                expires_at,
                issued_at,
            } = fact.detail
            else {
                continue;
            };
            // Its own end, or that of its token by the maximum age.
            let own = expires_at.map(|end| (end, fact.created_at));
            let of_token = rules.ends_at(issued_at).map(|end| (end, issued_at));
            let first = own.into_iter().chain(of_token).min_by_key(|(end, _)| *end);
            let Some((end, from)) = first else {
                continue;
            };
            let bound = within.time().min(end.since(from) / 2);
            let found = self.ending((kind, id, fact), ("API key", end, bound));
            truths.found.extend(found);
        }
        Ok(truths)
    }

    /// Whether something ends within the bound, or ended a short time ago.
    fn ending(
        &self,
        object: (&str, &str, &Fact),
        (what, end, bound): (&str, Timestamp, Duration),
    ) -> Option<Truth> {
        let (left, over) = (end.since(self.now), self.now.since(end));
        if left > bound || over > OVER {
            return None;
        }
        let name = &object.2.name;
        let bound_shown = shown(bound);
        let summary = match left.is_zero() {
            true => format!("The {what} {name} has expired, {} ago.", shown(over)),
            false => format!(
                "The {what} {name} expires in {}; the bound is {bound_shown}.",
                shown(left)
            ),
        };
        Some(self.truth(object, (left.as_secs_f64(), bound.as_secs_f64()), summary))
    }

    fn destinations(&self, lasting: Period) -> Result<Truths, String> {
        let kind = Facts::DESTINATION;
        let health = self.facts.health.as_ref().map_err(Clone::clone)?;
        let mut truths = Truths::default();
        for (id, fact) in self.objects(kind) {
            let Some(one) = health.get(id) else {
                truths.unknown.insert(id.to_owned());
                continue;
            };
            if one.state == DestinationState::Ok {
                // After a restart, nothing is known before something was sent.
                if one.last_success_at.is_none() {
                    truths.unknown.insert(id.to_owned());
                }
                continue;
            }
            let time = self.now.since(one.failing_since);
            if time < lasting.time() && !self.open.contains(id) {
                continue;
            }
            let error = match one.error.as_str() {
                "" => String::new(),
                error => format!(" ({error})"),
            };
            let summary = format!(
                "The event destination {} accepts nothing for {}{error}; the bound is {lasting}.",
                fact.name,
                shown(time)
            );
            let numbers = (time.as_secs_f64(), lasting.time().as_secs_f64());
            truths
                .found
                .push(self.truth((kind, id, fact), numbers, summary));
        }
        Ok(truths)
    }

    /// The sums of the windows of all endpoints.
    fn sums(
        &self,
        over: Period,
    ) -> Result<impl Iterator<Item = (&'a str, &'a Fact, Point)>, String> {
        let points = self.facts.points_of(self.account)?;
        let begin = self.now.minus(over.time()).unix_seconds();
        let endpoints = self.objects(Facts::ENDPOINT);
        Ok(endpoints.map(move |(id, fact)| {
            let mut sum = Point::default();
            for (_, point) in points
                .get(id)
                .into_iter()
                .flat_map(|steps| steps.range(begin..))
            {
                sum.merge_step(point);
            }
            (id, fact, sum)
        }))
    }

    /// The sums of the windows of endpoints that have enough requests. One with an open alert needs only one request, so
    /// that traffic which becomes less does not end it.
    fn windows(
        &self,
        over: Period,
        min_requests: u64,
    ) -> Result<impl Iterator<Item = (&'a str, &'a Fact, Point)>, String> {
        let sums = self.sums(over)?;
        Ok(sums.filter(move |(id, _, sum)| {
            let is_open = self.open.contains(id);
            sum.requests() >= if is_open { 1 } else { min_requests }
        }))
    }

    fn without_upstream(&self, over: Period, min_requests: u64) -> Result<Truths, String> {
        let mut truths = Truths::default();
        for (id, fact, sum) in self.sums(over)? {
            // A connection without HTTP is counted when it has reached its upstream.
            let reached = sum
                .get(Field::Reached)
                .saturating_add(sum.get(Field::Connections));
            let unreached = sum.get(Field::Unreached);
            let is_open = self.open.contains(id);
            if reached > 0 || unreached < min_requests && !is_open {
                continue;
            }
            if unreached == 0 {
                truths.unknown.insert(id.to_owned());
                continue;
            }
            let summary = format!(
                "None of the {unreached} requests and connections to {} that needed an upstream in {over} reached one; the bound is {min_requests}.",
                fact.name
            );
            let numbers = (unreached as f64, min_requests as f64);
            let object = (Facts::ENDPOINT, id, fact);
            truths.found.push(self.truth(object, numbers, summary));
        }
        Ok(truths)
    }

    fn errors(&self, above: f64, over: Period, min_requests: u64) -> Result<Truths, String> {
        let mut truths = Truths::default();
        for (id, fact, sum) in self.windows(over, min_requests)? {
            let (all, failed) = (
                sum.requests(),
                sum.get(Field::Status5xx)
                    .saturating_add(sum.get(Field::Aborted)),
            );
            let share = failed as f64 / all as f64;
            if share <= above {
                continue;
            }
            let summary = format!(
                "{:.1} % of the {all} requests to {} in {over} failed; the bound is {:.1} %.",
                share * 100.0,
                fact.name,
                above * 100.0
            );
            let object = (Facts::ENDPOINT, id, fact);
            truths
                .found
                .push(self.truth(object, (share, above), summary));
        }
        Ok(truths)
    }

    fn slow(
        &self,
        (quantile, above_ms): (Quantile, u64),
        over: Period,
        min_requests: u64,
    ) -> Result<Truths, String> {
        let mut truths = Truths::default();
        for (id, fact, sum) in self.windows(over, min_requests)? {
            let Some(micros) = sum.latency.percentile(quantile.share()) else {
                continue;
            };
            let (millis, bound) = (micros / 1_000.0, above_ms as f64);
            if millis <= bound {
                continue;
            }
            let summary = format!(
                "The {} of the durations of requests to {} in {over} is {millis:.0} ms; the bound is {above_ms} ms.",
                quantile.name(),
                fact.name
            );
            let object = (Facts::ENDPOINT, id, fact);
            truths
                .found
                .push(self.truth(object, (millis, bound), summary));
        }
        Ok(truths)
    }

    fn keys_unused(&self, lasting: Period) -> Result<Truths, String> {
        let kind = Facts::KEY;
        let uses = self.facts.key_uses.as_ref().map_err(Clone::clone)?;
        let mut truths = Truths::default();
        for (id, fact) in self.objects(kind) {
            let Detail::Key { expires_at, .. } = fact.detail else {
                continue;
            };
            let since = uses.get(id).copied().unwrap_or(fact.created_at);
            let time = self.now.since(since.max(fact.created_at));
            // An expired key needs no use.
            if time < lasting.time() || expires_at.is_some_and(|end| end <= self.now) {
                continue;
            }
            let summary = format!(
                "The API key {} is not used for {}; the bound is {lasting}.",
                fact.name,
                shown(time)
            );
            let numbers = (time.as_secs_f64(), lasting.time().as_secs_f64());
            truths
                .found
                .push(self.truth((kind, id, fact), numbers, summary));
        }
        Ok(truths)
    }

    fn sign_ins(&self, count: u64, over: Period) -> Result<Truths, String> {
        let refused = self.facts.sign_ins.as_ref().map_err(Clone::clone)?;
        let begin = self.now.minus(over.time());
        let (sum, last) = refused.counted_between(self.account, begin, self.now);
        let is_open = self.open.contains(self.account);
        let mut truths = Truths::default();
        // An open alert ends when the window is clear.
        if sum >= count || is_open && sum > 0 {
            truths.found.push(Truth {
                subject: Subject {
                    kind: Account::KIND.to_owned(),
                    id: self.account.to_owned(),
                    name: "console".to_owned(),
                },
                owner_id: String::new(),
                value: sum as f64,
                threshold: count as f64,
                summary: format!(
                    "{sum} sign-ins to the console were refused in {over}; the bound is {count}."
                ),
                cause: last.map(str::to_owned),
            });
        }
        Ok(truths)
    }
}

/// The last part of the life of a certificate, in which its end is reported.
fn watched_part(expiry: &Expiry) -> Duration {
    let life = expiry.expires_at.since(expiry.valid_from);
    // It is renewed in the last third.
    if expiry.is_renewed {
        life / 6
    } else {
        life / 2
    }
}

/// A time for people: whole days and hours, hours and minutes, or less.
fn shown(time: Duration) -> String {
    let seconds = time.as_secs();
    let unit = match seconds {
        86_400.. => 3_600,
        3_600.. => 60,
        _ => 1,
    };
    Period::of_seconds(seconds - seconds % unit).to_string()
}
