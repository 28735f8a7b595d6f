#![allow(missing_docs)]
use homa_mio::sys::layout::Name;
use io_uring::types::Fixed;
use io_uring::*;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Instant;
fn median(mut v: Vec<u64>) -> (u64, u64) {
    v.sort_unstable();
    (v[v.len() / 10], v[v.len() / 2])
}
fn main() {
    for regfd in [false, true] {
        let mut b = IoUring::builder();
        b.setup_cqsize(256)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all();
        let mut ring: IoUring = b.build(64).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
        sink.set_nonblocking(true).unwrap();
        ring.submitter()
            .register_files(&[socket.as_raw_fd()])
            .unwrap();
        let mut name = Name::encode(sink.local_addr().unwrap());
        let bytes = [7_u8; 140];
        let mut iov = libc::iovec {
            iov_base: bytes.as_ptr() as *mut _,
            iov_len: 140,
        };
        let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
        msg.msg_name = name.bytes.as_mut_ptr().cast();
        msg.msg_namelen = name.len;
        msg.msg_iov = &mut iov;
        msg.msg_iovlen = 1;
        let sendmsg = opcode::SendMsg::new(Fixed(0), &msg)
            .flags(libc::MSG_DONTWAIT as u32)
            .build();
        let send = opcode::Send::new(Fixed(0), bytes.as_ptr(), 140)
            .flags(libc::MSG_DONTWAIT)
            .dest_addr(name.bytes.as_ptr().cast())
            .dest_addr_len(name.len)
            .build();
        let nop = opcode::Nop::new().build();
        let (mut submitter, mut sq, mut cq) = ring.split();
        if regfd {
            submitter.register_ring_fd().unwrap();
        }
        for (name, entry) in [
            ("nothing", None),
            ("nop", Some(nop)),
            ("sendmsg", Some(sendmsg)),
            ("send", Some(send)),
        ] {
            for get in [0, 1] {
                let mut t = Vec::new();
                let mut buf = [0; 2000];
                for _ in 0..30_000 {
                    let start = Instant::now();
                    if let Some(e) = &entry {
                        unsafe { sq.push(e).unwrap() };
                        sq.sync();
                    }
                    unsafe {
                        submitter
                            .enter::<libc::sigset_t>(u32::from(entry.is_some()), 0, get, None)
                            .unwrap()
                    };
                    cq.sync();
                    let c = cq.next();
                    t.push(start.elapsed().as_nanos() as u64);
                    sq.sync();
                    if let Some(c) = c {
                        assert!(c.result() >= 0, "{name} {}", c.result());
                    } else {
                        assert!(entry.is_none());
                    }
                    let _ = sink.recv(&mut buf);
                }
                println!("regfd {regfd} {name} getevents {get}: {:?}", median(t));
            }
        }
        let mut t = Vec::new();
        let to = sink.local_addr().unwrap();
        let mut buf = [0; 2000];
        for _ in 0..30_000 {
            let start = Instant::now();
            socket.send_to(&bytes, to).unwrap();
            t.push(start.elapsed().as_nanos() as u64);
            sink.recv(&mut buf).unwrap();
        }
        println!("sendto {:?}", median(t));
        let mut t = Vec::new();
        for _ in 0..30_000 {
            let start = Instant::now();
            unsafe { libc::sendmsg(socket.as_raw_fd(), &msg, libc::MSG_DONTWAIT) };
            t.push(start.elapsed().as_nanos() as u64);
            sink.recv(&mut buf).unwrap();
        }
        println!("sendmsg {:?}", median(t));
        let mut t = Vec::new();
        for _ in 0..30_000 {
            let start = Instant::now();
            unsafe { libc::getppid() };
            t.push(start.elapsed().as_nanos() as u64);
        }
        println!("getppid {:?}", median(t));
    }
}
