//! The client of S3 against a server in this process.
