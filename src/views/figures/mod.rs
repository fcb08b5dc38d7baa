//! Pictures of reports, made from their tables: a picture and a table cannot disagree, and a result that was read back
//! from JSON has the same pictures as the command that wrote it.
//!
//! To add a picture: a function from a [`Report`] to figures in a file here, and its name in `FIGURES`.

mod accuracy;
mod bars;
mod choices;
mod curves;
mod plans;
mod rows;
mod serving;

use collcast_reports::figure::Figure;
use collcast_reports::model::Report;

/// Makes figures of a report; none where its tables have nothing to draw.
type Make = fn(&Report) -> Vec<Figure>;

/// The figures of each kind of report, the most important first.
const FIGURES: [(&str, &[Make]); 13] = [
    ("sweep", &[curves::forecast, choices::taken, curves::scaling]),
    ("bench", &[curves::measured]),
    ("simulate", &[bars::parts, bars::links, bars::advice]),
    ("validate", &[accuracy::curves, accuracy::scatter, accuracy::residuals, accuracy::health]),
    ("compare", &[curves::ratios]),
    ("tune", &[choices::advised, bars::gains]),
    ("check", &[bars::findings]),
    ("plan", &[plans::options, plans::front, bars::parts, bars::memory, bars::sensitivities]),
    ("calibrate", &[bars::fitted, accuracy::scatter, accuracy::residuals]),
    ("trace", &[bars::ranks]),
    ("lint", &[]),
    ("serve", &[serving::requests]),
    ("transfer", &[bars::ways, serving::break_even]),
];

/// Adds the figures of a report, behind those that it has.
pub fn add(report: &mut Report) {
    let makes = FIGURES.iter().find(|(kind, _)| *kind == report.kind).map_or(&[][..], |(_, makes)| makes);
    let made: Vec<Figure> = makes.iter().flat_map(|make| make(report)).collect();
    report.figures.extend(made);
}
