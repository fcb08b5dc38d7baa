//! First pass over the text: what must be refused before a tree is built.

use crate::error::{Source, TopologiesError};

/// Deepest nesting. NCCL's own files have about 8 levels.
pub const MAX_DEPTH: usize = 64;
/// Most elements. NCCL itself stops at 256 per file in the versions that were looked at.
pub const MAX_ELEMENTS: u32 = 20_000;
/// Most attributes of one element; NCCL reads at most 16.
pub const MAX_ATTRIBUTES: usize = 64;

/// First pass: what must be refused before a tree is built, each with its place.
pub(super) fn scan(source: Source<'_>) -> Result<(), TopologiesError> {
    let text = source.text;
    let mut open: Vec<usize> = Vec::new();
    let mut elements = 0_u32;
    let mut at = 0;
    while let Some(start) = text[at..].find('<').map(|i| at + i) {
        let rest = &text[start..];
        let skip = |opening: &str, closing: &str| {
            rest.starts_with(opening).then(|| rest.find(closing).map(|i| start + i + closing.len()))
        };
        if let Some(end) = skip("<!--", "-->").or_else(|| skip("<?", "?>")).or_else(|| skip("<![CDATA[", "]]>")) {
            at = end.ok_or_else(|| truncated(source, start, "a comment or section"))?;
            continue;
        }
        if rest.starts_with("<!") {
            return Err(TopologiesError::Syntax(source.at(
                start..start + rest.find(char::is_whitespace).unwrap_or(2),
                "the file declares a document type or entities",
                "not allowed",
                "files of NCCL have none, and entities can expand without bound; delete the \
                 declaration",
            )));
        }
        let (end, attributes) = tag_end(source, start)?;
        if attributes > MAX_ATTRIBUTES {
            return Err(TopologiesError::TooLarge(source.at(
                start..start + 1,
                format!("an element has {attributes} attributes; at most {MAX_ATTRIBUTES} are read"),
                "too many attributes",
                "this is not a file of NCCL",
            )));
        }
        let tag = &text[start..end];
        if tag.starts_with("</") {
            open.pop();
        } else {
            elements += 1;
            if !tag.ends_with("/>") {
                open.push(start);
            }
        }
        if open.len() > MAX_DEPTH {
            return Err(TopologiesError::TooLarge(source.at(
                start..end,
                format!("elements are nested deeper than {MAX_DEPTH}"),
                "too deep",
                "this is not a file of NCCL",
            )));
        }
        if elements > MAX_ELEMENTS {
            return Err(TopologiesError::TooLarge(source.at(
                start..end,
                format!("the file has over {MAX_ELEMENTS} elements"),
                "too many",
                "one file describes one host",
            )));
        }
        at = end;
    }
    match open.last() {
        Some(&start) => Err(truncated(source, start, "this element")),
        None => Ok(()),
    }
}

/// End of a tag, and the number of its attributes.
fn tag_end(source: Source<'_>, start: usize) -> Result<(usize, usize), TopologiesError> {
    let mut quote = None;
    let mut attributes = 0;
    for (i, b) in source.text.bytes().enumerate().skip(start + 1) {
        match (quote, b) {
            (Some(q), _) if q == b => quote = None,
            (None, b'"' | b'\'') => {
                quote = Some(b);
                attributes += 1;
            }
            (None, b'>') => return Ok((i + 1, attributes)),
            _ => {}
        }
    }
    Err(truncated(source, start, "this tag"))
}

fn truncated(source: Source<'_>, start: usize, what: &str) -> TopologiesError {
    let name = source.text[start..].find(|c: char| c.is_whitespace() || c == '>').unwrap_or(1);
    TopologiesError::Syntax(source.at(
        start..start + name,
        "the XML is truncated: the file ends before its last element is closed",
        format!("{what} is not closed"),
        "copy the file again; NCCL writes it when the first communicator is made",
    ))
}
