//! The field `auth` of targets at Amazon: static keys or a role (contract: management API 2.4).

use culvert_base::{Refusal, Secret, code};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::arn;
use crate::config::{hide, invalid, keep_secret};
use culvert_aws::Keys;

/// AWS authentication: exactly one of the two.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AwsAuth", extend("minProperties" = 1, "maxProperties" = 1))]
pub(crate) struct Auth {
    /// A role that the server assumes with its own credentials and your account ID as the external
    /// ID.
    #[serde(default)]
    role: Option<Role>,
    /// Static keys.
    #[serde(default)]
    creds: Option<Creds>,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AwsRole")]
struct Role {
    /// ARN of the IAM role. Its trust policy should require the external ID.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    #[schemars(extend("pattern" = crate::config::ARN))]
    role_arn: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AwsCredentials")]
struct Creds {
    /// Access key ID.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    aws_access_key_id: Option<String>,
    /// Secret access key. Write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true, "x-culvert-required" = true))]
    aws_secret_access_key: Option<String>,
}

const KEY_BYTES_MAX: usize = 256;

impl Auth {
    /// Checks the authentication in a request.
    ///
    /// 5106 if there is none, 5107 and 5116 unless it is exactly one of the two, 5104 for an invalid role, 5140 for
    /// keys that are not valid in a header.
    pub(crate) fn check(given: Option<&Self>, target: &str) -> Result<(), Refusal> {
        let Some(auth) = given else {
            return Err(Refusal::of(code::AWS_AUTH_MISSING));
        };
        match (&auth.role, &auth.creds) {
            (None, None) => Err(Refusal::of(code::AWS_AUTH_EMPTY)),
            (Some(_), Some(_)) => Err(Refusal::of(code::AWS_AUTH_NOT_SINGLE)),
            (Some(role), None) => arn::check_role(role.role_arn.as_deref()),
            (None, Some(creds)) => {
                for (name, value) in [
                    ("aws_access_key_id", &creds.aws_access_key_id),
                    ("aws_secret_access_key", &creds.aws_secret_access_key),
                ] {
                    let fits = value.as_ref().is_some_and(|text| {
                        (1..=KEY_BYTES_MAX).contains(&text.len())
                            && text.bytes().all(|byte| byte.is_ascii_graphic())
                    });
                    if !fits {
                        return Err(invalid(
                            target,
                            format_args!("`auth.creds.{name}` must be 1 to 256 visible characters"),
                        ));
                    }
                }
                Ok(())
            }
        }
    }

    /// The static keys.
    pub(super) fn keys(&self) -> Option<Keys> {
        let creds = self.creds.as_ref()?;
        Some(Keys {
            id: creds.aws_access_key_id.clone().unwrap_or_default(),
            secret: Secret::new(creds.aws_secret_access_key.clone().unwrap_or_default()),
            session: None,
        })
    }

    /// The role to assume.
    pub(super) fn role_arn(&self) -> Option<&str> {
        self.role.as_ref()?.role_arn.as_deref()
    }
}

/// Copies the stored secret into a new configuration that omits it.
pub(crate) fn merge(stored: &Value, mut given: Value) -> Value {
    keep_secret(stored, &mut given, "/auth/creds", "aws_secret_access_key");
    given
}

/// The configuration without the secret.
pub(crate) fn redact(stored: &Value) -> Value {
    hide(stored, "/auth/creds/aws_secret_access_key", Value::Null)
}
