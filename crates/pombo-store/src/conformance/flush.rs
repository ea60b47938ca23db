//! Writing results (K).
