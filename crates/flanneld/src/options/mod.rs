//! options/mod
