//! `cora-bench report`: figures (SVG) and tables (markdown) from the results of a suite.

use crate::analytic::geomean;
use crate::record::Record;
use crate::suite::{self, Line, PARTS};
use crate::svg::{Chart, Series};
use crate::targets;
use cora::console::Console;
use cora::driver::Failure;
use std::fmt::Write;
use std::path::PathBuf;

/// Arguments of `cora-bench report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder of `results.jsonl`.
    #[arg(long, default_value = "target/results")]
    pub dir: PathBuf,
    /// Where figures and `report.md` go; the same folder if not given.
    #[arg(long)]
    pub out: Option<PathBuf>,
}

/// Writes `report.md` and a figure for each part and dataset or batch; a result for each file.
///
/// # Errors
/// `E0608` no results, or a line that is not one; `E0600` a folder that cannot be written.
pub fn run(args: &Args, console: &mut dyn Console) -> Result<(), Failure> {
    let lines = suite::read(&args.dir)?;
    if lines.is_empty() {
        return Err(Failure::User(format!(
            "error[E0608]: there are no results in `{}`\n  help: take them with `cora bench suite --dir {0}`",
            args.dir.display()
        )));
    }
    let out = args.out.as_ref().unwrap_or(&args.dir);
    let mut report = heading(&lines);
    report += &targets::table(&lines);
    let mut files = Vec::new();
    for (part, what) in PARTS {
        let of_part: Vec<&Line> = lines.iter().filter(|l| l.part == part).collect();
        if of_part.is_empty() {
            continue;
        }
        let _ = writeln!(report, "\n## {part}\n\n{what}.\n");
        for (name, chart) in charts(part, &of_part) {
            let _ = writeln!(report, "![{}]({name}.svg)\n", chart.title);
            files.push((format!("{name}.svg"), chart.svg()));
        }
        report += &table(&of_part);
    }
    files.push(("report.md".to_owned(), report));
    for (name, text) in &files {
        let path = out.join(name);
        let written = std::fs::create_dir_all(out).and_then(|()| std::fs::write(&path, text));
        written.map_err(|e| Failure::User(format!("error[E0600]: cannot write `{}`: {e}", path.display())))?;
        console.result(&path.display().to_string());
    }
    Ok(())
}

fn heading(lines: &[Line]) -> String {
    let records = || lines.iter().filter_map(|l| l.bench.as_ref());
    let mut t = String::from("# Measurements\n\n");
    let machine = records().next().map_or("?", |r| r.machine.as_str());
    let (first, last) = (records().map(|r| r.time).min(), records().map(|r| r.time).max());
    let _ = writeln!(
        t,
        "{machine}. Taken {} to {} (UTC). FMA peak of all threads: {:.1} GFLOP/s at best, {:.1} the median of the\n\
         measurements. Times are medians of turns; `range` is the least and greatest ratio of a round.\n",
        date(first.unwrap_or(0)),
        date(last.unwrap_or(0)),
        records().map(|r| r.peak_gflops).fold(0.0, f64::max),
        median(records().map(|r| r.peak_gflops).collect()),
    );
    t
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied().unwrap_or(0.0)
}

/// `2026-11-21 05:40` of seconds since 1970 (days to a date after Howard Hinnant's `civil_from_days`).
pub fn date(seconds: u64) -> String {
    let (days, rest) = ((seconds / 86_400) as i64 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let (d, m) = (of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let y = era * 400 + year + i64::from(m <= 2);
    format!("{y}-{m:02}-{d:02} {:02}:{:02}", rest / 3600, rest % 3600 / 60)
}

/// One row a measurement: ours, then each peer's time over ours.
fn table(lines: &[&Line]) -> String {
    let mut t = String::new();
    let records: Vec<&Record> = lines.iter().filter_map(|l| l.bench.as_ref()).collect();
    if !records.is_empty() {
        let peers = peers(&records);
        t += "| | ours ms | range | useful GFLOP/s | of peak | with prelude | with 1/6 |";
        peers.iter().for_each(|p| {
            let _ = write!(t, " {p} |");
        });
        t += "\n|---|---|---|---|---|---|---|";
        t += &"---|".repeat(peers.len());
        t.push('\n');
        for r in &records {
            row(&mut t, r, &peers);
        }
        let ratios = |p: &String| -> Vec<f64> { records.iter().filter_map(|r| over(r, p)).collect() };
        t += "| geomean | | | | | | |";
        for p in &peers {
            let _ = write!(t, " {:.3} |", geomean(&ratios(p)));
        }
        t += "\n\nColumns of peers: their time over ours (above 1, ours is faster); a dash: it did not run.\n";
    }
    for p in lines.iter().filter_map(|l| l.prelude.as_ref()) {
        let _ = writeln!(
            t,
            "\n{}, batch {}:\n\n| tables | bytes | ms | min | max | copy ms |\n|---|---|---|---|---|---|",
            p.dataset, p.batch
        );
        for r in &p.rows {
            let _ = writeln!(
                t,
                "| {} | {} | {:.4} | {:.4} | {:.4} | {} |",
                r.name,
                r.bytes,
                r.times.median_ms,
                r.times.min_ms,
                r.times.max_ms,
                r.copy.map_or("-".to_owned(), |c| format!("{:.4}", c.median_ms))
            );
        }
    }
    t
}

fn row(t: &mut String, r: &Record, peers: &[String]) {
    let share = |extra: f64| {
        r.useful_gflops.map_or("-".to_owned(), |_| match r.peak_gflops > 0.0 {
            true => format!("{:.3}", r.useful_flops / (r.ours.median_ms + extra) / 1e6 / r.peak_gflops),
            false => "-".to_owned(),
        })
    };
    let _ = write!(
        t,
        "| {} {}, {} | {:.4} | {:.4}..{:.4} | {} | {} | {} | {} |",
        r.workload,
        r.label(),
        r.place(),
        r.ours.median_ms,
        r.ours.min_ms,
        r.ours.max_ms,
        r.useful_gflops.map_or("-".to_owned(), |g| format!("{g:.1}")),
        share(0.0),
        share(r.prelude.median_ms),
        share(r.prelude.median_ms / 6.0),
    );
    for p in peers {
        match over(r, p) {
            Some(x) => {
                let _ = write!(t, " {x:.3} |");
            }
            None => *t += " - |",
        }
    }
    t.push('\n');
}

/// The names of all peers of some measurements, in order.
fn peers(records: &[&Record]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for p in records.iter().flat_map(|r| &r.peers) {
        if !names.contains(&p.name) {
            names.push(p.name.clone());
        }
    }
    names
}

/// A peer's time over ours.
pub fn over(r: &Record, peer: &str) -> Option<f64> {
    r.peers.iter().find(|p| p.name == peer).map(|p| p.over_ours)
}

/// The figures of a part: a file's name and its chart.
fn charts(part: &str, lines: &[&Line]) -> Vec<(String, Chart)> {
    let records: Vec<&Record> = lines.iter().filter_map(|l| l.bench.as_ref()).collect();
    match part {
        "prelude" => lines.iter().filter_map(|l| l.prelude.as_ref()).map(prelude_chart).collect(),
        "operators" | "overheads" => split(&records, &|r| r.label())
            .into_iter()
            .map(|(label, of)| {
                let name = format!("{part}-{}", label.replace(", batch ", "-").replace('=', ""));
                let alone = part == "operators";
                let what = if alone { "Encoder operators alone" } else { "Ragged against a constant length" };
                let mut chart = chart(&format!("{what}: {label}"), "operator", &of, &|r| r.workload.clone(), &time);
                chart.y_label = "milliseconds, less is better".to_owned();
                chart.log = alone;
                (name, chart)
            })
            .collect(),
        "elementwise" => split(&records, &|r| r.workload.clone())
            .into_iter()
            .map(|(w, of)| {
                let title = format!("{w}: two lower triangles");
                let mut chart = chart(&title, "n, rows of the matrices", &of, &|r| size(r), &bandwidth);
                chart.y_label = "GB/s of the three triangles, more is better".to_owned();
                (w, chart)
            })
            .collect(),
        "vgemm" | "trmm" => {
            let x = if part == "vgemm" { "products in the batch" } else { "n, rows of the matrices" };
            let title = if part == "vgemm" { "Products of different sizes" } else { "Triangular times dense matrix" };
            let mut c = chart(title, x, &records, &size, &useful);
            c.lines = true;
            vec![(part.to_owned(), with_peak(c, &records))]
        }
        "threads" => {
            let mut c = chart(
                "Encoder layer, mnli, batch 64: threads",
                "threads",
                &records,
                &|r| r.threads.to_string(),
                &useful,
            );
            c.lines = true;
            vec![(part.to_owned(), c)]
        }
        "schedules" => split(&records, &|r| r.workload.clone())
            .into_iter()
            .map(|(w, of)| {
                let mut c = chart(&format!("{w} on mnli: schedules"), "batch", &of, &size, &useful);
                c.lines = true;
                (format!("schedules-{w}"), with_peak(c, &of))
            })
            .collect(),
        _ => split(&records, &|r| r.batch.unwrap_or(0).to_string())
            .into_iter()
            .map(|(b, of)| {
                let title = format!("{}, batch {b}, {} threads", part_title(part), of[0].threads);
                let c = chart(&title, "dataset", &of, &|r| r.dataset.clone().unwrap_or_default(), &useful);
                (format!("{part}-{b}"), with_peak(c, &of))
            })
            .collect(),
    }
}

fn part_title(part: &str) -> &'static str {
    match part {
        "encoder" => "Encoder layer, f32",
        "mha" => "Multi-head attention, f32",
        "masked-sdpa" => "Causal attention, f32",
        _ => "Encoder layer, ours in f32 beside bfloat16",
    }
}

/// Groups in order of first appearance.
fn split<'a>(records: &[&'a Record], by: &dyn Fn(&Record) -> String) -> Vec<(String, Vec<&'a Record>)> {
    let mut out: Vec<(String, Vec<&Record>)> = Vec::new();
    for r in records {
        let key = by(r);
        match out.iter_mut().find(|g| g.0 == key) {
            Some(g) => g.1.push(r),
            None => out.push((key, vec![r])),
        }
    }
    out
}

fn size(r: &Record) -> String {
    r.size.or(r.batch).unwrap_or(0).to_string()
}

type Metric<'a> = &'a dyn Fn(&Record, f64) -> Option<f64>;

fn time(_: &Record, ms: f64) -> Option<f64> {
    Some(ms)
}

fn useful(r: &Record, ms: f64) -> Option<f64> {
    (r.useful_flops > 0.0).then(|| r.useful_flops / ms / 1e6)
}

fn bandwidth(r: &Record, ms: f64) -> Option<f64> {
    let n = r.size? as f64;
    Some(3.0 * 4.0 * n * (n + 1.0) / 2.0 / ms / 1e6)
}

/// Ours and every peer of some measurements.
fn chart(title: &str, x: &str, records: &[&Record], group: &dyn Fn(&Record) -> String, metric: Metric) -> Chart {
    let mut series =
        vec![Series { name: "ours".to_owned(), values: records.iter().map(|r| metric(r, r.ours.median_ms)).collect() }];
    for name in peers(records) {
        let of = |r: &&Record| r.peers.iter().find(|p| p.name == name).and_then(|p| metric(r, p.times.median_ms));
        let values = records.iter().map(of).collect();
        let name = if name == "padded" { "ours, padded".to_owned() } else { name };
        series.push(Series { name, values });
    }
    Chart {
        title: title.to_owned(),
        x_label: x.to_owned(),
        y_label: "useful GFLOP/s, more is better".to_owned(),
        groups: records.iter().map(|r| group(r)).collect(),
        series,
        line: None,
        lines: false,
        log: false,
    }
}

fn with_peak(mut chart: Chart, records: &[&Record]) -> Chart {
    let peak = median(records.iter().map(|r| r.peak_gflops).collect());
    chart.line = Some(("FMA peak of the machine, measured".to_owned(), peak));
    chart
}

fn prelude_chart(p: &crate::preludes::PreludeRecord) -> (String, Chart) {
    let chart = Chart {
        title: format!("Building the tables of a six-layer encoder: {}, batch {}", p.dataset, p.batch),
        x_label: "tables".to_owned(),
        y_label: "milliseconds, less is better".to_owned(),
        groups: p.rows.iter().map(|r| r.name.clone()).collect(),
        series: vec![Series {
            name: "build time".to_owned(),
            values: p.rows.iter().map(|r| Some(r.times.median_ms)).collect(),
        }],
        line: None,
        lines: false,
        log: true,
    };
    (format!("prelude-{}-{}", p.dataset, p.batch), chart)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00");
        assert_eq!(date(951_782_400), "2000-02-29 00:00");
        assert_eq!(date(1_795_239_600), "2026-11-21 05:40");
    }
}
