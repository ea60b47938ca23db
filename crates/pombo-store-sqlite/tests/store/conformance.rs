//! The suite that both databases pass.

use pombo_store::conformance::Database;

use crate::scratch::Scratch;

async fn fresh() -> Box<dyn Database> {
    Box::new(Scratch::new())
}

pombo_store::conformance_suite!(fresh);
