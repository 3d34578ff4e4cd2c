//! HTML pages of responses that the edge makes.
//!
//! A page is a [`Template`]: text with placeholders such as `{{status}}`. The built-in template has the look of the
//! console, no script and no resource of another file. An operator may replace it for each status with files of a
//! directory (`edge.error_pages`). Every value is escaped when it is inserted.

mod template;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use sha2::{Digest, Sha256};

pub(crate) use self::template::PageValues;
use self::template::Template;
pub use self::template::TemplateError;

/// Maximum size of a template, in bytes.
pub const TEMPLATE_BYTES_MAX: u64 = 64 << 10;

const STYLE: &str = include_str!("page.css");
static ERROR: LazyLock<Template> = LazyLock::new(|| built_in(include_str!("page.html")));
static CONFIRMATION: LazyLock<Template> =
    LazyLock::new(|| built_in(include_str!("confirmation.html")));
static NOTICE: LazyLock<Template> = LazyLock::new(|| built_in(include_str!("notice.html")));
/// The content security policy of a built-in page: its own style and nothing else.
static STYLE_ONLY: LazyLock<HeaderValue> = LazyLock::new(|| with_forms_to("'none'"));
/// The same for a page with a form to the same host.
static STYLE_AND_FORM: LazyLock<HeaderValue> = LazyLock::new(|| with_forms_to("'self'"));
/// The content security policy of an operator's page: inline styles, images and fonts in the page itself.
static OWN_TEMPLATE: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

fn with_forms_to(target: &str) -> HeaderValue {
    let hash = STANDARD.encode(Sha256::digest(STYLE.trim_end()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action {target}; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).unwrap_or_else(|_| OWN_TEMPLATE.clone())
}

/// The pages for errors: the built-in page, and the templates of the operator.
#[derive(Debug, Default)]
pub struct ErrorPages {
    /// By status.
    exact: BTreeMap<u16, Template>,
    /// For 4xx and for 5xx.
    classes: [Option<Template>; 2],
    default: Option<Template>,
}

/// A directory of templates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ErrorPagesError {
    /// The directory or a file of it cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    Read {
        /// The directory or file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file name stands for no status.
    #[error(
        "{} is not the name of an error page; valid names are 400.html to 599.html, 4xx.html, 5xx.html and default.html",
        .0.display()
    )]
    Name(PathBuf),
    /// The file is too long.
    #[error("{} is longer than {TEMPLATE_BYTES_MAX} bytes", .0.display())]
    TooLong(PathBuf),
    /// The file is not UTF-8.
    #[error("{} is not UTF-8", .0.display())]
    Encoding(PathBuf),
    /// The file has an invalid placeholder.
    #[error("{}: {error}", path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// Why.
        error: TemplateError,
    },
}

impl ErrorPages {
    /// Reads the templates of a directory: `404.html` for one status, `4xx.html` and `5xx.html` for the others of a
    /// class, and `default.html` for all others. The names of other files must not end with `.html`.
    ///
    /// # Errors
    ///
    /// If the directory or a template is unreadable, or a template is invalid.
    pub fn read(directory: &Path) -> Result<Self, ErrorPagesError> {
        let unreadable = |path: &Path| {
            let path = path.to_owned();
            move |error| ErrorPagesError::Read { path, error }
        };
        let mut pages = Self::default();
        let entries = std::fs::read_dir(directory).map_err(unreadable(directory))?;
        for entry in entries {
            let path = entry.map_err(unreadable(directory))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(stem) = name.and_then(|name| name.strip_suffix(".html")) else {
                continue;
            };
            let file = std::fs::File::open(&path).map_err(unreadable(&path))?;
            let mut bytes = Vec::new();
            file.take(TEMPLATE_BYTES_MAX + 1)
                .read_to_end(&mut bytes)
                .map_err(unreadable(&path))?;
            if bytes.len() as u64 > TEMPLATE_BYTES_MAX {
                return Err(ErrorPagesError::TooLong(path));
            }
            let text =
                String::from_utf8(bytes).map_err(|_| ErrorPagesError::Encoding(path.clone()))?;
            let template = Template::parse(&text).map_err(|error| ErrorPagesError::Template {
                path: path.clone(),
                error,
            })?;
            let [client, server] = &mut pages.classes;
            match (stem, stem.parse()) {
                ("default", _) => pages.default = Some(template),
                ("4xx", _) => *client = Some(template),
                ("5xx", _) => *server = Some(template),
                (_, Ok(status @ 400..=599)) if stem.len() == 3 => {
                    pages.exact.insert(status, template);
                }
                _ => return Err(ErrorPagesError::Name(path)),
            }
        }
        Ok(pages)
    }

    /// The page for an error, and its content security policy.
    pub(crate) fn render(&self, values: &PageValues<'_>) -> (String, HeaderValue) {
        match self.template(values.status.as_u16()) {
            Some(own) => (own.render(values), OWN_TEMPLATE.clone()),
            None => (ERROR.render(values), STYLE_ONLY.clone()),
        }
    }

    /// The operator's template for a status.
    fn template(&self, status: u16) -> Option<&Template> {
        let [client, server] = &self.classes;
        let class = match status {
            400..=499 => client,
            _ => server,
        };
        let own = self.exact.get(&status).or(class.as_ref());
        own.or(self.default.as_ref())
    }
}

/// A page that is not an error: `reason` is its heading. With its content security policy.
pub(crate) fn notice(values: &PageValues<'_>) -> (String, HeaderValue) {
    (NOTICE.render(values), STYLE_ONLY.clone())
}

/// A page with a button: `reason` is its heading, `advice` the text of the button. With its content security policy.
pub(crate) fn confirmation(values: &PageValues<'_>) -> (String, HeaderValue) {
    (CONFIRMATION.render(values), STYLE_AND_FORM.clone())
}

/// A template of the binary. A test reads all of them.
fn built_in(text: &str) -> Template {
    let text = text.replace("{{style}}", STYLE.trim_end());
    Template::parse(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests;
