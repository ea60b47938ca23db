//! `pombo migrate`: bring a database's schema up.

use clap::Args;
use pombo_store::admin::SchemaStatus;
use serde_json::json;

use crate::cli::database_args::DatabaseArgs;
use crate::config::Settings;
use crate::database::{Database, DatabaseUrl};
use crate::failure::{Failure, Outcome};
use crate::master_key::MasterKey;
use crate::output::{Output, note};
use crate::wire::{self, Access};

const EXAMPLES: &str = "\
Examples:
  pombo migrate --database postgres://pombo@db/pombo
  pombo migrate --check                       exit code 1 where the schema is not current

`pombo serve` does this by itself; several processes may do it at once.";

/// Arguments of `pombo migrate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Only look, change nothing
    #[arg(long)]
    check: bool,
}

/// Runs it.
pub(crate) async fn run(args: MigrateArgs, output: Output) -> Outcome {
    let (settings, database) = args.database.read(None, None)?;
    note(&format!("using {}", database.announcement()));
    if args.check {
        return check(&database, &settings, output).await;
    }
    let key = match database.url {
        // Made beside the file when the tables are made, so that a later start finds both or neither.
        DatabaseUrl::Sqlite(_) => MasterKey::find(&database.url, settings.master_key_file.as_deref(), false)?,
        // Migrations seal nothing.
        DatabaseUrl::Postgres(_) => MasterKey::none(),
    };
    let spinner = output.spinner("migrating");
    let migrated = async {
        let store = wire::open_and_migrate(&database, &key, &settings).await?;
        store.schema_status().await.map_err(|error| database.failure(error))
    };
    let status = migrated.await;
    spinner.finish_and_clear();
    report(&status?, &database, output)
}

async fn check(database: &Database, settings: &Settings, output: Output) -> Outcome {
    let store = wire::open(database, &MasterKey::none(), settings, Access::Read).await?;
    let status = store.schema_status().await.map_err(|error| database.failure(error))?;
    report(&status, database, output)
}

fn report(status: &SchemaStatus, database: &Database, output: Output) -> Outcome {
    let (word, found, wanted) = match *status {
        SchemaStatus::Current { version } => ("current", version, version),
        SchemaStatus::Older { found, wanted } => ("older", found, wanted),
        SchemaStatus::NewerCompatible { found, wanted } => ("newer-compatible", found, wanted),
        SchemaStatus::TooNew { found, wanted } => ("too-new", found, wanted),
    };
    if output.is_json() {
        output.json(&json!({ "status": word, "version": found, "wanted": wanted }))?;
    }
    match status {
        SchemaStatus::Older { .. } => Err(Failure::failed(format!(
            "{} has schema version {found}, and this pombo needs {wanted}: run `pombo migrate`",
            database.url
        ))),
        SchemaStatus::TooNew { .. } => Err(wire::too_new(database, found, wanted)),
        SchemaStatus::Current { .. } if !output.is_json() => {
            output.line(&format!("schema version {found}, current"))
        }
        SchemaStatus::NewerCompatible { .. } if !output.is_json() => {
            output.line(&format!("schema version {found}, newer than this pombo knows ({wanted}) and usable"))
        }
        _ => Ok(()),
    }
}
