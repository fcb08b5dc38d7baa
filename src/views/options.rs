//! Machines and counts of GPUs beside each other, as a report.

use collcast_reports::model::{Bar, Cell, Column, Report, Status, Table, Verdict};
use serde_json::{Map, Value, json};

use super::VERSION;
use super::plan::{counted, described, extra};
use crate::plan::{Choice, Options, Pick, of_gpus};

impl Options {
    /// The options as a report.
    pub fn report(&self) -> Report {
        let mut report = Report::new("plan", VERSION);
        report.predicted = true;
        report.inputs.clone_from(&self.inputs);
        report.assumptions.clone_from(&self.notes);
        report.warnings.clone_from(&self.warnings);
        report.tables.push(self.table());
        let refused = |option: &Choice| Some(format!("{}: {}", option.name, option.plan.as_ref().err()?));
        report.warnings.extend(self.options.iter().filter_map(refused));
        report.extra = Map::from_iter([("options".to_owned(), self.options.iter().map(option).collect())]);
        report.verdict = Some(self.verdict());
        report
    }

    fn runs(&self) -> bool {
        self.options.iter().any(|o| o.plan.as_ref().is_ok_and(|plan| plan.whole.is_some()))
    }

    fn priced(&self) -> bool {
        self.options.iter().any(|o| o.price.is_some())
    }

    fn table(&self) -> Table {
        let mut columns = vec![
            Column::text("name", "option"),
            Column::text("machine", "machine"),
            Column::number("gpus", "GPUs"),
            Column::text("layout", "best layout"),
            Column::number("step_s", "step s"),
            Column::number("tokens_per_step", "tokens/step"),
            Column::number("tokens_per_s_per_gpu", "tokens/s/GPU"),
            Column::number("tflops_per_gpu", "TFLOP/s/GPU"),
            Column::number("mfu_percent", "MFU %"),
            Column::number("efficiency_percent", "efficiency %"),
        ];
        let named = self.options.iter().any(|option| option.name != by_count(option));
        if !named {
            columns.remove(0);
        }
        if self.runs() {
            columns.extend([
                Column::number("days", "days").barred(Bar::OfLargest),
                Column::number("days_low", "from"),
                Column::number("days_high", "to"),
                Column::number("gpu_hours", "GPU hours"),
            ]);
        }
        if self.priced() {
            columns.push(Column::number("cost", "cost"));
        }
        columns.push(Column::text("front", "Pareto front"));
        let width = columns.len();
        let model = self.options.iter().find_map(|o| o.plan.as_ref().ok().map(described));
        let mut table = Table::new("comparison", format!("options to train {}", model.unwrap_or_default()), columns);
        for option in &self.options {
            let mut row: Vec<Cell> = if named { vec![option.name.as_str().into()] } else { Vec::new() };
            row.extend([option.machine.as_str().into(), option.gpus.into()]);
            match &option.plan {
                Ok(plan) => {
                    let Some(best) = plan.layouts.first() else { continue };
                    row.extend([
                        best.text.as_str().into(),
                        Cell::float(best.step.seconds, 3),
                        Cell::float(plan.tokens_per_step, 0),
                        Cell::float(best.tokens_per_s_per_gpu, 0),
                        Cell::float(best.tflops, 0),
                        Cell::float(100.0 * best.mfu, 1),
                        option.efficiency.map_or(Cell::Missing, |part| Cell::float(100.0 * part, 1)),
                    ]);
                    if let Some(whole) = &plan.whole {
                        let [low, middle, high] = whole.finish_days;
                        row.extend([middle, low, high].map(|days| Cell::float(days, 1)));
                        row.push(Cell::float(whole.gpu_hours, 0));
                        row.extend(whole.cost.filter(|_| self.priced()).map(|cost| Cell::float(cost, 0)));
                    }
                    let front = match (best.fits, option.on_front) {
                        (false, _) => "no: does not fit",
                        (true, true) => "yes",
                        (true, false) => "no",
                    };
                    row.push(front.into());
                }
                Err(_) => {
                    row.push("none".into());
                    row.resize(width - 1, Cell::Missing);
                    row.push("no: has no plan".into());
                }
            }
            table.push(row);
        }
        table
    }

    /// Whether options of one series have other numbers of tokens a step.
    fn other_batches(&self) -> bool {
        self.options.iter().any(|option| option.plan.is_ok() && option.efficiency.is_none())
    }

    fn verdict(&self) -> Verdict {
        let unit = match (self.runs(), self.priced()) {
            (_, true) => "cost",
            (true, _) => "GPU hours",
            _ => "GPU time a token",
        };
        let mut parts = vec![
            self.picked(&self.fastest, "the fastest", Choice::time, "time"),
            self.picked(
                &self.cheapest,
                if self.priced() { "the cheapest" } else { "the option of the fewest GPU hours" },
                Choice::spent,
                unit,
            ),
        ];
        for &index in &self.scales {
            let option = &self.options[index];
            let efficiency = 100.0 * option.efficiency.unwrap_or_default();
            parts.push(format!(
                "the most GPUs of {} above 90% efficiency: {} ({efficiency:.0}%)",
                option.machine, option.gpus
            ));
        }
        parts.extend(self.idle.iter().map(|&(more, fewer)| {
            let [more, fewer] = [more, fewer].map(|index| &self.options[index]);
            let (machine, left) = (&more.machine, of_gpus(more.gpus - fewer.gpus));
            format!("{} of {machine} are no faster than {}: leave {left} idle", of_gpus(more.gpus), fewer.gpus)
        }));
        if self.other_batches() {
            parts.push(
                "tokens a step differ, so that steps and efficiency are not compared across them: give --global-batch"
                    .to_owned(),
            );
        }
        let best = &self.options[self.fastest.best];
        let too_large = self.options.iter().filter(|option| option.plan.is_ok() && !option.fits()).count();
        if too_large > 0 {
            parts.push(format!("{too_large} of {} options do not fit into memory", self.options.len()));
        }
        let without = self.options.iter().filter(|option| option.plan.is_err()).count();
        if without > 0 {
            parts.push(format!("{without} of {} options have no plan", self.options.len()));
        }
        let confidence = best.plan.as_ref().map_or_else(|_| String::new(), |plan| plan.confidence.clone());
        Verdict {
            status: match (best.fits(), without) {
                (false, _) => Status::Failed,
                (true, 0) => Status::Ok,
                (true, _) => Status::Warning,
            },
            sentence: parts.join("; "),
            confidence,
            basis: "each option searched by itself; two cannot be told apart where their intervals overlap, of one kind of GPU by calls alone"
                .to_owned(),
            next: None,
        }
    }

    /// What is the best by a measure, and by how much.
    fn picked(&self, pick: &Pick, what: &str, of: fn(&Choice) -> Option<[f64; 3]>, measure: &str) -> String {
        let best = &self.options[pick.best];
        let mut text = format!("{what} is {}", best.name);
        let whole = best.plan.as_ref().ok().and_then(|plan| plan.whole.as_ref());
        if let (Some(whole), Some([low, middle, high])) = (whole, of(best)) {
            text += &match measure {
                "time" => {
                    let digits = usize::from(middle < 10.0);
                    let tokens = counted(whole.tokens);
                    format!(" ({tokens} tokens in {middle:.digits$} days, {low:.digits$} to {high:.digits$})")
                }
                _ => {
                    // Without a price it is days of all GPUs.
                    let scale = if self.priced() { 1.0 } else { 24.0 };
                    let [low, middle, high] = [low, middle, high].map(|spent| rounded(scale * spent));
                    format!(" ({middle}, {low} to {high})")
                }
            };
        }
        if !pick.unsure.is_empty() {
            let names: Vec<&str> = pick.unsure.iter().map(|&index| self.options[index].name.as_str()).collect();
            text += &format!(" and cannot be told from {}", names.join(", "));
        }
        if let Some((next, times)) = pick.next {
            let name = &self.options[next].name;
            // What costs nothing costs no number of times as much.
            text += &match of(&self.options[next]) {
                Some([_, middle, _]) if times.is_infinite() => format!("; {name} costs {}", rounded(middle)),
                _ => format!("; {name} takes {times:.2} times the {measure}"),
            };
        }
        text
    }
}

/// A sum in three digits, as people say it: 9.21M.
fn rounded(number: f64) -> String {
    let digits = 10_f64.powf(number.max(1.0).log10().floor() - 2.0);
    counted((number / digits).round() * digits)
}

fn by_count(option: &Choice) -> String {
    format!("{} of {}", of_gpus(option.gpus), option.machine)
}

fn option(option: &Choice) -> Value {
    let mut keys = match &option.plan {
        Ok(plan) => extra(plan),
        // Keys of a plan are always there.
        Err(error) => Map::from_iter(
            [
                ("machine", json!(option.machine)),
                ("gpus", json!(option.gpus)),
                ("refused", json!(error.to_string())),
                ("model", json!({})),
                ("layouts", json!([])),
                ("searched", json!({"allowed": 0, "fitting": 0, "simulated": 0})),
                ("tokens_per_step", Value::Null),
                ("goodput", Value::Null),
                ("whole", Value::Null),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        ),
    };
    keys.insert("name".to_owned(), json!(option.name));
    keys.insert("price".to_owned(), json!(option.price));
    keys.insert("efficiency".to_owned(), json!(option.efficiency));
    keys.insert("on_front".to_owned(), json!(option.on_front));
    Value::Object(keys)
}
