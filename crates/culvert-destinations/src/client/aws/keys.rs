//! Signing keys: the server's own, and those of assumed roles.
//!
//! The server's own keys come from the standard sources: the environment, a web identity, the endpoint of the container
//! or the instance. They are fetched for each assumption of a role, about once an hour for each destination, and not
//! stored.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use serde::Deserialize;
use tokio::sync::Mutex;
use url::Url;

use culvert_aws::Keys;
use culvert_base::{Secret, Timestamp};
use culvert_target::DestinationIds;
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::{ANSWER_BYTES_MAX, Http, HttpRequest, Net};
use culvert_target::settings::aws::{AwsSettings, OwnKeys};

use super::answer::{self, element};
use super::arn::Arn;
use super::{Call, DEADLINE, Payload, endpoint, signed};
use crate::client::request_body::{form, form_headers};

/// Keys of a role are renewed this long before they expire.
const RENEWED_BEFORE: Duration = Duration::from_secs(300);
/// Time limit of local endpoints with credentials.
const NEAR: Duration = Duration::from_secs(5);

/// A role, assumed on demand.
pub(super) struct Assumed {
    role_arn: String,
    session_name: String,
    /// The account of the destination. Without it, anyone who knows the name of the role could use it through this
    /// server.
    external_id: String,
    region: String,
    own: OwnKeys,
    net: Net,
    sts: Url,
    http: Http,
    cached: Mutex<Option<(Keys, Timestamp)>>,
}

impl Assumed {
    pub(super) fn new(
        role_arn: &str,
        at: &Arn<'_>,
        net: &Net,
        settings: &AwsSettings,
        ids: DestinationIds<'_>,
    ) -> Self {
        let (sts, http) = endpoint(settings, "sts", at.partition, at.region, net);
        Self {
            role_arn: role_arn.to_owned(),
            session_name: format!("culvert-{}", ids.destination)
                .chars()
                .take(64)
                .collect(),
            external_id: ids.account.to_owned(),
            region: at.region.to_owned(),
            own: settings.own_keys.clone(),
            net: net.clone(),
            sts,
            http,
            cached: Mutex::new(None),
        }
    }

    /// Keys that are valid for a while, other than `refused`.
    pub(super) async fn keys(&self, refused: Option<&Keys>) -> Result<Keys, Failure> {
        let mut cached = self.cached.lock().await;
        if let Some((keys, until)) = &*cached
            && self.net.now().plus(RENEWED_BEFORE) < *until
            && refused != Some(keys)
        {
            return Ok(keys.clone());
        }
        let own = own_keys(&self.own, &self.net, &self.sts, &self.http).await?;
        let form = form(&[
            ("Action", "AssumeRole"),
            ("Version", "2011-06-15"),
            ("RoleArn", &self.role_arn),
            ("RoleSessionName", &self.session_name),
            ("ExternalId", &self.external_id),
            ("DurationSeconds", "3600"),
        ]);
        let call = Call {
            method: Method::POST,
            url: self.sts.clone(),
            headers: form_headers(),
            body: Payload::Whole(form),
            deadline: DEADLINE,
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        let order = signed(&call, &own, "sts", &self.region, self.net.now())?;
        let answer = self.http.send(order).await?;
        answer::judge(&answer, &own.secrets()).map_err(refused_role)?;
        let made = of_xml(&answer.text)?;
        *cached = Some(made.clone());
        Ok(made.0)
    }
}

/// An error of STS is about credentials or permissions, whatever its status.
fn refused_role(mut failure: Failure) -> Failure {
    if !matches!(
        failure.class,
        FailureClass::Retryable | FailureClass::Unknown
    ) {
        failure.class = FailureClass::Auth;
    }
    failure.text = format!("the role cannot be assumed: {}", failure.text)
        .chars()
        .take(culvert_target::failure::FAILURE_TEXT_MAX)
        .collect();
    failure
}

/// The server's own keys.
async fn own_keys(own: &OwnKeys, net: &Net, sts: &Url, http: &Http) -> Result<Keys, Failure> {
    match own {
        OwnKeys::None => Err(Failure::new(
            FailureClass::Auth,
            "credentials",
            "this server has no AWS credentials to assume roles",
        )),
        OwnKeys::Given {
            id,
            secret,
            session,
        } => Ok(Keys {
            id: id.clone(),
            secret: secret.clone(),
            session: session.clone(),
        }),
        OwnKeys::WebIdentity {
            token_file,
            role_arn,
        } => {
            let token = read(token_file).await?;
            let body = form(&[
                ("Action", "AssumeRoleWithWebIdentity"),
                ("Version", "2011-06-15"),
                ("RoleArn", role_arn),
                ("RoleSessionName", "culvert"),
                ("WebIdentityToken", token.reveal()),
            ]);
            let order = HttpRequest::post(sts.clone(), form_headers(), body, DEADLINE);
            let answer = http.send(order).await?;
            answer::judge(&answer, &[token.reveal()]).map_err(refused_role)?;
            Ok(of_xml(&answer.text)?.0)
        }
        OwnKeys::Container {
            url,
            token,
            token_file,
        } => {
            let token = match token_file {
                Some(path) => Some(read(path).await?),
                None => token.clone(),
            };
            let mut headers = HeaderMap::new();
            if let Some(token) = token {
                headers.insert(header::AUTHORIZATION, header_of(token.reveal())?);
            }
            of_json(&get(net, Method::GET, url.clone(), headers).await?)
        }
        OwnKeys::Instance { endpoint } => {
            let at = |path: &str| endpoint.join(path).map_err(|_| unreadable());
            let mut headers = HeaderMap::new();
            headers.insert(
                "x-aws-ec2-metadata-token-ttl-seconds",
                HeaderValue::from_static("300"),
            );
            let token = get(net, Method::PUT, at("latest/api/token")?, headers).await?;
            let mut headers = HeaderMap::new();
            headers.insert("x-aws-ec2-metadata-token", header_of(token.trim())?);
            let roles = at("latest/meta-data/iam/security-credentials/")?;
            let role = get(net, Method::GET, roles.clone(), headers.clone()).await?;
            let role = role.lines().next().unwrap_or_default().trim();
            let keys = roles.join(role).map_err(|_| unreadable())?;
            of_json(&get(net, Method::GET, keys, headers).await?)
        }
    }
}

/// Requests a local endpoint with credentials.
async fn get(net: &Net, method: Method, url: Url, headers: HeaderMap) -> Result<String, Failure> {
    let order = HttpRequest {
        method,
        ..HttpRequest::post(url, headers, Bytes::new(), NEAR)
    };
    let answer = net.http_to_named_by_operator().send(order).await?;
    if (200..300).contains(&answer.status) {
        return Ok(answer.text);
    }
    Err(Failure::new(
        FailureClass::Auth,
        "credentials",
        format!(
            "the credentials endpoint of this server returned status {}",
            answer.status
        ),
    ))
}

async fn read(path: &PathBuf) -> Result<Secret, Failure> {
    let text = tokio::fs::read_to_string(path).await.map_err(|error| {
        tracing::error!(cause = %error, "cannot read a token of this server's AWS credentials");
        unreadable()
    })?;
    Ok(Secret::new(text.trim().to_owned()))
}

fn header_of(text: &str) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::from_str(text).map_err(|_| unreadable())?;
    value.set_sensitive(true);
    Ok(value)
}

fn unreadable() -> Failure {
    Failure::new(
        FailureClass::Auth,
        "credentials",
        "cannot read this server's AWS credentials",
    )
}

/// Keys and their expiry in a response of STS.
fn of_xml(xml: &str) -> Result<(Keys, Timestamp), Failure> {
    let text = |name: &str| element(xml, name).filter(|text| !text.is_empty());
    let read = || {
        let keys = Keys {
            id: text("AccessKeyId")?.to_owned(),
            secret: Secret::new(text("SecretAccessKey")?.to_owned()),
            session: Some(Secret::new(text("SessionToken")?.to_owned())),
        };
        Some((keys, Timestamp::parse(text("Expiration")?)?))
    };
    read().ok_or_else(|| {
        Failure::new(
            FailureClass::Retryable,
            "sts",
            "the response with the role's keys is invalid",
        )
    })
}

/// Keys in a response of the endpoint of a container or an instance.
fn of_json(text: &str) -> Result<Keys, Failure> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Document {
        access_key_id: String,
        secret_access_key: Secret,
        token: Option<Secret>,
    }
    let document: Document = serde_json::from_str(text).map_err(|_| unreadable())?;
    Ok(Keys {
        id: document.access_key_id,
        secret: document.secret_access_key,
        session: document.token,
    })
}
