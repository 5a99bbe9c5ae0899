#pragma once
/// Ctrl-C and other signals while the core waits.

namespace plait::python {

/// What GroupOptions::interrupted asks: true where a signal's handler has raised, in the main thread. The exception is then set in this
/// thread, and without_lock() raises it. Called without the interpreter lock.
bool interrupted_by_signal();

/// Notes which thread is the main one. With the interpreter lock.
void note_main_thread();

}  // namespace plait::python
