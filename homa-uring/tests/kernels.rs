//! Kernels that are old, small, or forbid io_uring.

#![allow(missing_docs)]
#![cfg(target_os = "linux")]

mod driver;

#[path = "../../homa-mio/tests/shared/mod.rs"]
mod shared;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use homa_mio::sys::Sys;
use homa_uring::generic::{Options, Socket as Generic};
use homa_uring::kernel::{Completion, Faulty, Need, Plan, Setup};
use homa_uring::{
    Event, Feature, Reason, RequestOptions, Rung, Socket, Stats, Unavailable, Uring, Wait,
    bind_or_mio,
};
use io_uring::squeue::Flags;
use shared::{Echo, pattern};

const ANY: &str = "127.0.0.1:0";

fn any() -> SocketAddr {
    ANY.parse().unwrap()
}

fn options<P: Plan>(plan: P) -> Options<Uring<Faulty<P>>> {
    Socket::builder().sys(Uring::over(Faulty::new(plan)))
}

/// Messages of several sizes come back as they were.
fn call_sizes<S: Sys>(socket: &mut Generic<S>, to: SocketAddr) {
    for len in [1, 1000, 20_000, 300_000, 2_000_000] {
        let bytes = pattern(len, len);
        let answer = socket
            .call(to, &bytes)
            .unwrap_or_else(|error| panic!("{len} bytes: {error}; {:?}", socket.stats()));
        assert!(*answer == *bytes, "{len} bytes");
    }
}

/// Both ends on kernels of this kind.
fn between<S: Sys + Send + 'static>(make: impl Fn() -> Options<S>) -> [Stats; 2] {
    let server = Echo::start_with(ANY, make());
    let mut socket = make().bind(any()).unwrap();
    call_sizes(&mut socket, server.address);
    [socket.stats(), server.stop()]
}

/// A kernel that lacks something.
#[derive(Clone, Copy, Default)]
struct Lacking {
    rungs: &'static [Rung],
    setup: Option<i32>,
    need: Option<Need>,
    files: Option<i32>,
    enable: Option<i32>,
    buffers: Option<i32>,
    multishot: Option<i32>,
}

// SAFETY: tags and buffers of completions stay as they are.
unsafe impl Plan for Lacking {
    fn setup(&mut self, setup: &mut Setup) -> Option<i32> {
        let unknown = self.rungs.contains(&setup.rung);
        self.setup.or(unknown.then_some(libc::EINVAL))
    }

    fn lacks(&self, need: Need) -> bool {
        self.need == Some(need)
    }

    fn register_files(&mut self) -> Option<i32> {
        self.files
    }

    fn enable(&mut self) -> Option<i32> {
        self.enable
    }

    fn register_buffers(&mut self) -> Option<i32> {
        self.buffers
    }

    fn spoil(&mut self, tag: u64) -> Option<Flags> {
        let is_multishot = tag >> 56 == 2;
        self.multishot
            .filter(|_| is_multishot)
            .map(|_| Flags::empty())
    }

    fn completion(&mut self, completion: &mut Completion) {
        if let Some(code) = self.multishot.filter(|_| completion.result == -libc::EBADF) {
            completion.result = -code;
        }
    }
}

#[test]
fn each_rung_carries_and_shows() {
    let off = |code| Feature::Off(Reason::Refused(code));
    let none = Lacking::default();
    let cases = [
        (none, Feature::On, Feature::On),
        (
            Lacking {
                rungs: &[Rung::Deferred],
                ..none
            },
            off(libc::EINVAL),
            Feature::On,
        ),
        (
            Lacking {
                rungs: &[Rung::Deferred, Rung::Cooperative],
                buffers: Some(libc::EINVAL),
                ..none
            },
            off(libc::EINVAL),
            off(libc::EINVAL),
        ),
        // A list of buffers, but no multishot: Linux 5.19.
        (
            Lacking {
                rungs: &[Rung::Deferred],
                multishot: Some(libc::EINVAL),
                ..none
            },
            off(libc::EINVAL),
            off(libc::EINVAL),
        ),
        (
            Lacking {
                buffers: Some(libc::ENOMEM),
                ..none
            },
            Feature::On,
            off(libc::ENOMEM),
        ),
    ];
    for (plan, deferred, multishot) in cases {
        for stats in between(|| options(plan)) {
            assert_eq!(stats.io_uring, Feature::On);
            assert_eq!(stats.ring_deferred, deferred);
            assert_eq!(stats.ring_multishot, multishot);
            assert_eq!(stats.io.other_errors + stats.io.refused, 0);
            assert!(stats.io.ring_calls > 0);
            let calls = stats.io.ring_calls + stats.io.send_calls;
            assert_eq!(stats.io.system_calls(), calls);
        }
    }
}

#[test]
fn rungs_and_multishot_can_be_left_out_by_the_options() {
    let make = || {
        let ring = Uring::default().rung(Rung::Cooperative).multishot(false);
        Socket::builder().sys(ring)
    };
    for stats in between(make) {
        assert_eq!(stats.ring_deferred, Feature::Off(Reason::Disabled));
        assert_eq!(stats.ring_multishot, Feature::Off(Reason::Disabled));
    }
}

#[test]
fn bind_says_what_is_missing() {
    let none = Lacking::default();
    let setup = |code| Lacking {
        setup: Some(code),
        ..none
    };
    let need = |need| Lacking {
        need: Some(need),
        ..none
    };
    for (plan, code, words) in [
        (setup(libc::EPERM), Some(libc::EPERM), "io_uring_disabled"),
        (
            setup(libc::ENOSYS),
            Some(libc::ENOSYS),
            "the kernel has none",
        ),
        (setup(libc::EMFILE), Some(libc::EMFILE), "io_uring_setup"),
        (need(Need::ExtArg), None, "Linux 5.11"),
        (need(Need::FastPoll), None, "FAST_POLL"),
        (need(Need::NoDrop), None, "NODROP"),
        (
            Lacking {
                files: Some(libc::EMFILE),
                ..none
            },
            Some(libc::EMFILE),
            "FILES",
        ),
    ] {
        let error = options(plan).bind(any()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
        let inner = error.into_inner().unwrap();
        let unavailable = inner.downcast_ref::<Unavailable>().unwrap();
        assert_eq!(unavailable.code(), code);
    }
}

/// Forbids io_uring to this thread, by a filter that answers io_uring_setup with this code.
fn forbid(code: i32) {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    // If the number of the call is that of io_uring_setup, fail, else allow.
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            jf: 1,
            ..statement(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                libc::SYS_io_uring_setup as u32,
            )
        },
        statement(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | code as u32),
        statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: no pointers.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(set, 0);
    // SAFETY: a live program of the length stated.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) };
    assert_eq!(set, 0);
}

#[test]
fn where_a_filter_forbids_it_bind_says_so_and_mio_takes_over_if_asked() {
    for (code, reason) in [
        (libc::EPERM, Reason::Refused(libc::EPERM)),
        (libc::ENOSYS, Reason::Unsupported),
    ] {
        // The filter holds for this thread and those that it starts.
        let thread = std::thread::spawn(move || {
            forbid(code);
            let error = Socket::bind(any()).unwrap_err();
            assert!(error.to_string().contains("seccomp"), "{error}");
            let server = Echo::start_with(ANY, Socket::builder().sys(Uring::or_mio()));
            let mut socket = bind_or_mio(any()).unwrap();
            call_sizes(&mut socket, server.address);
            for stats in [socket.stats(), server.stop()] {
                assert_eq!(stats.io_uring, Feature::Off(reason));
                assert_eq!(stats.io.ring_calls, 0);
                assert!(stats.io.send_calls > 0 && stats.io.receive_calls > 0);
            }
        });
        thread.join().unwrap();
    }
    // Elsewhere in the process it is as before.
    assert_eq!(bind_or_mio(any()).unwrap().stats().io_uring, Feature::On);
}

#[test]
fn a_ring_that_cannot_be_opened_is_an_error() {
    let plan = Lacking {
        enable: Some(libc::EBADFD),
        ..Lacking::default()
    };
    let mut socket = options(plan).bind(any()).unwrap();
    assert!(socket.poll().unwrap_err().to_string().contains("ENABLE"));
}

/// Datagrams that nobody can take for Homa's, and their number.
fn burst(to: SocketAddr, count: usize) -> usize {
    let sender = UdpSocket::bind(ANY).unwrap();
    for _ in 0..count {
        sender.send_to(&[0xff; 100], to).unwrap();
    }
    count
}

/// Serves the socket until it has received so many datagrams.
fn receive<S: Sys>(socket: &mut Generic<S>, count: usize) {
    let start = Instant::now();
    while socket.stats().io.datagrams_received < count as u64 {
        let none = socket.wait(Some(Duration::from_millis(1))).unwrap();
        assert!(none.is_none());
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{:?}",
            socket.stats()
        );
    }
}

#[test]
fn two_buffers_carry_a_burst_and_big_messages() {
    let make = || Socket::builder().sys(Uring::default().buffers(2));
    for stats in between(make) {
        assert!(stats.ring_multishot.is_on());
    }
    let mut socket = make().bind(any()).unwrap();
    receive(&mut socket, 0);
    let count = burst(socket.local_addr(), 300);
    receive(&mut socket, count);
    let io = socket.stats().io;
    assert!(io.ring_buffers_short > 0, "{io:?}");
    // Armed again when a buffer was free, and not over and over.
    assert!(io.ring_rearmed <= 300 && io.ring_calls < 1000, "{io:?}");
    assert!(io.ring_rearmed >= io.ring_buffers_short - 1, "{io:?}");
    // Nothing comes of nothing.
    let before = socket.stats().io;
    assert!(
        socket
            .wait(Some(Duration::from_millis(50)))
            .unwrap()
            .is_none()
    );
    let after = socket.stats().io;
    assert!(after.ring_calls - before.ring_calls < 10);
    assert_eq!(after.ring_rearmed, before.ring_rearmed);
}

/// Room for fewer completions than come at once.
struct Narrow;

// SAFETY: tags and buffers of completions stay as they are.
unsafe impl Plan for Narrow {
    fn setup(&mut self, setup: &mut Setup) -> Option<i32> {
        setup.completions = setup.entries;
        None
    }
}

#[test]
fn completions_that_there_is_no_room_for_are_kept() {
    for rung in [Rung::Deferred, Rung::Cooperative, Rung::Plain] {
        let ring = Uring::over(Faulty::new(Narrow)).rung(rung).buffers(512);
        let mut socket = Socket::builder().sys(ring).bind(any()).unwrap();
        receive(&mut socket, 0);
        let count = burst(socket.local_addr(), 400);
        receive(&mut socket, count);
        let io = socket.stats().io;
        assert!(io.ring_overflows > 0, "{rung:?}: {io:?}");
        assert!(io.ring_calls < 500, "{rung:?}: {io:?}");
    }
    for stats in between(|| {
        let ring = Uring::over(Faulty::new(Narrow)).buffers(512);
        Socket::builder().sys(ring)
    }) {
        assert_eq!(stats.io.not_sent + stats.io.other_errors, 0);
    }
}

/// The kernel lacks memory for requests every now and then, and for a while at the start.
#[derive(Default)]
struct Short(u32);

// SAFETY: tags and buffers of completions stay as they are.
unsafe impl Plan for Short {
    fn enter(&mut self, submit: &mut u32) -> Option<i32> {
        if *submit == 0 {
            return None;
        }
        self.0 += 1;
        match self.0 {
            1..30 => Some(libc::EAGAIN),
            n if n.is_multiple_of(7) => Some(libc::EBUSY),
            n if n.is_multiple_of(5) => Some(libc::EINTR),
            _ => None,
        }
    }
}

#[test]
fn a_kernel_short_of_memory_costs_time_and_no_data() {
    let stats = between(|| options(Short::default()));
    for stats in &stats {
        assert!(stats.io.ring_submits_again > 0);
        assert_eq!(stats.io.not_sent + stats.io.other_errors, 0);
    }
    let [client, server] = stats;
    assert_eq!(client.io.datagrams_sent, server.io.datagrams_received);
}

#[test]
fn a_spinning_socket_that_has_nothing_to_do_makes_no_system_calls() {
    for rung in [Rung::Deferred, Rung::Cooperative, Rung::Plain] {
        let mut socket = Socket::builder()
            .wait(Wait::Spin)
            .sys(Uring::default().rung(rung))
            .bind(any())
            .unwrap();
        receive(&mut socket, 0);
        let count = burst(socket.local_addr(), 1);
        receive(&mut socket, count);
        let before = socket.stats().io.system_calls();
        let nothing = socket.wait(Some(Duration::from_millis(50)));
        assert!(nothing.unwrap().is_none());
        assert_eq!(socket.stats().io.system_calls(), before, "{rung:?}");
    }
}

#[test]
fn a_socket_may_go_from_thread_to_thread() {
    let server = Echo::start(ANY);
    let mut socket = Socket::bind(any()).unwrap();
    let threads = 12;
    for i in 0..threads {
        // The thread that had it is gone, or lives on.
        let (sender, receiver) = std::sync::mpsc::channel();
        let to = server.address;
        let thread = std::thread::spawn(move || {
            call_sizes(&mut socket, to);
            sender.send(socket).unwrap();
            if i % 2 == 0 {
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        socket = receiver.recv().unwrap();
        call_sizes(&mut socket, server.address);
        if i % 3 == 0 {
            thread.join().unwrap();
        }
    }
    // The first to use it need not be the one that made it.
    assert_eq!(socket.stats().io.ring_moves, 2 * threads - 1);
}

/// A thread that only sends makes a ring anew in which nothing receives yet: an event loop is told to poll.
#[test]
fn a_thread_that_only_sends_is_told_to_poll() {
    let mut socket = Socket::bind(any()).unwrap();
    assert!(socket.poll().unwrap().is_none());
    let sent = std::thread::spawn(move || {
        for port in [1, 2, 3] {
            let to = SocketAddr::from(([127, 0, 0, 1], port));
            let message = socket.message(&[1; 100]);
            let options = RequestOptions::default();
            socket.request(to, message, options).unwrap();
        }
        socket.flush().unwrap();
        let moves = socket.stats().io.ring_moves;
        (moves, socket.timeout(), socket)
    });
    let (moves, timeout, _socket) = sent.join().unwrap();
    assert_eq!((moves, timeout), (1, Some(Duration::ZERO)));
}

#[test]
fn the_port_is_free_when_the_socket_is_dropped() {
    let mut socket = Socket::bind(any()).unwrap();
    let address = socket.local_addr();
    for _ in 0..10 {
        assert!(socket.poll().unwrap().is_none());
        drop(socket);
        socket = Socket::bind(address).unwrap();
    }
}

#[test]
fn under_load_one_call_serves_many_rpcs() {
    let server = Echo::start(ANY);
    let mut socket = Socket::bind(any()).unwrap();
    let ask = |socket: &mut Socket| {
        let message = socket.message(&[5; 100]);
        let options = RequestOptions::default();
        socket.request(server.address, message, options).unwrap();
    };
    for _ in 0..64 {
        ask(&mut socket);
    }
    for _ in 0..5000 {
        match socket.wait(Some(Duration::from_secs(10))).unwrap() {
            Some(Event::Response { .. }) => ask(&mut socket),
            other => panic!("{other:?}"),
        }
    }
    let calls = socket.stats().io.system_calls();
    // Twenty for each call if threads run when they are to; far from one for each RPC anyway.
    assert!(calls < 2500, "{calls} calls for 5000 RPCs");
}
