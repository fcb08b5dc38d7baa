//! Timelines for [ui.perfetto.dev](https://ui.perfetto.dev) and `chrome://tracing`.
//!
//! Written as they come, so that a trace may be larger than memory. Convention: a process is
//! a host (or the fabric), a thread is `rank * 64 + channel` (or a link); category is
//! algorithm and protocol; args are bytes, chunk, step. Times are exact to the picosecond:
//! microseconds with six digits, from integers.

use std::fmt::Write as _;
use std::io::{self, Write};

use collcast_sim::units::{SimDuration, SimTime};

use crate::json::string;

/// Something that lasted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// What happened.
    pub name: String,
    /// What kind of thing; Perfetto filters by it.
    pub category: String,
    /// Process it is shown under.
    pub process: u32,
    /// Thread of the process.
    pub thread: u64,
    /// When it began.
    pub start: SimTime,
    /// How long it took.
    pub duration: SimDuration,
    /// Details, shown on a click.
    pub args: Vec<(String, String)>,
}

/// One end of an arrow: it binds to the event of that thread which is running then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowEnd {
    /// Process of the event.
    pub process: u32,
    /// Thread of the event.
    pub thread: u64,
    /// A time inside the event.
    pub time: SimTime,
}

/// An arrow between two events: a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arrow {
    /// Unique among the arrows of the trace.
    pub id: u64,
    /// What it carries.
    pub name: String,
    /// What kind of thing.
    pub category: String,
    /// Where it starts.
    pub from: FlowEnd,
    /// Where it ends.
    pub to: FlowEnd,
}

/// Values from a time on, drawn as stacked areas: the use of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counter {
    /// What is counted.
    pub name: String,
    /// Process it is shown under.
    pub process: u32,
    /// When the values begin to hold.
    pub time: SimTime,
    /// Series and their values.
    pub values: Vec<(String, u64)>,
}

/// Writes a trace, one event a line. Call [`TraceWriter::finish`], or it stays without an end.
#[derive(Debug)]
pub struct TraceWriter<W: Write> {
    out: W,
    empty: bool,
    line: String,
}

impl<W: Write> TraceWriter<W> {
    /// Starts a trace. Give it a buffered writer.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        Ok(Self { out, empty: true, line: String::new() })
    }

    /// Names a process.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn process_name(&mut self, process: u32, name: &str) -> io::Result<()> {
        let name = string(name);
        self.put(|line| {
            write!(line, r#"{{"name":"process_name","ph":"M","pid":{process},"args":{{"name":{name}}}}}"#)
        })?;
        // Keep the order of the numbers: Perfetto sorts processes by their activity.
        self.put(|line| {
            write!(
                line,
                r#"{{"name":"process_sort_index","ph":"M","pid":{process},"args":{{"sort_index":{process}}}}}"#
            )
        })
    }

    /// Names a thread.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn thread_name(&mut self, process: u32, thread: u64, name: &str) -> io::Result<()> {
        let name = string(name);
        self.put(|line| {
            write!(line, r#"{{"name":"thread_name","ph":"M","pid":{process},"tid":{thread},"args":{{"name":{name}}}}}"#)
        })
    }

    /// Adds an event. Perfetto accepts any order; events of one thread must nest.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn event(&mut self, event: &TraceEvent) -> io::Result<()> {
        self.put(|line| {
            write!(
                line,
                r#"{{"name":{},"cat":{},"ph":"X","ts":{},"dur":{},"pid":{},"tid":{},"args":{{"#,
                string(&event.name),
                string(&event.category),
                us(event.start.0),
                us(event.duration.0),
                event.process,
                event.thread,
            )?;
            for (index, (key, value)) in event.args.iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                write!(line, "{comma}{}:{}", string(key), string(value))?;
            }
            line.push_str("}}");
            Ok(())
        })
    }

    /// Adds an arrow.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn flow(&mut self, flow: &Arrow) -> io::Result<()> {
        for (phase, end, binding) in [
            ("s", flow.from, ""),
            ("f", flow.to, r#","bp":"e""#), // Bind to the event around the time, not the next.
        ] {
            self.put(|line| {
                write!(
                    line,
                    r#"{{"name":{},"cat":{},"ph":"{phase}"{binding},"id":{},"ts":{},"pid":{},"tid":{}}}"#,
                    string(&flow.name),
                    string(&flow.category),
                    flow.id,
                    us(end.time.0),
                    end.process,
                    end.thread,
                )
            })?;
        }
        Ok(())
    }

    /// Adds a change of a counter.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn counter(&mut self, counter: &Counter) -> io::Result<()> {
        self.put(|line| {
            write!(
                line,
                r#"{{"name":{},"ph":"C","ts":{},"pid":{},"args":{{"#,
                string(&counter.name),
                us(counter.time.0),
                counter.process,
            )?;
            for (index, (key, value)) in counter.values.iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                write!(line, "{comma}{}:{value}", string(key))?;
            }
            line.push_str("}}");
            Ok(())
        })
    }

    /// Ends the trace and gives the writer back, flushed.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn put(&mut self, fill: impl FnOnce(&mut String) -> std::fmt::Result) -> io::Result<()> {
        self.line.clear();
        self.line.push_str(if self.empty { "\n" } else { ",\n" });
        fill(&mut self.line).map_err(io::Error::other)?;
        self.empty = false;
        self.out.write_all(self.line.as_bytes())
    }
}

/// Picoseconds as microseconds with six digits, exactly.
fn us(picoseconds: u64) -> String {
    let mut text = String::with_capacity(24);
    let _ = write!(text, "{}.{:06}", picoseconds / 1_000_000, picoseconds % 1_000_000);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Goal: no picosecond is lost, however late, where a float would round.
    #[test]
    fn times_are_exact() {
        assert_eq!(us(0), "0.000000");
        assert_eq!(us(1), "0.000001");
        assert_eq!(us(u64::MAX), "18446744073709.551615");
    }

    /// Goal: an empty trace and names with every awkward character are still JSON.
    #[test]
    fn a_trace_is_json_whatever_the_names_are() {
        let empty = TraceWriter::new(Vec::new()).unwrap().finish().unwrap();
        let parsed: Value = serde_json::from_slice(&empty).unwrap();
        assert_eq!(parsed["traceEvents"].as_array().map(Vec::len), Some(0));

        let name = "a \"quoted\"\n\\ <name> & \u{1} ü";
        let mut writer = TraceWriter::new(Vec::new()).unwrap();
        writer.process_name(0, name).unwrap();
        writer
            .event(&TraceEvent {
                name: name.to_owned(),
                category: name.to_owned(),
                process: 0,
                thread: 64,
                start: SimTime(1),
                duration: SimDuration(2),
                args: vec![(name.to_owned(), name.to_owned())],
            })
            .unwrap();
        let bytes = writer.finish().unwrap();
        let parsed: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(parsed["traceEvents"][0]["args"]["name"], name);
        assert_eq!(parsed["traceEvents"][2]["args"][name], name);
    }
}
