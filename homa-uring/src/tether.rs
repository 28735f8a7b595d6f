//! Telling when the kernel has let go of a ring.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The reading end of a pipe whose writing end only the ring has. A ring that has been closed
/// lives on in the kernel until its last request has ended; then it closes its files, and the
/// pipe hangs up.
pub(crate) struct Tether(PipeReader);

impl Tether {
    /// A tether, and the file that the ring is to have.
    pub(crate) fn new() -> io::Result<(Self, PipeWriter)> {
        let (reader, writer) = io::pipe()?;
        Ok((Self(reader), writer))
    }

    /// Waits until the kernel has let go, or for about this time; `None` waits for ever. Returns
    /// whether it has.
    pub(crate) fn released(&self, timeout: Option<Duration>) -> bool {
        let timeout = timeout.map_or(-1, |timeout| {
            libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX)
        });
        let mut poll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: 0,
            revents: 0,
        };
        loop {
            // SAFETY: one live pollfd.
            let found = unsafe { libc::poll(&raw mut poll, 1, timeout) };
            let interrupted =
                found < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
            let released = poll.revents & libc::POLLHUP != 0;
            if released || (timeout >= 0 && !interrupted) {
                return released;
            }
            if !interrupted {
                // It cannot tell now. Nothing else can.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_hangs_up_when_the_last_file_is_closed() {
        let (tether, writer) = Tether::new().unwrap();
        let copy = writer.try_clone().unwrap();
        drop(writer);
        assert!(!tether.released(Some(Duration::from_millis(1))));
        drop(copy);
        assert!(tether.released(None));
    }
}
