//! Several drivers on one port, and several for one client.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::driver::{
    CallError, Driver, Request, RequestOptions, ServerShards, Shard, Socket, faulty,
};
use crate::shared::pattern;
use homa_mio::sys::{Incoming, Plan};

const PATIENCE: Duration = Duration::from_secs(20);

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn bind(shard: Shard) -> io::Result<Socket> {
    shard.bind(Socket::builder())
}

/// Answers with the number of the shard, and the request.
fn answer(index: usize) -> impl FnMut(Request) + Send {
    move |request| {
        let mut answer = vec![index as u8];
        answer.extend_from_slice(&request);
        request.reply(&answer).unwrap();
    }
}

fn serve(count: usize) -> ServerShards {
    Driver::builder()
        .serve_shards(local(), count, bind, answer)
        .unwrap()
}

/// Notes which shard each sender's packets come to.
#[derive(Clone)]
struct Notes {
    index: usize,
    seen: Arc<Mutex<HashMap<SocketAddr, HashSet<usize>>>>,
}

impl Plan for Notes {
    fn received(&mut self, incoming: &mut Incoming) {
        let mut seen = self.seen.lock().unwrap();
        let shards = seen.entry(incoming.from.unwrap()).or_default();
        shards.insert(self.index);
    }
}

#[test]
fn a_request_and_all_its_packets_stay_on_one_shard() {
    const SHARDS: usize = 3;
    let seen = Arc::default();
    let notes = Arc::clone(&seen);
    let bind = move |shard: Shard| {
        let (index, seen) = (shard.index(), Arc::clone(&notes));
        shard.bind(Socket::builder().sys(faulty(Notes { index, seen })))
    };
    let server = Driver::builder()
        .serve_shards(local(), SHARDS, bind, answer)
        .unwrap();
    let to = server.local_addr();
    let mut served = HashMap::new();
    let mut clients = 0;
    // Until each shard has had some clients: by chance the kernel's hash may take a while.
    while served.len() < SHARDS || served.values().any(|&count| count < 3) {
        let mut socket = Socket::bind(local()).unwrap();
        let mut of = None;
        for (i, len) in [100, 50_000, 1, 300_000].into_iter().enumerate() {
            let bytes = pattern(len, i + clients);
            let reply = socket.call(to, &bytes).unwrap();
            assert!(reply[1..] == *bytes);
            let shard = *of.get_or_insert(reply[0]);
            assert_eq!(shard, reply[0], "one client, two shards");
        }
        *served.entry(of.unwrap()).or_insert(0) += 1;
        clients += 1;
        assert!(clients < 300, "{served:?}");
        // Let its acknowledgements out.
        while socket
            .wait(Some(Duration::from_millis(2)))
            .unwrap()
            .is_some()
        {}
    }
    let stats = server.shutdown().unwrap();
    assert_eq!(stats.len(), SHARDS);
    let mut requests = 0;
    for shard in stats {
        requests += shard.handles.requests;
    }
    assert_eq!(requests, 4 * clients as u64);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), clients);
    assert!(seen.values().all(|shards| shards.len() == 1), "{seen:?}");
}

#[test]
fn shards_have_equal_parts_of_the_link() {
    let (sender, receiver) = mpsc::channel();
    let server = Driver::builder()
        .serve_shards(
            local(),
            4,
            move |shard| {
                let mut options = Socket::builder().link_bps(100_000_000_000);
                options.config().max_incoming = 1_000_000;
                let index = shard.index();
                assert_eq!(shard.count(), 4);
                let socket = shard.bind(options)?;
                let config = socket.config();
                sender
                    .send((index, config.link_bps, config.max_incoming))
                    .unwrap();
                Ok(socket)
            },
            answer,
        )
        .unwrap();
    let mut told: Vec<_> = receiver.iter().take(4).collect();
    told.sort_unstable();
    let expected: Vec<_> = (0..4).map(|i| (i, 25_000_000_000, 250_000)).collect();
    assert_eq!(told, expected);
    drop(server);
}

#[test]
fn a_closed_server_frees_its_port_and_clients_learn_it() {
    let server = serve(2);
    let to = server.local_addr();
    let driver = Driver::builder().spawn(|| Socket::bind(local())).unwrap();
    let client = driver.client();
    client.call(to, b"?").wait().unwrap();
    drop(server);
    assert!(matches!(
        client.call(to, b"?").wait(),
        Err(CallError::Rpc(_))
    ));
    // Alone, without sharing.
    Socket::bind(to).unwrap();
}

/// A socket that is of no use any more once it is told so.
#[derive(Clone)]
struct Breaks(Arc<Mutex<bool>>);

impl Plan for Breaks {
    fn receive(&mut self) -> Option<i32> {
        self.0.lock().unwrap().then_some(libc::EBADF)
    }
}

#[test]
fn if_one_shard_fails_all_end_and_it_is_told() {
    let broken = Arc::new(Mutex::new(false));
    let plan = Breaks(Arc::clone(&broken));
    let server = Driver::builder()
        .serve_shards(
            local(),
            3,
            move |shard| {
                // Only the second breaks.
                let broken = match shard.index() {
                    1 => plan.clone(),
                    _ => Breaks(Arc::default()),
                };
                shard.bind(Socket::builder().sys(faulty(broken)))
            },
            answer,
        )
        .unwrap();
    let to = server.local_addr();
    *broken.lock().unwrap() = true;
    // A packet for each shard wakes the one that is to break.
    let joined = std::thread::spawn(move || server.join());
    let start = Instant::now();
    while !joined.is_finished() {
        assert!(start.elapsed() < PATIENCE, "the others go on");
        let mut socket = Socket::bind(local()).unwrap();
        let _ = socket.request(to, "?", RequestOptions::default());
        socket.flush().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let error = joined.join().unwrap().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
}

#[test]
fn a_client_in_shards_calls_each_server_from_one_of_them() {
    const SHARDS: usize = 4;
    let seen = Arc::new(Mutex::new(HashMap::<SocketAddr, HashSet<SocketAddr>>::new()));
    let servers: Vec<_> = (0..16)
        .map(|_| {
            let seen = Arc::clone(&seen);
            let mut socket = Some(Socket::bind(local()).unwrap());
            let address = socket.as_ref().unwrap().local_addr();
            Driver::builder()
                .serve(
                    move || Ok(socket.take().unwrap()),
                    move |request| {
                        let from = request.from().socket;
                        seen.lock()
                            .unwrap()
                            .entry(address)
                            .or_default()
                            .insert(from);
                        request.reply(b"here").unwrap();
                    },
                )
                .unwrap()
        })
        .collect();
    let shards = Driver::builder()
        .spawn_shards(local(), SHARDS, bind)
        .unwrap();
    let client = shards.client();
    let calls: Vec<_> = (0..10)
        .flat_map(|i| servers.iter().map(move |server| (server.local_addr(), i)))
        .map(|(to, i)| client.call(to, &pattern(100, i)))
        .collect();
    for call in calls {
        assert_eq!(*call.wait().unwrap(), *b"here");
    }
    let seen = seen.lock().unwrap();
    assert!(seen.values().all(|from| from.len() == 1), "{seen:?}");
    let used: HashSet<_> = seen.values().flatten().collect();
    // 16 servers over 4 shards: all on one would be a hash that does not spread.
    assert!(used.len() > 1, "{seen:?}");
    let calls: Vec<_> = shards.stats().iter().map(|s| s.handles.calls).collect();
    assert_eq!(calls.iter().sum::<u64>(), 160);
    let mapped: SocketAddr = format!("[::ffff:127.0.0.1]:{}", servers[0].local_addr().port())
        .parse()
        .unwrap();
    assert_eq!(
        format!("{:?}", client.shard_for(mapped)),
        format!("{:?}", client.shard_for(servers[0].local_addr()))
    );
    shards.shutdown().unwrap();
    assert!(matches!(
        client.call(mapped, b"?").wait(),
        Err(CallError::Closed)
    ));
}

#[test]
fn no_shards_is_an_error() {
    let error = Driver::builder()
        .serve_shards(local(), 0, bind, answer)
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let error = Driver::builder()
        .spawn_shards(local(), 0, bind)
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}
