//! A deterministic simulated network for the Homa transport.

pub mod capture;
pub mod cli;
pub mod conformance;
pub mod events;
pub mod experiment;
pub mod fault;
pub mod fuzz;
pub mod histogram;
pub mod ideal;
pub mod network;
pub mod packet;
pub mod recorder;
pub mod report;
pub mod rng;
pub mod sim;
pub mod svg;
pub mod topology;
pub mod traffic;
pub mod transport;
