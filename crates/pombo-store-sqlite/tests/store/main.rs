//! The store on real files: the suite that both databases pass, and what only SQLite has.

mod conformance;
mod scratch;
