//! Endpoints, secrets and the catalogue (A3).
