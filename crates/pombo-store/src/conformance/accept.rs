//! Accepting (A).
