//! Packet captures: a pcap file of one host's link, for Wireshark.

use std::io::{self, Write};
use std::net::Ipv4Addr;

use crate::packet::{Ecn, HostId, Packet};
use crate::transport::Transport;

/// The address of a host in captures, and for transports that need one: 10.0.0.1 and up.
#[must_use]
pub fn address(host: HostId) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0001 + u32::from(host))
}

/// The host of an address.
#[must_use]
pub fn host_of(address: Ipv4Addr) -> Option<HostId> {
    HostId::try_from(address.to_bits().checked_sub(0x0a00_0001)?).ok()
}

/// Writes what a host sends and receives.
pub struct Capture {
    host: HostId,
    out: Box<dyn Write>,
    scratch: Vec<u8>,
    failed: Option<io::Error>,
}

impl Capture {
    /// Captures the link of `host`.
    ///
    /// # Errors
    /// When the head of the file cannot be written.
    pub fn new(host: HostId, mut out: Box<dyn Write>) -> io::Result<Self> {
        // Nanosecond pcap, version 2.4, link type 101: packets begin with the IP header.
        let mut head = Vec::with_capacity(24);
        head.extend(0xa1b2_3c4d_u32.to_le_bytes());
        head.extend(2u16.to_le_bytes());
        head.extend(4u16.to_le_bytes());
        head.extend([0; 8]);
        head.extend(65_535u32.to_le_bytes());
        head.extend(101u32.to_le_bytes());
        out.write_all(&head)?;
        Ok(Self {
            host,
            out,
            scratch: Vec::new(),
            failed: None,
        })
    }

    /// Notes a packet that `host` sends or has received.
    pub(crate) fn packet<T: Transport>(
        &mut self,
        host: HostId,
        now: u64,
        packet: &Packet,
        body: &T::Body,
        transport: &T,
    ) {
        if host != self.host || self.failed.is_some() {
            return;
        }
        let record = &mut self.scratch;
        record.clear();
        record.resize(16 + 20, 0);
        let protocol = transport.encode(packet, body, record);
        let length = record.len() as u32 - 16;
        record[..4].copy_from_slice(&((now / 1_000_000_000) as u32).to_le_bytes());
        record[4..8].copy_from_slice(&((now % 1_000_000_000) as u32).to_le_bytes());
        record[8..12].copy_from_slice(&length.to_le_bytes());
        record[12..16].copy_from_slice(&length.to_le_bytes());
        let ip = &mut record[16..36];
        ip[0] = 0x45;
        ip[1] = packet.priority << 5
            | match packet.ecn {
                Ecn::NotCapable => 0,
                Ecn::Capable => 2,
                Ecn::Marked => 3,
            };
        ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        ip[6] = 0x40;
        ip[8] = 64;
        ip[9] = protocol;
        ip[12..16].copy_from_slice(&address(packet.from).octets());
        ip[16..20].copy_from_slice(&address(packet.to).octets());
        let sum: u32 = ip
            .chunks_exact(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        ip[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
        if let Err(error) = self.out.write_all(record) {
            self.failed = Some(error);
        }
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// The first error met while writing.
    pub fn finish(mut self) -> io::Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }
}
