//! Small charts as SVG: grouped bars and lines, with axes, units and a legend.

use std::fmt::Write;

/// Names and one value a group (or x position) each; a missing value leaves a gap.
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// A value for each group.
    pub values: Vec<Option<f64>>,
}

/// A chart.
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// The horizontal axis.
    pub x_label: String,
    /// The vertical axis, with its unit.
    pub y_label: String,
    /// Names of the groups, or positions along the x axis.
    pub groups: Vec<String>,
    /// What is drawn in each group.
    pub series: Vec<Series>,
    /// A horizontal line with its name.
    pub line: Option<(String, f64)>,
    /// Lines through the groups instead of bars.
    pub lines: bool,
    /// A logarithmic y axis.
    pub log: bool,
}

/// A palette that colour-blind readers can tell apart; ours is the first.
const COLOURS: [&str; 10] =
    ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b", "#bcbd22", "#5e3c99"];
const LEFT: f64 = 76.0;
const TOP: f64 = 84.0;
const HEIGHT: f64 = 320.0;
const BOTTOM: f64 = 78.0;

struct Scale {
    lo: f64,
    hi: f64,
    step: f64,
    log: bool,
}

impl Scale {
    fn new(chart: &Chart) -> Self {
        let values = chart.series.iter().flat_map(|s| s.values.iter().flatten().copied());
        let all: Vec<f64> =
            values.chain(chart.line.iter().map(|l| l.1)).filter(|v| v.is_finite() && *v >= 0.0).collect();
        let max = all.iter().copied().fold(0.0, f64::max);
        if chart.log {
            let min = all.iter().copied().filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
            let (min, max) = if min.is_finite() { (min, max) } else { (1.0, 10.0) };
            let hi = 10_f64.powf(max.log10().floor() + 1.0);
            return Self { lo: 10_f64.powf(min.log10().floor()).min(hi / 10.0), hi, step: 0.0, log: true };
        }
        let step = tick(max.max(1e-9) * 1.05);
        Self { lo: 0.0, hi: ((max * 1.05 / step).ceil() * step).max(step), step, log: false }
    }

    fn y(&self, v: f64) -> f64 {
        let part = if self.log {
            (v.max(self.lo).log10() - self.lo.log10()) / (self.hi.log10() - self.lo.log10())
        } else {
            (v - self.lo) / (self.hi - self.lo)
        };
        TOP + HEIGHT * (1.0 - part.clamp(0.0, 1.0))
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decades = (self.hi / self.lo).log10().round() as i32;
            return (0..=decades).map(|d| self.lo * 10_f64.powi(d)).collect();
        }
        (0..=(self.hi / self.step).round() as i64).map(|i| i as f64 * self.step).collect()
    }
}

/// A round step that gives about six ticks.
fn tick(max: f64) -> f64 {
    let base = 10_f64.powf((max / 6.0).log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * base).find(|s| max / s <= 6.5).unwrap_or(10.0 * base)
}

fn number(v: f64) -> String {
    match v.abs() {
        a if a >= 1e6 => format!("{v:.1e}"),
        a if a >= 100.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{v:.1}").trim_end_matches(".0").to_owned(),
        0.0 => "0".to_owned(),
        a => {
            // Three significant digits.
            let places = (2 - a.log10().floor() as i32).clamp(2, 9) as usize;
            let text = format!("{v:.places$}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn text(out: &mut String, at: (f64, f64), size: u32, attributes: &str, words: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"{size}\" {attributes}>{}</text>",
        at.0,
        at.1,
        escape(words)
    );
}

impl Chart {
    /// The chart as an SVG file.
    pub fn svg(&self) -> String {
        let bars = self.series.len().max(1) as f64;
        let group = if self.lines { 70.0 } else { (bars * 13.0 + 22.0).max(64.0) };
        let longest = self.groups.iter().flat_map(|g| g.split(", ")).map(|w| w.chars().count()).max().unwrap_or(0);
        let group = group.max(6.6 * longest as f64 + 8.0);
        let title = 9.6 * self.title.chars().count() as f64;
        let plot = (group * self.groups.len().max(1) as f64).max(420.0).max(title);
        let group = plot / self.groups.len().max(1) as f64;
        let (legend, rows) = self.legend(plot);
        let width = LEFT + plot + 24.0;
        let height = TOP + HEIGHT + BOTTOM + 20.0 * rows;
        let scale = Scale::new(self);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" fill=\"#222\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        text(&mut out, (LEFT, 26.0), 16, "font-weight=\"bold\"", &self.title);
        let y_label = format!("{}{}", self.y_label, if self.log { " (logarithmic)" } else { "" });
        text(&mut out, (LEFT - 60.0, TOP - 16.0), 12, "", &y_label);
        self.axes(&mut out, &scale, plot, group);
        if self.lines {
            self.draw_lines(&mut out, &scale, group);
        } else {
            self.draw_bars(&mut out, &scale, group);
        }
        if let Some((name, v)) = &self.line {
            let y = scale.y(*v);
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#000\" stroke-dasharray=\"6 4\"/>",
                LEFT + plot
            );
            text(&mut out, (LEFT + plot, y - 5.0), 11, "text-anchor=\"end\"", &format!("{name}: {}", number(*v)));
        }
        text(&mut out, (LEFT + plot / 2.0, TOP + HEIGHT + 46.0), 12, "text-anchor=\"middle\"", &self.x_label);
        out += &legend;
        out + "</svg>\n"
    }

    fn axes(&self, out: &mut String, scale: &Scale, plot: f64, group: f64) {
        for v in scale.ticks() {
            let y = scale.y(v);
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>",
                LEFT + plot
            );
            text(out, (LEFT - 6.0, y + 4.0), 11, "text-anchor=\"end\"", &number(v));
        }
        let base = TOP + HEIGHT;
        let _ = writeln!(out, "<path d=\"M{LEFT} {TOP}V{base}H{:.1}\" fill=\"none\" stroke=\"#222\"/>", LEFT + plot);
        for (g, name) in self.groups.iter().enumerate() {
            let x = LEFT + group * (g as f64 + 0.5);
            for (line, words) in name.split(", ").enumerate() {
                text(out, (x, base + 16.0 + 13.0 * line as f64), 11, "text-anchor=\"middle\"", words);
            }
        }
    }

    fn draw_bars(&self, out: &mut String, scale: &Scale, group: f64) {
        let bar = ((group - 16.0) / self.series.len().max(1) as f64).min(40.0);
        let inset = (group - bar * self.series.len() as f64) / 2.0;
        let base = TOP + HEIGHT;
        for (s, series) in self.series.iter().enumerate() {
            let colour = COLOURS[s % COLOURS.len()];
            for (g, v) in series.values.iter().enumerate() {
                let Some(v) = v.filter(|v| v.is_finite()) else { continue };
                let (x, y) = (LEFT + group * g as f64 + inset + bar * s as f64, scale.y(v));
                let _ = writeln!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"><title>{} {}: {}</title></rect>",
                    (bar - 1.0).max(1.0),
                    base - y,
                    escape(&series.name),
                    escape(&self.groups[g]),
                    number(v)
                );
                // The value above the bar, upright.
                let (tx, ty) = (x + bar / 2.0 + 3.0, y - 3.0);
                let turn = format!("transform=\"rotate(-90 {tx:.1} {ty:.1})\" fill=\"#444\"");
                text(out, (tx, ty), 9, &turn, &number(v));
            }
        }
    }

    fn draw_lines(&self, out: &mut String, scale: &Scale, group: f64) {
        for (s, series) in self.series.iter().enumerate() {
            let colour = COLOURS[s % COLOURS.len()];
            let points: Vec<(f64, f64)> = series
                .values
                .iter()
                .enumerate()
                .filter_map(|(g, v)| v.filter(|v| v.is_finite()).map(|v| (LEFT + group * (g as f64 + 0.5), scale.y(v))))
                .collect();
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                path.join(" ")
            );
            for (x, y) in points {
                let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
        }
    }

    /// The legend below the plot, and how many rows it has.
    fn legend(&self, plot: f64) -> (String, f64) {
        let (mut out, mut x, mut row) = (String::new(), 0.0, 0.0);
        for (s, series) in self.series.iter().enumerate() {
            let wide = 30.0 + 7.2 * series.name.len() as f64;
            if x > 0.0 && x + wide > plot {
                (x, row) = (0.0, row + 1.0);
            }
            let (left, y) = (LEFT + x, TOP + HEIGHT + 62.0 + 20.0 * row);
            let colour = COLOURS[s % COLOURS.len()];
            let _ = writeln!(out, "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
            text(&mut out, (left + 17.0, y + 10.5), 12, "", &series.name);
            x += wide;
        }
        (out, row + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        for max in [0.003, 0.9, 1.0, 7.0, 286.0, 12_345.0] {
            let series = Series { name: "s".to_owned(), values: vec![Some(max), None] };
            let chart = Chart {
                title: String::new(),
                x_label: String::new(),
                y_label: String::new(),
                groups: vec!["a".to_owned(), "b".to_owned()],
                series: vec![series],
                line: None,
                lines: false,
                log: false,
            };
            let scale = Scale::new(&chart);
            let ticks = scale.ticks();
            assert!(scale.hi >= max && scale.hi <= 2.0 * max, "{max}: {}", scale.hi);
            assert!((3..=9).contains(&ticks.len()), "{max}: {ticks:?}");
            assert!((ticks[ticks.len() - 1] - scale.hi).abs() < 1e-9 * scale.hi, "{max}: {ticks:?}");
            assert!(chart.svg().matches("<rect").count() == 3, "background, one bar, one entry of the legend");
        }
    }
}
