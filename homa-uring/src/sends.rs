//! Headers of requests to send.

use std::io;
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
        Region::new(BATCH * size_of::<Send>()).map(Self)
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
        let mut control = Control::EMPTY;
        control.write(batch);
        let send = Send {
            header: empty_header(),
            vector: libc::iovec {
                // The kernel only reads here; the structure is shared with receiving.
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            },
            name: Name::encode(batch.to),
            control,
        };
        let (name_len, control_len) = (send.name.len, send.control.len);
        // SAFETY: a place inside the region; no request refers to it any more.
        unsafe { place.write(send) };
        // SAFETY: as above, and there is no other reference to it.
        let send = unsafe { &mut *place.as_ptr() };
        let header = &mut send.header;
        header.msg_name = send.name.bytes.as_mut_ptr().cast();
        header.msg_namelen = name_len;
        header.msg_iov = &raw mut send.vector;
        header.msg_iovlen = 1;
        if control_len > 0 {
            header.msg_control = send.control.bytes.as_mut_ptr().cast();
            header.msg_controllen = control_len as _;
        }
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
