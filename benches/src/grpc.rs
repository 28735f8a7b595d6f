//! The gRPC rival: tonic, bytes as they are for messages.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::Result;
use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::UnaryService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use tower_service::Service;

use crate::tokio_turns::{Turns, connect, while_serving};
use crate::transport::{Client, Outcome, Pair, Reply, Server, Setup};

/// HTTP/2 windows, and requests at a time.
const WINDOW: u32 = 16 << 20;
const STREAMS: u32 = 4096;
/// Bytes that tonic allocates for a message before it knows better.
const MESSAGE: usize = 512;

/// A client with a connection for each peer, all of them to one server.
pub fn pair(setup: Setup) -> Result<Pair> {
    let (mut server, to) = GrpcServer::bind(setup)?;
    let client = while_serving(&mut server, || GrpcClient::connect(setup, to))?;
    Ok((Box::new(client), Box::new(server)))
}

/// Messages as they are.
#[derive(Clone, Copy, Debug)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&message);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(MESSAGE, 32 * 1024)
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(MESSAGE, 32 * 1024)
    }
}

#[derive(Debug)]
struct GrpcClient {
    turns: Turns,
    channels: Vec<Channel>,
}

impl GrpcClient {
    fn connect(setup: Setup, to: SocketAddr) -> Result<Self> {
        let turns = Turns::new(setup.sleep)?;
        let endpoint = Endpoint::from_shared(format!("http://{to}"))?
            .tcp_nodelay(true)
            .buffer_size(STREAMS as usize)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW);
        let channels = turns.runtime().block_on(connect(async {
            let mut channels = Vec::new();
            for _ in 0..setup.peers {
                channels.push(endpoint.connect().await?);
            }
            Ok(channels)
        }))?;
        Ok(Self { turns, channels })
    }
}

impl Client for GrpcClient {
    fn settings(&self) -> String {
        format!(
            "tonic, {} connection(s), a tokio runtime of one thread at each end, messages as they \
             are (no protobuf), TCP_NODELAY, HTTP/2 windows of {WINDOW} bytes, up to {STREAMS} \
             requests at a time, no TLS",
            self.channels.len()
        )
    }

    fn request(&mut self, id: u64, message: &[u8]) -> Result<bool> {
        let channel = self.channels[id as usize % self.channels.len()].clone();
        let message = Bytes::copy_from_slice(message);
        self.turns.start(id, async move {
            let called = call(channel, message).await;
            called.map_err(|error| error.to_string())
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

async fn call(channel: Channel, message: Bytes) -> Result<Bytes, Status> {
    let mut client = tonic::client::Grpc::new(channel);
    let ready = client.ready().await;
    ready.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static("/race.Echo/Call");
    let response = client.unary(Request::new(message), path, Raw).await?;
    Ok(response.into_inner())
}

#[derive(Debug)]
struct GrpcServer {
    turns: Turns,
}

impl GrpcServer {
    fn bind(setup: Setup) -> Result<(Self, SocketAddr)> {
        let turns = Turns::new(setup.sleep)?;
        let (listener, to) = turns.runtime().block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let to = listener.local_addr()?;
            anyhow::Ok((listener, to))
        })?;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = tonic::transport::Server::builder()
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW);
        let echo = Echo { reply: setup.reply };
        turns
            .runtime()
            .spawn(server.serve_with_incoming(echo, incoming));
        Ok((Self { turns }, to))
    }
}

impl Server for GrpcServer {
    fn turn(&mut self) -> Result<()> {
        self.turns.server();
        Ok(())
    }

    fn system_calls(&self) -> Option<u64> {
        None
    }
}

/// The service, at HTTP's level and at gRPC's.
#[derive(Clone, Copy, Debug)]
struct Echo {
    reply: Reply,
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let echo = *self;
        Box::pin(async move { Ok(tonic::server::Grpc::new(Raw).unary(echo, request).await) })
    }
}

impl UnaryService<Bytes> for Echo {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let mut message = request.into_inner();
        if self.reply == Reply::FirstByte {
            message.truncate(1);
        }
        ready(Ok(Response::new(message)))
    }
}
