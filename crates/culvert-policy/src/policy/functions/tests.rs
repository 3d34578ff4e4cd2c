use culvert_cel::{EvalErrorKind, Resolver, Slot, Value, ValueRef};

use super::*;
use crate::policy::environments;
use crate::policy::values::{map, text, texts};
use crate::policy::variables;

/// What the functions about a message read.
struct Message(Vec<Value>);

impl Message {
    fn new() -> Self {
        let cookie = map(vec![
            ("name", Value::from("c")),
            ("value", Value::from("1")),
        ]);
        let values = variables::ALL.iter().map(|variable| match &*variable.path {
            "req.headers" | "res.headers" => map(vec![("x-a", texts(["1", "2"]))]),
            "req.cookies" | "res.cookies" => map(vec![("c", Value::List([cookie.clone()].into()))]),
            "req.url.query_params" => map(vec![("q", texts(["a b"]))]),
            variables::RANDOM => Value::Int(i64::MAX / 2),
            variables::SECRETS => map(vec![("v", map(vec![("n", Value::from("hush"))]))]),
            _ => Value::Null,
        });
        Self(values.collect())
    }
}

impl Resolver for Message {
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
        self.0.get(usize::from(slot)).map(Value::borrow)
    }
}

fn eval(source: &str) -> Result<String, EvalErrorKind> {
    let program = environments::of(Phase::Response)
        .compile(source)
        .unwrap_or_else(|error| panic!("{source}: {error}"));
    let value = program.eval(&Message::new()).map_err(|error| error.kind)?;
    Ok(text(value.borrow()))
}

#[test]
fn functions_return_their_documented_results() {
    for (source, expected) in [
        ("hasReqHeader('X-A') && !hasReqHeader('x-b')", "true"),
        ("getReqHeader('X-A')", r#"["1","2"]"#),
        ("getResHeader('nope')", "[]"),
        ("hasResHeader('x-a')", "true"),
        ("hasReqCookie('c') && !hasResCookie('d')", "true"),
        ("getReqCookie('c').value", "1"),
        (
            "hasQueryParam('q') && getQueryParam('q')[0] == 'a b'",
            "true",
        ),
        ("inCidrRange('192.0.2.7', '192.0.2.0/24')", "true"),
        (
            "inCidrRange('x', '192.0.2.0/24') || inCidrRange('::1', 'y')",
            "false",
        ),
        ("inCidrRanges('::1', ['192.0.2.0/24', '::/64'])", "true"),
        (
            "'10.1.2.3'.isPrivateIp() && !'8.8.8.8'.isPrivateIp() && !'::1'.isPrivateIp()",
            "true",
        ),
        ("basic_auth.encode('me', 'pw')", "Basic bWU6cHc="),
        ("rand.double()", "0.5"),
        ("rand.int()", "1"),
        ("rand.int(10, 12) >= 10 && rand.int(10, 12) <= 12", "true"),
        (
            "'tacocat'.charAt(3) + 'héllo'.charAt(1) + 'a'.charAt(1)",
            "oé",
        ),
        ("'hello mellow'.indexOf('ello')", "1"),
        ("'hello mellow'.indexOf('ello', 2)", "7"),
        (
            "'héllo'.indexOf('l') == 2 && 'a'.indexOf('b') == -1",
            "true",
        ),
        ("'hello mellow'.lastIndexOf('ello')", "7"),
        ("'hello mellow'.lastIndexOf('ello', 6)", "1"),
        ("'a,b,c'.split(',')", r#"["a","b","c"]"#),
        ("'hello mellow'.split(' ', 1)", r#"["hello mellow"]"#),
        ("'a,b,c'.split(',', 2)", r#"["a","b,c"]"#),
        ("'abc'.split('', 2)", r#"["a","bc"]"#),
        ("'abc'.split('', 0)", "[]"),
        ("['a', 'b'].join('-') + ['c'].join()", "a-bc"),
        ("'hello hello'.replace('he', 'we')", "wello wello"),
        ("'hello hello'.replace('he', 'we', 1)", "wello hello"),
        (
            "'tacocat'.substring(4) + 'tacocat'.substring(0, 4)",
            "cattaco",
        ),
        ("'  \\t a '.trim() + 'abc'.reverse()", "acba"),
        ("'TacoÆ'.lowerAscii() + 'tacoæ'.upperAscii()", "tacoÆTACOæ"),
        ("'ÆA'.lower() + 'æa'.upper()", "æaÆA"),
        (
            "'%s is %d, %.2f, %x, %X, %o, %b, 100%%'.format(['a', -7, 1.5, 255, 'hi', 8, true])",
            "a is -7, 1.50, ff, 6869, 10, 1, 100%",
        ),
        (
            "'%e %s'.format([1234.5, [1, 'a']])",
            "1.234500e+03 [1,\"a\"]",
        ),
        ("strings.quote('a\"b')", "\"a\\\"b\""),
        ("[1, 2, 3, 4].slice(1, 3)", "[2,3]"),
        ("[1, [2, [3]]].flatten()", "[1,2,[3]]"),
        ("[1, [2, [3]]].flatten(2)", "[1,2,3]"),
        ("[3, 1, 2].sort()", "[1,2,3]"),
        ("['b', 'a', 'b'].distinct()", r#"["b","a"]"#),
        ("lists.range(3)", "[0,1,2]"),
        ("base64.encode(b'hello')", "aGVsbG8="),
        ("string(base64.decode('aGVsbG8='))", "hello"),
        (
            "'hello'.encodeBase64() + 'aGVsbG8='.decodeBase64()",
            "aGVsbG8=hello",
        ),
        ("json.decode('{\"a\": [1, 2.5, null]}').a[0] + 1", "2"),
        ("{'a': [1, 'x']}.encodeJson()", r#"{"a":[1,"x"]}"#),
        (
            "json.encode('x') + '[1]'.decodeJson().encodeJson()",
            "\"x\"[1]",
        ),
        ("'{}'.isJson() && !'{'.isJson()", "true"),
        (
            "queryString.decode('a=1&b=x+y&a=2')",
            r#"{"a":"1","b":"x y"}"#,
        ),
        (
            "{'a': 'x y', 'b': ['1', '2']}.encodeQueryString()",
            "a=x+y&b=1&b=2",
        ),
        ("'a=b'.isQueryString() && !'a b'.isQueryString()", "true"),
        ("url.parse('https://a.example:81/b?c#d').port", "81"),
        (
            "'https://a.example/b?c'.parseUrl()",
            r#"{"host":"a.example","path":"/b","port":"","query":"c","scheme":"https"}"#,
        ),
        (
            "url.escape('a b&c') + 'a+b%26c'.unescapeUrl()",
            "a+b%26ca b&c",
        ),
        ("'https://a'.isURL() && !'/a'.isURL()", "true"),
        // From the check values of the algorithms' own specifications.
        ("hash.crc32('123456789')", "cbf43926"),
        ("hash.crc64('123456789')", "b90956c775a41001"),
        ("'abc'.md5()", "900150983cd24fb0d6963f7d28e17f72"),
        (
            "hash.sha1('abc')",
            "a9993e364706816aba3e25717850c26c9cd0d89d",
        ),
        (
            "'abc'.sha256('base64')",
            "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=",
        ),
        ("hash.sha512('abc').startsWith('ddaf35a193617aba')", "true"),
        ("'abc'.xxhash64()", "44bc2cf5ad770999"),
    ] {
        assert_eq!(eval(source).as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn invalid_arguments_of_functions_are_errors() {
    use EvalErrorKind::{IndexOutOfRange, InvalidArgument, MemoryExceeded, NoSuchKey};
    for (source, kind) in [
        ("getReqCookie('nope')", NoSuchKey),
        ("rand.int(2, 1)", InvalidArgument),
        ("'a'.charAt(2)", IndexOutOfRange),
        ("'a'.substring(1, 0)", IndexOutOfRange),
        ("'%d'.format([])", IndexOutOfRange),
        ("'%q'.format([1])", InvalidArgument),
        ("[1, 'a'].map(x, dyn(x)).sort()", InvalidArgument),
        ("[1].slice(0, 2)", IndexOutOfRange),
        ("lists.range(100000)", MemoryExceeded),
        ("base64.decode('aGVsbG8')", InvalidArgument),
        ("json.decode('{')", InvalidArgument),
        ("'abc'.md5('nope')", InvalidArgument),
        (
            "lists.range(1000).map(x, 'x').join().replace('x', lists.range(100).map(x, 'y').join())",
            MemoryExceeded,
        ),
    ] {
        assert_eq!(eval(source), Err(kind), "{source}");
    }
}

#[test]
fn each_function_is_documented_and_of_its_phase() {
    for function in ALL.iter() {
        assert!(
            function.extension.doc.ends_with('.'),
            "{}",
            function.extension.name
        );
    }
    assert!(
        environments::of(Phase::Connect)
            .compile("hasReqHeader('a')")
            .is_err()
    );
    assert!(
        environments::of(Phase::Request)
            .compile("hasResHeader('a')")
            .is_err()
    );
}

/// Clients choose the items, and a sort without a total order may panic.
#[test]
fn sorting_items_without_a_common_order_is_an_error() {
    for count in 3..=64_usize {
        let item = |index: usize| match index * 7 % 5 % 3 {
            0 => format!("{}", index * 37 % 101),
            1 => format!("'{}'", index * 53 % 101),
            _ => format!("{}.5", index * 71 % 101),
        };
        let items: Vec<String> = (0..count).map(item).collect();
        let items = items.join(", ");
        let sorted = eval(&format!("[{items}].sort()"));
        assert_eq!(sorted, Err(EvalErrorKind::InvalidArgument), "{items}");
        let sorted = eval(&format!("[{items}].sortBy(x, x)"));
        assert_eq!(sorted, Err(EvalErrorKind::NoSuchOverload), "{items}");
    }
    for one in ["[].sort()", "[double('NaN')].sort()", "['a'].sortBy(x, x)"] {
        assert!(eval(one).is_ok(), "{one}");
    }
    let both = eval("[1.0, double('NaN'), 2.0].sort()");
    assert_eq!(both, Err(EvalErrorKind::InvalidArgument));
}

/// Several ints equal the same double, but not each other.
#[test]
fn ints_and_doubles_have_one_order() {
    let large = 1_i64 << 53;
    for count in 2..=48_usize {
        let item = |index: usize| match index % 2 {
            0 => format!("{}", large + (index * 37 % 11) as i64),
            _ => format!("double({})", large + (index * 53 % 11) as i64),
        };
        let items: Vec<String> = (0..count).map(item).collect();
        let items = items.join(", ");
        let sorted = eval(&format!("[{items}].map(x, dyn(x)).sortBy(x, x).size()"));
        assert_eq!(sorted, Ok(count.to_string()), "{items}");
    }
}

#[test]
fn secrets_are_found_by_vault_and_name() {
    assert_eq!(eval("secrets.get('v', 'n')"), Ok("hush".to_owned()));
    for absent in ["secrets.get('v', 'x')", "secrets.get('x', 'n')"] {
        assert_eq!(eval(absent), Err(EvalErrorKind::Missing), "{absent}");
    }
    // The variable behind it has no name that could be written.
    assert!(
        environments::of(Phase::Response)
            .compile("secrets")
            .is_err()
    );
}

#[test]
fn time_functions_accept_named_zones() {
    for (call, hour) in [
        (
            "timestamp('2026-07-01T10:30:00Z').getHours('Europe/Vienna')",
            "12",
        ),
        (
            "timestamp('2026-01-01T10:30:00Z').getHours('Europe/Vienna')",
            "11",
        ),
        (
            "timestamp('2026-01-01T22:00:00Z').getDayOfMonth('Asia/Kolkata')",
            "1",
        ),
        (
            "timestamp('2026-01-01T22:00:00Z').getMinutes('Asia/Kolkata')",
            "30",
        ),
    ] {
        assert_eq!(eval(call).as_deref(), Ok(hour), "{call}");
    }
    let nowhere = eval("timestamp(0).getHours('Nowhere/Else')");
    assert_eq!(nowhere, Err(EvalErrorKind::InvalidArgument));
}
