//! Schema, keys, audit, numbers.
