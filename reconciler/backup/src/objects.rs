//! Where objects are stored.

mod folder;
mod s3;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::Result;
use crate::location::Location;
use folder::Folder;
use s3::S3;

/// Gets the name of each listed object and its length in bytes.
pub(crate) type Visit<'a> = &'a mut (dyn FnMut(&str, u64) -> Result<()> + Send);

/// A store of objects. Names are relative to the repository, with slashes between their parts.
#[async_trait]
pub(crate) trait Objects: fmt::Debug + Send + Sync {
    /// Returns the address of an object, for messages.
    fn place(&self, name: &str) -> String;

    /// Returns an object, or `None` if there is none. One that is longer than `limit` is an error.
    async fn get(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>>;

    /// Writes an object whole or not at all.
    async fn put(&self, name: &str, body: Bytes) -> Result<()>;

    /// Writes an object if there is none. Returns whether it was written.
    async fn create(&self, name: &str, body: Bytes) -> Result<bool>;

    /// Deletes an object if there is one.
    async fn delete(&self, name: &str) -> Result<()>;

    /// Lists all objects below a folder, with their names relative to it.
    async fn list(&self, folder: &str, visit: Visit<'_>) -> Result<()>;

    /// Lists the folders directly in a folder: at most `limit`.
    async fn folders(&self, folder: &str, limit: usize) -> Result<Vec<String>>;

    /// Returns the name of any object of the repository.
    async fn first(&self) -> Result<Option<String>>;

    /// Removes what interrupted writes left below a folder, after those writes and deletes that still run. There must be no new one
    /// at the same time.
    async fn remove_partial(&self, folder: &str) -> Result<()>;
}

/// Returns the store of a location. Does not connect.
pub(crate) fn at(location: &Location) -> Result<Arc<dyn Objects>> {
    Ok(match location {
        Location::Folder(path) => Arc::new(Folder::new(path)?),
        Location::S3(location) => Arc::new(S3::new(location)?),
    })
}
