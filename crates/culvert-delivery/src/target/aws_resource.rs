//! Targets at one resource of Amazon, such as a stream: credentials, and the ARN of the resource.

use culvert_base::Refusal;

use crate::aws::Aws;
use crate::aws::arn::{Arn, Wanted};
use crate::aws::auth::Auth;
use crate::destination_ids::Whose;
use crate::target::context::TargetContext;

/// Checks the credentials and the ARN in a configuration.
///
/// # Errors
/// Those of [`Auth::check`] and [`Arn::check`].
pub(super) fn check(
    target: &str,
    wanted: Wanted,
    auth: Option<&Auth>,
    arn: Option<&str>,
) -> Result<(), Refusal> {
    Auth::check(auth, target)?;
    Arn::check(arn, wanted).map(drop)
}

/// A client of the service of the resource, and the name of the resource.
pub(super) fn open(
    wanted: Wanted,
    auth: Option<&Auth>,
    arn: Option<&str>,
    context: &TargetContext,
    whose: Whose<'_>,
) -> Result<(Aws, String), Refusal> {
    let arn = Arn::check(arn, wanted)?;
    let auth = auth.cloned().unwrap_or_default();
    let (net, settings) = (context.net(), &context.settings().aws);
    let aws = Aws::open(wanted.service, &arn, &auth, net, settings, whose)?;
    Ok((aws, arn.name(wanted).to_owned()))
}
