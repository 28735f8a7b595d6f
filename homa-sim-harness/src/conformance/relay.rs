//! A bad network between UDP sockets of one host: what is sent through it may be lost, doubled, late.

use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::fault::{Faults, PacketFaults};
use crate::packet::Packet;

/// Most hosts that a relay is made for.
const HOSTS: usize = 16;

/// For each pair of hosts a socket: what `a` sends to the socket that stands for `b` reaches `b` from the one that
/// stands for `a`.
pub struct Relay {
    hosts: Vec<SocketAddr>,
    /// The socket that stands for the first, for the second.
    sockets: HashMap<(usize, usize), UdpSocket>,
    faults: Faults,
    impaired: u64,
    start: Instant,
    late: BinaryHeap<Late>,
    memory: Vec<u8>,
}

/// A datagram that is held up. The first in order of time is the greatest.
#[derive(PartialEq, Eq)]
struct Late {
    at: u64,
    from: usize,
    to: usize,
    bytes: Vec<u8>,
}

impl Ord for Late {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at.cmp(&self.at)
    }
}

impl PartialOrd for Late {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Default for Relay {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            sockets: HashMap::new(),
            faults: Faults::new(PacketFaults::default(), Vec::new(), HOSTS, 0),
            impaired: 0,
            start: Instant::now(),
            late: BinaryHeap::new(),
            memory: vec![0; 65_536],
        }
    }
}

impl Relay {
    /// A host comes in, with its address on loopback.
    ///
    /// # Errors
    /// Of the system.
    pub fn add(&mut self, address: SocketAddr) -> io::Result<()> {
        let new = self.hosts.len();
        assert!(new < HOSTS, "too many hosts");
        self.hosts.push(address);
        for other in 0..new {
            for pair in [(new, other), (other, new)] {
                let socket = UdpSocket::bind("127.0.0.1:0")?;
                socket.set_nonblocking(true)?;
                self.sockets.insert(pair, socket);
            }
        }
        Ok(())
    }

    /// Where `host` is for `from`.
    ///
    /// # Errors
    /// Of the system.
    pub fn address(&self, host: usize, from: usize) -> io::Result<SocketAddr> {
        self.sockets[&(host, from)].local_addr()
    }

    /// What goes wrong from now on.
    pub fn impair(&mut self, faults: PacketFaults) {
        self.impaired += 1;
        self.faults = Faults::new(faults, Vec::new(), HOSTS, self.impaired);
    }

    /// Passes on what has come, and what is due. Returns whether there was anything.
    ///
    /// # Errors
    /// Of the system.
    pub fn turn(&mut self) -> io::Result<bool> {
        let now = self.start.elapsed().as_nanos() as u64;
        let mut any = false;
        let mut datagrams = Vec::new();
        for (&(to, from), socket) in &self.sockets {
            // The hosts are served in turn, and take in what comes.
            for _ in 0..64 {
                match socket.recv(&mut self.memory) {
                    Ok(len) => datagrams.push((from, to, self.memory[..len].to_vec())),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // A datagram before met nobody: its sender is to find that out by itself.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                    Err(error) => return Err(error),
                }
            }
        }
        for (from, to, bytes) in datagrams {
            any = true;
            let packet = Packet {
                from: from as u16,
                to: to as u16,
                ..Packet::default()
            };
            let fate = self.faults.fate(now, &packet);
            for late_ns in [fate.copy_late_ns, fate.late_ns].into_iter().flatten() {
                if late_ns == 0 {
                    self.pass_on(from, to, &bytes);
                } else {
                    self.late.push(Late {
                        at: now + late_ns,
                        from,
                        to,
                        bytes: bytes.clone(),
                    });
                }
            }
        }
        while self.late.peek().is_some_and(|late| late.at <= now) {
            if let Some(late) = self.late.pop() {
                self.pass_on(late.from, late.to, &late.bytes);
                any = true;
            }
        }
        Ok(any)
    }

    fn pass_on(&self, from: usize, to: usize, bytes: &[u8]) {
        // Whatever cannot be sent is lost: that is what networks do.
        let _ = self.sockets[&(from, to)].send_to(bytes, self.hosts[to]);
    }

    /// How long nothing needs to be done if nothing comes.
    #[must_use]
    pub fn idle_time(&self) -> Duration {
        let now = self.start.elapsed().as_nanos() as u64;
        let most = Duration::from_micros(200);
        match self.late.peek() {
            Some(late) => most.min(Duration::from_nanos(late.at.saturating_sub(now))),
            None => most,
        }
    }
}
