//! The key that seals secrets at rest: POMBO_MASTER_KEY, a file, or one made beside a new SQLite database.

use std::fmt;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use pombo_store::keyring::Keyring;
use rand::Rng as _;
use zeroize::Zeroizing;

use crate::database::DatabaseUrl;
use crate::failure::{Failure, Outcome};

/// The variable with the key.
const VARIABLE: &str = "POMBO_MASTER_KEY";
/// What a key looks like, for messages.
const FORM: &str = "32 random bytes in base64 or hex (make one with `openssl rand -base64 32`)";
/// Everybody knows this key: `--dev` on PostgreSQL seals nothing that needs to stay secret.
const DEV_KEY: &[u8; 32] = b"pombo --dev: everyone knows this";

/// A master key, and where it came from.
pub(crate) struct MasterKey {
    key: Zeroizing<[u8; 32]>,
    origin: Origin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    /// The environment, or a file that exists.
    Given,
    /// Made just now for this file, which does not exist yet.
    Fresh(PathBuf),
    /// Known to everybody.
    Dev,
}

impl MasterKey {
    /// Finds the key for a database. Writes nothing: see [`MasterKey::keep`].
    pub(crate) fn find(database: &DatabaseUrl, file: Option<&Path>, is_dev: bool) -> Outcome<Self> {
        if let Ok(text) = std::env::var(VARIABLE) {
            let text = Zeroizing::new(text);
            if !text.is_empty() {
                let key = parse(&text).ok_or_else(|| Failure::failed(format!("{VARIABLE} is not {FORM}")))?;
                return Ok(Self { key, origin: Origin::Given });
            }
        }
        if let Some(file) = file {
            return Ok(Self { key: read(file)?, origin: Origin::Given });
        }
        match database {
            DatabaseUrl::Sqlite(path) => Self::beside(path),
            DatabaseUrl::Postgres(_) if is_dev => {
                Ok(Self { key: Zeroizing::new(*DEV_KEY), origin: Origin::Dev })
            }
            DatabaseUrl::Postgres(_) => Err(Failure::failed(format!(
                "PostgreSQL needs a master key, the same in every process: set {VARIABLE}, or `master_key_file` in \
                 pombo.toml, to {FORM}"
            ))),
        }
    }

    fn beside(database: &Path) -> Outcome<Self> {
        let file = key_file(database);
        if file.exists() {
            return Ok(Self { key: read(&file)?, origin: Origin::Given });
        }
        Ok(Self { key: random(), origin: Origin::Fresh(file) })
    }

    /// The key for looking at a database: where none is found, one that may well be the wrong one.
    pub(crate) fn for_looking(database: &DatabaseUrl, file: Option<&Path>) -> Outcome<Self> {
        Self::find(database, file, true)
    }

    /// A key that opens nothing, for commands that touch nothing sealed.
    pub(crate) fn none() -> Self {
        Self { key: random(), origin: Origin::Given }
    }

    /// As a store takes it.
    pub(crate) fn keyring(&self) -> Arc<Keyring> {
        Arc::new(Keyring::new(&self.key))
    }

    /// Whether the environment or a file holds it.
    pub(crate) fn is_given(&self) -> bool {
        self.origin == Origin::Given
    }

    /// Whether everybody knows it.
    pub(crate) fn is_public(&self) -> bool {
        self.origin == Origin::Dev
    }

    /// Writes a key that was made just now beside its database, readable by its owner alone. Called after the
    /// database was opened, which only one process can do at a time, and before anything is sealed. `is_empty`
    /// says that the database holds no tables of Pombo's yet. Returns the file that was made.
    pub(crate) fn keep(&self, database: &DatabaseUrl, is_empty: bool) -> Outcome<Option<&Path>> {
        let Origin::Fresh(file) = &self.origin else { return Ok(None) };
        if !is_empty {
            // A new key would start well and open nothing that was sealed before.
            return Err(Failure::failed(format!(
                "{database} was sealed with a master key, and {} is missing: put the file back, or give the key by \
                 {VARIABLE}",
                file.display()
            )));
        }
        self.write(file).with_context(|| format!("cannot write the master key to {}", file.display()))?;
        Ok(Some(file))
    }

    /// Whole or not at all: a key that is cut off by a crash would lock everything away.
    fn write(&self, file: &Path) -> anyhow::Result<()> {
        let directory =
            file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut new = tempfile::NamedTempFile::new_in(directory)?;
        let text = Zeroizing::new(STANDARD.encode(self.key.as_slice()));
        writeln!(new, "{}", text.as_str())?;
        new.as_file().sync_all()?;
        new.persist_noclobber(file)?;
        std::fs::File::open(directory)?.sync_all()?;
        Ok(())
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({:?})", self.origin)
    }
}

fn random() -> Zeroizing<[u8; 32]> {
    let mut key = Zeroizing::new([0; 32]);
    rand::rng().fill_bytes(key.as_mut_slice());
    key
}

fn key_file(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".key");
    name.into()
}

fn read(file: &Path) -> Outcome<Zeroizing<[u8; 32]>> {
    let text = std::fs::read_to_string(file);
    let text =
        Zeroizing::new(text.with_context(|| format!("cannot read the master key in {}", file.display()))?);
    let mode = std::fs::metadata(file).map_or(0o600, |metadata| metadata.permissions().mode());
    if mode & 0o077 != 0 {
        crate::output::note(&format!(
            "warning: others may read the master key: chmod 600 {}",
            file.display()
        ));
    }
    parse(text.trim()).ok_or_else(|| Failure::failed(format!("{} does not hold {FORM}", file.display())))
}

fn parse(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let text = text.trim();
    let bytes = if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
        pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect::<Option<Vec<u8>>>()?
    } else {
        [&STANDARD, &STANDARD_NO_PAD, &URL_SAFE, &URL_SAFE_NO_PAD]
            .into_iter()
            .find_map(|form| form.decode(text).ok())?
    };
    let bytes = Zeroizing::new(bytes);
    Some(Zeroizing::new(bytes.as_slice().try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_in_base64_and_hex() {
        let key = [0xab; 32];
        for text in [STANDARD.encode(key), URL_SAFE_NO_PAD.encode(key), "ab".repeat(32)] {
            assert_eq!(parse(&text).as_deref(), Some(&key), "{text}");
        }
        for text in ["", "short", &"zz".repeat(32), &STANDARD.encode([1; 31])] {
            assert!(parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_new_key_is_kept_once_for_its_owner_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pombo.db");
        let database = DatabaseUrl::Sqlite(path.clone());
        let first = MasterKey::beside(&path).expect("a key");
        let file = first.keep(&database, true).expect("written").expect("a file").to_owned();
        let mode = std::fs::metadata(&file).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let second = MasterKey::beside(&path).expect("the same key");
        assert_eq!(second.key, first.key);
        assert_eq!(second.keep(&database, false).expect("nothing to do"), None);
    }

    #[test]
    fn a_lost_key_file_is_not_replaced_by_a_new_key() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pombo.db");
        let key = MasterKey::beside(&path).expect("a key");
        let sentence = key.keep(&DatabaseUrl::Sqlite(path), false).expect_err("refused").sentence();
        assert!(sentence.is_some_and(|text| text.contains("pombo.db.key is missing")));
    }
}
