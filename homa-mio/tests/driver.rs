//! Handles: calls and answers from any thread, over a driver's thread.

#![allow(missing_docs)]

mod common;

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{future::Future, io, pin::Pin};

use common::pattern;
use homa_mio::{
    Call, CallError, CallOptions, Client, Driver, DriverOptions, Message, Request, Responder,
    RpcError, SendErrorKind, Socket, TryCallError, Wait,
};

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
