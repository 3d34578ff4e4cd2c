//! A condition over requests that belongs to no account's policy: one of the operator's settings.

use culvert_base::Meter;
use culvert_ip_data::IpFields;

use crate::policy::compiled::{Policy, Rule};
use crate::policy::environments;
use crate::policy::exchange::Exchange;
use crate::policy::expression::Condition;
use crate::policy::phase::Phase;
use crate::policy::variables;

/// Compiles an expression over requests, with the variables and functions of `on_http_request`. The policy that it becomes
/// has no actions; [`Exchange::meets_condition`] evaluates it.
///
/// # Errors
/// The problem as a sentence.
pub fn single_condition(source: &str) -> Result<Policy, String> {
    let phase = Phase::Request;
    let compiled = environments::of(phase)
        .compile_predicate(source)
        .map(Condition::new)
        .map_err(|error| environments::explain(&error, phase))?;
    let mut reads = compiled.slots().to_vec();
    reads.sort_unstable();
    reads.dedup();
    for name in [variables::SECRETS, variables::VARS, variables::ACTIONS] {
        if reads.contains(&variables::slot(name)) {
            return Err(format!(
                "`{}` exists in traffic policies only",
                name.trim_matches(['(', ')'])
            ));
        }
    }
    let mut ip_fields = IpFields::default();
    for (_, field) in reads.iter().filter_map(|slot| variables::data(*slot)) {
        ip_fields.insert(field);
    }
    let rule = Rule {
        name: String::new(),
        expressions: Box::new([compiled]),
        actions: Box::default(),
        types: Box::default(),
        terminates_tls: false,
        guards: false,
        failures: Meter::default(),
        refusals: Meter::default(),
    };
    Ok(Policy {
        connect: Box::default(),
        request: Box::new([rule]),
        response: Box::default(),
        reads: reads.into(),
        results_cell: None,
        vars_cell: None,
        reads_sni: false,
        ip_fields,
        secrets: None,
        edge_paths: Box::default(),
        late_request_bytes: None,
        owns_all_edge_paths: false,
        identity_fields: Box::default(),
        warnings: Vec::new(),
        owner: "".into(),
        forwards_to: Vec::new(),
    })
}

impl Exchange<'_> {
    /// Whether the condition of [`single_condition`] holds; `None` if it cannot be decided.
    pub fn meets_condition(&mut self) -> Option<bool> {
        if !self.loads_ip_data() {
            return None;
        }
        let policy = self.policy;
        let mut all = policy.rules(self.phase).iter();
        let mut all = all.by_ref().flat_map(|rule| &rule.expressions);
        all.try_fold(true, |holds, condition| {
            Some(holds && condition.test(self).ok()?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_those_of_requests() {
        let path = "req.url.path.startsWith('/slow') && conn.client_ip != ''";
        assert!(single_condition(path).is_ok());
        for (wrong, why) in [
            ("req.url.pth == ''", "did you mean"),
            ("req.url.path ==", ""),
            ("res.status_code == 200", "on_http_response"),
            (
                "secrets.get('v', 'n') == ''",
                "`secrets` exists in traffic policies only",
            ),
            ("vars.x == 1", "`vars` exists in traffic policies only"),
        ] {
            let refused = single_condition(wrong).unwrap_err();
            assert!(refused.contains(why), "{wrong}: {refused}");
        }
    }
}
