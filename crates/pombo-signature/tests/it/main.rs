//! The crate as its users see it: published vectors, properties, the official library, explanations.

mod cross_check;
mod explanations;
mod properties;
mod providers;
mod requests;
mod schemes;
mod vectors;
