//! Whole repositories.
