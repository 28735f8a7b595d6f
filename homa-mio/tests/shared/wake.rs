//! A thread that sleeps because memory is short wakes up when another thread gives some back.

use std::time::Duration;

use mio::{Events, Interest, Poll, Token};

use crate::driver::{Event, Message, RequestOptions, Socket};
use crate::shared::poll_once;

const PATIENCE: Duration = Duration::from_secs(10);

/// A server that holds a request and has no memory for the next, which is there; and its client,
/// which will not stir by itself.
fn short_of_memory() -> (Socket, Message, Socket) {
    let mut server = Socket::builder()
        .memory(2048, 2048)
        .bind("127.0.0.1:0".parse().unwrap())
        .unwrap();
    let mut client = Socket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    for _ in 0..2 {
        let options = RequestOptions::default();
        client
            .request(server.local_addr(), vec![1; 1200], options)
            .unwrap();
    }
    client.flush().unwrap();
    let Some(Event::Request { message, .. }) = server.wait(Some(PATIENCE)).unwrap() else {
        panic!("no request");
    };
    while server
        .wait(Some(Duration::from_millis(50)))
        .unwrap()
        .is_some()
    {}
    assert_eq!(server.stats().core.dropped_no_buffer, 1);
    while client.poll().unwrap().is_some() {}
    (server, message, client)
}

/// The server asks for what it had to drop.
fn assert_asked(client: &mut Socket) {
    let mut poll = Poll::new().unwrap();
    poll.registry()
        .register(client, Token(0), Interest::READABLE)
        .unwrap();
    let mut events = Events::with_capacity(1);
    poll_once(&mut poll, &mut events, Some(PATIENCE));
    assert!(!events.is_empty(), "the server sleeps on");
}

#[test]
fn a_socket_that_waits_wakes_up() {
    let (mut server, message, mut client) = short_of_memory();
    let waiting = std::thread::spawn(move || server.wait(Some(2 * PATIENCE)).unwrap());
    std::thread::sleep(Duration::from_millis(50));
    drop(message);
    assert_asked(&mut client);
    while !waiting.is_finished() {
        client.wait(Some(Duration::from_millis(1))).unwrap();
    }
    assert!(matches!(
        waiting.join().unwrap(),
        Some(Event::Request { .. })
    ));
}

#[test]
fn an_event_loop_wakes_up() {
    let (mut server, message, mut client) = short_of_memory();
    let waiting = std::thread::spawn(move || {
        let mut poll = Poll::new().unwrap();
        let mut events = Events::with_capacity(4);
        poll.registry()
            .register(&mut server, Token(0), Interest::READABLE)
            .unwrap();
        loop {
            if let Some(event) = server.poll().unwrap() {
                poll.registry().deregister(&mut server).unwrap();
                return event;
            }
            poll_once(&mut poll, &mut events, server.timeout());
        }
    });
    std::thread::sleep(Duration::from_millis(50));
    drop(message);
    assert_asked(&mut client);
    while !waiting.is_finished() {
        client.wait(Some(Duration::from_millis(1))).unwrap();
    }
    assert!(matches!(waiting.join().unwrap(), Event::Request { .. }));
}
