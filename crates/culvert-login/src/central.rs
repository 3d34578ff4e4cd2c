//! The common callback address: where providers redirect users if the operator has set `oauth.callback_base`.
//!
//! The exchange of the code is completed there, with the application of the endpoint whose sign-in it is, so codes never
//! reach an endpoint. The endpoint gets a ticket, which only the browser of the sign-in can use.

use std::any::Any;

use bytes::Bytes;
use culvert_base::Timestamp;
use culvert_events::sign_in_parameter::STATE;
use culvert_http::authority::Authority;
use culvert_policy::Scheme;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::run::Flow;
use culvert_policy::problem::Problem;
use culvert_policy::reply;
use http::header::HOST;
use http::{Method, Response, StatusCode, request};

use crate::action::session_middleware::Login;
use crate::attempt::{AttemptState, parameter};
use crate::logins::{CENTRAL_CALLBACK, Logins};

/// Whether a request for this path and query may be one for [`CentralCallback::read`].
pub fn may_be_callback(target: &str) -> bool {
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    path.ends_with(CENTRAL_CALLBACK)
}

/// A request to the common callback address, and the endpoint whose sign-in it completes.
#[derive(Debug)]
pub struct CentralCallback {
    state: AttemptState,
    host: String,
}

impl CentralCallback {
    /// Reads a request. `None` if it is not for the common callback address, and a problem if it completes no sign-in.
    pub fn read(
        logins: &Logins,
        parts: &request::Parts,
        now: Timestamp,
    ) -> Option<Result<Self, Problem>> {
        let base = logins.settings().callback_base.as_ref()?;
        let path = parts.uri.path().strip_suffix(CENTRAL_CALLBACK)?;
        let authority = Authority::of(parts.version, &parts.uri, parts.headers.get(HOST)).ok()?;
        let is_here =
            path == base.path().trim_end_matches('/') && base.host_str() == Some(&*authority.host);
        if !is_here {
            return None;
        }
        // A request with a code must not reach an endpoint at this host.
        if parts.method != Method::GET {
            return Some(Err(Problem::EdgePath));
        }
        let query = parts.uri.query().unwrap_or_default();
        let Some(text) = parameter(query, STATE) else {
            return Some(Err(Problem::LoginNoState));
        };
        let state = AttemptState::open(&logins.keys, &text, now);
        let callback = state.and_then(|state| {
            let authority = state.origin.strip_prefix("https://")?;
            let host = Authority::parse(authority).ok()?.host.into_owned();
            state.seed?;
            Some(Self { state, host })
        });
        Some(callback.ok_or(Problem::LoginState))
    }

    /// The host at which the sign-in began, in lower case.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The ID of the endpoint whose policy signs in.
    pub fn endpoint(&self) -> &str {
        &self.state.endpoint.id
    }

    /// Where that endpoint is, if only policies of the account of the host reach it.
    pub fn internal(&self) -> Option<(Scheme, &str, u16)> {
        let (scheme, host, port) = self.state.endpoint.internal.as_ref()?;
        let scheme = Scheme::ALL
            .into_iter()
            .find(|known| known.name() == scheme)?;
        Some((scheme, host, *port))
    }

    /// Completes the sign-in. `x` is an exchange of that endpoint, with this request.
    pub async fn finish(self, x: &mut Exchange<'_>) -> Response<Bytes> {
        if !x.may_use_secrets() {
            return problem(x, Problem::SecretsWithdrawn);
        }
        let policy = x.policy;
        if policy
            .secret_right()
            .is_some_and(|right| right.is_withdrawn())
        {
            return problem(x, Problem::SecretsWithdrawn);
        }
        let logins = policy.edge_paths().filter_map(|action| {
            let action: &dyn Any = action;
            action.downcast_ref::<Login>()
        });
        let mut logins = logins.filter(|login| login.0.is_of(&self.state));
        let query = x.request.and_then(|request| request.uri.query());
        let query = query.unwrap_or_default();
        let finished = match logins.next() {
            Some(login) => {
                let finish = login.0.finish_centrally(x, self.state, &self.host, query);
                finish.await
            }
            None => Err(Problem::LoginState),
        };
        match finished {
            Ok(Flow::Reply(answer)) => *answer,
            Ok(_) => problem(x, Problem::Policy),
            Err(why) => problem(x, why),
        }
    }
}

fn problem(x: &Exchange<'_>, problem: Problem) -> Response<Bytes> {
    match x.reply_context() {
        Some(to) => problem.answer(&to),
        None => reply::empty(StatusCode::INTERNAL_SERVER_ERROR),
    }
}
