//! The real program, as a process, as people and scripts use it.

mod command_line;
