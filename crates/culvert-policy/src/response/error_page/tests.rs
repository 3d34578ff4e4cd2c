use culvert_events::Reason;
use http::StatusCode;

use super::template::{PageValues, Template, TemplateError};
use super::{ERROR, ErrorPages, ErrorPagesError, NOTICE, STYLE, STYLE_ONLY, TEMPLATE_BYTES_MAX};
use crate::response::problem::Problem;

/// Hosts and IDs that end an element, an attribute, a comment or a placeholder.
const HOSTILE: [&str; 8] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "--><svg onload=alert(1)>",
    "</title></style><b>",
    "{{host}}{{status}}",
    "a`b`&lt;&#60;",
    "host.example\u{202e}\u{0}\n<a href=//evil.example>",
];

fn values<'a>(status: StatusCode, host: &'a str, request_id: &'a str) -> PageValues<'a> {
    PageValues {
        status,
        reason: "",
        code: Some(3200),
        request_id,
        host,
        message: "Use `a < b`.",
        advice: "Advice.",
        owner_help: "Help.",
        cause: Some(Reason::ConnectFailed),
    }
}

/// The parts of a page that are markup: from each `<` to the next `>`.
fn markup(page: &str) -> Vec<&str> {
    let tags = page.split('<').skip(1);
    tags.map(|tag| tag.split('>').next().unwrap_or(tag))
        .collect()
}

#[test]
fn values_in_error_pages_are_escaped() {
    let own = Template::parse("<p title='{{host}}' id=\"{{request_id}}\">{{ host }}</p>").unwrap();
    let pages = ErrorPages::default();
    for problem in Problem::ALL {
        let status = problem.status();
        let of = |host, id| PageValues {
            code: Some(1),
            message: problem.sentence(),
            advice: problem.advice(),
            owner_help: problem.owner_help(),
            cause: problem.reason(),
            ..values(status, host, id)
        };
        let plain = pages.render(&of("a", "b")).0;
        assert!(plain.len() < 8 << 10, "{} bytes", plain.len());
        let own_plain = own.render(&of("a", "b"));
        for text in HOSTILE {
            let (page, policy) = pages.render(&of(text, text));
            assert_eq!(markup(&page), markup(&plain), "{problem:?} {text}");
            assert_eq!(policy, *STYLE_ONLY);
            let own_page = own.render(&of(text, text));
            assert_eq!(
                own_page.matches(['<', '>', '"', '\'']).count(),
                own_plain.matches(['<', '>', '"', '\'']).count(),
                "{own_page}"
            );
        }
        for outside in ["http:", "//", "<script", "<link", "<img", "url(", "@import"] {
            let plain = plain.replace("https://</code>", "");
            assert!(!plain.contains(outside), "{problem:?} has {outside}");
        }
    }
}

#[test]
fn the_built_in_pages_are_valid_and_show_every_value() {
    let all = values(StatusCode::NOT_FOUND, "site.example", "id-1");
    let page = ERROR.render(&all);
    for part in [
        "<title>404 Not Found</title>",
        "site.example",
        "ERR_NGROK_3200",
        "id-1",
        "Use <code>a &lt; b</code>.",
        "Advice.",
        "Help.",
        "The network or the upstream refused the connection. (<code>upstream_connect_failed</code>)",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let notice = NOTICE.render(&PageValues {
        reason: "Signed out",
        ..all
    });
    assert!(notice.contains("<h1>Signed out</h1>") && !notice.contains("{{"));
    // The policy has the hash of the text between the tags.
    assert!(page.contains(&format!("<style>{}</style>", STYLE.trim_end())));
    let policy = STYLE_ONLY.to_str().unwrap();
    assert!(policy.contains("style-src 'sha256-") && policy.starts_with("default-src 'none'"));
}

#[test]
fn invalid_templates_are_refused() {
    let unknown = |line, name: &str| TemplateError::Unknown {
        line,
        name: name.to_owned(),
    };
    for (text, error) in [
        ("a\nb {{ nothing }}", unknown(2, " nothing ")),
        ("{{}}", unknown(1, "")),
        ("{{{status}}}", unknown(1, "{status")),
        ("\n\n{{status", TemplateError::Open { line: 3 }),
    ] {
        assert_eq!(Template::parse(text).unwrap_err(), error, "{text}");
    }
    let text = "a{b:c}}{{status}} {{ code }}}";
    let page = Template::parse(text)
        .unwrap()
        .render(&values(StatusCode::BAD_GATEWAY, "", ""));
    assert_eq!(page, "a{b:c}}502 ERR_NGROK_3200}");
}

#[test]
fn template_files_replace_pages_by_status_class_and_default() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| std::fs::write(folder.path().join(name), text).unwrap();
    let read = || ErrorPages::read(folder.path());
    let shown = |status: u16| {
        let status = StatusCode::from_u16(status).unwrap();
        let (page, policy) = read().unwrap().render(&values(status, "h", "i"));
        assert_eq!(
            policy == *STYLE_ONLY,
            page.contains("<!doctype"),
            "{status}"
        );
        page
    };
    write("logo.svg", b"<svg/>");
    assert!(shown(404).contains("<!doctype"));
    write("default.html", b"default {{status}}");
    write("5xx.html", b"five {{status}}");
    write("502.html", b"{{status}} {{host}}");
    assert_eq!(shown(404), "default 404");
    assert_eq!(shown(503), "five 503");
    assert_eq!(shown(502), "502 h");
    write("4xx.html", b"four {{message}}");
    assert_eq!(shown(404), "four Use <code>a &lt; b</code>.");

    type Check = fn(&ErrorPagesError) -> bool;
    let long = vec![b'a'; usize::try_from(TEMPLATE_BYTES_MAX).unwrap() + 1];
    let cases: [(&str, &[u8], Check); 6] = [
        ("302.html", b"", |e| matches!(e, ErrorPagesError::Name(_))),
        ("0404.html", b"", |e| matches!(e, ErrorPagesError::Name(_))),
        ("404x.html", b"", |e| matches!(e, ErrorPagesError::Name(_))),
        ("403.html", &long, |e| {
            matches!(e, ErrorPagesError::TooLong(_))
        }),
        ("403.html", &[0xff], |e| {
            matches!(e, ErrorPagesError::Encoding(_))
        }),
        ("403.html", b"{{title}}", |e| {
            matches!(e, ErrorPagesError::Template { .. })
        }),
    ];
    for (name, text, is_expected) in cases {
        write(name, text);
        let error = read().unwrap_err();
        assert!(is_expected(&error), "{name}: {error}");
        assert!(error.to_string().contains(name), "{error}");
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    let missing = ErrorPages::read(&folder.path().join("none")).unwrap_err();
    assert!(matches!(missing, ErrorPagesError::Read { .. }));
}
