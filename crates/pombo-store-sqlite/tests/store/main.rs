//! The store on real files: the suite that both databases pass, and what only SQLite has.

mod application;
mod conformance;
mod crash;
mod damage;
mod group_commit;
mod opening;
mod scratch;
mod written;
