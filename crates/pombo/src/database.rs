//! Which database, and why that one.

use std::fmt;
use std::path::{Path, PathBuf};

use pombo_domain::secret::SecretText;
use pombo_store::StoreError;
use url::Url;

use crate::failure::{Failure, Outcome};

/// The database file where nothing else is said.
const DEFAULT_FILE: &str = "pombo.db";

/// A database that was named.
#[derive(Debug, Clone)]
pub(crate) enum DatabaseUrl {
    /// A file.
    Sqlite(PathBuf),
    /// A server; the whole address, which may hold a password.
    Postgres(SecretText),
}

/// Who named it. The first that speaks wins, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `--database`.
    Flag,
    /// `POMBO_DATABASE`.
    PomboDatabase,
    /// `database` in `pombo.toml`.
    File,
    /// `DATABASE_URL`.
    DatabaseUrl,
    /// Nobody.
    Default,
}

impl Origin {
    /// As it stands in messages.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Flag => "--database",
            Self::PomboDatabase => "POMBO_DATABASE",
            Self::File => "`database` in pombo.toml",
            Self::DatabaseUrl => "DATABASE_URL",
            Self::Default => "the default",
        }
    }
}

/// A database and who named it.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    /// Which.
    pub(crate) url: DatabaseUrl,
    /// Who named it.
    pub(crate) origin: Origin,
}

/// Where a database may be named.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// `--database`.
    pub(crate) flag: Option<String>,
    /// `POMBO_DATABASE`.
    pub(crate) pombo_database: Option<String>,
    /// `database` in `pombo.toml`.
    pub(crate) file: Option<String>,
    /// `DATABASE_URL`.
    pub(crate) database_url: Option<String>,
}

impl Sources {
    /// The flag, the file's setting, and this process's environment. A variable that is set to nothing is not set.
    pub(crate) fn gather(flag: Option<&str>, file: Option<&str>) -> Self {
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        Self {
            flag: flag.map(str::to_owned),
            pombo_database: variable("POMBO_DATABASE"),
            file: file.map(str::to_owned),
            database_url: variable("DATABASE_URL"),
        }
    }

    /// The first that is named.
    pub(crate) fn resolve(self) -> Outcome<Database> {
        let named = [
            (self.flag, Origin::Flag),
            (self.pombo_database, Origin::PomboDatabase),
            (self.file, Origin::File),
            (self.database_url, Origin::DatabaseUrl),
            (Some(DEFAULT_FILE.to_owned()), Origin::Default),
        ];
        let (text, origin) = named
            .into_iter()
            .find_map(|(text, origin)| text.map(|text| (text, origin)))
            .expect("the default is always named");
        Ok(Database { url: DatabaseUrl::parse(&text, origin)?, origin })
    }
}

impl DatabaseUrl {
    fn parse(text: &str, origin: Origin) -> Outcome<Self> {
        let scheme = text.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
        let path = match scheme.as_deref() {
            Some("postgres" | "postgresql") => {
                return match Url::parse(text) {
                    Ok(_) => Ok(Self::Postgres(SecretText::new(text.to_owned()))),
                    Err(error) => Err(refuse(
                        origin,
                        &format!(
                            "is not a PostgreSQL address ({error}); it looks like \
                             postgres://user:password@host:5432/name, with special characters of the \
                             password percent-encoded"
                        ),
                    )),
                };
            }
            Some("sqlite") => text["sqlite:".len()..].trim_start_matches("//"),
            Some(other) if text.contains("://") => {
                let text = format!("names a {other} database; Pombo knows sqlite:PATH and postgres://…");
                return Err(refuse(origin, &text));
            }
            _ if Path::new(text).extension().is_some_and(|extension| extension == "db") => text,
            _ => return Err(refuse(origin, "must be sqlite:PATH, a path ending in .db, or postgres://…")),
        };
        if path.is_empty() || path.starts_with(":memory:") || path.contains('?') {
            return Err(refuse(origin, "must name a file: events in memory would be lost with the process"));
        }
        Ok(Self::Sqlite(path.into()))
    }
}

fn refuse(origin: Origin, text: &str) -> Failure {
    match origin {
        Origin::Flag => Failure::usage(format!("--database {text}")),
        other => Failure::failed(format!("{} {text} (or name another with --database)", other.as_str())),
    }
}

impl fmt::Display for DatabaseUrl {
    /// For messages: no password, no parameters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => match Url::parse(url.expose()) {
                Ok(url) => {
                    let user = url.username();
                    let at = if user.is_empty() { String::new() } else { format!("{user}@") };
                    let host = url.host_str().unwrap_or("localhost");
                    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
                    write!(f, "postgres://{at}{host}{port}{}", url.path())
                }
                Err(_) => f.write_str("postgres://…"),
            },
        }
    }
}

impl Database {
    /// Which one and why, for the first line.
    pub(crate) fn announcement(&self) -> String {
        match self.origin {
            Origin::Default => format!("database {} (nothing else is named)", self.url),
            origin => format!("database {} (from {})", self.url, origin.as_str()),
        }
    }

    /// A failure of this database in one sentence that says what to do.
    pub(crate) fn failure(&self, error: StoreError) -> Failure {
        match self.sentence(&error) {
            Some(sentence) => Failure::failed(sentence),
            None => Failure::Failed(anyhow::Error::new(error).context(self.url.to_string())),
        }
    }

    fn sentence(&self, error: &StoreError) -> Option<String> {
        let (url, from) = (&self.url, self.origin.as_str());
        Some(match error {
            StoreError::Unavailable(cause) => format!(
                "cannot reach {url}: {}; is it running, and is its address right ({from})?",
                root(cause.as_ref())
            ),
            StoreError::Denied(text) => match url {
                DatabaseUrl::Sqlite(_) => text.clone(),
                DatabaseUrl::Postgres(_) => {
                    format!("{url} refuses access: {text}; check user, password and database name ({from})")
                }
            },
            StoreError::Full(_) => format!("there is no space left for {url}: free some and start again"),
            StoreError::ReadOnly(cause) => {
                let why = root(cause.as_ref());
                format!("{url} cannot be written ({why}): name a database that this user may write")
            }
            StoreError::Schema(text) => format!("{url}: {text}"),
            StoreError::Sealed { .. } => {
                // Where there is no key file, --dev seals with a key that everyone knows.
                let aside = match url {
                    DatabaseUrl::Sqlite(_) => "",
                    DatabaseUrl::Postgres(_) => " (what --dev sealed without one opens only with --dev)",
                };
                format!(
                    "the secrets in {url} were sealed with another master key: give the right one by \
                     POMBO_MASTER_KEY or its file{aside}"
                )
            }
            StoreError::Busy(cause) => format!("{url} is too busy ({}): try again", root(cause.as_ref())),
            _ => return None,
        })
    }
}

fn root(cause: &(dyn std::error::Error + 'static)) -> String {
    crate::client::root_cause(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(sources: Sources) -> Result<Database, String> {
        sources.resolve().map_err(|failure| failure.sentence().unwrap_or_default())
    }

    #[test]
    fn the_first_that_speaks_wins() {
        let all = || Sources {
            flag: Some("a.db".into()),
            pombo_database: Some("b.db".into()),
            file: Some("c.db".into()),
            database_url: Some("d.db".into()),
        };
        let origin = |sources| resolve(sources).map(|database| database.origin);
        assert_eq!(origin(all()), Ok(Origin::Flag));
        assert_eq!(origin(Sources { flag: None, ..all() }), Ok(Origin::PomboDatabase));
        assert_eq!(origin(Sources { flag: None, pombo_database: None, ..all() }), Ok(Origin::File));
        let last = Sources { database_url: Some("d.db".into()), ..Sources::default() };
        assert_eq!(origin(last), Ok(Origin::DatabaseUrl));
        let database = resolve(Sources::default()).expect("the default");
        assert_eq!(database.announcement(), "database sqlite:pombo.db (nothing else is named)");
    }

    #[test]
    fn passwords_and_parameters_are_hidden() {
        let url = "postgres://shop:s3cret@db.internal:6432/pombo?sslpassword=other";
        let database =
            resolve(Sources { flag: Some(url.into()), ..Sources::default() }).expect("a PostgreSQL address");
        assert_eq!(
            database.announcement(),
            "database postgres://shop@db.internal:6432/pombo (from --database)"
        );
        assert!(!format!("{database:?}").contains("s3cret"));
    }

    #[test]
    fn what_is_no_database_is_refused_with_where_it_stands() {
        for (text, wanted) in [
            ("mysql://x/y.db", "DATABASE_URL names a mysql database"),
            ("sqlite::memory:", "DATABASE_URL must name a file"),
            ("sqlite:", "DATABASE_URL must name a file"),
            ("shop", "DATABASE_URL must be sqlite:PATH"),
            ("postgres://user:p@ss:word@host:port/x", "DATABASE_URL is not a PostgreSQL address"),
        ] {
            let sentence = resolve(Sources { database_url: Some(text.into()), ..Sources::default() })
                .expect_err("refused");
            assert!(sentence.starts_with(wanted), "{sentence}");
            assert!(!sentence.contains("p@ss"), "{sentence}");
        }
    }

    #[test]
    fn files_are_named_in_three_ways() {
        for (text, path) in
            [("sqlite:x/y.sqlite", "x/y.sqlite"), ("sqlite:///var/p.db", "/var/p.db"), ("p.db", "p.db")]
        {
            let database =
                resolve(Sources { flag: Some(text.into()), ..Sources::default() }).expect("a file");
            assert!(matches!(database.url, DatabaseUrl::Sqlite(found) if found == Path::new(path)));
        }
    }
}
