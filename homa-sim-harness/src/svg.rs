//! Plots as SVG: times by message length, and slowdown over equal shares of the messages.

use std::fmt::Write;

use crate::report::Report;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 62.0;

/// Colours that stay apart for the colour-blind (Okabe and Ito).
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d1f",
];

/// One line of a plot.
struct Curve {
    name: String,
    colour: &'static str,
    /// Dash pattern; empty: solid.
    dash: &'static str,
    points: Vec<(f64, f64)>,
}

/// How values map to the plot.
struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    /// From 0 to 1 along the axis.
    fn place(&self, value: f64) -> f64 {
        let scale = |v: f64| if self.log { v.max(1e-12).log10() } else { v };
        (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))
    }

    /// Whole decades around the values.
    fn decades(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values
            .filter(|value| *value > 0.0)
            .fold((f64::INFINITY, 0.0f64), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        if low > high {
            return Self {
                low: 1.0,
                high: 10.0,
                log: true,
            };
        }
        let low = 10f64.powf(low.log10().floor());
        Self {
            low,
            high: 10f64.powf(high.log10().ceil()).max(low * 10.0),
            log: true,
        }
    }

    /// Marked values, and those between them that get a faint line.
    fn grid(&self) -> (Vec<(f64, String)>, Vec<f64>) {
        if self.log {
            let ticks = self.decade_ticks();
            let between = ticks
                .iter()
                .flat_map(|tick| (2..10).map(move |step| tick.0 * f64::from(step)))
                .filter(|value| *value < self.high)
                .collect();
            return (ticks, between);
        }
        let step = (self.high - self.low) / 6.0;
        let at = |n: f64| self.low + step * n;
        let ticks = (0..=6).map(|n| (at(f64::from(n)), format!("{:.0}", at(f64::from(n)))));
        let between = (0..6).map(|n| at(f64::from(n) + 0.5)).collect();
        (ticks.collect(), between)
    }

    fn decade_ticks(&self) -> Vec<(f64, String)> {
        let (first, last) = (
            self.low.log10().round() as i32,
            self.high.log10().round() as i32,
        );
        (first..=last)
            .map(|power| {
                let value = 10f64.powi(power);
                (value, short(value))
            })
            .collect()
    }
}

/// 1500 as 1.5 K, and so on.
fn short(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "K"),
        v => (v, ""),
    };
    let digits = if value >= 100.0 || value.fract() < 0.05 {
        0
    } else {
        1
    };
    let digits = if value < 1.0 { 2 } else { digits };
    format!("{value:.digits$}{unit}")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

struct Plot<'a> {
    title: &'a str,
    x_name: &'a str,
    y_name: &'a str,
    x: Axis,
    y: Axis,
    x_ticks: Vec<(f64, String)>,
    curves: Vec<Curve>,
    note: &'a str,
}

impl Plot<'_> {
    fn draw(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let x = |value: f64| LEFT + self.x.place(value) * (right - LEFT);
        let y = |value: f64| bottom - self.y.place(value) * (bottom - TOP);
        writeln!(
            out,
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="Helvetica, Arial, sans-serif" font-size="13">
<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>
<text x="{LEFT}" y="26" font-size="16" font-weight="bold">{}</text>"##,
            escape(self.title)
        )?;
        for (value, label) in &self.x_ticks {
            let at = x(*value);
            writeln!(
                out,
                r##"<line x1="{at:.1}" y1="{TOP}" x2="{at:.1}" y2="{bottom}" stroke="#dddddd"/>
<text x="{at:.1}" y="{:.1}" text-anchor="middle">{}</text>"##,
                bottom + 18.0,
                escape(label)
            )?;
        }
        let (marked, between) = self.y.grid();
        for value in between {
            let at = y(value);
            writeln!(
                out,
                r##"<line x1="{LEFT}" y1="{at:.1}" x2="{right}" y2="{at:.1}" stroke="#eeeeee"/>"##
            )?;
        }
        for (value, label) in marked {
            let at = y(value);
            writeln!(
                out,
                r##"<line x1="{LEFT}" y1="{at:.1}" x2="{right}" y2="{at:.1}" stroke="#bbbbbb"/>
<text x="{:.1}" y="{:.1}" text-anchor="end">{label}</text>"##,
                LEFT - 8.0,
                at + 4.0
            )?;
        }
        writeln!(
            out,
            r##"<rect x="{LEFT}" y="{TOP}" width="{:.1}" height="{:.1}" fill="none" stroke="#444444"/>
<text x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>
<text transform="translate(18 {:.1}) rotate(-90)" text-anchor="middle">{}</text>"##,
            right - LEFT,
            bottom - TOP,
            (LEFT + right) / 2.0,
            bottom + 42.0,
            escape(self.x_name),
            (TOP + bottom) / 2.0,
            escape(self.y_name)
        )?;
        for (row, curve) in self.curves.iter().enumerate() {
            let mut path = String::new();
            for (at, &(px, py)) in curve.points.iter().enumerate() {
                let command = if at == 0 { 'M' } else { 'L' };
                let py = py.clamp(self.y.low, self.y.high);
                write!(path, "{command}{:.1} {:.1} ", x(px), y(py))?;
            }
            let style = format!(
                r##"stroke="{}" stroke-width="2" stroke-dasharray="{}" fill="none""##,
                curve.colour, curve.dash
            );
            let at = TOP + 10.0 + 20.0 * row as f64;
            writeln!(
                out,
                r##"<path d="{}" {style}/>
<line x1="{:.1}" y1="{at:.1}" x2="{:.1}" y2="{at:.1}" {style}/>
<text x="{:.1}" y="{:.1}">{}</text>"##,
                path.trim_end(),
                right + 12.0,
                right + 44.0,
                right + 50.0,
                at + 4.0,
                escape(&curve.name)
            )?;
        }
        writeln!(
            out,
            r##"<text x="{LEFT}" y="{:.1}" font-size="11" fill="#666666">{}</text>
</svg>"##,
            HEIGHT - 6.0,
            escape(self.note)
        )
    }
}

/// A short account of where the figures come from.
fn setting(reports: &[Report]) -> String {
    reports.first().map_or_else(String::new, |report| {
        format!(
            "{}; {}, load {}, seed {}",
            report.topology, report.workload, report.load, report.seed
        )
    })
}

/// A line to draw.
#[derive(Clone, Debug)]
pub struct Line {
    /// What the legend says.
    pub name: String,
    /// Lines of one group have one colour.
    pub group: String,
    /// Dashed or solid.
    pub dashed: bool,
    /// Ascending in the first.
    pub points: Vec<(f64, f64)>,
}

/// A plot with both axes logarithmic. Groups get their colours in the order of their first lines.
#[must_use]
pub fn log_log(title: &str, x_name: &str, y_name: &str, lines: &[Line], note: &str) -> String {
    let mut groups: Vec<&str> = Vec::new();
    let mut curves = Vec::new();
    for line in lines {
        let group = groups.iter().position(|group| *group == line.group);
        let group = group.unwrap_or_else(|| {
            groups.push(&line.group);
            groups.len() - 1
        });
        curves.push(Curve {
            name: line.name.clone(),
            colour: COLOURS[group % COLOURS.len()],
            dash: if line.dashed { "5 4" } else { "" },
            points: line.points.clone(),
        });
    }
    let values = |f: fn(&(f64, f64)) -> f64| {
        Axis::decades(curves.iter().flat_map(|curve| curve.points.iter().map(f)))
    };
    let (x, y) = (values(|point| point.0), values(|point| point.1));
    Plot {
        title,
        x_name,
        y_name,
        x_ticks: x.decade_ticks(),
        x,
        y,
        curves,
        note,
    }
    .draw()
}

/// P50 and P99 of the time by message length, one colour a transport, both axes logarithmic.
#[must_use]
pub fn times(reports: &[Report]) -> String {
    let mut lines = Vec::new();
    for report in reports {
        for (name, dashed) in [("P99", false), ("P50", true)] {
            let points = report.bands.iter().map(|class| {
                let us = if dashed { class.p50_us } else { class.p99_us };
                (f64::from(class.max_bytes), us)
            });
            lines.push(Line {
                name: format!("{} {name}", report.transport),
                group: report.transport.clone(),
                dashed,
                points: points.collect(),
            });
        }
    }
    log_log(
        "Time of a message by its length",
        "message length, bytes",
        "time, µs",
        &lines,
        &setting(reports),
    )
}

/// The highest load that is sustained, by overcommitment.
#[must_use]
pub fn sustained(points: &[(u8, f64)], note: &str) -> String {
    let last = points.iter().map(|point| point.0).max().unwrap_or(8).max(2);
    Plot {
        title: "Highest load that is sustained",
        x_name: "overcommitment: messages granted at once",
        y_name: "load, per cent of the host links",
        x_ticks: (1..=last)
            .map(|count| (f64::from(count), count.to_string()))
            .collect(),
        x: Axis {
            low: 0.5,
            high: f64::from(last) + 0.5,
            log: false,
        },
        y: Axis {
            low: 40.0,
            high: 100.0,
            log: false,
        },
        curves: vec![Curve {
            name: "Homa".into(),
            colour: COLOURS[0],
            dash: "",
            points: points
                .iter()
                .map(|&(count, load)| (f64::from(count), load * 100.0))
                .collect(),
        }],
        note,
    }
    .draw()
}

/// A published curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    transport: String,
    /// Length, share of messages in per cent, P50 and P99 of the slowdown (only the last is drawn).
    points: Vec<(f64, f64, f64, f64)>,
}

/// Reads published curves for a workload from CSV with (at least) the columns workload, transport, message_bytes,
/// percent_of_messages, slowdown_p50 and slowdown_p99.
///
/// # Errors
/// One line that says what is missing or not a number.
pub fn read_published(text: &str, workload: &str) -> Result<Vec<Published>, String> {
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap_or("").split(',').collect();
    let column = |name: &str| {
        head.iter()
            .position(|column| *column == name)
            .ok_or_else(|| format!("published curves: no column is called '{name}'"))
    };
    let (of, by) = (column("workload")?, column("transport")?);
    let columns = [
        column("message_bytes")?,
        column("percent_of_messages")?,
        column("slowdown_p50")?,
        column("slowdown_p99")?,
    ];
    let mut curves: Vec<Published> = Vec::new();
    for (number, line) in lines.enumerate() {
        let cells: Vec<&str> = line.split(',').collect();
        if !cells
            .get(of)
            .is_some_and(|name| name.eq_ignore_ascii_case(workload))
        {
            continue;
        }
        let mut values = [0.0; 4];
        for (value, &column) in values.iter_mut().zip(&columns) {
            *value = cells
                .get(column)
                .and_then(|cell| cell.parse().ok())
                .ok_or_else(|| {
                    format!(
                        "published curves: line {} has no number in column {}",
                        number + 2,
                        column + 1
                    )
                })?;
        }
        let [bytes, share, p50, p99] = values;
        let transport = cells.get(by).copied().unwrap_or_default();
        let point = (bytes, share, p50, p99);
        match curves.iter_mut().find(|curve| curve.transport == transport) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Published {
                transport: transport.into(),
                points: vec![point],
            }),
        }
    }
    Ok(curves)
}

/// P50 and P99 of the slowdown; every tenth of the horizontal axis stands for a tenth of the messages, shortest first.
#[must_use]
pub fn slowdowns(reports: &[Report], published: &[Published]) -> String {
    let mut curves = Vec::new();
    let mut colours = COLOURS.iter().cycle();
    let mut ticks = Vec::new();
    for (report, colour) in reports.iter().zip(&mut colours) {
        let total = report
            .bands
            .iter()
            .map(|class| class.count)
            .sum::<u64>()
            .max(1) as f64;
        let shares: Vec<(f64, f64)> = report
            .bands
            .iter()
            .map(|class| {
                (
                    f64::from(class.max_bytes),
                    class.count as f64 * 100.0 / total,
                )
            })
            .collect();
        if ticks.is_empty() {
            ticks = decile_ticks(&shares);
        }
        for (name, dash) in [("P99", ""), ("P50", "5 4")] {
            let value = |at: usize| {
                let class = &report.bands[at];
                if name == "P99" {
                    class.p99_slowdown
                } else {
                    class.p50_slowdown
                }
            };
            curves.push(Curve {
                name: format!("{} {name}", report.transport),
                colour,
                dash,
                points: over_shares(shares.iter().map(|share| share.1), value),
            });
        }
    }
    for (curve, colour) in published.iter().zip(&mut colours) {
        curves.push(Curve {
            name: format!("published: {} P99", curve.transport),
            colour,
            dash: "2 3",
            points: over_shares(curve.points.iter().map(|point| point.1), |at| {
                curve.points[at].3
            }),
        });
    }
    let highest = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|point| point.1.max(1.0)));
    let y = Axis::decades(highest.chain([1.0]));
    Plot {
        title: "Slowdown by message length",
        x_name: "message length, bytes; every tenth of the axis is a tenth of the messages",
        y_name: "time ÷ best possible time",
        x: Axis {
            low: 0.0,
            high: 100.0,
            log: false,
        },
        y,
        x_ticks: ticks,
        curves,
        note: &setting(reports),
    }
    .draw()
}

/// A value per length drawn from where its share of the messages begins to where it ends.
fn over_shares(shares: impl Iterator<Item = f64>, value: impl Fn(usize) -> f64) -> Vec<(f64, f64)> {
    let mut upto = 0.0;
    let mut points = Vec::new();
    for (at, share) in shares.enumerate() {
        let end: f64 = upto + share;
        points.push(((upto + end) / 2.0, value(at)));
        upto = end;
    }
    points
}

/// The length at each tenth of the messages.
fn decile_ticks(shares: &[(f64, f64)]) -> Vec<(f64, String)> {
    let mut ticks = Vec::new();
    let mut upto = 0.0;
    for &(bytes, share) in shares {
        upto += share;
        while ticks.len() < 10 && upto + 1e-9 >= 10.0 * (ticks.len() + 1) as f64 {
            let at = 10.0 * (ticks.len() + 1) as f64;
            ticks.push((at, short(bytes)));
        }
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_curves_are_read_by_column_name() {
        let text = "workload,transport,message_bytes,percent_of_messages,slowdown_p99,slowdown_p50\n\
                    W2,Homa,2,60,1.5,1.2\nW2,Homa,9,40,1.6,1.3\nW3,Homa,3,100,9,8\n";
        let curves = read_published(text, "w2").unwrap();
        assert_eq!(curves.len(), 1);
        assert_eq!(
            curves[0].points,
            [(2.0, 60.0, 1.2, 1.5), (9.0, 40.0, 1.3, 1.6)]
        );
        assert!(
            read_published("a,b\n", "w2")
                .unwrap_err()
                .contains("workload")
        );
        let broken = text.replace("60", "many");
        assert!(
            read_published(&broken, "w2")
                .unwrap_err()
                .contains("line 2")
        );
    }

    #[test]
    fn axes_cover_their_values() {
        let axis = Axis::decades([3.0, 250.0].into_iter());
        assert_eq!((axis.low, axis.high), (1.0, 1000.0));
        assert!((axis.place(10.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(axis.decade_ticks().len(), 4);
        assert_eq!(short(1500.0), "1.5K");
        assert_eq!(short(10_000_000.0), "10M");
    }

    #[test]
    fn tenths_are_marked_with_their_length() {
        let ticks = decile_ticks(&[(10.0, 25.0), (20.0, 75.0)]);
        assert_eq!(ticks.len(), 10);
        assert_eq!(ticks[1], (20.0, "10".into()));
        assert_eq!(ticks[2], (30.0, "20".into()));
    }
}
