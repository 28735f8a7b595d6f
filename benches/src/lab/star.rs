//! The lab: the switch and its hosts, and one run after another on them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::host::{Answer, Measured, Order, Run};
use super::net::{self, Port};
use super::queues::{Queue, Watch};
use super::sys;
use super::traffic::Traffic;

/// The name of the command that a host is.
const HOST_COMMAND: &str = "lab-host";
/// How long hosts may take to do what they are told, their load aside.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often progress is told and the queues are looked at.
const TICK: Duration = Duration::from_millis(100);
const LOOK_NS: u64 = 500_000_000;

/// The switch with its hosts. Ends with them.
#[derive(Debug)]
pub(super) struct Lab {
    hosts: Vec<Host>,
    answers: Receiver<(usize, Result<Answer>)>,
}

#[derive(Debug)]
struct Host {
    child: Child,
    stdin: ChildStdin,
}

/// What a run has given.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) hosts: Vec<Measured>,
    /// At the switch's ports.
    pub(super) queues: Vec<Queue>,
    /// Share of the machine's CPU time that was used while the load was measured.
    pub(super) busy: f64,
}

impl Lab {
    /// Makes the network. From here on the calling thread is in the switch's namespace.
    pub(super) fn build(hosts: usize, port: Port) -> Result<Self> {
        sys::enter_network()?;
        net::make_switch()?;
        let (tell, answers) = mpsc::channel();
        let mut lab = Self {
            hosts: Vec::new(),
            answers,
        };
        for index in 0..hosts {
            let mut child = Command::new("/proc/self/exe")
                .arg(HOST_COMMAND)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .context("cannot start a host")?;
            let stdin = child.stdin.take().context("no pipe")?;
            let stdout = child.stdout.take().context("no pipe")?;
            lab.hosts.push(Host { child, stdin });
            let tell = tell.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines() {
                    let answer = line
                        .map_err(Into::into)
                        .and_then(|line| Ok(serde_json::from_str(&line)?));
                    if tell.send((index, answer)).is_err() {
                        return;
                    }
                }
                let _ = tell.send((index, Err(anyhow::anyhow!("it has ended"))));
            });
        }
        lab.all_done()?;
        for (index, host) in lab.hosts.iter().enumerate() {
            net::plug(index, host.child.id(), port)?;
        }
        lab.tell(|host| Order::SetUp { host, hosts, port })?;
        lab.all_done()?;
        Ok(lab)
    }

    /// Runs a load; `progress` hears how long it has been running.
    pub(super) fn run(&mut self, run: &Run, progress: &mut dyn FnMut(Duration)) -> Result<Outcome> {
        self.tell(|_| Order::Listen(Box::new(run.clone())))?;
        self.all_done()?;
        self.tell(|_| Order::Connect)?;
        self.all_done()?;
        let start_ns = sys::now_ns() + 50_000_000;
        self.tell(|_| Order::Start { at_ns: start_ns })?;

        let started = Instant::now();
        let patience = PATIENCE + Duration::from_nanos(run.window.end_ns);
        let idle = matches!(run.traffic, Traffic::Idle(_));
        let mut watch = Watch::default();
        let (mut before, mut after) = (None, None);
        let mut looked_ns = 0;
        let mut working = self.hosts.len();
        while working > 0 {
            match self.answers.recv_timeout(TICK) {
                Ok(answer) => match accept(answer)? {
                    Answer::Done => working -= 1,
                    other => bail!("a host said {other:?} in the middle of a run"),
                },
                Err(RecvTimeoutError::Timeout) if started.elapsed() < patience => {}
                Err(_) => bail!("the hosts do not end their load"),
            }
            let now = sys::now_ns().saturating_sub(start_ns);
            progress(Duration::from_nanos(now));
            if idle || now < run.window.from_ns {
                continue;
            }
            if before.is_none() {
                before = Some(sys::machine()?);
            }
            if now >= run.window.to_ns {
                if after.is_none() {
                    watch.look()?;
                    after = Some(sys::machine()?);
                }
            } else if now - looked_ns >= LOOK_NS {
                looked_ns = now;
                watch.look()?;
            }
        }
        self.tell(|_| Order::Finish)?;
        let hosts = self.collect(|answer| match answer {
            Answer::Measured(measured) => Ok(*measured),
            other => bail!("a host said {other:?} instead of its figures"),
        })?;
        let busy = match (before, after) {
            (Some((busy, all)), Some((busy_after, all_after))) if all_after > all => {
                (busy_after - busy) as f64 / (all_after - all) as f64
            }
            _ => 0.0,
        };
        Ok(Outcome {
            hosts,
            queues: watch.queues(),
            busy,
        })
    }

    fn tell(&mut self, order: impl Fn(usize) -> Order) -> Result<()> {
        for (index, host) in self.hosts.iter_mut().enumerate() {
            let mut line = serde_json::to_vec(&order(index))?;
            line.push(b'\n');
            host.stdin
                .write_all(&line)
                .with_context(|| format!("host {index} has gone"))?;
        }
        Ok(())
    }

    /// Waits until every host has done what it was told.
    fn all_done(&self) -> Result<()> {
        let done = |answer| match answer {
            Answer::Done => Ok(()),
            other => bail!("a host said {other:?} out of turn"),
        };
        self.collect(done).map(drop)
    }

    /// One answer of every host, in their order.
    fn collect<T>(&self, take: impl Fn(Answer) -> Result<T>) -> Result<Vec<T>> {
        let mut found: Vec<Option<T>> = self.hosts.iter().map(|_| None).collect();
        while found.iter().any(Option::is_none) {
            let answer = self
                .answers
                .recv_timeout(PATIENCE)
                .context("a host does not answer")?;
            let index = answer.0;
            found[index] = Some(take(accept(answer)?)?);
        }
        Ok(found.into_iter().flatten().collect())
    }
}

fn accept((index, answer): (usize, Result<Answer>)) -> Result<Answer> {
    match answer.with_context(|| format!("host {index} failed"))? {
        Answer::Failed(why) => bail!("host {index}: {why}"),
        answer => Ok(answer),
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            let _ = host.child.kill();
            let _ = host.child.wait();
        }
    }
}
