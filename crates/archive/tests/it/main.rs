//! Directories, archives that other programs make, images of containers, and hostile ones.

mod bundle;
mod containers;
mod directories;
mod hostile;
mod hosts;
mod layers;
mod manifests;
mod programs;
