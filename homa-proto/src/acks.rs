//! Acknowledgements that wait for data to ride on.
//!
//! A client tells a server which RPCs it may forget. There is no hurry: each DATA packet to that
//! server carries one, and what finds no data goes in ACK packets after a while (ATC '21, the
//! kernel module).

use crate::storage::{NIL, Slice};
use crate::wire::AckEntry;

/// Acknowledgements held for one peer before they go in packets of their own.
pub(crate) const MAX_HELD: u32 = 64;

/// A place for one acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckNode {
    client_id: u64,
    next: u32,
    server_port: u16,
}

impl AckNode {
    pub(crate) const FREE: Self = Self {
        client_id: 0,
        next: NIL,
        server_port: 0,
    };
}

/// The acknowledgements held for one peer. The nodes are in [`Acks`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    first: u32,
    count: u32,
}

impl Held {
    pub(crate) const NONE: Self = Self {
        first: NIL,
        count: 0,
    };

    pub(crate) fn count(&self) -> u32 {
        self.count
    }
}

/// All held acknowledgements, in nodes of fixed number.
pub(crate) struct Acks<'a> {
    nodes: Slice<'a, AckNode>,
    free: u32,
}

impl<'a> Acks<'a> {
    pub(crate) fn new(mut nodes: Slice<'a, AckNode>) -> Self {
        let count = u32::try_from(nodes.len()).unwrap_or(NIL);
        for (node, next) in nodes.iter_mut().zip(1..) {
            node.next = if next < count { next } else { NIL };
        }
        let free = if nodes.is_empty() { NIL } else { 0 };
        Self { nodes, free }
    }

    /// `false`: no room. Nothing is lost, the server asks some time.
    pub(crate) fn push(&mut self, held: &mut Held, entry: AckEntry) -> bool {
        let at = self.free;
        let Some(node) = self.nodes.get_mut(at as usize) else {
            return false;
        };
        self.free = node.next;
        *node = AckNode {
            client_id: entry.client_id,
            next: held.first,
            server_port: entry.server_port,
        };
        held.first = at;
        held.count = held.count.saturating_add(1);
        true
    }

    pub(crate) fn pop(&mut self, held: &mut Held) -> Option<AckEntry> {
        let at = held.first;
        let node = self.nodes.get_mut(at as usize)?;
        held.first = node.next;
        held.count = held.count.saturating_sub(1);
        node.next = self.free;
        self.free = at;
        Some(AckEntry {
            client_id: node.client_id,
            server_port: node.server_port,
        })
    }

    /// Nodes that are free.
    #[cfg(any(test, feature = "check"))]
    #[allow(
        clippy::arithmetic_side_effects,
        reason = "checks never run in production"
    )]
    pub(crate) fn free_count(&self) -> Result<usize, &'static str> {
        let (mut at, mut count) = (self.free, 0usize);
        while let Some(node) = self.nodes.get(at as usize) {
            count += 1;
            if count > self.nodes.len() {
                return Err("free places for acknowledgements run in a circle");
            }
            at = node.next;
        }
        Ok(count)
    }

    #[cfg(any(test, feature = "check"))]
    pub(crate) fn capacity(&self) -> usize {
        self.nodes.len()
    }
}
