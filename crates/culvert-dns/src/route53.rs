//! Amazon Route 53: sets of records in a hosted zone. A change replaces a whole set, so it is read before.

use bytes::Bytes;
use culvert_aws::{Keys, SignableBody, sign};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};

use crate::api::{Api, ApiResponse, encoded};
use crate::change::{Change, TTL, zones_of};
use crate::error::DnsError;

/// The service has one endpoint, which belongs to this region.
const REGION: &str = "us-east-1";
const VERSION: &str = "2013-04-01";

/// An account at Amazon.
#[derive(Debug)]
pub struct Route53 {
    /// The endpoint, without a slash at the end.
    pub endpoint_url: String,
    /// The keys. They need `route53:ListHostedZonesByName`, `route53:ListResourceRecordSets` and
    /// `route53:ChangeResourceRecordSets`.
    pub keys: Keys,
    /// ID of the hosted zone; looked up if there is none.
    pub hosted_zone_id: Option<String>,
}

/// A set of TXT records.
struct RecordSet {
    ttl: u32,
    /// As they are written, with quotation marks.
    values: Vec<String>,
}

impl Route53 {
    /// The public endpoint.
    pub const ENDPOINT_URL: &str = "https://route53.amazonaws.com";

    pub(crate) async fn change(
        &self,
        name: &str,
        value: &str,
        change: Change,
        api: &Api,
    ) -> Result<(), DnsError> {
        let (zone_id, _) = self.zone(name, api).await?;
        let before = self.record_set(&zone_id, name, api).await?;
        let after = change.of(before.values.clone(), &format!("\"{value}\""));
        if after == before.values {
            return Ok(());
        }
        // An empty set is not valid, so the last record deletes the set, which must be named exactly.
        let (action, set) = match after.is_empty() {
            true => ("DELETE", before),
            false => (
                "UPSERT",
                RecordSet {
                    ttl: before.ttl,
                    values: after,
                },
            ),
        };
        let records: String = set
            .values
            .iter()
            .map(|value| {
                let value = escaped(value);
                format!("<ResourceRecord><Value>{value}</Value></ResourceRecord>")
            })
            .collect();
        let body = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
             <ChangeResourceRecordSetsRequest \
             xmlns=\"https://route53.amazonaws.com/doc/{VERSION}/\"><ChangeBatch><Changes><Change>\
             <Action>{action}</Action><ResourceRecordSet><Name>{name}.</Name><Type>TXT</Type>\
             <TTL>{}</TTL><ResourceRecords>{records}</ResourceRecords></ResourceRecordSet>\
             </Change></Changes></ChangeBatch></ChangeResourceRecordSetsRequest>",
            set.ttl,
            name = escaped(name),
        );
        let path = format!("/hostedzone/{}/rrset/", encoded(&zone_id));
        let sent = self.call(Method::POST, &path, Bytes::from(body), api).await;
        sent.map(drop)
    }

    pub(crate) async fn check(&self, name: &str, api: &Api) -> Result<String, DnsError> {
        let (zone_id, zone) = self.zone(name, api).await?;
        self.record_set(&zone_id, name, api).await?;
        Ok(format!("Route 53 has the zone `{zone}` ({zone_id})"))
    }

    /// ID and name of the public hosted zone of a name.
    async fn zone(&self, name: &str, api: &Api) -> Result<(String, String), DnsError> {
        if let Some(id) = &self.hosted_zone_id {
            return Ok((id.clone(), id.clone()));
        }
        for zone in zones_of(name) {
            let path = format!("/hostedzonesbyname?dnsname={}&maxitems=10", encoded(zone));
            let answer = self.call(Method::GET, &path, Bytes::new(), api).await?;
            let text = answer.text();
            let zones = elements(&text, "HostedZone");
            let found = zones.into_iter().find(|one| {
                let is_same = element(one, "Name")
                    .is_some_and(|name| name.trim_end_matches('.').eq_ignore_ascii_case(zone));
                is_same && element(one, "PrivateZone").is_none_or(|private| private != "true")
            });
            if let Some(id) = found.and_then(|one| element(one, "Id")) {
                let id = id.trim_start_matches("/hostedzone/");
                return Ok((id.to_owned(), zone.to_owned()));
            }
        }
        Err(DnsError::new(
            "the account has no public hosted zone with this name",
        ))
    }

    async fn record_set(
        &self,
        zone_id: &str,
        name: &str,
        api: &Api,
    ) -> Result<RecordSet, DnsError> {
        let zone_id = encoded(zone_id);
        let name_sent = encoded(name);
        let path = format!("/hostedzone/{zone_id}/rrset?maxitems=1&name={name_sent}&type=TXT");
        let answer = self.call(Method::GET, &path, Bytes::new(), api).await?;
        let text = answer.text();
        let sets = elements(&text, "ResourceRecordSet");
        // The service starts at the name and type, and returns later ones if they do not exist.
        let set = sets.into_iter().find(|set| {
            element(set, "Name").is_some_and(|one| one.trim_end_matches('.') == name)
                && element(set, "Type") == Some("TXT")
        });
        let values = set.map(|set| elements(set, "Value")).unwrap_or_default();
        Ok(RecordSet {
            ttl: set
                .and_then(|set| element(set, "TTL")?.parse().ok())
                .unwrap_or(TTL),
            values: values.into_iter().map(unescaped).collect(),
        })
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        api: &Api,
    ) -> Result<ApiResponse, DnsError> {
        let url = format!("{}/{VERSION}{path}", self.endpoint_url);
        let mut headers = HeaderMap::new();
        if !body.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/xml"));
        }
        let place = ("route53", REGION);
        let signable = SignableBody::Bytes(&body);
        let headers = sign(
            &self.keys,
            place,
            api.now(),
            &method,
            &url,
            &headers,
            signable,
        )
        .map_err(DnsError::new)?;
        let answer = api.send(method, &url, headers, body).await?;
        if answer.is_success() {
            return Ok(answer);
        }
        let text = answer.text();
        let code = element(&text, "Code").unwrap_or("no code");
        let message = element(&text, "Message").unwrap_or("no message");
        let message = format!("{} ({code})", unescaped(message));
        Err(answer.error("Route 53", &message))
    }
}

/// The text of the first element with a name. The service's responses have no attributes there.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    elements(xml, name).first().copied()
}

fn elements<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let parts = xml.split(&*open).skip(1);
    parts
        .filter_map(|part| Some(part.split_once(&*close)?.0.trim()))
        .collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn unescaped(text: &str) -> String {
    text.replace("&quot;", "\"")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&")
}
