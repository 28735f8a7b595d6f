//! The endpoint as its callers and its peers see it: rules first, then everything at once.
#![cfg(feature = "alloc")]

mod hand;
mod link;

mod answers;
mod bad_input;
mod budgets;
mod buffers;
mod gather;
mod grants;
mod losses;
mod once;
mod parked;
mod peers;
mod priorities;
mod rpcs;
mod silence;
mod storms;
mod timers;
