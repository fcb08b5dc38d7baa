//! What text is written for: a screen of some width, or a pipe.

use anstyle::Style;

/// What text is written for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Screen {
    /// Columns of the terminal. Text wraps to fit; numbers never do, and stick out where even that is too little. None
    /// for a pipe: every row is one line.
    pub width: Option<u16>,
    /// Whether colours are wanted.
    pub colour: bool,
}

impl Screen {
    /// A screen without colours.
    pub fn plain(width: Option<u16>) -> Self {
        Self { width, colour: false }
    }

    /// Words in a style.
    pub(super) fn painted(self, style: Style, words: &str) -> String {
        if self.colour { format!("{style}{words}{style:#}") } else { words.to_owned() }
    }

    /// One line, broken between words where it is wider than the screen; `indent` stands before the lines after the first.
    pub(super) fn wrapped(self, line: &str, indent: &str) -> String {
        let Some(width) = self.width else { return line.to_owned() };
        let options = textwrap::Options::new(width.into())
            .subsequent_indent(indent)
            .break_words(false)
            .word_separator(textwrap::WordSeparator::AsciiSpace)
            .word_splitter(textwrap::WordSplitter::NoHyphenation);
        textwrap::fill(line, options)
    }
}
