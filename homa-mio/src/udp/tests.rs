//! The driver's datagrams over real sockets on loopback, and over faulty system calls.

use std::net::UdpSocket as Plain;

use super::*;
use crate::sys::{Fate, Faulty, Os, Plan, RECEIVE_LEN};

const WANTED: Wanted = Wanted {
    gso: true,
    gro: true,
    priorities: true,
    count_congestion: false,
    receive_buffer: 4 << 20,
    send_buffer: 1 << 20,
};
const V4: &str = "127.0.0.1:0";
const V6: &str = "[::1]:0";

fn bind<S: Sys>(address: &str, sys: S) -> Udp<S> {
    let socket = Plain::bind(address).unwrap();
    socket.set_nonblocking(true).unwrap();
    Udp::new(UdpSocket::from_std(socket), sys, WANTED).unwrap()
}

fn plain(address: &str) -> Plain {
    let socket = Plain::bind(address).unwrap();
    let second = Duration::from_secs(1);
    socket.set_read_timeout(Some(second)).unwrap();
    Os.set_receive_buffer(socket.as_fd(), 4 << 20).unwrap();
    socket
}

fn transmit(to: SocketAddr, priority: u8, len: usize, segment_size: Option<usize>) -> Transmit {
    let mut transmit = Transmit::new(to, len);
    transmit.priority = priority;
    transmit.segment_size = segment_size;
    transmit
}

/// Queues datagrams of `size` bytes, each filled with its number, the last one `last` long.
///
/// Flushes first if the queue is full.
fn queue<S: Sys>(
    udp: &mut Udp<S>,
    to: SocketAddr,
    first: u8,
    count: usize,
    size: usize,
    last: usize,
) {
    if udp.room().is_none() {
        udp.flush(Instant::ZERO).unwrap();
    }
    let room = udp.room().expect("room in the queue");
    let len = (count - 1) * size + last;
    for (number, bytes) in (first..).zip(room[..len].chunks_mut(size)) {
        bytes.fill(number);
    }
    udp.push(&transmit(to, 7, len, (count > 1).then_some(size)));
}

/// The same, sent with all but the beginning of each datagram lent.
fn lend<S: Sys>(
    udp: &mut Udp<S>,
    now: Instant,
    to: SocketAddr,
    first: u8,
    count: usize,
    size: usize,
    last: usize,
) {
    let room = udp.room().expect("room in the queue");
    for (number, bytes) in (first..).zip(room[..count * DATA_LEN].chunks_mut(DATA_LEN)) {
        bytes.fill(number);
    }
    let mut payload = Vec::new();
    for i in 0..count {
        let size = if i + 1 == count { last } else { size };
        payload.resize(payload.len() + size - DATA_LEN, first + i as u8);
    }
    let len = (count - 1) * size + last;
    let transmit = transmit(to, 7, len, (count > 1).then_some(size));
    udp.send_lent(now, &Gather::new(transmit, &payload))
        .unwrap();
}

fn receive_all(socket: &Plain, count: usize) -> Vec<Vec<u8>> {
    let mut buffer = [0; 2048];
    let mut datagrams = Vec::new();
    while datagrams.len() < count {
        match socket.recv(&mut buffer) {
            Ok(len) => datagrams.push(buffer[..len].to_vec()),
            Err(_) => break,
        }
    }
    socket.set_nonblocking(true).unwrap();
    assert!(
        socket.recv(&mut buffer).is_err(),
        "more than {count} datagrams"
    );
    socket.set_nonblocking(false).unwrap();
    datagrams
}

fn assert_numbered(datagrams: &[Vec<u8>], count: usize, size: usize, last: usize) {
    let expected: Vec<_> = (0..count)
        .map(|i| vec![i as u8; if i + 1 == count { last } else { size }])
        .collect();
    assert_eq!(datagrams.len(), count);
    assert!(datagrams == expected, "datagrams differ from what was sent");
}

#[test]
fn eight_priorities_reach_the_wire_and_leave_the_ecn_bits_alone() {
    let cases = [
        (V4, V4, None),
        (V6, V6, None),
        // IPv4 from an IPv6 socket, to a plain and to a mapped address.
        ("[::]:0", V4, None),
        ("[::]:0", V4, Some("::ffff:127.0.0.1")),
        // And received by an IPv6 socket.
        (V4, "[::]:0", Some("127.0.0.1")),
    ];
    for (from, at, to) in cases {
        for ecn in [0, 0b10] {
            let receiver = plain(at);
            Os.ask(receiver.as_fd(), Ask::ReceiveTos).unwrap();
            let sender = Plain::bind(from).unwrap();
            sender.set_nonblocking(true).unwrap();
            let socket2 = socket2::SockRef::from(&sender);
            socket2.set_tos_v4(ecn).unwrap();
            if from.starts_with('[') {
                socket2.set_tclass_v6(ecn).unwrap();
            }
            let mut udp = Udp::new(UdpSocket::from_std(sender), Os, WANTED).unwrap();
            let mut to_address = receiver.local_addr().unwrap();
            if let Some(to) = to {
                to_address.set_ip(to.parse().unwrap());
            }
            for priority in 0..8 {
                let room = udp.room().unwrap();
                room[..3000].fill(priority);
                let segment_size = (priority % 2 == 0).then_some(1000);
                udp.push(&transmit(to_address, priority, 3000, segment_size));
            }
            udp.flush(Instant::ZERO).unwrap();
            assert!(udp.is_idle());
            assert_eq!(udp.io.not_sent, 0);
            let mut memory = vec![0; RECEIVE_LEN];
            let mut incoming = [Incoming::NONE];
            for priority in 0..8 {
                for _ in 0..if priority % 2 == 0 { 3 } else { 1 } {
                    assert_eq!(
                        Os.receive(receiver.as_fd(), &mut memory, &mut incoming)
                            .unwrap(),
                        1
                    );
                    let tos = u32::from(incoming[0].tos);
                    assert_eq!(memory[0], priority);
                    assert_eq!(
                        tos,
                        u32::from(priority) << 5 | ecn,
                        "{from} to {to_address}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_batch_arrives_as_the_datagrams_that_it_is_made_of() {
    for (address, gso) in [(V4, true), (V6, true), (V4, false)] {
        let receiver = plain(address);
        let mut udp = bind(address, Os);
        if !gso {
            udp.gso = Feature::Off(Reason::Disabled);
        }
        for (count, size, last) in [
            (1, 1, 1),
            (1, 1472, 1472),
            (2, 1472, 1),
            (44, 1472, 1472),
            (40, 1000, 999),
            (64, 56, 56),
        ] {
            let before = udp.io;
            queue(
                &mut udp,
                receiver.local_addr().unwrap(),
                0,
                count,
                size,
                last,
            );
            udp.flush(Instant::ZERO).unwrap();
            let datagrams = receive_all(&receiver, count);
            assert_numbered(&datagrams, count, size, last);
            assert_eq!(udp.io.datagrams_sent - before.datagrams_sent, count as u64);
            let calls = if gso { 1 } else { count.div_ceil(BATCH) as u64 };
            assert_eq!(udp.io.send_calls - before.send_calls, calls);
            assert_eq!(
                udp.io.joined_sent - before.joined_sent,
                u64::from(gso && count > 1)
            );
        }
    }
}

#[test]
fn joined_datagrams_are_split_as_they_were_sent() {
    for gro in [true, false] {
        let socket = Plain::bind(V4).unwrap();
        socket.set_nonblocking(true).unwrap();
        let wanted = Wanted { gro, ..WANTED };
        let mut receiver = Udp::new(UdpSocket::from_std(socket), Os, wanted).unwrap();
        let mut sender = bind(V4, Os);
        queue(&mut sender, receiver.local_addr(), 0, 30, 1472, 700);
        queue(&mut sender, receiver.local_addr(), 30, 1, 100, 100);
        sender.flush(Instant::ZERO).unwrap();
        let mut datagrams = Vec::new();
        let mut calls = 0;
        loop {
            let from = sender.local_addr();
            let received = receiver
                .receive(|peer, _, bytes, size| {
                    assert_eq!(peer, from);
                    datagrams.extend(bytes.chunks(size).map(<[u8]>::to_vec));
                })
                .unwrap();
            calls += 1;
            if !received.more {
                break;
            }
        }
        assert_numbered(&datagrams[..30], 30, 1472, 700);
        assert_eq!(datagrams[30], [30; 100]);
        assert_eq!(receiver.io.joined_received, u64::from(gro));
        assert_eq!(receiver.io.datagrams_received, 31);
        assert!(calls <= 8, "{calls} calls");
    }
}

#[test]
fn an_answer_goes_out_from_the_address_that_was_asked() {
    let mut server = bind("0.0.0.0:0", Os);
    let client = plain(V4);
    let port = server.local_addr().port();
    client.send_to(b"?", ("127.0.0.5", port)).unwrap();
    let mut asked = None;
    server
        .receive(|from, local, _, _| asked = Some((from, local)))
        .unwrap();
    let (from, local) = asked.unwrap();
    assert_eq!(local, Some("127.0.0.5".parse().unwrap()));
    server.room().unwrap()[0] = b'!';
    let mut answer = Transmit::new(from, 1);
    answer.local = local;
    server.push(&answer);
    server.flush(Instant::ZERO).unwrap();
    let (_, answerer) = client.recv_from(&mut [0; 8]).unwrap();
    assert_eq!(answerer.to_string(), format!("127.0.0.5:{port}"));
}

#[test]
fn a_source_address_that_is_gone_is_left_out() {
    let receiver = plain(V4);
    let mut udp = bind("0.0.0.0:0", Os);
    udp.room().unwrap()[0] = 0;
    let gone = Some("192.0.2.77".parse().unwrap());
    let mut datagram = Transmit::new(receiver.local_addr().unwrap(), 1);
    datagram.local = gone;
    udp.push(&datagram);
    udp.flush(Instant::ZERO).unwrap();
    assert_numbered(&receive_all(&receiver, 1), 1, 1, 1);
    assert!(matches!(
        udp.source_address,
        Feature::Off(Reason::Refused(_))
    ));
    assert!(udp.priorities.is_on() && udp.gso.is_on());
}

/// Fails calls to send that `refuses` says, with a code.
struct Refuse<F>(F, i32);

impl<F: FnMut(&Outgoing) -> bool> Plan for Refuse<F> {
    fn send(&mut self, batches: &[Outgoing]) -> Fate {
        match batches.iter().position(&mut self.0) {
            Some(0) => Fate::Fail(self.1),
            Some(at) => Fate::Partly(at),
            None => Fate::Pass,
        }
    }
}

#[test]
fn what_is_refused_with_gso_goes_again_without_it_at_once_and_for_good() {
    for code in [libc::EIO, libc::EINVAL, libc::EOPNOTSUPP, libc::EMSGSIZE] {
        let receiver = plain(V4);
        let to = receiver.local_addr().unwrap();
        let mut udp = bind(
            V4,
            Faulty::new(Refuse(|m: &Outgoing| m.segment_size.is_some(), code)),
        );
        queue(&mut udp, to, 0, 40, 1400, 9);
        udp.flush(Instant::ZERO).unwrap();
        assert_numbered(&receive_all(&receiver, 40), 40, 1400, 9);
        assert_eq!(udp.gso, Feature::Off(Reason::Refused(code)));
        assert!(udp.priorities.is_on());
        let before = udp.io;
        queue(&mut udp, to, 0, 20, 500, 500);
        udp.flush(Instant::ZERO).unwrap();
        assert_numbered(&receive_all(&receiver, 20), 20, 500, 500);
        assert_eq!(
            (udp.io.refused, udp.io.too_long, udp.io.not_sent),
            (before.refused, before.too_long, 0)
        );
        assert_eq!(udp.io.send_calls - before.send_calls, 1);
    }
}

#[test]
fn what_is_refused_with_a_priority_goes_again_without_it_and_keeps_gso() {
    for code in [libc::EINVAL, libc::EPERM, libc::EIO] {
        let receiver = plain(V4);
        Os.ask(receiver.as_fd(), Ask::ReceiveTos).unwrap();
        let mut udp = bind(
            V4,
            Faulty::new(Refuse(|m: &Outgoing| m.tos.is_some(), code)),
        );
        queue(&mut udp, receiver.local_addr().unwrap(), 0, 40, 1400, 9);
        udp.flush(Instant::ZERO).unwrap();
        assert_numbered(&receive_all(&receiver, 40), 40, 1400, 9);
        // A filter's limit gives EPERM too, and may take the next one.
        let is_off = udp.priorities == Feature::Off(Reason::Refused(code));
        assert_eq!(is_off, code != libc::EPERM);
        assert!(udp.gso.is_on());
        assert_eq!(udp.io.joined_sent, 1);
    }
}

#[test]
fn two_refusals_at_once_are_both_found() {
    let receiver = plain(V4);
    let refuse = |m: &Outgoing| m.tos.is_some() || m.segment_size.is_some();
    let mut udp = bind(V4, Faulty::new(Refuse(refuse, libc::EINVAL)));
    queue(&mut udp, receiver.local_addr().unwrap(), 0, 40, 1400, 9);
    udp.flush(Instant::ZERO).unwrap();
    assert_numbered(&receive_all(&receiver, 40), 40, 1400, 9);
    assert!(!udp.gso.is_on() && !udp.priorities.is_on());
}

#[test]
fn one_bad_destination_in_a_batch_does_not_drop_the_others() {
    for code in [
        libc::ECONNREFUSED,
        libc::EPERM,
        libc::ENETUNREACH,
        libc::EHOSTUNREACH,
        libc::EMSGSIZE,
    ] {
        let receiver = plain(V4);
        let to = receiver.local_addr().unwrap();
        let bad: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let mut udp = bind(
            V4,
            Faulty::new(Refuse(move |m: &Outgoing| m.to == bad, code)),
        );
        queue(&mut udp, to, 0, 1, 10, 10);
        queue(&mut udp, bad, 0, 3, 10, 10);
        queue(&mut udp, to, 1, 1, 10, 10);
        udp.flush(Instant::ZERO).unwrap();
        assert_numbered(&receive_all(&receiver, 2), 2, 10, 10);
        assert_eq!(udp.io.not_sent, 3);
        assert!(udp.gso.is_on() && udp.priorities.is_on());
    }
}

/// Fails the next calls with these codes, then passes.
struct Codes(Vec<i32>);

impl Plan for Codes {
    fn send(&mut self, _: &[Outgoing]) -> Fate {
        self.0.pop().map_or(Fate::Pass, Fate::Fail)
    }
    fn receive(&mut self) -> Option<i32> {
        self.0.pop()
    }
}

#[test]
fn late_news_of_another_peer_costs_no_datagram() {
    for code in [
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::EMSGSIZE,
        libc::EPERM,
        libc::EIO,
    ] {
        let receiver = plain(V4);
        let mut udp = bind(V4, Faulty::new(Codes(vec![code])));
        queue(&mut udp, receiver.local_addr().unwrap(), 0, 5, 100, 100);
        udp.flush(Instant::ZERO).unwrap();
        assert_numbered(&receive_all(&receiver, 5), 5, 100, 100);
        assert!(udp.gso.is_on() && udp.priorities.is_on());
        assert_eq!(udp.io.not_sent, 0);
        assert_eq!(udp.io.unreachable + udp.io.too_long + udp.io.refused, 1);
    }
}

#[test]
fn a_busy_socket_keeps_the_batch_and_sends_it_first() {
    for (code, writable) in [
        (libc::EAGAIN, true),
        (libc::ENOBUFS, false),
        (libc::ENOMEM, false),
    ] {
        let receiver = plain(V4);
        let to = receiver.local_addr().unwrap();
        let mut udp = bind(V4, Faulty::new(Codes(vec![code])));
        queue(&mut udp, to, 0, 3, 100, 100);
        udp.flush(Instant::ZERO).unwrap();
        assert!(!udp.is_idle());
        assert_eq!(udp.wants_writable(), writable);
        let retry = udp.retry_at().unwrap();
        assert!(retry > Instant::ZERO);
        assert_eq!(udp.io.would_block + udp.io.no_buffers, 1);
        queue(&mut udp, to, 3, 2, 100, 100);
        udp.flush(retry).unwrap();
        assert!(udp.is_idle() && udp.retry_at().is_none() && !udp.wants_writable());
        assert_numbered(&receive_all(&receiver, 5), 5, 100, 100);
    }
}

#[test]
fn a_signal_does_no_harm() {
    let receiver = plain(V4);
    let mut udp = bind(V4, Faulty::new(Codes(vec![libc::EINTR; 3])));
    queue(&mut udp, receiver.local_addr().unwrap(), 0, 5, 100, 100);
    udp.flush(Instant::ZERO).unwrap();
    assert_numbered(&receive_all(&receiver, 5), 5, 100, 100);
    assert_eq!(udp.io.interrupted, 3);
    // Not even if there is no end of them.
    let mut udp = bind(V4, Faulty::new(Codes(vec![libc::EINTR; 1000])));
    queue(&mut udp, receiver.local_addr().unwrap(), 0, 5, 100, 100);
    udp.flush(Instant::ZERO).unwrap();
    assert!(!udp.is_idle());
    assert!(udp.retry_at().is_some());
    assert_eq!(udp.receive(|_, _, _, _| ()).unwrap().datagrams, 0);
}

#[test]
fn a_socket_that_is_broken_is_told() {
    let mut udp = bind(V4, Faulty::new(Codes(vec![libc::EBADF, libc::EBADF])));
    assert!(udp.receive(|_, _, _, _| ()).is_err());
    queue(&mut udp, "127.0.0.1:9".parse().unwrap(), 0, 1, 1, 1);
    assert!(udp.flush(Instant::ZERO).is_err());
}

#[test]
fn an_error_on_receiving_loses_nothing() {
    for code in [
        libc::ECONNREFUSED,
        libc::EMSGSIZE,
        libc::EINTR,
        libc::ENOMEM,
    ] {
        let sender = plain(V4);
        let mut udp = bind(V4, Faulty::new(Codes(vec![code])));
        sender.send_to(&[7; 7], udp.local_addr()).unwrap();
        let mut got = Vec::new();
        udp.receive(|_, _, bytes, _| got = bytes.to_vec()).unwrap();
        assert_eq!(got, [7; 7]);
    }
}

/// Changes what was received.
struct Damage<F>(F);

impl<F: FnMut(&mut Incoming)> Plan for Damage<F> {
    fn received(&mut self, incoming: &mut Incoming) {
        (self.0)(incoming);
    }
}

#[test]
fn of_a_reception_cut_off_only_whole_datagrams_are_used() {
    for cut in 1..300 {
        let damage = Damage(move |incoming: &mut Incoming| {
            incoming.len -= cut;
            incoming.truncated = true;
        });
        let mut receiver = bind(V4, Faulty::new(damage));
        let mut sender = bind(V4, Os);
        queue(&mut sender, receiver.local_addr(), 0, 4, 100, 100);
        sender.flush(Instant::ZERO).unwrap();
        let mut datagrams = Vec::new();
        receiver
            .receive(|_, _, bytes, size| datagrams.extend(bytes.chunks(size).map(<[u8]>::to_vec)))
            .unwrap();
        // When exactly a datagram is missing nobody can tell whether the one before is whole.
        let whole = (400 - cut - 1) / 100;
        assert_numbered(&datagrams, whole, 100, 100);
        assert_eq!(receiver.io.truncated, 1);
    }
}

#[test]
fn joined_datagrams_without_their_size_are_dropped_and_counted() {
    let damage = Damage(|incoming: &mut Incoming| {
        incoming.segment_size = None;
        incoming.control_truncated = true;
    });
    let mut receiver = bind(V4, Faulty::new(damage));
    let mut sender = bind(V4, Os);
    queue(&mut sender, receiver.local_addr(), 0, 4, 100, 100);
    sender.flush(Instant::ZERO).unwrap();
    assert_eq!(
        receiver
            .receive(|_, _, _, _| panic!("handed out"))
            .unwrap()
            .datagrams,
        0
    );
    assert_eq!(receiver.io.control_truncated, 1);
}

/// A small receive buffer, and no extras.
struct Poor;

impl Plan for Poor {
    fn ask(&mut self, ask: Ask) -> Option<i32> {
        (ask != Ask::DontFragment).then_some(libc::ENOPROTOOPT)
    }
    fn receive_buffer(&mut self, _: usize) -> Option<usize> {
        Some(212_992)
    }
}

#[test]
fn a_poor_system_is_told_of_and_worked_with() {
    let mut udp = bind("0.0.0.0:0", Faulty::new(Poor));
    for feature in [udp.gso, udp.gro, udp.source_address] {
        assert_eq!(feature, Feature::Off(Reason::Unsupported));
    }
    assert!(udp.receive_buffer.got < udp.receive_buffer.asked);
    assert_eq!(udp.usable_receive_buffer(), 70_997);
    let receiver = plain(V4);
    queue(&mut udp, receiver.local_addr().unwrap(), 0, 40, 1400, 9);
    udp.flush(Instant::ZERO).unwrap();
    assert_numbered(&receive_all(&receiver, 40), 40, 1400, 9);
}

#[test]
fn equal_datagrams_to_one_peer_leave_together() {
    let (a, b) = (plain(V4), plain(V4));
    let (to_a, to_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
    let mut udp = bind(V4, Os);
    // Sixteen bursts' worth of small ones, and what does not go with its neighbours.
    for number in 0..100 {
        queue(&mut udp, to_a, number, 1, 28, 28);
    }
    queue(&mut udp, to_a, 100, 1, 20, 20);
    queue(&mut udp, to_a, 101, 1, 28, 28);
    queue(&mut udp, to_b, 0, 1, 28, 28);
    queue(&mut udp, to_b, 1, 5, 28, 10);
    queue(&mut udp, to_b, 6, 1, 10, 10);
    udp.flush(Instant::ZERO).unwrap();
    let lengths =
        |datagrams: Vec<Vec<u8>>| -> Vec<_> { datagrams.iter().map(|d| (d[0], d.len())).collect() };
    let mut expected: Vec<_> = (0..100).map(|i| (i, 28)).collect();
    expected.extend([(100, 20), (101, 28)]);
    assert_eq!(lengths(receive_all(&a, 102)), expected);
    let expected = [
        (0, 28),
        (1, 28),
        (2, 28),
        (3, 28),
        (4, 28),
        (5, 10),
        (6, 10),
    ];
    assert_eq!(lengths(receive_all(&b, 7)), expected);
    // 64, 36 + 1, 1; 1 + 5, 1.
    assert_eq!((udp.io.send_calls, udp.io.joined_sent), (1, 3));
}

/// A small generator of arbitrary numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % sides
    }
}

struct Chaos {
    dice: Dice,
    refuses_gso: bool,
    refuses_tos: bool,
}

impl Chaos {
    fn refuses(&self, message: &Outgoing) -> bool {
        (self.refuses_gso && message.segment_size.is_some())
            || (self.refuses_tos && message.tos.is_some())
    }
}

impl Plan for Chaos {
    fn send(&mut self, batches: &[Outgoing]) -> Fate {
        // Stops at a message that is refused, as the kernel does.
        let fine = batches.iter().take_while(|m| !self.refuses(m)).count();
        if fine == 0 {
            return Fate::Fail([libc::EIO, libc::EINVAL][self.dice.roll(2)]);
        }
        match self.dice.roll(8) {
            0 => Fate::Fail([libc::EAGAIN, libc::EINTR, libc::ENOBUFS][self.dice.roll(3)]),
            1 => Fate::Partly(1 + self.dice.roll(fine)),
            _ => Fate::Partly(fine),
        }
    }
}

#[test]
fn whatever_fails_everything_arrives_once_and_in_order() {
    for seed in 1..200 {
        let mut dice = Dice(seed);
        let chaos = Chaos {
            refuses_gso: dice.roll(3) == 0,
            refuses_tos: dice.roll(3) == 0,
            dice: Dice(seed + 1000),
        };
        let (refuses_gso, refuses_tos) = (chaos.refuses_gso, chaos.refuses_tos);
        let receiver = plain(V4);
        let to = receiver.local_addr().unwrap();
        let mut udp = bind(V4, Faulty::new(chaos));
        let mut expected = Vec::new();
        let mut now = Instant::ZERO;
        let mut joined = false;
        for round in 0..10_u8 {
            for _ in 0..dice.roll(5) {
                if udp.room().is_some() {
                    let (count, size) = (1 + dice.roll(20), 1 + dice.roll(1400));
                    let last = 1 + dice.roll(size);
                    if size.min(last) > DATA_LEN && dice.roll(2) == 0 {
                        lend(&mut udp, now, to, round, count, size, last);
                    } else {
                        queue(&mut udp, to, round, count, size, last);
                    }
                    expected.extend(
                        (0..count).map(|i| {
                            vec![round + i as u8; if i + 1 == count { last } else { size }]
                        }),
                    );
                    joined |= count > 1;
                }
            }
            udp.flush(now).unwrap();
            now = now.after(100_000);
        }
        for _ in 0..1000 {
            udp.flush(now).unwrap();
            now = now.after(1_000_000);
        }
        assert!(udp.is_idle());
        assert_eq!(udp.io.not_sent, 0);
        assert!(
            receive_all(&receiver, expected.len()) == expected,
            "seed {seed}"
        );
        assert_eq!(udp.gso.is_on(), !(refuses_gso && joined), "seed {seed}");
        assert_eq!(
            udp.priorities.is_on(),
            !refuses_tos || expected.is_empty(),
            "seed {seed}"
        );
    }
}

#[test]
fn what_is_lent_goes_at_once_and_after_what_is_queued() {
    let receiver = plain(V4);
    let to = receiver.local_addr().unwrap();
    let mut udp = bind(V4, Os);
    lend(&mut udp, Instant::ZERO, to, 0, 30, 1472, 700);
    assert!(udp.is_idle());
    assert_eq!((udp.io.send_calls, udp.io.joined_sent), (1, 1));
    assert_numbered(&receive_all(&receiver, 30), 30, 1472, 700);
    queue(&mut udp, to, 0, 10, 100, 100);
    lend(&mut udp, Instant::ZERO, to, 10, 20, 100, 70);
    assert!(udp.is_idle());
    assert_numbered(&receive_all(&receiver, 30), 30, 100, 70);
    // One that the socket does not take waits behind those that wait already.
    let codes = vec![libc::EAGAIN; 4];
    let mut udp = bind(V4, Faulty::new(Codes(codes)));
    lend(&mut udp, Instant::ZERO, to, 0, 10, 300, 300);
    assert!(!udp.is_idle());
    lend(&mut udp, Instant::ZERO, to, 10, 10, 300, 300);
    queue(&mut udp, to, 20, 10, 300, 200);
    for round in 0..5 {
        let now = Instant::from_nanos(round * BLOCKED_PAUSE_NS);
        udp.flush(now).unwrap();
    }
    assert!(udp.is_idle());
    assert_numbered(&receive_all(&receiver, 30), 30, 300, 200);
}

#[test]
fn congestion_marks_are_counted_if_asked_for() {
    for count_congestion in [true, false] {
        let socket = Plain::bind(V4).unwrap();
        socket.set_nonblocking(true).unwrap();
        let wanted = Wanted {
            count_congestion,
            ..WANTED
        };
        let mut receiver = Udp::new(UdpSocket::from_std(socket), Os, wanted).unwrap();
        let sender = plain(V4);
        for tos in [0b11, 0b10, 0xe3] {
            socket2::SockRef::from(&sender).set_tos_v4(tos).unwrap();
            sender.send_to(b"!", receiver.local_addr()).unwrap();
            receiver.receive(|_, _, _, _| ()).unwrap();
        }
        let counted = if count_congestion { 2 } else { 0 };
        assert_eq!(receiver.io.congestion_marked, counted);
    }
}

/// Counts how often the socket's own mark is changed; refuses if so told.
struct MarkChanges {
    count: u32,
    refuse: bool,
}

impl Plan for MarkChanges {
    fn set_tos(&mut self, _: u8) -> Option<i32> {
        self.count += 1;
        self.refuse.then_some(libc::EPERM)
    }
}

#[test]
fn whoever_marks_the_packets_the_mark_is_right() {
    let ends = [
        (V4, V4, "127.0.0.1"),
        (V6, V6, "::1"),
        ("[::]:0", V4, "::ffff:127.0.0.1"),
        ("[::]:0", "[::]:0", "::ffff:127.0.0.1"),
    ];
    for (seed, (from, at, to)) in (1..).zip(ends) {
        for refuse in [false, true] {
            let receiver = plain(at);
            Os.ask(receiver.as_fd(), Ask::ReceiveTos).unwrap();
            let port = receiver.local_addr().unwrap().port();
            let to = SocketAddr::new(to.parse().unwrap(), port);
            let mut udp = bind(from, Faulty::new(MarkChanges { count: 0, refuse }));
            let mut dice = Dice(seed);
            let mut sent = Vec::new();
            while sent.len() < 3000 {
                // Long rows of one priority and short ones of others, several to a flush.
                let priority = dice.roll(8) as u8;
                for _ in 0..[1, 3, 200][dice.roll(3)] {
                    udp.room().unwrap()[0] = priority;
                    udp.push(&transmit(to, priority, 1, None));
                    sent.push(priority << 5);
                    if dice.roll(4) == 0 || udp.room().is_none() {
                        udp.flush(Instant::ZERO).unwrap();
                    }
                }
            }
            udp.flush(Instant::ZERO).unwrap();
            assert!(udp.is_idle());
            let mut memory = vec![0; RECEIVE_LEN];
            let mut incoming = [Incoming::NONE];
            for tos in sent {
                Os.receive(receiver.as_fd(), &mut memory, &mut incoming)
                    .unwrap();
                assert_eq!((memory[0] << 5, incoming[0].tos), (tos, tos), "to {to}");
            }
            let changes = udp.sys.plan.count;
            assert!((10..100).contains(&changes), "{changes} changes");
        }
    }
}
