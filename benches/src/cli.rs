//! The command line.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::report::JsonFile;
use crate::{bench_core, bench_driver, demo};

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
    /// Measure.
    #[command(subcommand)]
    Bench(Bench),
}

/// Where packets meet the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
enum Driver {
    /// UDP sockets and epoll.
    #[default]
    Mio,
}

#[derive(Debug, Args)]
struct Demo {
    /// Seconds of load, half over each transport.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Share of the load that the slower transport can carry.
    #[arg(long, default_value_t = 0.5)]
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

#[derive(Debug, Subcommand)]
enum Bench {
    /// The protocol alone: two endpoints joined in memory in one thread.
    Core(Measure),
    /// The driver on loopback, beside raw UDP and TCP.
    Driver(Measure),
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

/// Runs a command.
pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Demo(options) => run_demo(&options),
        Command::Bench(Bench::Core(options)) => {
            let json = open(&options.json)?;
            let figures = bench_core::run(options.quick, &mut progress())?;
            print!("{}", figures.table());
            write(json, &figures)
        }
        Command::Bench(Bench::Driver(options)) => {
            let json = open(&options.json)?;
            let figures = bench_driver::run(options.quick, &mut progress())?;
            print!("{}", figures.table());
            write(json, &figures)
        }
    }
}

fn run_demo(options: &Demo) -> Result<()> {
    let json = open(&options.json)?;
    let Driver::Mio = options.driver;
    let outcome = demo::run(demo::Options {
        seconds: options.seconds,
        load: options.load,
        seed: options.seed,
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

fn open(path: &Option<PathBuf>) -> Result<Option<JsonFile>> {
    path.as_deref().map(JsonFile::open).transpose()
}

fn write(file: Option<JsonFile>, value: &impl Serialize) -> Result<()> {
    file.map_or(Ok(()), |file| file.write(value))
}

/// A progress bar over runs; nothing where there is no terminal.
fn progress() -> impl FnMut(usize, usize) {
    let style = ProgressStyle::with_template("[{bar:40}] run {pos} of {len}, {eta} left");
    let bar =
        ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    move |done, of| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
        if done == of {
            bar.finish_and_clear();
        }
    }
}
