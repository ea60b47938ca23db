//! What is typed on the command line: secrets, data, headers, lengths of time, instants.

use std::convert::Infallible;
use std::fmt;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use pombo_domain::clock::Timestamp;
use pombo_domain::secret::SecretText;
use pombo_domain::span;

use crate::failure::{Failure, Outcome};

/// Most bytes read as `--data` or `--body` (the largest body a source may send).
const INPUT_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Most bytes of a file with a secret.
const SECRET_FILE_BYTES_MAX: u64 = 64 * 1024;
/// Unix times from here on are milliseconds: as seconds they would lie in the year 5138.
const MILLISECONDS_FROM: i64 = 100_000_000_000;

/// Where a secret is: `@file`, `env:NAME`, `-` (stdin), or the text itself.
#[derive(Clone)]
pub(crate) enum SecretArg {
    /// The text itself.
    Text(SecretText),
    /// In a file; one line end at its end does not belong to it.
    File(PathBuf),
    /// In an environment variable.
    Env(String),
    /// On stdin.
    Stdin,
}

impl SecretArg {
    /// For clap; takes everything, so that no error message can repeat a secret.
    #[expect(clippy::unnecessary_wraps, reason = "the form of a clap value parser")]
    pub(crate) fn parse(text: &str) -> Result<Self, Infallible> {
        Ok(match text.strip_prefix('@') {
            Some(path) => Self::File(path.into()),
            None if text == "-" => Self::Stdin,
            None => match text.strip_prefix("env:") {
                Some(name) => Self::Env(name.to_owned()),
                None => Self::Text(SecretText::new(text.to_owned())),
            },
        })
    }

    /// The secret.
    pub(crate) fn read(&self) -> Outcome<SecretText> {
        let text = match self {
            Self::Text(text) => return Ok(text.clone()),
            Self::Env(name) => std::env::var(name).map_err(|_| {
                Failure::failed(format!("the environment variable {name} holds no secret: set it"))
            })?,
            Self::File(path) => {
                let file = std::fs::File::open(path)
                    .with_context(|| format!("cannot read the secret from {}", path.display()))?;
                read_text(file).with_context(|| format!("cannot read the secret from {}", path.display()))?
            }
            Self::Stdin => read_text(std::io::stdin().lock()).context("cannot read the secret from stdin")?,
        };
        let text = text.strip_suffix('\n').unwrap_or(&text);
        Ok(SecretText::new(text.strip_suffix('\r').unwrap_or(text).to_owned()))
    }

    /// Whether an empty text was given, as from an environment variable that is set to nothing.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Text(text) if text.expose().is_empty())
    }
}

impl fmt::Debug for SecretArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretArg(..)")
    }
}

fn read_text(reader: impl Read) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = reader.take(SECRET_FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    anyhow::ensure!(read as u64 <= SECRET_FILE_BYTES_MAX, "it is longer than any secret");
    Ok(text)
}

/// Where data is: `@file`, `-` (stdin), or the text itself. Bytes are kept as they are.
#[derive(Clone)]
pub(crate) enum DataArg {
    /// The text itself.
    Text(String),
    /// In a file.
    File(PathBuf),
    /// On stdin.
    Stdin,
}

impl DataArg {
    /// For clap.
    #[expect(clippy::unnecessary_wraps, reason = "the form of a clap value parser")]
    pub(crate) fn parse(text: &str) -> Result<Self, Infallible> {
        Ok(match text.strip_prefix('@') {
            Some(path) => Self::File(path.into()),
            None if text == "-" => Self::Stdin,
            None => Self::Text(text.to_owned()),
        })
    }

    /// The bytes.
    pub(crate) fn read(&self) -> Outcome<Vec<u8>> {
        let bytes = match self {
            Self::Text(text) => return Ok(text.clone().into_bytes()),
            Self::File(path) => {
                let file =
                    std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
                read_bytes(file).with_context(|| format!("cannot read {}", path.display()))?
            }
            Self::Stdin => read_bytes(std::io::stdin().lock()).context("cannot read stdin")?,
        };
        Ok(bytes)
    }
}

impl fmt::Debug for DataArg {
    /// Data is never printed by accident.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataArg(..)")
    }
}

fn read_bytes(reader: impl Read) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = reader.take(INPUT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    anyhow::ensure!(read as u64 <= INPUT_BYTES_MAX, "it is longer than {INPUT_BYTES_MAX} bytes");
    Ok(bytes)
}

/// A header as typed: `Name: value`.
#[derive(Clone)]
pub(crate) struct HeaderArg {
    /// Its name, as typed.
    pub(crate) name: String,
    /// Its value; often a credential.
    pub(crate) value: SecretText,
}

impl HeaderArg {
    /// For clap. The message does not repeat what was typed: it may be a credential.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').ok_or("a header is written 'Name: value'")?;
        if http::HeaderName::from_bytes(name.trim().as_bytes()).is_err() {
            return Err("a header is written 'Name: value', and this name is not one of HTTP".to_owned());
        }
        Ok(Self { name: name.trim().to_owned(), value: SecretText::new(value.trim().to_owned()) })
    }
}

impl fmt::Debug for HeaderArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeaderArg({}: ..)", self.name)
    }
}

/// For clap: a length of time, `30s`.
pub(crate) fn span_arg(text: &str) -> Result<Duration, span::SpanError> {
    span::parse(text)
}

/// For clap: `--delay` in milliseconds, or a length of time with its unit.
pub(crate) fn millis_arg(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(millis) => Ok(Duration::from_millis(millis)),
        Err(_) => span::parse(text).map_err(|_| "must be milliseconds, or a duration such as 2s".to_owned()),
    }
}

/// For clap: an instant in RFC 3339, or Unix time in seconds or milliseconds.
pub(crate) fn instant_arg(text: &str) -> Result<Timestamp, String> {
    if let Ok(number) = text.parse::<i64>() {
        let is_millis = number >= MILLISECONDS_FROM;
        return Ok(if is_millis { Timestamp::from_millis(number) } else { Timestamp::from_secs(number) });
    }
    Timestamp::parse(text)
        .map_err(|_| "must be an RFC 3339 time such as 2026-11-30T20:22:00Z, or Unix time".to_owned())
}

/// Now, by this machine's clock: for signatures on the command line, never for the walk.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_come_from_text_files_and_the_environment() {
        let read = |text: &str| match SecretArg::parse(text) {
            Ok(secret) => {
                secret.read().map(|secret| secret.expose().to_owned()).map_err(|error| error.sentence())
            }
        };
        assert_eq!(read("whsec_x"), Ok("whsec_x".to_owned()));
        assert!(read("env:POMBO_TEST_NO_SUCH_VARIABLE").is_err());
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), "whsec_y\r\n").expect("written");
        assert_eq!(read(&format!("@{}", file.path().display())), Ok("whsec_y".to_owned()));
        assert!(read("@/no/such/file").is_err());
    }

    #[test]
    fn instants_are_read_in_three_forms() {
        let at = Timestamp::from_secs(1_764_534_120);
        assert_eq!(instant_arg("1764534120"), Ok(at));
        assert_eq!(instant_arg("1764534120000"), Ok(at));
        assert_eq!(instant_arg("2025-11-30T20:22:00Z"), Ok(at));
        assert!(instant_arg("noon").is_err());
    }

    #[test]
    fn headers_are_parted_at_the_first_colon() {
        let header = HeaderArg::parse("X-Time:  12:30 ").expect("a header");
        assert_eq!((header.name.as_str(), header.value.expose()), ("X-Time", "12:30"));
        assert!(HeaderArg::parse("no colon").is_err());
        assert!(HeaderArg::parse("bad name: x").is_err());
    }
}
