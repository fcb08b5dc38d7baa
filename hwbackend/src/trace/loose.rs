//! Values of any kind: what others write is no schema, and one odd value is no reason to refuse a file.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What is made of a value of any kind: the default of kinds that it says nothing of.
pub(super) trait Lenient: Default {
    /// Of a number without a fraction.
    fn whole(_: i64) -> Self {
        Self::default()
    }

    /// Of another number.
    fn number(_: f64) -> Self {
        Self::default()
    }

    /// Of yes or no.
    fn flag(_: bool) -> Self {
        Self::default()
    }

    /// Of words.
    fn words(_: &str) -> Self {
        Self::default()
    }

    /// Of a list, which is read to its end.
    fn list<'de, A: SeqAccess<'de>>(mut parts: A) -> Result<Self, A::Error> {
        while parts.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }

    /// Of an object, which is read to its end.
    fn object<'de, A: MapAccess<'de>>(mut parts: A) -> Result<Self, A::Error> {
        while parts.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }
}

/// Reads one.
pub(super) struct Any<T>(pub(super) PhantomData<T>);

impl<'de, T: Lenient> Visitor<'de> for Any<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_i64<E>(self, value: i64) -> Result<T, E> {
        Ok(T::whole(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<T, E> {
        Ok(i64::try_from(value).map_or_else(|_| T::default(), T::whole))
    }

    fn visit_f64<E>(self, value: f64) -> Result<T, E> {
        Ok(T::number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<T, E> {
        Ok(T::words(value))
    }

    fn visit_bool<E>(self, value: bool) -> Result<T, E> {
        Ok(T::flag(value))
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, parts: A) -> Result<T, A::Error> {
        T::list(parts)
    }

    fn visit_map<A: MapAccess<'de>>(self, parts: A) -> Result<T, A::Error> {
        T::object(parts)
    }
}

/// Reads values of these types so.
macro_rules! lenient {
    ($($kind:ty),*) => {$(
        impl<'de> serde::Deserialize<'de> for $kind {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any($crate::trace::loose::Any(std::marker::PhantomData))
            }
        }
    )*};
}
pub(super) use lenient;
lenient!(Loose, Ranks, Dims, Elements);

/// A value of which only numbers and words matter.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) enum Loose {
    /// A number without a fraction.
    Whole(i64),
    /// Another number.
    Number(f64),
    /// Words.
    Text(String),
    /// Anything else.
    #[default]
    Other,
}

impl Loose {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A count: a number, or words that are one.
    pub(super) fn count(&self) -> Option<u64> {
        match self {
            Self::Whole(number) => u64::try_from(*number).ok(),
            Self::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    /// Microseconds as whole nanoseconds; none where they are not finite or beyond 100 years.
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "within bounds that are checked")]
    pub(super) fn nanoseconds(&self) -> Option<i64> {
        /// 100 years.
        const MOST_US: i64 = 100 * 366 * 86_400_000_000;
        match self {
            Self::Whole(us) if us.unsigned_abs() <= MOST_US.unsigned_abs() => Some(us * 1000),
            Self::Number(us) if us.abs() <= MOST_US as f64 => Some((us * 1000.0).round() as i64),
            _ => None,
        }
    }
}

impl Lenient for Loose {
    fn whole(value: i64) -> Self {
        Self::Whole(value)
    }

    fn number(value: f64) -> Self {
        Self::Number(value)
    }

    fn words(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

/// Declares objects of which some keys matter: `"key" => field: type`. Of a key that is there twice the last value counts, as
/// in Python; what is no object is an empty one.
macro_rules! objects {
    ($($(#[$doc:meta])* struct $name:ident { $($key:literal => $field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Default)]
        struct $name {
            $($field: $kind,)*
        }

        impl $crate::trace::loose::Lenient for $name {
            fn object<'de, A: serde::de::MapAccess<'de>>(mut parts: A) -> Result<Self, A::Error> {
                let mut read = Self::default();
                while let Some(key) = parts.next_key_seed($crate::trace::loose::Key(&[$($key),*]))? {
                    match key {
                        $($key => read.$field = parts.next_value()?,)*
                        _ => drop(parts.next_value::<serde::de::IgnoredAny>()?),
                    }
                }
                Ok(read)
            }
        }

        $crate::trace::loose::lenient!($name);
    )*};
}
pub(super) use objects;

/// The one of these keys that a text is, empty where it is none: without a copy of the text.
pub(super) struct Key(pub(super) &'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Key {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Key {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|key| **key == text).copied().unwrap_or_default())
    }
}

/// Most ranks of a group that are kept.
const RANKS_MAX: usize = 1 << 20;

/// Ranks of a group: a list, or text of one (`[0, 1]`). Empty where it is neither, or left out in part (`[0, ..., 7]`).
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Ranks(pub(super) Vec<u32>);

impl Ranks {
    pub(super) fn of_text(text: &str) -> Self {
        let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
        let ranks: Option<Vec<u32>> = inner
            .split(',')
            .filter(|part| !part.trim().is_empty())
            .take(RANKS_MAX)
            .map(|r| r.trim().parse().ok())
            .collect();
        Self(ranks.unwrap_or_default())
    }
}

impl Lenient for Ranks {
    fn words(text: &str) -> Self {
        Self::of_text(text)
    }

    fn list<'de, A: SeqAccess<'de>>(mut parts: A) -> Result<Self, A::Error> {
        let mut ranks = Some(Vec::new());
        while let Some(part) = parts.next_element::<Loose>()? {
            let rank = part.count().and_then(|rank| u32::try_from(rank).ok());
            match (&mut ranks, rank) {
                (Some(ranks), Some(rank)) if ranks.len() < RANKS_MAX => ranks.push(rank),
                _ => ranks = None,
            }
        }
        Ok(Self(ranks.unwrap_or_default()))
    }
}

/// Sizes of a tensor: the product of a list, or a size that stands alone.
enum Dims {
    List(u64),
    Bare(u64),
}

impl Default for Dims {
    fn default() -> Self {
        Self::Bare(0)
    }
}

impl Lenient for Dims {
    fn whole(size: i64) -> Self {
        Self::Bare(size.try_into().unwrap_or(0))
    }

    fn list<'de, A: SeqAccess<'de>>(mut sizes: A) -> Result<Self, A::Error> {
        let mut product = 1_u64;
        while let Some(size) = sizes.next_element::<Loose>()? {
            product = product.saturating_mul(size.count().unwrap_or(0));
        }
        Ok(Self::List(product))
    }
}

/// Elements of all tensors: a list of lists of sizes. 0 where it is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Elements(pub(super) u64);

impl Lenient for Elements {
    fn list<'de, A: SeqAccess<'de>>(mut tensors: A) -> Result<Self, A::Error> {
        // One tensor may stand without a list of its own.
        let (mut sum, mut product) = (0_u64, None::<u64>);
        while let Some(sizes) = tensors.next_element()? {
            match sizes {
                Dims::Bare(size) => product = Some(product.unwrap_or(1).saturating_mul(size)),
                Dims::List(elements) => sum = sum.saturating_add(elements),
            }
        }
        Ok(Self(sum.saturating_add(product.unwrap_or(0))))
    }
}
