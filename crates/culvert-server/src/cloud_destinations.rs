//! Endpoints and credentials of cloud destinations, from settings and from the standard variables of AWS tools.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use anyhow::{Result, bail};
use culvert_base::Secret;
use url::Url;

use culvert_installation::config::AwsDestinations;
use culvert_target::settings::aws::{AwsSettings, OwnKeys};

/// Settings and variables for AWS. Settings take precedence.
pub(crate) fn settings(
    settings: &AwsDestinations,
    environment: &HashMap<String, String>,
) -> Result<AwsSettings> {
    let pick = |key: &str, setting: &str, variables: &[&str]| {
        let set = Some((key.to_owned(), setting)).filter(|(_, text)| !text.is_empty());
        let set = set.or_else(|| {
            let set = |name: &&&str| environment.get(**name).is_some_and(|text| !text.is_empty());
            let name = variables.iter().find(set)?;
            Some(((*name).to_owned(), environment.get(*name)?.as_str()))
        });
        set.map_or(Ok(None), |(name, text)| base(&name, text))
    };
    let mut endpoints = BTreeMap::new();
    for (service, setting) in settings.services() {
        let key = format!("destinations.aws.{service}.endpoint_url");
        let variable = format!("AWS_ENDPOINT_URL_{}", service.to_ascii_uppercase());
        let mut variables = vec![variable.as_str()];
        // The names of services in variables differ from those in hosts.
        match service {
            "events" => variables.push("AWS_ENDPOINT_URL_EVENTBRIDGE"),
            "logs" => variables.push("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS"),
            _ => {}
        }
        if let Some(endpoint) = pick(&key, &setting.endpoint_url, &variables)? {
            endpoints.insert(service.to_owned(), endpoint);
        }
    }
    Ok(AwsSettings {
        endpoint: pick(
            "destinations.aws.endpoint_url",
            &settings.endpoint_url,
            &["AWS_ENDPOINT_URL"],
        )?,
        endpoints,
        own_keys: own_keys(environment)?,
    })
}

/// Parses the URL of a setting or variable, to which paths are appended; `None` if it is empty.
pub(crate) fn base(name: &str, text: &str) -> Result<Option<Url>> {
    if text.is_empty() {
        return Ok(None);
    }
    let Ok(mut url) = Url::parse(text) else {
        bail!("`{name}` must be a URL such as `https://aws.example.com`");
    };
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        bail!("`{name}` must start with `https://` or `http://` and name a host");
    }
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(Some(url))
}

/// The first source of keys that the environment configures. The instance metadata is the last.
fn own_keys(environment: &HashMap<String, String>) -> Result<OwnKeys> {
    let variable = |name: &str| {
        environment
            .get(name)
            .filter(|text| !text.is_empty())
            .cloned()
    };
    if let (Some(id), Some(secret)) = (
        variable("AWS_ACCESS_KEY_ID"),
        variable("AWS_SECRET_ACCESS_KEY"),
    ) {
        return Ok(OwnKeys::Given {
            id,
            secret: Secret::new(secret),
            session: variable("AWS_SESSION_TOKEN").map(Secret::new),
        });
    }
    if let (Some(file), Some(role_arn)) = (
        variable("AWS_WEB_IDENTITY_TOKEN_FILE"),
        variable("AWS_ROLE_ARN"),
    ) {
        return Ok(OwnKeys::WebIdentity {
            token_file: PathBuf::from(file),
            role_arn,
        });
    }
    let full = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    let relative = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        .map(|path| format!("http://169.254.170.2{path}"));
    if let Some(text) = relative.or(full) {
        let Ok(url) = Url::parse(&text) else {
            bail!("the variable for the container credentials endpoint is not a URL");
        };
        return Ok(OwnKeys::Container {
            url,
            token: variable("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(Secret::new),
            token_file: variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(PathBuf::from),
        });
    }
    if variable("AWS_EC2_METADATA_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
        return Ok(OwnKeys::None);
    }
    let endpoint = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    let endpoint = endpoint.unwrap_or_else(|| "http://169.254.169.254/".to_owned());
    Ok(
        match base("AWS_EC2_METADATA_SERVICE_ENDPOINT", &endpoint)? {
            Some(endpoint) => OwnKeys::Instance { endpoint },
            None => OwnKeys::None,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(given: &[(&str, &str)]) -> HashMap<String, String> {
        given
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn settings_precede_variables_and_service_settings_precede_both() {
        let mut given = AwsDestinations {
            endpoint_url: "http://all.example".into(),
            ..AwsDestinations::default()
        };
        given.kinesis.endpoint_url = "http://kinesis.example/x".into();
        let environment = variables(&[
            ("AWS_ENDPOINT_URL", "http://variable.example"),
            ("AWS_ENDPOINT_URL_KINESIS", "http://variable.example"),
            ("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", "http://logs.example"),
        ]);
        let read = settings(&given, &environment).unwrap();
        assert_eq!(read.endpoint.unwrap().as_str(), "http://all.example/");
        assert_eq!(
            read.endpoints["kinesis"].as_str(),
            "http://kinesis.example/x/"
        );
        assert_eq!(read.endpoints["logs"].as_str(), "http://logs.example/");
        assert_eq!(read.endpoints.len(), 2);
        for wrong in ["ftp://a.example", "nonsense", "http://"] {
            let environment = variables(&[("AWS_ENDPOINT_URL", wrong)]);
            assert!(
                settings(&AwsDestinations::default(), &environment).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn credentials_of_the_server_come_from_the_first_configured_source() {
        let web = [
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/token"),
            ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/x"),
        ];
        let keys = [
            ("AWS_ACCESS_KEY_ID", "AKIA"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
        ];
        let container = [("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x")];
        let all = variables(&[&keys[..], &web, &container].concat());
        assert!(matches!(own_keys(&all).unwrap(), OwnKeys::Given { id, .. } if id == "AKIA"));
        let without_keys = variables(&[&web[..], &container].concat());
        assert!(matches!(
            own_keys(&without_keys).unwrap(),
            OwnKeys::WebIdentity { .. }
        ));
        assert!(matches!(own_keys(&variables(&container)).unwrap(),
            OwnKeys::Container { url, .. } if url.as_str() == "http://169.254.170.2/v2/x"));
        assert!(matches!(own_keys(&HashMap::new()).unwrap(),
            OwnKeys::Instance { endpoint } if endpoint.as_str() == "http://169.254.169.254/"));
        let off = variables(&[("AWS_EC2_METADATA_DISABLED", "TRUE")]);
        assert!(matches!(own_keys(&off).unwrap(), OwnKeys::None));
    }
}
