//! Homa as a transport under test: where the driver plugs in.
use anyhow::{Result, bail};

use crate::transport::{Pair, Reply};

/// How Homa is set, for reports.
#[must_use]
pub fn settings() -> String {
    String::new()
}

/// A client and a server on loopback.
pub fn pair(_reply: Reply) -> Result<Pair> {
    bail!("no driver yet");
}
