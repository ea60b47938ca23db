//! The whole walk over a real database file, real sockets, and a store that fails when it is told to.

mod accept;
mod endpoints;
mod faulty;
mod outages;
mod outbox;
mod people;
mod postgres;
mod sending;
mod stopping;
mod walk;
