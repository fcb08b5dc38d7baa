//! What a table cannot say at a glance: pictures as data, which `svg` draws.
//!
//! A figure holds values in the units of its axes, and no place on a screen.

use std::collections::BTreeMap;

use collcast_sim::ids::LinkId;
use collcast_sim::topology::Topology;

use crate::palette::{COLOURS, Hue};

/// A picture with a heading and a sentence.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Heading.
    pub title: String,
    /// What to read off it, for those who see it and for those who do not.
    pub caption: String,
    /// The picture.
    pub drawing: Drawing,
}

/// The kinds of picture.
#[derive(Clone, PartialEq, Debug)]
pub enum Drawing {
    /// Points, lines and bands over two axes.
    Plane(Plane),
    /// Which choice holds from where to where.
    Map(Map),
    /// Lengths beside each other.
    Bars(Bars),
    /// What happens when, by who does it.
    Timeline(Timeline),
    /// Who sends what to whom, step by step.
    Steps(Steps),
    /// A machine, and how busy its links are.
    Machine(Box<Machine>),
}

/// How an axis counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Bytes: logarithmic, in binary sizes.
    Bytes,
    /// Ranks and others that come in powers of two: logarithmic, in these.
    Powers,
    /// Logarithmic.
    Log,
    /// Even.
    Linear,
}

/// An axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// What it counts, with its unit in brackets.
    pub label: String,
    /// How.
    pub scale: Scale,
}

/// Points, lines and bands over two axes.
#[derive(Clone, PartialEq, Debug)]
pub struct Plane {
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// What is drawn, the first lowest.
    pub series: Vec<Series>,
}

/// Some points of a [`Plane`] that belong together.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Series {
    /// In the legend; empty for what needs no word there.
    pub label: String,
    /// Colour.
    pub hue: Hue,
    /// How points look, and lines between them.
    pub stroke: Stroke,
    /// Measured values, or others that stand for themselves.
    pub points: Vec<Point>,
    /// Joined values.
    pub line: Vec<Point>,
    /// Where values probably lie: place, from, to.
    pub band: Vec<(f64, f64, f64)>,
}

/// A value of a [`Plane`].
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Point {
    /// Along the x axis.
    pub x: f64,
    /// Along the y axis.
    pub y: f64,
    /// What else there is to say of it.
    pub note: String,
}

/// How a line is drawn, and the marks of its series: what colour alone must not say.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Stroke {
    /// Without a gap; circles.
    #[default]
    Solid,
    /// Dashes; squares.
    Dashed,
    /// Dots; triangles.
    Dotted,
    /// Thin, without marks: a reference.
    Thin,
}

/// Which choice holds from where to where along one axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Map {
    /// The axis.
    pub x: Axis,
    /// Rows, from the top.
    pub rows: Vec<MapRow>,
}

/// One row of a [`Map`].
#[derive(Clone, PartialEq, Debug)]
pub struct MapRow {
    /// What it is of.
    pub label: String,
    /// Its ranges, in order.
    pub ranges: Vec<Range>,
}

/// From where to where one choice holds, both ends included.
#[derive(Clone, PartialEq, Debug)]
pub struct Range {
    /// Where it begins; 0 where nothing is before it.
    pub from: f64,
    /// Where it ends; infinite where it ends nowhere.
    pub to: f64,
    /// The choice in words, the most important first.
    pub words: Vec<String>,
    /// Its colour.
    pub hue: Hue,
}

/// Lengths beside each other.
#[derive(Clone, PartialEq, Debug)]
pub struct Bars {
    /// What they count, with its unit in brackets.
    pub label: String,
    /// Bars, from the top.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Clone, PartialEq, Debug)]
pub struct Bar {
    /// What it is of.
    pub label: String,
    /// Parts, joined end to end: name, length, colour. Below zero they go to the left.
    pub parts: Vec<(String, f64, Hue)>,
}

/// What happens when, by who does it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Timeline {
    /// Who, from the top.
    pub lanes: Vec<String>,
    /// What: the lane, from and to in microseconds, the name, the colour. Names of one colour are one kind.
    pub spans: Vec<Span>,
}

/// Something that lasted, on a lane of a [`Timeline`].
#[derive(Clone, PartialEq, Debug)]
pub struct Span {
    /// Place of the lane.
    pub lane: usize,
    /// When it began, in microseconds.
    pub from: f64,
    /// When it ended, in microseconds.
    pub to: f64,
    /// What it was.
    pub name: String,
    /// Its colour.
    pub hue: Hue,
}

/// Who sends what to whom, step by step.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Steps {
    /// Who.
    pub ranks: Vec<String>,
    /// The messages of each step.
    pub steps: Vec<Vec<Message>>,
}

/// A message of one step.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Message {
    /// Place of who sends.
    pub from: usize,
    /// Place of who receives.
    pub to: usize,
    /// What it carries, in a word.
    pub what: String,
}

/// A machine, and how busy its links are.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The machine.
    pub topology: Topology,
    /// When: the whole time first, then parts of it, if any.
    pub times: Vec<String>,
    /// The share of its rate that each link direction carries, at each of the times; a link that is not here carries
    /// nothing.
    pub busy: BTreeMap<LinkId, Vec<f64>>,
}

impl PartialEq for Machine {
    fn eq(&self, other: &Self) -> bool {
        let (own, others) = (&self.topology, &other.topology);
        own.name == others.name
            && own.vertices().map(|(_, vertex)| vertex).eq(others.vertices().map(|(_, vertex)| vertex))
            && own.links().eq(others.links())
            && self.times == other.times
            && self.busy == other.busy
    }
}

impl Figure {
    /// A picture.
    pub fn new(title: impl Into<String>, caption: impl Into<String>, drawing: Drawing) -> Self {
        Self { title: title.into(), caption: caption.into(), drawing }
    }
}

impl Stroke {
    /// That of the n-th thing of a picture: another one once all colours are used up.
    pub fn nth(index: usize) -> Self {
        [Self::Solid, Self::Dashed, Self::Dotted][index / COLOURS.len() % 3]
    }
}

impl Axis {
    /// Message sizes.
    pub fn bytes() -> Self {
        Self { label: "size".to_owned(), scale: Scale::Bytes }
    }

    /// Counts in powers of two.
    pub fn count(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Powers }
    }

    /// A logarithmic axis.
    pub fn log(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Log }
    }

    /// An even axis.
    pub fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Linear }
    }
}

impl Point {
    /// A value without a note.
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y, note: String::new() }
    }
}
