//! As much of YAML as manifests use: block and flow collections, quoted and plain scalars, block scalars, comments,
//! several documents. What is not understood is passed over; nothing is refused, since a manifest may be a template.

/// Deepest nesting that is followed.
const DEPTH_MAX: usize = 64;

/// A value with the line that it begins on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Node {
    pub(super) line: u64,
    pub(super) value: Value,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Value {
    Scalar(String),
    Map(Vec<(String, Node)>),
    List(Vec<Node>),
}

impl Node {
    /// The value of a key of a map.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    /// The entries of a map; none of anything else.
    pub(super) fn entries(&self) -> &[(String, Self)] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The items of a list; none of anything else.
    pub(super) fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The text of a scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(text) => Some(text),
            _ => None,
        }
    }
}

/// A line without its indent and comment.
#[derive(Clone, Copy)]
struct Line<'t> {
    number: u64,
    indent: usize,
    text: &'t str,
    /// As it stands in the file, for block scalars.
    raw: &'t str,
}

/// The documents of a text.
pub(super) fn documents(text: &str) -> Vec<Node> {
    let mut all = Vec::new();
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut close = |lines: &mut Vec<Line<'_>>| {
        let mut reader = Reader { lines, at: 0 };
        let node = reader.block(0, 0);
        lines.clear();
        all.extend(node);
    };
    for (number, raw) in (1_u64..).zip(text.lines()) {
        if raw.starts_with("---") {
            close(&mut lines);
            continue;
        }
        let text = uncommented(raw).trim_end();
        let indent = text.len() - text.trim_start().len();
        lines.push(Line { number, indent, text: text.trim_start(), raw });
    }
    close(&mut lines);
    all
}

/// A line up to the `#` that begins a comment: outside of quotes, at its start or after a space.
fn uncommented(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        match quote {
            Some(q) if c == q => quote = None,
            None if c == '#' && before.is_whitespace() => return &line[..at],
            None if (c == '"' || c == '\'') && matches!(before, ' ' | '[' | '{' | ',' | ':' | '=') => quote = Some(c),
            _ => {}
        }
        before = c;
    }
    line
}

struct Reader<'l, 't> {
    lines: &'l [Line<'t>],
    at: usize,
}

impl<'l, 't> Reader<'l, 't> {
    /// Passes over what is empty, and lines of templates that have no place in a tree.
    fn next(&mut self) -> Option<&'l Line<'t>> {
        while self.lines.get(self.at).is_some_and(|l| l.text.is_empty() || is_template(l.text)) {
            self.at += 1;
        }
        self.lines.get(self.at)
    }

    /// The block whose lines are indented by `indent` or more.
    fn block(&mut self, indent: usize, depth: usize) -> Option<Node> {
        let line = self.next()?;
        let (own, number) = (line.indent, line.number);
        if own < indent || depth > DEPTH_MAX {
            return None;
        }
        let value = if is_item(line.text) {
            Value::List(self.list(own, depth))
        } else if key_of(line.text).is_some() {
            Value::Map(self.map(own, depth))
        } else {
            let text = line.text.to_owned();
            self.at += 1;
            return Some(self.scalar(text, number, own));
        };
        Some(Node { line: number, value })
    }

    fn list(&mut self, indent: usize, depth: usize) -> Vec<Node> {
        let mut items = Vec::new();
        while let Some(line) = self.next() {
            if line.indent != indent || !is_item(line.text) {
                if line.indent > indent {
                    self.at += 1;
                    continue;
                }
                break;
            }
            let rest = line.text[1..].trim_start();
            let (number, inner) = (line.number, indent + line.text.len() - rest.len());
            let rest = without_tags(rest);
            if rest.is_empty() {
                self.at += 1;
                items.extend(self.block(indent + 1, depth + 1));
            } else if (key_of(rest).is_some() && !rest.starts_with(['{', '['])) || is_item(rest) {
                // The item's first entry stands on the line of its dash.
                let first = Line { number, indent: inner, text: rest, raw: "" };
                items.extend(self.first_on(first, inner, depth + 1));
            } else {
                self.at += 1;
                items.push(self.scalar(rest.to_owned(), number, indent));
            }
        }
        items
    }

    /// A map or list whose first line is `first` in place of the current one.
    fn first_on(&mut self, first: Line<'_>, indent: usize, depth: usize) -> Option<Node> {
        if depth > DEPTH_MAX {
            self.at += 1;
            return None;
        }
        let number = first.number;
        if is_item(first.text) {
            // A list within a list on one line: its later items are lines of their own.
            let rest = first.text[1..].trim_start();
            self.at += 1;
            let node = inline(rest, number, 0);
            return Some(Node { line: number, value: Value::List(vec![node]) });
        }
        let mut entries = Vec::new();
        let text = first.text.to_owned();
        self.at += 1;
        self.entry(&text, number, indent, depth, &mut entries);
        entries.extend(self.map(indent, depth));
        Some(Node { line: number, value: Value::Map(entries) })
    }

    fn map(&mut self, indent: usize, depth: usize) -> Vec<(String, Node)> {
        let mut entries = Vec::new();
        while let Some(line) = self.next() {
            if line.indent != indent || is_item(line.text) || key_of(line.text).is_none() {
                // What is deeper belongs to nothing that is understood.
                if line.indent > indent || (line.indent == indent && !is_item(line.text)) {
                    self.at += 1;
                    continue;
                }
                break;
            }
            let (text, number) = (line.text.to_owned(), line.number);
            self.at += 1;
            self.entry(&text, number, indent, depth, &mut entries);
        }
        entries
    }

    fn entry(&mut self, text: &str, number: u64, indent: usize, depth: usize, into: &mut Vec<(String, Node)>) {
        let Some((key, rest)) = key_of(text) else { return };
        let rest = without_tags(rest);
        let node = if rest.is_empty() {
            // A list may stand as deep as the key that it belongs to.
            let here = self.next().is_some_and(|next| next.indent == indent && is_item(next.text));
            self.block(if here { indent } else { indent + 1 }, depth + 1)
                .unwrap_or(Node { line: number, value: Value::Scalar(String::new()) })
        } else {
            self.scalar(rest.to_owned(), number, indent)
        };
        into.push((key, node));
    }

    /// A scalar or flow collection that begins with `text`; block scalars and flows go on over lines.
    fn scalar(&mut self, text: String, number: u64, indent: usize) -> Node {
        if text.starts_with(['|', '>']) && text.len() <= 3 {
            let mut lines: Vec<&str> = Vec::new();
            while let Some(line) = self.lines.get(self.at) {
                if !line.raw.trim().is_empty() && line.raw.len() - line.raw.trim_start().len() <= indent {
                    break;
                }
                lines.push(line.raw);
                self.at += 1;
            }
            let indent_of = |line: &&str| line.len() - line.trim_start().len();
            let least = lines.iter().filter(|line| !line.trim().is_empty()).map(indent_of).min().unwrap_or_default();
            let lines: Vec<&str> = lines.into_iter().map(|line| line.get(least..).unwrap_or_default()).collect();
            return Node { line: number + 1, value: Value::Scalar(lines.join("\n")) };
        }
        let mut whole = text;
        let opens = |text: &str| {
            let count = |c: char| text.matches(c).count();
            text.starts_with(['{', '[']) && !is_template(text) && count('{') + count('[') > count('}') + count(']')
        };
        while opens(&whole) && whole.len() < 1 << 16 && self.at < self.lines.len() {
            whole.push('\n');
            whole.push_str(self.lines[self.at].text);
            self.at += 1;
        }
        inline(&whole, number, 0)
    }
}

fn is_template(text: &str) -> bool {
    text.starts_with("{{")
}

fn is_item(text: &str) -> bool {
    text == "-" || text.starts_with("- ")
}

/// Anchors and tags before a value say nothing here.
fn without_tags(text: &str) -> &str {
    let mut text = text;
    while text.starts_with(['&', '!']) {
        text = text.split_once(' ').map_or("", |(_, rest)| rest.trim_start());
    }
    text
}

/// `key: rest`, where the colon ends the line or a space follows it.
fn key_of(text: &str) -> Option<(String, &str)> {
    let (key, rest) = match text.chars().next()? {
        quote @ ('"' | '\'') => {
            let end = text[1..].find(quote)? + 1;
            let rest = text[end + 1..].trim_start().strip_prefix(':')?;
            return Some((text[1..end].trim().to_owned(), rest.trim()));
        }
        '{' | '[' => return None,
        _ => {
            let at = text.find(": ").or_else(|| text.strip_suffix(':').map(str::len))?;
            (&text[..at], &text[at + 1..])
        }
    };
    (rest.is_empty() || rest.starts_with(' ')).then(|| (key.trim().to_owned(), rest.trim()))
}

/// A value that begins on a line.
fn inline(text: &str, line: u64, depth: usize) -> Node {
    let begins = |part: &str| {
        let before = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
        line + text.as_bytes().iter().take(before).filter(|&&byte| byte == b'\n').count() as u64
    };
    let text = text.trim();
    let value = match text.chars().next() {
        Some('{') if text.ends_with('}') && !is_template(text) && depth < DEPTH_MAX => {
            let entries = parts(&text[1..text.len() - 1]).into_iter().filter_map(|part| {
                let (key, rest) = key_of(part.trim())?;
                Some((key, inline(rest, begins(rest), depth + 1)))
            });
            Value::Map(entries.collect())
        }
        Some('[') if text.ends_with(']') && depth < DEPTH_MAX => {
            let items = parts(&text[1..text.len() - 1]);
            Value::List(items.into_iter().map(str::trim).map(|part| inline(part, begins(part), depth + 1)).collect())
        }
        Some('"') => Value::Scalar(inner(text, '"').replace("\\n", "\n").replace("\\\"", "\"")),
        Some('\'') => Value::Scalar(inner(text, '\'').replace("''", "'")),
        _ => Value::Scalar(text.to_owned()),
    };
    Node { line, value }
}

fn inner(text: &str, quote: char) -> &str {
    text.strip_prefix(quote).and_then(|t| t.strip_suffix(quote)).unwrap_or(text)
}

/// The parts of a flow collection, at commas outside of quotes and brackets.
fn parts(text: &str) -> Vec<&str> {
    let (mut all, mut from, mut depth, mut quote) = (Vec::new(), 0, 0_i32, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth -= 1,
            (None, ',') if depth == 0 => {
                all.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    all.push(&text[from..]);
    all.retain(|part| !part.trim().is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the forms that manifests are written in become one tree, with lines.
    #[test]
    fn forms_of_manifests_are_read() {
        let text = "\
# a comment
kind: Pod
spec:
  containers:
  - name: main  # first
    env:
    - {name: A, value: \"1\"}
    - name: 'B'
      value: \"x # y\"
    args: [\"bash\", \"-c\",
      \"export C=1\"]
    command:
      - |
        export D=2
        # kept
        run
  - name: side
---
kind: Other
";
        let all = documents(text);
        assert_eq!(all.len(), 2);
        let containers = all[0].get("spec").unwrap().get("containers").unwrap().items();
        assert_eq!(containers.len(), 2);
        let env = containers[0].get("env").unwrap().items();
        assert_eq!(env[0].get("value").unwrap().text(), Some("1"));
        assert_eq!((env[1].get("value").unwrap().text(), env[1].line), (Some("x # y"), 8));
        assert_eq!(containers[0].get("args").unwrap().items().len(), 3);
        let block = &containers[0].get("command").unwrap().items()[0];
        assert_eq!(block.line, 14);
        assert!(block.text().unwrap().contains("# kept"), "{block:?}");
        assert_eq!(containers[1].get("name").unwrap().text(), Some("side"));
    }

    proptest::proptest! {
        /// Goal: no text panics, or takes long.
        #[test]
        fn any_text_is_read(text in "([ ]{0,6}(- |[ab]: |[|>{}\\[\\]\"':#,&!-]|\\{\\{|x)*\n){0,30}", other: String) {
            let _ = documents(&text);
            let _ = documents(&other);
        }
    }
}
