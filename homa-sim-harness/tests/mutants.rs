//! Cores that are broken on purpose, to see that somebody notices: first the fault seeds of the
//! simulator, then the tests of `homa-proto`.
//!
//! That the table fits the core is tested always; to build and to play all of them takes minutes:
//!
//! ```text
//! cargo test -p homa-sim-harness --test mutants -- --ignored --nocapture
//! ```

#![allow(missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A change to one file of the core.
struct Mutant {
    what: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

const MUTANTS: &[Mutant] = &[
    // Granting.
    Mutant {
        what: "the share of a message that has ended is not handed on",
        file: "grant.rs",
        from: "self.count(&mut rpc.inc.counted, 0, &mut peers[p]);",
        to: "",
    },
    Mutant {
        what: "the oldest message stays in its list when it has ended",
        file: "grant.rs",
        from: "let had_share = rpcs[idx].inc.counted > 0 || rpcs[idx].grant != GrantState::None;\n        self.detach(rpcs, peers, idx);",
        to: "let had_share = true;",
    },
    Mutant {
        what: "the last byte of a message is never granted",
        file: "grant.rs",
        from: "rpc.inc.granted = rpc.inc.granted.saturating_add(give32).min(rpc.inc.len);",
        to: "rpc.inc.granted = rpc.inc.granted.saturating_add(give32).min(rpc.inc.len - 1);",
    },
    Mutant {
        what: "a peer that sits on its grants is never granted anything again",
        file: "grant.rs",
        from: "peers[p].is_silent = false;\n",
        to: "",
    },
    Mutant {
        what: "grants do not count as incoming",
        file: "grant.rs",
        from: "let counted = if takes { rpc.inc.outstanding() } else { 0 };",
        to: "let counted = 0;",
    },
    // Reassembly.
    Mutant {
        what: "bytes that come twice count twice",
        file: "incoming.rs",
        from: "self.missing = self.missing.saturating_sub(hit.len());",
        to: "self.missing = self.missing.saturating_sub(data.len() as u32);",
    },
    Mutant {
        what: "a hole that is split loses its end",
        file: "incoming.rs",
        from: "self.holes.insert(at.saturating_add(1), right);",
        to: "",
    },
    Mutant {
        what: "a hole is not noted",
        file: "incoming.rs",
        from: "self.holes.insert(usize::from(self.holes.count), gap);",
        to: "",
    },
    Mutant {
        what: "a hole is filled with bytes from elsewhere",
        file: "incoming.rs",
        from: "copy(buffer, hit.start, part(hit));",
        to: "copy(buffer, hit.start, &data[..hit.len() as usize]);",
    },
    // At most once, and acknowledgements.
    Mutant {
        what: "no memory of ended requests",
        file: "ended.rs",
        from: "its_tag == tag && entry",
        to: "its_tag == tag && hash == 0 && entry",
    },
    Mutant {
        what: "an acknowledgement of a request under way ends it",
        file: "receive.rs",
        from: "if self.rpcs[idx].state == State::ServerOutgoing {\n            count(&mut self.stats.acknowledged);",
        to: "if self.rpcs[idx].state.is_live() {\n            count(&mut self.stats.acknowledged);",
    },
    Mutant {
        what: "acknowledgements are not taken",
        file: "receive.rs",
        from: "count(&mut self.stats.acknowledged);\n            self.release(now, idx, None);",
        to: "count(&mut self.stats.acknowledged);",
    },
    Mutant {
        what: "a question about an RPC that is not known has no answer",
        file: "receive.rs",
        from: "self.reply(now, from, local, common, Reply::Unknown)",
        to: "Ok(())",
    },
    Mutant {
        what: "NEED_ACK about an RPC that has ended has no answer",
        file: "receive.rs",
        from: "self.reply(now, from, local, common, Reply::Ack)",
        to: "Ok(())",
    },
    // Losses and timers.
    Mutant {
        what: "a RESEND does not stand for the GRANT that was lost",
        file: "receive.rs",
        from: "rpc.out.granted = rpc.out.granted.max(end);",
        to: "",
    },
    Mutant {
        what: "what a RESEND asks for is not sent",
        file: "receive.rs",
        from: "if again.start < again.end && !rpc.out.retransmit(again) {",
        to: "if again.start > again.end && !rpc.out.retransmit(again) {",
    },
    Mutant {
        what: "silence is for ever",
        file: "recovery.rs",
        from: "if silent_ns >= self.config.timeout_ns && is_asked {",
        to: "if silent_ns == u64::MAX && is_asked {",
    },
    Mutant {
        what: "a response waits for its acknowledgement for ever",
        file: "recovery.rs",
        from: "if now.nanos_since(rpc.heard) >= self.config.timeout_ns.saturating_mul(2) {",
        to: "if now == Instant::MAX {",
    },
    Mutant {
        what: "nobody asks for an acknowledgement",
        file: "recovery.rs",
        from: "                Pending::NEED_ACK\n            },",
        to: "                Pending::BUSY\n            },",
    },
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn source(root: &Path, mutant: &Mutant) -> PathBuf {
    root.join("homa-proto/src").join(mutant.file)
}

#[test]
fn every_mutant_still_fits_the_core() {
    for mutant in MUTANTS {
        let text = fs::read_to_string(source(&repository(), mutant)).unwrap();
        let places = text.matches(mutant.from).count();
        assert_eq!(places, 1, "{}: {}", mutant.file, mutant.what);
        assert_ne!(mutant.from, mutant.to);
    }
}

/// Copies what the build needs.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (name, target) = (entry.file_name(), to.join(entry.file_name()));
        if name == "target" || name == ".git" {
        } else if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn cargo(root: &Path, args: &[&str]) -> bool {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(args)
        .current_dir(root)
        .env("CARGO_TARGET_DIR", root.join("target"))
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().unwrap().success()
}

/// Who notices. A core that hangs is ended by the time-out of the seeds' own.
fn caught_by(root: &Path) -> Option<&'static str> {
    let build = [
        "build",
        "--release",
        "-p",
        "homa-sim-harness",
        "--bin",
        "homa-sim",
    ];
    assert!(cargo(root, &build), "a mutant does not compile");
    let seeds = [
        "run",
        "--release",
        "-p",
        "homa-sim-harness",
        "--bin",
        "homa-sim",
        "--",
    ];
    if !cargo(
        root,
        &[&seeds[..], &["fuzz-seeds", "--count", "2000"]].concat(),
    ) {
        return Some("seeds");
    }
    let tests = [
        "test",
        "--release",
        "-p",
        "homa-proto",
        "--lib",
        "--test",
        "endpoint",
    ];
    (!cargo(root, &tests)).then_some("tests of homa-proto")
}

#[test]
#[ignore = "takes minutes"]
fn every_mutant_is_caught() {
    let root = std::env::temp_dir().join(format!("homa-mutants-{}", std::process::id()));
    copy(&repository(), &root);
    assert_eq!(caught_by(&root), None, "the core as it is does not pass");
    let mut survivors = Vec::new();
    for mutant in MUTANTS {
        let path = source(&root, mutant);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replacen(mutant.from, mutant.to, 1)).unwrap();
        let caught = caught_by(&root);
        println!("{:20} {}", caught.unwrap_or("NOBODY"), mutant.what);
        survivors.extend(caught.is_none().then_some(mutant.what));
        fs::write(&path, text).unwrap();
    }
    fs::remove_dir_all(&root).unwrap();
    assert!(survivors.is_empty(), "not caught: {survivors:?}");
}
