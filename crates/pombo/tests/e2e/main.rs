//! The real program, as a process: against real databases and receivers, and as people and scripts use it.
//!
//! `docs/reliability.md` says which promise each test proves.

mod beside;
mod command_line;
mod database_faults;
mod fault_rows;
mod harness;
mod kills;
mod outbox;
mod signatures;
mod two_processes;
