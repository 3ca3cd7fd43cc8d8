//! The traits of a host, implemented by its parts. Each of them hands a call to the part that it concerns.

mod host;
mod images;
mod machines;
mod networks;
mod volumes;
