//! The relay (R).
