//! Faults seen in public, one test each (docs/reliability.md gives the numbers), against the whole program.

mod endpoints;
mod events;
mod responses;
mod start;
