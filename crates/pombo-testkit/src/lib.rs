//! What Pombo's tests are made of: scripted receivers, faulty networks, throw-away databases and a checker that
//! says whether anything was lost.
//!
//! - [`receiver`]: an HTTP receiver that records what it gets and answers as told; [`raw`]: one that answers with
//!   any bytes at all.
//! - [`proxy`]: a TCP proxy that delays, swallows or cuts, to put before a receiver or a database.
//! - [`database`]: a database of the test's own, in PostgreSQL or SQLite, removed at its end.
//! - [`postgres`]: a PostgreSQL server of the test's own, to crash and start again.
//! - [`process`]: the program under test as a child to kill, freeze or stop; [`api`]: a client of it.
//! - [`history`]: lost, unexpected and duplicate ids, from what was acknowledged and what arrived.
//!
//! A dev-dependency only: nothing that ships may use it. It never sleeps to see whether something happens; every
//! wait is for a condition and has a bound. Times are the real ones, so it does not mix with tokio's paused clock.

pub mod api;
pub mod database;
pub mod history;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod receiver;

mod changes;
