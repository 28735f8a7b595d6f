//! The command line.

use std::path::PathBuf;

use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::{Result, bail, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use homa_mio::Wait;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

#[cfg(target_os = "linux")]
use crate::lab;
use crate::report::JsonFile;
use crate::{bench_core, bench_cost, demo, homa, race, serve, soak};

/// Homa in user space: try it, talk with it, measure it.
#[derive(Debug, Parser)]
#[command(name = "homa", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a mixed load over Homa and over TCP, both on loopback, and compare.
    Demo(Demo),
    /// Answer every request with itself.
    Serve(Serve),
    /// Ask a server, one request after another, and check every reply.
    Call(Call),
    /// Measure.
    #[command(subcommand)]
    Bench(Bench),
    /// Race Homa against raw UDP, TCP, QUIC and gRPC, in turns, on loopback.
    Race(Race),
    /// Compare Homa with the kernel's TCP across an emulated switch: network namespaces on this
    /// machine, which end with the command.
    #[cfg(target_os = "linux")]
    Lab(lab::Options),
    /// A host of the lab.
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    LabHost,
    /// Run a mixed load with injected faults for long, and check that all stays up.
    Soak(Soak),
}

/// Where packets meet the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
enum Driver {
    /// UDP sockets and epoll.
    #[default]
    Mio,
    /// io_uring; where it cannot be used, UDP sockets and the reason.
    #[cfg(target_os = "linux")]
    #[value(alias = "auto")]
    Uring,
}

impl From<Driver> for homa::Driver {
    fn from(driver: Driver) -> Self {
        match driver {
            Driver::Mio => Self::Mio,
            #[cfg(target_os = "linux")]
            Driver::Uring => Self::UringOrMio,
        }
    }
}

#[derive(Debug, Args)]
struct Demo {
    /// Seconds of load, half over each transport.
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Share of the load that the slower transport can carry.
    #[arg(long, default_value_t = 0.5, value_parser = fraction)]
    load: f64,
    /// Fixes sizes, arrival times and contents.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The driver to run Homa on.
    #[arg(long, value_enum, default_value_t)]
    driver: Driver,
    /// Write the figures to this file as well.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Serve {
    /// Where to listen, as ADDRESS:PORT.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    listen: SocketAddr,
    /// Never sleep: lower latency, for a whole core.
    #[arg(long)]
    spin: bool,
}

#[derive(Debug, Args)]
struct Call {
    /// Where the server listens, as ADDRESS:PORT.
    #[arg(value_name = "ADDR", value_parser = address)]
    to: SocketAddr,
    /// Bytes of a request, and of its reply.
    #[arg(
        long,
        default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(serve::MAX_MESSAGE))
    )]
    size: u32,
    /// How many requests.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Never sleep: lower latency, for a whole core.
    #[arg(long)]
    spin: bool,
    /// Write the figures to this file as well.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Soak {
    /// Minutes of mixed load; from one minute on the other checks take more than a minute more.
    #[arg(long, default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,
    /// Write the figures to this file as well.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// The protocol alone: two endpoints joined in memory in one thread.
    Core(Measure),
    /// Processor time and system calls of an RPC, beside raw UDP and TCP: both ends in one thread.
    Cost(Measure),
}

#[derive(Debug, Args)]
struct Measure {
    /// Fewer and shorter runs.
    #[arg(long)]
    quick: bool,
    /// Write the figures to this file as well.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Race {
    #[command(flatten)]
    options: race::Options,
    /// Write the figures to this file as well.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw them to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs a command.
pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Demo(options) => run_demo(&options),
        Command::Serve(options) => serve::serve(options.listen, wait(options.spin)),
        Command::Call(options) => run_call(&options),
        Command::Soak(options) => run_soak(&options),
        Command::Bench(Bench::Core(options)) => {
            let json = open(&options.json)?;
            let figures = bench_core::run(options.quick, &mut progress())?;
            print!("{}", figures.table());
            write(json, &figures)
        }
        Command::Race(options) => run_race(&options),
        Command::Bench(Bench::Cost(options)) => {
            let json = open(&options.json)?;
            let figures = bench_cost::run(options.quick, &mut progress())?;
            print!("{}", figures.table());
            write(json, &figures)
        }
        #[cfg(target_os = "linux")]
        Command::Lab(options) => lab::run(&options),
        #[cfg(target_os = "linux")]
        Command::LabHost => lab::host::main(),
    }
}

fn run_race(options: &Race) -> Result<()> {
    let json = open(&options.json)?;
    let svg = open(&options.svg)?;
    let figures = race::run(&options.options, &mut progress())?;
    print!("{}", figures.table());
    write(json, &figures)?;
    svg.map_or(Ok(()), |file| file.write_text(&figures.svg()))?;
    match figures.first_error() {
        Some(error) => bail!(error),
        None => Ok(()),
    }
}

fn run_demo(options: &Demo) -> Result<()> {
    let json = open(&options.json)?;
    let outcome = demo::run(demo::Options {
        seconds: options.seconds,
        load: options.load,
        seed: options.seed,
        driver: options.driver.into(),
    })?;
    print!("{}", outcome.table());
    write(json, &outcome)?;
    ensure!(
        outcome.errors == 0,
        "{} RPCs failed; the first: {}",
        outcome.errors,
        outcome.first_error.as_deref().unwrap_or("unknown")
    );
    Ok(())
}

fn run_soak(options: &Soak) -> Result<()> {
    let json = open(&options.json)?;
    let spinner = ProgressBar::new_spinner();
    let outcome = soak::run(options.minutes, &mut |what, rpcs| {
        spinner.set_message(format!("{what}, {rpcs} RPCs"));
        spinner.tick();
    });
    spinner.finish_and_clear();
    let outcome = outcome?;
    print!("{}", outcome.table());
    write(json, &outcome)?;
    let why = outcome.first_error.as_deref().unwrap_or("");
    ensure!(
        outcome.failures.is_empty(),
        "{} {why}",
        outcome.failures.join("; ")
    );
    Ok(())
}

fn run_call(options: &Call) -> Result<()> {
    let json = open(&options.json)?;
    let outcome = serve::call(serve::Call {
        to: options.to,
        size: options.size,
        count: options.count,
        wait: wait(options.spin),
    })?;
    if outcome.rpcs > 0 {
        print!("{}", outcome.summary());
    }
    write(json, &outcome)?;
    match outcome.error {
        Some(error) => bail!(error),
        None => Ok(()),
    }
}

fn wait(spin: bool) -> Wait {
    if spin { Wait::Spin } else { Wait::Sleep }
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes) if (0.05..=10_000.0).contains(&minutes) => Ok(minutes),
        _ => Err("not a number from 0.05 to 10000".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number from 0.1 to 3600".into()),
    }
}

fn fraction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(fraction) if (0.001..=1.0).contains(&fraction) => Ok(fraction),
        _ => Err("not a number from 0.001 to 1".into()),
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|error| error.to_string())?;
    found.next().ok_or_else(|| "no such address".into())
}

fn open(path: &Option<PathBuf>) -> Result<Option<JsonFile>> {
    path.as_deref().map(JsonFile::open).transpose()
}

fn write(file: Option<JsonFile>, value: &impl Serialize) -> Result<()> {
    file.map_or(Ok(()), |file| file.write(value))
}

/// A progress bar over runs; nothing where there is no terminal.
fn progress() -> impl FnMut(usize, usize) {
    let bar = bar("[{bar:40}] run {pos} of {len}, {eta} left");
    move |done, of| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
        if done == of {
            bar.finish_and_clear();
        }
    }
}

/// A progress bar of this form; nothing where there is no terminal.
pub(crate) fn bar(form: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(form);
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
