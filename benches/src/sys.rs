//! The few system calls that std does not offer.

use std::io;
use std::net::UdpSocket;

/// Pins the calling thread to a CPU. Without that CPU, or on other systems than Linux, the
/// thread runs where it likes: figures vary more.
pub fn pin(cpu: usize) {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: a cpu_set_t is a plain array of bits, for which zero is a valid value.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        if cpu >= libc::CPU_SETSIZE as usize {
            return;
        }
        // SAFETY: `cpu` is below CPU_SETSIZE, so that its bit lies within the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
        // SAFETY: the pointer and the size are those of a live cpu_set_t; 0 is this thread.
        let _ = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cpu;
}

/// Makes each send of `socket` leave as datagrams of `segment` bytes (UDP GSO).
pub fn set_udp_segment(socket: &UdpSocket, segment: u16) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, segment.into());
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (socket, segment);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Lets one receive of `socket` return several datagrams end to end (UDP GRO).
pub fn set_udp_gro(socket: &UdpSocket) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return set_int(socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = socket;
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(target_os = "linux")]
fn set_int(
    socket: &UdpSocket,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open as long as `socket` lives; pointer and length are those of
    // a live c_int.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
