//! A deterministic simulated network for the Homa transport.

pub mod capture;
pub mod events;
pub mod fault;
pub mod histogram;
pub mod network;
pub mod packet;
pub mod rng;
pub mod sim;
pub mod topology;
pub mod transport;
