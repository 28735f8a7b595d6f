//! `homa lab`: Homa against Linux's TCP on real kernels, across an emulated switch on one machine.

mod figures;
mod homa;
pub mod host;
mod net;
mod node;
mod queues;
mod quic;
mod slide;
mod star;
mod sys;
mod tcp;
mod traffic;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::quic::Identity;
use crate::report::JsonFile;
use figures::{Report, Settings, TransportReport, VariantReport};
use host::{Run, Window};
use net::Port;
use star::Lab;
use traffic::{Open, Steps, Traffic};

/// The longest message of any traffic: a transfer of the `kv` pattern.
const LONGEST: u32 = 4_000_000;

/// Options of `homa lab`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Hosts around the switch.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
    hosts: u16,
    /// Speed of every link: bits per second, or with kbit, mbit or gbit.
    #[arg(long, default_value = "200mbit", value_parser = rate)]
    rate: u64,
    /// Packets that each queue of a port holds.
    #[arg(long, value_name = "PACKETS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..))]
    queue: u32,
    /// Message lengths: w1 to w5, or fixed:N. Longer messages than 1 MB are cut to that.
    #[arg(long, default_value = "w4", value_parser = workload)]
    workload: String,
    /// Share of each link that the messages themselves fill.
    #[arg(long, default_value_t = 0.8, value_parser = load)]
    load: f64,
    /// Seconds that are measured; more where a class would have too few samples.
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// What to compare, separated by commas.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "homa-mio,tcp-cubic,tcp-reno,tcp-bbr"
    )]
    transports: Vec<Transport>,
    /// TCP connections from each host to each other; several numbers, separated by commas, are
    /// tried one after the other and the best counts.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 3, 10],
        value_parser = clap::value_parser!(u16).range(1..=100))]
    tcp_connections: Vec<u16>,
    /// Round trip of a packet under load that Homa is told, in microseconds. Otherwise it is what
    /// the idle network takes, and 500 more.
    #[arg(long, value_name = "N")]
    homa_rtt_us: Option<u64>,
    /// Load instead of the mixed one.
    #[arg(long, value_enum)]
    pattern: Option<Pattern>,
    /// Fixes sizes, times, destinations and contents.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run over IPv6.
    #[arg(long)]
    ipv6: bool,
    /// Write the figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the classes of all runs to this file as CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw round trips by message length to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A transport to compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Transport {
    HomaMio,
    HomaUring,
    TcpCubic,
    TcpReno,
    TcpBbr,
    Quic,
}

/// A load of AI clusters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Pattern {
    /// Each host computes for 1 ms, tells every other by 100 bytes and waits for all; beside it
    /// transfers of 1 MB.
    Barrier,
    /// Each host computes for 1 ms, then looks 1 KB up at every other; beside it transfers of
    /// 4 MB.
    Kv,
    /// One host computes for 1 ms, then asks every other for 10 messages of 20 KB at once.
    Incast,
}

/// Congestion control of TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// Linux's default.
    Cubic,
    /// RFC 5681.
    Reno,
    /// Paced by a model of the path.
    Bbr,
}

impl Congestion {
    fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Reno => "reno",
            Self::Bbr => "bbr",
        }
    }
}

/// A transport with its settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Variant {
    /// Homa over UDP sockets.
    HomaMio {
        /// With the priorities marked, or all in one.
        priorities: bool,
    },
    /// Homa over io_uring.
    HomaUring {
        /// With the priorities marked, or all in one.
        priorities: bool,
    },
    /// Linux's TCP.
    Tcp {
        /// Its congestion control.
        congestion: Congestion,
        /// Connections from each host to each other.
        connections: usize,
    },
    /// quinn.
    Quic,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Self::HomaMio => "homa-mio",
            Self::HomaUring => "homa-uring",
            Self::TcpCubic => "tcp-cubic",
            Self::TcpReno => "tcp-reno",
            Self::TcpBbr => "tcp-bbr",
            Self::Quic => "quic",
        }
    }

    fn is_homa(self) -> bool {
        matches!(self, Self::HomaMio | Self::HomaUring)
    }

    /// The ways to run it.
    fn variants(self, connections: &[u16]) -> Vec<Variant> {
        let tcp = |congestion| {
            let variant = |&connections: &u16| Variant::Tcp {
                congestion,
                connections: connections.into(),
            };
            connections.iter().map(variant).collect()
        };
        match self {
            Self::HomaMio => [true, false]
                .map(|priorities| Variant::HomaMio { priorities })
                .into(),
            Self::HomaUring => [true, false]
                .map(|priorities| Variant::HomaUring { priorities })
                .into(),
            Self::TcpCubic => tcp(Congestion::Cubic),
            Self::TcpReno => tcp(Congestion::Reno),
            Self::TcpBbr => tcp(Congestion::Bbr),
            Self::Quic => vec![Variant::Quic],
        }
    }
}

impl Variant {
    fn name(self) -> String {
        match self {
            Self::HomaMio { priorities } | Self::HomaUring { priorities } => {
                if priorities {
                    "8 priorities".into()
                } else {
                    "1 priority".into()
                }
            }
            Self::Tcp { connections: 1, .. } | Self::Quic => "1 connection".into(),
            Self::Tcp { connections, .. } => format!("{connections} connections"),
        }
    }
}

/// Time at the beginning that is not measured.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time at the end in which the load goes on unmeasured.
const COOL_DOWN: Duration = Duration::from_millis(300);
/// What is added to the idle round trip for the threads of both ends, which wake up later when
/// hosts share CPUs.
const WAKE_UPS: Duration = Duration::from_micros(500);
/// Samples that the class of the shortest messages must have.
const ENOUGH: f64 = 1_000.0;
/// The longest that a run is made for that.
const MAX_SECONDS: f64 = 600.0;

/// Runs the lab and prints what it finds.
pub fn run(options: &Options) -> Result<()> {
    let [json, csv, svg] = [&options.json, &options.csv, &options.svg]
        .map(|path| path.as_deref().map(JsonFile::open).transpose());
    let (json, csv, svg) = (json?, csv?, svg?);
    let report = measure(options)?;
    print!("{}", report.table());
    if let Some(file) = json {
        file.write(&report)?;
    }
    if let Some(file) = csv {
        file.write_text(&report.csv())?;
    }
    if let Some(file) = svg {
        file.write_text(&slide::draw(&report))?;
    }
    let errors: u64 = report.variants().map(|variant| variant.errors).sum();
    ensure!(
        errors == 0,
        "{errors} RPCs failed; the first: {}",
        report
            .variants()
            .find_map(|variant| variant.first_error.as_deref())
            .unwrap_or("unknown")
    );
    Ok(())
}

fn measure(options: &Options) -> Result<Report> {
    let traffic = traffic(options);
    let window = window(options, &traffic)?;
    let runs: Vec<(Transport, Vec<Variant>)> = options
        .transports
        .iter()
        .map(|&transport| (transport, transport.variants(&options.tcp_connections)))
        .collect();
    let port = Port {
        rate_bps: options.rate,
        queue_packets: options.queue,
    };
    let mut lab = Lab::build(options.hosts.into(), port)?;
    let count: usize = runs.iter().map(|(_, variants)| variants.len()).sum();
    let bar = crate::cli::bar("[{bar:40}] {msg}, {eta} left");
    let length = Duration::from_nanos(window.end_ns).as_secs_f64();
    bar.set_length((length * 10.0) as u64 * count as u64);

    let mut run = Run {
        variant: Variant::HomaMio { priorities: true },
        ipv6: options.ipv6,
        rate_bps: options.rate,
        rtt_ns: 0,
        identity: Identity::new()?,
        traffic: Traffic::Idle(idle_sizes(options)),
        seed: options.seed,
        window: Window {
            from_ns: 0,
            to_ns: u64::MAX,
            end_ns: 0,
        },
    };
    let mut idle = figures::Idle::new(options.rate);
    for (transport, variants) in &runs {
        bar.set_message(format!("{} on the idle network", transport.name()));
        run.variant = variants[0];
        idle.add(transport.name(), &lab.run(&run, &mut |_| ())?);
    }
    run.rtt_ns = match options.homa_rtt_us {
        Some(us) => us * 1_000,
        None => idle.packet_ns() + WAKE_UPS.as_nanos() as u64,
    };

    (run.traffic, run.window) = (traffic, window);
    let mut transports = Vec::new();
    let mut before = 0;
    for (transport, variants) in runs {
        let mut reports = Vec::new();
        for variant in variants {
            bar.set_message(format!("{}, {}", transport.name(), variant.name()));
            run.variant = variant;
            let outcome = lab.run(&run, &mut |elapsed: Duration| {
                bar.set_position(
                    before + ((elapsed.as_secs_f64() * 10.0) as u64).min((length * 10.0) as u64),
                );
            })?;
            before += (length * 10.0) as u64;
            reports.push(VariantReport::new(variant.name(), &run, outcome, &idle));
        }
        transports.push(TransportReport::new(
            transport.name(),
            transport.is_homa(),
            reports,
        ));
    }
    bar.finish_and_clear();
    Ok(Report::new(
        Settings {
            hosts: options.hosts.into(),
            rate_bps: options.rate,
            queue_packets: options.queue,
            workload: options.pattern.map_or_else(
                || options.workload.clone(),
                |pattern| {
                    pattern
                        .to_possible_value()
                        .map_or_else(String::new, |value| value.get_name().into())
                },
            ),
            load: options.load,
            seconds: Duration::from_nanos(window.to_ns - window.from_ns).as_secs_f64(),
            seed: options.seed,
            ipv6: options.ipv6,
            rtt_us: run.rtt_ns as f64 / 1e3,
        },
        idle.times(),
        transports,
    ))
}

fn traffic(options: &Options) -> Traffic {
    let open = |workload: &str, max_bytes| {
        Some(Open {
            workload: workload.into(),
            max_bytes,
            load: options.load,
        })
    };
    let steps = |bytes, per_host| Steps {
        bytes,
        per_host,
        barrier: false,
        root_only: false,
        compute: Duration::from_millis(1),
    };
    let (open, steps) = match options.pattern {
        None => (open(&options.workload, traffic::MAX_BYTES), None),
        Some(Pattern::Barrier) => (
            open("fixed:1000000", LONGEST),
            Some(Steps {
                barrier: true,
                ..steps(100, 1)
            }),
        ),
        Some(Pattern::Kv) => (open("fixed:4000000", LONGEST), Some(steps(1_000, 1))),
        Some(Pattern::Incast) => (
            None,
            Some(Steps {
                root_only: true,
                ..steps(20_000, 10)
            }),
        ),
    };
    Traffic::Load { open, steps }
}

/// What is measured when: long enough that the class of the shortest messages has its samples.
fn window(options: &Options, traffic: &Traffic) -> Result<Window> {
    let mut seconds = options.seconds;
    if let Traffic::Load {
        open: Some(open),
        steps: None,
    } = traffic
    {
        let per_second = open.rate(options.rate)? * f64::from(options.hosts);
        let sizes = open.sizes()?;
        let mut over = 0;
        // Classes that hold next to nothing are not waited for.
        let share = figures::CLASS_BOUNDS.into_iter().find_map(|up_to| {
            let share: f64 = sizes
                .shares()
                .filter(|&(bytes, _)| bytes > over && bytes <= up_to)
                .map(|(_, share)| share)
                .sum();
            over = up_to;
            (share >= 0.01).then_some(share)
        });
        // A little more, since arrivals are random.
        let needed = 1.1 * ENOUGH / (per_second * share.unwrap_or(1.0));
        seconds = seconds.max(needed);
        if seconds > MAX_SECONDS {
            bail!("at this rate {ENOUGH} short messages would take {seconds:.0} s");
        }
    }
    let from = WARM_UP.as_nanos() as u64;
    let to = from + (seconds * 1e9) as u64;
    Ok(Window {
        from_ns: from,
        to_ns: to,
        end_ns: to + COOL_DOWN.as_nanos() as u64,
    })
}

/// The sizes for which the idle network is measured, and how often each.
fn idle_sizes(options: &Options) -> Vec<(u32, usize)> {
    let longest = match options.pattern {
        Some(Pattern::Kv) => LONGEST,
        _ => traffic::MAX_BYTES,
    };
    let mut sizes: Vec<u32> = [1, 2, 5]
        .into_iter()
        .flat_map(|digit| (2..7).map(move |power| digit * 10u32.pow(power)))
        .chain([50, 1_400, longest])
        .filter(|&bytes| bytes <= longest)
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
        .into_iter()
        .map(|bytes| {
            // A message of 1 MB takes its time at the speed of the link.
            let once = f64::from(bytes) * 16.0 / options.rate as f64 + 2.3e-3;
            (bytes, ((0.15 / once) as usize).clamp(3, 50))
        })
        .collect()
}

fn rate(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (number, unit) = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)]
        .into_iter()
        .find_map(|(name, unit)| Some((lower.strip_suffix(name)?, unit)))
        .unwrap_or((&lower, 1.0));
    match number.trim().parse::<f64>() {
        Ok(number) if (1e6..=100e9).contains(&(number * unit)) => Ok((number * unit) as u64),
        _ => Err("not a rate from 1mbit to 100gbit".into()),
    }
}

fn workload(text: &str) -> Result<String, String> {
    match traffic::workload(text, traffic::MAX_BYTES) {
        Ok(_) => Ok(text.into()),
        Err(error) => Err(format!("{error:#}")),
    }
}

fn load(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(load) if (0.001..=1.0).contains(&load) => Ok(load),
        _ => Err("not a number from 0.001 to 1".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=MAX_SECONDS).contains(&seconds) => Ok(seconds),
        _ => Err(format!("not a number from 0.1 to {MAX_SECONDS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        for (text, bps) in [
            ("200mbit", 200_000_000),
            ("1.5Gbit", 1_500_000_000),
            ("5000kbit", 5_000_000),
            ("10000000", 10_000_000),
        ] {
            assert_eq!(rate(text), Ok(bps), "{text}");
        }
        for wrong in [
            "", "fast", "0", "-1mbit", "1kbit", "200gbit", "nanmbit", "mbit",
        ] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
