//! The QUIC rival: quinn, a stream for each RPC.
//!
//! Set to be fast on a network that loses nothing: large windows, the whole MTU from the start,
//! fewer acknowledgements, the cheapest cipher, GSO and GRO; chunks handed on without a copy.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    AckFrequencyConfig, ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, SendStream,
    ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

use crate::tokio_turns::{Turns, connect, while_serving};
use crate::transport::{Client, FRESH, Outcome, Pair, Reply, Server, Setup};

/// What a stream, and what a sender, may have on the way.
const WINDOW: u32 = 64 << 20;
/// Sent before the first acknowledgement, by CUBIC: what the socket buffer is sure to hold.
const INITIAL_WINDOW: u64 = 1 << 20;
/// Packets for an acknowledgement.
const PACKETS_PER_ACK: u32 = 20;
/// Streams at a time.
const STREAMS: u32 = 1 << 16;
/// Asked for each socket buffer; the kernel may give less.
const BUFFER: usize = 4 << 20;
/// The longest reply taken.
pub(crate) const LONGEST: usize = 16 << 20;
/// The name in the certificate.
pub(crate) const NAME: &str = "localhost";

/// A client with a connection for each peer, all of them to one server.
pub fn pair(setup: Setup) -> Result<Pair> {
    let identity = Identity::new()?;
    let mut server = QuicServer::bind(setup, &identity)?;
    let to = server.endpoint.local_addr()?;
    let client = while_serving(&mut server, || QuicClient::connect(setup, to, &identity))?;
    Ok((Box::new(client), Box::new(server)))
}

/// A key and its certificate, which is its own authority.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Identity {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Identity {
    pub(crate) fn new() -> Result<Self> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
        Ok(Self {
            certificate: made.cert.der().to_vec(),
            key: made.signing_key.serialize_der(),
        })
    }

    fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from(self.certificate.clone())
    }

    /// Who has it, serving.
    pub(crate) fn server(&self, transport: Arc<TransportConfig>) -> Result<ServerConfig> {
        let key = PrivatePkcs8KeyDer::from(self.key.clone());
        let tls = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate()], key.into())?;
        let crypto = Arc::new(QuicServerConfig::try_from(tls)?);
        let mut config = ServerConfig::with_crypto(crypto);
        config.transport_config(transport);
        Ok(config)
    }

    /// Who trusts it alone.
    pub(crate) fn client(&self, transport: Arc<TransportConfig>) -> Result<ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate())?;
        let tls = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        config.transport_config(transport);
        Ok(config)
    }
}

/// AES-128-GCM alone: the least work where the processor has instructions for it.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256],
        ..ring::default_provider()
    })
}

/// Bytes of UDP payload in the largest packet.
fn payload(setup: Setup) -> u16 {
    setup.mtu - 28
}

/// No limits that a load could meet, and packets with so many bytes of UDP payload from the start.
pub(crate) fn transport(payload: u16) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS))
        // Others have their turns in between.
        .max_idle_timeout(None)
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::MAX)
        .send_window(WINDOW.into())
        .initial_mtu(payload)
        .min_mtu(payload)
        .mtu_discovery_config(None);
    transport
}

/// The same for loopback.
fn loopback(setup: Setup) -> Arc<TransportConfig> {
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(PACKETS_PER_ACK));
    let mut cubic = CubicConfig::default();
    cubic.initial_window(INITIAL_WINDOW);
    let mut transport = transport(payload(setup));
    transport
        .initial_rtt(Duration::from_millis(1))
        .ack_frequency_config(Some(acks))
        .congestion_controller_factory(Arc::new(cubic));
    Arc::new(transport)
}

/// An endpoint on a free port. To be made in a runtime.
fn endpoint(setup: Setup, server: Option<ServerConfig>) -> Result<Endpoint> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.set_send_buffer_size(BUFFER)?;
    socket.set_recv_buffer_size(BUFFER)?;
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(payload(setup))?;
    let runtime = Arc::new(TokioRuntime);
    Ok(Endpoint::new(config, server, socket.into(), runtime)?)
}

#[derive(Debug)]
struct QuicClient {
    turns: Turns,
    setup: Setup,
    connections: Vec<Connection>,
    /// A bulk message behind its fresh beginning.
    bulk: Bytes,
}

impl QuicClient {
    fn connect(setup: Setup, to: SocketAddr, identity: &Identity) -> Result<Self> {
        let config = identity.client(loopback(setup))?;
        let turns = Turns::new(setup.sleep)?;
        let connections = turns.runtime().block_on(connect(async {
            let endpoint = endpoint(setup, None)?;
            let mut connections = Vec::new();
            for _ in 0..setup.peers {
                let connecting = endpoint.connect_with(config.clone(), to, NAME)?;
                connections.push(connecting.await.context("QUIC does not connect")?);
            }
            Ok(connections)
        }))?;
        Ok(Self {
            turns,
            setup,
            connections,
            bulk: Bytes::new(),
        })
    }
}

impl Client for QuicClient {
    fn settings(&self) -> String {
        format!(
            "quinn, a stream for each RPC, {} connection(s), a tokio runtime of one thread at each \
             end, TLS 1.3 with AES-128-GCM (ring), GSO and GRO, packets for MTU {} from the start, \
             CUBIC with {INITIAL_WINDOW} bytes at the start, windows of {WINDOW} bytes, an \
             acknowledgement for {PACKETS_PER_ACK} packets, socket buffers of {BUFFER} bytes asked \
             for",
            self.connections.len(),
            self.setup.mtu,
        )
    }

    fn request(&mut self, id: u64, message: &[u8]) -> Result<bool> {
        let connection = self.connections[id as usize % self.connections.len()].clone();
        let chunks = if self.setup.reply == Reply::FirstByte && message.len() > FRESH {
            let (fresh, rest) = message.split_at(FRESH);
            if self.bulk.len() != rest.len() {
                self.bulk = Bytes::copy_from_slice(rest);
            }
            [Bytes::copy_from_slice(fresh), self.bulk.clone()]
        } else {
            [Bytes::copy_from_slice(message), Bytes::new()]
        };
        self.turns.start(id, async move {
            let called = call(&connection, chunks).await;
            called.map_err(|error| format!("{error:#}"))
        });
        Ok(true)
    }

    fn turn(&mut self, ended: &mut dyn FnMut(u64, Outcome<'_>)) -> Result<()> {
        self.turns.client(ended);
        Ok(())
    }

    fn system_calls(&self) -> Option<u64> {
        None
    }
}

/// An RPC on a stream of its own.
pub(crate) async fn call<const N: usize>(
    connection: &Connection,
    mut chunks: [Bytes; N],
) -> Result<Bytes> {
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_all_chunks(&mut chunks).await?;
    send.finish()?;
    Ok(receive.read_to_end(LONGEST).await?.into())
}

#[derive(Debug)]
struct QuicServer {
    turns: Turns,
    endpoint: Endpoint,
}

impl QuicServer {
    fn bind(setup: Setup, identity: &Identity) -> Result<Self> {
        let config = identity.server(loopback(setup))?;
        let turns = Turns::new(setup.sleep)?;
        let endpoint = turns
            .runtime()
            .block_on(async { endpoint(setup, Some(config)) })?;
        let accepting = endpoint.clone();
        turns.runtime().spawn(async move {
            while let Some(incoming) = accepting.accept().await {
                if let Ok(connection) = incoming.await {
                    tokio::spawn(serve(connection, setup.reply));
                }
            }
        });
        Ok(Self { turns, endpoint })
    }
}

impl Server for QuicServer {
    fn turn(&mut self) -> Result<()> {
        self.turns.server();
        Ok(())
    }

    fn system_calls(&self) -> Option<u64> {
        None
    }
}

async fn serve(connection: Connection, reply: Reply) {
    while let Ok((send, receive)) = connection.accept_bi().await {
        // A client that has given up is no error.
        tokio::spawn(async move { answer(send, receive, reply).await.ok() });
    }
}

async fn answer(mut send: SendStream, mut receive: RecvStream, reply: Reply) -> Result<()> {
    let mut chunks = Vec::new();
    while let Some(chunk) = receive.read_chunk(usize::MAX, true).await? {
        if reply == Reply::Echo || chunks.is_empty() {
            chunks.push(chunk.bytes);
        }
    }
    if reply == Reply::FirstByte {
        chunks.iter_mut().for_each(|chunk| chunk.truncate(1));
    }
    send.write_all_chunks(&mut chunks).await?;
    send.finish()?;
    Ok(())
}
