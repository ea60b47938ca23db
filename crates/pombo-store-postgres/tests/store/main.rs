//! The store against a real server.

mod database;

mod conformance {
    use crate::database::fresh;
    pombo_store::conformance_suite!(fresh);
}
mod connecting;
mod schema;
mod trouble;
