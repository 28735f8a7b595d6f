//! Headers of requests to send.

use std::io;
use std::mem::offset_of;
use std::ptr::NonNull;

use homa_mio::sys::layout::{Control, Name};
use homa_mio::sys::{BATCH, Outgoing};

use crate::buffers::empty_header;
use crate::memory::Region;

/// All that a request to send points to, but the bytes.
#[repr(C)]
struct Send {
    header: libc::msghdr,
    vector: libc::iovec,
    name: Name,
    control: Control,
}

/// Headers for [`BATCH`] requests. They are written anew for each call to send, when no request
/// of the last is left.
pub(crate) struct Sends(Region);

impl Sends {
    pub(crate) fn new() -> io::Result<Self> {
        let sends = Self(Region::new(BATCH * size_of::<Send>())?);
        for at in 0..BATCH {
            let place = sends.at(at).cast::<u8>();
            // SAFETY: inside of the structure.
            let part = |offset| unsafe { place.add(offset) }.as_ptr();
            let name = part(offset_of!(Send, name) + offset_of!(Name, bytes));
            let vector = part(offset_of!(Send, vector));
            let control = part(offset_of!(Send, control) + offset_of!(Control, bytes));
            let mut header = empty_header();
            header.msg_name = name.cast();
            header.msg_iov = vector.cast();
            header.msg_iovlen = 1;
            header.msg_control = control.cast();
            let send = Send {
                header,
                vector: libc::iovec {
                    iov_base: std::ptr::null_mut(),
                    iov_len: 0,
                },
                name: Name::EMPTY,
                control: Control::EMPTY,
            };
            // SAFETY: a place inside the region; no request refers to it yet.
            unsafe { sends.at(at).write(send) };
        }
        Ok(sends)
    }

    fn at(&self, at: usize) -> NonNull<Send> {
        self.0.at(at * size_of::<Send>())
    }

    /// Describes `batch`, whose bytes are in `memory`. What is returned points to them.
    pub(crate) fn write(
        &mut self,
        at: usize,
        memory: &[u8],
        batch: &Outgoing,
    ) -> NonNull<libc::msghdr> {
        let bytes = &memory[batch.start..][..batch.len];
        let place = self.at(at);
        // SAFETY: written by `new`; no request refers to it any more, and nothing else does.
        let send = unsafe { &mut *place.as_ptr() };
        // The kernel only reads here; the structure is shared with receiving.
        send.vector.iov_base = bytes.as_ptr().cast_mut().cast();
        send.vector.iov_len = bytes.len();
        send.name = Name::encode(batch.to);
        send.control.len = 0;
        send.control.write(batch);
        send.header.msg_namelen = send.name.len;
        send.header.msg_controllen = send.control.len as _;
        // It may have been spoilt.
        send.header.msg_iovlen = 1;
        place.cast()
    }

    /// Makes a request that the kernel has not taken yet one that it refuses as soon as it looks
    /// at it, so that it does not look at the bytes.
    pub(crate) fn spoil(&mut self, at: usize) {
        // SAFETY: a place inside the region to which there is no reference.
        let header = unsafe { &mut (*self.at(at).as_ptr()).header };
        // More than IOV_MAX.
        header.msg_iovlen = 1 << 16;
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// The kernel has let go of the ring, or no request to send is under way in it.
    pub(crate) unsafe fn free(self) {
        // SAFETY: as the caller promises.
        unsafe { self.0.free() };
    }
}
