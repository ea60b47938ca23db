//! What people do (M, P3).
