//! Values of all constants.

use std::collections::BTreeMap;
use std::ops::Index;

use super::{Constant, Parameter};

/// A value with its origin for each constant there is, within its bounds.
#[derive(Clone, PartialEq, Debug)]
pub struct Values(
    /// By [`Constant`], in the order of [`Constant::ALL`].
    Vec<Parameter>,
);

impl Values {
    /// Those of a map that has all of them.
    ///
    /// # Errors
    /// The first constant that is missing.
    pub(super) fn complete(mut given: BTreeMap<Constant, Parameter>) -> Result<Self, Constant> {
        let take = |&constant: &Constant| given.remove(&constant).ok_or(constant);
        Constant::ALL.iter().map(take).collect::<Result<_, _>>().map(Self)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (Constant, &Parameter)> {
        let mut order = Constant::ALL.to_vec();
        order.sort_unstable();
        order.into_iter().map(|constant| (constant, &self[constant]))
    }

    /// Gives a constant another value and origin; the value nearest to it that the constant may have.
    pub fn insert(&mut self, constant: Constant, parameter: Parameter) {
        self.0[constant as usize] = Parameter { value: constant.bounded(parameter.value), ..parameter };
    }

    /// Gives a constant another value, or the nearest to it that the constant may have; its origin stays.
    pub fn set(&mut self, constant: Constant, value: f64) {
        self.0[constant as usize].value = constant.bounded(value);
    }
}

impl Index<Constant> for Values {
    type Output = Parameter;

    fn index(&self, constant: Constant) -> &Parameter {
        &self.0[constant as usize]
    }
}

impl Extend<(Constant, Parameter)> for Values {
    fn extend<I: IntoIterator<Item = (Constant, Parameter)>>(&mut self, parameters: I) {
        parameters.into_iter().for_each(|(constant, parameter)| self.insert(constant, parameter));
    }
}
