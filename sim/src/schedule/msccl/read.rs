//! Reads MSCCL XML and checks that it fits together.

use std::str::FromStr;

use roxmltree::{Document, Node, ParsingOptions};
use rustc_hash::FxHashMap;

use super::algorithm::{Block, Gpu, Imported, Instruction, Kind, MscclError, Place};
use crate::collective::{Collective, Protocol};
use crate::schedule::program::Buffer;
use crate::schedule::{MAX_CHANNELS, MAX_RANKS};

/// Most nodes of a document: a million steps and their white space.
const MAX_NODES: u32 = 4_000_000;
/// Most attributes of an element, each of which is compared with all others; MSCCL knows 13.
const MAX_ATTRIBUTES: usize = 64;
/// Most attributes of a document: 16 for each of a million steps.
const MAX_ALL_ATTRIBUTES: usize = 16_000_000;
/// Most chunks of a buffer, and most at once: keeps every product far from overflow.
const MAX_CHUNKS: u64 = 1 << 24;

/// Where lines begin.
struct Lines(Vec<usize>);

impl Lines {
    fn new(text: &str) -> Self {
        Self(std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect())
    }

    /// The line of a byte, from 1.
    fn of(&self, byte: usize) -> u32 {
        u32::try_from(self.0.partition_point(|&start| start <= byte)).unwrap_or(u32::MAX)
    }
}

struct File<'a> {
    name: &'a str,
    lines: Lines,
}

impl File<'_> {
    fn line(&self, node: Node<'_, '_>) -> u32 {
        self.lines.of(node.range().start)
    }

    fn error(&self, line: u32, what: impl Into<String>, hint: impl Into<String>) -> MscclError {
        MscclError { what: what.into(), file: self.name.to_owned(), line, hint: hint.into() }
    }

    /// A number; `None` where the attribute is not there.
    fn number<T: FromStr>(&self, node: Node<'_, '_>, key: &str) -> Result<Option<T>, MscclError> {
        let parse = |text: &str| {
            text.trim().parse().map_err(|_| {
                let what = format!("{key}=\"{text}\" of <{}> is not a number that fits", node.tag_name().name());
                self.error(self.line(node), what, "give a whole number")
            })
        };
        node.attribute(key).map(parse).transpose()
    }

    fn needed<T: FromStr>(&self, node: Node<'_, '_>, key: &str) -> Result<T, MscclError> {
        self.number(node, key)?.ok_or_else(|| {
            let what = format!("<{}> has no {key}", node.tag_name().name());
            self.error(self.line(node), what, format!("add {key}=\"...\""))
        })
    }

    /// A number that may be absent or -1.
    fn optional(&self, node: Node<'_, '_>, key: &str) -> Result<Option<u64>, MscclError> {
        match self.number::<i64>(node, key)? {
            Some(n @ ..-1) => {
                let what = format!("{key}=\"{n}\" of <{}> is negative", node.tag_name().name());
                Err(self.error(self.line(node), what, "give 0 or more, or -1 for none"))
            }
            n => Ok(n.and_then(|n| u64::try_from(n).ok())),
        }
    }

    /// Refuses elements with more attributes than can be read in good time: the XML parser compares each with all.
    fn check_attributes(&self, text: &str) -> Result<(), MscclError> {
        let (mut at, mut all) = (0, 0);
        while let Some(start) = text[at..].find('<').map(|found| at + found) {
            let (end, attributes) = markup(&text[start..]);
            all += attributes;
            if attributes > MAX_ATTRIBUTES || all > MAX_ALL_ATTRIBUTES {
                let (most, of) = if attributes > MAX_ATTRIBUTES {
                    (MAX_ATTRIBUTES, "an element")
                } else {
                    (MAX_ALL_ATTRIBUTES, "a file")
                };
                let what = format!("{of} has over {most} attributes");
                return Err(self.error(
                    self.lines.of(start),
                    what,
                    "give an MSCCL algorithm, as msccl-tools writes it",
                ));
            }
            at = start + end;
        }
        Ok(())
    }
}

/// How long a tag, or what is none, is, and how many attributes it has; what does not end is for the XML parser.
fn markup(text: &str) -> (usize, usize) {
    for (begins, ends) in [("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>")] {
        if text.starts_with(begins) {
            return (text.find(ends).unwrap_or(text.len()), 0);
        }
    }
    let (mut quote, mut attributes) = (None, 0);
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (Some(open), _) if open == byte => quote = None,
            (None, b'"' | b'\'') => {
                quote = Some(byte);
                attributes += 1;
            }
            (None, b'>') => return (at, attributes),
            _ => {}
        }
    }
    (text.len(), attributes)
}

pub(super) fn parse(text: &str, name: &str) -> Result<Imported, MscclError> {
    let file = File { name, lines: Lines::new(text) };
    file.check_attributes(text)?;
    let options = ParsingOptions { nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    let tree = Document::parse_with_options(text, options).map_err(|e| MscclError {
        what: format!("this is not XML: {e}"),
        file: name.to_owned(),
        line: e.pos().row,
        hint: "give an MSCCL algorithm, as msccl-tools writes it".to_owned(),
    })?;
    let root = tree.root_element();
    let line = file.line(root);
    if root.tag_name().name() != "algo" {
        let what = format!("the root is <{}>, not <algo>", root.tag_name().name());
        return Err(file.error(line, what, "give an MSCCL algorithm; machines are read with `collcast topo import`"));
    }
    let text_of = |key: &str| {
        let missing = || file.error(line, format!("<algo> has no {key}"), format!("add {key}=\"...\""));
        root.attribute(key).ok_or_else(missing)
    };
    let named = |e: crate::collective::UnknownName, hint: &str| file.error(line, e.to_string(), hint);
    let coll = text_of("coll")?;
    if coll == "custom" {
        let hint = "set coll to allreduce, allgather, reduce_scatter, broadcast, reduce or alltoall";
        return Err(file.error(line, "coll=\"custom\" promises nothing that could be proved", hint));
    }
    let collective: Collective = coll.parse().map_err(|e| named(e, "coll is such as allreduce or alltoall"))?;
    let protocol: Protocol = text_of("proto")?.parse().map_err(|e| named(e, "proto is Simple, LL or LL128"))?;
    let (ranks, channels) = (file.needed::<u32>(root, "ngpus")?, file.needed::<u32>(root, "nchannels")?);
    let chunks: u64 = file.needed(root, "nchunksperloop")?;
    let limits = [
        ("ngpus", u64::from(ranks), u64::from(MAX_RANKS)),
        ("nchannels", u64::from(channels), u64::from(MAX_CHANNELS)),
        ("nchunksperloop", chunks, MAX_CHUNKS),
    ];
    for (key, given, most) in limits {
        if given == 0 || given > most {
            let what = format!("{key}=\"{given}\" is not from 1 to {most}");
            return Err(file.error(line, what, "a schedule of that size cannot be run"));
        }
    }
    if collective.size_is_total() && !chunks.is_multiple_of(u64::from(ranks)) {
        let what = format!("nchunksperloop=\"{chunks}\" is no multiple of the {ranks} ranks, each of which has a part");
        return Err(file.error(line, what, format!("a part of {collective} has a whole number of chunks")));
    }
    let flag = |key: &str| Ok(file.number::<u32>(root, key)?.map(|v| v != 0));
    let in_place = flag("inplace")?.unwrap_or(false);
    let mut imported = Imported {
        name: root.attribute("name").unwrap_or("unnamed").to_owned(),
        collective,
        protocol,
        ranks,
        channels,
        chunks,
        in_place,
        out_of_place: flag("outofplace")?.unwrap_or(!in_place),
        min_bytes: file.number(root, "minBytes")?,
        max_bytes: file.number(root, "maxBytes")?,
        threads: file.number(root, "nthreads")?,
        file: name.to_owned(),
        line,
        gpus: vec![],
    };
    if let Some(threads) = imported.threads.filter(|t| !t.is_multiple_of(32) || !(32..=1024).contains(t)) {
        let what = format!("nthreads=\"{threads}\" is no number of warps of one block");
        return Err(file.error(line, what, "give a multiple of 32 up to 1024"));
    }
    let mut gpus: Vec<Option<Gpu>> = Vec::new();
    gpus.resize_with(ranks as usize, || None);
    for node in children(root, &["gpu"]) {
        let id: u32 = file.needed(node, "id")?;
        let Some(place) = gpus.get_mut(id as usize).filter(|g| g.is_none()) else {
            let what = format!("gpu {id} is there twice, or not one of the {ranks} that ngpus says");
            return Err(file.error(file.line(node), what, "number GPUs from 0, each once"));
        };
        *place = Some(gpu(&file, &imported, node, id)?);
    }
    for (id, gpu) in gpus.into_iter().enumerate() {
        let missing = || file.error(line, format!("gpu {id} is missing"), format!("ngpus says that there are {ranks}"));
        imported.gpus.push(gpu.ok_or_else(missing)?);
    }
    check(&file, &imported)?;
    Ok(imported)
}

fn children<'a, 'i>(node: Node<'a, 'i>, names: &'a [&'a str]) -> impl Iterator<Item = Node<'a, 'i>> {
    node.children().filter(move |n| names.contains(&n.tag_name().name()))
}

/// Chunks of the input and the output of a rank.
fn lengths(imported: &Imported) -> (u64, u64) {
    let part = imported.chunks / u64::from(imported.ranks);
    match imported.collective {
        Collective::AllGather | Collective::Gather => (part, imported.chunks),
        Collective::ReduceScatter | Collective::Scatter => (imported.chunks, part),
        _ => (imported.chunks, imported.chunks),
    }
}

fn gpu(file: &File<'_>, imported: &Imported, node: Node<'_, '_>, id: u32) -> Result<Gpu, MscclError> {
    let (input, output) = lengths(imported);
    for (key, expected) in [("i_chunks", input), ("o_chunks", output)] {
        let given = file.optional(node, key)?.unwrap_or(0);
        if given != 0 && given != expected {
            let what = format!(
                "{key}=\"{given}\" of gpu {id}, but {} of {} chunks has {expected}",
                imported.collective, imported.chunks
            );
            return Err(file.error(file.line(node), what, "make it agree with nchunksperloop, ngpus and coll"));
        }
    }
    let scratch = file.optional(node, "s_chunks")?.unwrap_or(0);
    if scratch > MAX_CHUNKS {
        return Err(file.error(
            file.line(node),
            format!("s_chunks=\"{scratch}\" is over {MAX_CHUNKS}"),
            "use less scratch",
        ));
    }
    let mut blocks: Vec<(u64, Block)> = Vec::new();
    for node in children(node, &["tb"]) {
        let line = file.line(node);
        let number: u64 = file.needed(node, "id")?;
        let channel = file.optional(node, "chan")?.unwrap_or(0);
        if channel >= u64::from(imported.channels) {
            let what = format!("chan=\"{channel}\" of tb {number} is not below nchannels=\"{}\"", imported.channels);
            return Err(file.error(line, what, "raise nchannels"));
        }
        let peer = |key: &str| match file.optional(node, key)? {
            Some(peer) if peer >= u64::from(imported.ranks) || peer == u64::from(id) => {
                let what = format!("{key}=\"{peer}\" of tb {number} on gpu {id} is no other GPU");
                Err(file.error(line, what, format!("name a GPU from 0 to {}, or -1 for none", imported.ranks - 1)))
            }
            peer => Ok(peer.and_then(|p| u32::try_from(p).ok())),
        };
        let (send, recv) = (peer("send")?, peer("recv")?);
        let mut steps = Vec::new();
        for node in children(node, &["step", "op"]) {
            let at = steps.len() as u64;
            let given = file.optional(node, "s")?.or(file.optional(node, "step")?).unwrap_or(at);
            if given != at {
                let what = format!("step {given} of tb {number} on gpu {id} stands where step {at} should");
                return Err(file.error(file.line(node), what, "number the steps of a block from 0, in order"));
            }
            let step = instruction(file, node, [input, output, scratch])?;
            for (needs, has, what) in
                [(step.kind.receives(), recv.is_some(), "receives"), (step.kind.sends(), send.is_some(), "sends")]
            {
                if needs && !has {
                    let what = format!("`{}` {what}, but tb {number} on gpu {id} has no peer for it", step.kind.name());
                    return Err(file.error(
                        step.line,
                        what,
                        "give the block a send or recv peer, or take another step",
                    ));
                }
            }
            steps.push(step);
        }
        let channel = u32::try_from(channel).unwrap_or(0);
        blocks.push((number, Block { send, recv, channel, steps, line }));
    }
    blocks.sort_by_key(|b| b.0);
    if let Some((at, (number, block))) = (0..).zip(&blocks).find(|(at, b)| *at != b.0) {
        let what = format!("tb {number} of gpu {id} stands where tb {at} should");
        return Err(file.error(block.line, what, "number the blocks of a GPU from 0, without holes"));
    }
    Ok(Gpu { scratch, blocks: blocks.into_iter().map(|b| b.1).collect() })
}

/// `lengths`: chunks of input, output and scratch.
fn instruction(file: &File<'_>, node: Node<'_, '_>, lengths: [u64; 3]) -> Result<Instruction, MscclError> {
    let line = file.line(node);
    let name = node.attribute("type").unwrap_or("");
    let Some(&(kind, _)) = Kind::ALL.iter().find(|k| k.1 == name) else {
        let what = if name == "ra" {
            "`ra` adds a residual, which no collective here has".to_owned()
        } else {
            format!("`{name}` is no step that is known")
        };
        let known: Vec<&str> = Kind::ALL.iter().map(|k| k.1).collect();
        return Err(file.error(line, what, format!("known are {}", known.join(", "))));
    };
    let whole = |key: &str| match file.optional(node, key)? {
        None if node.has_attribute(key) => {
            let what = format!("{key}=\"-1\" of a step that needs it");
            Err(file.error(line, what, format!("give {key} from 0 on")))
        }
        given => Ok(given),
    };
    let count = if kind == Kind::Nothing { 0 } else { whole("cnt")?.unwrap_or(1) };
    let place = |used: bool, buffer: &str, offset: &str| -> Result<Place, MscclError> {
        let text = node.attribute(buffer).or(node.attribute("buf")).unwrap_or("i");
        let (which, index) = match text {
            "i" => (Buffer::Input, 0),
            "o" => (Buffer::Output, 1),
            "s" => (Buffer::Scratch, 2),
            _ if !used => (Buffer::Input, 0),
            _ => {
                let what = format!("`{text}` is no buffer");
                return Err(file.error(line, what, "buffers are i (input), o (output) and s (scratch)"));
            }
        };
        if !used {
            return Ok((which, 0));
        }
        let at = match whole(offset)? {
            Some(at) => at,
            None => whole("off")?.unwrap_or(0),
        };
        if at.checked_add(count).is_none_or(|end| end > lengths[index]) {
            let what =
                format!("chunks {at} to {} of buffer {text}, which has {}", at.saturating_add(count), lengths[index]);
            return Err(file.error(line, what, "keep offset and cnt inside i_chunks, o_chunks or s_chunks"));
        }
        Ok((which, at))
    };
    let block = file.optional(node, "depid")?;
    let step = file.optional(node, "deps")?;
    let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    Ok(Instruction {
        kind,
        src: place(kind.reads(), "srcbuf", "srcoff")?,
        dst: place(kind.writes(), "dstbuf", "dstoff")?,
        count,
        after: block.zip(step).map(|(b, s)| (index(b), index(s))),
        tells: file.optional(node, "hasdep")?.is_some_and(|n| n != 0),
        line,
    })
}

/// Whether connections have two ends that agree, tokens are given, and something can always go on.
fn check(file: &File<'_>, imported: &Imported) -> Result<(), MscclError> {
    let mut order = StepOrder::new(file, imported);
    let mut conns = FxHashMap::default();
    for (rank, gpu) in imported.gpus.iter().enumerate() {
        for (index, block) in gpu.blocks.iter().enumerate() {
            order.add_block(rank, index, block)?;
            add_ends(file, &mut conns, rank, index, block)?;
        }
    }
    let mut conns: Vec<_> = conns.into_iter().collect();
    conns.sort_unstable();
    for (conn, ends) in conns {
        order.add_messages(conn, ends)?;
    }
    order.check_cycles()
}

/// Sender, receiver and channel.
type Conn = (u32, u32, u32);
/// GPU and block that send, and that receive.
type Ends = [Option<(usize, usize)>; 2];

impl Kind {
    fn has_end(self, sends: bool) -> bool {
        if sends { self.sends() } else { self.receives() }
    }
}

/// Notes a block at the ends of its connections, each of which is one block's alone.
fn add_ends(
    file: &File<'_>,
    conns: &mut FxHashMap<Conn, Ends>,
    gpu: usize,
    index: usize,
    block: &Block,
) -> Result<(), MscclError> {
    let rank = u32::try_from(gpu).unwrap_or(u32::MAX);
    let ends = [(block.send.map(|p| (rank, p)), true), (block.recv.map(|p| (p, rank)), false)];
    for (pair, sends) in ends {
        let Some((src, dst)) = pair else { continue };
        if !block.steps.iter().any(|s| s.kind.has_end(sends)) {
            continue;
        }
        let end = &mut conns.entry((src, dst, block.channel)).or_default()[usize::from(!sends)];
        if end.replace((gpu, index)).is_some() {
            let verb = if sends { "send" } else { "receive" };
            let what = format!("two blocks of gpu {gpu} {verb} between {src} and {dst} on channel {}", block.channel);
            return Err(file.error(block.line, what, "give one of them another chan"));
        }
    }
    Ok(())
}

/// Which step comes before which, over all blocks of a file.
struct StepOrder<'a> {
    file: &'a File<'a>,
    imported: &'a Imported,
    /// By GPU and block: the number of its first step among all.
    firsts: Vec<Vec<usize>>,
    /// By step: its line.
    lines: Vec<u32>,
    /// By step: those that wait for it.
    edges: Vec<Vec<usize>>,
}

impl<'a> StepOrder<'a> {
    /// Numbers all steps, in no order yet.
    fn new(file: &'a File<'a>, imported: &'a Imported) -> Self {
        let mut lines = Vec::new();
        let mut number = |block: &Block| {
            let first = lines.len();
            lines.extend(block.steps.iter().map(|s| s.line));
            first
        };
        let firsts = imported.gpus.iter().map(|gpu| gpu.blocks.iter().map(&mut number).collect()).collect();
        let edges = vec![Vec::new(); lines.len()];
        Self { file, imported, firsts, lines, edges }
    }

    /// The steps of a block come one after another, and after those of its GPU that they name.
    fn add_block(&mut self, gpu: usize, index: usize, block: &Block) -> Result<(), MscclError> {
        let first = self.firsts[gpu][index];
        for at in 1..block.steps.len() {
            self.edges[first + at - 1].push(first + at);
        }
        let blocks = &self.imported.gpus[gpu].blocks;
        for (at, step) in block.steps.iter().enumerate() {
            let Some((other, wanted)) = step.after else { continue };
            let what = match blocks.get(other).and_then(|b| b.steps.get(wanted)) {
                None => Some(format!("waits for step {wanted} of tb {other}, which gpu {gpu} does not have")),
                Some(told) if other != index && !told.tells => {
                    Some(format!("waits for step {wanted} of tb {other}, which has hasdep=\"0\" and never tells"))
                }
                Some(_) => None,
            };
            if let Some(what) = what {
                let hint = "name a step of this GPU in depid and deps, and set its hasdep";
                return Err(self.file.error(step.line, what, hint));
            }
            self.edges[self.firsts[gpu][other] + wanted].push(first + at);
        }
        Ok(())
    }

    /// What is received on a connection comes after what is sent, message by message.
    fn add_messages(&mut self, (src, dst, channel): Conn, ends: Ends) -> Result<(), MscclError> {
        let (sent, received) = (self.steps_of(ends[0], true), self.steps_of(ends[1], false));
        let name = format!("from gpu {src} to gpu {dst} on channel {channel}");
        for (a, b) in sent.iter().zip(&received) {
            if a.1.count != b.1.count {
                let what =
                    format!("{} chunks are received {name}, but line {} sends {}", b.1.count, a.1.line, a.1.count);
                return Err(self.file.error(b.1.line, what, "give both steps the same cnt"));
            }
        }
        if sent.len() != received.len() {
            let line = |list: &[(usize, &Instruction)]| list.last().map(|s| s.1.line);
            let what = format!("{} steps send {name}, and {} receive", sent.len(), received.len());
            let line = line(&sent).or(line(&received)).unwrap_or(self.imported.line);
            return Err(self.file.error(line, what, "pair every send with one receive on the same channel"));
        }
        for (a, b) in sent.iter().zip(&received) {
            self.edges[a.0].push(b.0);
        }
        Ok(())
    }

    /// The steps of a block that send, or that receive, with their numbers.
    fn steps_of(&self, end: Option<(usize, usize)>, sends: bool) -> Vec<(usize, &'a Instruction)> {
        let Some((gpu, block)) = end else { return Vec::new() };
        let steps = (self.firsts[gpu][block]..).zip(&self.imported.gpus[gpu].blocks[block].steps);
        steps.filter(|(_, s)| s.kind.has_end(sends)).collect()
    }

    /// Takes away the steps that wait for nothing; what cannot be taken waits for itself.
    fn check_cycles(&self) -> Result<(), MscclError> {
        let mut open = vec![0_u32; self.lines.len()];
        self.edges.iter().flatten().for_each(|&to| open[to] += 1);
        let mut ready: Vec<usize> = (0..open.len()).filter(|&s| open[s] == 0).collect();
        while let Some(step) = ready.pop() {
            for &to in &self.edges[step] {
                open[to] -= 1;
                if open[to] == 0 {
                    ready.push(to);
                }
            }
        }
        let Some(step) = open.iter().position(|&o| o > 0) else { return Ok(()) };
        let waiting = open.iter().filter(|&&o| o > 0).count();
        let what =
            format!("a cycle: this step and {} others wait for each other, by depid or by messages", waiting - 1);
        Err(self.file.error(self.lines[step], what, "reorder the steps of a block, or drop a dependency"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: lines are those that the XML parser counts, and a line is found without reading the text again.
    #[test]
    fn lines_are_those_of_the_xml_parser() {
        let text = "<algo>\r\n<gpu/>\n\n  <gpu>\n<tb a='\n'/><tb/></gpu></algo>\n";
        let (tree, lines) = (Document::parse(text).unwrap(), Lines::new(text));
        assert_eq!(lines.0.len(), 1 + text.matches('\n').count());
        for byte in 0..text.len() {
            assert_eq!(lines.of(byte), tree.text_pos_at(byte).row, "{byte}");
        }
    }

    /// Goal: attributes are counted in tags alone, whatever stands between quotes, in comments and instructions.
    #[test]
    fn attributes_are_counted_in_tags() {
        let many = |n: usize| (0..n).map(|i| format!(" a{i}='>\"'")).collect::<String>();
        let file = |text: &str| File { name: "", lines: Lines::new(text) }.check_attributes(text);
        let quotes = "\"".repeat(999);
        for good in [
            format!("<?xml version=\"1.0\"?><!-- {quotes} <a{} --><algo{}/>", many(99), many(MAX_ATTRIBUTES)),
            format!("<algo><![CDATA[{quotes}]]>{quotes}<a{}></a>", many(2)).repeat(40),
            "<algo a=\"".to_owned(),
            "<!-- ".to_owned(),
        ] {
            file(&good).unwrap();
        }
        let error = file(&format!("<algo>\n<a{}/></algo>", many(MAX_ATTRIBUTES + 1))).unwrap_err();
        assert!(error.what.contains("an element has over 64 attributes") && error.line == 2, "{error}");
    }
}
