//! The invariants that check proves (P4).
