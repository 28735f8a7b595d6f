//! Why there is no io_uring.

use std::fmt;
use std::io;

use homa_mio::Reason;

/// What is missing for a ring. The source of the [`io::Error`] that `bind` then returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unavailable {
    what: &'static str,
    code: Option<i32>,
}

impl Unavailable {
    pub(crate) fn lacks(what: &'static str) -> Self {
        Self { what, code: None }
    }

    pub(crate) fn refused(what: &'static str, error: &io::Error) -> Self {
        let code = error.raw_os_error();
        Self { what, code }
    }

    /// The error code with which the system refused; `None` if the kernel is too old.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.code
    }

    /// The same, for [`Stats`](homa_mio::Stats).
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self.code {
            None | Some(libc::ENOSYS) => Reason::Unsupported,
            Some(code) => Reason::Refused(code),
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.what;
        let Some(code) = self.code else {
            return write!(f, "io_uring of this kernel lacks {what}");
        };
        let error = io::Error::from_raw_os_error(code);
        write!(f, "io_uring cannot be used: {what}: {error}")?;
        match code {
            libc::ENOSYS => f.write_str("; the kernel has none, or a seccomp filter hides it"),
            libc::EPERM => f.write_str(
                "; it is forbidden by the sysctl kernel.io_uring_disabled or a seccomp filter",
            ),
            libc::ENOMEM => f.write_str("; on old kernels RLIMIT_MEMLOCK may be too low"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Unavailable {}

impl From<Unavailable> for io::Error {
    fn from(unavailable: Unavailable) -> Self {
        let kind = match unavailable.code {
            None | Some(libc::ENOSYS) => io::ErrorKind::Unsupported,
            Some(code) => Self::from_raw_os_error(code).kind(),
        };
        // Whatever the kind, without a code the driver takes it for what it is: the end.
        Self::new(kind, unavailable)
    }
}
