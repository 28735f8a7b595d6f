//! Homa.
