//! `pombo serve`: run the server.

use anyhow::Context as _;
use clap::Args;

use crate::cli::database_args::DatabaseArgs;
use crate::failure::{Failure, Outcome};
use crate::{lifecycle, telemetry};

const EXAMPLES: &str = "\
Examples:
  pombo serve --dev                                    for trying things out: loopback only, no key needed
  pombo serve --listen 0.0.0.0:8080 --database sqlite:/var/lib/pombo/pombo.db
  POMBO_MASTER_KEY=… pombo serve --database postgres://pombo@db/pombo --roles deliver

The first start prints an admin key on stderr, once. Settings stand in ./pombo.toml, or in variables such as
POMBO_LEASE__TTL=45s for `lease.ttl`; flags win. SIGTERM finishes what is in flight; a second one stops at once.";

/// Arguments of `pombo serve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Address and port of the API (default: 127.0.0.1:8080)
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    #[command(flatten)]
    database: DatabaseArgs,
    /// What this process does, parted by commas: api, relay, deliver (default: all)
    #[arg(long, value_name = "ROLES")]
    roles: Option<String>,
    /// For development: loopback only, no API key needed, http and private targets allowed
    #[arg(long)]
    dev: bool,
}

/// Runs it until it is told to stop.
pub(crate) fn run(args: &ServeArgs) -> Outcome {
    let (settings, database) = args.database.read(args.listen.as_deref(), args.roles.as_deref())?;
    if args.dev && !settings.listen.is_loopback() {
        return Err(Failure::usage(format!(
            "--dev needs no API key, so it listens on this machine alone: {} is not a loopback address (use \
             127.0.0.1, or leave --dev out)",
            settings.listen.text
        )));
    }
    telemetry::start(&settings.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
        .map_err(Failure::Failed)?;
    let outcome = runtime.block_on(lifecycle::serve(settings, database, args.dev));
    // Tasks that nobody waits for any more must not hold the exit up.
    runtime.shutdown_background();
    outcome
}
