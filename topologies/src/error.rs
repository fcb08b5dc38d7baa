//! What is wrong with an input, where, and the way out.
//!
//! One enum for the crate; each variant carries a [`Diagnostic`], which renders in the form
//! that the whole program uses: the message, `file:line:column`, the line itself, carets, a
//! hint. Everything reads without colour.

use std::fmt::Write as _;
use std::ops::Range;

use collcast_sim::text::is_shown;
use thiserror::Error;

/// Longest input of any reader, in bytes: 16 MiB. The largest real file is under 1 MiB.
pub const MAX_INPUT_BYTES: usize = 16 * 1024 * 1024;

/// How much of a long line is shown, in characters.
const SHOWN_CHARS: usize = 120;

/// A place in a text file, with all that is needed to show it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// Byte range in the file.
    pub span: Range<usize>,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The line, shortened around the place when it is very long.
    pub text: String,
    /// Characters of [`Location::text`] before the place.
    pub indent: usize,
    /// Characters to underline, at least 1.
    pub width: usize,
}

/// One error with its place and the way out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// What is wrong, with the offending value, in one sentence.
    pub message: String,
    /// The file as the user named it.
    pub file: String,
    /// Where in the file; none where the whole file is meant.
    pub at: Option<Location>,
    /// What was expected at the place; shown beside the carets.
    pub label: String,
    /// The way out; empty where the label says it all.
    pub hint: String,
}

/// Text in which every character has its place, so that carets fit and a hostile file cannot drive the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if is_shown(c) { c } else { '\u{fffd}' }).collect()
}

/// A value as it is quoted in a message: at most 60 characters, none of them control.
pub fn quote(text: &str) -> String {
    let mut short = plain(&text.chars().take(60).collect::<String>());
    if text.chars().nth(60).is_some() {
        short.push_str("...");
    }
    short
}

impl Diagnostic {
    /// The whole error as text of several lines, ending in a line break.
    ///
    /// ```
    /// use collcast_topologies::error::{Diagnostic, Source};
    /// let source = Source::new("a.toml", "rate = 400\n");
    /// let error = Diagnostic {
    ///     message: "the rate `400` has no unit".into(),
    ///     file: "a.toml".into(),
    ///     at: Some(source.locate(7..10)),
    ///     label: "expected a string such as \"400 Gb/s\"".into(),
    ///     hint: "data sheets give bits; 400 Gb/s is 50 GB/s".into(),
    /// };
    /// assert_eq!(
    ///     error.render(),
    ///     "error: the rate `400` has no unit\n \
    ///      --> a.toml:1:8\n  \
    ///        |\n\
    ///      1 | rate = 400\n  \
    ///        |        ^^^ expected a string such as \"400 Gb/s\"\n\
    ///      \n\
    ///      hint: data sheets give bits; 400 Gb/s is 50 GB/s\n"
    /// );
    /// ```
    pub fn render(&self) -> String {
        let mut out = format!("error: {}\n", plain(&self.message));
        match &self.at {
            Some(at) => {
                let number = at.line.to_string();
                let gutter = " ".repeat(number.len());
                let _ = write!(
                    out,
                    "{gutter}--> {}:{}:{}\n{gutter} |\n{number} | {}\n{gutter} | {}{}",
                    plain(&self.file),
                    at.line,
                    at.column,
                    at.text,
                    " ".repeat(at.indent),
                    "^".repeat(at.width),
                );
                if self.label.is_empty() {
                    out.push('\n');
                } else {
                    let _ = writeln!(out, " {}", plain(&self.label));
                }
            }
            None => {
                if !self.file.is_empty() {
                    let _ = writeln!(out, "  --> {}", plain(&self.file));
                }
                if !self.label.is_empty() {
                    let _ = writeln!(out, "   = {}", plain(&self.label));
                }
            }
        }
        if !self.hint.is_empty() {
            let _ = write!(out, "\nhint: {}\n", plain(&self.hint));
        }
        out
    }
}

/// Everything that can be wrong with a topology.
///
/// The variant says what kind of mistake it is; [`TopologiesError::diagnostic`] says where.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum TopologiesError {
    /// The file cannot be opened, is not text, is empty or is too long.
    #[error("{}", .0.message)]
    Unreadable(Box<Diagnostic>),
    /// The file does not follow its format: TOML, XML or the matrix of nvidia-smi.
    #[error("{}", .0.message)]
    Syntax(Box<Diagnostic>),
    /// The file is of another schema or version.
    #[error("{}", .0.message)]
    Schema(Box<Diagnostic>),
    /// A key that the contract does not have, or one that is missing.
    #[error("{}", .0.message)]
    Key(Box<Diagnostic>),
    /// A name that is none of the known ones.
    #[error("{}", .0.message)]
    UnknownName(Box<Diagnostic>),
    /// A value that has no meaning: a rate without a unit, a count of zero.
    #[error("{}", .0.message)]
    Value(Box<Diagnostic>),
    /// Values that contradict each other.
    #[error("{}", .0.message)]
    Contradiction(Box<Diagnostic>),
    /// More than is supported.
    #[error("{}", .0.message)]
    TooLarge(Box<Diagnostic>),
    /// A PCIe template or a graph file where a whole machine is needed.
    #[error("{}", .0.message)]
    NotAMachine(Box<Diagnostic>),
    /// The machine as described cannot be simulated.
    #[error("{}", .0.message)]
    Topology(Box<Diagnostic>),
}

impl TopologiesError {
    /// What, where, expected and the way out.
    pub fn diagnostic(&self) -> &Diagnostic {
        match self {
            Self::Unreadable(d)
            | Self::Syntax(d)
            | Self::Schema(d)
            | Self::Key(d)
            | Self::UnknownName(d)
            | Self::Value(d)
            | Self::Contradiction(d)
            | Self::TooLarge(d)
            | Self::NotAMachine(d)
            | Self::Topology(d) => d,
        }
    }

    /// [`Diagnostic::render`].
    pub fn render(&self) -> String {
        self.diagnostic().render()
    }
}

/// A file in memory: its name as the user gave it, and its text.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Name for messages.
    pub file: &'a str,
    /// Content.
    pub text: &'a str,
}

impl<'a> Source<'a> {
    /// A named text.
    pub fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, text }
    }

    /// Checks that bytes are a text that a reader accepts.
    ///
    /// # Errors
    /// [`TopologiesError::Unreadable`] when it is empty, longer than [`MAX_INPUT_BYTES`], or
    /// not UTF-8 text.
    pub fn decode(file: &'a str, bytes: &'a [u8]) -> Result<Self, TopologiesError> {
        let unreadable = |message: String, label: &str, hint: &str| {
            TopologiesError::Unreadable(Box::new(Diagnostic {
                message,
                file: file.to_owned(),
                at: None,
                label: label.to_owned(),
                hint: hint.to_owned(),
            }))
        };
        const FORMATS: &str = "a topology is TOML, NCCL topology XML (NCCL_TOPO_DUMP_FILE), a log of NCCL_DEBUG=INFO, or \
                               the text of `nvidia-smi topo -m`";
        if bytes.len() > MAX_INPUT_BYTES {
            return Err(unreadable(
                format!("the file has {} bytes; at most {MAX_INPUT_BYTES} are read", bytes.len()),
                "",
                FORMATS,
            ));
        }
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => match text.find('\0') {
                None => text,
                Some(at) => {
                    return Err(unreadable(
                        "the file is binary, not text".to_owned(),
                        &format!("byte {at} is zero"),
                        FORMATS,
                    ));
                }
            },
            Err(error) => {
                return Err(unreadable(
                    "the file is not UTF-8 text".to_owned(),
                    &format!("byte {} is not part of a character", error.valid_up_to()),
                    FORMATS,
                ));
            }
        };
        if text.trim().is_empty() {
            return Err(unreadable("the file is empty".to_owned(), "", FORMATS));
        }
        Ok(Self { file, text })
    }

    /// The place of a byte range; out-of-range and split characters are moved inside.
    pub fn locate(&self, span: Range<usize>) -> Location {
        let start = self.text.floor_char_boundary(span.start);
        let end = self.text.ceil_char_boundary(span.end).max(start);
        let line_start = self.text[..start].rfind('\n').map_or(0, |i| i + 1);
        let line_end = self.text[start..].find('\n').map_or(self.text.len(), |i| start + i);
        let line = self.text[..start].bytes().filter(|&b| b == b'\n').count() + 1;
        let before = self.text[line_start..start].chars().count();
        let width = self.text[start..end.min(line_end)].chars().count().max(1);
        let whole = self.text[line_start..line_end].trim_end();
        let first = before.saturating_sub(SHOWN_CHARS / 3);
        let first = if before < SHOWN_CHARS - 20 { 0 } else { first };
        let shown: String = whole.chars().skip(first).take(SHOWN_CHARS).collect();
        let lead = if first > 0 { "..." } else { "" };
        let tail = if whole.chars().nth(first + SHOWN_CHARS).is_some() { "..." } else { "" };
        Location {
            span: start..end,
            line,
            column: before + 1,
            text: format!("{lead}{}{tail}", plain(&shown.replace('\t', " "))),
            indent: before - first + lead.len(),
            width: width.min(SHOWN_CHARS - 20),
        }
    }

    /// A diagnostic at a place.
    pub fn at(
        &self,
        span: Range<usize>,
        message: impl Into<String>,
        label: impl Into<String>,
        hint: impl Into<String>,
    ) -> Box<Diagnostic> {
        Box::new(Diagnostic {
            message: message.into(),
            file: self.file.to_owned(),
            at: Some(self.locate(span)),
            label: label.into(),
            hint: hint.into(),
        })
    }

    /// A diagnostic about the whole file.
    pub fn whole(&self, message: impl Into<String>, hint: impl Into<String>) -> Box<Diagnostic> {
        Box::new(Diagnostic {
            message: message.into(),
            file: self.file.to_owned(),
            at: None,
            label: String::new(),
            hint: hint.into(),
        })
    }

    /// A name that is none of the known ones, with a did-you-mean.
    pub(crate) fn unknown_name(&self, span: Range<usize>, what: &str, given: &str, known: &[&str]) -> TopologiesError {
        let suggestion = collcast_sim::collective::nearest(given, known.iter().copied());
        TopologiesError::UnknownName(self.at(
            span,
            format!("`{}` is not {what}", quote(given)),
            suggestion.map_or_else(|| "not a known name".to_owned(), |s| format!("did you mean `{s}`?")),
            format!("known: {}", known.join(", ")),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the exact form, also for a number of two digits.
    #[test]
    fn errors_render_as_the_style_demands() {
        let text = format!("{}bandwidth = 400\n", "\n".repeat(56));
        let source = Source::new("topologies/data/rail-8x8.toml", &text);
        let start = text.find("400").unwrap();
        let error = TopologiesError::Value(source.at(
            start..start + 3,
            "link `nic0 -> leaf2` has a bandwidth without a unit: `400`",
            "expected a string such as \"50 GB/s\" or \"400 Gb/s\"",
            "data sheets give bits; 400 Gb/s is 50 GB/s",
        ));
        let expected = "\
error: link `nic0 -> leaf2` has a bandwidth without a unit: `400`
  --> topologies/data/rail-8x8.toml:57:13
   |
57 | bandwidth = 400
   |             ^^^ expected a string such as \"50 GB/s\" or \"400 Gb/s\"

hint: data sheets give bits; 400 Gb/s is 50 GB/s
";
        assert_eq!(error.render(), expected);
    }

    /// Goal: no place is out of range, no line too long, no control character printed.
    #[test]
    fn places_are_clamped_and_shortened() {
        let text = format!("{}é\u{1b}[31m{}", "x".repeat(1000), "y".repeat(1000));
        let source = Source::new("f", &text);
        for start in [0, 500, 1001, 1002, 1999, 5000] {
            let at = source.locate(start..start + 3);
            assert!(at.text.chars().count() <= SHOWN_CHARS + 6, "{start}");
            assert!(!at.text.contains('\u{1b}'));
            assert!(at.indent <= SHOWN_CHARS + 3);
        }
        assert!(Source::decode("f", b"").is_err());
        assert!(Source::decode("f", &[0xff, 0xfe, 0]).is_err());
        assert!(Source::decode("f", b"a\0b").is_err());
        assert!(Source::decode("f", &vec![b' '; MAX_INPUT_BYTES + 1]).is_err());
    }
}
