//! Handles: calls and answers from any thread, over a driver's thread.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{future::Future, io, pin::Pin};

use crate::driver::{
    Call, CallError, CallOptions, Client, Driver, DriverOptions, Message, Request, Responder,
    RpcError, SendErrorKind, Socket, TryCallError, Wait,
};
use crate::shared::pattern;

const PATIENCE: Duration = Duration::from_secs(20);

fn bind() -> io::Result<Socket> {
    Socket::bind("127.0.0.1:0".parse().unwrap())
}

fn client(options: DriverOptions) -> Driver {
    options.spawn(bind).unwrap()
}

/// Answers each request with itself.
fn echo() -> Driver {
    serve(DriverOptions::default(), |request| {
        let (message, responder) = request.into_parts();
        responder.reply(message).unwrap();
    })
}

fn serve(options: DriverOptions, handler: impl FnMut(Request) + Send + 'static) -> Driver {
    options.serve(bind, handler).unwrap()
}

/// A server that answers nothing until it is told: it hands out what it is asked.
fn hold() -> (Driver, mpsc::Receiver<Request>) {
    let (sender, receiver) = mpsc::channel();
    let server = serve(DriverOptions::default(), move |request| {
        let _ = sender.send(request);
    });
    (server, receiver)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn poll_once(call: &mut Call) -> Poll<Result<Message, CallError>> {
    Pin::new(call).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn calls_from_many_threads_each_get_their_own_answer() {
    let (server, driver) = (echo(), client(Driver::builder()));
    let to = server.local_addr();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let client = driver.client();
            scope.spawn(move || {
                for i in 0..100 {
                    let len = [1, 100, 3000, 100_000][i % 4];
                    let bytes = pattern(len, i * 7 + thread);
                    let answer = client.call(to, &bytes).wait().unwrap();
                    assert!(*answer == *bytes);
                }
            });
        }
    });
    let stats = driver.shutdown().unwrap();
    assert_eq!(stats.handles.calls, 400);
    assert_eq!(stats.socket.core.responses_received, 400);
    assert_eq!(server.shutdown().unwrap().handles.requests, 400);
}

/// Bytes that name their call, and are told from those of any other.
fn numbered(i: usize) -> Vec<u8> {
    let mut bytes = pattern([16, 1000, 20_000][i % 3], i);
    bytes[..8].copy_from_slice(&(i as u64).to_le_bytes());
    bytes
}

#[test]
fn calls_are_futures_under_tokio() {
    let (server, driver) = (echo(), client(Driver::builder().in_flight(32)));
    let (client, to) = (driver.client(), server.local_addr());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..500)
            .map(|i| {
                let client = client.clone();
                tokio::spawn(async move {
                    let answer = client.call(to, &numbered(i)).await.unwrap();
                    assert!(*answer == *numbered(i));
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        // The runtime's timeouts drop the call, which cancels it.
        let mute = UdpSocket::bind("127.0.0.1:0").unwrap();
        let call = client.call(mute.local_addr().unwrap(), b"anybody?");
        tokio::time::timeout(Duration::from_millis(20), call)
            .await
            .unwrap_err();
    });
    until("the cancelled call has gone", || client.in_flight() == 0);
    let counts = client.stats().handles;
    assert_eq!((counts.calls, counts.calls_cancelled), (501, 1));
}

#[test]
fn no_more_are_in_flight_than_allowed_and_then_an_error_or_a_wait_is_the_callers_choice() {
    const ROOM: usize = 8;
    let (server, held) = hold();
    let driver = client(Driver::builder().in_flight(ROOM as u32));
    let (client, to) = (driver.client(), server.local_addr());
    let options = CallOptions::default();
    let first: Vec<_> = (0..ROOM)
        .map(|i| client.try_call(to, numbered(i), options).unwrap())
        .collect();
    match client.try_call(to, numbered(99), options) {
        Err(TryCallError::Full(message)) => assert!(*message == *numbered(99)),
        other => panic!("{other:?}"),
    }
    // Those that wait are served in the order in which they began to, however often polled.
    let mut waiting: Vec<_> = (0..ROOM)
        .map(|i| client.call(to, &numbered(100 + i)))
        .collect();
    for call in waiting.iter_mut().rev() {
        assert!(poll_once(call).is_pending());
    }
    waiting.reverse();
    for call in &mut waiting {
        assert!(poll_once(call).is_pending());
    }
    // One of them gives up.
    drop(waiting.remove(1));
    let served: Vec<_> = (0..ROOM)
        .map(|_| held.recv_timeout(PATIENCE).unwrap())
        .collect();
    let more = held.recv_timeout(Duration::from_millis(50));
    assert!(more.is_err(), "more than allowed");
    assert_eq!(client.in_flight(), ROOM);
    for request in served {
        let (message, responder) = request.into_parts();
        responder.reply(message).unwrap();
    }
    for (i, call) in first.into_iter().enumerate() {
        assert!(*call.wait().unwrap() == *numbered(i));
    }
    for (i, mut call) in waiting.into_iter().enumerate() {
        assert!(poll_once(&mut call).is_pending());
        let request = held.recv_timeout(PATIENCE).unwrap();
        // The last to be made was the first to wait.
        let number = 100 + ROOM - 1 - i - usize::from(i > 0);
        assert!(*request == *numbered(number), "{i}");
        let (message, responder) = request.into_parts();
        responder.reply(message).unwrap();
        assert!(*call.wait().unwrap() == *numbered(number));
    }
    assert_eq!(client.in_flight(), 0);
    let stats = server.stats();
    assert_eq!(stats.handles.requests as usize, 2 * ROOM - 1);
}

/// Many threads call; some drop their calls at random times. Every other call ends exactly once
/// and rightly, the bound holds all the time, and nothing is left behind.
#[test]
fn calls_dropped_at_random_leave_nothing_behind() {
    const ROOM: u32 = 16;
    // Half of the answers come later, from another thread.
    let (sender, later) = mpsc::channel::<(Message, Responder)>();
    let replier = std::thread::spawn(move || {
        for (message, responder) in later {
            responder.reply(message).unwrap();
        }
    });
    let server = serve(Driver::builder(), move |request| {
        let (message, responder) = request.into_parts();
        if message[0] % 2 == 0 {
            sender.send((message, responder)).unwrap();
        } else {
            responder.reply(message).unwrap();
        }
    });
    let driver = client(Driver::builder().in_flight(ROOM));
    let to = server.local_addr();
    let ended = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (client, ended) = (driver.client(), &ended);
            scope.spawn(move || {
                let mut dice = 0x9e37_79b9_u64.wrapping_mul(thread as u64 + 1);
                let mut roll = |sides: u64| {
                    dice ^= dice << 13;
                    dice ^= dice >> 7;
                    dice ^= dice << 17;
                    dice % sides
                };
                let mut calls: Vec<(usize, Call)> = Vec::new();
                for i in 0..500 {
                    let i = thread * 1000 + i;
                    let mut call = client.call(to, &numbered(i));
                    assert!(client.in_flight() <= ROOM as usize);
                    match roll(4) {
                        0 => drop(call),
                        1 => {
                            let patience = Duration::from_micros(roll(300));
                            if let Some(outcome) = call.wait_timeout(patience) {
                                assert!(*outcome.unwrap() == *numbered(i));
                                ended.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        2 => {
                            let _ = poll_once(&mut call).map(|outcome| outcome.unwrap());
                            // Not polled again for a while, or never.
                        }
                        _ => calls.push((i, call)),
                    }
                    if calls.len() > 3 {
                        let (i, call) = calls.remove(roll(4) as usize);
                        assert!(*call.wait().unwrap() == *numbered(i));
                        ended.fetch_add(1, Ordering::Relaxed);
                    }
                }
                for (i, call) in calls {
                    assert!(*call.wait().unwrap() == *numbered(i));
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let client = driver.client();
    until("all room is free", || client.in_flight() == 0);
    assert!(ended.load(Ordering::Relaxed) >= 200);
    let stats = client.stats();
    assert_eq!(stats.handles.calls_refused, 0);
    let ends = stats.handles.calls_cancelled + stats.socket.core.responses_received;
    assert!(ends >= stats.handles.calls, "{stats:?}");
    drop(server);
    replier.join().unwrap();
}

#[test]
fn what_is_under_way_at_the_end_is_told_so() {
    let (server, held) = hold();
    let driver = client(Driver::builder().in_flight(2));
    let (client, to) = (driver.client(), server.local_addr());
    let mut waiting: Vec<_> = (0..4).map(|i| client.call(to, &numbered(i))).collect();
    for call in &mut waiting {
        assert!(poll_once(call).is_pending());
    }
    held.recv_timeout(PATIENCE).unwrap();
    let blocked = std::thread::spawn({
        let call = client.call(to, b"late");
        move || call.wait()
    });
    until("it waits", || client.in_flight() == 2);
    driver.shutdown().unwrap();
    for mut call in waiting {
        match poll_once(&mut call) {
            Poll::Ready(Err(CallError::Closed)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(blocked.join().unwrap(), Err(CallError::Closed)));
    assert!(matches!(
        client.call(to, b"too late").wait(),
        Err(CallError::Closed)
    ));
    match client.try_call(to, "too late", CallOptions::default()) {
        Err(TryCallError::Closed(message)) => assert_eq!(*message, *b"too late"),
        other => panic!("{other:?}"),
    }
    assert_eq!(client.in_flight(), 0);
    // Its last counters can still be had.
    assert_eq!(client.stats().handles.calls, 2);
}

#[test]
fn a_driver_that_is_dropped_ends_and_frees_its_port() {
    let server = echo();
    let address = server.local_addr();
    let client = server.client();
    drop(server);
    assert!(matches!(
        client.call(address, b"?").wait(),
        Err(CallError::Closed)
    ));
    Socket::bind(address).unwrap();
}

#[test]
fn a_handler_that_panics_costs_its_request_and_no_other() {
    let server = serve(Driver::builder(), |request| {
        assert!(!request.starts_with(b"bad"), "on purpose");
        let (message, responder) = request.into_parts();
        responder.reply(message).unwrap();
    });
    let driver = client(Driver::builder());
    let (client, to) = (driver.client(), server.local_addr());
    let mut bad = client.call(to, b"bad");
    for i in 0..10 {
        assert!(*client.call(to, &numbered(i)).wait().unwrap() == *numbered(i));
    }
    // The client is not kept waiting for ever.
    match bad.wait_timeout(PATIENCE) {
        Some(Err(CallError::Rpc(RpcError::WentSilent))) => {}
        other => panic!("{other:?}"),
    }
    let counts = server.stats().handles;
    assert_eq!(counts.handler_panics, 1);
    assert_eq!((counts.requests, counts.requests_dropped), (11, 1));
}

#[test]
fn requests_beyond_the_bound_and_those_of_nobody_are_refused() {
    let held = Arc::new(Mutex::new(Vec::new()));
    let server = serve(Driver::builder().requests(3), {
        let held = Arc::clone(&held);
        move |request| held.lock().unwrap().push(request)
    });
    let nobody = client(Driver::builder());
    let driver = client(Driver::builder());
    let client = driver.client();
    let calls: Vec<_> = (0..5)
        .map(|i| client.call(server.local_addr(), &numbered(i)))
        .collect();
    let lost = client.call(nobody.local_addr(), b"?");
    until("all have come", || {
        server.stats().handles.requests_shed == 2 && nobody.stats().handles.requests_shed == 1
    });
    let kept = std::mem::take(&mut *held.lock().unwrap());
    assert_eq!(kept.len(), 3);
    for request in kept {
        request.reply(b"answer").unwrap();
    }
    let answers = calls.into_iter().map(Call::wait);
    assert_eq!(answers.filter(Result::is_ok).count(), 3);
    assert!(lost.wait().is_err());
}

#[test]
fn an_answer_that_cannot_be_sent_comes_back() {
    let (server, held) = hold();
    let driver = client(Driver::builder());
    let client = driver.client();
    let asked = || {
        let call = client.call(server.local_addr(), b"?");
        (call, held.recv_timeout(PATIENCE).unwrap().into_parts().1)
    };
    let (_call, responder) = asked();
    let error = responder.reply(Vec::new()).unwrap_err();
    assert_eq!(error.kind, SendErrorKind::Empty);
    let (_call, responder) = asked();
    let error = responder.reply(vec![0; (16 << 20) + 1]).unwrap_err();
    assert_eq!(
        (error.kind, error.message.len()),
        (SendErrorKind::TooLong, (16 << 20) + 1)
    );
    until("they are refused", || {
        server.stats().handles.requests_dropped == 2
    });
    let (_call, responder) = asked();
    server.shutdown().unwrap();
    let error = responder.reply("late").unwrap_err();
    assert_eq!(
        (error.kind, &*error.message),
        (SendErrorKind::NoSuchRpc, &b"late"[..])
    );
}

#[test]
fn calls_that_cannot_be_sent_say_why() {
    let driver = client(Driver::builder());
    let client = driver.client();
    let call = |to: &str, len: usize| {
        let to: std::net::SocketAddr = to.parse().unwrap();
        client.call(to, &vec![1; len]).wait().unwrap_err()
    };
    for (to, len, kind) in [
        ("127.0.0.1:1", 0, SendErrorKind::Empty),
        ("127.0.0.1:1", (16 << 20) + 1, SendErrorKind::TooLong),
        ("0.0.0.0:1", 1, SendErrorKind::BadAddress),
    ] {
        match call(to, len) {
            CallError::Send(found) => assert_eq!(found, kind),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(client.stats().handles.calls_refused, 3);
    assert_eq!(client.in_flight(), 0);
}

#[test]
fn a_call_ends_at_its_timeout() {
    let (server, _held) = hold();
    let driver = client(Driver::builder());
    let options = CallOptions::default().timeout(Duration::from_millis(50));
    let call = driver.client().call_with(server.local_addr(), "?", options);
    let start = Instant::now();
    match call.wait() {
        Err(CallError::Rpc(RpcError::DeadlineExceeded)) => {}
        other => panic!("{other:?}"),
    }
    assert!(start.elapsed() >= Duration::from_millis(50));
}

#[test]
fn waiting_on_the_drivers_own_thread_is_an_error_and_no_deadlock() {
    let other = echo();
    let (sender, receiver) = mpsc::channel();
    let own: Arc<Mutex<Option<Client>>> = Arc::default();
    let server = serve(Driver::builder(), {
        let (own, to) = (Arc::clone(&own), other.local_addr());
        move |request| {
            let client = own.lock().unwrap().clone().unwrap();
            sender.send(client.call(to, b"hello").wait()).unwrap();
            // Counters of the last time, and no deadlock either.
            let _ = client.stats();
            // But what it has begun may be waited for elsewhere.
            let call = client.call(to, b"hello");
            std::thread::spawn(move || {
                let answer = call.wait().unwrap();
                request.reply(&answer).unwrap();
            });
        }
    });
    *own.lock().unwrap() = Some(server.client());
    let driver = client(Driver::builder());
    let answer = driver.client().call(server.local_addr(), b"?").wait();
    assert_eq!(*answer.unwrap(), *b"hello");
    assert!(matches!(
        receiver.recv().unwrap(),
        Err(CallError::OnDriverThread)
    ));
}

#[test]
fn a_driver_that_cannot_start_says_why() {
    let taken = bind().unwrap();
    let address = taken.local_addr();
    let error = Driver::builder()
        .spawn(move || Socket::bind(address))
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    let error = Driver::builder().in_flight(0).spawn(bind).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let error = Driver::builder()
        .spawn(|| -> io::Result<Socket> { panic!("on purpose") })
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Other);
}

#[test]
fn an_idle_driver_sleeps_and_wakes_for_a_call() {
    let (server, driver) = (echo(), client(Driver::builder()));
    let (client, to) = (driver.client(), server.local_addr());
    client.call(to, b"once").wait().unwrap();
    // Its timers end some time after the call.
    let calls = || client.stats().socket.io.system_calls();
    until("it is idle", || {
        let before = calls();
        std::thread::sleep(Duration::from_millis(300));
        // Asking for counters wakes it too.
        calls() - before <= 5
    });
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(2));
        client.call(to, b"again").wait().unwrap();
    }
    assert!(client.stats().socket.io.wakes > 10);
}

#[test]
fn a_spinning_driver_is_never_woken() {
    let server = echo();
    let driver = Driver::builder()
        .spawn(|| {
            Socket::builder()
                .wait(Wait::Spin)
                .bind("127.0.0.1:0".parse().unwrap())
        })
        .unwrap();
    let client = driver.client();
    for i in 0..50 {
        client
            .call(server.local_addr(), &numbered(i))
            .wait()
            .unwrap();
    }
    let io = driver.shutdown().unwrap().socket.io;
    assert_eq!((io.wakes, io.wait_calls), (0, 0));
}

/// The waker of a call may hold the last reference to a task, and that another call.
#[test]
fn a_call_may_end_inside_the_waker_of_another() {
    struct Task {
        _other: Mutex<Option<Call>>,
        woken: AtomicBool,
    }
    impl std::task::Wake for Task {
        fn wake(self: Arc<Self>) {
            self.woken.store(true, Ordering::SeqCst);
        }
    }
    let (server, held) = hold();
    let driver = client(Driver::builder().in_flight(3));
    let (client, to) = (driver.client(), server.local_addr());
    let task = |call: Option<Call>| {
        Waker::from(Arc::new(Task {
            _other: Mutex::new(call),
            woken: AtomicBool::new(false),
        }))
    };
    let poll = |call: &mut Call, waker: Waker| {
        let outcome = Pin::new(call).poll(&mut Context::from_waker(&waker));
        assert!(outcome.is_pending());
    };
    // Replaced, in flight and waiting; dropped, in flight and waiting; woken.
    let mut calls: Vec<_> = (0..6).map(|i| client.call(to, &numbered(i))).collect();
    for call in &mut calls {
        poll(call, task(Some(client.call(to, b"other"))));
        poll(call, task(Some(client.call(to, b"other"))));
    }
    drop(calls.pop());
    drop(calls.remove(0));
    until("one has come", || held.try_recv().is_ok());
    drop(driver);
    drop(calls);
    assert_eq!(client.in_flight(), 0);
}

#[test]
fn handles_can_go_to_any_thread() {
    fn can_go<T: Send + Sync>() {}
    can_go::<Client>();
    can_go::<Call>();
    can_go::<Driver>();
    can_go::<Request>();
    can_go::<Responder>();
}
