//! Encodes header lines as a JSON object (contract: events 9.2): names capitalised, values trimmed,
//! decoded and in ASCII lower case, credentials redacted (also those in the queries of URLs), at
//! most 32 KiB.
//!
//! The JSON is written in one pass. If a name repeats after other names, its further values are
//! stored aside and inserted at the end, so the cost does not depend on the order of lines.
//!
//! Most lines repeat from message to message, so each thread caches the JSON of some lines ([`LineCache`]) and of some
//! whole maps ([`MapCache`]).
//!
//! Not here: the choice of lines. The edge omits pseudo-headers and trailers, and puts a `host`
//! line first for an HTTP/2 request that has only `:authority`.

use std::borrow::Cow;
use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};

use self::map_cache::{Line, MapCache};
use crate::encode::json::{self, HIGH, ONES};

mod map_cache;

/// Maximum bytes of names and values in a map.
pub(crate) const MAP_BYTES_MAX: usize = 32 << 10;

/// Number of names that most messages do not exceed; the initial capacity.
const KEYS_USUAL: usize = 12;
/// A thread keeps the memory for this many names from one message to the next.
const KEYS_RETAINED: usize = 64;

const REDACTED: &[u8] = b"[redacted]";
const COOKIE: &[u8] = b"Cookie";
/// Set only by the server, to the id of the event whose request it replays.
const REPLAY_OF: &[u8] = b"Culvert-Replay-Of";

/// The edge's assertion about a user: its holder is that user for the service behind the edge.
const ASSERTION: &str = "Culvert-Assertion";

/// The rules by which values of headers and queries are shown as `[redacted]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRules {
    redacted: Names,
    /// Headers whose values are URLs.
    urls: Names,
    /// Query parameters: lower case, without `-` and `_`.
    parameters: Vec<Vec<u8>>,
    /// A bit for the first byte of each of them.
    initials: u64,
    /// A hash of all of these rules.
    hash: u64,
}

/// A set of header names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Names {
    /// Each name with its hash.
    names: Vec<(u64, Vec<u8>)>,
    /// A bit for the hash of each name. Most other names are excluded by it without a comparison.
    hashes: u64,
}

impl Names {
    fn of<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let mut all = Self::default();
        for name in names {
            let mut key = Vec::new();
            let (hash, _) = push_name(&mut key, name.trim().as_bytes());
            all.hashes |= bit(hash);
            all.names.push((hash, key));
        }
        all
    }

    fn has(&self, hash: u64, key: &[u8]) -> bool {
        let mut names = self.names.iter();
        self.hashes & bit(hash) != 0 && names.any(|(known, name)| *known == hash && name == key)
    }
}

/// How the values of a name are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Whole,
    Redacted,
    /// A URL, in which parameters may be redacted.
    Url,
    /// In the case as sent: the id of an event.
    Exact,
}

/// Query parameters with which secrets of a sign-in go through a browser: to the identity provider, back from it, and from the
/// common callback address to an endpoint. Sign-ins use these names, and all are in [`HeaderRules::PARAMETERS`].
pub mod sign_in_parameter {
    /// The provider's code, for tokens.
    pub const CODE: &str = "code";
    /// Binds the ID token to the browser.
    pub const NONCE: &str = "nonce";
    /// Binds the callback to the browser.
    pub const STATE: &str = "state";
    /// The one-time link to an endpoint.
    pub const TICKET: &str = "ticket";
}

impl HeaderRules {
    /// Headers whose values are credentials.
    pub const REDACTED: [&'static str; 16] = [
        "Authorization",
        "Proxy-Authorization",
        "Cookie",
        "Set-Cookie",
        "X-Api-Key",
        "Api-Key",
        "X-Auth-Token",
        "X-Access-Token",
        "X-Csrf-Token",
        "X-Xsrf-Token",
        "X-Amz-Security-Token",
        "X-Goog-Api-Key",
        "X-Gitlab-Token",
        "X-Vault-Token",
        "Private-Token",
        "Apikey",
    ];

    /// Query parameters whose values are credentials. Case, `-` and `_` are ignored.
    pub const PARAMETERS: [&'static str; 27] = [
        "access_token",
        "api_key",
        "assertion",
        "auth",
        "auth_token",
        "bearer_token",
        "client_secret",
        sign_in_parameter::CODE,
        "csrf_token",
        "id_token",
        "jwt",
        "key",
        sign_in_parameter::NONCE,
        "passwd",
        "password",
        "refresh_token",
        "secret",
        "session",
        "session_token",
        "sig",
        "signature",
        sign_in_parameter::STATE,
        sign_in_parameter::TICKET,
        "token",
        "x-amz-security-token",
        "x-amz-signature",
        "x-goog-signature",
    ];

    /// Headers whose values are URLs.
    const URLS: [&'static str; 3] = ["Referer", "Location", "Content-Location"];

    /// Rules from the settings `events.redact_headers` and `events.redact_query`: these names (in
    /// any case) besides [`HeaderRules::REDACTED`] and [`HeaderRules::PARAMETERS`]. An empty list
    /// disables redaction of parameters, or of headers except for the edge's own assertions about users.
    pub fn redacting<S: AsRef<str>>(headers: &[S], parameters: &[S]) -> Self {
        let of = |own: &'static [&'static str], more: &[S]| -> Vec<String> {
            let more = more.iter().map(|name| name.as_ref().to_owned());
            let own = own.iter().map(|name| (*name).to_owned());
            if more.len() == 0 {
                Vec::new()
            } else {
                own.chain(more).collect()
            }
        };
        let mut headers = of(&Self::REDACTED, headers);
        headers.push(ASSERTION.to_owned());
        let mut parameters: Vec<Vec<u8>> = of(&Self::PARAMETERS, parameters)
            .iter()
            .map(|name| plain_name(name.trim().as_bytes()).collect())
            .collect();
        parameters.sort_unstable();
        parameters.dedup();
        let mut hasher = DefaultHasher::new();
        (&headers, &parameters).hash(&mut hasher);
        Self {
            hash: hasher.finish(),
            redacted: Names::of(headers.iter().map(String::as_str)),
            urls: match parameters.is_empty() {
                true => Names::default(),
                false => Names::of(Self::URLS),
            },
            initials: parameters
                .iter()
                .filter_map(|name| name.first())
                .fold(0, |initials, first| initials | initial(*first)),
            parameters,
        }
    }

    fn shown(&self, hash: u64, key: &[u8]) -> Shown {
        if self.redacted.has(hash, key) {
            Shown::Redacted
        } else if self.urls.has(hash, key) {
            Shown::Url
        } else if key == REPLAY_OF {
            Shown::Exact
        } else {
            Shown::Whole
        }
    }

    /// Whether the values of a header are redacted. `_` in the name is read as `-`.
    pub fn redacts_header(&self, name: &str) -> bool {
        let mut key = Vec::new();
        let (hash, _) = push_name(&mut key, name.replace('_', "-").as_bytes());
        self.redacted.has(hash, &key)
    }

    /// Whether the values of a header are URLs, whose parameters may be redacted.
    pub fn is_url_header(&self, name: &str) -> bool {
        let mut key = Vec::new();
        let (hash, _) = push_name(&mut key, name.as_bytes());
        self.urls.has(hash, &key)
    }

    /// Whether the values of a query parameter are redacted.
    pub fn redacts_parameter(&self, name: &[u8]) -> bool {
        self.is_secret(name)
    }

    /// The name of a query parameter in the form in which names are compared.
    pub fn parameter_key(name: &[u8]) -> Vec<u8> {
        plain_name(name).collect()
    }

    /// A query with `[redacted]` for the values of secret parameters.
    pub fn query<'q>(&self, query: &'q str) -> Cow<'q, str> {
        match self.redact_parameters(query.as_bytes()) {
            Cow::Borrowed(_) => query.into(),
            // The query is cut at ASCII characters only, so it stays UTF-8.
            Cow::Owned(shown) => String::from_utf8_lossy(&shown).into_owned().into(),
        }
    }

    /// Like [`Self::query`], for a URL with its fragment.
    fn url<'u>(&self, url: &'u [u8]) -> Cow<'u, [u8]> {
        let at = url.iter().position(|byte| b"?#".contains(byte));
        let (before, parameters) = url.split_at(at.unwrap_or(url.len()));
        match self.redact_parameters(parameters) {
            Cow::Borrowed(_) => url.into(),
            Cow::Owned(shown) => [before, &shown].concat().into(),
        }
    }

    fn redact_parameters<'q>(&self, query: &'q [u8]) -> Cow<'q, [u8]> {
        let (mut out, mut copied, mut start) = (Vec::new(), 0, 0);
        while start < query.len() && !self.parameters.is_empty() {
            let rest = &query[start..];
            let length = rest.iter().position(|byte| b"&;?#".contains(byte));
            let parameter = &rest[..length.unwrap_or(rest.len())];
            let end = start + parameter.len();
            if let Some(name) = parameter.iter().position(|byte| *byte == b'=')
                && name + 1 < parameter.len()
                && self.is_secret(&parameter[..name])
            {
                out.extend_from_slice(&query[copied..=start + name]);
                out.extend_from_slice(REDACTED);
                copied = end;
            }
            start = end + 1;
        }
        if out.is_empty() {
            return query.into();
        }
        out.extend_from_slice(&query[copied..]);
        out.into()
    }

    fn is_secret(&self, name: &[u8]) -> bool {
        let mut rest = plain_name(name);
        let Some(first) = rest.next() else {
            return self.parameters.iter().any(Vec::is_empty);
        };
        let is_one = |secret: &Vec<u8>| {
            let others = secret.strip_prefix(&[first]);
            others.is_some_and(|others| rest.clone().eq(others.iter().copied()))
        };
        self.initials & initial(first) != 0 && self.parameters.iter().any(is_one)
    }
}

fn initial(byte: u8) -> u64 {
    1 << (byte & 63)
}

/// The name of a parameter in lower case, percent-decoded, without `-` and `_`.
fn plain_name(name: &[u8]) -> impl Iterator<Item = u8> + Clone {
    let letters = decoded(name).filter(|byte| !b"-_".contains(byte));
    letters.map(|byte| byte.to_ascii_lowercase())
}

/// Percent-decoded bytes: servers read `%74oken` as `token`.
fn decoded(text: &[u8]) -> impl Iterator<Item = u8> + Clone {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (first, after) = rest.split_first()?;
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        if *first == b'%'
            && let (Some(high), Some(low)) = (digit(0), digit(1))
        {
            rest = &after[2..];
            return u8::try_from(high * 16 + low).ok();
        }
        rest = after;
        Some(*first)
    })
}

/// Redacts [`HeaderRules::REDACTED`] and [`HeaderRules::PARAMETERS`].
impl Default for HeaderRules {
    fn default() -> Self {
        Self::redacting(&["authorization"], &["token"])
    }
}

/// How several `cookie` lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cookies {
    /// Several values, as with any other name (HTTP/1, and all responses).
    AsReceived,
    /// Parts of one value (RFC 9113 8.2.3), joined by `; ` (HTTP/2 requests).
    Joined,
}

/// Writes the map of `lines` (name, value), in wire order.
pub(crate) fn push_map<'a>(
    out: &mut Vec<u8>,
    rules: &HeaderRules,
    cookies: Cookies,
    mut lines: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) {
    let mut cache = CACHE.take().unwrap_or_default();
    let Cache {
        lines: line_cache,
        maps,
    } = &mut *cache;
    let mut next = lines.next();
    let known = maps.matching(rules, cookies, &mut next, &mut lines);
    let whole = next.is_none().then(|| maps.whole(known)).flatten();
    if let Some(json) = whole {
        out.extend_from_slice(json);
        CACHE.set(Some(cache));
        return;
    }
    let mut draft = maps.draft();
    let start = out.len();
    out.push(b'{');
    let mut map = MapWriter {
        keys: std::mem::take(&mut line_cache.keys),
        out,
        strays: Vec::new(),
        hashes: 0,
        bytes: 0,
        cache: line_cache,
    };
    map.keys.reserve(KEYS_USUAL);
    let mut push = |line: Line<'_>| {
        let shown = map.push_line(line, rules, cookies);
        if let Some(copy) = &mut draft
            && !copy.push(line, shown)
        {
            draft = None;
        }
    };
    maps.first_lines(known).for_each(&mut push);
    next.into_iter().chain(lines).for_each(&mut push);
    let mut keys = map.close(start);
    if let Some(draft) = draft {
        maps.put(draft, rules, cookies, &out[start..]);
    }
    if keys.capacity() <= KEYS_RETAINED {
        keys.clear();
        line_cache.keys = keys;
    }
    CACHE.set(Some(cache));
}

/// The caches of a thread.
#[derive(Debug, Default)]
struct Cache {
    lines: LineCache,
    maps: MapCache,
}

thread_local! {
    static CACHE: Cell<Option<Box<Cache>>> = const { Cell::new(None) };
}

/// Number of lines that are kept.
const CACHED_LINES: usize = 64;
/// Longer lines are not kept.
const CACHED_BYTES_MAX: usize = 256;
/// One in this many lines that are not cached is added, so lines that occur once cost little.
const CACHED_EVERY: u32 = 4;

/// Header lines and their JSON. Values of credentials are never cached.
#[derive(Debug, Default)]
struct LineCache {
    lines: Vec<CachedLine>,
    n_missed: u32,
    /// Empty: the memory for the names of the next map.
    keys: Vec<Key>,
}

#[derive(Clone, Debug, Default)]
struct CachedLine {
    /// Hash of the rules.
    rules: u64,
    /// The name and the value as received.
    received: Vec<u8>,
    name_length: usize,
    /// `],"Name":["value"`. Its first bytes end the line before ([`NEXT_LINE`]).
    json: Vec<u8>,
    /// Bytes of the name in it.
    name_bytes: usize,
    /// Hash of the name.
    hash: u64,
    bytes: usize,
    /// Whether it was used since another line last claimed its place.
    is_used: bool,
}

impl LineCache {
    /// The place of a line in the cache.
    fn place_of(name: &[u8], value: &[u8]) -> usize {
        (line_hash((name, value)) >> (64 - CACHED_LINES.ilog2())) as usize
    }

    fn get(&mut self, rules: &HeaderRules, name: &[u8], value: &[u8]) -> Option<&CachedLine> {
        let line = self.lines.get_mut(Self::place_of(name, value))?;
        let is_it = line.rules == rules.hash
            && line.name_length == name.len()
            && line.received.len() == name.len() + value.len()
            && line.received[..name.len()] == *name
            && line.received[name.len()..] == *value;
        line.is_used |= is_it;
        is_it.then_some(line)
    }

    /// Counts a line that was not cached, and adds some of them.
    fn missed(
        &mut self,
        rules: &HeaderRules,
        (name, value): (&[u8], &[u8]),
        json: &[u8],
        key: &Key,
    ) {
        self.n_missed = self.n_missed.wrapping_add(1);
        let length = name.len() + value.len();
        let is_kept = self.n_missed.is_multiple_of(CACHED_EVERY) && length <= CACHED_BYTES_MAX;
        // Other values are or may contain credentials, so they must not be cached as received.
        if !is_kept || key.shown != Shown::Whole {
            return;
        }
        if self.lines.is_empty() {
            self.lines.resize(CACHED_LINES, CachedLine::default());
        }
        let line = &mut self.lines[Self::place_of(name, value)];
        if std::mem::take(&mut line.is_used) {
            return;
        }
        line.rules = rules.hash;
        line.received.clear();
        line.received.extend_from_slice(name);
        line.received.extend_from_slice(value);
        line.name_length = name.len();
        line.json.clear();
        line.json.extend_from_slice(NEXT_LINE);
        line.json.extend_from_slice(json);
        line.name_bytes = key.name.1 - key.name.0;
        (line.hash, line.bytes) = (key.hash, key.bytes);
    }
}

/// A hash of the ends and the lengths of a line. Its upper bits are the best distributed.
fn line_hash((name, value): Line<'_>) -> u64 {
    let end = |text: &[u8]| match text.last_chunk::<4>() {
        Some(last) => u64::from(u32::from_le_bytes(*last)),
        None => u64::from(text.last().copied().unwrap_or(0)),
    };
    let lengths = (name.len() << 16 | value.len()) as u64;
    mixed(mixed(lengths, end(name)), end(value))
}

/// Whether a byte may be part of an id, and so needs no escape.
fn is_id_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || *byte == b'_'
}

/// Ends the values of a name and begins the next name.
const NEXT_LINE: &[u8] = b"],\"";

struct MapWriter<'o> {
    out: &'o mut Vec<u8>,
    keys: Vec<Key>,
    strays: Vec<Stray>,
    /// A bit for the hash of each key. A name whose bit is not set is new.
    hashes: u64,
    /// The sum over all keys.
    bytes: usize,
    cache: &'o mut LineCache,
}

/// A name, and where its values are written.
#[derive(Debug)]
struct Key {
    hash: u64,
    /// Start and end of the name; the end is exclusive.
    name: (usize, usize),
    /// `"Name":["first","second"`, without the bracket that ends the list.
    end: usize,
    /// Further values that are stored aside: indices of the first and the last.
    strays: Option<(usize, usize)>,
    shown: Shown,
    /// Its bytes that count towards the limit.
    bytes: usize,
}

/// `,"value"` (or `; value"` of a cookie) that must be inserted at its name.
struct Stray {
    start: usize,
    end: usize,
    next: Option<usize>,
}

impl MapWriter<'_> {
    /// Writes a line. Returns how its value is shown.
    fn push_line(
        &mut self,
        (name, value): Line<'_>,
        rules: &HeaderRules,
        cookies: Cookies,
    ) -> Shown {
        let before = self.out.len();
        // The first name has no line before it.
        let begins_at = match self.keys.is_empty() {
            true => NEXT_LINE.len() - 1,
            false => 0,
        };
        if let Some(line) = self.cache.get(rules, name, value)
            && is_new(&self.keys, self.hashes, line.hash)
        {
            self.out.extend_from_slice(&line.json[begins_at..]);
            let start = before + NEXT_LINE.len() - begins_at;
            self.hashes |= bit(line.hash);
            self.bytes += line.bytes;
            self.keys.push(Key {
                hash: line.hash,
                name: (start, start + line.name_bytes),
                end: self.out.len(),
                strays: None,
                shown: Shown::Whole,
                bytes: line.bytes,
            });
            return Shown::Whole;
        }
        self.out.reserve(name.len() + value.len() + 32);
        self.out.extend_from_slice(&NEXT_LINE[begins_at..]);
        let start = self.out.len();
        let (hash, name_bytes) = push_name(self.out, name);
        let end = self.out.len();
        if self.hashes & bit(hash) != 0
            && let Some(index) = self.find(hash, start)
        {
            self.out.truncate(before);
            self.push_again(index, value, rules, cookies);
            return self.keys[index].shown;
        }
        let shown = rules.shown(hash, &self.out[start..end]);
        self.out.extend_from_slice(b"\":[\"");
        let bytes = name_bytes + self.push_value(value, shown, rules);
        self.out.push(b'"');
        self.hashes |= bit(hash);
        self.bytes += bytes;
        let key = Key {
            hash,
            name: (start, end),
            end: self.out.len(),
            strays: None,
            shown,
            bytes,
        };
        let json = &self.out[start..];
        self.cache.missed(rules, (name, value), json, &key);
        self.keys.push(key);
        shown
    }

    /// The key whose name equals the bytes from `start` on.
    fn find(&self, hash: u64, start: usize) -> Option<usize> {
        let name = &self.out[start..];
        self.keys
            .iter()
            .position(|key| key.hash == hash && self.out[key.name.0..key.name.1] == *name)
    }

    /// Adds a value to a name that occurred before.
    fn push_again(&mut self, index: usize, value: &[u8], rules: &HeaderRules, cookies: Cookies) {
        let key = &self.keys[index];
        let shown = key.shown;
        let joined = cookies == Cookies::Joined && self.out[key.name.0..key.name.1] == *COOKIE;
        if joined && shown == Shown::Redacted {
            return;
        }
        let last = key.strays.map(|(_, last)| last);
        let mut tail = last.map_or(key.end, |last| self.strays[last].end);
        let adjacent = tail == self.out.len();
        if joined {
            // Remove the closing quote, because the value continues.
            tail -= 1;
            match last {
                Some(last) => self.strays[last].end = tail,
                None => self.keys[index].end = tail,
            }
            if adjacent {
                self.out.truncate(tail);
            }
        }
        let start = self.out.len();
        self.out
            .extend_from_slice(if joined { b"; " } else { b",\"" });
        let bytes = self.push_value(value, shown, rules) + if joined { 2 } else { 0 };
        self.out.push(b'"');
        let end = self.out.len();
        self.keys[index].bytes += bytes;
        self.bytes += bytes;
        match last {
            Some(last) if adjacent => self.strays[last].end = end,
            None if adjacent => self.keys[index].end = end,
            _ => {
                let stray = self.strays.len();
                self.strays.push(Stray {
                    start,
                    end,
                    next: None,
                });
                if let Some(last) = last {
                    self.strays[last].next = Some(stray);
                }
                let key = &mut self.keys[index];
                key.strays = Some((key.strays.map_or(stray, |(first, _)| first), stray));
            }
        }
    }

    /// Writes a value without quotes. Returns the bytes that count towards the limit.
    fn push_value(&mut self, value: &[u8], shown: Shown, rules: &HeaderRules) -> usize {
        match shown {
            Shown::Redacted => {
                self.out.extend_from_slice(REDACTED);
                REDACTED.len()
            }
            Shown::Url => push_lower_case(self.out, &rules.url(trim(value))),
            Shown::Whole => push_lower_case(self.out, trim(value)),
            Shown::Exact if trim(value).iter().all(is_id_byte) => {
                self.out.extend_from_slice(trim(value));
                trim(value).len()
            }
            Shown::Exact => push_lower_case(self.out, trim(value)),
        }
    }

    /// How many names fit.
    fn n_kept(&self) -> usize {
        if self.bytes <= MAP_BYTES_MAX {
            return self.keys.len();
        }
        let mut bytes = 0;
        let fits = |key: &&Key| {
            bytes += key.bytes;
            bytes <= MAP_BYTES_MAX
        };
        self.keys.iter().take_while(fits).count()
    }

    /// Keeps the names that fit, inserts the values that were stored aside, and ends the map that
    /// began at `start`. Returns the memory of the names.
    fn close(self, start: usize) -> Vec<Key> {
        let kept = self.n_kept();
        let Self {
            out,
            keys: all_keys,
            strays,
            ..
        } = self;
        let keys = &all_keys[..kept];
        if strays.is_empty() {
            out.truncate(keys.last().map_or(start + 1, |key| key.end));
        } else {
            let rebuilt = out.len();
            for (index, key) in keys.iter().enumerate() {
                out.extend_from_slice(if index == 0 { b"" } else { b"]," });
                out.extend_from_within(key.name.0 - 1..key.end);
                let mut next = key.strays.map(|(first, _)| first);
                while let Some(stray) = next {
                    let stray = &strays[stray];
                    out.extend_from_within(stray.start..stray.end);
                    next = stray.next;
                }
            }
            out.copy_within(rebuilt.., start + 1);
            out.truncate(start + 1 + out.len() - rebuilt);
        }
        out.extend_from_slice(if keys.is_empty() { b"}" } else { b"]}" });
        all_keys
    }
}

/// Whether no key has this hash. `hashes` has a bit for the hash of each.
fn is_new(keys: &[Key], hashes: u64, hash: u64) -> bool {
    hashes & bit(hash) == 0 || keys.iter().all(|key| key.hash != hash)
}

/// Writes a name in lower case, with a capital at the beginning and after each `-`. Returns its
/// hash, and its length before escaping.
fn push_name(out: &mut Vec<u8>, name: &[u8]) -> (u64, usize) {
    let (mut hash, mut special) = (0, 0);
    // Marks the first byte of the next word if it begins a part of the name.
    let mut begins = 0x80;
    // A non-ASCII byte affects the byte beside it; such names are written again below.
    json::push_words(out, name, |word| {
        special |= json::specials(word) | word & HIGH;
        let lower = lower_case(word);
        let dashes = !(lower ^ (ONES * 0x2D)).wrapping_add(ONES * 0x7F) & HIGH;
        let letters = between(lower, b'a', b'z') & (dashes << 8 | begins);
        begins = dashes >> 56;
        let word = lower ^ (letters >> 2);
        hash = mixed(hash, word);
        word
    });
    if special == 0 {
        return (hash, name.len());
    }
    out.truncate(out.len() - name.len());
    push_odd_name(out, name)
}

/// Writes a name that is not a token. The edge rejects such names; if one occurs, the JSON is still
/// valid.
#[cold]
fn push_odd_name(out: &mut Vec<u8>, name: &[u8]) -> (u64, usize) {
    let mut text = decode(name).into_bytes();
    let mut begins = true;
    for byte in &mut text {
        *byte = if begins {
            byte.to_ascii_uppercase()
        } else {
            byte.to_ascii_lowercase()
        };
        begins = *byte == b'-';
    }
    json::push_inner(out, &text);
    let hash = text
        .iter()
        .fold(0, |hash, byte| mixed(hash, u64::from(*byte)));
    (hash, text.len())
}

/// Writes a value in ASCII lower case. Returns its length before escaping.
fn push_lower_case(out: &mut Vec<u8>, value: &[u8]) -> usize {
    let mut special = 0;
    json::push_words(out, value, |word| {
        special |= json::specials(word) | word & HIGH;
        lower_case(word)
    });
    if special == 0 {
        return value.len();
    }
    out.truncate(out.len() - value.len());
    let mut text = decode(value);
    text.make_ascii_lowercase();
    json::push_inner(out, text.as_bytes());
    text.len()
}

/// Decodes UTF-8, or Latin-1 if the bytes are not UTF-8.
pub(crate) fn decode(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().copied().map(char::from).collect(),
    }
}

fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Converts the ASCII letters of a word to lower case.
fn lower_case(word: u64) -> u64 {
    word | between(word, b'A', b'Z') >> 2
}

/// Marks the bytes of a word from `first` to `last`, both ASCII.
fn between(word: u64, first: u8, last: u8) -> u64 {
    debug_assert!(first.is_ascii() && last.is_ascii(), "not ASCII");
    let low = word & !HIGH;
    let from_first = low + ONES * u64::from(0x80 - first);
    let beyond_last = low + ONES * u64::from(0x7F - last);
    from_first & !beyond_last & !word & HIGH
}

/// One step of a hash over a name. Names with equal hashes are compared.
fn mixed(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn bit(hash: u64) -> u64 {
    1 << (hash >> 58)
}

#[cfg(test)]
mod tests;
