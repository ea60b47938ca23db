//! The arguments of commands that open a database.

use std::path::PathBuf;

use clap::Args;

use crate::config::{Settings, Typed};
use crate::database::{Database, Sources};
use crate::failure::Outcome;

/// Which database, and which settings.
#[derive(Debug, Args)]
pub(crate) struct DatabaseArgs {
    /// sqlite:PATH, a path ending in .db, or postgres://… (else POMBO_DATABASE, pombo.toml, DATABASE_URL,
    /// ./pombo.db)
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// File with the settings (default: ./pombo.toml)
    #[arg(long, value_name = "FILE", env = "POMBO_CONFIG")]
    config: Option<PathBuf>,
}

impl DatabaseArgs {
    /// What file, environment and these arguments say. `listen` and `roles` are those of `serve`.
    pub(crate) fn read(&self, listen: Option<&str>, roles: Option<&str>) -> Outcome<(Settings, Database)> {
        let typed = Typed {
            file: self.config.clone(),
            listen: listen.map(str::to_owned),
            roles: roles.map(str::to_owned),
        };
        let settings = Settings::load(&typed)?;
        let database = Sources::gather(self.database.as_deref(), settings.database.as_deref()).resolve()?;
        Ok((settings, database))
    }
}
