//! The few system calls that std does not offer.

use std::io;
use std::net::UdpSocket;
use std::time::Duration;

use rustix::event::PollFd;
use rustix::time::{ClockId, Timespec};

use crate::transport::NAP;

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

/// The processor time of all threads of this process so far.
#[must_use]
pub fn process_cpu() -> Duration {
    duration(rustix::time::clock_gettime(ClockId::ProcessCPUTime))
}

/// The processor time of the calling thread so far.
#[must_use]
pub fn thread_cpu() -> Duration {
    duration(rustix::time::clock_gettime(ClockId::ThreadCPUTime))
}

/// Clocks that count from a start are never negative.
fn duration(time: Timespec) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Memory of this process that is in RAM, in bytes, where the system tells.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// What the processors of this machine had done at some time, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Processor {
    all: u64,
    stolen: u64,
}

/// What they have done so far, where the system tells.
#[must_use]
pub fn processor() -> Option<Processor> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    let ticks: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .map_while(|field| field.parse().ok())
        .collect();
    Some(Processor {
        all: ticks.iter().sum(),
        stolen: *ticks.get(7)?,
    })
}

impl Processor {
    /// The share that the host gave to somebody else since then.
    #[must_use]
    pub fn stolen(self) -> Option<f64> {
        let now = processor()?;
        let all = now.all.checked_sub(self.all).filter(|all| *all > 0)?;
        Some(now.stolen.saturating_sub(self.stolen) as f64 / all as f64)
    }
}

/// Sleeps until something happens to one of the descriptors, or for [`NAP`].
pub fn poll(fds: &mut [PollFd<'_>]) -> io::Result<()> {
    let nap = Timespec {
        tv_sec: 0,
        tv_nsec: NAP.subsec_nanos().into(),
    };
    match rustix::event::poll(fds, Some(&nap)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
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
