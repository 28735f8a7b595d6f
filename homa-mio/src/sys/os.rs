//! The system calls themselves.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::layout::{Control, Name};
use super::{Ask, BATCH, Incoming, Lent, Outgoing, RECEIVE_LEN, Sys, options};

/// The operating system's calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Os;

impl Sys for Os {
    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        memory: &mut [u8],
        into: &mut [Incoming],
    ) -> io::Result<usize> {
        // The headers of a call live on the stack: one is much cheaper to set up than all.
        match into.len() {
            0 => Ok(0),
            1 => receive::<1>(socket, memory, into),
            2..=4 => receive::<4>(socket, memory, into),
            _ => receive::<BATCH>(socket, memory, into),
        }
    }

    fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        memory: &[u8],
        batches: &[Outgoing],
    ) -> io::Result<usize> {
        if let [only] = batches
            && is_plain(only)
        {
            return send_plain(socket, memory, only);
        }
        match batches.len() {
            0 => Ok(0),
            1 => send::<1>(socket, memory, batches),
            2..=4 => send::<4>(socket, memory, batches),
            _ => send::<BATCH>(socket, memory, batches),
        }
    }

    fn lends(&self) -> bool {
        cfg!(any(target_os = "linux", target_os = "android"))
    }

    fn send_lent(
        &mut self,
        socket: BorrowedFd<'_>,
        batch: &Outgoing,
        lent: Lent<'_>,
    ) -> io::Result<()> {
        let mut vectors = [NO_BYTES; 2 * MAX_LENT];
        let datagrams = lent.datagrams(batch);
        if datagrams.len() > MAX_LENT {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let count = 2 * datagrams.len();
        for (pair, (header, payload)) in vectors.chunks_exact_mut(2).zip(datagrams) {
            for (vector, bytes) in pair.iter_mut().zip([header, payload]) {
                // The kernel only reads here; the structure is shared with receiving.
                vector.iov_base = bytes.as_ptr().cast_mut().cast();
                vector.iov_len = bytes.len();
            }
        }
        let mut name = Name::encode(batch.to);
        let mut control = Control::EMPTY;
        control.write(batch);
        let mut headers = no_headers::<1>();
        let [header] = &mut headers;
        address_header(&mut header.msg_hdr, &mut name, &mut control);
        header.msg_hdr.msg_iov = vectors.as_mut_ptr();
        header.msg_hdr.msg_iovlen = count as _;
        send_headers(socket, &mut headers).map(|_| ())
    }

    fn wait(
        &mut self,
        socket: BorrowedFd<'_>,
        wake: BorrowedFd<'_>,
        writable: bool,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let writable = if writable { libc::POLLOUT } else { 0 };
        let watch = |fd: BorrowedFd<'_>, events| libc::pollfd {
            fd: fd.as_raw_fd(),
            events,
            revents: 0,
        };
        let mut polls = [
            watch(socket, libc::POLLIN | writable),
            watch(wake, libc::POLLIN),
        ];
        if poll_once(&mut polls, timeout) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn ask(&mut self, socket: BorrowedFd<'_>, ask: Ask) -> io::Result<()> {
        options::ask(socket, ask)
    }

    fn set_receive_buffer(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
        options::set_receive_buffer(socket, bytes)
    }

    fn set_send_buffer(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
        options::set_send_buffer(socket, bytes)
    }

    fn tos(&mut self, socket: BorrowedFd<'_>) -> io::Result<u8> {
        options::tos(socket)
    }

    fn set_tos(&mut self, socket: BorrowedFd<'_>, tos: u8) -> io::Result<()> {
        options::set_tos(socket, tos)
    }
}

/// `ppoll` counts nanoseconds; what epoll and `poll` count is milliseconds, too coarse to pace.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn poll_once(polls: &mut [libc::pollfd; 2], timeout: Option<Duration>) -> c_int {
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
        // Below 10^9: fits whatever its type is.
        #[allow(clippy::cast_lossless)]
        tv_nsec: t.subsec_nanos() as _,
    });
    let timeout = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: two live pollfd, a timeout that is null or live, and no signal mask.
    unsafe { libc::ppoll(polls.as_mut_ptr(), 2, timeout, std::ptr::null()) }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn poll_once(polls: &mut [libc::pollfd; 2], timeout: Option<Duration>) -> c_int {
    // Rounded up, so as not to spin through the last millisecond.
    let timeout = timeout.map_or(-1, |t| {
        c_int::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
    });
    // SAFETY: two live pollfd.
    unsafe { libc::poll(polls.as_mut_ptr(), 2, timeout) }
}

/// The argument of `sendmmsg` and `recvmmsg`, which not every system has.
#[cfg(any(target_os = "linux", target_os = "android"))]
use libc::mmsghdr as Header;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types)]
struct Header {
    msg_hdr: libc::msghdr,
    msg_len: libc::c_uint,
}

fn no_headers<const N: usize>() -> [Header; N] {
    // SAFETY: these are plain C structures of integers and pointers: all zeros is a value.
    unsafe { std::mem::zeroed() }
}

/// The most datagrams that are sent from several places in one call: what every Linux with GSO
/// takes in one message.
const MAX_LENT: usize = 64;

const NO_BYTES: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

fn receive<const N: usize>(
    socket: BorrowedFd<'_>,
    memory: &mut [u8],
    into: &mut [Incoming],
) -> io::Result<usize> {
    let mut names = [Name::EMPTY; N];
    let mut controls = [Control::ROOM; N];
    let mut vectors = [NO_BYTES; N];
    let mut headers = no_headers::<N>();
    let mut count = 0;
    let parts = memory
        .chunks_exact_mut(RECEIVE_LEN)
        .zip(&mut names)
        .zip(&mut controls)
        .zip(vectors.iter_mut().zip(&mut headers));
    for ((((bytes, name), control), (vector, header)), _) in parts.zip(&*into) {
        vector.iov_base = bytes.as_mut_ptr().cast();
        vector.iov_len = bytes.len();
        let h = &mut header.msg_hdr;
        h.msg_name = name.bytes.as_mut_ptr().cast();
        h.msg_namelen = name.len;
        h.msg_iov = vector;
        h.msg_iovlen = 1;
        h.msg_control = control.bytes.as_mut_ptr().cast();
        h.msg_controllen = control.len as _;
        count += 1;
    }
    let received = receive_headers(socket, &mut headers[..count])?;
    for (((header, name), control), incoming) in headers
        .iter()
        .zip(&names)
        .zip(&controls)
        .zip(into)
        .take(received)
    {
        let h = &header.msg_hdr;
        #[allow(clippy::unnecessary_cast)] // 32 bits on some systems
        let len = h.msg_controllen as usize;
        let info = control.decode(len);
        *incoming = Incoming {
            from: name.decode(h.msg_namelen),
            local: info.local,
            tos: info.tos,
            len: header.msg_len as usize,
            segment_size: info.segment_size,
            truncated: h.msg_flags & libc::MSG_TRUNC != 0,
            control_truncated: h.msg_flags & libc::MSG_CTRUNC != 0,
        };
    }
    Ok(received)
}

fn send<const N: usize>(
    socket: BorrowedFd<'_>,
    memory: &[u8],
    batches: &[Outgoing],
) -> io::Result<usize> {
    let mut names = [Name::EMPTY; N];
    let mut controls = [Control::EMPTY; N];
    let mut vectors = [NO_BYTES; N];
    let mut headers = no_headers::<N>();
    let mut count = 0;
    let parts = names
        .iter_mut()
        .zip(&mut controls)
        .zip(vectors.iter_mut().zip(&mut headers));
    for (batch, ((name, control), (vector, header))) in batches.iter().zip(parts) {
        let bytes = &memory[batch.start..][..batch.len];
        *name = Name::encode(batch.to);
        control.write(batch);
        // The kernel only reads here; the structure is shared with receiving.
        vector.iov_base = bytes.as_ptr().cast_mut().cast();
        vector.iov_len = bytes.len();
        address_header(&mut header.msg_hdr, name, control);
        header.msg_hdr.msg_iov = vector;
        header.msg_hdr.msg_iovlen = 1;
        count += 1;
    }
    send_headers(socket, &mut headers[..count])
}

/// Where to and how: all of a header but the bytes.
fn address_header(header: &mut libc::msghdr, name: &mut Name, control: &mut Control) {
    header.msg_name = name.bytes.as_mut_ptr().cast();
    header.msg_namelen = name.len;
    if control.len > 0 {
        header.msg_control = control.bytes.as_mut_ptr().cast();
        header.msg_controllen = control.len as _;
    }
}

/// Whether there is nothing to say about these bytes but where they go.
fn is_plain(message: &Outgoing) -> bool {
    message.tos.is_none() && message.local.is_none() && message.segment_size.is_none()
}

/// The cheapest call: no headers for the kernel to copy and to look through.
fn send_plain(socket: BorrowedFd<'_>, memory: &[u8], message: &Outgoing) -> io::Result<usize> {
    let bytes = &memory[message.start..][..message.len];
    let name = Name::encode(message.to);
    // SAFETY: bytes and name are live and of the lengths given; the kernel only reads.
    let result = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT,
            name.bytes.as_ptr().cast(),
            name.len,
        )
    };
    check(result).map(|_| 1)
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Fills in `msg_len` of as many headers as datagrams were there.
fn receive_headers(socket: BorrowedFd<'_>, headers: &mut [Header]) -> io::Result<usize> {
    let fd = socket.as_raw_fd();
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if headers.len() > 1 {
        let count = headers.len() as libc::c_uint;
        let flags = libc::MSG_DONTWAIT;
        let none = std::ptr::null_mut();
        // SAFETY: each header points to a live name, vector and control buffer of the lengths
        // that it states, and the vector to bytes that are borrowed for writing.
        let result = unsafe { libc::recvmmsg(fd, headers.as_mut_ptr(), count, flags as _, none) };
        return check(result as isize);
    }
    let mut received = 0;
    for header in headers {
        // SAFETY: as for `recvmmsg`.
        let result = unsafe { libc::recvmsg(fd, &raw mut header.msg_hdr, libc::MSG_DONTWAIT) };
        match check(result) {
            Ok(len) => header.msg_len = len as libc::c_uint,
            // Told again by the next call.
            Err(_) if received > 0 => break,
            Err(error) => return Err(error),
        }
        received += 1;
    }
    Ok(received)
}

fn send_headers(socket: BorrowedFd<'_>, headers: &mut [Header]) -> io::Result<usize> {
    let fd = socket.as_raw_fd();
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if headers.len() > 1 {
        let count = headers.len() as libc::c_uint;
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: each header points to a live name, vector and control buffer of the lengths
        // that it states, and the vector to bytes that stay borrowed; the kernel only reads.
        let result = unsafe { libc::sendmmsg(fd, headers.as_mut_ptr(), count, flags as _) };
        return check(result as isize);
    }
    let mut sent = 0;
    for header in headers {
        // SAFETY: as for `sendmmsg`.
        let result = unsafe { libc::sendmsg(fd, &raw const header.msg_hdr, libc::MSG_DONTWAIT) };
        match check(result) {
            Ok(_) => {}
            Err(_) if sent > 0 => break,
            Err(error) => return Err(error),
        }
        sent += 1;
    }
    Ok(sent)
}
