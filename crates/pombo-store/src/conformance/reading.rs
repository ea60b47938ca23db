//! Lists and single things (T8).
