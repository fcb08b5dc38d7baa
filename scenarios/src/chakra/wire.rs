//! Chakra's messages as they are in a file: `et_def.proto` of mlcommons/chakra, those fields that are used.

use prost::{Message, Oneof};

/// Node types of the schema.
pub(super) mod node_type {
    pub(crate) const METADATA: i32 = 1;
    pub(crate) const MEM_LOAD: i32 = 2;
    pub(crate) const MEM_STORE: i32 = 3;
    pub(crate) const COMP: i32 = 4;
    pub(crate) const COMM_SEND: i32 = 5;
    pub(crate) const COMM_RECV: i32 = 6;
    pub(crate) const COMM_COLL: i32 = 7;
}

/// The first message of a file.
#[derive(Clone, PartialEq, Message)]
pub(super) struct GlobalMetadata {
    #[prost(string, tag = "1")]
    pub(super) version: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) attr: Vec<Attribute>,
}

/// Every later message.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    /// An enumeration: see [`node_type`].
    #[prost(int32, tag = "3")]
    pub(super) kind: i32,
    #[prost(uint64, repeated, tag = "4")]
    pub(super) ctrl_deps: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub(super) data_deps: Vec<u64>,
    #[prost(uint64, tag = "7")]
    pub(super) duration_micros: u64,
    #[prost(message, optional, tag = "8")]
    pub(super) inputs: Option<Texts>,
    #[prost(message, repeated, tag = "10")]
    pub(super) attr: Vec<Attribute>,
}

/// Inputs of a node (`IOInfo`), their values alone.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Texts {
    #[prost(string, tag = "1")]
    pub(super) values: String,
}

/// A named value. Of the kinds that the schema has, lists other than of truth values are told by their name alone.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(oneof = "Value", tags = "5, 3, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 28, 29")]
    pub(super) value: Option<Value>,
}

/// A value of an attribute.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Value {
    #[prost(double, tag = "3")]
    Double(f64),
    #[prost(float, tag = "5")]
    Float(f32),
    #[prost(int32, tag = "7")]
    Int32(i32),
    #[prost(int64, tag = "9")]
    Int64(i64),
    #[prost(uint32, tag = "11")]
    Uint32(u32),
    #[prost(uint64, tag = "13")]
    Uint64(u64),
    #[prost(sint32, tag = "15")]
    Sint32(i32),
    #[prost(sint64, tag = "17")]
    Sint64(i64),
    #[prost(fixed32, tag = "19")]
    Fixed32(u32),
    #[prost(fixed64, tag = "21")]
    Fixed64(u64),
    #[prost(sfixed32, tag = "23")]
    Sfixed32(i32),
    #[prost(sfixed64, tag = "25")]
    Sfixed64(i64),
    #[prost(bool, tag = "27")]
    Bool(bool),
    #[prost(message, tag = "28")]
    Bools(Bools),
    #[prost(string, tag = "29")]
    Text(String),
}

/// A list of truth values.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Bools {
    #[prost(bool, repeated, tag = "1")]
    pub(super) values: Vec<bool>,
}

impl Attribute {
    pub(super) fn new(name: &str, value: Value) -> Self {
        Self { name: name.to_owned(), value: Some(value) }
    }

    /// A whole number, whatever its kind.
    pub(super) fn integer(&self) -> Option<i64> {
        Some(match *self.value.as_ref()? {
            Value::Int32(v) | Value::Sint32(v) | Value::Sfixed32(v) => v.into(),
            Value::Int64(v) | Value::Sint64(v) | Value::Sfixed64(v) => v,
            Value::Uint32(v) | Value::Fixed32(v) => v.into(),
            Value::Uint64(v) | Value::Fixed64(v) => i64::try_from(v).ok()?,
            Value::Bool(v) => v.into(),
            Value::Text(ref text) => text.trim().parse().ok()?,
            Value::Double(_) | Value::Float(_) | Value::Bools(_) => return None,
        })
    }

    pub(super) fn text(&self) -> Option<String> {
        match &self.value {
            Some(Value::Text(text)) => Some(text.clone()),
            _ => self.integer().map(|number| number.to_string()),
        }
    }
}
