//! Values of any kind: what others write is no schema, and one odd value is no reason to refuse a file.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

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

impl<'de> Deserialize<'de> for Loose {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Loose;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_i64<E>(self, value: i64) -> Result<Loose, E> {
                Ok(Loose::Whole(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Loose, E> {
                Ok(i64::try_from(value).map_or(Loose::Other, Loose::Whole))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Loose, E> {
                Ok(Loose::Number(value))
            }

            fn visit_str<E>(self, value: &str) -> Result<Loose, E> {
                Ok(Loose::Text(value.to_owned()))
            }

            fn visit_string<E>(self, value: String) -> Result<Loose, E> {
                Ok(Loose::Text(value))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Loose, E> {
                Ok(Loose::Other)
            }

            fn visit_unit<E>(self) -> Result<Loose, E> {
                Ok(Loose::Other)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Loose, A::Error> {
                while parts.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Loose::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut parts: A) -> Result<Loose, A::Error> {
                while parts.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Loose::Other)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// An object of which some keys matter.
pub(super) trait Keyed: Default {
    /// Those keys.
    const KEYS: &'static [&'static str];

    /// Takes the value of one.
    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, parts: &mut A) -> Result<(), A::Error>;
}

/// Declares such objects: `"key" => field: type`. Of a key that is there twice the last value counts, as in Python; what is no
/// object is an empty one.
macro_rules! objects {
    ($($(#[$doc:meta])* struct $name:ident { $($key:literal => $field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Default)]
        struct $name {
            $($field: $kind,)*
        }

        impl $crate::trace::loose::Keyed for $name {
            const KEYS: &'static [&'static str] = &[$($key),*];

            fn take<'de, A: serde::de::MapAccess<'de>>(&mut self, key: &str, parts: &mut A) -> Result<(), A::Error> {
                match key {
                    $($key => self.$field = parts.next_value()?,)*
                    _ => drop(parts.next_value::<serde::de::IgnoredAny>()?),
                }
                Ok(())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::trace::loose::object(deserializer)
            }
        }
    )*};
}
pub(super) use objects;

/// Reads one.
pub(super) fn object<'de, T: Keyed, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_any(Object(PhantomData))
}

struct Object<T>(PhantomData<T>);

impl<'de, T: Keyed> Visitor<'de> for Object<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_u64<E>(self, _: u64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<T, A::Error> {
        while parts.next_element::<IgnoredAny>()?.is_some() {}
        Ok(T::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut parts: A) -> Result<T, A::Error> {
        let mut read = T::default();
        while let Some(key) = parts.next_key_seed(Key(T::KEYS))? {
            read.take(key, &mut parts)?;
        }
        Ok(read)
    }
}

/// The one of these keys that a text is, empty where it is none: without a copy of the text.
struct Key(&'static [&'static str]);

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

impl<'de> Deserialize<'de> for Ranks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Ranks;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of ranks")
            }

            fn visit_str<E>(self, text: &str) -> Result<Ranks, E> {
                Ok(Ranks::of_text(text))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Ranks, E> {
                Ok(Ranks::default())
            }

            fn visit_u64<E>(self, _: u64) -> Result<Ranks, E> {
                Ok(Ranks::default())
            }

            fn visit_f64<E>(self, _: f64) -> Result<Ranks, E> {
                Ok(Ranks::default())
            }

            fn visit_bool<E>(self, _: bool) -> Result<Ranks, E> {
                Ok(Ranks::default())
            }

            fn visit_unit<E>(self) -> Result<Ranks, E> {
                Ok(Ranks::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Ranks, A::Error> {
                let mut ranks = Some(Vec::new());
                while let Some(part) = parts.next_element::<Loose>()? {
                    let rank = part.count().and_then(|rank| u32::try_from(rank).ok());
                    match (&mut ranks, rank) {
                        (Some(ranks), Some(rank)) if ranks.len() < RANKS_MAX => ranks.push(rank),
                        _ => ranks = None,
                    }
                }
                Ok(Ranks(ranks.unwrap_or_default()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut parts: A) -> Result<Ranks, A::Error> {
                while parts.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Ranks::default())
            }
        }
        deserializer.deserialize_any(List)
    }
}

/// Elements of all tensors: a list of lists of sizes. 0 where it is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Elements(pub(super) u64);

/// A list of sizes, or a size.
struct Dims(u64, bool);

macro_rules! nothing {
    ($value:ty, $nothing:expr) => {
        fn visit_f64<E>(self, _: f64) -> Result<$value, E> {
            Ok($nothing)
        }
        fn visit_bool<E>(self, _: bool) -> Result<$value, E> {
            Ok($nothing)
        }
        fn visit_unit<E>(self) -> Result<$value, E> {
            Ok($nothing)
        }
        fn visit_str<E>(self, _: &str) -> Result<$value, E> {
            Ok($nothing)
        }
        fn visit_map<A: MapAccess<'de>>(self, mut parts: A) -> Result<$value, A::Error> {
            while parts.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok($nothing)
        }
    };
}

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Sizes;
        impl<'de> Visitor<'de> for Sizes {
            type Value = Dims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("sizes of a tensor")
            }

            fn visit_u64<E>(self, size: u64) -> Result<Dims, E> {
                Ok(Dims(size, true))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Dims, E> {
                Ok(Dims(0, true))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sizes: A) -> Result<Dims, A::Error> {
                let mut product = 1_u64;
                while let Some(size) = sizes.next_element::<Loose>()? {
                    product = product.saturating_mul(size.count().unwrap_or(0));
                }
                Ok(Dims(product, false))
            }

            nothing!(Dims, Dims(0, true));
        }
        deserializer.deserialize_any(Sizes)
    }
}

impl<'de> Deserialize<'de> for Elements {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tensors;
        impl<'de> Visitor<'de> for Tensors {
            type Value = Elements;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("sizes of tensors")
            }

            fn visit_u64<E>(self, _: u64) -> Result<Elements, E> {
                Ok(Elements(0))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Elements, E> {
                Ok(Elements(0))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut tensors: A) -> Result<Elements, A::Error> {
                // One tensor may stand without a list of its own.
                let (mut sum, mut product) = (0_u64, None::<u64>);
                while let Some(Dims(size, bare)) = tensors.next_element()? {
                    match bare {
                        true => product = Some(product.unwrap_or(1).saturating_mul(size)),
                        false => sum = sum.saturating_add(size),
                    }
                }
                Ok(Elements(sum.saturating_add(product.unwrap_or(0))))
            }

            nothing!(Elements, Elements(0));
        }
        deserializer.deserialize_any(Tensors)
    }
}
