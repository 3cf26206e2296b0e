//! What was measured, beside what it should be.

/// One measured figure.
#[derive(Debug)]
pub(crate) struct Figure {
    what: String,
    measured: f64,
    unit: &'static str,
    target: Target,
}

#[derive(Debug)]
enum Target {
    AtMost(f64),
    AtLeast(f64),
    Exactly(f64),
    /// Told for the reader alone.
    Told,
}

impl Figure {
    pub(crate) fn at_most(what: impl Into<String>, measured: f64, most: f64) -> Figure {
        Figure { what: what.into(), measured, unit: "x", target: Target::AtMost(most) }
    }

    pub(crate) fn at_least(what: impl Into<String>, measured: f64, least: f64) -> Figure {
        Figure { what: what.into(), measured, unit: "x", target: Target::AtLeast(least) }
    }

    pub(crate) fn exactly(what: impl Into<String>, measured: f64, want: f64) -> Figure {
        Figure { what: what.into(), measured, unit: "", target: Target::Exactly(want) }
    }

    pub(crate) fn told(what: impl Into<String>, measured: f64) -> Figure {
        Figure { what: what.into(), measured, unit: "", target: Target::Told }
    }

    pub(crate) fn unit(self, unit: &'static str) -> Figure {
        Figure { unit, ..self }
    }

    pub(crate) fn is_met(&self) -> bool {
        match self.target {
            Target::AtMost(most) => self.measured <= most,
            Target::AtLeast(least) => self.measured >= least,
            Target::Exactly(want) => (self.measured - want).abs() < f64::EPSILON,
            Target::Told => true,
        }
    }
}

/// A table of them.
pub(crate) fn print(figures: &[Figure]) {
    let width = figures.iter().map(|figure| figure.what.len()).max().unwrap_or(0);
    println!("{:width$}  {:>12}  {:>12}", "what", "measured", "target");
    for figure in figures {
        let Figure { what, measured, unit, target } = figure;
        let verdict = match (figure.is_met(), target) {
            (true, _) => "ok",
            (false, Target::AtLeast(_)) => "under",
            (false, _) => "over",
        };
        let (target, verdict) = match target {
            Target::AtMost(most) => (format!("<= {}", number(*most, unit)), verdict),
            Target::AtLeast(least) => (format!(">= {}", number(*least, unit)), verdict),
            Target::Exactly(want) => (format!("= {}", number(*want, unit)), verdict),
            Target::Told => (String::new(), ""),
        };
        let line =
            format!("{what:width$}  {:>12}  {target:>12}  {verdict}", number(*measured, unit));
        println!("{}", line.trim_end());
    }
}

fn number(value: f64, unit: &str) -> String {
    let digits = if value.fract() == 0.0 || value >= 1000.0 { 0 } else { 2 };
    let space = if unit.len() > 1 { " " } else { "" };
    format!("{value:.digits$}{space}{unit}")
}
