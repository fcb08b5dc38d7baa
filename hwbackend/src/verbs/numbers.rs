//! Elements as bytes: filled, combined and compared as `check` says.

use collcast_sim::collective::{DataType, ReduceOp};
use half::{bf16, f16};

use crate::exec::ExecError;

/// A type of element that results are checked in.
pub(crate) trait Number: Copy + PartialEq {
    /// A small whole number.
    fn of(value: u32) -> Self;
    /// The sum.
    fn sum(self, other: Self) -> Self;
    /// Whether it is the smaller one.
    fn below(self, other: Self) -> bool;
}

macro_rules! number {
    ($type:ty, $of:expr, $sum:expr) => {
        impl Number for $type {
            fn of(value: u32) -> Self {
                $of(value)
            }
            fn sum(self, other: Self) -> Self {
                $sum(self, other)
            }
            fn below(self, other: Self) -> bool {
                self < other
            }
        }
    };
}
number!(f32, |v| v as f32, |a, b| a + b);
number!(i32, u32::cast_signed, i32::wrapping_add);
number!(f16, |v| Self::from_f32(v as f32), |a: Self, b: Self| Self::from_f32(a.to_f32() + b.to_f32()));
number!(bf16, |v| Self::from_f32(v as f32), |a: Self, b: Self| Self::from_f32(a.to_f32() + b.to_f32()));

/// The value of an element, by its index.
type Values<'a> = &'a dyn Fn(u64) -> u32;

/// What is done with bytes of one type and reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    /// Combines as many bytes of the second place into the first.
    ///
    /// # Safety
    /// Both places have so many bytes.
    pub(crate) combine: unsafe fn(*mut u8, *const u8, usize),
    /// Writes the values of elements, given by their index.
    pub(crate) fill: fn(&mut [u8], Values<'_>),
    /// Indices of elements that are not what they must be: how many, and the first.
    pub(crate) compare: fn(&[u8], Values<'_>) -> (u64, Option<u64>),
}

impl Arithmetic {
    /// Of a type and a reduction.
    ///
    /// # Errors
    /// One that is not checked.
    pub(crate) fn of(dtype: DataType, op: ReduceOp) -> Result<Self, ExecError> {
        match dtype {
            DataType::Float32 => Ok(Self::with::<f32>(op)),
            DataType::Int32 => Ok(Self::with::<i32>(op)),
            DataType::Float16 => Ok(Self::with::<f16>(op)),
            DataType::Bfloat16 => Ok(Self::with::<bf16>(op)),
            other => Err(ExecError::Refused {
                what: format!("the verbs backend does not know {other}"),
                hint: "it knows float32, float16, bfloat16 and int32",
            }),
        }
    }

    fn with<T: Number>(op: ReduceOp) -> Self {
        let combine = match op {
            ReduceOp::Min => combine::<T, Min>,
            ReduceOp::Max => combine::<T, Max>,
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Prod => combine::<T, Sum>,
        };
        Self { combine, fill: fill::<T>, compare: compare::<T> }
    }
}

trait Reduce {
    fn of<T: Number>(a: T, b: T) -> T;
}
struct Sum;
struct Min;
struct Max;
impl Reduce for Sum {
    fn of<T: Number>(a: T, b: T) -> T {
        a.sum(b)
    }
}
impl Reduce for Min {
    fn of<T: Number>(a: T, b: T) -> T {
        if b.below(a) { b } else { a }
    }
}
impl Reduce for Max {
    fn of<T: Number>(a: T, b: T) -> T {
        if a.below(b) { b } else { a }
    }
}

unsafe fn combine<T: Number, R: Reduce>(to: *mut u8, from: *const u8, bytes: usize) {
    let (to, from) = (to.cast::<T>(), from.cast::<T>());
    for index in 0..bytes / size_of::<T>() {
        // SAFETY: inside, as the caller says; both may be one place.
        unsafe {
            let value = R::of(to.add(index).read_unaligned(), from.add(index).read_unaligned());
            to.add(index).write_unaligned(value);
        }
    }
}

fn fill<T: Number>(bytes: &mut [u8], value: Values<'_>) {
    for (index, element) in (0..).zip(bytes.chunks_exact_mut(size_of::<T>())) {
        // SAFETY: as many bytes as an element has.
        unsafe { element.as_mut_ptr().cast::<T>().write_unaligned(T::of(value(index))) };
    }
}

fn compare<T: Number>(bytes: &[u8], value: Values<'_>) -> (u64, Option<u64>) {
    let (mut wrong, mut first) = (0, None);
    for (index, element) in (0..).zip(bytes.chunks_exact(size_of::<T>())) {
        // SAFETY: as many bytes as an element has; every bit pattern is one.
        let found = unsafe { element.as_ptr().cast::<T>().read_unaligned() };
        if found != T::of(value(index)) {
            (wrong, first) = (wrong + 1, first.or(Some(index)));
        }
    }
    (wrong, first)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every type and reduction gives what it must, by hand: 3 and 5; poison is never right.
    #[test]
    fn elements_are_combined_and_compared() {
        for dtype in [DataType::Float32, DataType::Int32, DataType::Float16, DataType::Bfloat16] {
            for (op, expected) in [(ReduceOp::Sum, 8), (ReduceOp::Min, 3), (ReduceOp::Max, 5)] {
                let with = Arithmetic::of(dtype, op).unwrap();
                let length = 3 * dtype.size() as usize;
                let (mut a, mut b) = (vec![0; length], vec![0; length]);
                (with.fill)(&mut a, &|_| 3);
                (with.fill)(&mut b, &|_| 5);
                // SAFETY: both have so many bytes.
                unsafe { (with.combine)(a.as_mut_ptr(), b.as_ptr(), length) };
                assert_eq!((with.compare)(&a, &|_| expected), (0, None), "{dtype} {op}");
                assert_eq!((with.compare)(&a, &|i| expected + u32::from(i > 0)), (2, Some(1)), "{dtype} {op}");
                a.fill(crate::check::POISON);
                assert_eq!((with.compare)(&a, &|_| expected), (3, Some(0)), "{dtype} {op}");
            }
        }
        assert!(Arithmetic::of(DataType::Float64, ReduceOp::Sum).is_err());
    }
}
