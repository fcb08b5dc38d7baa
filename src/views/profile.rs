//! Profiles as tables: which there are, what one is made of, what sets two apart.

use collcast_reports::model::{Cell, Column, Report, Status, Table, Verdict};
use collcast_sim::profile::Profile;

use super::VERSION;
use crate::profiles::{Difference, Known, Place, Value, all_values};

/// A row a profile; the one that is taken for a machine is said last.
pub fn list_report(known: &[Known], people: bool) -> Report {
    let mut report = Report::new("profiles", VERSION);
    let columns = [
        Column::text("name", "name"),
        Column::text("place", "from"),
        Column::text("gpus", "measured GPUs"),
        Column::text("ranks", "ranks"),
        Column::text("hosts", "hosts"),
        Column::number("rows", "rows fitted"),
        Column::number("unseen_percent", "off on unseen runs, large sizes %"),
        Column::number("unseen_small_percent", "small sizes %"),
        Column::text("taken", "taken"),
    ];
    let mut table = Table::new("rows", "", columns);
    for profile in known {
        let place = match &profile.place {
            Place::BuiltIn => "built in".to_owned(),
            Place::File(path) => path.display().to_string(),
        };
        let cited = profile.gpus.is_empty();
        table.push([
            profile.name.as_str().into(),
            place.into(),
            (if cited { if people { "none: cited" } else { "any: cited" }.to_owned() } else { profile.gpus.join(" ") })
                .into(),
            profile.ranks.map(|[fewest, most]| format!("{fewest} to {most}")).into(),
            (!cited).then_some(if profile.across_hosts { "several" } else { "one" }).into(),
            (profile.rows > 0).then_some(profile.rows).into(),
            profile.unseen_error.map(|(large, _)| Cell::float(large * 100.0, 0)).into(),
            profile.unseen_error.map(|(_, small)| Cell::float(small * 100.0, 0)).into(),
            profile.taken.is_some().then_some("yes").into(),
        ]);
    }
    report.tables.push(table);
    let unseen = |p: &Known| {
        let (runs, publishers) = p.unseen?;
        Some(format!("{} {runs} of {publishers}", p.name))
    };
    let unseen: Vec<String> = known.iter().filter_map(unseen).collect();
    report.assumptions.push(format!(
        "off on unseen runs: at large sizes, then at small ones, root mean square over publishers that the profile had not seen; runs and publishers: {}",
        unseen.join(", ")
    ));
    let why = known.iter().find_map(|profile| profile.taken.clone());
    if let Some(why) = why {
        report.verdict = Some(verdict(why));
    }
    report
}

/// A row a constant.
pub fn values_report(profile: &Profile, values: &[Value]) -> Report {
    let mut report = Report::new("profile", VERSION);
    report.assumptions.push(format!("profile {}: {}", profile.name, profile.evidence));
    report.assumptions.extend(profile.data.iter().map(|data| format!("fitted to {} rows of {}", data.rows, data.file)));
    report.tables.push(values_table("rows", "", values));
    report.verdict = Some(verdict(format!("profile {} has {} constants here", profile.name, values.len())));
    report
}

/// All constants that a forecast rests on, as evidence behind it.
pub fn constants(profile: &Profile) -> Table {
    let title = format!("Constants of profile {}, and where each is from", profile.name);
    Table { detail: true, ..values_table("constants", &title, &all_values(profile)) }
}

fn values_table(name: &str, title: &str, values: &[Value]) -> Table {
    let columns = [
        Column::text("name", "constant"),
        Column::number("value", "value"),
        Column::number("low", "90% from"),
        Column::number("high", "to"),
        Column::text("origin", "origin"),
        Column::text("source", "source"),
    ];
    let mut table = Table::new(name, title, columns);
    for value in values {
        let end = |place: usize| Cell::from(value.interval.map(|interval| Cell::float(interval[place], 4)));
        let [low, high] = [end(0), end(1)];
        table.push([
            value.name.into(),
            Cell::float(value.value, 4),
            low,
            high,
            value.origin.name().into(),
            value.source.as_str().into(),
        ]);
    }
    table
}

/// A row a constant that differs.
pub fn differences_report((before, after): (&str, &str), differences: &[Difference]) -> Report {
    let mut report = Report::new("profile-diff", VERSION);
    let columns = [
        Column::text("name", "constant"),
        Column::number("before", "before"),
        Column::number("after", "after"),
        Column::number("ratio", "after/before"),
        Column::text("origin_before", "origin before"),
        Column::text("origin_after", "origin after"),
    ];
    let mut table = Table::new("rows", "", columns);
    for difference in differences {
        table.push([
            difference.name.into(),
            Cell::float(difference.before, 4),
            Cell::float(difference.after, 4),
            Cell::float(difference.after / difference.before, 3),
            difference.origins.0.name().into(),
            difference.origins.1.name().into(),
        ]);
    }
    report.tables.push(table);
    report.verdict = Some(verdict(format!("{before} and {after} differ by {} constants", differences.len())));
    report
}

fn verdict(sentence: String) -> Verdict {
    let basis = "the profiles' own account".to_owned();
    Verdict { status: Status::Ok, sentence, confidence: String::new(), basis, next: None }
}
