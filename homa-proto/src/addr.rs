//! Addresses: where packets go, and the Homa port there.

use core::fmt;
use core::net::{IpAddr, SocketAddr};

/// The address of a Homa port on some host.
///
/// The UDP port in `socket` and the Homa `port` are two things; from a plain [`SocketAddr`] the
/// Homa port is the UDP port. On the native IP carrier the port in `socket` is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerAddr {
    /// Where packets go.
    pub socket: SocketAddr,
    /// The Homa port there.
    pub port: u16,
}

impl PeerAddr {
    /// The Homa port `port` behind `socket`.
    #[must_use]
    pub const fn new(socket: SocketAddr, port: u16) -> Self {
        Self { socket, port }
    }
}

impl From<SocketAddr> for PeerAddr {
    fn from(socket: SocketAddr) -> Self {
        Self {
            socket,
            port: socket.port(),
        }
    }
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.port == self.socket.port() {
            write!(f, "{}", self.socket)
        } else {
            write!(f, "{} (Homa port {})", self.socket, self.port)
        }
    }
}

/// The IPv4 form of an IPv4-mapped IPv6 address; anything else unchanged.
pub(crate) fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// Whether packets may come from or go to `ip`.
pub(crate) fn is_unicast(ip: IpAddr) -> bool {
    match canonical(ip) {
        IpAddr::V4(ip) => !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast()),
        IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_multicast()),
    }
}
