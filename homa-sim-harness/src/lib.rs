//! A deterministic simulated network for the Homa transport.

pub mod events;
pub mod histogram;
pub mod network;
pub mod packet;
pub mod rng;
pub mod topology;
