//! Requests that have come, and answers to them from any thread.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use homa_proto::{PeerAddr, RpcId, SendError, SendErrorKind};

use super::Shared;
use super::calls::Command;
use crate::message::Message;

/// A request that waits for an answer.
///
/// Dereferences to its bytes. [`reply`](Self::reply) at once, or keep it and reply later, from any
/// thread. If it is dropped the request is refused: the client's call fails as if the server had
/// fallen silent.
pub struct Request {
    message: Message,
    responder: Responder,
}

impl Request {
    pub(super) fn new(
        shared: &Arc<Shared>,
        rpc: RpcId,
        from: PeerAddr,
        port: u16,
        message: Message,
    ) -> Self {
        Self {
            message,
            responder: Responder {
                shared: Arc::clone(shared),
                rpc: Some(rpc),
                from,
                port,
            },
        }
    }

    /// Who asks.
    #[must_use]
    pub fn from(&self) -> PeerAddr {
        self.responder.from
    }

    /// The local Homa port that was asked.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.responder.port
    }

    /// Answers with these bytes; they are copied.
    ///
    /// # Errors
    /// As for [`Responder::reply`].
    pub fn reply(self, bytes: &[u8]) -> Result<(), SendError<Message>> {
        let message = self.responder.message(bytes);
        self.responder.reply(message)
    }

    /// The message, and what answers it. The message can be changed in place and be the answer.
    pub fn into_parts(self) -> (Message, Responder) {
        (self.message, self.responder)
    }
}

impl Deref for Request {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.message
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("from", &self.responder.from)
            .field("message", &self.message)
            .finish_non_exhaustive()
    }
}

/// Answers one request, once, from any thread. If it is dropped the request is refused.
#[must_use = "dropping it refuses the request"]
pub struct Responder {
    shared: Arc<Shared>,
    rpc: Option<RpcId>,
    from: PeerAddr,
    port: u16,
}

impl Responder {
    /// Who asked.
    #[must_use]
    pub fn from(&self) -> PeerAddr {
        self.from
    }

    /// The local Homa port that was asked.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Memory for an answer of `len` bytes. The contents are left over from others.
    #[must_use]
    pub fn buffer(&self, len: usize) -> Message {
        self.shared.buffer(len)
    }

    /// A message with these bytes, in memory that is used again and again.
    #[must_use]
    pub fn message(&self, bytes: &[u8]) -> Message {
        self.shared.message(bytes)
    }

    /// Answers. If the client has gone meanwhile, or there is no room for the answer among what
    /// waits to be sent ([`Options::queue`](crate::Options::queue)), nobody is told; the driver
    /// [counts](super::HandleStats::replies_lost) it.
    ///
    /// # Errors
    /// The message is empty or too long, or the driver has ended. It comes back, and the request
    /// is refused.
    pub fn reply(mut self, message: impl Into<Message>) -> Result<(), SendError<Message>> {
        let message = message.into();
        let kind = match message.len() {
            0 => Some(SendErrorKind::Empty),
            len if len > self.shared.max_message => Some(SendErrorKind::TooLong),
            _ => None,
        };
        if let Some(kind) = kind {
            return Err(SendError { kind, message });
        }
        let Some(rpc) = self.rpc.take() else {
            debug_assert!(false, "it is answered once");
            return Ok(());
        };
        match self.shared.command(Command::Reply(rpc, message)) {
            Err(Command::Reply(_, message)) => Err(SendError {
                kind: SendErrorKind::NoSuchRpc,
                message,
            }),
            _ => Ok(()),
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(rpc) = self.rpc.take() {
            // If the driver has ended nothing is to be refused.
            let _ = self.shared.command(Command::Refuse(rpc));
        }
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder")
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}
