//! The table that nccl-tests prints, so that its readers and eyes work on forecasts too.
//!
//! Columns, rounding and footer are those of nccl-tests 2.19.6 as its logs show them. Where
//! nothing was checked for correctness, `#wrong` is `N/A`, as with `-c 0`.

use std::fmt::Write as _;

use collcast_sim::collective::{Collective, DataType, ReduceOp};

use crate::csv::PREDICTED;
use collcast_sim::text::one_line;

/// A run of nccl-tests, or what it would print.
#[derive(Clone, PartialEq, Debug)]
pub struct NcclTests {
    /// Collective; names the test in the first and last line.
    pub collective: Collective,
    /// Whether the times are forecasts: adds the line that says so.
    pub predicted: bool,
    /// Whether every result was compared and found exact.
    pub checked: bool,
    /// What was assumed and other remarks, each a `#` line after the first.
    pub comments: Vec<String>,
    /// One row a size, in the order to print.
    pub rows: Vec<NcclTestsRow>,
}

/// A line of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct NcclTestsRow {
    /// Size column: the larger of the send and the receive buffer of a rank.
    pub size_bytes: u64,
    /// Count column: elements as nccl-tests counts them for the collective.
    pub count: u64,
    /// Element type.
    pub data_type: DataType,
    /// Reduction; none where the collective has none.
    pub redop: Option<ReduceOp>,
    /// Root; none prints -1.
    pub root: Option<u32>,
    /// Time of one call between different buffers.
    pub out_of_place_us: f64,
    /// Time of one call in place; none leaves its columns `N/A`.
    pub in_place_us: Option<f64>,
    /// Bus over algorithm bandwidth, [`Collective::bus_factor`].
    pub bus_factor: f64,
}

/// Name of the program of nccl-tests that runs a collective, such as `all_reduce_perf`.
pub fn perf_name(collective: Collective) -> &'static str {
    match collective {
        Collective::AllReduce => "all_reduce_perf",
        Collective::AllGather => "all_gather_perf",
        Collective::ReduceScatter => "reduce_scatter_perf",
        Collective::Broadcast => "broadcast_perf",
        Collective::Reduce => "reduce_perf",
        Collective::AllToAll => "alltoall_perf",
        Collective::SendRecv => "sendrecv_perf",
        Collective::Gather => "gather_perf",
        Collective::Scatter => "scatter_perf",
    }
}

/// The whole text.
pub fn render(run: &NcclTests) -> String {
    let test = perf_name(run.collective);
    let mut out = String::new();
    if run.predicted {
        let _ = writeln!(out, "{PREDICTED}");
    }
    let _ = writeln!(out, "# Collective test starting: {test}");
    for line in &run.comments {
        let _ = writeln!(out, "# {}", one_line(line));
    }
    out.push_str(HEADER);
    let mut busbw = Vec::new();
    for row in &run.rows {
        let _ = write!(
            out,
            "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}",
            row.size_bytes,
            row.count,
            row.data_type.nccl_tests_name(),
            row.redop.map_or("none", ReduceOp::name),
            row.root.map_or(-1, i64::from),
        );
        for time_us in [Some(row.out_of_place_us), row.in_place_us] {
            match time_us {
                Some(time_us) => {
                    let algbw = row.size_bytes as f64 / time_us / 1e3;
                    let algbw = if algbw.is_finite() { algbw } else { 0.0 };
                    busbw.push(algbw * row.bus_factor);
                    let _ = write!(
                        out,
                        "  {}  {}  {}  {:>5}",
                        fit(time_us, 7),
                        fit(algbw, 6),
                        fit(algbw * row.bus_factor, 6),
                        if run.checked { "0" } else { "N/A" },
                    );
                }
                None => out.push_str("      N/A     N/A     N/A    N/A"),
            }
        }
        out.push('\n');
    }
    let average = busbw.iter().sum::<f64>() / busbw.len().max(1) as f64;
    let _ = writeln!(out, "# Out of bounds values : 0 OK");
    let _ = writeln!(out, "# Avg bus bandwidth    : {} ", significant(average, 6));
    let _ = writeln!(out, "#\n# Collective test concluded: {test}\n#");
    out
}

const HEADER: &str = concat!(
    "#\n",
    "#                                                              out-of-place                       in-place          \n",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong \n",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         \n",
);

/// A number in `width` places, with as many of two digits after the point as fit.
fn fit(value: f64, width: usize) -> String {
    for digits in [2, 1, 0] {
        let text = format!("{value:width$.digits$}");
        if text.len() <= width {
            return text;
        }
    }
    scientific(value, usize::from(width >= 7))
}

/// As C prints `%g` with `digits` significant ones.
fn significant(value: f64, digits: usize) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".to_owned();
    }
    // Rust rounds while it prints, so that 9.999999 has the exponent that is shown.
    let shown = format!("{value:.*e}", digits - 1);
    let exponent: i32 = shown.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |text: String| match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
    };
    match usize::try_from(exponent.max(0)) {
        Ok(whole) if exponent >= -4 && whole < digits => {
            let after = digits - 1 - whole + usize::try_from(-exponent.min(0)).unwrap_or(0);
            trim(format!("{value:.after$}"))
        }
        _ => {
            let (mantissa, _) = shown.split_once('e').unwrap_or((&shown, ""));
            format!("{}{}", trim(mantissa.to_owned()), c_exponent(exponent))
        }
    }
}

fn scientific(value: f64, digits: usize) -> String {
    let shown = format!("{value:.digits$e}");
    match shown.split_once('e') {
        Some((mantissa, e)) => format!("{mantissa}{}", c_exponent(e.parse().unwrap_or(0))),
        None => shown,
    }
}

/// C writes a sign and two digits, Rust neither.
fn c_exponent(exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the lines that nccl-tests itself printed on a machine with four H200, from its
    /// printed times; bandwidths in its log come from unrounded times, hence large sizes.
    #[test]
    fn lines_are_those_of_nccl_tests() {
        let row = |size: u64, out_us: f64, in_us: f64| NcclTestsRow {
            size_bytes: size,
            count: size / 4,
            data_type: DataType::Float32,
            redop: Some(ReduceOp::Sum),
            root: None,
            out_of_place_us: out_us,
            in_place_us: Some(in_us),
            bus_factor: Collective::AllReduce.bus_factor(4),
        };
        let text = render(&NcclTests {
            collective: Collective::AllReduce,
            predicted: false,
            checked: false,
            comments: vec![],
            rows: vec![
                row(8, 24.31, 24.34),
                row(16_777_216, 184.43, 182.39),
                row(134_217_728, 1348.03, 1344.28),
                row(1_073_741_824, 10653.7, 10632.9),
            ],
        });
        let expected = [
            "           8             2     float     sum      -1    24.31    0.00    0.00    N/A    24.34    0.00    0.00    N/A\n",
            "    16777216       4194304     float     sum      -1   184.43   90.97  136.45    N/A   182.39   91.99  137.98    N/A\n",
            "   134217728      33554432     float     sum      -1  1348.03   99.57  149.35    N/A  1344.28   99.84  149.77    N/A\n",
            "  1073741824     268435456     float     sum      -1  10653.7  100.79  151.18    N/A  10632.9  100.98  151.47    N/A\n",
        ]
        .concat();
        let rows: String = text.lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
        assert_eq!(rows, expected);
        assert!(text.contains("\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 109.5"));
    }

    /// Goal: C's formats, by value.
    #[test]
    fn numbers_are_written_as_c_writes_them() {
        for (value, text) in [
            (9999.994, "9999.99"),
            (9999.996, "10000.0"),
            (99999.96, " 100000"),
            (9_999_999.0, "9999999"),
            (12_345_678.0, "1.2e+07"),
        ] {
            assert_eq!(fit(value, 7), text);
        }
        assert_eq!(fit(1234.56, 6), "1234.6");
        for (value, text) in [
            (59.945, "59.945"),
            (24.14, "24.14"),
            (0.012_345_67, "0.0123457"),
            (9.999_999_9, "10"),
            (1_234_567.0, "1.23457e+06"),
            (0.0, "0"),
        ] {
            assert_eq!(significant(value, 6), text);
        }
    }
}
