//! Pombo: webhooks that are never lost. One binary: server, tools and command line.
//!
//! This crate wires the others together and talks to people. What a delivery is, when it is tried again and
//! how it is written down is decided below (`pombo-domain`, `pombo-engine`, the stores).

use std::process::ExitCode;

mod argument;
mod cli;
mod client;
mod config;
mod database;
mod failure;
mod lifecycle;
mod master_key;
mod output;
mod telemetry;
mod wire;

/// Under load the system's allocator costs the server a tenth to a fifth of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
