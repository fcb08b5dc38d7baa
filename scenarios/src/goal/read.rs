//! From text.

use rustc_hash::FxHashMap;

use super::model::{DEPENDENCIES_MAX, Goal, GoalError, OPS_MAX, Operation, RANKS_MAX, What};

/// Whether a text begins as a schedule does, after comments.
pub fn looks_like(text: &str) -> bool {
    let mut tokens = Tokens { rest: text, line: 1 };
    let first = std::iter::from_fn(|| tokens.next().ok().flatten()).find(|token| *token != Token::Newline);
    first == Some(Token::Word("num_ranks"))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token<'a> {
    Word(&'a str),
    Number(u64),
    /// `-1`: any.
    Any,
    Open,
    Close,
    Colon,
    Newline,
}

struct Tokens<'a> {
    rest: &'a str,
    line: u64,
}

impl<'a> Tokens<'a> {
    /// The next token; a newline belongs to the line that it ends.
    fn next(&mut self) -> Result<Option<Token<'a>>, String> {
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t', '\r']);
            if self.rest.starts_with("//") {
                self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..];
            } else if self.rest.starts_with("/*") {
                let end = self.rest.find("*/").ok_or("a comment is not closed: add */")?;
                self.line += self.rest[..end].matches('\n').count() as u64;
                self.rest = &self.rest[end + 2..];
            } else {
                break;
            }
        }
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        let (token, length) = match first {
            '\n' => (Token::Newline, 1),
            '{' => (Token::Open, 1),
            '}' => (Token::Close, 1),
            ':' => (Token::Colon, 1),
            '-' if self.rest.starts_with("-1") => (Token::Any, 2),
            '0'..='9' => {
                let length = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
                let digits = &self.rest[..length];
                let number =
                    digits.parse().map_err(|_| format!("`{}` is no number that fits 64 bits", short(digits)))?;
                (Token::Number(number), length)
            }
            c if c.is_ascii_alphabetic() => {
                let length =
                    self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(self.rest.len());
                (Token::Word(&self.rest[..length]), length)
            }
            other => return Err(format!("`{}` has no meaning in a schedule", other.escape_default())),
        };
        self.rest = &self.rest[length..];
        Ok(Some(token))
    }
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// The block of a rank while it is read.
struct Block<'a> {
    rank: usize,
    labels: FxHashMap<&'a str, u32>,
}

/// Reads a schedule; `file` is its name for messages.
///
/// # Errors
/// A line that is none of the format's, a label twice or unknown, a rank twice or out of range, more than is read.
pub fn read(text: &str, file: &str) -> Result<Goal, GoalError> {
    let mut parser = Parser { tokens: Tokens { rest: text, line: 1 }, goal: Goal::default(), ops: 0, dependencies: 0 };
    parser.all().map_err(|reason| GoalError::Line { file: file.to_owned(), line: parser.tokens.line, reason })?;
    Ok(parser.goal)
}

struct Parser<'a> {
    tokens: Tokens<'a>,
    goal: Goal,
    ops: usize,
    dependencies: usize,
}

impl<'a> Parser<'a> {
    fn all(&mut self) -> Result<(), String> {
        let mut seen: Vec<bool> = Vec::new();
        let mut block: Option<Block<'a>> = None;
        while let Some(token) = self.tokens.next()? {
            match (token, &mut block) {
                (Token::Newline, _) => self.tokens.line += 1,
                (Token::Word("num_ranks"), None) if seen.is_empty() => {
                    let ranks = self.number("the number of ranks")?;
                    if !(1..=u64::from(RANKS_MAX)).contains(&ranks) {
                        return Err(format!("{ranks} ranks: 1 to {RANKS_MAX} are read"));
                    }
                    seen = vec![false; ranks as usize];
                    self.goal.ranks = vec![Vec::new(); ranks as usize];
                }
                (Token::Word("rank"), None) => {
                    let rank = self.number("a rank")?;
                    let known = usize::try_from(rank).ok().filter(|&rank| rank < seen.len());
                    let Some(rank) = known else {
                        return Err(format!(
                            "rank {rank} of {}: ranks are counted from 0, and num_ranks stands first",
                            seen.len()
                        ));
                    };
                    if std::mem::replace(&mut seen[rank], true) {
                        return Err(format!("rank {rank} has two blocks: a rank has one"));
                    }
                    self.expect(Token::Open, "`{`")?;
                    block = Some(Block { rank, labels: FxHashMap::default() });
                }
                (Token::Close, Some(_)) => block = None,
                (Token::Word(word), Some(block)) => self.statement(word, block)?,
                (token, None) => return Err(format!("{}: expected `num_ranks N` or `rank R {{`", said(token))),
                (token, Some(_)) => return Err(format!("{}: expected send, recv, calc, a label or `}}`", said(token))),
            }
        }
        match (&block, seen.is_empty()) {
            (Some(block), _) => Err(format!("the file ends inside the block of rank {}: it was cut off", block.rank)),
            (None, true) => Err("the file has no `num_ranks N`, which stands first".to_owned()),
            (None, false) => Ok(()),
        }
    }

    fn number(&mut self, what: &str) -> Result<u64, String> {
        match self.tokens.next()? {
            Some(Token::Number(number)) => Ok(number),
            other => Err(format!("{}: expected {what}", other.map_or("the end of the file".to_owned(), said))),
        }
    }

    fn expect(&mut self, token: Token<'a>, what: &str) -> Result<(), String> {
        match self.tokens.next()? {
            Some(found) if found == token => Ok(()),
            other => Err(format!("{}: expected {what}", other.map_or("the end of the file".to_owned(), said))),
        }
    }

    fn small(&mut self, what: &str) -> Result<u32, String> {
        let number = self.number(what)?;
        u32::try_from(number).map_err(|_| format!("{number} is too large for {what}"))
    }

    /// A statement that begins with a word: an operation, one with a label, or a dependency.
    fn statement(&mut self, word: &'a str, block: &mut Block<'a>) -> Result<(), String> {
        if matches!(word, "send" | "recv" | "calc") {
            return self.operation(word, block.rank);
        }
        match self.tokens.next()? {
            Some(Token::Colon) => {
                let kind = match self.tokens.next()? {
                    Some(Token::Word(kind @ ("send" | "recv" | "calc"))) => kind,
                    other => {
                        let found = other.map_or("the end of the file".to_owned(), said);
                        return Err(format!("{found}: expected send, recv or calc after the label"));
                    }
                };
                let place = u32::try_from(self.goal.ranks[block.rank].len()).unwrap_or(u32::MAX);
                self.operation(kind, block.rank)?;
                match block.labels.insert(word, place) {
                    Some(_) => Err(format!("the label `{}` is there twice in this rank", short(word))),
                    None => Ok(()),
                }
            }
            Some(Token::Word(kind @ ("requires" | "irequires"))) => {
                let Some(Token::Word(other)) = self.tokens.next()? else {
                    return Err(format!("expected the label of another operation after `{kind}`"));
                };
                let find = |label: &str| {
                    let unknown = || format!("the label `{}` is not defined above in this rank", short(label));
                    block.labels.get(label).copied().ok_or_else(unknown)
                };
                let (waits, waited) = (find(word)?, find(other)?);
                self.dependencies += 1;
                if self.dependencies > DEPENDENCIES_MAX {
                    return Err(format!("more than {DEPENDENCIES_MAX} dependencies, the most that are read"));
                }
                let operation = &mut self.goal.ranks[block.rank][waits as usize];
                match kind {
                    "requires" => operation.requires.push(waited),
                    _ => operation.irequires.push(waited),
                }
                self.end()
            }
            other => {
                let found = other.map_or("the end of the file".to_owned(), said);
                Err(format!("{found}: expected `:`, requires or irequires after the label `{}`", short(word)))
            }
        }
    }

    /// The end of a statement.
    fn end(&mut self) -> Result<(), String> {
        match self.tokens.next()? {
            Some(Token::Newline) => {
                self.tokens.line += 1;
                Ok(())
            }
            other => {
                Err(format!("{}: a statement ends with its line", other.map_or("the end of the file".to_owned(), said)))
            }
        }
    }

    fn operation(&mut self, kind: &str, rank: usize) -> Result<(), String> {
        self.ops += 1;
        if self.ops > OPS_MAX {
            return Err(format!("more than {OPS_MAX} operations, the most that are read: take fewer ranks or steps"));
        }
        let mut operation = Operation::new(What::Calc(0));
        if kind == "calc" {
            operation.what = What::Calc(self.number("the ns of a calculation")?);
            loop {
                match self.tokens.next()? {
                    Some(Token::Newline) => break,
                    Some(Token::Word("cpu")) => operation.cpu = self.small("a CPU")?,
                    other => {
                        return Err(format!(
                            "{}: expected cpu, or the line's end",
                            other.map_or("the end of the file".to_owned(), said)
                        ));
                    }
                }
            }
        } else {
            let bytes = self.number("the bytes of a message")?;
            self.expect(Token::Word("b"), "`b` behind the number of bytes")?;
            let sends = kind == "send";
            self.expect(Token::Word(if sends { "to" } else { "from" }), if sends { "`to`" } else { "`from`" })?;
            let peer = match self.tokens.next()? {
                Some(Token::Any) if !sends => None,
                Some(Token::Number(peer)) if peer < self.goal.ranks.len() as u64 => u32::try_from(peer).ok(),
                Some(Token::Number(peer)) => {
                    return Err(format!("rank {peer} of {}: ranks are counted from 0", self.goal.ranks.len()));
                }
                other => {
                    return Err(format!("{}: expected a rank", other.map_or("the end of the file".to_owned(), said)));
                }
            };
            let mut tag = Some(0);
            loop {
                match self.tokens.next()? {
                    Some(Token::Newline) => break,
                    Some(Token::Word("tag")) => {
                        tag = match self.tokens.next()? {
                            Some(Token::Any) if !sends => None,
                            Some(Token::Number(tag)) => {
                                Some(u32::try_from(tag).map_err(|_| format!("the tag {tag} is over 32 bits"))?)
                            }
                            other => {
                                return Err(format!(
                                    "{}: expected a tag",
                                    other.map_or("the end of the file".to_owned(), said)
                                ));
                            }
                        }
                    }
                    Some(Token::Word("cpu")) => operation.cpu = self.small("a CPU")?,
                    Some(Token::Word("nic")) => operation.nic = self.small("a NIC")?,
                    other => {
                        return Err(format!(
                            "{}: expected tag, cpu, nic, or the line's end",
                            other.map_or("the end of the file".to_owned(), said)
                        ));
                    }
                }
            }
            operation.what = match (sends, peer, tag) {
                (true, Some(to), Some(tag)) => What::Send { bytes, to, tag },
                (_, from, tag) => What::Recv { bytes, from, tag },
            };
            if peer == u32::try_from(rank).ok() {
                return Err("a rank sends to itself, which is no message".to_owned());
            }
        }
        self.tokens.line += 1;
        self.goal.ranks[rank].push(operation);
        Ok(())
    }
}

/// A token in words.
fn said(token: Token<'_>) -> String {
    match token {
        Token::Word(word) => format!("`{}`", short(word)),
        Token::Number(number) => format!("`{number}`"),
        Token::Any => "`-1`".to_owned(),
        Token::Open => "`{`".to_owned(),
        Token::Close => "`}`".to_owned(),
        Token::Colon => "`:`".to_owned(),
        Token::Newline => "the line ends".to_owned(),
    }
}
