//! Claiming (C).
