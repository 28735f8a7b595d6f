//! RPCs over real sockets on loopback.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use homa_mio::sys::{Ask, Fate, Incoming, Outgoing, Plan, Sys};
use mio::{Events, Interest, Poll, Token};

use crate::driver::{
    CallError, Event, Feature, Limits, Message, Reason, RequestOptions, RpcError, SendErrorKind,
    Socket, Stats, Wait, faulty,
};
use crate::shared::{Echo, pattern, poll_once};

fn client(address: &str) -> Socket {
    Socket::bind(address.parse().unwrap()).unwrap()
}

#[test]
fn messages_of_any_size_come_back_as_they_were() {
    let server = Echo::start("127.0.0.1:0");
    let mut socket = client("127.0.0.1:0");
    for len in [
        1,
        2,
        100,
        1415,
        1416,
        1417,
        2832,
        40_000,
        1_000_000,
        16 << 20,
    ] {
        let bytes = pattern(len, len);
        let answer = socket.call(server.address, &bytes).unwrap();
        assert!(*answer == *bytes, "{len} bytes");
    }
    let stats = socket.stats();
    assert_eq!(
        stats.io.not_sent + stats.io.other_errors + stats.io.refused,
        0
    );
    assert_eq!(stats.core.responses_received, 10);
}

#[test]
fn ipv4_ipv6_and_ipv4_mapped_addresses_all_work() {
    let both = Echo::start("[::]:0");
    let port = both.address.port();
    let mapped: SocketAddr = format!("[::ffff:127.0.0.1]:{port}").parse().unwrap();
    let plain = SocketAddr::from(([127, 0, 0, 1], port));
    let v6: SocketAddr = format!("[::1]:{port}").parse().unwrap();
    for (from, to) in [
        ("127.0.0.1:0", plain),
        ("127.0.0.1:0", mapped),
        ("[::1]:0", v6),
        ("[::]:0", v6),
        ("[::]:0", plain),
        ("[::]:0", mapped),
    ] {
        let bytes = pattern(100_000, 1);
        let mut socket = client(from);
        let answer = socket
            .call(to, &bytes)
            .unwrap_or_else(|e| panic!("{from} to {to}: {e}"));
        assert!(*answer == *bytes, "{from} to {to}");
        let stats = socket.stats();
        assert!(stats.priorities.is_on() && stats.gso.is_on(), "{stats:?}");
        assert_eq!(stats.io.not_sent, 0);
    }
}

#[test]
fn every_way_of_waiting_works() {
    for wait in [
        Wait::Sleep,
        Wait::Spin,
        Wait::Adaptive(Duration::from_micros(50)),
    ] {
        let server = Echo::start_with("127.0.0.1:0", Socket::builder().wait(wait));
        let mut socket = Socket::builder()
            .wait(wait)
            .bind("127.0.0.1:0".parse().unwrap())
            .unwrap();
        for len in [10, 100_000] {
            let bytes = pattern(len, len);
            assert!(*socket.call(server.address, &bytes).unwrap() == *bytes);
        }
        // There is nothing to wait for, and that takes as long as asked.
        while socket
            .wait(Some(Duration::from_millis(50)))
            .unwrap()
            .is_some()
        {}
        let start = Instant::now();
        assert!(
            socket
                .wait(Some(Duration::from_millis(30)))
                .unwrap()
                .is_none()
        );
        assert!(start.elapsed() >= Duration::from_millis(30));
        assert!(start.elapsed() < Duration::from_secs(1));
    }
}

#[test]
fn many_requests_at_once_each_get_their_own_answer() {
    let server = Echo::start("127.0.0.1:0");
    let mut socket = client("127.0.0.1:0");
    let mut sent = HashMap::new();
    for cookie in 0..500_u64 {
        let bytes = pattern(
            [10, 1000, 20_000, 100_000][cookie as usize % 4],
            cookie as usize,
        );
        let options = RequestOptions {
            cookie,
            ..RequestOptions::default()
        };
        let rpc = socket
            .request(server.address, bytes.clone(), options)
            .unwrap();
        assert!(sent.insert(cookie, (rpc, bytes)).is_none());
    }
    while !sent.is_empty() {
        match socket.wait(Some(Duration::from_secs(5))).unwrap() {
            Some(Event::Response {
                rpc,
                cookie,
                message,
                request,
                ..
            }) => {
                let (expected, bytes) = sent.remove(&cookie).expect("one response each");
                assert_eq!(rpc, expected);
                assert!(*message == *bytes && *request == *bytes);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(socket.live_rpcs(), 0);
}

#[test]
fn what_happens_during_a_call_is_kept_for_later() {
    let server = Echo::start("127.0.0.1:0");
    let mut socket = client("127.0.0.1:0");
    let options = RequestOptions {
        cookie: 7,
        ..RequestOptions::default()
    };
    socket.request(server.address, "first", options).unwrap();
    assert_eq!(
        *socket.call(server.address, &[9; 50_000]).unwrap(),
        [9; 50_000]
    );
    match socket.wait(Some(Duration::from_secs(1))).unwrap() {
        Some(Event::Response {
            cookie: 7, message, ..
        }) => assert_eq!(*message, *b"first"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_that_cannot_be_sent_come_back_with_the_reason() {
    let mut socket = client("127.0.0.1:0");
    let options = RequestOptions::default();
    let local = socket.local_addr();
    for (to, len, kind) in [
        (local, 0, SendErrorKind::Empty),
        (local, (16 << 20) + 1, SendErrorKind::TooLong),
        ("0.0.0.0:1".parse().unwrap(), 1, SendErrorKind::BadAddress),
        ("127.0.0.1:0".parse().unwrap(), 1, SendErrorKind::BadAddress),
        // Not from an IPv4 socket.
        ("[::1]:1".parse().unwrap(), 1, SendErrorKind::BadAddress),
    ] {
        let error = socket.request(to, vec![3; len], options).unwrap_err();
        assert_eq!((error.kind, error.message.len()), (kind, len));
    }
}

#[test]
fn a_server_that_is_not_there_is_told_from_one_that_dies() {
    let mut socket = client("127.0.0.1:0");
    // Bound, so that nobody else gets the port, and mute.
    let mute = UdpSocket::bind("127.0.0.1:0").unwrap();
    let start = Instant::now();
    match socket.call(mute.local_addr().unwrap(), b"anybody?") {
        Err(CallError::Rpc(RpcError::NeverHeard)) => {}
        other => panic!("{other:?}"),
    }
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );

    let server = Echo::start("127.0.0.1:0");
    let address = server.address;
    assert_eq!(*socket.call(address, b"alive?").unwrap(), *b"alive?");
    server.stop();
    let start = Instant::now();
    match socket.call(address, &[0; 100_000]) {
        Err(CallError::Rpc(RpcError::WentSilent)) => {}
        other => panic!("{other:?}"),
    }
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_request_ends_at_its_timeout() {
    let mut socket = client("127.0.0.1:0");
    let mut server = client("127.0.0.1:0");
    let options = RequestOptions {
        timeout: Some(Duration::from_millis(100)),
        cookie: 3,
        ..RequestOptions::default()
    };
    let start = Instant::now();
    socket
        .request(server.local_addr(), "slow", options)
        .unwrap();
    loop {
        // The server is at work on it.
        let _ = server.wait(Some(Duration::from_millis(1))).unwrap();
        match socket.poll().unwrap() {
            Some(Event::Failed {
                error: RpcError::DeadlineExceeded,
                cookie: 3,
                request,
                ..
            }) => {
                assert_eq!(*request, *b"slow");
                break;
            }
            None => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(
        (100..1000).contains(&start.elapsed().as_millis()),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_socket_serves_and_asks_at_once() {
    let mut a = client("127.0.0.1:0");
    let mut b = client("127.0.0.1:0");
    let (at_a, at_b) = (a.local_addr(), b.local_addr());
    for i in 0..100 {
        a.request(at_b, pattern(3000, i), RequestOptions::default())
            .unwrap();
        b.request(at_a, pattern(3000, i), RequestOptions::default())
            .unwrap();
    }
    let (mut responses, mut released) = (0, 0);
    let start = Instant::now();
    while responses < 200 || released < 200 {
        for socket in [&mut a, &mut b] {
            match socket.wait(Some(Duration::from_millis(1))).unwrap() {
                Some(Event::Request { rpc, message, .. }) => socket.reply(rpc, message).unwrap(),
                Some(Event::Response { .. }) => responses += 1,
                Some(Event::Released { outcome, .. }) => {
                    outcome.unwrap();
                    released += 1;
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(a.live_rpcs() + b.live_rpcs(), 0);
}

#[test]
fn another_homa_port_than_the_udp_port_can_be_served() {
    let mut server = Socket::builder()
        .port(77)
        .bind("127.0.0.1:0".parse().unwrap())
        .unwrap();
    let to = homa_mio::PeerAddr::new(server.local_addr(), 77);
    let mut socket = client("127.0.0.1:0");
    socket
        .request(to, "hello", RequestOptions::default())
        .unwrap();
    socket.flush().unwrap();
    match server.wait(Some(Duration::from_secs(1))).unwrap() {
        Some(Event::Request { port: 77, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn in_an_edge_triggered_loop_nothing_is_left_lying() {
    let mut server = client("127.0.0.1:0");
    let to = server.local_addr();
    let mut poll = Poll::new().unwrap();
    poll.registry()
        .register(&mut server, Token(0), Interest::READABLE)
        .unwrap();
    let clients: Vec<_> = (0..3)
        .map(|n| {
            std::thread::spawn(move || {
                let mut socket = client("127.0.0.1:0");
                for i in 0..300 {
                    let bytes = pattern(1 + (i * 997 + n) % 60_000, i);
                    assert!(*socket.call(to, &bytes).unwrap() == *bytes);
                }
            })
        })
        .collect();
    let mut events = Events::with_capacity(4);
    let mut served = 0;
    let mut slow_polls = 0;
    while !clients.iter().all(|client| client.is_finished()) {
        while let Some(event) = server.poll().unwrap() {
            if let Event::Request { rpc, message, .. } = event {
                served += 1;
                server.reply(rpc, message).unwrap();
            }
        }
        let timeout = server.timeout();
        let start = Instant::now();
        // Longer than anything should take: a lost edge would show as slow polls.
        let bounded = timeout
            .unwrap_or(Duration::MAX)
            .min(Duration::from_millis(200));
        poll_once(&mut poll, &mut events, Some(bounded));
        slow_polls += u32::from(start.elapsed() > Duration::from_millis(150));
    }
    for client in clients {
        client.join().unwrap();
    }
    assert_eq!(served, 900);
    assert!(slow_polls <= 2, "{slow_polls} times nothing woke the loop");
}

#[test]
fn an_idle_socket_has_no_timeout() {
    let server = Echo::start("127.0.0.1:0");
    let mut socket = client("127.0.0.1:0");
    socket.call(server.address, b"once").unwrap();
    let start = Instant::now();
    loop {
        while socket.poll().unwrap().is_some() {}
        match socket.timeout() {
            None => break,
            Some(timeout) => std::thread::sleep(timeout),
        }
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "timers without end"
        );
    }
    // Every turn so far was for a reason.
    assert!(
        socket.stats().io.system_calls() < 400,
        "{:?}",
        socket.stats().io
    );
}

#[test]
fn impossible_options_are_an_error() {
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let error = Socket::builder().mtu(50).bind(address).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    let limits = Limits {
        rpcs: 0,
        ..Limits::default()
    };
    let error = Socket::builder().limits(limits).bind(address).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    let first = client("127.0.0.1:0");
    let error = Socket::bind(first.local_addr()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

// Faults of the system.

/// What one end of a connection has to cope with.
#[derive(Clone, Copy, Default)]
struct Trouble {
    /// Anything sent with GSO is refused.
    gso: Option<i32>,
    /// Anything sent with a priority is refused.
    tos: Option<i32>,
    /// Options are refused.
    options: bool,
    /// Anything sent with GSO is lost.
    eats_bursts: bool,
    /// One call to send in so many fails like this, in turn.
    now_and_then: &'static [Fate],
    every: u32,
    /// One call to receive in so many fails like this.
    receive: Option<i32>,
    small_buffer: bool,
    sends: u32,
    receives: u32,
}

impl Plan for Trouble {
    fn send(&mut self, batches: &[Outgoing]) -> Fate {
        self.sends += 1;
        let first = &batches[0];
        if let Some(code) = self.gso.filter(|_| first.segment_size.is_some()) {
            return Fate::Fail(code);
        }
        if let Some(code) = self.tos.filter(|_| first.tos.is_some()) {
            return Fate::Fail(code);
        }
        if self.eats_bursts && first.segment_size.is_some() {
            return Fate::Lose;
        }
        if self.every > 0 && self.sends.is_multiple_of(self.every) {
            let turn = (self.sends / self.every) as usize % self.now_and_then.len();
            return self.now_and_then[turn];
        }
        // Only the first of a batch is judged above.
        Fate::Partly(1)
    }

    fn receive(&mut self) -> Option<i32> {
        self.receives += 1;
        self.receive.filter(|_| self.receives.is_multiple_of(5))
    }

    fn received(&mut self, incoming: &mut Incoming) {
        if self.small_buffer && incoming.len > 30_000 {
            incoming.len = 30_000;
            incoming.truncated = true;
        }
    }

    fn ask(&mut self, _: Ask) -> Option<i32> {
        self.options.then_some(libc::ENOPROTOOPT)
    }

    fn receive_buffer(&mut self, _: usize) -> Option<usize> {
        self.small_buffer.then_some(212_992)
    }
}

/// Whatever `client` has sent has reached `server`. (RESENDs prove no loss: on a busy host they
/// come because a thread did not get to run.)
fn assert_nothing_lost(client: &Stats, server: &Stats) {
    assert_eq!((client.io.not_sent, server.io.not_sent), (0, 0));
    assert_eq!(client.io.datagrams_sent, server.io.datagrams_received);
}

/// Calls a server, both in trouble, and returns what they have to say about it.
fn troubled(trouble: Trouble, sizes: &[usize]) -> (Stats, Stats) {
    let server = Echo::start_with("127.0.0.1:0", Socket::builder().sys(faulty(trouble)));
    let to = server.address;
    let mut socket = Socket::builder()
        .bind_with("127.0.0.1:0".parse().unwrap(), faulty(trouble))
        .unwrap();
    call_sizes(&mut socket, to, sizes);
    (socket.stats(), server.stop())
}

fn call_sizes<S: Sys>(socket: &mut homa_mio::generic::Socket<S>, to: SocketAddr, sizes: &[usize]) {
    for (i, &len) in sizes.iter().enumerate() {
        let bytes = pattern(len, i);
        let answer = socket
            .call(to, &bytes)
            .unwrap_or_else(|error| panic!("{len} bytes: {error}; {:?}", socket.stats()));
        assert!(*answer == *bytes, "{len} bytes");
    }
}

const SIZES: &[usize] = &[1, 3000, 200_000, 1_000_000];

#[test]
fn without_gso_rpcs_go_on_and_nothing_is_lost() {
    for code in [libc::EIO, libc::EINVAL] {
        let trouble = Trouble {
            gso: Some(code),
            ..Trouble::default()
        };
        let (client, server) = troubled(trouble, SIZES);
        for stats in [client, server] {
            assert_eq!(stats.gso, Feature::Off(Reason::Refused(code)));
            assert_eq!(stats.io.joined_sent, 0);
        }
        assert_nothing_lost(&client, &server);
    }
}

#[test]
fn without_priorities_rpcs_go_on_and_nothing_is_lost() {
    for code in [libc::EINVAL, libc::EPERM] {
        let trouble = Trouble {
            tos: Some(code),
            ..Trouble::default()
        };
        let (client, server) = troubled(trouble, SIZES);
        for stats in [client, server] {
            // EPERM may be a filter's limit, which has passed by the next try.
            let is_off = stats.priorities == Feature::Off(Reason::Refused(code));
            assert_eq!(is_off, code != libc::EPERM);
            assert!(stats.gso.is_on());
        }
        assert_nothing_lost(&client, &server);
    }
}

#[test]
fn a_system_with_nothing_extra_will_do() {
    let trouble = Trouble {
        options: true,
        ..Trouble::default()
    };
    let (client, _) = troubled(trouble, SIZES);
    for feature in [client.gso, client.gro, client.dont_fragment] {
        assert_eq!(feature, Feature::Off(Reason::Unsupported));
    }
}

#[test]
fn a_busy_system_costs_time_and_no_data() {
    let trouble = Trouble {
        now_and_then: &[
            Fate::Fail(libc::EAGAIN),
            Fate::Fail(libc::ENOBUFS),
            Fate::Fail(libc::EINTR),
        ],
        every: 4,
        receive: Some(libc::EINTR),
        ..Trouble::default()
    };
    let (client, server) = troubled(trouble, SIZES);
    for stats in [client, server] {
        assert!(stats.io.interrupted > 0);
    }
    assert_nothing_lost(&client, &server);
    let io = client.io;
    assert!(io.would_block > 0 && io.no_buffers > 0, "{io:?}");
}

#[test]
fn errors_about_others_are_survived() {
    let trouble = Trouble {
        now_and_then: &[
            Fate::Fail(libc::ECONNREFUSED),
            Fate::Fail(libc::EMSGSIZE),
            Fate::Fail(libc::EHOSTUNREACH),
        ],
        every: 4,
        receive: Some(libc::ECONNREFUSED),
        ..Trouble::default()
    };
    let (client, server) = troubled(trouble, SIZES);
    assert_nothing_lost(&client, &server);
    assert!(client.io.unreachable > 0 && client.io.too_long > 0);
    assert!(client.gso.is_on() && client.priorities.is_on());
}

#[test]
fn lost_and_repeated_batches_are_recovered() {
    let trouble = Trouble {
        now_and_then: &[Fate::Lose, Fate::Twice, Fate::Partly(1)],
        every: 3,
        ..Trouble::default()
    };
    let (client, server) = troubled(
        trouble,
        &[3000, 200_000, 1_000_000, 1_000_000, 1_000_000, 10, 10, 10],
    );
    assert!(client.core.retransmits_sent + server.core.retransmits_sent > 0);
}

#[test]
fn a_small_buffer_and_cut_receptions_are_coped_with() {
    let trouble = Trouble {
        small_buffer: true,
        ..Trouble::default()
    };
    let (client, server) = troubled(trouble, SIZES);
    assert!(client.receive_buffer_short());
    assert!(client.io.truncated + server.io.truncated > 0);
}

#[test]
fn never_more_is_granted_than_the_receive_buffer_holds() {
    let socket = Socket::builder()
        .bind_with(
            "127.0.0.1:0".parse().unwrap(),
            faulty(Trouble {
                small_buffer: true,
                ..Trouble::default()
            }),
        )
        .unwrap();
    assert_eq!(socket.config().receive_buffer, 212_992 / 3);
    assert!(socket.config().incoming_limit() <= 212_992 / 3);
}

#[test]
fn where_bursts_do_not_arrive_they_are_given_up() {
    let trouble = Trouble {
        eats_bursts: true,
        ..Trouble::default()
    };
    let server = Echo::start_with("127.0.0.1:0", Socket::builder().sys(faulty(trouble)));
    let mut socket = Socket::builder()
        .bind_with("127.0.0.1:0".parse().unwrap(), faulty(trouble))
        .unwrap();
    let mut calls = 0;
    while socket.stats().gso.is_on() || calls < 20 {
        // The first may fail: nothing of them has ever arrived.
        let _ = socket.call(server.address, &[7; 30_000]);
        calls += 1;
        assert!(calls < 50, "{:?}", socket.stats());
    }
    call_sizes(&mut socket, server.address, SIZES);
    assert_eq!(socket.stats().gso, Feature::Off(Reason::BurstsLost));
    assert_eq!(server.stop().gso, Feature::Off(Reason::BurstsLost));
}

#[test]
fn a_message_can_be_dropped_on_another_thread_and_after_its_socket() {
    let server = Echo::start("127.0.0.1:0");
    let mut socket = client("127.0.0.1:0");
    let message: Message = socket.call(server.address, &[1; 5000]).unwrap();
    drop(socket);
    std::thread::spawn(move || assert_eq!(message.len(), 5000))
        .join()
        .unwrap();
}
