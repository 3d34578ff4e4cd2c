//! Verification of Amazon SNS, whose messages name the certificate of the signing key.
//!
//! Reading and verifying are separate steps, because the certificate is fetched between them from
//! [`Message::certificate`]. Only addresses of Amazon are accepted.

use std::fmt::Write;

use aws_lc_rs::signature::{
    ParsedPublicKey, RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256,
};
use culvert_base::Timestamp;
use url::Url;
use x509_parser::parse_x509_certificate;
use x509_parser::pem::parse_x509_pem;

use crate::json;
use crate::request::Unverified;
use crate::signature::{check_stamp, from_base64};

const TOLERANCE: u32 = 3600;
/// Maximum length of a certificate's URL, in bytes.
const URL_BYTES_MAX: usize = 512;

/// A message with the URL of its signer's certificate, not yet verified.
#[derive(Debug)]
pub struct Message {
    certificate: Url,
    signature: Vec<u8>,
    signed: String,
    is_sha1: bool,
}

/// The relevant fields of a message. Other fields are not signed.
static NAMES: [&str; 11] = [
    "Type",
    "MessageId",
    "TopicArn",
    "Message",
    "Timestamp",
    "Subject",
    "SubscribeURL",
    "Token",
    "SignatureVersion",
    "Signature",
    "SigningCertURL",
];

impl Message {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// The body is not an SNS message, or is too old.
    pub fn read(body: &[u8], now: Timestamp) -> Result<Self, Unverified> {
        let [
            kind,
            id,
            topic,
            message,
            at,
            subject,
            subscribe,
            token,
            version,
            signature,
            certificate,
        ] = json::texts(body, &NAMES)?;
        let signature = signature.ok_or(Unverified::Missing("Signature"))?;
        let certificate = certificate.ok_or(Unverified::Missing("SigningCertURL"))?;
        check_stamp(at.as_deref().unwrap_or_default(), TOLERANCE, now)?;
        let is_sha1 = match version.as_deref() {
            Some("1") => true,
            Some("2") => false,
            _ => return Err(Unverified::Malformed),
        };
        let is_notification = match kind.as_deref() {
            Some("Notification") => true,
            Some("SubscriptionConfirmation" | "UnsubscribeConfirmation") => false,
            _ => return Err(Unverified::Malformed),
        };
        let mut signed = String::new();
        let mut sign = |name: &str, value: Option<&String>, is_needed: bool| match value {
            Some(value) => writeln!(signed, "{name}\n{value}").map_err(|_| Unverified::Malformed),
            None if is_needed => Err(Unverified::Malformed),
            None => Ok(()),
        };
        sign("Message", message.as_ref(), true)?;
        sign("MessageId", id.as_ref(), true)?;
        if is_notification {
            sign("Subject", subject.as_ref(), false)?;
        } else {
            sign("SubscribeURL", subscribe.as_ref(), true)?;
        }
        sign("Timestamp", at.as_ref(), true)?;
        if !is_notification {
            sign("Token", token.as_ref(), true)?;
        }
        sign("TopicArn", topic.as_ref(), true)?;
        sign("Type", kind.as_ref(), true)?;
        Ok(Self {
            certificate: certificate_url(&certificate).ok_or(Unverified::Certificate)?,
            signature: from_base64(&signature).ok_or(Unverified::Malformed)?,
            signed,
            is_sha1,
        })
    }

    /// The URL of the signer's certificate.
    pub fn certificate(&self) -> &Url {
        &self.certificate
    }

    /// Verifies the signature with a PEM certificate.
    ///
    /// # Errors
    /// The message is not signed with the key of that certificate.
    pub fn verify(&self, certificate: &[u8], now: Timestamp) -> Result<(), Unverified> {
        let (_, pem) = parse_x509_pem(certificate).map_err(|_| Unverified::Certificate)?;
        let (_, certificate) =
            parse_x509_certificate(&pem.contents).map_err(|_| Unverified::Certificate)?;
        let validity = certificate.validity();
        let seconds = now.unix_seconds();
        if seconds < validity.not_before.timestamp() || seconds > validity.not_after.timestamp() {
            return Err(Unverified::Certificate);
        }
        let algorithm = if self.is_sha1 {
            &RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY
        } else {
            &RSA_PKCS1_2048_8192_SHA256
        };
        ParsedPublicKey::new(algorithm, certificate.public_key().raw)
            .map_err(|_| Unverified::Certificate)?
            .verify_sig(self.signed.as_bytes(), &self.signature)
            .map_err(|_| Unverified::Mismatch)
    }
}

/// Accepts only `https://sns.<region>.amazonaws.com[.cn]/….pem`. A region begins with two letters and ends in
/// a number, which excludes names that customers of Amazon can choose, such as bucket names.
fn certificate_url(text: &str) -> Option<Url> {
    if text.len() > URL_BYTES_MAX {
        return None;
    }
    let url = Url::parse(text).ok()?;
    let host = url.host_str()?;
    let host = host.strip_suffix(".cn").unwrap_or(host);
    let region = host.strip_prefix("sns.")?.strip_suffix(".amazonaws.com")?;
    let mut labels = region.split('-');
    let is_letters = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase());
    let country = labels.next().filter(|text| text.len() == 2)?;
    let number = labels.next_back()?;
    let mut rest = labels.peekable();
    let is_region = is_letters(country)
        && (1..=2).contains(&number.len())
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && rest.peek().is_some()
        && rest.all(|label| !label.is_empty() && is_letters(label));
    let is_plain = url.scheme() == "https"
        && url.port().is_none()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
        && url.path().ends_with(".pem");
    (is_region && is_plain).then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_fetched_only_from_amazon() {
        for (text, is_taken) in [
            ("https://sns.us-east-1.amazonaws.com/a.pem", true),
            ("https://sns.us-gov-west-1.amazonaws.com/a.pem", true),
            ("https://sns.cn-north-1.amazonaws.com.cn/a.pem", true),
            ("http://sns.us-east-1.amazonaws.com/a.pem", false),
            ("https://sns.us-east-1.amazonaws.com/a.txt", false),
            ("https://sns.us-east-1.amazonaws.com/a.pem?x=.pem", false),
            ("https://sns.us-east-1.amazonaws.com:8443/a.pem", false),
            ("https://u@sns.us-east-1.amazonaws.com/a.pem", false),
            ("https://sns.us-east-1.amazonaws.com.evil.test/a.pem", false),
            ("https://sns.s3.amazonaws.com/a.pem", false),
            ("https://sns.s3-us-west-2.amazonaws.com/a.pem", false),
            ("https://evil.sns.us-east-1.amazonaws.com/a.pem", false),
            ("https://sns.us-1.amazonaws.com/a.pem", false),
            ("https://sns.us--1.amazonaws.com/a.pem", false),
            ("https://sns..amazonaws.com/a.pem", false),
            ("https://169.254.169.254/a.pem", false),
            ("nonsense", false),
        ] {
            assert_eq!(certificate_url(text).is_some(), is_taken, "{text}");
        }
    }
}
