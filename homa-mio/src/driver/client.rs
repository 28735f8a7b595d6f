//! Calls from any thread: a future for each, which can be waited for without a runtime too.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use homa_proto::PeerAddr;

use super::calls::{CallOptions, Outcome, Stage, Submission};
use super::{DriverStats, Shared};
use crate::message::Message;
use crate::socket::CallError;

/// Calls servers by way of a [`Driver`](super::Driver). Clones share its room for calls.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

impl Client {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Sends a request with these bytes; they are copied. The reply is awaited, or
    /// [waited for](Call::wait).
    ///
    /// The request goes out at once if fewer calls are in flight than are
    /// [allowed](super::DriverOptions::in_flight). Else it goes when there is room and the call is
    /// polled or waited for; calls that wait get their turn in the order in which they began to.
    ///
    /// ```no_run
    /// # async fn call(client: homa_mio::Client, server: std::net::SocketAddr)
    /// # -> Result<(), homa_mio::CallError> {
    /// let answer = client.call(server, b"hello").await?;
    /// let answer = client.call(server, &answer).wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn call(&self, to: impl Into<PeerAddr>, bytes: &[u8]) -> Call {
        self.call_with(to, self.message(bytes), CallOptions::default())
    }

    /// Like [`call`](Self::call), without copying the message, and with options.
    pub fn call_with(
        &self,
        to: impl Into<PeerAddr>,
        message: impl Into<Message>,
        options: CallOptions,
    ) -> Call {
        let submission = Submission::new(to, message, options);
        Call {
            stage: self.start(submission),
            shared: Arc::clone(&self.shared),
        }
    }

    /// Like [`call_with`](Self::call_with), but never waits for room.
    ///
    /// # Errors
    /// As many calls are in flight as are allowed, or the driver has ended. The message comes
    /// back.
    pub fn try_call(
        &self,
        to: impl Into<PeerAddr>,
        message: impl Into<Message>,
        options: CallOptions,
    ) -> Result<Call, TryCallError> {
        let submission = Submission::new(to, message, options);
        match self.start(submission) {
            Stage::New(submission) if self.shared.lock().closed => {
                Err(TryCallError::Closed(submission.message))
            }
            Stage::New(submission) => Err(TryCallError::Full(submission.message)),
            stage => Ok(Call {
                stage,
                shared: Arc::clone(&self.shared),
            }),
        }
    }

    fn start(&self, submission: Submission) -> Stage {
        let started = self.shared.lock().start(submission);
        match started {
            Ok(slot) => {
                self.shared.waker.wake();
                Stage::InFlight(slot)
            }
            Err(submission) => Stage::New(submission),
        }
    }

    /// Memory for a message of `len` bytes to send. The contents are left over from others.
    #[must_use]
    pub fn buffer(&self, len: usize) -> Message {
        self.shared.buffer(len)
    }

    /// A message with these bytes, in memory that is used again and again.
    #[must_use]
    pub fn message(&self, bytes: &[u8]) -> Message {
        self.shared.message(bytes)
    }

    /// Calls that have room now, waiting and dropped ones not counted.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.lock().in_flight()
    }

    /// Counters of the driver; see [`Driver::stats`](super::Driver::stats).
    #[must_use]
    pub fn stats(&self) -> DriverStats {
        self.shared.stats()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("local_addr", &self.shared.local_addr)
            .finish_non_exhaustive()
    }
}

/// Why [`Client::try_call`] has not started a call. The message comes back.
#[derive(Debug)]
#[non_exhaustive]
pub enum TryCallError {
    /// As many calls are in flight as are allowed.
    Full(Message),
    /// The driver has ended.
    Closed(Message),
}

impl TryCallError {
    /// The message that was not sent.
    #[must_use]
    pub fn into_message(self) -> Message {
        match self {
            Self::Full(message) | Self::Closed(message) => message,
        }
    }
}

impl fmt::Display for TryCallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "as many calls are in flight as are allowed",
            Self::Closed(_) => "the driver has ended",
        })
    }
}

impl std::error::Error for TryCallError {}

/// A call: a future of its reply. Dropping it cancels the call.
///
/// It works under any executor; [`wait`](Self::wait) does without one.
///
/// # Panics
/// When it is polled after it has been ready.
#[must_use = "dropping a call cancels it"]
pub struct Call {
    shared: Arc<Shared>,
    stage: Stage,
}

impl Call {
    /// Waits for the reply.
    ///
    /// # Errors
    /// See [`CallError`]; [`CallError::OnDriverThread`] on the thread that would have to bring the
    /// reply.
    pub fn wait(mut self) -> Outcome {
        loop {
            if let Some(outcome) = self.wait_until(None) {
                return outcome;
            }
        }
    }

    /// Waits for the reply for so long. `None`: it has not come; the call goes on.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Outcome> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&mut self, deadline: Option<Instant>) -> Option<Outcome> {
        PARKER.with(|(parker, waker)| {
            let mut context = Context::from_waker(waker);
            loop {
                if let Poll::Ready(outcome) = Pin::new(&mut *self).poll(&mut context) {
                    return Some(outcome);
                }
                if self.shared.is_driver_thread() {
                    return Some(Err(CallError::OnDriverThread));
                }
                if !parker.park(deadline) {
                    return None;
                }
            }
        })
    }
}

impl Future for Call {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let Self { shared, stage } = self.get_mut();
        let (outcome, wakes) = shared.lock().poll(stage, context.waker());
        shared.wake(wakes);
        outcome
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let wakes = self.shared.lock().abandon(&self.stage);
        self.shared.wake(wakes);
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("in_flight", &matches!(self.stage, Stage::InFlight(_)))
            .finish_non_exhaustive()
    }
}

/// Stops a thread until it is woken as a task.
struct Parker {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::Release) {
            self.thread.unpark();
        }
    }
}

impl Parker {
    /// Stops the thread until it is woken. `false`: the deadline has passed before.
    fn park(&self, deadline: Option<Instant>) -> bool {
        while !self.is_woken.swap(false, Ordering::Acquire) {
            let Some(deadline) = deadline else {
                std::thread::park();
                continue;
            };
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return false;
            }
            std::thread::park_timeout(rest);
        }
        true
    }
}

thread_local! {
    /// One for each thread, so that waiting allocates nothing.
    static PARKER: (Arc<Parker>, Waker) = {
        let parker = Arc::new(Parker {
            thread: std::thread::current(),
            is_woken: AtomicBool::new(false),
        });
        (Arc::clone(&parker), Waker::from(parker))
    };
}
