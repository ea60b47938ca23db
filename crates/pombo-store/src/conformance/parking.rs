//! Parking and waking (P).
