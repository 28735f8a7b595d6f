//! Socket options.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::SockRef;

use super::Ask;

pub(super) fn ask(socket: BorrowedFd<'_>, ask: Ask) -> io::Result<()> {
    let ipv6 = is_ipv6(socket)?;
    // An IPv6 socket also carries IPv4, which has options of its own; they can be refused when
    // the socket is for IPv6 only.
    let both = |v4: (c_int, c_int), v6: (c_int, c_int)| {
        let first = set(socket, libc::IPPROTO_IP, v4.0, v4.1);
        if ipv6 {
            set(socket, libc::IPPROTO_IPV6, v6.0, v6.1)
        } else {
            first
        }
    };
    match ask {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        Ask::DontFragment => both(
            (libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
            (libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE),
        ),
        #[cfg(target_vendor = "apple")]
        Ask::DontFragment => both((libc::IP_DONTFRAG, 1), (libc::IPV6_DONTFRAG, 1)),
        #[cfg(any(target_os = "linux", target_os = "android"))]
        Ask::Gro => set(socket, libc::SOL_UDP, libc::UDP_GRO, 1),
        // Setting 0 changes nothing and is refused by a kernel that does not know it.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        Ask::Gso => set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0),
        Ask::ReceiveTos => both((libc::IP_RECVTOS, 1), (libc::IPV6_RECVTCLASS, 1)),
        // On an IPv6 socket this also tells IPv4 addresses, as mapped ones.
        Ask::ReceiveLocal if ipv6 => set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1),
        Ask::ReceiveLocal => set(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1),
        #[allow(unreachable_patterns)]
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

pub(super) fn set_receive_buffer(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let socket2 = SockRef::from(&socket);
    // Linux takes any number and silently uses less; others refuse.
    let asked = socket2.set_recv_buffer_size(bytes);
    let got = socket2.recv_buffer_size()?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if got < bytes.saturating_mul(2) {
        // Beyond net.core.rmem_max only the privileged may go: worth a try.
        let ask = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        if set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, ask).is_ok() {
            return socket2.recv_buffer_size();
        }
    }
    drop(asked);
    Ok(got)
}

pub(super) fn set_send_buffer(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let socket2 = SockRef::from(&socket);
    // What there really is counts, not whether the wish was granted.
    drop(socket2.set_send_buffer_size(bytes));
    socket2.send_buffer_size()
}

pub(super) fn tos(socket: BorrowedFd<'_>) -> io::Result<u8> {
    let value = if is_ipv6(socket)? {
        get(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS)?
    } else {
        get(socket, libc::IPPROTO_IP, libc::IP_TOS)?
    };
    Ok(u8::try_from(value).unwrap_or(0))
}

pub(super) fn set_tos(socket: BorrowedFd<'_>, tos: u8) -> io::Result<()> {
    let value = c_int::from(tos);
    let ipv4 = set(socket, libc::IPPROTO_IP, libc::IP_TOS, value);
    if is_ipv6(socket)? {
        // Refused for IPv4 only by a socket that does not carry it.
        return set(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, value);
    }
    ipv4
}

fn is_ipv6(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(SockRef::from(&socket).local_addr()?.is_ipv6())
}

fn set(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the pointer is to a live integer, whose size is what the call is told.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn get(socket: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to a live integer of that size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if result == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}
