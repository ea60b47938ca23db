//! The API over real sockets, a real engine and a real database file.

mod auth;
mod client;
mod deliveries;
mod endpoints;
mod events;
mod faults;
mod harness;
mod listener;
mod openapi;
mod problems;
mod shown;
