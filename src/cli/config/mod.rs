//! Defaults of options from outside: a file, and variables of the environment. What the command line says wins over a
//! variable, and that over the file. What was taken from where is told with the answer.

mod apply;
mod file;
mod known;
mod show;

pub(super) use apply::{Found, found, misspelt};
pub(super) use known::{Default, folder};
pub(super) use show::shown;
