//! Sign-in by proof of the password: the client's side of SCRAM (RFC 5802, RFC 7677).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha512};
use subtle::ConstantTimeEq;

use super::Mechanism;

/// Brokers configure no more than this. The limit keeps a broker from costing us CPU time.
const ITERATIONS_MAX: u32 = 16_384;

/// A sign-in in progress.
pub(super) struct Scram<'a> {
    mechanism: Mechanism,
    nonce: &'a str,
    /// The first message without its GS2 header.
    bare: String,
}

/// The response to a challenge.
pub(super) struct Proof {
    /// The final message of the client.
    pub(super) last: String,
    /// The server signature that proves that the broker knows the password too.
    expected: Vec<u8>,
}

impl<'a> Scram<'a> {
    pub(super) fn new(mechanism: Mechanism, user: &str, nonce: &'a str) -> Self {
        let user = user.replace('=', "=3D").replace(',', "=2C");
        Self {
            mechanism,
            nonce,
            bare: format!("n={user},r={nonce}"),
        }
    }

    /// The client's first message.
    pub(super) fn first(&self) -> String {
        format!("n,,{}", self.bare)
    }

    /// The response to the broker's challenge. Errors are sentences.
    pub(super) fn answer(&self, challenge: &[u8], password: &str) -> Result<Proof, &'static str> {
        const UNREADABLE: &str = "the broker's challenge is malformed";
        let challenge = std::str::from_utf8(challenge).map_err(|_| UNREADABLE)?;
        let field = |name: &str| {
            let mut fields = challenge.split(',');
            fields.find_map(|field| field.strip_prefix(name))
        };
        let (Some(nonce), Some(salt), Some(iterations)) = (field("r="), field("s="), field("i="))
        else {
            return Err(UNREADABLE);
        };
        if !nonce.starts_with(self.nonce) || nonce.len() == self.nonce.len() {
            return Err("the broker's challenge has a different nonce");
        }
        let salt = STANDARD.decode(salt).map_err(|_| UNREADABLE)?;
        let iterations: u32 = iterations.parse().map_err(|_| UNREADABLE)?;
        if !(1..=ITERATIONS_MAX).contains(&iterations) {
            return Err("the broker requests too many iterations");
        }
        let without_proof = format!("c=biws,r={nonce}");
        let signed = format!("{},{challenge},{without_proof}", self.bare);
        let (proof, expected) = match self.mechanism {
            Mechanism::ScramSha512 => {
                prove(mac_512, hash_512, password, &salt, iterations, &signed)
            }
            _ => prove(mac_256, hash_256, password, &salt, iterations, &signed),
        };
        Ok(Proof {
            last: format!("{without_proof},p={}", STANDARD.encode(proof)),
            expected,
        })
    }
}

impl Proof {
    /// Checks the broker's signature, which proves that it knows the password too.
    pub(super) fn check(&self, said: &[u8]) -> Result<(), &'static str> {
        let signature = std::str::from_utf8(said)
            .ok()
            .and_then(|said| said.strip_prefix("v="))
            .and_then(|said| {
                STANDARD
                    .decode(said.split(',').next().unwrap_or_default())
                    .ok()
            })
            .unwrap_or_default();
        match bool::from(signature.ct_eq(&self.expected)) {
            true => Ok(()),
            false => Err("the broker failed to prove that it knows the password"),
        }
    }
}

type MacOf = fn(&[u8], &[u8]) -> Vec<u8>;
type HashOf = fn(&[u8]) -> Vec<u8>;

/// Computes the client's proof and the expected signature of the server.
fn prove(
    mac: MacOf,
    hash: HashOf,
    password: &str,
    salt: &[u8],
    iterations: u32,
    signed: &str,
) -> (Vec<u8>, Vec<u8>) {
    let mut round = mac(password.as_bytes(), &[salt, &[0, 0, 0, 1]].concat());
    let mut salted = round.clone();
    for _ in 1..iterations {
        round = mac(password.as_bytes(), &round);
        for (sum, byte) in salted.iter_mut().zip(&round) {
            *sum ^= byte;
        }
    }
    let client_key = mac(&salted, b"Client Key");
    let signature = mac(&hash(&client_key), signed.as_bytes());
    let proof = client_key
        .iter()
        .zip(&signature)
        .map(|(key, signature)| key ^ signature)
        .collect();
    let server_key = mac(&salted, b"Server Key");
    (proof, mac(&server_key, signed.as_bytes()))
}

const ANY_KEY: &str = "HMAC takes keys of every length";

fn mac_256(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect(ANY_KEY);
    mac.update(message);
    mac.finalize().into_bytes().to_vec()
}

fn mac_512(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha512>::new_from_slice(key).expect(ANY_KEY);
    mac.update(message);
    mac.finalize().into_bytes().to_vec()
}

fn hash_256(message: &[u8]) -> Vec<u8> {
    Sha256::digest(message).to_vec()
}

fn hash_512(message: &[u8]) -> Vec<u8> {
    Sha512::digest(message).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7677.
    #[test]
    fn the_scram_exchange_matches_rfc_7677() {
        let scram = Scram::new(Mechanism::ScramSha256, "user", "rOprNGfwEbeRWgbNEkqO");
        assert_eq!(scram.first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let challenge = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let proof = scram.answer(challenge.as_bytes(), "pencil").unwrap();
        assert_eq!(
            proof.last,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        let said = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
        assert_eq!(proof.check(said), Ok(()));
        assert!(proof.check(b"v=AAAA").is_err());
        assert!(proof.check(b"e=other-error").is_err());
    }

    #[test]
    fn only_challenges_with_our_nonce_and_few_iterations_are_answered() {
        let scram = Scram::new(Mechanism::ScramSha512, "a=b,c", "abc");
        assert_eq!(scram.first(), "n,,n=a=3Db=2Cc,r=abc");
        for challenge in [
            "",
            "r=abc,s=AAAA,i=1",
            "r=other,s=AAAA,i=1",
            "r=abcd,s=?,i=1",
            "r=abcd,s=AAAA,i=0",
            "r=abcd,s=AAAA,i=100000000",
            "r=abcd,i=1",
        ] {
            assert!(
                scram.answer(challenge.as_bytes(), "p").is_err(),
                "{challenge}"
            );
        }
        assert!(scram.answer(b"r=abcd,s=AAAA,i=1", "p").is_ok());
    }
}
