//! Buffers that the kernel receives into.

use std::io;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use homa_mio::sys::layout::{self, Info};
use homa_mio::sys::{Incoming, RECEIVE_LEN};
use io_uring::types::{BufRingEntry, RecvMsgOut};

use crate::memory::Region;

/// What a multishot request writes before the address.
const HEADER_LEN: usize = 16;
/// Room for the address of the sender.
const NAME_LEN: usize = 32;
/// Room for control messages: those for the segment size, the TOS and the destination need 88.
const CONTROL_LEN: usize = 144;
/// Where the datagrams start, at the start of a cache line: copying to other places takes up to
/// three times as long on some processors.
pub(crate) const PAYLOAD: usize = HEADER_LEN + NAME_LEN + CONTROL_LEN;
/// The longest reception: what UDP can carry, and so what GRO joins at most.
const PAYLOAD_LEN: usize = RECEIVE_LEN - 1;
/// From one buffer to the next. Not a multiple of the page size, or else the first lines of all
/// buffers would meet in the same few places of the processor's cache.
const STRIDE: usize = (PAYLOAD + PAYLOAD_LEN).next_multiple_of(64) + 64;

const _: () = assert!(PAYLOAD.is_multiple_of(64) && !STRIDE.is_multiple_of(4096));

/// A request for one reception.
#[derive(Clone, Copy)]
#[repr(C)]
struct Single {
    header: libc::msghdr,
    vector: libc::iovec,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    /// The kernel may write to it.
    Kernel,
    /// It is read here, or lies idle.
    Driver,
}

/// Buffers, the list through which the kernel gets them, and the headers of requests: one
/// region, laid out in this order: list, header of a multishot request, headers of single
/// requests, buffers.
pub(crate) struct Buffers {
    region: Region,
    owners: Box<[Owner]>,
    /// Buffers given to the list so far.
    given: u16,
}

impl Buffers {
    /// `count` buffers, a power of two up to 2^15.
    pub(crate) fn new(count: u16) -> io::Result<Self> {
        let count = usize::from(count);
        assert!(count.is_power_of_two() && count <= 1 << 15);
        let buffers = Self {
            region: Region::new(Self::first(count) + count * STRIDE)?,
            owners: vec![Owner::Driver; count].into_boxed_slice(),
            given: 0,
        };
        let mut header = empty_header();
        header.msg_namelen = NAME_LEN as u32;
        header.msg_controllen = CONTROL_LEN as _;
        // SAFETY: it is inside the region, and the kernel knows nothing of it yet.
        unsafe { buffers.multishot_header().write(header) };
        Ok(buffers)
    }

    pub(crate) fn count(&self) -> u16 {
        self.owners.len() as u16
    }

    fn headers(count: usize) -> usize {
        count * size_of::<BufRingEntry>()
    }

    fn singles(count: usize) -> usize {
        Self::headers(count) + size_of::<libc::msghdr>()
    }

    fn first(count: usize) -> usize {
        (Self::singles(count) + count * size_of::<Single>()).next_multiple_of(4096)
    }

    /// What is to be registered with the ring.
    pub(crate) fn list(&self) -> NonNull<BufRingEntry> {
        self.region.at(0)
    }

    /// The header of a multishot request: how much room there is for what.
    pub(crate) fn multishot_header(&self) -> NonNull<libc::msghdr> {
        self.region.at(Self::headers(self.owners.len()))
    }

    fn single(&self, id: u16) -> NonNull<Single> {
        let at = Self::singles(self.owners.len()) + usize::from(id) * size_of::<Single>();
        self.region.at(at)
    }

    fn buffer(&self, id: u16) -> NonNull<[u8; STRIDE]> {
        let first = Self::first(self.owners.len());
        self.region.at(first + usize::from(id) * STRIDE)
    }

    /// Puts a buffer into the kernel's list.
    pub(crate) fn give(&mut self, id: u16) {
        self.pass(id, Owner::Driver, Owner::Kernel);
        let mask = self.count() - 1;
        let address = self.buffer(id).as_ptr() as u64;
        let list = self.list();
        // SAFETY: masked, it is one of the entries.
        let mut entry = unsafe { list.add(usize::from(self.given & mask)) };
        // SAFETY: the kernel does not read the entry before the tail below says so, and nobody
        // else has a reference to it.
        let entry = unsafe { entry.as_mut() };
        entry.set_addr(address);
        entry.set_len((PAYLOAD + PAYLOAD_LEN) as u32);
        entry.set_bid(id);
        self.given = self.given.wrapping_add(1);
        // SAFETY: the list starts on a page.
        let tail = unsafe { BufRingEntry::tail(list.as_ptr()) };
        // SAFETY: the tail is a live and aligned integer, which the kernel only reads, and here
        // it is only written atomically.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.given, Ordering::Release);
    }

    /// Prepares a request that receives into this buffer once.
    pub(crate) fn lend(&mut self, id: u16) -> NonNull<libc::msghdr> {
        self.pass(id, Owner::Driver, Owner::Kernel);
        let single = self.single(id);
        let buffer = self.buffer(id).cast::<u8>();
        // SAFETY: inside of the buffer.
        let at = |offset| unsafe { buffer.add(offset) }.as_ptr();
        let mut header = empty_header();
        header.msg_name = at(HEADER_LEN).cast();
        header.msg_namelen = NAME_LEN as u32;
        header.msg_control = at(HEADER_LEN + NAME_LEN).cast();
        header.msg_controllen = CONTROL_LEN as _;
        header.msg_iovlen = 1;
        let vector = libc::iovec {
            iov_base: at(PAYLOAD).cast(),
            iov_len: PAYLOAD_LEN,
        };
        // SAFETY: inside of the structure.
        let place = unsafe { single.cast::<u8>().add(offset_of!(Single, vector)) };
        header.msg_iov = place.cast().as_ptr();
        // SAFETY: a place inside the region, to which nobody has a reference.
        unsafe { single.write(Single { header, vector }) };
        single.cast()
    }

    /// The kernel has filled this buffer, or has not used it: it is ours again. `false` if it
    /// was ours already, or there is no such buffer.
    pub(crate) fn take(&mut self, id: u16) -> bool {
        let is_kernels = self.owners.get(usize::from(id)) == Some(&Owner::Kernel);
        if is_kernels {
            self.pass(id, Owner::Kernel, Owner::Driver);
        }
        is_kernels
    }

    pub(crate) fn is_idle(&self, id: u16) -> bool {
        self.owners[usize::from(id)] == Owner::Driver
    }

    fn pass(&mut self, id: u16, from: Owner, to: Owner) {
        let owner = &mut self.owners[usize::from(id)];
        assert_eq!(*owner, from, "buffer {id} changes hands once");
        *owner = to;
    }

    fn bytes(&self, id: u16) -> &[u8; STRIDE] {
        assert!(self.is_idle(id), "buffer {id} is the kernel's");
        // SAFETY: the kernel writes to it no more until it is given again, which needs `self`
        // unshared.
        unsafe { self.buffer(id).as_ref() }
    }

    /// The datagrams in a buffer that has been filled, and more.
    pub(crate) fn payload(&self, id: u16) -> &[u8] {
        &self.bytes(id)[PAYLOAD..][..PAYLOAD_LEN]
    }

    /// What a multishot request has received: `result` is what it said.
    pub(crate) fn received(&self, id: u16, result: usize) -> Incoming {
        received(&self.bytes(id)[..PAYLOAD + PAYLOAD_LEN], result)
    }

    /// What a request for one reception has received: `result` is what it said.
    pub(crate) fn received_once(&self, id: u16, result: usize) -> Incoming {
        let bytes = self.bytes(id);
        // SAFETY: the request has ended, as the buffer's owner shows: nobody writes to it.
        let header = unsafe { self.single(id).as_ref() }.header;
        let part = |at, room, len| &bytes[at..][..usize::min(room, len)];
        #[allow(clippy::unnecessary_cast)] // 32 bits on some systems
        let control_len = header.msg_controllen as usize;
        incoming(
            part(HEADER_LEN, NAME_LEN, header.msg_namelen as usize),
            part(HEADER_LEN + NAME_LEN, CONTROL_LEN, control_len),
            result,
            header.msg_flags & libc::MSG_TRUNC != 0,
            header.msg_flags & libc::MSG_CTRUNC != 0,
        )
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// The kernel has let go of the ring, or no request is under way in it and the list is used
    /// no more.
    pub(crate) unsafe fn free(self) {
        // SAFETY: as the caller promises.
        unsafe { self.region.free() };
    }
}

/// What a multishot request has received into a buffer with these bytes, of which a kernel may have
/// written anything: `result` is what its completion said.
#[must_use]
pub fn received(bytes: &[u8], result: usize) -> Incoming {
    let mut template = empty_header();
    template.msg_namelen = NAME_LEN as u32;
    template.msg_controllen = CONTROL_LEN as _;
    let Ok(found) = RecvMsgOut::parse(bytes, &template) else {
        return Incoming::NONE;
    };
    incoming(
        found.name_data(),
        found.control_data(),
        result.saturating_sub(PAYLOAD),
        found.is_payload_truncated(),
        found.is_control_data_truncated(),
    )
}

fn incoming(
    name: &[u8],
    control: &[u8],
    len: usize,
    truncated: bool,
    control_truncated: bool,
) -> Incoming {
    let info = Info::decode(control);
    Incoming {
        from: layout::address(name),
        local: info.local,
        tos: info.tos,
        len: len.min(PAYLOAD_LEN),
        segment_size: info.segment_size,
        truncated,
        control_truncated,
    }
}

pub(crate) fn empty_header() -> libc::msghdr {
    // SAFETY: a plain C structure of integers and pointers: all zeros is a value.
    unsafe { std::mem::zeroed() }
}
