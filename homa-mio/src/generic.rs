//! Sockets over any kind of datagrams ([`Sys`](crate::sys::Sys)): for drivers, and for code that
//! is to work with each of them.

pub use crate::options::Options;
pub use crate::socket::Socket;
