//! The table of providers: what each signs, with which key, and where the signature is.

use culvert_base::Timestamp;

use crate::provider::Encoding::{Base64, Hex};
use crate::provider::SignedPart::{
    Body, Form, JsonOfBody, Method, Stamp, Text, Url, UrlSoftened, Value,
};
use crate::request::{Request, Unverified};
use crate::signature::Hash::{self, PlainSha256, Sha1, Sha256, Sha512};
use crate::value_location::ValueLocation::{self, After, Each, Field, Header, Json, Listed};
use crate::{contentful, plivo, sendgrid, twilio};

/// A signature scheme of a provider. A provider with several has a row for each.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) provider: &'static str,
    pub(crate) way: Way,
    /// Where the signatures are.
    pub(crate) signature: ValueLocation,
    /// The signed parts, in order.
    pub(crate) parts: &'static [SignedPart],
    pub(crate) hash: Hash,
    pub(crate) encoding: Encoding,
    pub(crate) key: Key,
    /// The location of the signature's time, and the maximum difference from the current time in seconds.
    pub(crate) stamp: Option<(ValueLocation, u32)>,
}

/// Verifies schemes that no row describes.
pub(crate) type Check = fn(&str, &Request<'_>, Timestamp) -> Result<(), Unverified>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// A hash keyed with the secret.
    Mac,
    /// The secret itself.
    Token,
    /// Verified by code, in a separate file.
    Code(Check),
    /// Like `Code`, if the secret is a public key. The first function validates the key.
    PublicKey(fn(&str) -> bool, Check),
    /// A key whose certificate is fetched.
    Certificate,
}

/// A signed part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SignedPart {
    Body,
    /// The body, as a JSON string.
    JsonOfBody,
    Text(&'static str),
    /// The time as written in the request.
    Stamp,
    Value(ValueLocation),
    Method,
    Url,
    /// The URL with some characters unescaped.
    UrlSoftened,
    /// Names and values of a form, sorted.
    Form,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Encoding {
    Hex,
    Base64,
}

/// The form of the secret.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    /// It is the key.
    Text,
    /// The key is the Base64 text, with or without the prefix `whsec_`.
    Base64,
    /// Either.
    TextOrBase64,
    /// One key, or two separated by a comma.
    Pair,
}

const fn mac(
    provider: &'static str,
    signature: ValueLocation,
    parts: &'static [SignedPart],
    hash: Hash,
    encoding: Encoding,
) -> Row {
    Row {
        provider,
        way: Way::Mac,
        signature,
        parts,
        hash,
        encoding,
        key: Key::Text,
        stamp: None,
    }
}

const fn other(provider: &'static str, way: Way, signature: ValueLocation) -> Row {
    Row {
        way,
        ..mac(provider, signature, &[], Sha256, Base64)
    }
}

impl Row {
    const fn stamped(self, place: ValueLocation, tolerance: u32) -> Self {
        Self {
            stamp: Some((place, tolerance)),
            ..self
        }
    }

    const fn key(self, key: Key) -> Self {
        Self { key, ..self }
    }
}

const BODY: &[SignedPart] = &[Body];
const STAMP_DOT_BODY: &[SignedPart] = &[Stamp, Text("."), Body];
const STAMP_BODY: &[SignedPart] = &[Stamp, Body];
const V0_STAMP_BODY: &[SignedPart] = &[Text("v0:"), Stamp, Text(":"), Body];
const SVIX: &[SignedPart] = &[Value(Header("svix-id")), Text("."), Stamp, Text("."), Body];
const STANDARD: &[SignedPart] = &[
    Value(Header("webhook-id")),
    Text("."),
    Stamp,
    Text("."),
    Body,
];

const fn svix(provider: &'static str) -> Row {
    mac(
        provider,
        Listed("svix-signature", "v1"),
        SVIX,
        Sha256,
        Base64,
    )
    .stamped(Header("svix-timestamp"), 300)
    .key(Key::Base64)
}

const fn standard(provider: &'static str, key: Key) -> Row {
    mac(
        provider,
        Listed("webhook-signature", "v1"),
        STANDARD,
        Sha256,
        Base64,
    )
    .stamped(Header("webhook-timestamp"), 300)
    .key(key)
}

/// Providers whose signatures are not documented well enough to rely on.
#[cfg(test)]
pub(crate) static UNCONFIRMED: &[&str] = &["orbit", "vmware"];

/// Sorted by name.
#[rustfmt::skip]
pub(crate) static TABLE: &[Row] = &[
    mac("aftership", Header("aftership-hmac-sha256"), BODY, Sha256, Base64),
    mac("airship", Header("x-ua-signature"), &[Stamp, Text(":"), Body], Sha256, Hex).stamped(Header("x-ua-timestamp"), 180),
    mac("alchemy", Header("x-alchemy-signature"), BODY, Sha256, Hex),
    mac("autodesk", After("x-adsk-signature", "sha1hash="), BODY, Sha1, Hex),
    mac("bitbucket", After("x-hub-signature", "sha256="), BODY, Sha256, Hex),
    mac("bolt", Header("x-bolt-hmac-sha256"), BODY, Sha256, Base64),
    mac("box", Header("box-signature-primary"), &[Body, Stamp], Sha256, Base64).stamped(Header("box-delivery-timestamp"), 600).key(Key::Pair),
    mac("box", Header("box-signature-secondary"), &[Body, Stamp], Sha256, Base64).stamped(Header("box-delivery-timestamp"), 600).key(Key::Pair),
    standard("brex", Key::TextOrBase64),
    mac("buildkite", Field("x-buildkite-signature", "signature"), STAMP_DOT_BODY, Sha256, Hex).stamped(Field("x-buildkite-signature", "timestamp"), 180),
    other("buildkite", Way::Token, Header("x-buildkite-token")),
    mac("calendly", Field("calendly-webhook-signature", "v1"), STAMP_DOT_BODY, Sha256, Hex).stamped(Field("calendly-webhook-signature", "t"), 180),
    mac("castle", Header("x-castle-signature"), BODY, Sha256, Base64),
    mac("chargify", Header("x-chargify-webhook-signature-hmac-sha-256"), BODY, Sha256, Hex),
    mac("circleci", Field("circleci-signature", "v1"), BODY, Sha256, Hex),
    mac("clearbit", After("x-request-signature", "sha1="), BODY, Sha1, Hex),
    svix("clerk"),
    mac("coinbase", Header("x-cc-webhook-signature"), BODY, Sha256, Hex),
    other("contentful", Way::Code(contentful::verify), Header("x-contentful-signature")),
    mac("docusign", Each("x-docusign-signature-"), BODY, Sha256, Base64),
    mac("dropbox", Header("x-dropbox-signature"), BODY, Sha256, Hex),
    mac("facebook_graph_api", After("x-hub-signature-256", "sha256="), BODY, Sha256, Hex),
    mac("facebook_graph_api", After("x-hub-signature", "sha1="), BODY, Sha1, Hex),
    mac("facebook_messenger", After("x-hub-signature-256", "sha256="), BODY, Sha256, Hex),
    mac("facebook_messenger", After("x-hub-signature", "sha1="), BODY, Sha1, Hex),
    mac("frameio", After("x-frameio-signature", "v0="), V0_STAMP_BODY, Sha256, Hex).stamped(Header("x-frameio-request-timestamp"), 300),
    mac("github", After("x-hub-signature-256", "sha256="), BODY, Sha256, Hex),
    other("gitlab", Way::Token, Header("x-gitlab-token")),
    standard("gitlab", Key::TextOrBase64),
    mac("go1", Field("go1-signature", "v*"), STAMP_DOT_BODY, Sha256, Hex).stamped(Field("go1-signature", "t"), 60),
    mac("graphcms", Field("gcms-signature", "sign"), &[
        Text("{\"Body\":"), JsonOfBody,
        Text(",\"EnvironmentName\":\""), Value(Field("gcms-signature", "env")),
        Text("\",\"TimeStamp\":"), Stamp, Text("}"),
    ], Sha256, Base64).stamped(Field("gcms-signature", "t"), 180),
    mac("heroku", Header("heroku-webhook-hmac-sha256"), BODY, Sha256, Base64),
    mac("hostedhooks", Field("hostedhooks-signature", "s"), STAMP_DOT_BODY, Sha256, Hex).stamped(Field("hostedhooks-signature", "t"), 180),
    mac("hubspot", Header("x-hubspot-signature-v3"), &[Method, UrlSoftened, Body, Stamp], Sha256, Base64).stamped(Header("x-hubspot-request-timestamp"), 300),
    mac("hubspot", Header("x-hubspot-signature"), &[Method, Url, Body], PlainSha256, Hex),
    mac("hubspot", Header("x-hubspot-signature"), BODY, PlainSha256, Hex),
    mac("instagram", After("x-hub-signature-256", "sha256="), BODY, Sha256, Hex),
    mac("instagram", After("x-hub-signature", "sha1="), BODY, Sha1, Hex),
    mac("intercom", After("x-hub-signature", "sha1="), BODY, Sha1, Hex),
    mac("jira", After("x-hub-signature", "sha256="), BODY, Sha256, Hex),
    mac("launch_darkly", Header("x-ld-signature"), BODY, Sha256, Hex),
    mac("linear", Header("linear-signature"), BODY, Sha256, Hex).stamped(Json(&["webhookTimestamp"]), 60),
    mac("mailchimp", Header("x-mandrill-signature"), &[Url, Form], Sha1, Base64),
    mac("mailgun", Json(&["signature", "signature"]), &[Stamp, Value(Json(&["signature", "token"]))], Sha256, Hex).stamped(Json(&["signature", "timestamp"]), 180),
    mac("microsoft_teams", After("authorization", "HMAC "), BODY, Sha256, Base64).key(Key::Base64),
    mac("modern_treasury", Header("x-signature"), BODY, Sha256, Hex),
    mac("mongodb", After("endpoint-signature", "sha256="), BODY, Sha256, Hex),
    mac("mongodb", After("x-hook-signature", "sha256="), BODY, Sha256, Hex),
    mac("mux", Field("mux-signature", "v1"), STAMP_DOT_BODY, Sha256, Hex).stamped(Field("mux-signature", "t"), 300),
    mac("orb", After("x-orb-signature", "v1="), &[Text("v1:"), Stamp, Text(":"), Body], Sha256, Hex).stamped(Header("x-orb-timestamp"), 300),
    mac("orbit", After("x-orbit-signature", "sha256="), BODY, Sha256, Hex),
    mac("pagerduty", Field("x-pagerduty-signature", "v1"), BODY, Sha256, Hex),
    mac("pinwheel", After("x-pinwheel-signature", "v2="), &[Text("v2:"), Stamp, Text(":"), Body], Sha256, Hex).stamped(Header("x-timestamp"), 300),
    other("plivo", Way::Code(plivo::verify), Header("x-plivo-signature-v3")),
    mac("pusher", Header("x-pusher-signature"), BODY, Sha256, Hex),
    mac("pusher", Header("webhook-signature"), BODY, Sha1, Hex),
    other("sendgrid", Way::PublicKey(sendgrid::is_key, sendgrid::verify), Header("x-twilio-email-event-webhook-signature")),
    mac("sentry", Header("sentry-hook-signature"), BODY, Sha256, Hex),
    mac("shopify", Header("x-shopify-hmac-sha256"), BODY, Sha256, Base64),
    mac("signal_sciences", Header("x-sigsci-signature"), BODY, Sha256, Hex),
    mac("slack", After("x-slack-signature", "v0="), V0_STAMP_BODY, Sha256, Hex).stamped(Header("x-slack-request-timestamp"), 300),
    other("sns", Way::Certificate, Json(&["Signature"])),
    mac("sonatype", Header("x-nexus-webhook-signature"), BODY, Sha1, Hex),
    mac("square", Header("x-square-hmacsha256-signature"), &[Url, Body], Sha256, Base64),
    mac("square", Header("x-square-signature"), &[Url, Body], Sha1, Base64),
    standard("standard_webhooks", Key::Base64),
    mac("stripe", Field("stripe-signature", "v1"), STAMP_DOT_BODY, Sha256, Hex).stamped(Field("stripe-signature", "t"), 300),
    svix("svix"),
    standard("svix", Key::Base64),
    mac("terraform", Header("x-tfe-notification-signature"), BODY, Sha512, Hex),
    mac("tiktok", Field("tiktok-signature", "s"), STAMP_DOT_BODY, Sha256, Hex).stamped(Field("tiktok-signature", "t"), 300),
    mac("trendmicro_conformity", Header("x-conformity-signature"), BODY, Sha256, Hex),
    other("twilio", Way::Code(twilio::verify), Header("x-twilio-signature")),
    mac("twitter", After("x-twitter-webhooks-signature", "sha256="), BODY, Sha256, Base64),
    mac("typeform", After("typeform-signature", "sha256="), BODY, Sha256, Base64),
    mac("vmware", Field("x-webhook-signature", "s"), &[Body, Text("."), Stamp], Sha256, Hex).stamped(Field("x-webhook-signature", "t"), 180),
    mac("webex", Header("x-spark-signature"), BODY, Sha1, Hex),
    mac("whatsapp", After("x-hub-signature-256", "sha256="), BODY, Sha256, Hex),
    mac("whatsapp", After("x-hub-signature", "sha1="), BODY, Sha1, Hex),
    mac("worldline", Header("x-gcs-signature"), BODY, Sha256, Base64),
    mac("xero", Header("x-xero-signature"), BODY, Sha256, Base64),
    mac("zendesk", Header("x-zendesk-webhook-signature"), STAMP_BODY, Sha256, Base64).stamped(Header("x-zendesk-webhook-signature-timestamp"), 300),
    mac("zoom", After("x-zm-signature", "v0="), V0_STAMP_BODY, Sha256, Hex).stamped(Header("x-zm-request-timestamp"), 300),
];
