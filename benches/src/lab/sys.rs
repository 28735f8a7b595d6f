//! The system calls that the lab needs: namespaces, links, what a connection has been through.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use rustix::time::ClockId;
use socket2::{Domain, Socket, Type};

/// Moves the calling process, which must have one thread, into a network of its own with nothing
/// in it. Whoever is not root becomes so inside a user namespace.
///
/// A namespace lives as long as its processes and nothing else refers to it: however the lab
/// ends, its network ends with it.
pub(super) fn enter_network() -> Result<()> {
    if unshare(libc::CLONE_NEWNET).is_ok() {
        return Ok(());
    }
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET).context(
        "cannot make network namespaces: the lab needs root, or a system that lets users make them",
    )?;
    // Without this a user may not map the group.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {} 1", user.as_raw()))?;
    fs::write("/proc/self/gid_map", format!("0 {} 1", group.as_raw()))?;
    Ok(())
}

fn unshare(what: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointer; new namespaces of these kinds leave memory and descriptors alone.
    check(unsafe { libc::unshare(what) })
}

/// Ends this process with the thread that started it, and wakes it when it asks to be woken
/// instead of up to 50 µs later.
pub(super) fn be_a_host() -> io::Result<()> {
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have gone before that took effect: then some other process has taken us over.
    if rustix::process::getppid() != parent {
        return Err(io::Error::other("the lab has gone"));
    }
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    // Where it is refused hosts that share a CPU wait longer for each other, and the lab says that
    // requests were late.
    let _ = take_turns();
    Ok(())
}

/// The longest turn that a host takes on a CPU while another waits for it, in nanoseconds: real
/// hosts do not wait for each other at all. The least that Linux knows.
const SLICE_NS: u64 = 100_000;

/// `struct sched_attr` of linux/sched/types.h in its first version.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

fn take_turns() -> io::Result<()> {
    let mut attr = SchedAttr::default();
    let size = size_of_val(&attr);
    // SAFETY: the kernel writes at most `size` bytes to a structure that has as many; 0 is this
    // thread.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    check(got as libc::c_int)?;
    attr.runtime = SLICE_NS;
    // SAFETY: the kernel reads a live structure, which says how long it is.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    check(set as libc::c_int)
}

/// Nanoseconds on a clock that all processes share.
pub(super) fn now_ns() -> u64 {
    nanos(ClockId::Monotonic)
}

/// Nanoseconds that this process has spent on CPUs.
pub(super) fn cpu_ns() -> u64 {
    crate::sys::process_cpu().as_nanos() as u64
}

fn nanos(clock: ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    // Neither clock is ever negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Waits until there is something to read, at most `timeout`, counted in nanoseconds where epoll
/// counts milliseconds.
pub(super) fn wait(what: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    let timeout = Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let mut poll = [PollFd::from_borrowed_fd(what, PollFlags::IN)];
    match rustix::event::poll(&mut poll, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Ticks since this machine was started that its CPUs spent on other things than nothing or
/// niced processes, which give way; and all ticks.
pub(super) fn machine() -> Result<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("/proc/stat is empty")?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .map(|word| word.parse().unwrap_or(0))
        .collect();
    let all: u64 = ticks.iter().sum();
    // user nice system idle iowait irq softirq steal
    let [_, nice, _, idle, iowait, ..] = ticks[..] else {
        anyhow::bail!("/proc/stat says too little");
    };
    Ok((all - nice - idle - iowait, all))
}

/// Segments that a connection has sent again.
pub(super) fn retransmits(stream: &TcpStream) -> io::Result<u64> {
    // SAFETY: a tcp_info is a plain structure of integers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is open as long as `stream` lives; pointer and length are those of a
    // live tcp_info, and the kernel writes no more than that.
    check(unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    })?;
    Ok(info.tcpi_total_retrans.into())
}

/// `struct ethtool_value` of linux/ethtool.h.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    value: u32,
}

/// ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO.
const SEGMENTATION: [u32; 3] = [0x1f, 0x24, 0x2c];
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// Makes a link carry frames as they are: no device cuts long ones or joins short ones.
pub(super) fn turn_offloads_off(link: &str) -> Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    for command in SEGMENTATION {
        let mut value = EthtoolValue { command, value: 0 };
        // SAFETY: an ifreq is a plain structure, for which zero is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let room = request.ifr_name.len() - 1;
        for (to, from) in request.ifr_name[..room].iter_mut().zip(link.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // SAFETY: the kernel reads the name, which ends with a zero, and the value, and both live
        // on this frame.
        check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCETHTOOL, &raw mut request) })
            .with_context(|| format!("cannot turn off the offloads of {link}"))?;
    }
    Ok(())
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
