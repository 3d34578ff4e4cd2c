//! Refreshes user data from the provider.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::{BoxFuture, Timestamp};
use culvert_policy::services::PolicyServices;
use futures_util::FutureExt;
use futures_util::future::Shared as SharedFuture;

use super::{RequestContext, SessionMiddleware};
use crate::provider::grant::{App, Asking, Failed};
use crate::session::Session;

/// Delay before an unavailable provider is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The result of a refresh. Requests with the same session share it.
pub(crate) type Refresh = SharedFuture<BoxFuture<'static, RefreshOutcome>>;

#[derive(Clone)]
pub(crate) enum RefreshOutcome {
    /// The session continues: the provider confirmed the user, or is unavailable.
    Goes(Arc<Session>, bool),
    /// The provider no longer confirms the user.
    Ends,
}

impl SessionMiddleware {
    /// Requests the user's data from the provider. Concurrent requests with the same session share one refresh. It
    /// continues if the request that began it is cancelled, because a refresh token may be valid only once.
    pub(super) async fn ask(
        self: &Arc<Self>,
        services: &Arc<PolicyServices>,
        request_context: &RequestContext,
        session: Session,
    ) -> RefreshOutcome {
        let key = format!("{} {}", session.id, session.asked());
        let (middleware, account, now) = (
            Arc::clone(self),
            Arc::clone(&request_context.account),
            request_context.now,
        );
        let (its_services, app) = (Arc::clone(services), request_context.app.clone());
        let asking: BoxFuture<'static, RefreshOutcome> = Box::pin(async move {
            middleware
                .ask_now(&its_services, &account, &app, session, now)
                .await
        });
        let (refresh, is_new) = self.logins.refreshed.get_or_insert(key, asking.shared());
        if is_new {
            services.tasks.spawn(Box::pin(refresh.clone().map(drop)));
        }
        refresh.await
    }

    async fn ask_now(
        &self,
        services: &PolicyServices,
        account: &Arc<str>,
        app: &App,
        mut session: Session,
        now: Timestamp,
    ) -> RefreshOutcome {
        let asked = async {
            let turn = self.logins.calls.try_acquire(self.options.share);
            let _turn =
                turn.map_err(|_| Failed::Away("too many refreshes in progress".to_owned()))?;
            let endpoints = self.endpoints(services).await?;
            let asking = Asking {
                services,
                share: self.options.share,
                endpoints: &endpoints,
                app,
                known: self.known(),
                now,
            };
            asking
                .again(&session.tokens, session.is_expired(now), &session.person)
                .await
        };
        match asked.await {
            Ok(refreshed) => {
                let has_person = refreshed.is_some();
                if let Some((person, tokens)) = refreshed {
                    session.person = person;
                    session.tokens = tokens;
                }
                session.confirmed(&self.print, now);
                RefreshOutcome::Goes(Arc::new(session), has_person)
            }
            Err(Failed::Away(why)) => {
                tracing::warn!(why, "refreshing user data failed");
                session.postponed(self.options.spans, &self.print, ASK_AGAIN_AFTER, now);
                RefreshOutcome::Goes(Arc::new(session), false)
            }
            Err(failed) => {
                tracing::info!(session = session.id, error = %failed, "a session ends");
                self.end(account, &session);
                RefreshOutcome::Ends
            }
        }
    }
}
